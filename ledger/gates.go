package ledger

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Rate is how often something may begin: Max times within a window that opens with the first and closes Window later.
type Rate struct {
	Key string
	// Max of 0 lets nothing begin.
	Max    int64
	Window time.Duration
}

// Circuit stands before something that may be down. After Threshold failures with no success between it opens: for CoolDown nothing is
// admitted, then one probe at a time. A probe has CoolDown to be heard of: if it succeeds the circuit closes, if it fails it is open
// for CoolDown from then on, and if nothing is heard of it, from the end of its time on. A success closes it also later.
type Circuit struct {
	Key       string
	Threshold int64
	CoolDown  time.Duration
}

// Health is what the end of a hold says of the candidate that it was for.
type Health string

const (
	// Neutral says nothing of it: the caller went away, or was at fault. A probe that ends so is given back.
	Neutral Health = ""
	// Healthy says that it works.
	Healthy Health = "healthy"
	// Failing says that it failed, and would have failed others.
	Failing Health = "failing"
	// Unsaid is nothing that a circuit hears: somebody else will tell it, by [Ledger.Report]. A probe that ends so stays out, and its
	// time runs on.
	Unsaid Health = "unsaid"
)

func (h Health) validate() error {
	switch h {
	case Neutral, Healthy, Failing, Unsaid:
		return nil
	}
	return fmt.Errorf("%w: unknown health %q", ErrInvalid, string(h))
}

func (r Rate) validate() error {
	if err := validateTexts(r.Key); err != nil {
		return err
	}
	if r.Key == "" || r.Max < 0 || r.Max > NanoUSDMax {
		return fmt.Errorf("%w: a rate needs a key, and a maximum within 0 and 2^62", ErrInvalid)
	}
	if err := validateLength(r.Window); err != nil {
		return fmt.Errorf("%w: rate %q: %w", ErrInvalid, r.Key, err)
	}
	return nil
}

func (c Circuit) validate() error {
	if err := validateTexts(c.Key); err != nil {
		return err
	}
	if c.Key == "" || c.Threshold <= 0 {
		return fmt.Errorf("%w: a circuit needs a key, and a threshold above 0", ErrInvalid)
	}
	if err := validateLength(c.CoolDown); err != nil {
		return fmt.Errorf("%w: circuit %q: %w", ErrInvalid, c.Key, err)
	}
	return nil
}

// validateGates returns [ErrInvalid] for rates and a circuit that cannot be.
func (a *Admission) validateGates() error {
	seen := make(map[string]bool, len(a.Rates))
	for _, rate := range a.Rates {
		if err := rate.validate(); err != nil {
			return err
		}
		if seen[rate.Key] {
			return fmt.Errorf("%w: rate %q is named twice", ErrInvalid, rate.Key)
		}
		seen[rate.Key] = true
	}
	if a.Circuit != nil {
		if err := a.Circuit.validate(); err != nil {
			return err
		}
	}
	if a.Replaces != nil {
		return a.Replaces.Health.validate()
	}
	return nil
}

// isGateError tells the answers of rates and circuits from a store's failures.
func isGateError(err error) bool {
	var rate *RateError
	var circuit *CircuitError
	return errors.As(err, &rate) || errors.As(err, &circuit) || errors.Is(err, ErrBusy)
}

// gateKeys names the rows of the rates and the circuit.
func (a *Admission) gateKeys(keys *Keys) {
	for _, rate := range a.Rates {
		keys.Rates = append(keys.Rates, rate.Key)
	}
	if a.Circuit != nil {
		keys.Circuits = append(keys.Circuits, a.Circuit.Key)
	}
}

// checkGates returns the denial by a rate, of several the one that takes longest to pass, else the one by the circuit; nil if all let
// the admission through once the hold that it replaces has ended.
func (op *admit) checkGates(b *batch, replaced *HoldRow) error {
	var worst *RateError
	for _, rate := range op.Rates {
		row := b.rows.Rates[rate.Key]
		if replaced != nil && op.Replaces.Unused && slices.Contains(replaced.Rates, rate.Key) {
			row = row.without(replaced.AdmittedAt, b.rows.Now)
		}
		denial := rate.check(row, b.rows.Now)
		if denial != nil && (worst == nil || denial.Structural || !worst.Structural && denial.RetryAfter > worst.RetryAfter) {
			worst = denial
		}
	}
	if worst != nil {
		return worst
	}
	if op.Circuit == nil {
		return nil
	}
	if err := b.hasCircuit(op.Circuit.Key); err != nil {
		return err
	}
	row := b.rows.Circuits[op.Circuit.Key]
	if replaced != nil && replaced.Circuit != nil && replaced.Circuit.Key == op.Circuit.Key {
		row = row.hears(replaced.report(&op.Replaces.Ending), b.rows.Now)
	}
	if b.rows.Now.Before(row.RetryAt) {
		return &CircuitError{Key: op.Circuit.Key, RetryAfter: row.RetryAt.Sub(b.rows.Now)}
	}
	return nil
}

