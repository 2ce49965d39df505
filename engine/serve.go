package engine

import (
	"context"
	"errors"
	"time"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

// Serve routes a whole call: it hands each admitted candidate to attempt, in order, until one has answered or nothing is
// left to try, and settles each exactly once. attempt contacts the candidate's provider and relays its answer; its hold is
// renewed meanwhile.
//
// Another candidate is tried only if nothing has reached the consumer yet and the failure is one that another may not have.
//
// Serve returns nil if an attempt was complete, an [*Error] if the call was refused before any attempt, and otherwise the
// last attempt's error, which the consumer may have been told already if there was output.
func (r *Router) Serve(ctx context.Context, request Request, attempt func(context.Context, *Grant) Outcome) error {
	if err := r.running.begin(); err != nil {
		return err
	}
	defer r.running.all.Done()
	w, err := r.newWalk(request, true)
	if err != nil {
		return err
	}
	var last *attempted
	for {
		grant, err := w.onward(ctx, last)
		if err != nil {
			return err
		}
		last = w.contact(ctx, grant, attempt)
		if !last.retry(ctx) {
			w.finish(last, nil, last.outcome.Err)
			return last.outcome.Err
		}
	}
}

// onward leaves a failed attempt behind, nil at first, for the next candidate that may be contacted. Its error is the call's.
func (w *walk) onward(ctx context.Context, last *attempted) (*Grant, error) {
	if last != nil {
		w.failOver(last)
	}
	grant, err := w.next(ctx)
	if err != nil {
		return nil, w.giveUp(ctx, last, err)
	}
	w.report("allow", grant)
	return grant, nil
}

// attempted is a candidate that was contacted.
type attempted struct {
	grant   *Grant
	started time.Time     // by the router's clock
	began   time.Time     // by the process's
	stop    func()        // renewing its hold
	outcome Outcome       // and what follows from it:
	latency time.Duration // of the whole attempt
	// recorded, state and health are what the ledger is told, consumption what it charges.
	recorded    ledger.Outcome
	state       ledger.State
	health      ledger.Health
	consumption *ledger.Consumption
	settlement  Settlement
	unused      bool // the caller had gone before the candidate was contacted
}

// begin starts an attempt: its hold is renewed until its end.
func (w *walk) begin(grant *Grant) *attempted {
	return &attempted{grant: grant, started: w.Now(), began: time.Now(), stop: grant.keep()}
}

// end works out what an attempt's outcome comes to, and tells the selection.
func (w *walk) end(ctx context.Context, last *attempted, outcome Outcome) {
	last.stop()
	outcome.countFailure()
	last.outcome, last.latency = outcome, time.Since(last.began)
	last.recorded, last.state = ended(outcome)
	if last.health = health(outcome); ctx.Err() != nil && last.health == ledger.Failing {
		last.health = ledger.Neutral // it may be the caller's going that failed it
	}
	last.consumption = settle(outcome, w.settlementRules(last.grant), w.inputTokens(&outcome))
	last.settlement = w.settlement(last)
	w.Meter.Contacted(last.latency, last.grant.Candidate, last.recorded)
	if last.health != ledger.Neutral {
		candidate := last.grant.Candidate
		w.observe(Observation{
			Provider: candidate.Provider, Model: candidate.Model, Success: last.health == ledger.Healthy, Latency: &last.latency,
		})
	}
}

// contact runs one attempt, unless the caller has gone meanwhile. A panic in it ends the attempt like any failure, and goes on.
func (w *walk) contact(ctx context.Context, grant *Grant, attempt func(context.Context, *Grant) Outcome) *attempted {
	last := w.begin(grant)
	outcome := Outcome{Err: errPanicked}
	returned := false
	defer func() {
		w.end(ctx, last, outcome)
		if !returned {
			w.finish(last, nil, outcome.Err)
		}
	}()
	if last.unused = ctx.Err() != nil; last.unused {
		outcome.Err = ErrAborted
	} else {
		outcome = attempt(ctx, grant)
	}
	returned = true
	return last
}

// errPanicked is the outcome of an attempt that panicked.
var errPanicked = errors.New("engine: the attempt panicked")

// retry says whether another candidate may serve the call after this one.
func (a *attempted) retry(ctx context.Context) bool {
	var failure *adapters.Failure
	return !a.outcome.Output && ctx.Err() == nil && errors.As(a.outcome.Err, &failure) && failure.Elsewhere()
}

// settlement is what a host is told of an attempt.
func (w *walk) settlement(last *attempted) Settlement {
	candidate := last.grant.Candidate
	return Settlement{
		Call: w.request.ID, Attempt: last.grant.Attempt(), Identity: identityRefs(w.request.Identity), Source: candidate.Source,
		Provider: candidate.Provider, Model: candidate.Model, Outcome: last.recorded.Result, Err: last.outcome.Err,
		Duration: w.Now().Sub(last.started), Usage: last.outcome.Usage, TaskID: w.request.TaskID, Kind: w.request.Facts.Kind,
		BudgetReleased: last.consumption == nil,
	}
}

// finish ends the call with its last attempt. decision is a further decision record, where candidates were refused after it;
// told is what the caller gets.
func (w *walk) finish(last *attempted, decision []byte, told error) {
	w.Meter.Ended(last.state, told)
	w.conclude(w.ending(last, decision))
}

// ending is how the call's last attempt is settled.
func (w *walk) ending(last *attempted, decision []byte) *settling {
	settling := &settling{
		walk: w, last: last, settled: func(charge ledger.Charge) { w.tell(last.settlement, charge) }, consumption: last.consumption,
	}
	if !last.grant.isUnheld() {
		settling.ending = w.endingOf(last)
		settling.ending.State, settling.ending.Decision = w.callState(last.state), decision
	}
	return settling
}

// endingOf is the end of an attempt's hold.
func (w *walk) endingOf(last *attempted) ledger.Ending {
	hold := last.grant.newest()
	return ledger.Ending{Hold: hold.ID, Token: hold.Token, Outcome: last.recorded, Health: last.health, Unused: last.unused}
}

// callState is empty for a host without calls.
func (w *walk) callState(state ledger.State) ledger.State {
	if w.request.Call == nil {
		return ""
	}
	return state
}

// chargeable is a consumption that the next admission can charge: a usage that cannot be is charged at what was held.
func chargeable(c *ledger.Consumption, candidate *Candidate) *ledger.Consumption {
	if c == nil || c.Usage == nil {
		return c
	}
	_, err := c.Usage.Tokens()
	if err == nil && candidate.Price != nil {
		if _, err = candidate.Price.Cost(*c.Usage); errors.Is(err, ledger.ErrUnpriced) {
			err = nil // the ledger charges what is known of it
		}
	}
	if err == nil && candidate.CreditRate != nil {
		_, err = candidate.CreditRate.Credits(*c.Usage)
	}
	if err != nil {
		return &ledger.Consumption{}
	}
	return c
}

// failOver leaves the failed attempt to be ended together with the next admission. One without a hold is ended by itself.
func (w *walk) failOver(last *attempted) {
	if last.grant.isUnheld() {
		w.conclude(w.ending(last, nil))
	} else {
		w.replaces = &ledger.Replacement{Ending: w.endingOf(last), Consumption: chargeable(last.consumption, last.grant.Candidate)}
		w.replaced = &last.settlement
	}
	candidate := last.grant.Candidate
	w.steps = append(w.steps, step{candidate: candidate, outcome: Failed, reason: last.recorded.Reason})
	w.attempts = append(w.attempts, policy.Attempt{
		Source: candidate.Source, Provider: candidate.Provider, Reason: last.recorded.Reason, Accounting: candidate.Accounting,
	})
}

// giveUp ends a call for which no candidate is left. If one was contacted, its failure is the answer, unless the caller's own
// limit ended the walk.
func (w *walk) giveUp(ctx context.Context, last *attempted, err error) error {
	if w.replaces == nil && last == nil {
		return w.refuse(ctx, err)
	}
	var refusal *Error
	errors.As(err, &refusal)
	diagnostics := w.report("deny", nil)
	if refusal != nil {
		refusal.Diagnostics = diagnostics
	}
	told := err
	if last != nil && (refusal == nil || !refusal.Details.Class.OfCaller()) {
		told = last.outcome.Err
	}
	decision := w.event(nil, refusal)
	switch {
	case w.replaces == nil: // the last attempt had no hold, and has been ended
		w.settling.Go(func() {
			if err := w.Ledger.Refuse(context.Background(), nil, decision); err != nil {
				w.Log.Error("the end of a call could not be recorded", "call", w.request.ID, "err", err)
			}
		})
	case last != nil && last.grant.hold.ID == w.replaces.Hold:
		w.finish(last, decision, told)
	default:
		w.abandon(decision, told)
	}
	return told
}

// refuse records the denial of a call that was never admitted, and returns it. If it cannot be recorded, the call is refused
// for that.
func (w *walk) refuse(ctx context.Context, err error) error {
	var refusal *Error
	if !errors.As(err, &refusal) {
		return err
	}
	refusal.Diagnostics = w.report("deny", nil)
	if refusal.Details.Class >= ClassUnavailable || ctx.Err() != nil { // no call came about
		return refusal
	}
	if err := w.recordDenial(ctx, refusal); err != nil {
		return storeError(err)
	}
	w.Meter.Ended(ledger.Denied, refusal)
	return refusal
}

// abandon ends a call whose last admitted candidate was never contacted, because the resolver does not know it. What it was admitted
// with is given back before the caller is told, so that the next call finds it.
func (w *walk) abandon(decision []byte, told error) {
	w.Meter.Ended(ledger.Failed, told)
	ending := w.replaces.Ending
	ending.State, ending.Decision = w.callState(ledger.Failed), decision
	_ = w.concludeNow(&settling{walk: w, ending: ending, settled: func(ledger.Charge) {}}) // which is tried again if it fails
}
