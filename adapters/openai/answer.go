package openai

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/sse"
	"regent/adapters/upstream"
)

// answer is a response on its way: a stream of chunks, or one whole document.
type answer struct {
	request adapters.Request
	status  int
	ctx     context.Context
	end     context.CancelCauseFunc
	body    *upstream.Body
	closing sync.Once

	events *sse.Reader // nil for a whole answer
	whole  []byte
	// output says that content has come; done, that the terminal event has.
	output, done bool
	relay        []byte // reused for each event that is edited
}

var _ adapters.Answer = (*answer)(nil)

// open looks at the response's header, and for a whole answer reads its body, so that what is no answer is a failure of Send.
func (a *answer) open(response *http.Response) *adapters.Failure {
	response.Body = a.body
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return refused(response)
	}
	if a.request.Stream {
		if !isEventStream(response) {
			return &adapters.Failure{Reason: adapters.UpstreamError, Status: a.status, Accepted: true}
		}
		a.events = sse.NewReader(a.body)
		return nil
	}
	return a.readWhole()
}

func (a *answer) readWhole() *adapters.Failure {
	var err error
	a.whole, err = io.ReadAll(io.LimitReader(a.body, upstream.BodyMax+1))
	root := gjson.ParseBytes(a.whole)
	switch {
	case err != nil:
		failure := upstream.Failure(causeOr(a.ctx, err), true)
		failure.Status = a.status
		return failure
	case len(a.whole) > upstream.BodyMax, !gjson.ValidBytes(a.whole), !root.Get("choices").IsArray(), isError(root):
		return &adapters.Failure{Reason: adapters.UpstreamError, Status: a.status, Accepted: true}
	}
	return nil
}

func isError(root gjson.Result) bool {
	reported := root.Get("error")
	return reported.Exists() && reported.Type != gjson.Null
}

// Status is the response's.
func (a *answer) Status() int { return a.status }

// Close ends the exchange.
func (a *answer) Close() error {
	var err error
	a.closing.Do(func() {
		a.end(context.Canceled)
		err = a.body.Close()
	})
	return err
}

// Next returns the next event. See [adapters.Answer].
func (a *answer) Next() (adapters.Event, error) {
	if a.done {
		return adapters.Event{}, io.EOF
	}
	if a.events == nil {
		return a.nextWhole(), nil
	}
	for {
		raw, err := a.events.Next()
		if err != nil {
			return adapters.Event{}, a.broken(err)
		}
		if raw.Data == nil {
			continue // a comment: keeping the client's connection alive is not the provider's business
		}
		if bytes.Equal(raw.Data, terminal) {
			a.done = true
			return adapters.Event{Kind: adapters.Done, Relay: complete(raw)}, nil
		}
		return a.chunk(raw)
	}
}

// terminal is the data of the stream's last event.
var terminal = []byte("[DONE]")

// complete is an event's bytes, with the blank line that a provider may have forgotten after its last one.
func complete(raw sse.Event) []byte {
	if raw.Partial {
		return append(bytes.Clone(raw.Raw), "\n\n"...)
	}
	return raw.Raw
}

// broken is the failure of a stream that ends without its terminal event.
func (a *answer) broken(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, sse.ErrFrame) {
		return &adapters.Failure{Reason: adapters.StreamBroken, Status: a.status, Accepted: true, Cause: err}
	}
	failure := upstream.Failure(causeOr(a.ctx, err), true)
	failure.Status = a.status
	return failure
}

// nextWhole is a whole answer as its one event.
func (a *answer) nextWhole() adapters.Event {
	a.done = true
	root := gjson.ParseBytes(a.whole)
	event := adapters.Event{Kind: adapters.Done, Usage: parseUsage(root.Get("usage"))}
	root.Get("choices").ForEach(func(_, choice gjson.Result) bool {
		event.OutputBytes += outputBytes(choice.Get("message"))
		return true
	})
	event.Relay = a.rename(nil, a.whole, root.Get("model"))
	return event
}

