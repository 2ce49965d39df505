package sqldb_test

import (
	"sync"
	"testing"

	"regent/ledger"
	"regent/ledger/sqldb/pgproxy"
	"regent/ledger/sqldb/pgtest"
)

// TestABusyReplicaTellsOfAnOutage: one whose queue is never empty tells the others, too, that nothing expires for now. A replica that
// starts after an outage only waits a little to be told.
func TestABusyReplicaTellsOfAnOutage(t *testing.T) {
	o := newOutage(t, pgtest.Start(t, pgtest.Options{NoSync: true}), false)
	a := o.replica(often)
	held := a.hold(user("alice"))
	o.until("it has swept", func() bool { return !o.sweepRow(a).SweptAt.IsZero() })
	o.pass(10*ttl, a)
	for range 10_000 {
		a.proxy.Arm(pgproxy.CutAtBegin)
	}
	over := make(chan struct{})
	var callers sync.WaitGroup
	defer callers.Wait()
	defer close(over)
	for range 1_000 { // more than some batches
		callers.Go(func() {
			for !isClosed(over) {
				_ = a.ledger.Refuse(ctx, nil, []byte(`{}`)) // it fails until the outage is over
			}
		})
	}
	o.resume()
	third := o.replica(seldom)
	third.touch()
	a.proxy.Disarm()
	o.until("it works again", func() bool { return a.ledger.Status().Err == nil })
	for range 30 { // transactions, which take longer than many looks
		a.must("refuse", a.ledger.Refuse(ctx, nil, []byte(`{}`)))
	}
	o.Advance(ttl / 10)
	third.touch()
	wantNoExpiries(t, a, third)
	_, err := a.ledger.Settle(ctx, ending(held), ledger.Consumption{Usage: &ledger.Usage{Output: 30}})
	a.must("settle", err)
	a.want(user("alice"), 30, 0)
}
