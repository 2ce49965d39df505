package ledgertest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"regent/ledger"
)

// coolDown is less than a hold's TTL, so that a probe's time ends before its hold expires.
const coolDown = 30 * time.Second

// rated is an admission of 10 tokens of 1000 that counts under a rate of so many a minute.
func rated(max int64) ledger.Admission {
	a := tokens(10, 1000)
	a.Rates = []ledger.Rate{{Key: "token/one", Max: max, Window: time.Minute}}
	return a
}

// guarded is an admission of 10 tokens of 1000 behind a circuit that opens after 3 failures.
func guarded() ledger.Admission {
	a := tokens(10, 1000)
	a.Circuit = &ledger.Circuit{Key: "source/one", Threshold: 3, CoolDown: coolDown}
	return a
}

// heard releases a hold and says what that means to its circuit.
func (b *bench) heard(hold ledger.Hold, health ledger.Health) {
	b.t.Helper()
	e := ending(hold)
	e.Health = health
	if err := b.ledger.Release(ctx, e); err != nil {
		b.t.Fatalf("release: %v", err)
	}
}

// unused releases a hold whose candidate was never contacted.
func (b *bench) unused(hold ledger.Hold) {
	b.t.Helper()
	e := ending(hold)
	e.Unused = true
	if err := b.ledger.Release(ctx, e); err != nil {
		b.t.Fatalf("release: %v", err)
	}
}

// rateDenied is the denial of an admission by a rate.
func (b *bench) rateDenied(a ledger.Admission) *ledger.RateError {
	b.t.Helper()
	_, err := b.ledger.Admit(ctx, a)
	var denial *ledger.RateError
	if !errors.As(err, &denial) {
		b.t.Fatalf("admit: got %v, want a denial by a rate", err)
	}
	return denial
}

// open checks that the circuit is open, and for how long.
func (b *bench) isOpen(retryAfter time.Duration) {
	b.t.Helper()
	_, err := b.ledger.Admit(ctx, guarded())
	var denial *ledger.CircuitError
	if !errors.As(err, &denial) {
		b.t.Fatalf("admit: got %v, want a denial by a circuit", err)
	}
	wantEqual(b.t, "denial", *denial, ledger.CircuitError{Key: "source/one", RetryAfter: retryAfter})
}

// fail opens the circuit.
func (b *bench) fail() {
	b.t.Helper()
	for range 3 {
		b.heard(b.admit(guarded()), ledger.Failing)
	}
	b.isOpen(coolDown)
}

// parallel admits 32 at once and counts what was let through, and what was refused by an error of a type.
func parallel[E error](b *bench, admission func() ledger.Admission) (holds []ledger.Hold, denied int) {
	b.t.Helper()
	type answer struct {
		hold ledger.Hold
		err  error
	}
	const callers = 32
	answers := make(chan answer, callers)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			hold, err := b.ledger.Admit(ctx, admission())
			answers <- answer{hold, err}
		})
	}
	wg.Wait()
	close(answers)
	for a := range answers {
		var denial E
		switch {
		case a.err == nil:
			holds = append(holds, a.hold)
		case errors.As(a.err, &denial):
			denied++
		default:
			b.t.Fatal(a.err)
		}
	}
	return holds, denied
}

func keepsRates(t *testing.T, b *bench) {
	b.admit(rated(2)) // opens the window
	b.Advance(20*time.Second + time.Microsecond)
	b.admit(rated(2))
	denial := b.rateDenied(rated(2))
	wantEqual(t, "denial", *denial, ledger.RateError{Rate: rated(2).Rates[0], RetryAfter: 40*time.Second - time.Microsecond})
	b.Advance(denial.RetryAfter - time.Microsecond)
	b.rateDenied(rated(2))
	b.Advance(time.Microsecond)
	b.admit(rated(2)) // opens the next one
	b.admit(rated(2))
	wantEqual(t, "retry after", b.rateDenied(rated(2)).RetryAfter, time.Minute)
	b.admit(rated(3)) // a rate may be raised
	b.rateDenied(rated(1))

	other := rated(1)
	other.Rates[0].Key = "token/two"
	b.admit(other)
	other.Hold = newID()
	other.Rates = append(other.Rates, ledger.Rate{Key: "token/three", Max: 0, Window: time.Hour})
	denial = b.rateDenied(other)
	wantEqual(t, "the rate that no waiting helps", denial.Key, "token/three")
	wantEqual(t, "structural", denial.Structural, true)
}

