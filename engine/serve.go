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
	w, err := r.newWalk(&request, true)
	if err != nil {
		return err
	}
	var last *attempted
	for {
		grant, err := w.next(ctx)
		if err != nil {
			return w.giveUp(ctx, last, err)
		}
		w.report("allow", grant)
		last = w.contact(ctx, grant, attempt)
		if !last.retry(ctx) {
			w.finish(last, nil, last.outcome.Err)
			return last.outcome.Err
		}
		w.failOver(last)
	}
}

// attempted is a candidate that was contacted.
type attempted struct {
	grant       *Grant
	outcome     Outcome
	recorded    ledger.Outcome
	state       ledger.State
	health      ledger.Health
	unused      bool // the caller had gone before the candidate was contacted
	consumption *ledger.Consumption
	settlement  Settlement
}

// retry says whether another candidate may serve the call after this one.
func (a *attempted) retry(ctx context.Context) bool {
	var failure *adapters.Failure
	return !a.outcome.Output && ctx.Err() == nil && errors.As(a.outcome.Err, &failure) && failure.Elsewhere()
}

// contact runs one attempt, unless the caller has gone meanwhile. A panic in it ends the attempt like any failure, and goes on.
func (w *walk) contact(ctx context.Context, grant *Grant, attempt func(context.Context, *Grant) Outcome) (last *attempted) {
	started, began := w.Now(), time.Now()
	stop := grant.keep()
	last = &attempted{grant: grant, outcome: Outcome{Err: errors.New("engine: the attempt panicked")}}
	returned := false
	defer func() {
		stop()
		last.recorded, last.state = ended(last.outcome)
		if last.health = health(last.outcome); ctx.Err() != nil && last.health == ledger.Failing {
			last.health = ledger.Neutral // it may be the caller's going that failed it
		}
		last.consumption = settle(last.outcome, value(w.activation.Settings().Settlement), w.request.Facts.InputTokens)
		last.settlement = w.settlement(grant, last)
		last.settlement.Duration = w.Now().Sub(started)
		w.Meter.Contacted(time.Since(began), grant.Candidate, last.recorded)
		if !returned {
			w.finish(last, nil, last.outcome.Err)
		}
	}()
	if last.unused = ctx.Err() != nil; last.unused {
		last.outcome.Err = ErrAborted
	} else {
		last.outcome = attempt(ctx, grant)
	}
	returned = true
	return last
}

// settlement is what a host is told of an attempt.
func (w *walk) settlement(grant *Grant, last *attempted) Settlement {
	candidate := grant.Candidate
	return Settlement{
		Call: w.request.ID, Attempt: grant.newest().ID, Identity: identityRefs(w.request.Identity), Source: candidate.Source,
		Provider: candidate.Provider, Model: candidate.Model, Outcome: last.recorded.Result, Err: last.outcome.Err,
		Usage: last.outcome.Usage, TaskID: w.request.TaskID, Kind: w.request.Facts.Kind, BudgetReleased: last.consumption == nil,
	}
}

// finish ends the call with its last attempt. decision is a further decision record, where candidates were refused after it;
// told is what the caller gets.
func (w *walk) finish(last *attempted, decision []byte, told error) {
	w.Meter.Ended(last.state, told)
	hold := last.grant.newest()
	w.conclude(w.request.ID, ledger.Ending{
		Hold: hold.ID, Token: hold.Token, Outcome: last.recorded, State: w.callState(last.state), Decision: decision,
		Health: last.health, Unused: last.unused,
	}, last.consumption, func(charge ledger.Charge) { w.tell(last.settlement, charge) })
}

// callState is empty for a host without calls.
func (w *walk) callState(state ledger.State) ledger.State {
	if w.request.Call == nil {
		return ""
	}
	return state
}

// failOver leaves the failed attempt to be ended together with the next admission.
func (w *walk) failOver(last *attempted) {
	hold := last.grant.newest()
	w.replaces = &ledger.Replacement{
		Ending:      ledger.Ending{Hold: hold.ID, Token: hold.Token, Outcome: last.recorded, Health: last.health},
		Consumption: last.consumption,
	}
	w.replaced = &last.settlement
	candidate := last.grant.Candidate
	w.steps = append(w.steps, step{candidate: candidate, outcome: Failed, reason: last.recorded.Reason})
	w.attempts = append(w.attempts, policy.Attempt{
		Source: candidate.Source, Provider: candidate.Provider, Reason: last.recorded.Reason, Accounting: candidate.Accounting,
	})
}

// giveUp ends a call for which no candidate is left. If one was contacted, its failure is the answer, unless the caller's own
// limit ended the walk.
func (w *walk) giveUp(ctx context.Context, last *attempted, err error) error {
	if w.replaces == nil {
		return w.refuse(ctx, err)
	}
	var refusal *Error
	errors.As(err, &refusal)
	diagnostics := w.report("deny", nil)
	if refusal != nil {
		refusal.Diagnostics = diagnostics
	}
	decision := w.event(nil, refusal)
	if last != nil && last.grant.hold.ID == w.replaces.Hold {
		told := last.outcome.Err
		if refusal != nil && refusal.Details.Class.OfCaller() {
			told = refusal
		}
		w.finish(last, decision, told)
		return told
	}
	if last != nil {
		err = last.outcome.Err
	}
	w.abandon(decision, err)
	return err
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

// abandon ends a call whose last admitted candidate was never contacted, because the resolver does not know it.
func (w *walk) abandon(decision []byte, told error) {
	w.Meter.Ended(ledger.Failed, told)
	ending := w.replaces.Ending
	ending.State, ending.Decision = w.callState(ledger.Failed), decision
	w.conclude(w.request.ID, ending, nil, func(ledger.Charge) {})
}
