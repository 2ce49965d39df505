package ledgertest

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"regent/ledger"
)

func settles(t *testing.T, b *bench) {
	a := tokens(1000, 5000)
	a.Price, a.Reserve.NanoUSD = &price, amount(10_000_000)
	a.Claims = append(a.Claims, limited(aliceUSD, 50_000_000), limited(taskTokens, 2000))
	hold := b.admit(a)
	b.want(aliceTokens, 0, 1000)
	b.want(aliceUSD, 0, 10_000_000)
	b.want(taskTokens, 0, 1000)
	charge := b.settle(hold, ledger.Usage{UncachedInput: 100, CachedInput: 7, Output: 30, Reasoning: 5})
	// 100 x 2.5 + 7 x 0.25 + 35 x 10 micro-USD = 601.75 micro-USD
	wantEqual(t, "charge", charge, ledger.Charge{Tokens: 142, NanoUSD: 601_750})
	b.want(aliceTokens, 142, 0)
	b.want(aliceUSD, 601_750, 0)
	b.want(taskTokens, 142, 0)
}

func releases(t *testing.T, b *bench) {
	b.release(b.admit(tokens(1000, 1000)))
	b.want(aliceTokens, 0, 0)
	b.release(b.admit(tokens(1000, 1000)))
	b.want(aliceTokens, 0, 0)
}

func keepsLimits(t *testing.T, b *bench) {
	b.settle(b.admit(tokens(400, 1000)), ledger.Usage{Output: 300})
	b.admit(tokens(600, 1000))
	denial := b.denied(tokens(101, 1000))
	wantEqual(t, "used", denial.Used, 300)
	wantEqual(t, "held", denial.Held, 600)
	wantEqual(t, "limit", denial.Limit, 1000)
	wantEqual(t, "shortfall", denial.Shortfall(), 1)
	b.admit(tokens(100, 1000))
	b.want(aliceTokens, 300, 700)
}

func keepsLimitsInParallel(t *testing.T, b *bench) {
	const callers, fit = 64, 10
	var wg sync.WaitGroup
	results := make(chan error, callers)
	for range callers {
		wg.Go(func() {
			_, err := b.ledger.Admit(ctx, tokens(100, fit*100+99))
			results <- err
		})
	}
	wg.Wait()
	close(results)
	admitted, denied := 0, 0
	for err := range results {
		var limit *ledger.LimitError
		switch {
		case err == nil:
			admitted++
		case errors.As(err, &limit):
			denied++
		default:
			t.Fatal(err)
		}
	}
	wantEqual(t, "admitted", admitted, fit)
	wantEqual(t, "denied", denied, callers-fit)
	b.want(aliceTokens, 0, fit*100)
}

func allOrNothing(t *testing.T, b *bench) {
	a := tokens(500, 1000)
	a.Claims = append(a.Claims, limited(taskTokens, 499))
	wantEqual(t, "denied by", b.denied(a).Account, taskTokens)
	b.want(aliceTokens, 0, 0)
	b.want(taskTokens, 0, 0)
}

func edges(t *testing.T, b *bench) {
	b.admit(tokens(1000, 1000)) // exactly at the limit
	b.admit(tokens(0, 0))       // an amount of 0 asks nothing of any limit
	b.denied(tokens(1, 1000))
	if denial := b.denied(tokens(1, 0)); !denial.Structural {
		t.Fatal("a limit of 0 is not structural")
	}
	if denial := b.denied(tokens(1001, 1000)); !denial.Structural {
		t.Fatal("an amount above the whole limit is not structural")
	}
	lowered := b.denied(tokens(1, 500)) // a limit may be lowered below what is held
	wantEqual(t, "shortfall", lowered.Shortfall(), 501)
}