// rename appends a document to dst with the public model's name in place of the provider's. Every other byte stays.
func (a *answer) rename(dst, document []byte, model gjson.Result) []byte {
	if model.Type != gjson.String || model.Index <= 0 || model.String() == a.request.PublicModel {
		return append(dst, document...)
	}
	dst = append(dst, document[:model.Index]...)
	dst = strconv.AppendQuote(dst, a.request.PublicModel) // a public id holds nothing that JSON and Go quote differently
	return append(dst, document[model.Index+len(model.Raw):]...)
}

// chunk reads one chunk of a stream.
func (a *answer) chunk(raw sse.Event) (adapters.Event, error) {
	root := gjson.ParseBytes(raw.Data)
	if !gjson.ValidBytes(raw.Data) || !root.IsObject() || isError(root) {
		return adapters.Event{}, &adapters.Failure{Reason: adapters.StreamBroken, Status: a.status, Accepted: true}
	}
	event := adapters.Event{Usage: parseUsage(root.Get("usage"))}
	a.classify(&event, root)
	event.Relay = a.edited(raw, root, event.Kind)
	return event, nil
}

// classify says what a chunk brings.
func (a *answer) classify(event *adapters.Event, root gjson.Result) {
	finished, toolCall := false, false
	root.Get("choices").ForEach(func(_, choice gjson.Result) bool {
		delta := choice.Get("delta")
		event.OutputBytes += outputBytes(delta)
		toolCall = toolCall || delta.Get("tool_calls.0").Exists() || delta.Get("function_call").IsObject()
		finished = finished || choice.Get("finish_reason").Type == gjson.String
		return true
	})
	switch {
	case toolCall:
		event.Kind = adapters.ToolCall
	case event.OutputBytes > 0:
		event.Kind = adapters.Content
	case finished || a.output || event.Usage != nil:
		event.Kind = adapters.Closing
	default:
		event.Kind = adapters.Opening
	}
	a.output = a.output || event.Kind.IsOutput()
}

// outputFields are the texts of a delta or a message that a model has made.
var outputFields = []string{"content", "refusal", "reasoning_content", "reasoning", "function_call.name", "function_call.arguments", "audio.data", "audio.transcript"}

// outputBytes counts the bytes of text and tool arguments.
func outputBytes(message gjson.Result) int {
	n := 0
	for _, field := range outputFields {
		if value := message.Get(field); value.Type == gjson.String {
			n += len(value.String())
		}
	}
	message.Get("tool_calls").ForEach(func(_, call gjson.Result) bool {
		n += len(call.Get("function.name").String()) + len(call.Get("function.arguments").String())
		return true
	})
	return n
}

// edited is a chunk as the client gets it: with the public model's name, and without usage that the client did not ask for. The
// bytes are the event's own where nothing had to be changed.
func (a *answer) edited(raw sse.Event, root gjson.Result, kind adapters.Kind) []byte {
	usage := root.Get("usage")
	dropUsage := usage.Exists() && !a.request.UsageWanted
	if dropUsage && kind == adapters.Closing && usage.IsObject() && root.Get("choices.#").Int() == 0 {
		return nil // the chunk that brings nothing but usage
	}
	model := root.Get("model")
	if !dropUsage && (model.Type != gjson.String || model.String() == a.request.PublicModel) {
		return complete(raw)
	}
	data := a.rename(nil, raw.Data, model)
	if dropUsage {
		data = withoutMember(data, "usage")
	}
	a.relay = raw.AppendWithData(a.relay[:0], data)
	if raw.Partial {
		a.relay = append(a.relay, "\n\n"...)
	}
	return a.relay
}

// withoutMember cuts a top-level member out of an object, with one of the commas beside it. Every other byte stays.
func withoutMember(document []byte, name string) []byte {
	from, to := -1, -1
	gjson.ParseBytes(document).ForEach(func(key, value gjson.Result) bool {
		if key.String() == name {
			from, to = key.Index, value.Index+len(value.Raw)
		}
		return from < 0
	})
	if from < 0 {
		return document
	}
	before, after := document[:from], document[to:]
	if comma := bytes.TrimRight(before, " \t\r\n"); bytes.HasSuffix(comma, []byte(",")) {
		return append(comma[:len(comma)-1:len(comma)-1], after...)
	}
	after = bytes.TrimPrefix(bytes.TrimLeft(after, " \t\r\n"), []byte(","))
	return append(before[:from:from], after...)
}
