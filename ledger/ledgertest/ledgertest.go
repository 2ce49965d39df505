// Package ledgertest is the conformance suite of ledger stores: what a ledger on any of them must do, in tests that assert
// amounts. A store's own test calls [Run].
package ledgertest

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// Backend is where a store's rows live. Open opens a store on them and may be called again after a store was closed, or, if
// Durable is false, only once.
type Backend struct {
	Open    func(t *testing.T) ledger.Store
	Durable bool
}

// Run runs the suite. newBackend makes an empty backend whose stores read the given clock.
func Run(t *testing.T, newBackend func(t *testing.T, now func() time.Time) Backend) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, b *bench)
	}{
		{"a hold is charged what was used and the rest is given back", settles},
		{"a price's tiers, long context and units are charged and kept", charges},
		{"what a price does not list is charged at what was held at least", chargesTheUnpriced},
		{"what has no price is charged at the cost that is told", chargesToldCosts},
		{"a cost that cannot be told is refused", badCosts},
		{"credits are held and charged beside tokens and money", chargesCredits},
		{"a release gives everything back", releases},
		{"an admission never passes a limit", keepsLimits},
		{"parallel admissions never pass a limit together", keepsLimitsInParallel},
		{"the smallest of several limits decides and nothing is held", allOrNothing},
		{"amounts at the edge of a limit", edges},
		{"an unbounded unit is denied only when its limit is spent", unbounded},
		{"an admission without a hold only looks", unheld},
		{"a hold is ended by nobody but whose it is", owned},
		{"a denial says when it ends, to the microsecond", recovers},
		{"a window opens at first use and forgets at its end", windows},
		{"an expired hold is charged at what it held, once", expires},
		{"a late settlement is acknowledged and may lower the charge once", settlesLate},
		{"a renewal makes the old token worthless", renews},
		{"a settlement is idempotent and another payload is refused", idempotent},
		{"an overage is charged in full, an estimate at most at what was held", overage},
		{"a call ends in exactly one state", callStates},
		{"a failover replaces one hold by another in one step", failsOver},
		{"an idempotency key belongs to one running or completed call", idempotencyKeys},
		{"the journal has every decision, charge and outcome, without gaps", journal},
		{"a sink's cursor is kept", cursors},
		{"a step of the clock charges nobody", clockSteps},
		{"a month of another zone counts from the next one on", monthsOfTwoZones},
		{"a rolling window keeps its length when the clock steps", rollingClockSteps},
		{"bad input is refused and changes nothing", badInput},
		{"what was acknowledged is there after a restart", restarts},
		{"a reset has everything leave every window and erases nothing", resets},
		{"a correction charges further, or takes back what is left of a charge", corrects},
		{"an amendment is made once, with a reason and an actor", amends},
		{"a posting that bears an id is made once", postsOnce},
		{"a posting that bears an id is made once, whoever posts", postsOnceAtOnce},
		{"a posting opens the windows of its limits", opensByPosting},
		{"accounts are listed by how their ids begin", listsAccounts},
		{"what is pruned is closed, and windows count as before", prunes},
		{"only what is old, ended and read by every sink is pruned", keepsWhatIsNeeded},
		{"a posting that bears an id is made once for as long as it is kept", prunesPostings},
		{"each stream is pruned as far as the others allow", prunesStreams},
		{"an activation is kept under its digest until it is dropped", keepsActivations},
		{"an activation's last use never moves backwards", usesActivations},
		{"an activation is kept by several processes at once", keepsActivationsAtOnce},
		{"a pruning takes the activations that no record names any more", prunesActivations},
		{"a pruning keeps the activation that a last record names", keepsNamedActivations},
		{"a pruning keeps what the records of a busy process may name", keepsWhatMayBeNamed},
		{"the books are verified while the ledger goes on", verifiesLive},
		{"another process administrates beside the ledger", administrates},
		{"a rate denies until its window closes, to the microsecond", keepsRates},
		{"parallel admissions never pass a rate together", keepsRatesInParallel},
		{"a rate takes back what was never contacted, and nothing else", givesRatesBack},
		{"a failover begins in the place of an unused attempt", failsOverUnderRates},
		{"a circuit opens, cools down, probes and closes", opensCircuits},
		{"an open circuit lets one probe through", probesOnce},
		{"a circuit whose probe fails or is lost is open again", reopensCircuits},
		{"a probe that succeeds late closes its circuit if no other is out", hearsLateProbes},
		{"a probe that says nothing is given back", givesProbesBack},
		{"a failover tells the circuit of the attempt before", failsOverThroughCircuits},
		{"a denial by a limit, a rate or a circuit takes nothing of the others", allOrNothingAtGates},
		{"rates and circuits count once what is said twice", repeatsAtGates},
		{"rates and circuits that cannot be are refused", badGates},
		{"a rate counts admissions without a hold, and takes back what was never contacted", keepsRatesWithoutHolds},
		{"parallel admissions without a hold never pass a rate together", keepsRatesWithoutHoldsInParallel},
		{"reports open a circuit and close it, and only the probe's is heard while it is open", reportsOpenCircuits},
		{"an open circuit lets one probe through, with a hold or without", probesOnceWithoutHolds},
		{"reports count once each, and one probe passes, whoever asks", countsReportsAtOnce},
		{"a report gives probe and rate back at once", givesBackByReport},
		{"a circuit whose probe has no hold and is lost is open again", losesProbesWithoutHolds},
		{"a probe that is admitted again is known", repeatsProbes},
		{"a hold whose end is unsaid leaves its probe out for a report", leavesUnsaid},
		{"a failover may leave the attempt before to a report", failsOverUnsaid},
		{"a circuit of which there is no failure is not remembered", remembersFailuresOnly},
		{"reports that cannot be are refused", badReports},
		{"so many calls run at once, and no more", keepsConcurrency},
		{"a failover runs in the place of the attempt before", failsOverAtOnce},
		{"random histories agree with a flat log", agreesWithOracle},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &bench{Clock: NewClock(), t: t}
			b.backend = newBackend(t, b.Now)
			b.open()
			t.Cleanup(func() {
				if err := b.ledger.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			test.run(t, b)
		})
	}
}