func unbounded(t *testing.T, b *bench) {
	a := tokens(0, 1000)
	a.Reserve = ledger.Reserve{}
	hold := b.admit(a)
	b.want(aliceTokens, 0, 0)
	b.settle(hold, ledger.Usage{Output: 1000})
	b.want(aliceTokens, 1000, 0)
	a.Hold = newID()
	denial := b.denied(a)
	wantEqual(t, "retry after", denial.RetryAfter, 24*time.Hour)
	if denial.Amount != nil {
		t.Fatalf("amount: got %d, want none", *denial.Amount)
	}
}

func owned(t *testing.T, b *bench) {
	a := tokens(100, 1000)
	a.Provider = "fake"
	hold := b.admit(a)
	for name, ending := range map[string]ledger.Ending{
		"another account":  {Account: taskTokens, Provider: "fake"},
		"another provider": {Account: aliceTokens, Provider: "other"},
	} {
		ending.Hold, ending.Token, ending.State = hold.ID, hold.Token, ledger.Completed
		_, err := b.ledger.Settle(ctx, ending, ledger.Consumption{Usage: &ledger.Usage{Output: 1}})
		wantError(t, "settling as of "+name, err, ledger.ErrState)
		wantError(t, "releasing as of "+name, b.ledger.Release(ctx, ending), ledger.ErrState)
	}
	b.want(aliceTokens, 0, 100)
	own := ledger.Ending{Hold: hold.ID, Token: hold.Token, State: ledger.Completed, Account: aliceTokens, Provider: "fake"}
	if _, err := b.ledger.Settle(ctx, own, ledger.Consumption{Usage: &ledger.Usage{Output: 1}}); err != nil {
		t.Fatal(err)
	}
	b.want(aliceTokens, 1, 0)
}

func unheld(t *testing.T, b *bench) {
	a := tokens(0, 1000)
	a.Reserve, a.Unheld = ledger.Reserve{}, true
	wantEqual(t, "hold", b.admit(a), ledger.Hold{AdmittedAt: b.Now()})
	if err := b.ledger.Post(ctx, ledger.Posting{Accounts: []ledger.Account{aliceTokens}, Usage: ledger.Usage{Output: 1000}}); err != nil {
		t.Fatal(err)
	}
	b.want(aliceTokens, 1000, 0)
	a.Hold = newID()
	b.denied(a)
	a.Hold, a.Reserve.Tokens = newID(), amount(1)
	_, err := b.ledger.Admit(ctx, a)
	wantError(t, "reserving without a hold", err, ledger.ErrInvalid)
}

func recovers(t *testing.T, b *bench) {
	b.settle(b.admit(tokens(600, 1000)), ledger.Usage{Output: 600}) // opens the window at 0 h
	b.Advance(time.Hour)
	long := tokens(300, 1000)
	long.TTL = 48 * time.Hour // outlives the window: it is charged into the next one
	b.admit(long)
	denial := b.denied(tokens(500, 1000))
	wantEqual(t, "when the window ends", denial.RetryAfter, 23*time.Hour)
	// 800 beside a hold of 300: it is charged 48 h from now, which opens a window, which ends a day later.
	denial = b.denied(tokens(800, 1000))
	wantEqual(t, "when the hold has been charged and forgotten", denial.RetryAfter, 72*time.Hour)
	b.Advance(denial.RetryAfter - time.Microsecond)
	b.denied(tokens(800, 1000))
	b.Advance(time.Microsecond)
	b.admit(tokens(800, 1000))
}

func windows(t *testing.T, b *bench) {
	hour := ledger.Fixed{Length: time.Hour}
	a := tokens(10, 10)
	a.Claims[0].Limits = []ledger.Limit{{Window: day, Max: 15}, {Window: hour, Max: 10}}
	again := func() ledger.Admission { a.Hold = newID(); return a }
	b.settle(b.admit(again()), ledger.Usage{Output: 10})
	denial := b.denied(again())
	wantEqual(t, "window", denial.Window, ledger.Window(day)) // both deny; the later one is reported
	wantEqual(t, "retry after", denial.RetryAfter, 24*time.Hour)
	b.Advance(time.Hour)
	a.Reserve.Tokens = amount(5)
	b.settle(b.admit(again()), ledger.Usage{Output: 5}) // the hour is forgotten, the day is full
	b.denied(again())
	b.Advance(23*time.Hour - time.Microsecond)
	b.denied(again())
	b.Advance(time.Microsecond)
	b.admit(again())
	b.want(aliceTokens, 0, 5)
}

