package sqldb_test

import (
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgproxy"
	"regent/ledger/sqldb/pgtest"
)

// replica is a ledger beside others on one database, whose clock they share.
type replica struct {
	*bench
	expiries chan ledger.Expiry
}

// outage is replicas on a cluster of their own.
type outage struct {
	*ledgertest.Clock
	t       *testing.T
	cluster *pgtest.Cluster
	config  sqldb.Config
}

func newOutage(t *testing.T, cluster *pgtest.Cluster, serializable bool) *outage {
	t.Helper()
	o := &outage{Clock: ledgertest.NewClock(), t: t, cluster: cluster}
	o.config = migrated(t, sqldb.Config{URL: cluster.NewDatabase(t), Serializable: serializable, Now: o.Now})
	return o
}

// replica starts one that looks for what is due so often, by way of a proxy.
func (o *outage) replica(sweepEvery time.Duration) *replica {
	o.t.Helper()
	r := &replica{bench: &bench{Clock: o.Clock, t: o.t}, expiries: make(chan ledger.Expiry, 100)}
	r.config, r.proxy = proxied(o.t, o.config)
	r.store = open(o.t, r.config)
	r.store.SetPatience(20 * time.Millisecond)
	r.ledger = start(o.t, ledger.Config{
		Store: r.store, TTL: ttl, LateRefund: day, Elapsed: o.Elapsed, SweepEvery: sweepEvery, OnExpire: func(e ledger.Expiry) { r.expiries <- e },
	})
	return r
}

const (
	// often is how often a replica looks that notices everything, seldom one that only does what the test has it do.
	often  = 10 * time.Millisecond
	seldom = time.Hour
)

// pass stops the cluster and lets time pass, in which transactions fail.
func (o *outage) pass(d time.Duration, noticing ...*replica) {
	o.t.Helper()
	if err := o.cluster.Stop(); err != nil {
		o.t.Fatal(err)
	}
	for _, r := range noticing {
		o.until("it fails", func() bool { return r.ledger.Status().Err != nil })
	}
	for range 10 {
		o.Advance(d / 10)
		for _, r := range noticing {
			wantError(o.t, "in the outage", r.ledger.Refuse(ctx, nil, []byte(`{}`)), ledger.ErrUnavailable)
		}
	}
}

func (o *outage) resume() {
	o.t.Helper()
	if err := o.cluster.Resume(); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outage) until(what string, happened func() bool) {
	o.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !happened(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			o.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// sweepRow is what the replicas agree on.
func (o *outage) sweepRow(r *replica) ledger.SweepRow {
	o.t.Helper()
	rows, err := r.store.Load(ctx, ledger.Keys{})
	if err != nil {
		o.t.Fatal(err)
	}
	return rows.Sweep
}

// hold has a replica admit 100 tokens for an account.
func (r *replica) hold(account ledger.Account) ledger.Hold {
	r.t.Helper()
	return r.admit(forCall(admission(account, 100, 1000)))
}

// wantExpired checks that what an account held has expired and was charged, and that the books are right.
func (r *replica) wantExpired(account ledger.Account, hold ledger.Hold) {
	r.t.Helper()
	r.want(account, 100, 0)
	_, err := r.ledger.Renew(ctx, hold.ID, hold.Token, 0)
	wantError(r.t, "renew", err, ledger.ErrExpired)
	r.audit()
}

// wantNoExpiries checks that replicas expired nothing.
func wantNoExpiries(t *testing.T, replicas ...*replica) {
	t.Helper()
	for _, r := range replicas {
		wantEqual(t, "expiries", len(r.expiries), 0)
	}
}

// TestOutages: what could not be renewed while the server was away, or the clock stepped, is charged to nobody who runs.
func TestOutages(t *testing.T) {
	cluster := pgtest.Start(t, pgtest.Options{NoSync: true})
	for _, test := range []struct {
		name         string
		serializable bool
		run          func(o *outage)
	}{
		{"both replicas notice", false, bothNotice},
		{"both replicas notice at SERIALIZABLE", true, bothNotice},
		{"one of two notices", false, oneNotices},
		{"a third starts first", false, thirdStartsFirst},
		{"those who ran are gone", false, nobodyReturns},
		{"the clock steps", false, stepsOfTheClock},
		{"the clock steps at SERIALIZABLE", true, stepsOfTheClock},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(newOutage(t, cluster, test.serializable)) })
	}
}

