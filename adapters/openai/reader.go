package openai

import (
	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/exchange"
	"regent/adapters/splice"
	"regent/adapters/sse"
)

// reader is what the readers of all protocols have in common: how a refusal is read, and a document changed on its way to the client.
type reader struct {
	publicModel string
	places      places
	splicer     splice.Splicer
	relay       []byte // reused for each event that is edited
}

// Refused reads the error of a response that is no success. See [exchange.Reader].
func (r *reader) Refused(status int, document gjson.Result) (reason adapters.Reason, code string) {
	return refusal(status, document)
}

// showModel puts the public model's name in place of the provider's in an object of the document that the splicer has.
func (r *reader) showModel(object gjson.Result) {
	object.ForEach(func(key, value gjson.Result) bool {
		if key.String() == "model" {
			exchange.ShowModel(&r.splicer, value, r.publicModel)
		}
		return true
	})
}

// wholeShown is a whole answer as the client gets it.
func (r *reader) wholeShown(document []byte, root gjson.Result) []byte {
	r.splicer.Reset(document)
	r.showModel(root)
	shown, _ := r.splicer.Result()
	return shown
}

// edited is an event as the client gets it, with what the splicer has made of its data. The bytes are the event's own where nothing
// was changed, and valid until the next call.
func (r *reader) edited(raw sse.Event) []byte {
	data, changed := r.splicer.Result()
	if !changed {
		return raw.Raw
	}
	r.relay = raw.AppendWithData(r.relay[:0], data)
	return r.relay
}

// output is what a document, or a part of one, brings of what the model has made.
type output struct {
	bytes          int // of text and tool arguments
	some, toolCall bool
}

func (o *output) add(other output) {
	o.bytes += other.bytes
	o.some, o.toolCall = o.some || other.some, o.toolCall || other.toolCall
}