func keepsRatesInParallel(t *testing.T, b *bench) {
	holds, denied := parallel[*ledger.RateError](b, func() ledger.Admission { return rated(7) })
	wantEqual(t, "admitted", len(holds), 7)
	wantEqual(t, "denied", denied, 25)
}

func givesRatesBack(t *testing.T, b *bench) {
	first, second := b.admit(rated(2)), b.admit(rated(2))
	b.unused(first)
	b.unused(first) // is the same release again
	third := b.admit(rated(2))
	b.rateDenied(rated(2))
	b.release(second) // was contacted
	b.rateDenied(rated(2))
	b.settle(third, ledger.Usage{Output: 1})
	b.rateDenied(rated(2))

	// What an earlier window counted is not taken off a later one.
	b.Advance(time.Minute - time.Microsecond)
	b.rateDenied(rated(2))
	b.Advance(time.Microsecond)
	old := b.admit(rated(2))
	b.Advance(59 * time.Second)
	renewed, err := b.ledger.Renew(ctx, old.ID, old.Token, ttl)
	if err != nil {
		t.Fatal(err)
	}
	b.Advance(time.Second)
	b.admit(rated(2))
	b.admit(rated(2))
	b.unused(renewed)
	b.rateDenied(rated(2))

	// A hold that expires was counted, and stays so.
	b.Advance(time.Minute)
	lost := rated(1)
	lost.TTL = time.Second
	b.admit(lost)
	b.Advance(time.Second)
	b.touch()
	b.rateDenied(rated(1))
}

// A failover that takes the place of an unused attempt begins in its place.
func failsOverUnderRates(t *testing.T, b *bench) {
	call := newCall()
	admission := func(source string) ledger.Admission {
		a := forCall(call, source)
		a.Rates = rated(1).Rates
		return a
	}
	hold := b.admit(admission("one"))
	second := admission("two")
	second.Replaces = &ledger.Replacement{Ending: ledger.Ending{Hold: hold.ID, Token: hold.Token}}
	b.rateDenied(second)
	second.Replaces.Unused = true
	hold = b.admit(second)
	b.rateDenied(rated(1))
	b.unused(hold)
	b.admit(rated(1))
}

func opensCircuits(t *testing.T, b *bench) {
	hold := b.admit(guarded())
	b.heard(b.admit(guarded()), ledger.Failing)
	b.heard(b.admit(guarded()), ledger.Failing)
	b.heard(hold, ledger.Healthy) // between them
	b.heard(b.admit(guarded()), ledger.Failing)
	b.heard(b.admit(guarded()), ledger.Neutral)
	b.heard(b.admit(guarded()), ledger.Failing)
	late, running := b.admit(guarded()), b.admit(guarded())
	b.heard(b.admit(guarded()), ledger.Failing)
	b.isOpen(coolDown)
	b.Advance(10 * time.Second)
	b.heard(late, ledger.Healthy) // it began before: the circuit does not listen
	b.isOpen(20 * time.Second)
	b.Advance(20*time.Second - time.Microsecond)
	b.isOpen(time.Microsecond)
	b.Advance(time.Microsecond)
	probe := b.admit(guarded())
	b.isOpen(2 * coolDown) // if nothing is heard of the probe
	b.heard(running, ledger.Failing)
	b.isOpen(2 * coolDown)
	b.heard(probe, ledger.Healthy)
	b.admit(guarded())
	b.heard(b.admit(guarded()), ledger.Failing)
	b.heard(b.admit(guarded()), ledger.Failing)
	b.admit(guarded())
}