func bothNotice(o *outage) {
	a, b := o.replica(often), o.replica(often)
	held, alsoHeld, left := a.hold(user("alice")), b.hold(user("bob")), b.hold(user("carol"))
	o.pass(10*time.Minute, a, b)
	o.resume()
	for _, r := range []*replica{a, b} {
		o.until("it works again", func() bool { return r.ledger.Status().Err == nil })
		r.touch()
	}
	wantNoExpiries(o.t, a, b)
	a.want(user("alice"), 0, 100)
	held = a.renew(held)
	wantEqual(o.t, "deadline", held.Deadline, o.Now().Add(ttl))
	a.settle(held, 30)
	b.settle(alsoHeld, 30)
	// What nobody renews expires at the end of the suspension, once.
	ends := o.sweepRow(a).SuspendedUntil
	wantEqual(o.t, "suspended until", ends, o.Now().Add(ttl))
	o.Advance(ttl - time.Microsecond)
	a.touch()
	b.touch()
	wantNoExpiries(o.t, a, b)
	o.Advance(time.Microsecond)
	for range 10 {
		a.touch()
		b.touch()
		if len(a.expiries)+len(b.expiries) > 0 {
			break
		}
		o.Advance(ttl) // a look that was under way when this clock was moved took it for a step
	}
	wantEqual(o.t, "expiries", len(a.expiries)+len(b.expiries), 1)
	b.wantExpired(user("carol"), left)
}

func oneNotices(o *outage) {
	a, b := o.replica(often), o.replica(seldom)
	held, alsoHeld := a.hold(user("alice")), b.hold(user("bob"))
	o.pass(10*time.Minute, a)
	o.resume()
	o.until("it has told the other", func() bool { return !o.sweepRow(a).SuspendedUntil.IsZero() })
	b.touch()
	wantNoExpiries(o.t, a, b)
	b.settle(b.renew(alsoHeld), 30)
	a.settle(a.renew(held), 30)
	a.audit()
}

func thirdStartsFirst(o *outage) {
	a, b := o.replica(often), o.replica(often)
	held, alsoHeld := a.hold(user("alice")), b.hold(user("bob"))
	o.until("one has swept", func() bool { return !o.sweepRow(a).SweptAt.IsZero() })
	o.pass(10*time.Minute, a, b)
	for _, r := range []*replica{a, b} {
		for range 1_000 {
			r.proxy.Arm(pgproxy.CutAtBegin)
		}
	}
	o.resume()
	third := o.replica(seldom)
	third.touch()
	wantNoExpiries(o.t, third)
	for _, r := range []*replica{a, b} {
		r.proxy.Disarm()
		o.until("it works again", func() bool { return r.ledger.Status().Err == nil })
	}
	o.until("one has told the others", func() bool { return o.sweepRow(a).SuspendedUntil.Equal(o.Now().Add(ttl)) })
	o.Advance(ttl / 2)
	third.touch()
	wantNoExpiries(o.t, a, b, third)
	a.settle(a.renew(held), 30)
	b.settle(alsoHeld, 30)
	a.want(user("alice"), 30, 0)
	a.audit()
}

func nobodyReturns(o *outage) {
	a := o.replica(often)
	held := a.hold(user("alice"))
	o.until("it has swept", func() bool { return !o.sweepRow(a).SweptAt.IsZero() })
	if err := a.ledger.Close(); err != nil {
		o.t.Fatal(err)
	}
	o.pass(10 * time.Minute)
	o.resume()
	next := o.replica(seldom)
	next.touch()
	wantNoExpiries(o.t, next)
	o.Advance(ttl - time.Microsecond) // those who could not renew their holds get the time to do so
	next.touch()
	wantNoExpiries(o.t, next)
	o.Advance(time.Microsecond)
	next.touch()
	wantEqual(o.t, "expiries", len(next.expiries), 1)
	next.wantExpired(user("alice"), held)
}

func stepsOfTheClock(o *outage) {
	a, b := o.replica(seldom), o.replica(seldom)
	for _, step := range []time.Duration{5 * time.Hour, -3 * time.Hour, -30 * time.Hour, 40 * 24 * time.Hour, ttl} {
		held, alsoHeld, left := a.hold(user("alice")), b.hold(user("bob")), b.hold(user("carol"))
		o.Step(step)
		b.touch()
		a.touch()
		wantNoExpiries(o.t, a, b)
		a.settle(a.renew(held), 30)
		o.Advance(ttl / 2)
		b.touch()
		wantNoExpiries(o.t, a, b)
		b.settle(b.renew(b.renew(alsoHeld)), 30)
		b.must("release", b.ledger.Release(ctx, ending(left)))
		o.Advance(2 * ttl)
		a.touch()
		b.touch()
	}
	a.want(user("alice"), 150, 0)
	a.want(user("bob"), 150, 0)
	a.want(user("carol"), 0, 0)
	a.audit()
}
