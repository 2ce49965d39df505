package openai

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/sse"
	"regent/adapters/upstream"
	"regent/ledger"
)

// answer is a response on its way: a stream of chunks, or one whole document.
type answer struct {
	request adapters.Request
	status  int
	ctx     context.Context
	end     context.CancelCauseFunc
	body    *upstream.Body

	mu     sync.Mutex // guards closed, and whole's bytes, which Close frees
	closed bool

	events *sse.Reader // nil for a whole answer
	memory *upstream.Memory
	whole  *upstream.Whole
	root   gjson.Result // of the whole answer
	// output says that content has come; finished, that a finish reason has.
	output, finished bool

	usage   *ledger.Usage // by the stream's last report, nil if that was unusable
	tier    string        // the service tier by the last chunk that told one
	ended   error         // what every further Next returns
	drained bool
	data    []byte // reused for each event that is edited
	relay   []byte // likewise
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
	return a.readWhole(response.ContentLength)
}

func (a *answer) readWhole(announced int64) *adapters.Failure {
	var err error
	a.whole, err = a.memory.Read(a.body, announced)
	switch {
	case errors.Is(err, upstream.ErrMemory):
		return &adapters.Failure{Reason: adapters.Overloaded, Status: a.status, Accepted: true, Cause: err}
	case err != nil && !errors.Is(err, upstream.ErrSize):
		failure := upstream.Failure(causeOr(a.ctx, err), true)
		failure.Status = a.status
		return failure
	case err != nil, !valid(a.whole.Bytes):
		return &adapters.Failure{Reason: adapters.UpstreamError, Status: a.status, Accepted: true}
	}
	a.root = gjson.ParseBytes(a.whole.Bytes)
	switch {
	case !a.root.IsObject():
		return &adapters.Failure{Reason: adapters.UpstreamError, Status: a.status, Accepted: true}
	case isError(a.root), !a.root.Get("choices").IsArray():
		return a.reported(a.root, adapters.UpstreamError)
	}
	return nil
}

// valid says whether a provider's document is JSON that can be read. Its depth is looked at first: what reads it is recursive.
func valid(document []byte) bool { return !adapters.TooDeep(document) && gjson.ValidBytes(document) }

// isError says whether a document reports an error: as OpenAI does, or, as older vLLM servers do, by being one.
func isError(root gjson.Result) bool {
	reported := root.Get("error")
	return reported.Exists() && reported.Type != gjson.Null || root.Get("object").Str == "error"
}

// reported is the failure that a success reports in its body.
func (a *answer) reported(root gjson.Result, reason adapters.Reason) *adapters.Failure {
	return &adapters.Failure{Reason: reasonInside(root, reason), Status: a.status, Code: errorCode(root), Accepted: true}
}

// Status is the response's.
func (a *answer) Status() int { return a.status }

// Close ends the exchange.
func (a *answer) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	a.end(context.Canceled)
	err := a.body.Close()
	if a.whole != nil {
		a.whole.Close()
	}
	return err
}

// Next returns the next event. See [adapters.Answer].
func (a *answer) Next() (adapters.Event, error) {
	if a.ended != nil {
		a.drain()
		return adapters.Event{}, a.ended
	}
	if a.events == nil {
		return a.only()
	}
	event, err := a.next()
	if err != nil {
		a.ended = err
		return adapters.Event{}, err
	}
	return event, nil
}

const (
	drainTime  = 100 * time.Millisecond // the end mostly stands in the buffer already; a new connection costs not much more
	drainBytes = 16 << 10               // a provider that goes on after its end is not waited for
)

// drain reads what follows a stream's terminal event, mostly nothing but the end of the body: only a body that was read to its
// end gives its connection back.
func (a *answer) drain() {
	if a.ended != io.EOF || a.drained {
		return
	}
	a.drained = true
	late := time.AfterFunc(drainTime, func() { a.end(context.Canceled) })
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, a.body, drainBytes) // what it says is of no use to anybody
}