func expires(t *testing.T, b *bench) {
	call := &ledger.Call{ID: newID(), Owner: "alice", Model: "m", Protocol: "openai.chat"}
	a := tokens(700, 1000)
	a.Call, a.Source, a.Price, a.Reserve.NanoUSD = call, "one", &price, amount(9)
	a.Claims = append(a.Claims, limited(aliceUSD, 10))
	hold := b.admit(a)
	b.Advance(ttl - time.Microsecond)
	b.touch()
	b.want(aliceTokens, 0, 700)
	b.Advance(time.Microsecond)
	b.want(aliceTokens, 700, 0) // a read counts what is due
	b.touch()
	b.touch()
	b.want(aliceTokens, 700, 0)
	b.want(aliceUSD, 9, 0)
	wantEqual(t, "expiries", len(b.expiries), 1)
	wantEqual(t, "charge", b.expiries[0].Charge, ledger.Charge{Tokens: 700, NanoUSD: 9, UnknownUsage: true})
	report, err := b.ledger.Store().Call(ctx, call.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "state", report.State, ledger.Failed)
	wantEqual(t, "ended at", report.EndedAt, hold.Deadline)
	_, err = b.ledger.Renew(ctx, hold.ID, hold.Token, 0)
	wantError(t, "renewing it", err, ledger.ErrExpired)
}

func settlesLate(t *testing.T, b *bench) {
	hold := b.admit(tokens(700, 1000))
	b.Advance(ttl)
	b.touch()
	b.want(aliceTokens, 700, 0)
	wantError(t, "releasing it", b.ledger.Release(ctx, ending(hold)), ledger.ErrExpired)
	stale := hold
	stale.Token--
	_, err := b.ledger.Settle(ctx, ending(stale), ledger.Consumption{Usage: &ledger.Usage{Output: 1}})
	wantError(t, "settling it with an old token", err, ledger.ErrExpired)
	wantEqual(t, "late charge", b.settle(hold, ledger.Usage{Output: 50}), ledger.Charge{Tokens: 50, UnknownUsage: true})
	b.want(aliceTokens, 50, 0)
	wantEqual(t, "later charge", b.settle(hold, ledger.Usage{Output: 10}), ledger.Charge{Tokens: 50, UnknownUsage: true})
	b.want(aliceTokens, 50, 0)

	// A refund leaves the windows together with its charge: it takes nothing off a window that opened afterwards.
	old := b.admit(tokens(100, 1000))
	b.Advance(ttl)
	b.touch()
	b.want(aliceTokens, 150, 0)
	b.Advance(24*time.Hour - 2*ttl)
	b.settle(b.admit(tokens(30, 1000)), ledger.Usage{Output: 30})
	b.want(aliceTokens, 30, 0)
	b.settle(old, ledger.Usage{Output: 1})
	b.want(aliceTokens, 30, 0)
	third := b.admit(tokens(100, 1000))
	b.Advance(refund + 2*ttl)
	b.touch()
	wantEqual(t, "too late", b.settle(third, ledger.Usage{Output: 1}), ledger.Charge{Tokens: 100, UnknownUsage: true})

	// What the price does not list lowers nothing, and is no fault of the store's.
	unlisted := tokens(100, 1<<40)
	unlisted.Price = &ledger.Price{}
	for _, usage := range []ledger.Usage{{Output: 1, Tier: "unlisted"}, {Output: 1, Units: map[string]int64{"unlisted": 1}}} {
		unlisted.Hold = newID()
		odd := b.admit(unlisted)
		b.Advance(ttl)
		b.touch()
		wantEqual(t, "the late charge of what has no price", b.settle(odd, usage), ledger.Charge{Tokens: 100, UnknownUsage: true})
	}
}

