package exchange

import (
	"github.com/tidwall/gjson"

	"regent/adapters/splice"
	"regent/adapters/sse"
)

// Editor changes a provider's documents on their way to the client: the public model's name stands in place of the provider's, and what
// a protocol cuts is gone. [splice.Splicer.Reset] begins a document.
type Editor struct {
	splice.Splicer
	PublicModel string
	relay       []byte // reused for each event that is edited
}

// ShowModel puts the public name of the model in place of the one that a document shows, unless it shows none.
func (e *Editor) ShowModel(shown gjson.Result) {
	if shown.Type != gjson.Null && (shown.Type != gjson.String || shown.Str != e.PublicModel) {
		e.ReplaceText(shown, e.PublicModel)
	}
}

// ShowModelOf does so in an object of the document.
func (e *Editor) ShowModelOf(object gjson.Result) {
	object.ForEach(func(key, value gjson.Result) bool {
		if key.String() == "model" {
			e.ShowModel(value)
		}
		return true
	})
}

// Whole is a whole answer, which shows its model at its top, as the client gets it.
func (e *Editor) Whole(document []byte, root gjson.Result) []byte {
	e.Reset(document)
	e.ShowModelOf(root)
	shown, _ := e.Result()
	return shown
}

// Event is an event as the client gets it, with what was made of its data. The bytes are the event's own where nothing was changed, and
// valid until the next call.
func (e *Editor) Event(raw sse.Event) []byte {
	data, changed := e.Result()
	if !changed {
		return raw.Raw
	}
	e.relay = raw.AppendWithData(e.relay[:0], data)
	return e.relay
}
