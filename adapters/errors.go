package adapters

import (
	"fmt"
	"time"

	"regent/ledger"
)

// Reason says why an attempt failed, in words that policy, records and the console share.
type Reason string

const (
	// Credential: the provider refused the connection's own credential or its account's credit (401, 402), or, by a 403 that does not
	// say more, perhaps this one request.
	Credential Reason = "credential"
	// ModelMissing: the provider does not know the source's model, or something else that the request named (404).
	ModelMissing Reason = "model_missing"
	// RateLimited: the provider's own limit was reached (429).
	RateLimited Reason = "rate_limited"
	// Overloaded: 408, 409, 503, 529.
	Overloaded Reason = "overloaded"
	// UpstreamError: any other 5xx, or a success that is not an answer of the protocol.
	UpstreamError Reason = "upstream_error"
	// Connection: no connection, or one that broke before the response's header.
	Connection Reason = "connection"
	// Timeout: nothing arrived in time.
	Timeout Reason = "timeout"
	// StreamBroken: the stream reported an error, broke, or ended without its terminal event.
	StreamBroken Reason = "stream_broken"
	// InvalidRequest: the provider found the client's request invalid (400, and every 4xx that is not named here).
	InvalidRequest Reason = "invalid_request"
	// ContextLength: the request does not fit the model's context.
	ContextLength Reason = "context_length"
	// ContentPolicy: the provider refused the content, by its code or by a 403 that says so.
	ContentPolicy Reason = "content_policy"
)

// Failure is everything that can go wrong with an attempt. Its message is ours: it never holds what the provider sent, which
// may repeat the prompt.
type Failure struct {
	Reason Reason
	// Status is the provider's HTTP status, 0 if there was none.
	Status int
	// Code is the provider's own error code where it is one of the known ones that a client may see, else empty.
	Code string
	// RetryAfter is how long the provider asked to be left alone, 0 if it did not say.
	RetryAfter time.Duration
	// Accepted says that the provider had answered with a success before it failed, so it may charge for the call.
	Accepted bool
	// Usage is what the provider says was used all the same; nil if it does not say.
	Usage *ledger.Usage
	// Cause is what the network said. It is for logs of the program's own errors and holds no provider's text.
	Cause error
}

func (f *Failure) Error() string {
	text := "provider: " + string(f.Reason)
	if f.Status != 0 {
		text += fmt.Sprintf(" (status %d)", f.Status)
	}
	if f.Cause != nil {
		text += ": " + f.Cause.Error()
	}
	return text
}

func (f *Failure) Unwrap() error { return f.Cause }

// Elsewhere says whether another source may succeed where this attempt failed. A request that is itself at fault fails
// everywhere.
func (f *Failure) Elsewhere() bool {
	switch f.Reason {
	case InvalidRequest, ContentPolicy, ContextLength:
		return false
	}
	return true
}
