package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	// OutputTokens estimates the output that came, for the case that no usage arrived, and InputTokens the prompt, where the facts of the
	// call do not: [Outcome.Count] does the former.
	OutputTokens, InputTokens int64

	outputBytes, outputParts int64
	// outdated says that output came after the report.
	outdated bool
}

// Count counts an event of the provider's answer.
func (o *Outcome) Count(event *adapters.Event) {
	switch {
	case event.Usage != nil && event.Kind != adapters.Opening: // whose counts are those of a call that only begins
		usage := *event.Usage // which its provider may count on in
		usage.Units = maps.Clone(usage.Units)
		o.Usage, o.outdated = &usage, false
	case event.Kind == adapters.Done: // its nil takes back what was reported before it
		o.Usage = nil
	case event.Kind.IsOutput(): // of an answer that breaks off later, the report is not the last word
		o.outdated = o.Usage != nil
	}
	o.outputBytes = min(o.outputBytes+min(max(int64(event.OutputBytes), 0), outputBytesMax), outputBytesMax)
	if event.Kind.IsOutput() {
		o.outputParts++
	}
	// A delta is a token or more in every dialect that streams, and a token is at most some four bytes of English.
	o.OutputTokens = max(o.outputParts, tokensOf(o.outputBytes))
}

// Fail notes why the answer is not complete, with the report that a failure may bring.
func (o *Outcome) Fail(err error) {
	o.Err = err
	o.countFailure()
}

// countFailure takes the report that a failure brings.
func (o *Outcome) countFailure() {
	var failure *adapters.Failure
	if errors.As(o.Err, &failure) && failure.Usage != nil {
		o.Count(&adapters.Event{Kind: adapters.Closing, Usage: failure.Usage})
	}
}

// outputBytesMax bounds what is counted of an answer: far more than any, and little enough to be added up.
const outputBytesMax = 1 << 50

// tokensOf is the least number of tokens that so many bytes of text are taken for.
func tokensOf(bytes int64) int64 { return (bytes + 3) / 4 }

var (
	// ErrAborted is the outcome of a call whose consumer went away.
	ErrAborted = errors.New("the consumer went away")
	// ErrEarlyClose is the outcome of an answer that its consumer closed before its end.
	ErrEarlyClose = errors.New("the consumer closed the answer before its end")
)

// Settlement tells a host what an attempt came to.
type Settlement struct {
	Call     uuid.UUID
	Attempt  uuid.UUID
	Identity IdentityRefs
	Source   string
	Provider string
	Model    string
	// Outcome is "success", "error", "abort" or "early_close".
	Outcome  string
	Err      error
	Duration time.Duration
	// Usage is the provider's report; nil if none arrived.
	Usage *ledger.Usage
	// Charge is what was committed. BudgetCommitted says that something was, BudgetReleased that everything was given back instead, and
	// UnknownUsage that what was held was charged, since nobody knows what was used.
	Charge                                        ledger.Charge
	BudgetCommitted, BudgetReleased, UnknownUsage bool
	TaskID, Kind                                  string
}

// settlementRules are what an attempt is charged whose usage is not known. For a host's own calls it is what was held, which is set aside
// in full; without a hold it is an estimate; for recorded calls, policy says it, but that an estimate cannot count what is hidden.
func (w *walk) settlementRules(grant *Grant) policy.Settlement {
	switch {
	case grant.isUnheld():
		return policy.Settlement{Interrupted: "estimate", AcceptedWithoutOutput: "release"}
	case w.request.Call == nil:
		return policy.Settlement{Interrupted: "held", AcceptedWithoutOutput: "release"}
	}
	rules := value(w.activation.Settings().Settlement)
	if grant.Candidate.HiddenTokens {
		rules.Interrupted = "held"
	}
	return rules
}

// inputTokens is the estimate of the prompt.
func (w *walk) inputTokens(outcome *Outcome) *int64 {
	if w.request.Facts.InputTokens == nil && w.request.Call == nil {
		return &outcome.InputTokens
	}
	return w.request.Facts.InputTokens
}

// settle is the whole rule of what an attempt is charged. nil releases the hold.
//
//	usage reported                         -> what was used, however the attempt ended; what was held, if the price does not
//	                                          list a unit of it, or the service tier that it was served by
//	reported, then more output, then broken-> by policy: the report with at least the output that was relayed, or what was held
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
	case outcome.Usage != nil && outcome.Err != nil && outcome.outdated:
		if rules.Interrupted == "held" {
			return &ledger.Consumption{}
		}
		usage := *outcome.Usage
		usage.Output = max(usage.Output, outcome.OutputTokens)
		return &ledger.Consumption{Usage: &usage, Estimated: true}
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
	case errors.Is(outcome.Err, ErrEarlyClose):
		recorded.Result, recorded.Reason = ledger.EarlyClosed, "closed_early"
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
	settleRetryMin = time.Millisecond      // however little holds live, the processor is left to others
)

// longer is the next pause after one. What holds live for bounds it, too: after an outage no hold expires for so long, and in this time
// each settlement has to be tried again.
func (r *Router) longer(pause time.Duration) time.Duration {
	return max(min(2*pause, settleRetryMax, r.HoldTTL/4), settleRetryMin)
}

// settling is an attempt's end on its way into the ledger.
type settling struct {
	*walk
	last *attempted // nil if nobody was contacted
	// ending is that of the hold; it is zero without one.
	ending      ledger.Ending
	consumption *ledger.Consumption
	// settled is told of the charge, once it is written.
	settled func(ledger.Charge)
	// posted says that what an attempt without a hold used has been charged.
	posted bool
}