// next reads a stream's next event.
func (a *answer) next() (adapters.Event, error) {
	for {
		raw, err := a.events.Next()
		if err != nil {
			return adapters.Event{}, a.broken(err)
		}
		data := bytes.TrimSpace(raw.Data)
		if len(data) == 0 {
			continue // a comment: keeping the client's connection alive is not the provider's business
		}
		raw = raw.WithoutMark()
		if bytes.Equal(data, terminal) {
			a.ended = io.EOF
			return adapters.Event{Kind: adapters.Done, Relay: complete(raw), Usage: a.report()}, nil
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
	switch {
	case errors.Is(err, io.EOF): // which means an end that is complete, as this one is not
		err = io.ErrUnexpectedEOF
		fallthrough
	case errors.Is(err, sse.ErrFrame):
		return &adapters.Failure{Reason: adapters.StreamBroken, Status: a.status, Accepted: true, Cause: err}
	}
	failure := upstream.Failure(causeOr(a.ctx, err), true)
	failure.Status = a.status
	return failure
}

// only is the one event of a whole answer, unless that was closed: then its bytes are gone.
func (a *answer) only() (adapters.Event, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		a.ended = &adapters.Failure{Reason: adapters.StreamBroken, Status: a.status, Accepted: true, Cause: context.Canceled}
		return adapters.Event{}, a.ended
	}
	a.ended = io.EOF
	return a.nextWhole(), nil
}

// nextWhole is a whole answer as its one event.
func (a *answer) nextWhole() adapters.Event {
	a.usage, a.tier = parseUsage(a.root.Get("usage")), servedTier(a.root)
	event := adapters.Event{Kind: adapters.Done, Usage: a.report()}
	a.root.Get("choices").ForEach(func(_, choice gjson.Result) bool {
		event.OutputBytes += readOutput(choice.Get("message")).bytes
		return true
	})
	event.Relay, _ = a.shown(a.whole.Bytes, a.root, false)
	return event
}

// chunk reads one chunk of a stream.
func (a *answer) chunk(raw sse.Event) (adapters.Event, error) {
	if !valid(raw.Data) {
		return adapters.Event{}, &adapters.Failure{Reason: adapters.StreamBroken, Status: a.status, Accepted: true}
	}
	root := gjson.ParseBytes(raw.Data)
	if !root.IsObject() || isError(root) || string(raw.Name) == "error" {
		return adapters.Event{}, a.reported(root, adapters.StreamBroken)
	}
	if tier := servedTier(root); tier != "" {
		a.tier = tier
	}
	choices, usage := root.Get("choices"), root.Get("usage")
	usageOnly := usage.IsObject() && !choices.Get("0").Exists()
	event := a.classify(choices, usageOnly)
	if usage.IsObject() {
		a.usage = parseUsage(usage) // nil if it cannot be true: the report before it is not the last one any more
		if a.finished || usageOnly && a.output {
			event.Usage = a.report()
		}
	}
	if dropUsage := usage.Exists() && !a.request.UsageWanted; !dropUsage || !usageOnly {
		event.Relay = a.edited(raw, root, dropUsage)
	}
	return event, nil
}

// report is the usage by the last report, with the tier that served it. An event that went out keeps its own.
func (a *answer) report() *ledger.Usage {
	if a.usage == nil {
		return nil
	}
	usage := *a.usage
	usage.Tier = a.tier
	return &usage
}

// classify says what a chunk brings.
func (a *answer) classify(choices gjson.Result, usageOnly bool) adapters.Event {
	var event adapters.Event
	var all output
	choices.ForEach(func(_, choice gjson.Result) bool {
		one := readOutput(choice.Get("delta"))
		all.bytes += one.bytes
		all.some, all.toolCall = all.some || one.some, all.toolCall || one.toolCall
		a.finished = a.finished || choice.Get("finish_reason").Type == gjson.String
		return true
	})
	event.OutputBytes = all.bytes
	switch {
	case all.toolCall:
		event.Kind = adapters.ToolCall
	case all.some:
		event.Kind = adapters.Content
	case a.finished || a.output || usageOnly:
		event.Kind = adapters.Closing
	}
	a.output = a.output || event.Kind.IsOutput()
	return event
}

// output is what a delta or a message brings.
type output struct {
	bytes          int // of text and tool arguments
	some, toolCall bool
}

// readOutput reads a delta or a message. Whatever is not empty and not known to be none is output: a vendor's own kind of
// reasoning must not be repeated from another source either.
func readOutput(message gjson.Result) output {
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
			o.toolCall = o.toolCall || isSome(value)
		case "tool_calls":
			value.ForEach(func(_, call gjson.Result) bool {
				o.bytes += callBytes(call.Get("function")) + callBytes(call.Get("custom"))
				return true
			})
			o.toolCall = o.toolCall || isSome(value)
		}
		o.some = o.some || isSome(value)
		return true
	})
	return o
}

// isSome says whether a value is a text, a list or an object with something in it.
func isSome(value gjson.Result) bool {
	some := value.Type == gjson.String && value.Str != ""
	if value.Type == gjson.JSON {
		value.ForEach(func(_, _ gjson.Result) bool {
			some = true
			return false
		})
	}
	return some
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

// edited is a chunk as the client gets it. The bytes are the event's own where nothing has to be changed.
func (a *answer) edited(raw sse.Event, root gjson.Result, dropUsage bool) []byte {
	data, changed := a.shown(raw.Data, root, dropUsage)
	if !changed {
		return complete(raw)
	}
	a.relay = raw.AppendWithData(a.relay[:0], data)
	if raw.Partial {
		a.relay = append(a.relay, "\n\n"...)
	}
	return a.relay
}

// shown is a document with the public model's name in place of the provider's, and without usage that the client did not ask
// for. It is valid until the next call.
func (a *answer) shown(document []byte, root gjson.Result, dropUsage bool) (shown []byte, changed bool) {
	s := splicer{document: document, out: a.data[:0]}
	root.ForEach(func(key, value gjson.Result) bool {
		switch key.String() {
		case "model":
			if value.Type != gjson.Null && (value.Type != gjson.String || value.Str != a.request.PublicModel) {
				s.replaceText(value, a.request.PublicModel)
			}
		case "usage":
			if dropUsage {
				s.cut(key, value)
			}
		}
		return true
	})
	if s.done == 0 {
		return document, false
	}
	s.copyTo(len(document))
	a.data = s.out
	return s.out, true
}