func renews(t *testing.T, b *bench) {
	first := b.admit(tokens(100, 1000))
	b.Advance(ttl / 2)
	second, err := b.ledger.Renew(ctx, first.ID, first.Token, ttl)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "deadline", second.Deadline, first.Deadline.Add(ttl/2))
	if second.Token <= first.Token {
		t.Fatalf("token: got %d, want more than %d", second.Token, first.Token)
	}
	third, err := b.ledger.Renew(ctx, second.ID, second.Token, time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "a shorter renewal keeps the deadline", third.Deadline, second.Deadline)
	for _, dead := range []ledger.Hold{first, second} {
		_, err = b.ledger.Renew(ctx, dead.ID, dead.Token, ttl)
		wantError(t, "renew with an old token", err, ledger.ErrState)
		_, err = b.ledger.Settle(ctx, ending(dead), ledger.Consumption{Usage: &ledger.Usage{Output: 1}})
		wantError(t, "settle with an old token", err, ledger.ErrState)
		wantError(t, "release with an old token", b.ledger.Release(ctx, ending(dead)), ledger.ErrState)
	}
	b.Advance(ttl - time.Microsecond)
	b.want(aliceTokens, 0, 100)
	b.settle(third, ledger.Usage{Output: 1})
	b.want(aliceTokens, 1, 0)
}

func idempotent(t *testing.T, b *bench) {
	a := tokens(100, 1000)
	hold := b.admit(a)
	wantEqual(t, "the same admission again", b.admit(a), hold)
	b.want(aliceTokens, 0, 100)
	charge := b.settle(hold, ledger.Usage{Output: 60})
	wantEqual(t, "the same settlement again", b.settle(hold, ledger.Usage{Output: 60}), charge)
	_, err := b.ledger.Settle(ctx, ending(hold), ledger.Consumption{Usage: &ledger.Usage{Output: 61}})
	wantError(t, "another settlement", err, ledger.ErrState)
	wantError(t, "a release after it", b.ledger.Release(ctx, ending(hold)), ledger.ErrState)
	_, err = b.ledger.Admit(ctx, a)
	wantError(t, "the admission again after its end", err, ledger.ErrState)
	b.want(aliceTokens, 60, 0)
}

func overage(t *testing.T, b *bench) {
	charge := b.settle(b.admit(tokens(100, 1000)), ledger.Usage{Output: 1500})
	wantEqual(t, "charge", charge, ledger.Charge{Tokens: 1500, Overage: true})
	b.want(aliceTokens, 1500, 0)
	b.denied(tokens(1, 1000))

	hold := b.admit(tokens(100, 10_000))
	charge, err := b.ledger.Settle(ctx, ending(hold), ledger.Consumption{Usage: &ledger.Usage{Output: 200}, Estimated: true})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "estimated charge", charge, ledger.Charge{Tokens: 100, Estimated: true})
	hold = b.admit(tokens(100, 10_000))
	charge, err = b.ledger.Settle(ctx, ending(hold), ledger.Consumption{})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "unknown charge", charge, ledger.Charge{Tokens: 100, UnknownUsage: true})
	b.want(aliceTokens, 1700, 0)
}