func probesOnce(t *testing.T, b *bench) {
	b.fail()
	b.Advance(coolDown)
	probes, denied := parallel[*ledger.CircuitError](b, guarded)
	wantEqual(t, "probes", len(probes), 1)
	wantEqual(t, "denied", denied, 31)
	b.want(aliceTokens, 0, 10)
	b.Advance(time.Second)
	b.heard(probes[0], ledger.Failing)
	b.isOpen(coolDown)
	b.Advance(coolDown)
	b.heard(b.admit(guarded()), ledger.Healthy)
	holds, _ := parallel[*ledger.CircuitError](b, guarded)
	wantEqual(t, "admitted once it is closed", len(holds), 32)
}

func reopensCircuits(t *testing.T, b *bench) {
	b.fail()
	b.Advance(coolDown)
	lost := b.admit(guarded())
	b.Advance(coolDown - time.Microsecond)
	b.isOpen(coolDown + time.Microsecond)
	b.Advance(time.Microsecond) // the probe's time is over
	b.isOpen(coolDown)
	b.heard(lost, ledger.Failing)
	b.isOpen(coolDown)
	b.Advance(coolDown)
	next := guarded()
	next.TTL = time.Second
	b.admit(next)
	b.Advance(time.Second) // the probe's hold expires, which says nothing
	b.touch()
	b.isOpen(2*coolDown - time.Second)
	b.Advance(2*coolDown - time.Second)
	b.heard(b.admit(guarded()), ledger.Healthy)
	b.heard(b.admit(guarded()), ledger.Healthy)
}

// hearsLateProbes: an answer may take longer than a cool-down.
func hearsLateProbes(t *testing.T, b *bench) {
	b.fail()
	b.Advance(coolDown)
	slow := b.admit(guarded())
	b.Advance(coolDown + time.Second)
	b.isOpen(coolDown - time.Second)
	b.heard(slow, ledger.Healthy)
	for range 2 {
		b.heard(b.admit(guarded()), ledger.Healthy)
	}
	b.fail()
	b.Advance(coolDown)
	patient := guarded()
	patient.TTL = 10 * coolDown
	first := b.admit(patient)
	b.Advance(2 * coolDown)
	second := b.admit(guarded())
	b.heard(first, ledger.Healthy) // another is out
	b.isOpen(2 * coolDown)
	b.heard(second, ledger.Failing)
	b.isOpen(coolDown)
}

func givesProbesBack(t *testing.T, b *bench) {
	b.fail()
	b.Advance(coolDown)
	b.heard(b.admit(guarded()), ledger.Neutral)
	b.unused(b.admit(guarded()))
	probe := b.admit(guarded())
	b.isOpen(2 * coolDown)
	b.heard(probe, ledger.Healthy)
	b.admit(guarded())
	b.admit(guarded())
}

// A failover ends what it replaces as any other end does, before its own circuit is asked.
func failsOverThroughCircuits(t *testing.T, b *bench) {
	call := newCall()
	first := forCall(call, "one")
	first.Circuit = &ledger.Circuit{Key: "source/one", Threshold: 1, CoolDown: coolDown}
	hold := b.admit(first)
	second := forCall(call, "two")
	second.Circuit = first.Circuit
	second.Replaces = &ledger.Replacement{Ending: ledger.Ending{Hold: hold.ID, Token: hold.Token, Health: ledger.Failing}}
	_, err := b.ledger.Admit(ctx, second)
	var denial *ledger.CircuitError
	if !errors.As(err, &denial) {
		t.Fatalf("admit: got %v, want a denial by the circuit that this opens", err)
	}
	b.heard(b.admit(guarded()), ledger.Healthy) // it has not ended
	second.Circuit = &ledger.Circuit{Key: "source/two", Threshold: 1, CoolDown: coolDown}
	hold = b.admit(second)
	b.isOpen(coolDown)
	b.settle(hold, ledger.Usage{Output: 1})
}

