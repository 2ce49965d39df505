package ledgertest

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// unheldOf is an admission like another, that makes no hold.
func unheldOf(a ledger.Admission) ledger.Admission {
	a.Reserve, a.Unheld = ledger.Reserve{}, true
	return a
}

// told is a report of an admission, with what it says of the candidate.
func told(a ledger.Admission, hold ledger.Hold, health ledger.Health) ledger.Report {
	r := ledger.Report{Attempt: a.Hold, AdmittedAt: hold.AdmittedAt, Circuit: a.Circuit, Health: health}
	for _, rate := range a.Rates {
		r.Rates = append(r.Rates, rate.Key)
	}
	return r
}

func (b *bench) tell(report ledger.Report) {
	b.t.Helper()
	if err := b.ledger.Report(ctx, report); err != nil {
		b.t.Fatalf("report: %v", err)
	}
}

// probe lets a probe through that makes no hold.
func (b *bench) probe() (ledger.Admission, ledger.Hold) {
	b.t.Helper()
	a := unheldOf(guarded())
	hold := b.admit(a)
	wantEqual(b.t, "the probe", hold, ledger.Hold{Probe: true, AdmittedAt: b.Now()})
	return a, hold
}

// of are reports of the circuit by somebody who names no attempt, or another.
func of(health ledger.Health, attempt uuid.UUID) ledger.Report {
	return ledger.Report{Attempt: attempt, Circuit: guarded().Circuit, Health: health}
}

// strangers report every health, and change nothing.
func (b *bench) strangers() {
	b.t.Helper()
	for _, attempt := range []uuid.UUID{uuid.Nil, newID()} {
		for _, health := range []ledger.Health{ledger.Neutral, ledger.Healthy, ledger.Failing, ledger.Unsaid} {
			r := of(health, attempt)
			b.tell(r)
			r.Unused = true
			b.tell(r)
		}
	}
}

func keepsRatesWithoutHolds(t *testing.T, b *bench) {
	first := unheldOf(rated(2))
	hold := b.admit(first) // opens the window
	wantEqual(t, "the answer", hold, ledger.Hold{AdmittedAt: b.Now()})
	b.Advance(20 * time.Second)
	b.admit(rated(2)) // one with a hold counts with it
	wantEqual(t, "retry after", b.rateDenied(unheldOf(rated(2))).RetryAfter, 40*time.Second)
	b.tell(told(first, hold, ledger.Failing)) // it was contacted
	b.rateDenied(unheldOf(rated(2)))
	unused := told(first, hold, ledger.Neutral)
	unused.Unused = true
	b.tell(unused)
	b.admit(unheldOf(rated(2)))
	b.rateDenied(unheldOf(rated(2)))
	b.Advance(40 * time.Second)
	b.admit(unheldOf(rated(1)))
	b.tell(unused) // an earlier window had counted it
	b.rateDenied(unheldOf(rated(1)))
	b.want(aliceTokens, 0, 10)
	wantEqual(t, "live holds", b.verified().Live, 1)
}

func keepsRatesWithoutHoldsInParallel(t *testing.T, b *bench) {
	holds, denied := parallel[*ledger.RateError](b, func() ledger.Admission { return unheldOf(rated(7)) })
	wantEqual(t, "admitted", len(holds), 7)
	wantEqual(t, "denied", denied, 25)
}

func reportsOpenCircuits(t *testing.T, b *bench) {
	b.tell(of(ledger.Failing, newID()))
	b.tell(of(ledger.Failing, uuid.Nil))
	b.tell(of(ledger.Healthy, newID())) // between them
	b.tell(of(ledger.Failing, newID()))
	b.tell(of(ledger.Neutral, newID()))
	b.tell(of(ledger.Unsaid, newID()))
	b.heard(b.admit(guarded()), ledger.Failing) // an end counts with them
	hold := b.admit(unheldOf(guarded()))
	wantEqual(t, "that it is a probe", hold.Probe, false)
	b.tell(of(ledger.Failing, newID()))
	b.isOpen(coolDown)
	b.strangers()
	b.isOpen(coolDown)
	b.Advance(coolDown - time.Microsecond)
	b.isOpen(time.Microsecond)
	b.Advance(time.Microsecond)

	probe, at := b.probe()
	b.isOpen(2 * coolDown) // if nothing is heard of it
	b.strangers()
	b.isOpen(2 * coolDown)
	b.Advance(time.Second)
	b.tell(told(probe, at, ledger.Failing))
	b.isOpen(coolDown)
	b.tell(told(probe, at, ledger.Healthy)) // it was the probe
	b.isOpen(coolDown)

	b.Advance(coolDown)
	probe, at = b.probe()
	b.tell(told(probe, at, ledger.Healthy))
	for range 2 {
		b.heard(b.admit(guarded()), ledger.Failing)
	}
	b.admit(unheldOf(guarded())) // it is closed, and counts anew
	b.want(aliceTokens, 0, 0)
}