// conclude writes an attempt's end in the background, on a context that outlives the request: the answer never waits for it.
// It is tried until the ledger has it, which settled is told of, or says that the hold has ended already.
func (w *walk) conclude(s *settling) {
	began := time.Now()
	w.Router.settling.Go(func() {
		defer func() { w.settledIn(time.Since(began)) }()
		for pause := settleRetry; ; pause = w.longer(pause) {
			if over, _ := s.write(); over {
				return
			}
			time.Sleep(pause)
		}
	})
}

// concludeNow writes an attempt's end before it returns, or else in the background, where the error is why it is not written yet.
func (w *walk) concludeNow(s *settling) error {
	began := time.Now()
	over, err := s.write()
	if !over {
		w.conclude(s)
		return err
	}
	w.Meter.Settled(time.Since(began))
	return err
}

// settledIn tells the meter on a goroutine of the router's own, where a panic of the host's would end the process.
func (w *walk) settledIn(took time.Duration) {
	defer func() {
		if failure := recover(); failure != nil {
			w.Log.Error("the host's meter panicked", "type", fmt.Sprintf("%T", failure))
		}
	}()
	w.Meter.Settled(took)
}

// write writes the end once. over says that there is nothing left to be tried.
func (s *settling) write() (over bool, err error) {
	charge, err := s.end()
	switch {
	case err == nil:
		s.settled(charge)
		return true, nil
	case errors.Is(err, ledger.ErrInvalid) || errors.Is(err, ledger.ErrUsage) || errors.Is(err, ledger.ErrOverflow) || errors.Is(err, ledger.ErrPrice):
		s.Log.Error("a usage could not be charged; what was held or is estimated is charged", "call", s.request.ID, "err", err)
		s.consumption = s.unknown()
	case errors.Is(err, ledger.ErrExpired) && s.consumption == nil:
		// Too late to give anything back: what was held is charged already, and a settlement says how much that is.
		s.consumption = &ledger.Consumption{}
	case errors.Is(err, ledger.ErrState) || errors.Is(err, ledger.ErrClosed):
		s.Log.Warn("an attempt had ended before it was settled", "call", s.request.ID, "hold", s.ending.Hold, "err", err)
		return true, err
	default:
		s.Log.Warn("a settlement is tried again", "call", s.request.ID, "hold", s.ending.Hold, "err", err)
	}
	return false, err
}

// unknown is what is charged in place of a usage that cannot be: what was held, or an estimate if nothing was, and that once.
func (s *settling) unknown() *ledger.Consumption {
	if s.ending.Hold != uuid.Nil || s.consumption.Estimated {
		return &ledger.Consumption{}
	}
	outcome := s.last.outcome
	outcome.Usage, outcome.Output = nil, true // something was used
	return settle(outcome, s.settlementRules(s.last.grant), s.inputTokens(&outcome))
}

// end writes the end of the hold, or what an attempt without one comes to.
func (s *settling) end() (ledger.Charge, error) {
	switch {
	case s.ending.Hold == uuid.Nil:
		return s.endUnheld()
	case s.consumption == nil:
		return ledger.Charge{}, s.Ledger.Release(context.Background(), s.ending)
	}
	return s.Ledger.Settle(context.Background(), s.ending, *s.consumption)
}

// endUnheld charges the budgets of an attempt without a hold directly, and tells its rates and circuit of it. What it used and nobody can
// price is counted in tokens alone.
func (s *settling) endUnheld() (charge ledger.Charge, err error) {
	if s.consumption != nil && s.consumption.Usage != nil {
		if charge, err = s.charge(); err != nil {
			return ledger.Charge{}, err
		}
	}
	return charge, s.tellGates(s.last.grant, s.last.health, s.last.unused)
}

// charge posts what was used, once.
func (s *settling) charge() (ledger.Charge, error) {
	usage, candidate := *s.consumption.Usage, s.last.grant.Candidate
	charge := ledger.Charge{Estimated: s.consumption.Estimated}
	var err error
	if charge.Tokens, err = usage.Tokens(); err != nil {
		return charge, err
	}
	if candidate.Price != nil {
		if charge.NanoUSD, err = candidate.Price.Cost(usage); err != nil && !errors.Is(err, ledger.ErrUnpriced) {
			return charge, err
		}
	}
	if s.posted {
		return charge, nil
	}
	posting := ledger.Posting{
		ID: s.last.grant.Attempt(), Usage: usage, NanoUSD: charge.NanoUSD, Source: candidate.Source, Provider: candidate.Provider,
	}
	posting.Accounts, posting.Limits = charged(s.scopes(s.request, candidate))
	err = s.Ledger.Post(context.Background(), posting)
	s.posted = err == nil
	return charge, err
}

// tellGates tells the rates and the circuit of an attempt without a hold of its end.
func (w *walk) tellGates(grant *Grant, health ledger.Health, unused bool) error {
	if grant.Candidate.Circuit == nil && (!unused || len(grant.rates) == 0) {
		return nil
	}
	hold := grant.newest()
	return w.Ledger.Report(context.Background(), ledger.Report{
		Attempt: hold.ID, AdmittedAt: hold.AdmittedAt, Rates: grant.rates, Circuit: grant.Candidate.Circuit, Health: health, Unused: unused,
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
func (w *walk) tell(settlement Settlement, charge ledger.Charge) {
	settlement.Charge, settlement.UnknownUsage = charge, charge.UnknownUsage
	settlement.BudgetReleased = settlement.BudgetReleased && !charge.UnknownUsage
	settlement.BudgetCommitted = !settlement.BudgetReleased
	for _, callback := range []func(Settlement){w.OnSettlement, w.onSettlement} {
		if callback != nil {
			w.teller.tell(func() { callback(settlement) })
		}
	}
}