func clockSteps(t *testing.T, b *bench) {
	hold := b.admit(tokens(100, 1000))
	b.Step(24 * time.Hour)
	b.touch()
	b.want(aliceTokens, 0, 100)
	renewed, err := b.ledger.Renew(ctx, hold.ID, hold.Token, ttl)
	if err != nil {
		t.Fatalf("renewing after a step: %v", err)
	}
	b.Advance(ttl / 2)
	b.settle(renewed, ledger.Usage{Output: 1})
	b.want(aliceTokens, 1, 0)

	// A hold that nobody renews expires at the end of the suspension, dated there.
	b.Advance(ttl)
	hold = b.admit(tokens(100, 1000))
	b.Step(time.Hour)
	b.touch()
	end := b.Now().Add(ttl)
	b.Advance(ttl - time.Microsecond)
	b.touch()
	wantEqual(t, "expiries", len(b.expiries), 0)
	wantEqual(t, "suspended until", b.ledger.Status().SuspendedUntil, end)
	b.Advance(time.Microsecond)
	b.touch()
	wantEqual(t, "expiries", len(b.expiries), 1)

	// An account's time never runs backwards: a window that was charged does not open again in its own past.
	b.Step(-2 * time.Hour)
	b.touch()
	b.want(aliceTokens, 101, 0)
	b.settle(b.admit(tokens(5, 1000)), ledger.Usage{Output: 5})
	b.want(aliceTokens, 106, 0)
	_ = hold
}

func monthsOfTwoZones(t *testing.T, b *bench) {
	in := func(zone string, n int64) ledger.Admission {
		a := tokens(n, 100)
		a.Claims[0].Limits = []ledger.Limit{{Window: ledger.Month{Zone: zone}, Max: 100}}
		return a
	}
	at := func(month time.Month, day, hour int) {
		b.Advance(time.Date(2026, month, day, hour, 0, 0, 0, time.UTC).Sub(b.Now()))
	}
	at(3, 31, 23) // April in Berlin, which ends on April 30 at 22:00 UTC; in Los Angeles it begins on April 1 at 07:00 UTC
	b.settle(b.admit(in("Europe/Berlin", 40)), ledger.Usage{Output: 40})
	at(4, 2, 0)
	b.settle(b.admit(in("Europe/Berlin", 60)), ledger.Usage{Output: 60})
	at(4, 30, 21)
	wantEqual(t, "what was used in the new zone's April stays", b.denied(in("America/Los_Angeles", 40)).RetryAfter, time.Hour)
	wantEqual(t, "until that ends", b.denied(in("America/Los_Angeles", 41)).RetryAfter, 10*time.Hour)
	b.Advance(time.Hour - time.Microsecond)
	b.denied(in("America/Los_Angeles", 1))
	b.Advance(time.Microsecond)
	b.denied(in("America/Los_Angeles", 41))
	b.settle(b.admit(in("America/Los_Angeles", 40)), ledger.Usage{Output: 40})
	b.Advance(9*time.Hour - time.Microsecond)
	b.denied(in("America/Los_Angeles", 1))
	b.Advance(time.Microsecond)
	b.settle(b.admit(in("America/Los_Angeles", 100)), ledger.Usage{Output: 100})
	// Eastwards the new zone's May has begun when the old one ends.
	at(5, 31, 23)
	wantEqual(t, "of the new zone's month", b.denied(in("Asia/Tokyo", 1)).RetryAfter, 8*time.Hour)
}

// A step back makes a charge stay for longer, never leave early; a step forward is time like any other.
func rollingClockSteps(t *testing.T, b *bench) {
	rolling := func(n int64) ledger.Admission {
		a := tokens(n, 100)
		a.Claims[0].Limits = []ledger.Limit{{Window: ledger.Rolling{Length: 5 * time.Hour}, Max: 100}}
		return a
	}
	b.settle(b.admit(rolling(60)), ledger.Usage{Output: 60})
	b.Step(-time.Hour)
	wantEqual(t, "retry after a step back", b.denied(rolling(50)).RetryAfter, 6*time.Hour)
	b.Advance(6*time.Hour - time.Microsecond)
	b.denied(rolling(50))
	b.Advance(time.Microsecond)
	b.settle(b.admit(rolling(50)), ledger.Usage{Output: 50})
	b.denied(rolling(60))
	b.Step(25 * time.Hour)
	b.settle(b.admit(rolling(100)), ledger.Usage{Output: 100})
}