// bench is one test's ledger, with the words that the tests are written in.
type bench struct {
	*Clock
	t       *testing.T
	backend Backend
	ledger  *ledger.Ledger

	mu       sync.Mutex // guards expiries
	expiries []ledger.Expiry
}

const (
	ttl    = time.Minute
	refund = 24 * time.Hour
)

var (
	ctx         = context.Background()
	aliceTokens = ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.Tokens}
	aliceUSD    = ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.USD}
	taskTokens  = ledger.Account{Scope: ledger.ScopeTask, ID: "team/build 1", Unit: ledger.Tokens}
	day         = ledger.Fixed{Length: 24 * time.Hour}
	price       = ledger.Price{Rates: ledger.Rates{UncachedInput: 2_500_000, CachedInput: 250_000, Output: 10_000_000, Reasoning: 10_000_000}}
)

func (b *bench) open() {
	l, err := openLedger(b.Clock, b.backend.Open(b.t), func(e ledger.Expiry) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.expiries = append(b.expiries, e)
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.ledger = l
}

func openLedger(clock *Clock, store ledger.Store, onExpire func(ledger.Expiry)) (*ledger.Ledger, error) {
	return ledger.Open(ledger.Config{
		Store: store, TTL: ttl, LateRefund: refund, Elapsed: clock.Elapsed, SweepEvery: time.Hour, OnExpire: onExpire,
	})
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func amount(n int64) *int64 { return &n }

func limited(account ledger.Account, max int64) ledger.Claim {
	return ledger.Claim{Account: account, Limits: []ledger.Limit{{Window: day, Max: max}}}
}

// tokens is an admission of n tokens for alice under a daily limit.
func tokens(n, max int64) ledger.Admission {
	return ledger.Admission{Hold: newID(), Reserve: ledger.Reserve{Tokens: &n}, Claims: []ledger.Claim{limited(aliceTokens, max)}}
}

func (b *bench) admit(a ledger.Admission) ledger.Hold {
	b.t.Helper()
	hold, err := b.ledger.Admit(ctx, a)
	if err != nil {
		b.t.Fatalf("admit: %v", err)
	}
	return hold
}

func (b *bench) denied(a ledger.Admission) *ledger.LimitError {
	b.t.Helper()
	_, err := b.ledger.Admit(ctx, a)
	var denial *ledger.LimitError
	if !errors.As(err, &denial) {
		b.t.Fatalf("admit: got %v, want a denial by a limit", err)
	}
	return denial
}

func (b *bench) settle(hold ledger.Hold, usage ledger.Usage) ledger.Charge {
	b.t.Helper()
	charge, err := b.ledger.Settle(ctx, ending(hold), ledger.Consumption{Usage: &usage})
	if err != nil {
		b.t.Fatalf("settle: %v", err)
	}
	return charge
}

func (b *bench) release(hold ledger.Hold) {
	b.t.Helper()
	if err := b.ledger.Release(ctx, ledger.Ending{Hold: hold.ID, Token: hold.Token, Outcome: ledger.Outcome{Result: ledger.Errored}, State: ledger.Failed}); err != nil {
		b.t.Fatalf("release: %v", err)
	}
}

func ending(hold ledger.Hold) ledger.Ending {
	return ledger.Ending{Hold: hold.ID, Token: hold.Token, Outcome: ledger.Outcome{Result: ledger.Success, Status: 200}, State: ledger.Completed}
}

// touch makes the ledger look at what is due.
func (b *bench) touch() {
	b.t.Helper()
	if err := b.ledger.Refuse(ctx, nil, []byte(`{"touch":true}`)); err != nil {
		b.t.Fatalf("touch: %v", err)
	}
}

// want checks an account's usage in the daily window, and what is held.
func (b *bench) want(account ledger.Account, used, held int64) {
	b.t.Helper()
	balances, err := b.ledger.Read(ctx, []ledger.Claim{limited(account, 1<<50)})
	if err != nil {
		b.t.Fatalf("read: %v", err)
	}
	if got := balances[0]; got.Used != used || got.Held != held {
		b.t.Fatalf("%s: used %d, held %d; want used %d, held %d", account, got.Used, got.Held, used, held)
	}
}

func wantEqual[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got error %v, want %v", what, err, want)
	}
}
