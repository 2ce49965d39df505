package anthropic

import (
	"cmp"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/exchange"
	"regent/adapters/sse"
	"regent/ledger"
)

// answer is what a provider says in the course of one call.
//
// An event of a stream is what its data call themselves, or, if they do not, what its event line does. It is
//   - [adapters.ToolCall] if it begins a block of a tool's use, the client's or the server's, or brings a part of its input;
//   - [adapters.Content] if it brings anything else of a block: text, thinking and its signature, a citation, the result of a tool that
//     ran on the server, or what a block or a delta of an unknown type may bring;
//   - [adapters.Done] if it is message_stop, and a failure if it is an error;
//   - and else, as message_start, the start of an empty block, its stop, ping, message_delta and whatever is not known,
//     [adapters.Opening] before the first output or stop reason, and [adapters.Closing] after it.
//
// Events are relayed as they come, in whichever order they do.
type answer struct {
	editor exchange.Editor
	// output says that content has come; finished, that a stop reason has.
	output, finished bool

	report report
}

var _ exchange.Reader = (*answer)(nil)

// Whole reads an answer that is not a stream.
func (a *answer) Whole(document []byte) (adapters.Event, *adapters.Failure) {
	root, ok := exchange.Object(document)
	switch {
	case !ok:
		return adapters.Event{}, &adapters.Failure{Reason: adapters.UpstreamError}
	case isError(root), !root.Get("content").IsArray():
		return adapters.Event{}, reported(root, adapters.UpstreamError)
	}
	a.report.merge(root.Get("usage"))
	event := adapters.Event{Kind: adapters.Done, OutputBytes: readBlocks(root).bytes, Usage: a.report.usage()}
	event.Relay = a.editor.Whole(document, root)
	return event, nil
}

// Event reads one event of a stream.
func (a *answer) Event(raw sse.Event) (adapters.Event, *adapters.Failure) {
	root, ok := exchange.Object(raw.Data)
	step := a.read(raw, root)
	if !ok || step.isError || string(raw.Name) == "error" {
		return adapters.Event{}, reported(root, adapters.StreamBroken)
	}
	event := adapters.Event{Relay: a.editor.Event(raw)}
	var brought output
	switch step.name {
	case "message_start":
		brought = a.start(step.message)
	case "content_block_start":
		brought = readPart(step.block)
	case "content_block_delta":
		brought = readPart(step.delta)
	case "message_delta":
		event.Usage = a.delta(root)
	case "message_stop":
		event.Kind, event.Usage = adapters.Done, a.report.usage()
		return event, nil
	}
	event.Kind, event.OutputBytes = a.classify(brought), brought.bytes
	return event, nil
}

// step is what is read of one event of a stream.
type step struct {
	name                  string // of its type
	isError               bool
	message, block, delta gjson.Result
}

// read goes once through an event, and makes of it what the client gets: with the public model's name in the message, and wherever the
// provider's stands.
func (a *answer) read(raw sse.Event, root gjson.Result) step {
	s := step{name: string(raw.Name)}
	a.editor.Reset(raw.Data)
	root.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "type":
			s.name = cmp.Or(value.Str, s.name)
		case "message":
			s.message = value
			a.editor.ShowModelOf(value)
			return true
		case "content_block":
			s.block = value
		case "delta":
			s.delta = value
		}
		a.editor.ShowModelIn(value)
		s.isError = s.isError || tellsError(key.Str, value)
		return true
	})
	return s
}

// isError says whether a document reports an error.
func isError(root gjson.Result) bool { return exchange.Any(root, tellsError) }

// tellsError says whether a member of a document reports an error, or that it is one.
func tellsError(name string, value gjson.Result) bool {
	return name == "error" && value.Type != gjson.Null || name == "type" && value.Str == "error"
}

// start reads the message that a stream begins with. Its content is empty, unless a server has all of it at once.
func (a *answer) start(message gjson.Result) output {
	a.report.begin(message.Get("usage"))
	return readBlocks(message)
}

// delta reads what is told of the whole message. Its usage is the whole call's once there is a stop reason; until then, the call is
// under way.
func (a *answer) delta(root gjson.Result) *ledger.Usage {
	a.finished = a.finished || root.Get("delta.stop_reason").Type == gjson.String
	usage := root.Get("usage")
	a.report.merge(usage)
	if !a.finished || usage.Type == gjson.Null {
		return nil
	}
	return a.report.usage()
}

// classify says what kind of event it is that brings this.
func (a *answer) classify(brought output) adapters.Kind {
	a.output = a.output || brought.some
	if brought.some { // of which the report before it knows nothing
		a.report.output = field{}
	}
	switch {
	case brought.some && brought.toolCall:
		return adapters.ToolCall
	case brought.some:
		return adapters.Content
	case a.output, a.finished:
		return adapters.Closing
	}
	return adapters.Opening
}

// output is what a message, a block or a delta brings.
type output struct {
	bytes          int // of text, thinking and tool input
	some, toolCall bool
}

// readBlocks reads the content of a message.
func readBlocks(message gjson.Result) output {
	var all output
	message.Get("content").ForEach(func(_, block gjson.Result) bool {
		one := readPart(block)
		all.bytes += one.bytes
		all.some, all.toolCall = all.some || one.some, all.toolCall || one.toolCall
		return true
	})
	return all
}

// readPart reads a block or a delta. One whose type is not known to begin empty is output: it must not be repeated from another source.
func readPart(part gjson.Result) output {
	var o output
	kind := ""
	part.ForEach(func(key, value gjson.Result) bool {
		switch key.String() {
		case "type":
			kind = value.Str
			return true
		case "text", "thinking", "data", "name", "partial_json":
			o.bytes += len(value.Str)
		case "input":
			if exchange.IsSome(value) { // a stream brings it later
				o.bytes += len(value.Raw)
			}
		}
		o.some = o.some || exchange.IsSome(value)
		return true
	})
	switch kind {
	case "", "text", "thinking", "text_delta", "thinking_delta", "input_json_delta":
	default:
		o.some = true
	}
	o.toolCall = strings.HasSuffix(kind, "tool_use") || kind == "input_json_delta"
	return o
}

// count reads an answer that counts tokens.
type count struct{ answer }

// countBytesMax bounds such an answer, which is a number and what was done to get it.
const countBytesMax = 64 << 10

// Whole reads the answer.
func (c *count) Whole(document []byte) (adapters.Event, *adapters.Failure) {
	root, ok := exchange.Object(document)
	switch {
	case !ok, len(document) > countBytesMax:
		return adapters.Event{}, &adapters.Failure{Reason: adapters.UpstreamError}
	case isError(root), root.Get("input_tokens").Type != gjson.Number:
		return adapters.Event{}, reported(root, adapters.UpstreamError)
	}
	return adapters.Event{Relay: document}, nil
}
