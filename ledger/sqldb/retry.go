package sqldb

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"regent/ledger"
)

const (
	// backoffMin is about a transaction's own time, backoffMax that of many: who waits longer than the others is late for the next.
	backoffMin = time.Millisecond
	backoffMax = 128 * time.Millisecond
	// duplicatesMax bounds how often a row that somebody else wrote is run into: who runs into it again has made it himself.
	duplicatesMax = 5
)

// Counters count what happened to a store's transactions at its server.
type Counters struct {
	// Transactions were begun, the ones that were done again among them.
	Transactions int64
	// Conflicts were rolled back because of another transaction, Unknown may have been committed or not, and Lost had no
	// connection: all of them were done again.
	Conflicts, Unknown, Lost int64
}

type counters struct{ transactions, conflicts, unknown, lost atomic.Int64 }

func (c *counters) count(v verdict) {
	switch v {
	case conflict:
		c.conflicts.Add(1)
	case unknown:
		c.unknown.Add(1)
	case lost:
		c.lost.Add(1)
	}
}

// Counters are the store's since it was opened. A store on SQLite has none but Transactions.
func (s *Store) Counters() Counters {
	return Counters{
		Transactions: s.counters.transactions.Load(), Conflicts: s.counters.conflicts.Load(),
		Unknown: s.counters.unknown.Load(), Lost: s.counters.lost.Load(),
	}
}

// absence is how long a server has not been reached, by whoever tried: what waits for one that is away fails fast after the first has
// waited.
type absence struct{ since atomic.Int64 } // nanoseconds of the system's clock; 0 if it is there

func (a *absence) found() { a.since.Store(0) }

// longer notes that the server was not reached, and says whether that has been so for longer than a span.
func (a *absence) longer(span time.Duration) bool {
	now := time.Now().UnixNano()
	return !a.since.CompareAndSwap(0, now) && now-a.since.Load() > int64(span)
}

// inTx runs fn in a transaction, again from the start whenever the server has not clearly taken or refused it, until ctx ends. There is
// no savepoint and no guess: each attempt is a transaction of its own, and what fn does bears names under which it is done once. A server
// that for a time gives no clear answer is given up.
func (s *Store) inTx(ctx context.Context, access access, fn func(session) error) error {
	unsure, duplicates := false, 0
	for attempt := 0; ; attempt++ {
		s.counters.transactions.Add(1)
		err := s.try(ctx, access, fn)
		var failure *failure
		if !errors.As(err, &failure) {
			s.lost.found()
			return err // none, or fn's own, or the driver's of a file
		}
		v := failure.classify()
		unsure = unsure || v == unknown
		if v == lost && errors.Is(ctx.Err(), context.Canceled) { // the caller has gone, which says nothing of the server
			return giveUp(unsure, err)
		}
		s.counters.count(v)
		if v == refused || v == conflict {
			s.lost.found()
		}
		if isDuplicate(err) {
			duplicates++
		}
		switch {
		case v == refused, duplicates > duplicatesMax:
			if unsure { // this attempt was not committed, but one before it may have been
				return giveUp(unsure, err)
			}
			return err
		case v != conflict && s.lost.longer(s.patience):
			return giveUp(unsure, err)
		}
		if !pause(ctx, attempt) {
			return giveUp(unsure, err)
		}
	}
}

// try runs one attempt. While the server does not answer, the next one waits for it no longer than the first did.
func (s *Store) try(ctx context.Context, access access, fn func(session) error) error {
	if s.lost.since.Load() != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	return s.database.inTx(ctx, access, fn)
}

// giveUp is the error of a transaction that is not tried again.
func giveUp(unsure bool, err error) error {
	if unsure {
		return fmt.Errorf("%w: %w", ledger.ErrUnknown, err)
	}
	return fmt.Errorf("%w: %w", ledger.ErrUnavailable, err)
}

// pause waits before the next attempt, longer each time and never as long as another who began at the same time.
func pause(ctx context.Context, attempt int) bool {
	most := backoffMin << min(attempt, 7)
	timer := time.NewTimer(time.Duration(rand.Int64N(int64(min(most, backoffMax)))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
