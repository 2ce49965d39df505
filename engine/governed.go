package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"regent/adapters"
)

// GovernedConfig configures a [GovernedProvider].
type GovernedConfig struct {
	// Request is what every call asks: who asks, for which candidates, under which caps, for which task and kind of work. Its ID, Attempt
	// and Call stay empty: each call is one of its own.
	Request Request
	// RequestPolicies change each request before a provider gets it, in order; the router's own comes last.
	RequestPolicies []RequestPolicy
	// OnSettlement is told of this provider's settlements, besides the router's own callback and in the same way. Optional.
	OnSettlement func(Settlement)
}

// GovernedProvider is a provider that is governed call by call. Send admits a candidate, sets its cost aside, applies the request's
// policies, and contacts it; the answer passes its events on as they come, and settles once, whatever happens:
//
//	the answer is complete        charged what was used, the rest given back; without a usage, what was held
//	it fails before any output    given back, or charged what it reported; and the next candidate is tried
//	it fails after output         no other candidate is tried; charged what was used, or what was held
//	abort, or an early close      before output given back; after it charged what was used, or what was held
//
// A call without a cap holds nothing: it is charged what was used, or an estimate of that. Output is what the consumer has been given: the
// events before the first content are held back until that, so that another candidate can be tried for as long as possible.
//
// The context of Send is the call's: if it ends, the call is aborted and settled, also if nobody reads any more. A consumer that does not
// read its answer to the end closes it. A refusal is an [*Error], and also an [*adapters.Failure], as a provider's errors are.
//
// A panic of a provider or of a request's policy ends its attempt, as a failure unless the answer is complete, and goes on. Where a context
// has ended there is nobody for it to go to: what panics in Close then is logged.
type GovernedProvider struct {
	router *Router
	config GovernedConfig

	mu      sync.Mutex // guards running
	running map[*governedAnswer]struct{}
}

var _ adapters.Provider = (*GovernedProvider)(nil)

// NewGovernedProvider makes a provider that router governs. It returns an [*Error] with code VALIDATION for a configuration that cannot be.
func NewGovernedProvider(router *Router, config GovernedConfig) (*GovernedProvider, error) {
	return router.NewGovernedProvider(config)
}

// NewGovernedProvider makes a provider that the router governs. It returns an [*Error] with code VALIDATION for a configuration that
// cannot be.
func (r *Router) NewGovernedProvider(config GovernedConfig) (*GovernedProvider, error) {
	if config.Request.Call != nil || config.Request.ID != uuid.Nil || config.Request.Attempt != uuid.Nil || len(config.Request.Attempts) > 0 {
		return nil, invalid("engine.GovernedConfig: each call is one of its own, so that ID, Call, Attempt and Attempts stay empty")
	}
	if slices.ContainsFunc(config.RequestPolicies, func(p RequestPolicy) bool { return p == nil }) {
		return nil, invalid("engine.GovernedConfig: a request's policy is nil")
	}
	trial := config.Request
	if err := r.complete(&trial, ""); err != nil {
		return nil, err
	}
	if len(trial.Candidates) == 0 {
		return nil, invalid("engine.GovernedConfig: a provider needs a candidate at least")
	}
	return &GovernedProvider{router: r, config: config, running: map[*governedAnswer]struct{}{}}, nil
}

// governed marks what is governed.
func (g *GovernedProvider) governed() {}

// IsGovernedProvider says whether a provider's calls are governed already. A type that embeds a [GovernedProvider] is one, too.
func IsGovernedProvider(provider adapters.Provider) bool {
	_, is := provider.(interface{ governed() })
	return is
}

// Send makes a call. See [adapters.Provider].
func (g *GovernedProvider) Send(ctx context.Context, request adapters.Request) (adapters.Answer, error) {
	asked := g.config.Request
	asked.Facts.Stream = request.Stream
	if err := g.router.running.begin(); err != nil {
		return nil, asFailure(err)
	}
	w, err := g.router.newWalk(asked, true)
	if err != nil {
		g.router.running.all.Done()
		return nil, asFailure(err)
	}
	w.onSettlement = g.config.OnSettlement
	a := &governedAnswer{provider: g, walk: w, request: request}
	a.ctx, a.cancel = context.WithCancelCause(ctx)
	a.watch = context.AfterFunc(ctx, func() { a.abort(context.Cause(ctx)) })
	g.add(a)
	if err := a.contact(nil); err != nil {
		a.leave()
		return nil, err
	}
	return a, nil
}

// RenewBudget renews the holds of all calls that run; each is renewed by itself before it expires, so that this is for a host that knows
// of a longer pause. 0 extends by the router's own time to live. It returns an [*Error] of the first hold that could not be renewed.
func (g *GovernedProvider) RenewBudget(ctx context.Context, extend time.Duration) error {
	if extend < 0 {
		return invalid("a hold is extended by a time that is not negative")
	}
	if extend == 0 {
		extend = g.router.HoldTTL
	}
	var failed error
	for _, grant := range g.grants() {
		if err := grant.extend(ctx, extend); err != nil && failed == nil {
			failed = storeError(err)
		}
	}
	return failed
}

// grants are those of the calls under way.
func (g *GovernedProvider) grants() (grants []*Grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for answer := range g.running {
		if grant := answer.grant(); grant != nil {
			grants = append(grants, grant)
		}
	}
	return grants
}

func (g *GovernedProvider) add(a *governedAnswer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[a] = struct{}{}
}

func (g *GovernedProvider) remove(a *governedAnswer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.running, a)
}

// refused is a refusal that is a provider's failure, too.
type refused struct {
	refusal *Error
	failure *adapters.Failure
}

func (r *refused) Error() string   { return r.refusal.Error() }
func (r *refused) Unwrap() []error { return []error{r.refusal, r.failure} }

// asFailure makes a refusal what the contract of providers asks for. Whatever refuses a call here has no other source to offer, so that
// it is an overload of all of them, or the request's own fault.
func asFailure(err error) error {
	var failure *adapters.Failure
	var refusal *Error
	switch {
	case errors.As(err, &failure):
		return err
	case !errors.As(err, &refusal):
		return &adapters.Failure{Reason: adapters.UpstreamError, Cause: err}
	}
	failure = &adapters.Failure{Reason: adapters.InvalidRequest}
	switch refusal.Details.Class {
	case ClassRate, ClassCallerLimit:
		failure.Reason = adapters.RateLimited
	case ClassCapacity, ClassUnavailable:
		failure.Reason = adapters.Overloaded
	}
	if ms := refusal.Details.RetryAfterMs; ms != nil {
		failure.RetryAfter = time.Duration(*ms) * time.Millisecond
	}
	return &refused{refusal, failure}
}