// A denial takes nothing, whoever denies.
func allOrNothingAtGates(t *testing.T, b *bench) {
	both := func(n, max int64) ledger.Admission {
		a := guarded()
		a.Reserve.Tokens, a.Rates = &n, rated(max).Rates
		return a
	}
	b.fail()
	b.Advance(coolDown)
	b.denied(both(1001, 1))
	b.rateDenied(both(10, 0))
	probe := b.admit(both(10, 1)) // nothing was counted, and the probe had not gone
	b.rateDenied(both(10, 1))
	b.denied(both(1001, 1)) // limits are asked first
	b.isOpen(2 * coolDown)
	b.want(aliceTokens, 0, 10)
	_, err := b.ledger.Admit(ctx, both(10, 2))
	var open *ledger.CircuitError
	if !errors.As(err, &open) {
		t.Fatalf("admit: got %v, want a denial by a circuit", err)
	}
	b.heard(probe, ledger.Healthy)
	b.admit(both(10, 2)) // the denial by the circuit has counted nothing
	b.rateDenied(both(10, 2))
	b.want(aliceTokens, 0, 10)
}

func repeatsAtGates(t *testing.T, b *bench) {
	a := guarded()
	a.Rates = rated(2).Rates
	hold := b.admit(a)
	wantEqual(t, "the same admission again", b.admit(a), hold)
	b.admit(rated(2)) // it was counted once
	b.rateDenied(rated(2))
	b.heard(hold, ledger.Failing)
	b.heard(hold, ledger.Failing)
	b.heard(hold, ledger.Failing)
	again := b.admit(guarded()) // one failure
	e := ending(hold)
	e.Health = ledger.Healthy
	wantError(t, "another health", b.ledger.Release(ctx, e), ledger.ErrState)
	e.Health, e.Unused = ledger.Failing, true
	wantError(t, "the same, but unused", b.ledger.Release(ctx, e), ledger.ErrState)
	b.heard(again, ledger.Failing)
	b.heard(b.admit(guarded()), ledger.Failing)
	b.isOpen(coolDown)
}

func badGates(t *testing.T, b *bench) {
	for name, change := range map[string]func(*ledger.Admission){
		"a rate without a key":       func(a *ledger.Admission) { a.Rates[0].Key = "" },
		"a rate below 0":             func(a *ledger.Admission) { a.Rates[0].Max = -1 },
		"a rate without a window":    func(a *ledger.Admission) { a.Rates[0].Window = 0 },
		"a rate twice":               func(a *ledger.Admission) { a.Rates = append(a.Rates, a.Rates[0]) },
		"a circuit without a key":    func(a *ledger.Admission) { a.Circuit.Key = "" },
		"a threshold of 0":           func(a *ledger.Admission) { a.Circuit.Threshold = 0 },
		"a cool-down of 0":           func(a *ledger.Admission) { a.Circuit.CoolDown = 0 },
		"a cool-down of nanoseconds": func(a *ledger.Admission) { a.Circuit.CoolDown = time.Nanosecond },
	} {
		a := guarded()
		a.Rates = rated(1).Rates
		change(&a)
		_, err := b.ledger.Admit(ctx, a)
		wantError(t, name, err, ledger.ErrInvalid)
	}
	hold := b.admit(guarded())
	e := ending(hold)
	e.Health = "poorly"
	wantError(t, "an unknown health", b.ledger.Release(ctx, e), ledger.ErrInvalid)
	next := guarded()
	next.Replaces = &ledger.Replacement{Ending: e}
	_, err := b.ledger.Admit(ctx, next)
	wantError(t, "an unknown health of what is replaced", err, ledger.ErrInvalid)
	b.want(aliceTokens, 0, 10)
}

