package openai

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/exchange"
	"regent/adapters/splice"
	"regent/adapters/sse"
	"regent/ledger"
)

// toolCalls bounds all that a server's own tools do in the course of a request.
const toolCalls = "max_tool_calls"

// editResponse is a request's body for the provider, which is told the bounds that the call was admitted with, unless the request itself
// has them: of web searches, and of the output where the server would go on without an end.
func editResponse(request adapters.Request, d *dialect) ([]byte, error) {
	bounds := map[string]string{}
	if request.Searches > 0 && d.searches {
		bounds[toolCalls] = strconv.FormatInt(request.Searches, 10)
	}
	if request.OutputTokensMax > 0 && d.endless {
		bounds["max_output_tokens"] = strconv.FormatInt(request.OutputTokensMax, 10)
	}
	return exchange.Body(request, bounds, func(s *splice.Splicer, name string, value gjson.Result) error {
		if bound := bounds[name]; bound != "" && value.Type == gjson.Null {
			s.Replace(value, bound)
		}
		return nil
	})
}

// response is what a provider says in the course of one call of Responses, or of their compaction.
//
// An event of a stream is what its data call themselves, or, if they do not, what its event line does. It is
//   - [adapters.Done] if it is response.completed or response.incomplete, and a failure if it is response.failed or an error;
//   - [adapters.ToolCall] if it is about a call of a tool, the client's or the server's: an item that is one, a part of its input, or how
//     far the server is with it;
//   - [adapters.Content] if it brings anything else of the output: text, a refusal, reasoning or its summary, an annotation, or an item of
//     a type that is not known to begin empty;
//   - and else, as response.created, the start of an empty item, the end of one that has come in pieces, and whatever is not known,
//     [adapters.Opening] before the first output, and [adapters.Closing] after it.
//
// Events are relayed as they come, in whichever order they do. Only the last one tells usage.
type response struct {
	reader
	output bool // has come
	bytes  int  // of output that have come
	open   int  // of these, those that belong to no item which is done
}

var _ exchange.Reader = (*response)(nil)

func newResponse(request adapters.Request, d *dialect) exchange.Reader {
	return &response{reader: reader{editor: exchange.NewEditor(request), places: d.response()}}
}

// Whole reads an answer that is not a stream.
func (r *response) Whole(document []byte) (adapters.Event, *adapters.Failure) {
	root, ok := exchange.Object(document)
	if !ok || !root.Get("output").IsArray() {
		return adapters.Event{}, r.failed(root, adapters.UpstreamError)
	}
	event, failure := r.end(root, adapters.UpstreamError)
	if failure != nil {
		return adapters.Event{}, failure
	}
	event.Relay = r.editor.Whole(document, root)
	return event, nil
}

// Event reads one event of a stream.
func (r *response) Event(raw sse.Event) (adapters.Event, *adapters.Failure) {
	root, ok := exchange.Object(raw.Data)
	step := r.read(raw, root)
	if !ok || step.isError || step.name == "error" || string(raw.Name) == "error" {
		return adapters.Event{}, reported(root, adapters.StreamBroken)
	}
	var event adapters.Event
	switch step.name {
	case "failed", "cancelled":
		return adapters.Event{}, r.failed(step.response, adapters.StreamBroken)
	case "completed", "incomplete":
		var failure *adapters.Failure
		if event, failure = r.end(step.response, adapters.StreamBroken); failure != nil {
			return adapters.Event{}, failure
		}
	default:
		event = r.bring(step)
	}
	event.Relay = r.editor.Event(raw)
	return event, nil
}

// step is what is read of one event of a stream.
type step struct {
	name     string // of its type, without what all of them have in common
	isError  bool
	response gjson.Result
	brought  output
}

