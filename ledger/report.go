package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Report tells the rates and the circuit of an attempt what its hold does not: it had none, or its end was [Unsaid].
type Report struct {
	// Attempt is the id under which it was admitted; zero if nobody knows it. While the circuit is open, only the report of its probe is
	// heard.
	Attempt uuid.UUID
	// AdmittedAt is [Hold.AdmittedAt]. It is required where Unused takes back what rates have counted.
	AdmittedAt time.Time
	// Rates are the keys of those that counted the attempt. Circuit is the one that is told; nil if none is.
	Rates   []string
	Circuit *Circuit
	Health  Health
	// Unused says that the candidate was never contacted: what was counted under rates is taken back, and a probe is given back.
	Unused bool
}

// Report tells of an attempt. It leaves no record: one of which it is not known whether it was told, [ErrUnknown], counts twice if it is
// told again. It returns [ErrBusy] for a failure of what the store has no room to remember, [ErrInvalid], [ErrUnavailable] or
// [ErrClosed].
func (l *Ledger) Report(ctx context.Context, report Report) error {
	if err := report.validate(); err != nil {
		return err
	}
	return l.do(ctx, laneEnd, &tell{report})
}

func (r *Report) validate() error {
	if err := r.Health.validate(); err != nil {
		return err
	}
	seen := make(map[string]bool, len(r.Rates))
	for _, key := range r.Rates {
		if err := validateTexts(key); err != nil {
			return err
		}
		if key == "" || seen[key] {
			return fmt.Errorf("%w: a rate needs a key, and is named once", ErrInvalid)
		}
		seen[key] = true
	}
	if r.Unused && len(r.Rates) > 0 && r.AdmittedAt.IsZero() {
		return fmt.Errorf("%w: what rates have counted is taken back only of a time", ErrInvalid)
	}
	if r.Circuit != nil {
		return r.Circuit.validate()
	}
	return nil
}

// says is what the circuit hears: nothing is known of a candidate that was never contacted.
func (r *Report) says() Health {
	if r.Unused {
		return Neutral
	}
	return r.Health
}

// report is what the end of a hold tells.
func (h *HoldRow) report(ending *Ending) *Report {
	return &Report{
		Attempt: h.ID, AdmittedAt: h.AdmittedAt, Rates: h.Rates, Circuit: h.Circuit, Health: ending.Health, Unused: ending.Unused,
	}
}

// tell is the operation behind [Ledger.Report].
type tell struct{ Report }

func (op *tell) keys(keys *Keys, _ time.Time) {
	if op.Unused {
		keys.Rates = append(keys.Rates, op.Rates...)
	}
	if op.Circuit == nil {
		return
	}
	switch op.says() {
	case Failing:
		keys.Counting = append(keys.Counting, op.Circuit.Key)
	case Healthy, Neutral:
		keys.Hearing = append(keys.Hearing, op.Circuit.Key)
	}
}

func (op *tell) decide(_ context.Context, b *batch) error {
	if op.Circuit != nil && op.says() == Failing {
		if err := b.hasCircuit(op.Circuit.Key); err != nil {
			return err
		}
	}
	b.tell(&op.Report)
	return nil
}
