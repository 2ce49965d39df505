package engine

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

// Outcome is what came of contacting a candidate.
type Outcome struct {
	// Err is nil if the answer was complete, an [*adapters.Failure] if the provider failed, and [ErrAborted] if the consumer
	// went away. Anything else is a failure of the caller's own.
	Err error
	// Output says that content or a tool call has reached the consumer.
	Output bool
	// Accepted says that the provider had begun to answer.
	Accepted bool
	// Stalled says that the consumer took its time, which may be why the provider ended the exchange.
	Stalled bool
	// Status is the provider's HTTP status, 0 if there was none.
	Status int
	// Usage is the provider's last report; nil if none arrived.
	Usage *ledger.Usage
	// OutputTokens estimates the output that was relayed, for the case that no usage arrived.
	OutputTokens int64
}

// ErrAborted is the outcome of a call whose consumer went away.
var ErrAborted = errors.New("the consumer went away")

// Settlement tells a host what an attempt came to.
type Settlement struct {
	Call uuid.UUID
	// Attempt is the id of the attempt's hold.
	Attempt                 uuid.UUID
	Identity                IdentityRefs
	Source, Provider, Model string
	// Outcome is "success", "error" or "abort".
	Outcome  string
	Err      error
	Duration time.Duration
	// Usage is the provider's report; nil if none arrived.
	Usage *ledger.Usage
	// Charge is what was committed; BudgetReleased says that everything was given back instead.
	Charge         ledger.Charge
	BudgetReleased bool
	TaskID, Kind   string
}

// settle is the whole rule of what an attempt is charged. nil releases the hold.
//
//	usage reported                         -> what was used, however the attempt ended; what was held, if the price does not
//	                                          list a unit of it, or the service tier that it was served by
//	complete, or output was relayed        -> by policy: an estimate, or what was held
//	accepted by the provider, no output    -> by policy: nothing, or the estimated input
//	otherwise                              -> nothing
func settle(outcome Outcome, rules policy.Settlement, inputTokens *int64) *ledger.Consumption {
	estimate := func(output int64) *ledger.Consumption {
		usage := ledger.Usage{Output: output}
		if inputTokens != nil {
			usage.UncachedInput = *inputTokens
		}
		return &ledger.Consumption{Usage: &usage, Estimated: true}
	}
	switch {
	case outcome.Usage != nil:
		return &ledger.Consumption{Usage: outcome.Usage}
	case outcome.Err == nil || outcome.Output:
		if rules.Interrupted == "held" || inputTokens == nil {
			return &ledger.Consumption{}
		}
		return estimate(outcome.OutputTokens)
	case outcome.Accepted && rules.AcceptedWithoutOutput == "estimate" && inputTokens != nil:
		return estimate(0)
	}
	return nil
}

// ended is how an attempt's end is recorded, and the state that it leaves the call in if nothing else is tried.
func ended(outcome Outcome) (ledger.Outcome, ledger.State) {
	recorded := ledger.Outcome{Result: ledger.Errored, Reason: "internal", Status: outcome.Status}
	var failure *adapters.Failure
	switch {
	case outcome.Err == nil:
		recorded.Result, recorded.Reason = ledger.Success, ""
		return recorded, ledger.Completed
	case errors.Is(outcome.Err, ErrAborted):
		recorded.Result, recorded.Reason = ledger.Aborted, "client_gone"
		return recorded, ledger.Cancelled
	case errors.As(outcome.Err, &failure):
		recorded.Reason = string(failure.Reason)
		if recorded.Status == 0 {
			recorded.Status = failure.Status
		}
	}
	return recorded, ledger.Failed
}

// health is what an attempt's end says of its candidate. A circuit is everybody's, so that only what no caller can bring about counts
// against a candidate.
func health(outcome Outcome) ledger.Health {
	var failure *adapters.Failure
	switch {
	case outcome.Err == nil:
		return ledger.Healthy
	case errors.As(outcome.Err, &failure) && !outcome.Stalled && faulty(failure):
		return ledger.Failing
	}
	return ledger.Neutral
}