func badInput(t *testing.T, b *bench) {
	hold := b.admit(tokens(10, 100))
	for name, a := range map[string]ledger.Admission{
		"a negative amount":      tokens(-1, 100),
		"too many tokens":        tokens(1<<53, 100),
		"a negative limit":       tokens(1, -1),
		"no id":                  {Reserve: ledger.Reserve{Tokens: amount(1)}},
		"a window of 0":          withWindow(0),
		"a window too long":      withWindow(32 * 24 * time.Hour),
		"a window of nanosecond": withWindow(time.Nanosecond),
		"months of two zones": {Hold: newID(), Claims: []ledger.Claim{{Account: aliceTokens, Limits: []ledger.Limit{
			{Window: ledger.Month{Zone: "Asia/Tokyo"}, Max: 1000}, {Window: ledger.Month{}, Max: 100}}}}},
		"an account twice": {Hold: newID(), Claims: []ledger.Claim{limited(aliceTokens, 1), limited(aliceTokens, 2)}},
	} {
		_, err := b.ledger.Admit(ctx, a)
		wantError(t, name, err, ledger.ErrInvalid)
	}
	for name, usage := range map[string]ledger.Usage{
		"negative usage":       {Output: -1},
		"usage beyond 2^53":    {Output: 1 << 53},
		"usage that sums over": {Output: 1<<53 - 1, UncachedInput: 1},
	} {
		_, err := b.ledger.Settle(ctx, ending(hold), ledger.Consumption{Usage: &usage})
		wantError(t, name, err, ledger.ErrInvalid)
	}
	_, err := b.ledger.Settle(ctx, ending(ledger.Hold{ID: newID(), Token: 1}), ledger.Consumption{})
	wantError(t, "somebody else's hold", err, ledger.ErrState)
	_, err = b.ledger.Renew(ctx, newID(), 1, ttl)
	wantError(t, "renewing an unknown hold", err, ledger.ErrState)
	_, err = b.ledger.Renew(ctx, hold.ID, hold.Token, -1)
	wantError(t, "a negative TTL", err, ledger.ErrInvalid)
	wantError(t, "a negative charge", b.ledger.Post(ctx, ledger.Posting{Accounts: []ledger.Account{aliceUSD}, NanoUSD: -1}), ledger.ErrInvalid)
	wantError(t, "an account twice", b.ledger.Post(ctx, ledger.Posting{Accounts: []ledger.Account{aliceUSD, aliceUSD}, NanoUSD: 1}), ledger.ErrInvalid)
	for _, account := range []ledger.Account{
		{}, {Scope: "user", ID: "alice"}, {Scope: "user", ID: "alice", Unit: "euro"}, {Scope: "user", Unit: ledger.Tokens},
		{ID: "alice", Unit: ledger.Tokens}, {Scope: "a/b", ID: "alice", Unit: ledger.Tokens}, {Scope: "\xff", ID: "alice", Unit: ledger.Tokens},
	} {
		accounts := []ledger.Account{account}
		_, err := b.ledger.Admit(ctx, ledger.Admission{Hold: newID(), Claims: []ledger.Claim{{Account: account}}})
		wantError(t, "an admission to no account", err, ledger.ErrInvalid)
		wantError(t, "a charge to no account", b.ledger.Post(ctx, ledger.Posting{Accounts: accounts}), ledger.ErrInvalid)
		wantError(t, "a reset of no account", b.ledger.Reset(ctx, amendment(), accounts), ledger.ErrInvalid)
		err = b.ledger.Correct(ctx, ledger.Correction{Amendment: amendment(), Accounts: accounts, Tokens: 1})
		wantError(t, "a correction of no account", err, ledger.ErrInvalid)
	}
	badTexts(b)
	b.want(aliceTokens, 0, 10)
	b.want(aliceUSD, 0, 0)
	wantEqual(t, "differences", len(b.verified().Differences), 0)
}

