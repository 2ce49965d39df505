package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"text/tabwriter"
	"time"

	"regent/ledger"
	"regent/ledger/sqldb"
)

// points are operations that one caller waits for, one after the other.
var points = []string{"admit", "renew", "read", "settle"}

// countBooks measures single operations, and counts what can be counted of them.
func (b *bench) countBooks(pg *postgres) (err error) {
	url, err := pg.ledgerDatabase(b.ctx, "points")
	if err != nil {
		return err
	}
	ours, err := openOurs(b.ctx, url, "ledger", nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.close()) }()
	v := values{}
	if err := timePoints(b.ctx, ours, v); err != nil {
		return err
	}
	if err := countCall(b.ctx, ours, v); err != nil {
		return err
	}
	if err := pg.countRenewals(b.ctx, ours, v); err != nil {
		return err
	}
	if err := b.timePruning(pg, v); err != nil {
		return err
	}
	b.samples = append(b.samples, sample{Stage: ledgerStage, Target: regent, Values: v})
	return nil
}

// timePoints takes the p95 of each operation.
func timePoints(ctx context.Context, ours *ourBooks, v values) error {
	const calls, warming = 220, 20
	took := map[string][]time.Duration{}
	one := &booking{claims: claimsOf("one", "one", plenty)}
	for i := range calls {
		for _, name := range points {
			began := time.Now()
			if err := ours.point(ctx, name, one); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if i >= warming {
				took[name] = append(took[name], time.Since(began))
			}
		}
	}
	for name, took := range took {
		v[name] = quantile(took, .95)
	}
	return nil
}

func (o *ourBooks) point(ctx context.Context, name string, b *booking) error {
	switch name {
	case "admit":
		return o.admit(ctx, b)
	case "settle":
		return o.settle(ctx, b)
	case "renew":
		return o.renew(ctx, b)
	}
	_, err := o.Read(ctx, b.claims)
	return err
}

func (o *ourBooks) renew(ctx context.Context, b *booking) error {
	hold, err := o.Renew(ctx, b.hold, b.token, 0)
	b.token = hold.Token
	return err
}

// countCall counts the transactions of a call that is neither renewed nor tried elsewhere. A look for due holds that falls between
// is not the call's: of some tries the least counts.
func countCall(ctx context.Context, ours *ourBooks, v values) error {
	const calls, tries = 10, 3
	v["transactions"] = 1000
	for range tries {
		before := ours.store.Counters().Transactions
		for range calls {
			b := &booking{claims: claimsOf("counted", "counted", plenty)}
			if err := errors.Join(ours.admit(ctx, b), ours.settle(ctx, b)); err != nil {
				return err
			}
		}
		v["transactions"] = min(v["transactions"], float64(ours.store.Counters().Transactions-before)/calls)
	}
	return nil
}

// countRenewals counts what a renewal writes into the write-ahead log, one by one and 64 at a time. The pages were written before, so
// that no image of them is in it.
func (p *postgres) countRenewals(ctx context.Context, ours *ourBooks, v values) error {
	held := make([]*booking, callers)
	for i := range held {
		name := fmt.Sprintf("renewed-%d", i)
		held[i] = &booking{claims: claimsOf(name, name, plenty)}
		if err := ours.admit(ctx, held[i]); err != nil {
			return err
		}
	}
	alone := func() (err error) {
		for _, b := range held {
			err = errors.Join(err, ours.renew(ctx, b))
		}
		return err
	}
	together := func() error {
		errs := make([]error, len(held))
		var wg sync.WaitGroup
		for i, b := range held {
			wg.Go(func() { errs[i] = ours.renew(ctx, b) })
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	for name, renew := range map[string]func() error{"wal_alone": alone, "wal_together": together} {
		if err := renew(); err != nil {
			return err
		}
		before, _, err := p.wal(ctx)
		if err != nil {
			return err
		}
		if err := renew(); err != nil {
			return err
		}
		after, _, err := p.wal(ctx)
		if err != nil {
			return err
		}
		v[name] = (after - before) / float64(len(held))
	}
	return nil
}

// prunedCalls are how many calls of the past are cleaned up, in pages of some hundred records.
const prunedCalls = 2000

// timePruning takes the p95 of the transactions in which old records go.
func (b *bench) timePruning(pg *postgres, v values) (err error) {
	url, err := pg.ledgerDatabase(b.ctx, "past")
	if err != nil {
		return err
	}
	began := time.Now()
	past := func() time.Time { return time.Now().Add(-40 * 24 * time.Hour) }
	old, err := openOurs(b.ctx, url, "ledger", past)
	if err != nil {
		return err
	}
	for i := 0; err == nil && i < prunedCalls/callers+1; i++ {
		err = bookOnce(b.ctx, old, fmt.Sprintf("past-%d", i))
	}
	if err := errors.Join(err, old.close()); err != nil {
		return err
	}
	v["history_s"] = time.Since(began).Seconds()
	store, err := sqldb.Open(b.ctx, sqldb.Config{URL: url})
	if err != nil {
		return err
	}
	timed := &timedStore{Store: store}
	l, err := ledger.Open(ledger.Config{Store: timed, SweepEvery: time.Minute})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	report, err := l.Prune(b.ctx, ledger.Pruning{Reason: "benchmark", Actor: "bench", OlderThan: ledger.PruneAgeMin})
	if err == nil && report.Calls < prunedCalls-1 {
		err = fmt.Errorf("%d of %d old calls were pruned", report.Calls, prunedCalls)
	}
	v["prune"], v["prune_pages"] = quantile(timed.took, .95), float64(len(timed.took))
	return err
}

// bookOnce books one call for each caller, all at the same time.
func bookOnce(ctx context.Context, on books, name string) error {
	errs := make([]error, callers)
	var wg sync.WaitGroup
	for i := range errs {
		b := &booking{claims: claimsOf(fmt.Sprintf("%s-%d", name, i), name, plenty)}
		wg.Go(func() {
			if errs[i] = on.admit(ctx, b); errs[i] == nil {
				errs[i] = on.settle(ctx, b)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// timedStore times transactions that write.
type timedStore struct {
	*sqldb.Store
	took []time.Duration
}

func (s *timedStore) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	began := time.Now()
	err := s.Store.Update(ctx, decide)
	s.took = append(s.took, time.Since(began))
	return err
}

func (b *bench) reportPoints(w *tabwriter.Writer) {
	v := func(value string) float64 { return b.of(ledgerStage, regent, value) }
	_, _ = fmt.Fprintln(w, "\none caller\t\tp95 ms\t")
	for _, name := range points {
		_, _ = fmt.Fprintf(w, "%s\t\t%.1f\t\n", name, v(name)/1e3)
	}
	_, _ = fmt.Fprintf(w, "a page of a clean-up\t\t%.1f\t\n", v("prune")/1e3)
	_, _ = fmt.Fprintf(w, "\nbytes of the write-ahead log of a renewal\t\talone %.0f\tof 64 %.0f\t\n", v("wal_alone"), v("wal_together"))
}