// tokenCalls are the calls that run under a token.
var tokenCalls = ledger.Account{Scope: ledger.ScopeToken, ID: "alice/laptop", Unit: ledger.Calls}

// atOnce is an admission of 10 tokens, of which so many may run at once.
func atOnce(max int64) ledger.Admission {
	a := tokens(10, 1000)
	a.Claims = append(a.Claims, ledger.Claim{Account: tokenCalls, Limits: []ledger.Limit{{Window: ledger.AtOnce{}, Max: max}}})
	return a
}

func keepsConcurrency(t *testing.T, b *bench) {
	holds, denied := parallel[*ledger.LimitError](b, func() ledger.Admission { return atOnce(3) })
	wantEqual(t, "admitted", len(holds), 3)
	wantEqual(t, "denied", denied, 29)
	b.want(aliceTokens, 0, 30)
	denial := b.denied(atOnce(3))
	wantEqual(t, "account", denial.Account, tokenCalls)
	wantEqual(t, "held", denial.Held, 3)
	wantEqual(t, "amount", *denial.Amount, 1)
	wantEqual(t, "retry after", denial.RetryAfter, ttl)
	wantEqual(t, "with none at all", b.denied(atOnce(0)).Structural, true)

	wantEqual(t, "charge", b.settle(holds[0], ledger.Usage{Output: 7}), ledger.Charge{Tokens: 7})
	settled := b.admit(atOnce(3))
	b.denied(atOnce(3))
	b.release(holds[1])
	b.Advance(time.Second)
	released := b.admit(atOnce(3))
	b.denied(atOnce(3))
	wantEqual(t, "retry after", b.denied(atOnce(2)).RetryAfter, ttl-time.Second)
	b.Advance(ttl - time.Second) // two of the three expire
	b.admit(atOnce(3))
	b.admit(atOnce(3))
	b.denied(atOnce(3))
	_, err := b.ledger.Settle(ctx, ending(settled), ledger.Consumption{Usage: &ledger.Usage{}}) // late: it frees nothing more
	if err != nil {
		t.Fatal(err)
	}
	b.denied(atOnce(3))
	b.settle(released, ledger.Usage{})
	b.admit(atOnce(3))

	balances, err := b.ledger.Read(ctx, []ledger.Claim{atOnce(3).Claims[1]})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "used", balances[0].Used, 0)
	wantEqual(t, "running", balances[0].Held, 3)
	wantEqual(t, "left", balances[0].Left, 0)
	wantEqual(t, "recovers", balances[0].RecoversAt, time.Time{})
	row, standing, err := ledger.ReadAccount(ctx, b.ledger.Store(), tokenCalls)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "used in all", row.Used, 0)
	wantEqual(t, "holds", len(standing), 3)
	looking := atOnce(4)
	looking.Reserve, looking.Unheld = ledger.Reserve{}, true
	b.admit(looking)
	if _, standing, err = ledger.ReadAccount(ctx, b.ledger.Store(), tokenCalls); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "holds after one that only looked", len(standing), 3)
	wantEqual(t, "differences", len(b.verified().Differences), 0)
}

// A failover runs in the place of what it replaces.
func failsOverAtOnce(t *testing.T, b *bench) {
	call := newCall()
	admission := func(source string) ledger.Admission {
		a := forCall(call, source)
		a.Claims = append(a.Claims, atOnce(1).Claims[1])
		return a
	}
	hold := b.admit(admission("one"))
	b.denied(atOnce(1))
	second := admission("two")
	second.Replaces = &ledger.Replacement{Ending: ledger.Ending{Hold: hold.ID, Token: hold.Token}}
	hold = b.admit(second)
	b.denied(atOnce(1))
	b.settle(hold, ledger.Usage{Output: 1})
	b.admit(atOnce(1))
}