// faulty says whether a failure is clearly the candidate's own fault. A rate limit cools it down by itself. Of the 4xx, 401 and 402
// are about the connection, and 408 is a time-out; 403, 404 and 409 may be about this one request.
func faulty(failure *adapters.Failure) bool {
	status := failure.Status
	if status >= 400 && status <= 499 && status != http.StatusUnauthorized && status != http.StatusPaymentRequired && status != http.StatusRequestTimeout {
		return false
	}
	switch failure.Reason {
	case adapters.UpstreamError, adapters.Connection, adapters.Timeout, adapters.StreamBroken:
		return true
	case adapters.Overloaded, adapters.Credential:
		return status < 200 || status > 299 // a success leads here by this program's own bounds, or by what the request asked for
	}
	return false
}

const (
	settleRetry    = 20 * time.Millisecond // the first pause: longer than a transaction
	settleRetryMax = 5 * time.Second       // the longest: a store that comes back is found soon
)

// longer is the next pause after one. What holds live for bounds it, too: after an outage no hold expires for so long, and in this time
// each settlement has to be tried again.
func (r *Router) longer(pause time.Duration) time.Duration {
	return min(2*pause, settleRetryMax, r.HoldTTL/4)
}

// conclude writes an attempt's end in the background, on a context that outlives the request: the answer never waits for it.
// It is tried until the ledger has it, which settled is told of, or says that the hold has ended already.
func (r *Router) conclude(call uuid.UUID, ending ledger.Ending, consumption *ledger.Consumption, settled func(ledger.Charge)) {
	began := time.Now()
	r.settling.Go(func() {
		defer func() { r.Meter.Settled(time.Since(began)) }()
		for pause := settleRetry; ; pause = r.longer(pause) {
			charge, err := r.end(ending, consumption)
			switch {
			case err == nil:
				settled(charge)
				return
			case errors.Is(err, ledger.ErrInvalid) || errors.Is(err, ledger.ErrOverflow) || errors.Is(err, ledger.ErrPrice):
				r.Log.Error("a usage could not be charged; what was held is charged", "call", call, "err", err)
				consumption = &ledger.Consumption{}
			case errors.Is(err, ledger.ErrExpired) && consumption == nil:
				// Too late to give anything back: what was held is charged already, and a settlement says how much that is.
				consumption = &ledger.Consumption{}
			case errors.Is(err, ledger.ErrState) || errors.Is(err, ledger.ErrClosed):
				r.Log.Warn("an attempt had ended before it was settled", "call", call, "hold", ending.Hold, "err", err)
				return
			default:
				r.Log.Warn("a settlement is tried again", "call", call, "hold", ending.Hold, "err", err)
				time.Sleep(pause)
			}
		}
	})
}

// stateRetries are the pauses after which a hold that the ledger does not know is asked for again: a commit of which nobody knows may
// still be under way, and lands within seconds if at all.
var stateRetries = [...]time.Duration{time.Second, settleRetryMax}

// takeBack ends an admission of which nobody knows whether it was made: its call is refused, and nothing may be charged for it. It is
// tried until the ledger has ended the hold, or has known of none for a while.
func (w *walk) takeBack(hold uuid.UUID) {
	ending := ledger.Ending{
		Hold: hold, Token: 1, Unused: true, State: w.callState(ledger.Failed),
		Outcome: ledger.Outcome{Result: ledger.Errored, Reason: ReasonUnavailable},
	}
	w.settling.Go(func() {
		pause, unknown := settleRetry, 0
		for {
			err := w.Ledger.Release(context.Background(), ending)
			switch {
			case errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ledger.ErrBusy):
				time.Sleep(pause)
				pause = w.longer(pause)
			case errors.Is(err, ledger.ErrState) && !errors.Is(err, ledger.ErrExpired) && unknown < len(stateRetries):
				time.Sleep(stateRetries[unknown])
				unknown++
			default:
				return
			}
		}
	})
}

// tell tells the host of a settlement.
func (r *Router) tell(settlement Settlement, charge ledger.Charge) {
	settlement.Charge = charge
	settlement.BudgetReleased = settlement.BudgetReleased && !charge.UnknownUsage
	if r.OnSettlement != nil {
		r.OnSettlement(settlement)
	}
}

func (r *Router) end(ending ledger.Ending, consumption *ledger.Consumption) (ledger.Charge, error) {
	if consumption == nil {
		return ledger.Charge{}, r.Ledger.Release(context.Background(), ending)
	}
	return r.Ledger.Settle(context.Background(), ending, *consumption)
}
