// Package exchange is what the adapters of HTTP protocols have in common: one request to a provider, and its answer, a stream of
// server-sent events or one document, read to its end. What a protocol's documents say is its adapter's to read; see [Reader].
//
// It translates nothing, retries nothing, and keeps nothing of what passes through it.
package exchange

import (
	"bytes"
	"context"
	"net/http"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/sse"
	"regent/adapters/upstream"
)

// Call is one request to a provider.
type Call struct {
	// Client reaches the provider; see package upstream.
	Client *http.Client
	// Memory bounds what whole answers take together.
	Memory *upstream.Memory
	// URL is where the body is posted to.
	URL string
	// Header holds the credential, and what else the protocol needs. It is an allow-list: besides it, only what describes the content,
	// the program, and what it takes for an answer is sent.
	Header http.Header
	// Body is a JSON object.
	Body []byte
	// Stream says whether the answer has to be a stream.
	Stream bool
}

// Reader is an adapter's part in one call: it says what the provider's documents mean. One goroutine calls it, event after event.
// Status and Accepted of its failures are filled in for it, and it keeps none of the provider's text in them.
type Reader interface {
	// Refused reads the error of a response that is no success, of which the document may be cut off or no JSON at all.
	Refused(status int, document gjson.Result) (reason adapters.Reason, code string)
	// Event reads an event that has data. A [adapters.Done] event is the last. Its bytes are valid until the next call.
	Event(raw sse.Event) (adapters.Event, *adapters.Failure)
	// Whole reads a whole answer as its one event.
	Whole(document []byte) (adapters.Event, *adapters.Failure)
}

// Send makes the call. It returns when the response's header has arrived and is a success, and, for a whole answer, when that was
// read, so that what is no answer is a failure of Send. See [adapters.Provider].
func (c Call) Send(ctx context.Context, reader Reader) (adapters.Answer, error) {
	ctx, end := context.WithCancelCause(ctx)
	response, err := c.post(ctx)
	if err != nil {
		failure := upstream.Failure(causeOr(ctx, err), false)
		end(nil)
		return nil, failure
	}
	answer := &answer{
		reader: reader, status: response.StatusCode, ctx: ctx, end: end, body: upstream.NewBody(response.Body, end), memory: c.Memory,
	}
	if failure := answer.open(response, c.Stream); failure != nil {
		_ = answer.Close() // the failure says more than its end could
		return nil, failure
	}
	return answer, nil
}

// post sends the body. Over HTTP/1.1 the transport sends it again only if nothing of it had left on a connection that turned
// out to be closed: it has no leave to repeat a POST otherwise, since no idempotency key is passed on.
func (c Call) post(ctx context.Context) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(c.Body))
	if err != nil {
		return nil, err
	}
	if c.Header != nil {
		request.Header = c.Header.Clone()
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "regent")
	request.Header.Set("Accept", "application/json")
	if c.Stream {
		request.Header.Set("Accept", "text/event-stream")
	}
	return c.Client.Do(request)
}

// causeOr is why a context ended, if it did: it says more than what the network saw of that.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
