package openai

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/exchange"
	"regent/adapters/splice"
	"regent/adapters/sse"
	"regent/ledger"
)

// wantUsage asks for usage in a stream.
const wantUsage = `{"include_usage":true}`

// editChat is a request's body for the provider, which is asked for usage in every stream, spared what it refuses, and told the bound of
// the output that the call was admitted with by whichever name it reads.
func editChat(request adapters.Request, d *dialect) ([]byte, error) {
	request.Strip = append(slices.Clip(request.Strip), d.never...)
	missing, bound := map[string]string{}, leastBound(request.Body)
	if request.Stream {
		missing["stream_options"] = wantUsage
	}
	if bound == "" && d.endless && request.OutputTokensMax > 0 {
		bound = strconv.FormatInt(request.OutputTokensMax, 10)
	}
	if bound != "" && d.olderBound {
		missing[boundNames[0]] = bound
	}
	return exchange.Body(request, missing, func(s *splice.Splicer, name string, value gjson.Result) error {
		switch {
		case name == "stream_options" && request.Stream:
			return askForUsage(s, value)
		case slices.Contains(boundNames, name) && bound != "" && (value.Type != gjson.Null || missing[name] != ""):
			s.Replace(value, bound)
		}
		return nil
	})
}

// boundNames are the names of the bound of a chat completion's output, the older one first. A server may read either.
var boundNames = []string{"max_tokens", "max_completion_tokens"}

// leastBound is the smallest bound that a request gives, as JSON; empty if it gives none.
func leastBound(body []byte) string {
	least := gjson.Result{}
	for _, name := range boundNames {
		if bound := gjson.GetBytes(body, name); bound.Type == gjson.Number && (!least.Exists() || bound.Int() < least.Int()) {
			least = bound
		}
	}
	return least.Raw
}

// askForUsage sets include_usage in the stream's options, wherever it stands: of a repeated key each reader sees another.
func askForUsage(s *splice.Splicer, options gjson.Result) error {
	switch {
	case options.Type == gjson.Null:
		s.Replace(options, wantUsage)
		return nil
	case !options.IsObject():
		return errors.New("openai: stream_options is not an object")
	}
	found := false
	options.ForEach(func(key, value gjson.Result) bool {
		if key.String() == "include_usage" {
			s.Replace(value, "true")
			found = true
		}
		return true
	})
	if !found {
		s.Add(options.Index+len(options.Raw)-1, "include_usage", "true")
	}
	return nil
}

// chat is what a provider says in the course of one call of chat completions.
type chat struct {
	reader
	usageWanted bool // by the client
	// output says that content has come; finished, that a finish reason has; failed, that this was an error.
	output, finished, failed bool

	usage *ledger.Usage // by the stream's last report, nil if that was unusable
	tier  string        // the service tier by the last chunk that told one
}

var _ exchange.Reader = (*chat)(nil)

func newChat(request adapters.Request, d *dialect) exchange.Reader {
	return &chat{reader: reader{editor: exchange.NewEditor(request), places: d.chat()}, usageWanted: request.UsageWanted}
}

// Whole reads an answer that is not a stream.
func (c *chat) Whole(document []byte) (adapters.Event, *adapters.Failure) {
	root, ok := exchange.Object(document)
	if !ok || isError(root) || !root.Get("choices").IsArray() {
		return adapters.Event{}, c.broken(root, adapters.UpstreamError)
	}
	event := adapters.Event{Kind: adapters.Done, OutputBytes: c.choices(root.Get("choices"), "message").bytes}
	if c.failed {
		return adapters.Event{}, c.broken(root, adapters.UpstreamError)
	}
	c.usage, c.tier = c.places.usage(root), exchange.Tier(root.Get("service_tier"))
	event.Usage, event.Relay = c.report(), c.editor.Whole(document, root)
	return event, nil
}

// terminal is the data of the stream's last event.
var terminal = []byte("[DONE]")

// Event reads one event of a stream.
func (c *chat) Event(raw sse.Event) (adapters.Event, *adapters.Failure) {
	if bytes.Equal(bytes.TrimSpace(raw.Data), terminal) {
		return adapters.Event{Kind: adapters.Done, Relay: raw.Raw, Usage: c.report()}, nil
	}
	root, ok := exchange.Object(raw.Data)
	chunk := c.read(raw.Data, root)
	if !ok || chunk.isError || string(raw.Name) == "error" {
		return adapters.Event{}, c.broken(root, adapters.StreamBroken)
	}
	usageOnly := chunk.usage.IsObject() && !chunk.choices.Get("0").Exists()
	event := c.classify(chunk.choices, usageOnly)
	if c.failed {
		return adapters.Event{}, c.broken(root, adapters.StreamBroken)
	}
	switch {
	case chunk.usage.IsObject():
		c.usage = c.places.usage(root) // nil if it cannot be true: the report before it is not the last one any more
		if c.finished || usageOnly && c.output {
			event.Usage = c.report()
		}
	case event.Kind.IsOutput() && (!c.finished || event.OutputBytes > 0): // of which the report before it knows nothing
		c.usage = nil
	}
	if c.usageWanted || !usageOnly {
		event.Relay = c.editor.Event(raw)
	}
	return event, nil
}