// read goes once through an event, and makes of it what the client gets: with the public model's name in the response, where it holds one.
func (r *response) read(raw sse.Event, root gjson.Result) step {
	s := step{name: string(raw.Name)}
	r.editor.Reset(raw.Data)
	root.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "type":
			s.name = cmp.Or(value.Str, s.name)
		case "response":
			s.response = value
			r.editor.ShowModelOf(value)
		case "model":
			r.editor.ShowModel(value)
		case "item", "part":
			s.brought.add(readItem(value))
			r.editor.ShowModelIn(value)
		case "delta", "text", "refusal", "arguments", "input", "code", "command":
			s.brought.add(output{bytes: len(value.Str), some: exchange.IsSome(value)})
		case "annotation":
			s.brought.add(output{some: exchange.IsSome(value)})
		default:
			r.editor.ShowModelIn(value)
		}
		s.isError = s.isError || tellsError(key.Str, value)
		return true
	})
	s.name = strings.TrimPrefix(s.name, "response.")
	if strings.Contains(s.name, "_call") {
		s.brought.some, s.brought.toolCall = true, true
	}
	return s
}

// end reads the response when it has come to its end.
func (r *response) end(document gjson.Result, otherwise adapters.Reason) (adapters.Event, *adapters.Failure) {
	status := document.Get("status").Str
	if isError(document) || status == "failed" || status == "cancelled" {
		return adapters.Event{}, r.failed(document, otherwise)
	}
	event := adapters.Event{Kind: adapters.Done, OutputBytes: max(0, readItems(document.Get("output")).bytes-r.bytes)}
	event.Usage = r.usage(document)
	return event, nil
}

// failed is the failure of a response, which may have used something all the same.
func (r *response) failed(document gjson.Result, otherwise adapters.Reason) *adapters.Failure {
	failure := reported(document, otherwise)
	failure.Usage = r.usage(document)
	return failure
}

// usage is what a response reports at its end.
func (r *response) usage(document gjson.Result) *ledger.Usage {
	usage := r.places.usage(document)
	if usage != nil {
		usage.Tier = exchange.Tier(document.Get("service_tier"))
	}
	return usage
}

// bring is an event before the end.
func (r *response) bring(s step) adapters.Event {
	brought := s.brought
	event := adapters.Event{OutputBytes: r.fresh(s.name, brought.bytes)}
	brings := brought.some && !(r.output && brought.bytes > 0 && event.OutputBytes == 0) // what ends a part or an item repeats it
	r.output = r.output || brought.some
	switch {
	case brings && brought.toolCall:
		event.Kind = adapters.ToolCall
	case brings:
		event.Kind = adapters.Content
	case r.output:
		event.Kind = adapters.Closing
	}
	return event
}

// fresh is how many of the bytes that an event brings have not come before: what ends a part or an item repeats all of it. Providers that
// send no deltas bring them with that alone.
func (r *response) fresh(name string, brought int) int {
	n := brought
	if strings.HasSuffix(name, ".done") {
		n = max(0, brought-r.open)
	}
	r.bytes += n
	r.open += n
	if name == "output_item.done" {
		r.open = max(0, r.open-brought)
	}
	return n
}

// readItems reads a list of items, or of parts of one.
func readItems(items gjson.Result) output {
	var all output
	items.ForEach(func(_, item gjson.Result) bool {
		all.add(readItem(item))
		return true
	})
	return all
}

// readItem reads an item of the output, or a part of one. One whose type is not known to begin empty is output: it must not be repeated
// from another source. Encrypted reasoning is counted, as most of what the model thought shows nowhere else; images are not.
func readItem(item gjson.Result) output {
	var o output
	kind := ""
	item.ForEach(func(key, value gjson.Result) bool {
		switch key.String() {
		case "type":
			kind = value.Str
		case "text", "refusal", "name", "arguments", "input", "code", "encrypted_content":
			o.add(output{bytes: len(value.Str), some: exchange.IsSome(value)})
		case "annotations":
			o.add(output{some: exchange.IsSome(value)})
		case "content", "summary":
			o.add(readItems(value))
		}
		return true
	})
	switch kind {
	case "", "message", "reasoning", "output_text", "refusal", "summary_text", "reasoning_text":
	default:
		o.some = true
	}
	o.toolCall = strings.HasSuffix(kind, "_call")
	return o
}
