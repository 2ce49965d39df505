package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"regent/engine/decisions"
	"regent/engine/policy"
	"regent/ledger"
)

// RateLimit is how often an owner may ask a provider's model.
type RateLimit struct {
	// Max is how many calls may begin in a window, which opens with the first of them. 0 lets none begin.
	Max int64
	// Window defaults to a minute; at most 31 days.
	Window time.Duration
	// Key says what is counted together. Defaults to an owner's use of a provider's model.
	Key GateKey
}

// Circuit leaves a model alone that has failed again and again: it opens, lets one probe through after a while, and closes with a success.
type Circuit struct {
	// Threshold is how many failures without a success between open it. Defaults to 3.
	Threshold int64
	// CoolDown is how long it stays open, and how long a probe may take. Defaults to 30 s; at most 31 days.
	CoolDown time.Duration
	// Key says what fails together. Defaults to an owner's use of a provider's model.
	Key GateKey
}

// GateKey names what is counted together, or fails together. It is a pure function, and its names hold no secret: they are stored.
type GateKey func(identity policy.Identity, provider, model string) string

func (l *RateLimit) validate() error {
	if l == nil {
		return nil
	}
	if l.Window == 0 {
		l.Window = time.Minute
	}
	if l.Key == nil {
		l.Key = modelKey
	}
	if (ledger.Fixed{Length: l.Window}).Validate() != nil || l.Max < 0 || l.Max > ledger.NanoUSDMax {
		return invalid("engine.RateLimit: a maximum is not negative, and a window is more than 0 and at most 31 days")
	}
	return nil
}

func (c *Circuit) validate() error {
	if c == nil {
		return nil
	}
	if c.Threshold == 0 {
		c.Threshold = 3
	}
	if c.CoolDown == 0 {
		c.CoolDown = 30 * time.Second
	}
	if c.Key == nil {
		c.Key = modelKey
	}
	if (ledger.Fixed{Length: c.CoolDown}).Validate() != nil || c.Threshold < 0 {
		return invalid("engine.Circuit: a threshold is not negative, and a cool-down is more than 0 and at most 31 days")
	}
	return nil
}

// addGates puts the router's own rate and circuit before a candidate. Their names keep them apart from those that a host makes.
func (r *Router) addGates(identity policy.Identity, candidate *Candidate) {
	if r.RateLimit != nil {
		key := "model/" + r.RateLimit.Key(identity, candidate.Provider, candidate.Model)
		candidate.Rates = append(slices.Clip(candidate.Rates), ledger.Rate{Key: key, Max: r.RateLimit.Max, Window: r.RateLimit.Window})
	}
	if r.Circuit != nil && candidate.Circuit == nil {
		candidate.Circuit = r.circuitOf(identity, candidate.Provider, candidate.Model)
	}
}

// circuitOf is the router's own circuit before a provider's model.
func (r *Router) circuitOf(identity policy.Identity, provider, model string) *ledger.Circuit {
	return &ledger.Circuit{Key: "model/" + r.Circuit.Key(identity, provider, model), Threshold: r.Circuit.Threshold, CoolDown: r.Circuit.CoolDown}
}

// OutcomeReport is what a host says of an attempt that it made by itself, of what [Router.Resolve] has given it.
type OutcomeReport struct {
	Identity policy.Identity
	Verified bool
	// Provider and Model are the candidate's.
	Provider, Model string
	Success         bool
	// Probe is [Grant.Probe]. While a circuit is open, it listens to nobody but its probe.
	Probe uuid.UUID
	// Latency is how long the provider took; nil if nobody measured it.
	Latency *time.Duration
}