// pass counts an admission under its rates. If the circuit is open the admission is its probe, which the answer says.
func (op *admit) pass(b *batch, hold *HoldRow) (probe bool) {
	for _, rate := range op.Rates {
		b.setRate(rate.Key, rate.count(b.rows.Rates[rate.Key], b.rows.Now))
		hold.Rates = append(hold.Rates, rate.Key)
	}
	if op.Circuit == nil {
		return false
	}
	circuit := *op.Circuit
	hold.Circuit = &circuit
	row := b.rows.Circuits[circuit.Key]
	if row.RetryAt.IsZero() {
		return false
	}
	row.Probe, row.ProbeUntil = hold.ID, b.rows.Now.Add(circuit.CoolDown)
	row.RetryAt = row.ProbeUntil.Add(circuit.CoolDown)
	b.setCircuit(circuit.Key, row)
	return true
}

// probeOut is when an admission was let through as the probe of its circuit, which is out still; zero if it is not that probe.
func (op *admit) probeOut(b *batch) time.Time {
	if op.Circuit == nil {
		return time.Time{}
	}
	row := b.rows.Circuits[op.Circuit.Key]
	if row.Probe != op.Hold || !b.rows.Now.Before(row.ProbeUntil) {
		return time.Time{}
	}
	return row.ProbeUntil.Add(-op.Circuit.CoolDown)
}

// tellGates tells a hold's rates and circuit of its end. They hear nothing of one that expires: its rates have counted it, and its
// probe is not heard of.
func (b *batch) tellGates(hold *HoldRow, ending *Ending) {
	if hold.State != HoldExpired {
		b.tell(hold.report(ending))
	}
}

// tell tells rates and a circuit what is reported of an attempt.
func (b *batch) tell(report *Report) {
	if report.Unused {
		for _, key := range report.Rates {
			b.setRate(key, b.rows.Rates[key].without(report.AdmittedAt, b.rows.Now))
		}
	}
	if report.Circuit != nil {
		b.setCircuit(report.Circuit.Key, b.rows.Circuits[report.Circuit.Key].hears(report, b.rows.Now))
	}
}

// hasCircuit returns [ErrCircuits] if a circuit is not known and could not be remembered.
func (b *batch) hasCircuit(key string) error {
	if _, known := b.rows.Circuits[key]; !known && b.rows.CircuitsFull {
		return ErrCircuits
	}
	return nil
}

// setRate writes a row if it has changed.
func (b *batch) setRate(key string, row RateRow) {
	if row == b.rows.Rates[key] {
		return
	}
	if b.rows.Rates == nil {
		b.rows.Rates = map[string]RateRow{}
	}
	if b.changes.Rates == nil {
		b.changes.Rates = map[string]RateRow{}
	}
	b.rows.Rates[key], b.changes.Rates[key] = row, row
}

// setCircuit writes a row if it has changed.
func (b *batch) setCircuit(key string, row CircuitRow) {
	if row == b.rows.Circuits[key] {
		return
	}
	if b.rows.Circuits == nil {
		b.rows.Circuits = map[string]CircuitRow{}
	}
	if b.changes.Circuits == nil {
		b.changes.Circuits = map[string]CircuitRow{}
	}
	b.rows.Circuits[key], b.changes.Circuits[key] = row, row
}

// check finds out whether another one may begin.
func (r Rate) check(row RateRow, now time.Time) *RateError {
	switch {
	case r.Max == 0:
		return &RateError{Rate: r, Structural: true}
	case now.Before(row.ClosesAt) && row.Count >= r.Max:
		return &RateError{Rate: r, RetryAfter: row.ClosesAt.Sub(now)}
	}
	return nil
}

// count is the row after another one began. It opens the window if that is closed.
func (r Rate) count(row RateRow, now time.Time) RateRow {
	if !now.Before(row.ClosesAt) {
		row = RateRow{OpenedAt: now, ClosesAt: now.Add(r.Window)}
	}
	row.Count++
	return row
}

// without is the row as if one had not begun that did at a time. A window that opened later has not counted it.
func (r RateRow) without(begun, now time.Time) RateRow {
	if now.Before(r.ClosesAt) && !begun.Before(r.OpenedAt) && r.Count > 0 {
		r.Count--
	}
	return r
}

// hears is the row after a report. While the circuit is open it listens to nobody but the probe that is out, and in its time; to its
// success also later, as long as no other is out: an answer may take longer than a cool-down. A report that names no attempt is no
// probe's.
func (r CircuitRow) hears(report *Report, now time.Time) CircuitRow {
	health := report.says()
	named := report.Attempt != uuid.Nil && report.Attempt == r.Probe
	closed, probe := r.RetryAt.IsZero(), named && (now.Before(r.ProbeUntil) || health == Healthy)
	switch {
	case health == Unsaid, !closed && !probe:
		return r
	case health == Healthy:
		return CircuitRow{}
	case health == Failing:
		r.Failures++
		if probe || r.Failures >= report.Circuit.Threshold {
			r.RetryAt = now.Add(report.Circuit.CoolDown)
		}
	case probe: // it is given back, and the next one may go at once
		r.RetryAt = now
	}
	r.Probe, r.ProbeUntil = uuid.Nil, time.Time{}
	return r
}
