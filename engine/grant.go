package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

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
	rates  []string // under which it was counted
	ttl    time.Duration

	renewing sync.Mutex // held during a renewal, since of two at once one has a dead token; guards ended
	ended    bool       // nothing is renewed any more

	mu   sync.Mutex // guards hold
	hold ledger.Hold
}

// Attempt is the id under which the candidate was admitted.
func (g *Grant) Attempt() uuid.UUID { return g.newest().ID }

// Probe is the token of the probe that the candidate's open circuit has let through: the host's report of the outcome names it. It is
// zero while the circuit is closed.
func (g *Grant) Probe() uuid.UUID {
	if hold := g.newest(); hold.Probe {
		return hold.ID
	}
	return uuid.Nil
}

// isUnheld says that the call reserves nothing: it has no hold to renew or to end.
func (g *Grant) isUnheld() bool { return g.newest().Token == 0 }

// Reservation is the call's hold with its newest token; zero for a call that reserves nothing.
func (g *Grant) Reservation() Reservation {
	hold := g.newest()
	if hold.Token == 0 {
		return Reservation{}
	}
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
	if g.isUnheld() {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var timer *time.Timer // guarded by renewing
	g.renewing.Lock()
	defer g.renewing.Unlock()
	timer = time.AfterFunc(g.ttl/3, func() { // a goroutine that only waits would cost each stream its stack
		g.renewing.Lock()
		defer g.renewing.Unlock()
		if g.ended {
			return
		}
		if next, live := g.renew(ctx); live {
			timer.Reset(next)
		}
	})
	return func() {
		cancel()
		g.renewing.Lock()
		defer g.renewing.Unlock()
		g.ended = true
		timer.Stop()
	}
}

// renew renews the hold once, and says when to renew it next, unless it has ended.
func (g *Grant) renew(ctx context.Context) (next time.Duration, live bool) {
	began := time.Now()
	err := g.extendLocked(ctx, g.ttl)
	if ctx.Err() == nil {
		g.router.Meter.Renewed(time.Since(began), err)
	}
	switch {
	case err == nil:
		return g.ttl / 3, true
	case errors.Is(err, ledger.ErrState) || errors.Is(err, ledger.ErrClosed):
		return 0, false
	}
	return g.ttl / 30, true
}

// extend renews the hold of an attempt that runs. One that has ended, or holds nothing, has nothing to be renewed.
func (g *Grant) extend(ctx context.Context, ttl time.Duration) error {
	g.renewing.Lock()
	defer g.renewing.Unlock()
	if g.ended || g.isUnheld() {
		return nil
	}
	return g.extendLocked(ctx, ttl)
}

func (g *Grant) extendLocked(ctx context.Context, ttl time.Duration) error {
	hold := g.newest()
	renewed, err := g.router.Ledger.Renew(ctx, hold.ID, hold.Token, ttl)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hold.Token, g.hold.Deadline = renewed.Token, renewed.Deadline
	return nil
}