// RecordOutcome tells the circuit and the selection how an attempt ended. An abort that was the consumer's own is no outcome: leave it out.
// A candidate's own circuit is not told: a host that gives one tells its ledger. It returns an [*Error].
func (r *Router) RecordOutcome(ctx context.Context, report OutcomeReport) error {
	if !isName(report.Provider) || !isName(report.Model) {
		return invalid("an outcome names the provider and the model")
	}
	if report.Latency != nil && *report.Latency < 0 {
		return invalid("a latency is not negative")
	}
	if err := r.checkIdentity(report.Identity, report.Verified); err != nil {
		return err
	}
	r.observe(Observation{Provider: report.Provider, Model: report.Model, Success: report.Success, Latency: report.Latency})
	if r.Circuit == nil {
		return nil
	}
	health := ledger.Failing
	if report.Success {
		health = ledger.Healthy
	}
	err := r.Ledger.Report(ctx, ledger.Report{
		Attempt: report.Probe, Circuit: r.circuitOf(report.Identity, report.Provider, report.Model), Health: health,
	})
	if err != nil {
		return storeError(err)
	}
	return nil
}

// observe tells the selection how an attempt ended, if it listens.
func (r *Router) observe(observation Observation) {
	observer, listens := r.Selection.(Observer)
	if !listens {
		return
	}
	defer func() {
		if failure := recover(); failure != nil {
			r.Log.Error("the host's selection panicked", "type", fmt.Sprintf("%T", failure))
		}
	}()
	observer.Observe(observation)
}

// rates are what an admission of the candidate counts under: the candidate's own, and the call's unless it has been counted.
func (w *walk) rates(candidate *Candidate) []ledger.Rate {
	if w.counted {
		return candidate.Rates
	}
	return slices.Concat(w.request.Rates, candidate.Rates)
}

func rateKeys(rates []ledger.Rate) []string {
	if len(rates) == 0 {
		return nil
	}
	keys := make([]string, len(rates))
	for i, rate := range rates {
		keys[i] = rate.Key
	}
	return keys
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
	case errors.Is(err, ledger.ErrCircuits): // what nobody could watch over is left alone; another candidate may have its circuit
		return w.deniedBy(candidate, &Error{
			Code: CodeCircuit, Message: "so much has failed that no further circuit can be watched", cause: err,
			Details: Details{Class: ClassCapacity, Reason: ReasonCircuitOpen},
		}, false)
	}
	return nil
}

// deniedByRate tells the caller's own rate, which no other candidate helps, from the candidate's.
func (w *walk) deniedByRate(candidate *Candidate, rate *ledger.RateError) *step {
	own := slices.ContainsFunc(w.request.Rates, func(r ledger.Rate) bool { return r.Key == rate.Key })
	return w.deniedBy(candidate, rateRefusal(rate, own), own)
}

func rateRefusal(rate *ledger.RateError, own bool) *Error {
	refusal := &Error{
		Code: CodeRateLimit, Message: "the model's source may not be asked more often", cause: rate,
		Details: Details{Class: ClassCapacity, Reason: ReasonRateLimited, Rate: decisions.NewRate(rate)},
	}
	if own {
		refusal.Details.Class = ClassRate
		refusal.Message = fmt.Sprintf("%d calls may be made within %s, and were", rate.Max, ledger.FormatLength(rate.Window))
	}
	if !rate.Structural {
		refusal.Details.RetryAfterMs = millis(rate.RetryAfter)
	}
	return refusal
}

// CountIn counts what is no call but makes a provider work all the same, such as a question for a prompt's size, under the rates of who
// asks. id is new for each. It returns an [*Error] if a rate is reached, and the ledger's errors.
func (r *Router) CountIn(ctx context.Context, id uuid.UUID, rates []ledger.Rate) error {
	if len(rates) == 0 {
		return nil
	}
	_, err := r.Ledger.Admit(ctx, ledger.Admission{Hold: id, Rates: rates, Unheld: true})
	var rate *ledger.RateError
	if errors.As(err, &rate) {
		return rateRefusal(rate, true)
	}
	return err
}

// millis rounds up: whoever waits so long need not wait again.
func millis(d time.Duration) *int64 {
	return new((d + time.Millisecond - 1).Milliseconds())
}
