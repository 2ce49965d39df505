package exchange

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/splice"
	"regent/adapters/sse"
)

// Editor changes a provider's documents on their way to the client: the public model's name stands in place of the provider's, and what
// a protocol cuts is gone. [splice.Splicer.Reset] begins a document, of which parts are edited in the order in which they stand.
type Editor struct {
	splice.Splicer
	publicModel string
	// mark is the end of the provider's own name of the model, which is written in one way only.
	mark  string
	relay []byte // reused for each event that is edited
}

// NewEditor edits the answers to a request.
func NewEditor(request adapters.Request) Editor {
	return Editor{publicModel: request.PublicModel, mark: request.Model[strings.LastIndexByte(request.Model, '/')+1:]}
}

// ShowModel puts the public name of the model in place of the one that a document shows, unless it shows none.
func (e *Editor) ShowModel(shown gjson.Result) {
	if shown.Type != gjson.Null && (shown.Type != gjson.String || shown.Str != e.publicModel) {
		e.ReplaceText(shown, e.publicModel)
	}
}

// ShowModelOf does so in an object that is of the model, and inside of it.
func (e *Editor) ShowModelOf(object gjson.Result) {
	object.ForEach(func(key, value gjson.Result) bool {
		switch {
		case key.Str == "model":
			e.ShowModel(value)
		case !slices.Contains(saidKeys, key.Str):
			e.ShowModelIn(value)
		}
		return true
	})
}

// saidKeys name what is not the provider's own: what the model says to a tool, and what the client has sent.
var saidKeys = []string{"input", "arguments", "action", "operation", "metadata", "tools", "parameters"}

// isOwn says whether a name is the provider's own of the model, in whichever version.
func (e *Editor) isOwn(name string) bool {
	version, is := strings.CutPrefix(name[strings.LastIndexByte(name, '/')+1:], e.mark)
	return is && (version == "" || strings.IndexByte("-:@", version[0]) >= 0)
}

// ShowModelIn does so wherever a part calls something a model that is the provider's own, but for what others have said.
func (e *Editor) ShowModelIn(part gjson.Result) {
	if part.Type != gjson.JSON || e.mark == "" || !strings.Contains(part.Raw, e.mark) {
		return
	}
	part.ForEach(func(key, value gjson.Result) bool {
		switch {
		case key.Str == "model" && e.isOwn(value.Str):
			e.ShowModel(value)
		case !slices.Contains(saidKeys, key.Str):
			e.ShowModelIn(value)
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