// chunk is what is read of one chunk of a stream.
type chunk struct {
	choices, usage gjson.Result
	isError        bool
}

// read goes once through a chunk, notes the service tier that it tells, and makes of it what the client gets: with the public model's name
// in place of the provider's, and without usage that the client did not ask for.
func (c *chat) read(data []byte, root gjson.Result) (chunk chunk) {
	c.editor.Reset(data)
	root.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "usage":
			if chunk.usage = value; !c.usageWanted {
				c.editor.Cut(key, value)
			} else {
				c.editor.ShowModelIn(value)
			}
		case "model":
			c.editor.ShowModel(value)
		case "service_tier":
			c.tier = cmp.Or(exchange.Tier(value), c.tier)
		case "choices":
			chunk.choices = value
			fallthrough
		default:
			c.editor.ShowModelIn(value)
		}
		chunk.isError = chunk.isError || tellsError(key.Str, value)
		return true
	})
	return chunk
}

// broken is the failure that a document tells, and what it says was used all the same.
func (c *chat) broken(root gjson.Result, otherwise adapters.Reason) *adapters.Failure {
	failure := reported(root, otherwise)
	if c.usage = c.places.usage(root); c.usage != nil {
		c.tier = cmp.Or(exchange.Tier(root.Get("service_tier")), c.tier)
		failure.Usage = c.report()
	}
	return failure
}

// report is the usage by the last report, with the tier that served it. An event that went out keeps its own.
func (c *chat) report() *ledger.Usage {
	if c.usage == nil {
		return nil
	}
	usage := *c.usage
	usage.Tier = c.tier
	return &usage
}

// classify says what a chunk brings.
func (c *chat) classify(choices gjson.Result, usageOnly bool) adapters.Event {
	all := c.choices(choices, "delta")
	event := adapters.Event{OutputBytes: all.bytes}
	switch {
	case all.toolCall:
		event.Kind = adapters.ToolCall
	case all.some:
		event.Kind = adapters.Content
	case c.finished || c.output || usageOnly:
		event.Kind = adapters.Closing
	}
	c.output = c.output || event.Kind.IsOutput()
	return event
}

// choices reads what a list of choices brings, each in a message or in a delta of one. Some providers, as OpenRouter and Mistral, tell an
// error by a finish reason.
func (c *chat) choices(choices gjson.Result, in string) output {
	var all output
	choices.ForEach(func(_, choice gjson.Result) bool {
		all.add(readMessage(choice.Get(in)))
		reason := choice.Get("finish_reason")
		c.finished = c.finished || reason.Type == gjson.String
		c.failed = c.failed || reason.Str == "error"
		return true
	})
	return all
}

// readMessage reads a message or a delta of one. Whatever is not empty and not known to be none is output: a vendor's own kind of
// reasoning must not be repeated from another source either.
func readMessage(message gjson.Result) output {
	var o output
	message.ForEach(func(key, value gjson.Result) bool {
		switch key.String() {
		case "role":
			return true
		case "content", "refusal", "reasoning_content", "reasoning":
			o.bytes += textBytes(value)
		case "audio":
			o.bytes += textBytes(value.Get("data")) + textBytes(value.Get("transcript"))
		case "function_call":
			o.bytes += callBytes(value)
			o.toolCall = o.toolCall || exchange.IsSome(value)
		case "tool_calls":
			value.ForEach(func(_, call gjson.Result) bool {
				o.bytes += callBytes(call.Get("function")) + callBytes(call.Get("custom"))
				return true
			})
			o.toolCall = o.toolCall || exchange.IsSome(value)
		}
		o.some = o.some || exchange.IsSome(value)
		return true
	})
	return o
}

// textBytes counts the bytes of a text, or of the texts of a list of parts.
func textBytes(value gjson.Result) int {
	if !value.IsArray() {
		return len(value.Str)
	}
	n := 0
	value.ForEach(func(_, part gjson.Result) bool {
		n += len(part.Get("text").Str)
		return true
	})
	return n
}

func callBytes(call gjson.Result) int {
	return len(call.Get("name").Str) + len(call.Get("arguments").Str) + len(call.Get("input").Str)
}
