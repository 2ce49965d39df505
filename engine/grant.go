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
	var renewing sync.Mutex // held during a renewal; it guards timer
	var timer *time.Timer
	renewing.Lock()
	defer renewing.Unlock()
	timer = time.AfterFunc(g.ttl/3, func() { // a goroutine that only waits would cost each stream its stack
		renewing.Lock()
		defer renewing.Unlock()
		if ctx.Err() != nil {
			return
		}
		if next, live := g.renew(ctx); live {
			timer.Reset(next)
		}
	})
	return func() {
		cancel()
		renewing.Lock()
		defer renewing.Unlock()
		timer.Stop()
	}
}

// renew renews the hold once, and says when to renew it next, unless it has ended.
func (g *Grant) renew(ctx context.Context) (next time.Duration, live bool) {
	hold, began := g.newest(), time.Now()
	hold, err := g.router.Ledger.Renew(ctx, hold.ID, hold.Token, g.ttl)
	if ctx.Err() == nil {
		g.router.Meter.Renewed(time.Since(began), err)
	}
	switch {
	case err == nil:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.hold = hold
		return g.ttl / 3, true
	case errors.Is(err, ledger.ErrState) || errors.Is(err, ledger.ErrClosed):
		return 0, false
	}
	return g.ttl / 30, true
}
