package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"regent/adapters"
	"regent/ledger"
)

// Grant is the leave to contact one candidate, with the money set aside.
type Grant struct {
	Candidate *Candidate
	// Provider executes the candidate.
	Provider adapters.Provider
	// HonourRouting says that the request's OpenRouter routing metadata may be passed on.
	HonourRouting bool

	router *Router
	ttl    time.Duration

	mu   sync.Mutex // guards hold
	hold ledger.Hold
}

// Reservation is the call's hold with its newest token.
func (g *Grant) Reservation() Reservation {
	hold := g.newest()
	return Reservation{ID: hold.ID, Token: hold.Token}
}

func (g *Grant) newest() ledger.Hold {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hold
}

// keep renews the hold at a third of its time to live until stop is called, which waits for a renewal that is under way:
// after it, the token is the newest. A renewal that fails is tried again; it is no error of the call.
func (g *Grant) keep() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		every := g.ttl / 3
		timer := time.NewTimer(every)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			hold, began := g.newest(), time.Now()
			hold, err := g.router.Ledger.Renew(ctx, hold.ID, hold.Token, g.ttl)
			if ctx.Err() == nil {
				g.router.Meter.Renewed(time.Since(began), err)
			}
			switch {
			case err == nil:
				g.mu.Lock()
				g.hold = hold
				g.mu.Unlock()
				timer.Reset(every)
			case errors.Is(err, ledger.ErrState) || errors.Is(err, ledger.ErrClosed):
				return // it has ended: nothing is left to renew
			default:
				timer.Reset(every / 10)
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