// badTexts are what one database or another cannot keep: they are refused on each, and at the end of a hold they are made fit.
func badTexts(b *bench) {
	for _, text := range []string{"\xff", "a\x00b", strings.Repeat("é", 501)} {
		for name, change := range map[string]func(*ledger.Admission){
			"a source":        func(a *ledger.Admission) { a.Source = text },
			"a provider":      func(a *ledger.Admission) { a.Provider = text },
			"an owner":        func(a *ledger.Admission) { a.Call.Owner = text },
			"a model":         func(a *ledger.Admission) { a.Call.Model = text },
			"a protocol":      func(a *ledger.Admission) { a.Call.Protocol = text },
			"a client's id":   func(a *ledger.Admission) { a.Call.ClientRequestID = text },
			"a client's key":  func(a *ledger.Admission) { a.Call.IdempotencyKey = text },
			"a rate's key":    func(a *ledger.Admission) { a.Rates = []ledger.Rate{{Key: text, Max: 1, Window: time.Minute}} },
			"a circuit's key": func(a *ledger.Admission) { a.Circuit = &ledger.Circuit{Key: text, Threshold: 1, CoolDown: time.Minute} },
		} {
			a := forCall(newCall(), "one")
			change(&a)
			_, err := b.ledger.Admit(ctx, a)
			wantError(b.t, name, err, ledger.ErrInvalid)
			if a.Rates == nil && a.Circuit == nil && a.Source == "one" && a.Provider != text {
				wantError(b.t, name+" of a denial", b.ledger.Refuse(ctx, a.Call, []byte(`{}`)), ledger.ErrInvalid)
			}
		}
		wantError(b.t, "a posting's source", b.ledger.Post(ctx, ledger.Posting{Source: text}), ledger.ErrInvalid)
		call := newCall()
		a := forCall(call, "one")
		hold := b.admit(a)
		end := ending(hold)
		end.Outcome = ledger.Outcome{Result: ledger.Errored, Reason: text}
		if err := b.ledger.Release(ctx, end); err != nil {
			b.t.Fatalf("the reason %.20q: %v", text, err)
		}
		end.Token = 7 // the same end again, whatever the token
		if err := b.ledger.Release(ctx, end); err != nil {
			b.t.Fatalf("the reason %.20q again: %v", text, err)
		}
	}
	long := ledger.Account{Scope: ledger.ScopeUser, ID: strings.Repeat("é", 400), Unit: ledger.Tokens}
	_, err := b.ledger.Admit(ctx, ledger.Admission{Hold: newID(), Claims: []ledger.Claim{{Account: long}}})
	wantError(b.t, "an account with a long name", err, ledger.ErrInvalid)
	long.ID = strings.Repeat("é", 320) // which is escaped
	b.release(b.admit(ledger.Admission{Hold: newID(), Claims: []ledger.Claim{{Account: long}}}))
}

func withWindow(length time.Duration) ledger.Admission {
	a := tokens(1, 100)
	a.Claims[0].Limits[0].Window = ledger.Fixed{Length: length}
	return a
}

func restarts(t *testing.T, b *bench) {
	wantEqual(t, "durable", b.ledger.Store().Durable(), b.backend.Durable)
	if !b.backend.Durable {
		return // nothing is promised
	}
	call := newCall()
	call.IdempotencyKey = "key"
	b.settle(b.admit(tokens(500, 1000)), ledger.Usage{Output: 400})
	hold := b.admit(forCall(call, "one"))
	if err := b.ledger.Close(); err != nil {
		t.Fatal(err)
	}
	b.Advance(ttl / 2)
	b.open()
	b.want(aliceTokens, 400, 100)
	wantEqual(t, "limit", b.denied(tokens(501, 1000)).Held, 100)
	b.settle(hold, ledger.Usage{Output: 20}) // the token survives
	b.want(aliceTokens, 420, 0)
	streams, err := b.ledger.Store().Streams(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "streams", len(streams), 2) // each process writes its own
}
