package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// ErrPruned is returned for a time of which the journal does not have all records any more.
var ErrPruned = errors.New("the journal has been pruned")

// SpendingKey is what [Spendings] tells apart. It is all empty for what was charged without a call, for example by a correction.
type SpendingKey struct {
	Provider string `json:"provider"`
	Source   string `json:"source"`
	// Model is the published one.
	Model string `json:"model"`
}

// Spending is what a source was charged for a model.
type Spending struct {
	SpendingKey
	// Calls are those that were charged, an attempt each; Estimated those of them whose provider never reported a usage.
	Calls, Estimated int64
	// Usage sums up the tokens of the calls whose usage is known; Tokens is what was charged, as NanoUSD and NanoCredits are.
	Usage                        Usage
	Tokens, NanoUSD, NanoCredits int64
}

// Spendings sums up what was charged from one moment to another, which is not included. A charge counts when it was made, with what is
// left of it now: what was taken back later is taken off. It reads the whole journal, page by page. It returns [ErrPruned] if records of
// that time may be gone.
func Spendings(ctx context.Context, store Store, from, to time.Time) ([]Spending, error) {
	s := &spendings{ctx: ctx, from: from, to: to, sums: map[SpendingKey]*Spending{}}
	err := store.View(ctx, func(view View) error {
		s.view = view
		streams, err := view.Streams(ctx)
		if err != nil {
			return err
		}
		for _, stream := range streams {
			if err := eachPage(ctx, view, stream.Writer, s.add); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	found := make([]Spending, 0, len(s.sums))
	for _, key := range slices.SortedFunc(maps.Keys(s.sums), compareSpendings) {
		found = append(found, *s.sums[key])
	}
	return found, nil
}

func compareSpendings(a, b SpendingKey) int {
	return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Model, b.Model))
}

// spendings are the sums under way.
type spendings struct {
	ctx      context.Context
	view     View
	from, to time.Time
	sums     map[SpendingKey]*Spending
}

// add adds what a page of records charged.
func (s *spendings) add(page []Record) error {
	var entries []entry
	for _, record := range page {
		if record.Kind != ClosingRecord && (record.At.Before(s.from) || !record.At.Before(s.to)) {
			continue
		}
		e, err := readEntry(record)
		if err != nil {
			return err
		}
		if e.closing != nil && e.closing.Before > s.from.UnixMicro() {
			return fmt.Errorf("%w up to %s", ErrPruned, time.UnixMicro(e.closing.Before).UTC().Format(time.RFC3339))
		}
		entries = append(entries, e)
	}
	rows, err := s.view.Load(s.ctx, toldOf(entries))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := s.addEntry(e, rows); err != nil {
			return err
		}
	}
	return nil
}

// addEntry adds a charge. One that became lower is what its hold says.
func (s *spendings) addEntry(e entry, rows *Rows) error {
	switch {
	case e.charge != nil && !e.charge.Refund:
		key := SpendingKey{Provider: e.charge.Provider, Source: e.charge.Source, Model: rows.Calls[e.Call].Model}
		if hold, known := rows.Holds[e.charge.Hold]; known && e.charge.Hold != uuid.Nil {
			return s.of(key).add(hold.Usage, hold.Charge)
		}
		return s.of(key).add(e.charge.Usage, e.charge.charge())
	case e.correction != nil && e.lowered() == uuid.Nil:
		return s.of(SpendingKey{}).sum(e.correction.charge())
	}
	return nil
}

func (s *spendings) of(key SpendingKey) *Spending {
	if s.sums[key] == nil {
		s.sums[key] = &Spending{SpendingKey: key}
	}
	return s.sums[key]
}

// add adds a call.
func (s *Spending) add(usage *Usage, charge Charge) error {
	s.Calls++
	if usage == nil || charge.Estimated {
		s.Estimated++
	}
	if usage != nil {
		for _, class := range []struct {
			to *int64
			n  int64
		}{
			{&s.Usage.UncachedInput, usage.UncachedInput}, {&s.Usage.CachedInput, usage.CachedInput},
			{&s.Usage.CacheWrite5m, usage.CacheWrite5m}, {&s.Usage.CacheWrite1h, usage.CacheWrite1h},
			{&s.Usage.Output, usage.Output}, {&s.Usage.Reasoning, usage.Reasoning},
		} {
			if !hasRoom(*class.to, 0, class.n) {
				return ErrOverflow
			}
			*class.to += class.n
		}
	}
	return s.sum(charge)
}

func (s *Spending) sum(charge Charge) error {
	for _, unit := range []struct {
		to *int64
		n  int64
	}{{&s.Tokens, charge.Tokens}, {&s.NanoUSD, charge.NanoUSD}, {&s.NanoCredits, charge.NanoCredits}} {
		if !hasRoom(*unit.to, 0, unit.n) {
			return ErrOverflow
		}
		*unit.to += unit.n
	}
	return nil
}
