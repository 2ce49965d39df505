package exchange

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"sync"
	"time"

	"regent/adapters"
	"regent/adapters/sse"
	"regent/adapters/upstream"
)

// answer is a response on its way: a stream of events, or one whole document.
type answer struct {
	reader Reader
	status int
	ctx    context.Context
	end    context.CancelCauseFunc
	body   *upstream.Body
	memory *upstream.Memory

	events  *sse.Reader    // nil for a whole answer
	only    adapters.Event // of a whole answer
	ended   error          // what every further Next returns
	drained bool

	mu     sync.Mutex // guards all below, since Close may come from anywhere
	closed bool
	whole  *upstream.Whole // whose memory Close gives back
}

var _ adapters.Answer = (*answer)(nil)

// open looks at the response's header, and reads a whole answer's body.
func (a *answer) open(response *http.Response, stream bool) *adapters.Failure {
	response.Body = a.body
	switch {
	case response.StatusCode < 200 || response.StatusCode > 299:
		return refused(response, a.reader)
	case !stream:
		return a.readWhole(response.ContentLength)
	case !isEventStream(response):
		return a.inside(&adapters.Failure{Reason: adapters.UpstreamError})
	}
	a.events = sse.NewReader(a.body)
	return nil
}

// isEventStream says whether a response is a stream of events.
func isEventStream(response *http.Response) bool {
	media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && media == "text/event-stream"
}

func (a *answer) readWhole(announced int64) *adapters.Failure {
	var err error
	a.whole, err = a.memory.Read(a.body, announced)
	switch {
	case errors.Is(err, upstream.ErrMemory):
		return a.inside(&adapters.Failure{Reason: adapters.Overloaded, Cause: err})
	case errors.Is(err, upstream.ErrSize):
		return a.inside(&adapters.Failure{Reason: adapters.UpstreamError})
	case err != nil:
		return a.inside(upstream.Failure(causeOr(a.ctx, err), true))
	}
	event, failure := a.reader.Whole(a.whole.Bytes)
	if failure != nil {
		return a.inside(failure)
	}
	event.Kind = adapters.Done
	a.only = event
	return nil
}

// inside completes a failure that comes inside a success.
func (a *answer) inside(failure *adapters.Failure) *adapters.Failure {
	failure.Status, failure.Accepted = a.status, true
	return failure
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
		return a.nextWhole()
	}
	event, failure := a.next()
	if failure != nil {
		a.ended = failure
		return adapters.Event{}, failure
	}
	if event.Kind == adapters.Done {
		a.ended = io.EOF
	}
	event.More = a.ended == nil && a.events.Ready()
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

// nextWhole is a whole answer as its one event, unless it was closed: then its memory is another's.
func (a *answer) nextWhole() (adapters.Event, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		a.ended = a.inside(&adapters.Failure{Reason: adapters.StreamBroken, Cause: context.Canceled})
		return adapters.Event{}, a.ended
	}
	a.ended = io.EOF
	return a.only, nil
}

// next reads a stream's next event.
func (a *answer) next() (adapters.Event, *adapters.Failure) {
	for {
		raw, err := a.events.Next()
		if err != nil {
			return adapters.Event{}, a.broken(err)
		}
		if len(bytes.TrimSpace(raw.Data)) == 0 {
			continue // a comment: keeping the client's connection alive is not the provider's business
		}
		event, failure := a.reader.Event(raw.WithoutMark().Completed())
		if failure != nil {
			return adapters.Event{}, a.inside(failure)
		}
		return event, nil
	}
}

// broken is the failure of a stream that ends without its terminal event.
func (a *answer) broken(err error) *adapters.Failure {
	switch {
	case errors.Is(err, io.EOF): // which means an end that is complete, as this one is not
		err = io.ErrUnexpectedEOF
		fallthrough
	case errors.Is(err, sse.ErrFrame):
		return a.inside(&adapters.Failure{Reason: adapters.StreamBroken, Cause: err})
	}
	return a.inside(upstream.Failure(causeOr(a.ctx, err), true))
}
