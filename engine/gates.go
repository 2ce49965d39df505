package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"regent/engine/decisions"
	"regent/ledger"
)

// rates are what an admission of the candidate counts under: the candidate's own, and the call's unless it has been counted.
func (w *walk) rates(candidate *Candidate) []ledger.Rate {
	if w.counted {
		return candidate.Rates
	}
	return slices.Concat(w.request.Rates, candidate.Rates)
}

// deniedByGate turns a denial by a rate or a circuit into a step; nil if it is none.
func (w *walk) deniedByGate(candidate *Candidate, err error) *step {
	var rate *ledger.RateError
	var circuit *ledger.CircuitError
	switch {
	case errors.As(err, &rate):
		return w.deniedByRate(candidate, rate)
	case errors.As(err, &circuit):
		return &step{candidate: candidate, outcome: CircuitOpen, reason: ReasonCircuitOpen, refusal: &Error{
			Code: CodeCircuit, Message: "the model's source has failed again and again, and is left alone for a while", cause: err,
			Details: Details{Class: ClassCapacity, Reason: ReasonCircuitOpen, RetryAfterMs: millis(circuit.RetryAfter)},
		}}
	}
	return nil
}

// deniedByRate tells the caller's own rate, which no other candidate helps, from the candidate's.
func (w *walk) deniedByRate(candidate *Candidate, rate *ledger.RateError) *step {
	refusal := &Error{
		Code: CodeRateLimit, Message: "the model's source may not be asked more often", cause: rate,
		Details: Details{Class: ClassCapacity, Reason: ReasonRateLimited, Rate: decisions.NewRate(rate)},
	}
	own := slices.ContainsFunc(w.request.Rates, func(r ledger.Rate) bool { return r.Key == rate.Key })
	if own {
		refusal.Details.Class = ClassRate
		refusal.Message = fmt.Sprintf("%d calls may be made within %s, and were", rate.Max, ledger.FormatLength(rate.Window))
	}
	if !rate.Structural {
		refusal.Details.RetryAfterMs = millis(rate.RetryAfter)
	}
	return w.deniedBy(candidate, refusal, own)
}

// millis rounds up: whoever waits so long need not wait again.
func millis(d time.Duration) *int64 {
	return new((d + time.Millisecond - 1).Milliseconds())
}
