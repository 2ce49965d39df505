package adapters

import (
	"context"
	"io"
	"net/http"

	"regent/ledger"
)

// ProviderFunc is a provider that is one function, for a host that makes its own.
type ProviderFunc func(ctx context.Context, request Request) (Answer, error)

// Send calls the function.
func (f ProviderFunc) Send(ctx context.Context, request Request) (Answer, error) {
	return f(ctx, request)
}

// Whole is an answer that is there already, of one [Done] event. usage is nil if it is not known. One goroutine reads it.
func Whole(body []byte, usage *ledger.Usage) Answer {
	return &whole{event: Event{Kind: Done, Relay: body, OutputBytes: len(body), Usage: usage}}
}

type whole struct {
	event Event
	read  bool
}

func (w *whole) Status() int { return http.StatusOK }

func (w *whole) Next() (Event, error) {
	if w.read {
		return Event{}, io.EOF
	}
	w.read = true
	return w.event, nil
}

func (w *whole) Close() error { return nil }