func probesOnceWithoutHolds(t *testing.T, b *bench) {
	b.fail()
	b.Advance(coolDown)
	probes, denied := parallel[*ledger.CircuitError](b, func() ledger.Admission { return unheldOf(guarded()) })
	wantEqual(t, "probes", len(probes), 1)
	wantEqual(t, "that it is a probe", probes[0].Probe, true)
	wantEqual(t, "denied", denied, 31)
	b.Advance(2 * coolDown)
	held := b.admit(guarded())
	wantEqual(t, "that one with a hold is the probe", held.Probe, true)
	b.isOpen(2 * coolDown)
}

// countsReportsAtOnce: whoever reports, and however many.
func countsReportsAtOnce(t *testing.T, b *bench) {
	const callers, reports = 8, 10
	down := ledger.Report{Circuit: &ledger.Circuit{Key: "source/down", Threshold: callers * reports, CoolDown: coolDown}, Health: ledger.Failing}
	ledgers := b.processes()
	answers := make(chan error, callers)
	for i := range callers {
		go func() {
			var errs []error
			for range reports {
				errs = append(errs, ledgers[i%len(ledgers)].Report(ctx, down))
			}
			answers <- errors.Join(errs...)
		}()
	}
	for range callers {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	rows, err := b.ledger.Store().Load(ctx, ledger.Keys{Circuits: []string{"source/down"}})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the circuit", rows.Circuits["source/down"], ledger.CircuitRow{Failures: callers * reports, RetryAt: b.Now().Add(coolDown)})

	b.Advance(coolDown)
	probes := make(chan bool, callers)
	for i := range callers {
		go func() {
			a := unheldOf(guarded())
			a.Circuit = down.Circuit
			hold, err := ledgers[i%len(ledgers)].Admit(ctx, a)
			var open *ledger.CircuitError
			if err != nil && !errors.As(err, &open) {
				t.Error(err)
			}
			probes <- hold.Probe
		}()
	}
	out := 0
	for range callers {
		if <-probes {
			out++
		}
	}
	wantEqual(t, "probes", out, 1)
}

func givesBackByReport(t *testing.T, b *bench) {
	b.fail()
	b.Advance(coolDown)
	for _, health := range []ledger.Health{ledger.Neutral, ledger.Failing, ledger.Unsaid} {
		a := unheldOf(guarded())
		a.Rates = rated(1).Rates
		hold := b.admit(a)
		b.isOpen(2 * coolDown)
		b.rateDenied(unheldOf(rated(1)))
		r := told(a, hold, health)
		r.Unused = true
		b.tell(r) // probe and rate are there at once
	}
	probe, at := b.probe()
	b.tell(told(probe, at, ledger.Neutral)) // which gives the probe back, too
	b.probe()
	b.isOpen(2 * coolDown)
}

func losesProbesWithoutHolds(t *testing.T, b *bench) {
	b.fail()
	b.Advance(coolDown)
	lost, at := b.probe()
	b.Advance(coolDown - time.Microsecond)
	b.isOpen(coolDown + time.Microsecond)
	b.Advance(time.Microsecond) // its time is over
	b.tell(told(lost, at, ledger.Failing))
	b.isOpen(coolDown)
	_, err := b.ledger.Admit(ctx, lost)
	var open *ledger.CircuitError
	if !errors.As(err, &open) {
		t.Fatalf("the lost probe again: got %v, want a denial by a circuit", err)
	}
	b.Advance(coolDown)
	probe, since := b.probe()
	b.tell(told(lost, at, ledger.Healthy)) // another is out
	b.isOpen(2 * coolDown)
	b.Advance(coolDown + time.Second)
	b.tell(told(probe, since, ledger.Healthy)) // late, and no other is out
	b.heard(b.admit(guarded()), ledger.Failing)
	b.admit(guarded())
}

// The same admission again is known as the probe that it is, and counts once.
func repeatsProbes(t *testing.T, b *bench) {
	b.fail()
	b.Advance(coolDown)
	a := unheldOf(guarded())
	a.Rates = rated(2).Rates
	hold := b.admit(a)
	b.Advance(time.Second)
	wantEqual(t, "the same admission again", b.admit(a), hold)
	b.isOpen(2*coolDown - time.Second) // and its time runs on
	b.admit(rated(2))                  // it was counted once
	b.rateDenied(rated(2))
	b.tell(told(a, hold, ledger.Healthy))

	b.fail()
	b.Advance(coolDown)
	held := guarded()
	hold = b.admit(held)
	wantEqual(t, "that it is a probe", hold.Probe, true)
	wantEqual(t, "the same admission again, with a hold", b.admit(held), hold)
}

// A hold whose end says nothing leaves its probe out, and somebody else tells of it.
func leavesUnsaid(t *testing.T, b *bench) {
	unsaid := func(a ledger.Admission) ledger.Hold {
		hold := b.admit(a)
		e := ending(hold)
		e.Health = ledger.Unsaid
		for range 2 { // the second time is the same settlement again
			if _, err := b.ledger.Settle(ctx, e, ledger.Consumption{Usage: &ledger.Usage{Output: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		e.Health = ledger.Neutral
		_, err := b.ledger.Settle(ctx, e, ledger.Consumption{Usage: &ledger.Usage{Output: 1}})
		wantError(t, "another health", err, ledger.ErrState)
		return hold
	}
	for range 2 {
		b.heard(b.admit(guarded()), ledger.Failing)
	}
	a := guarded()
	hold := unsaid(a) // is neither a failure nor a success
	b.admit(guarded())
	b.tell(told(a, hold, ledger.Failing)) // the third
	b.isOpen(coolDown)
	b.Advance(coolDown)

	a = guarded()
	hold = unsaid(a)
	wantEqual(t, "that it is a probe", hold.Probe, true)
	b.isOpen(2 * coolDown)
	b.Advance(time.Second)
	b.tell(told(a, hold, ledger.Failing))
	b.isOpen(coolDown)
	b.Advance(coolDown)
	a = guarded()
	hold = unsaid(a)
	b.tell(told(a, hold, ledger.Healthy))
	b.admit(guarded())
	b.admit(guarded())

	b.fail()
	b.Advance(coolDown)
	e := ending(b.admit(guarded()))
	e.Health, e.Unused = ledger.Unsaid, true
	if err := b.ledger.Release(ctx, e); err != nil { // what was never contacted is given back all the same
		t.Fatal(err)
	}
	unsaid(guarded())
	b.Advance(2 * coolDown) // nobody tells of it
	b.probe()
}

// A failover ends what it replaces unsaid, too.
func failsOverUnsaid(t *testing.T, b *bench) {
	call := newCall()
	first := forCall(call, "one")
	first.Circuit = &ledger.Circuit{Key: "source/one", Threshold: 1, CoolDown: coolDown}
	hold := b.admit(first)
	second := forCall(call, "two")
	second.Circuit = first.Circuit
	second.Replaces = &ledger.Replacement{Ending: ledger.Ending{Hold: hold.ID, Token: hold.Token, Health: ledger.Unsaid}}
	b.admit(second)
	b.tell(told(first, hold, ledger.Failing))
	b.isOpen(coolDown)
}

// What says nothing of a circuit makes none.
func remembersFailuresOnly(t *testing.T, b *bench) {
	rows := func() map[string]ledger.CircuitRow {
		loaded, err := b.ledger.Store().Load(ctx, ledger.Keys{Counting: []string{"source/one"}})
		if err != nil {
			t.Fatal(err)
		}
		return loaded.Circuits
	}
	for _, health := range []ledger.Health{ledger.Healthy, ledger.Neutral, ledger.Unsaid} {
		b.tell(of(health, newID()))
		unused := of(ledger.Failing, newID())
		unused.Unused = true
		b.tell(unused)
		wantEqual(t, "circuits", len(rows()), 0)
	}
	b.tell(of(ledger.Failing, newID()))
	wantEqual(t, "the circuit", rows()["source/one"], ledger.CircuitRow{Failures: 1})
}

func badReports(t *testing.T, b *bench) {
	for name, change := range map[string]func(*ledger.Report){
		"an unknown health":         func(r *ledger.Report) { r.Health = "poorly" },
		"a rate without a key":      func(r *ledger.Report) { r.Rates[0] = "" },
		"a rate twice":              func(r *ledger.Report) { r.Rates = append(r.Rates, r.Rates[0]) },
		"a rate that is no text":    func(r *ledger.Report) { r.Rates[0] = "\xff" },
		"a circuit without a key":   func(r *ledger.Report) { r.Circuit.Key = "" },
		"a circuit that is no text": func(r *ledger.Report) { r.Circuit.Key = "a\x00b" },
		"a threshold of 0":          func(r *ledger.Report) { r.Circuit.Threshold = 0 },
		"a cool-down of 0":          func(r *ledger.Report) { r.Circuit.CoolDown = 0 },
		"rates of no time":          func(r *ledger.Report) { r.AdmittedAt, r.Unused = time.Time{}, true },
	} {
		a := unheldOf(guarded())
		a.Rates = rated(1).Rates
		r := told(a, ledger.Hold{AdmittedAt: b.Now()}, ledger.Failing)
		change(&r)
		wantError(t, name, b.ledger.Report(ctx, r), ledger.ErrInvalid)
	}
	b.tell(ledger.Report{}) // of nothing
	b.admit(guarded())
}
