package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgproxy"
)

// gate is a store whose transactions wait at a gate, so that a test decides what is in a batch.
type gate struct {
	*sqldb.Store
	gate sync.RWMutex
	// arrived holds a signal since a transaction came to the gate.
	arrived chan struct{}
}

func (g *gate) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	select {
	case g.arrived <- struct{}{}:
	default:
	}
	g.gate.RLock()
	defer g.gate.RUnlock()
	return g.Store.Update(ctx, decide)
}

// together has operations decided in one batch, after one that does nothing but wait, and returns what came of it at the server.
func together(b *bench, g *gate, operations []func()) pgproxy.Counts {
	b.t.Helper()
	g.gate.Lock()
	select {
	case <-g.arrived: // an earlier one
	default:
	}
	var callers sync.WaitGroup
	callers.Go(b.touch)
	select {
	case <-g.arrived: // the writer has it, and takes nothing else
	case <-time.After(10 * time.Second):
		b.t.Fatal("the writer does not come to the gate")
	}
	before := b.proxy.Counts()
	for i, operation := range operations {
		callers.Go(operation)
		b.waitFor(i + 1)
	}
	g.gate.Unlock()
	callers.Wait()
	after := b.proxy.Counts().Sub(before)
	after.Exchanges -= 2 // the first
	after.Commits--
	return after
}

// waitFor waits until so many operations wait.
func (b *bench) waitFor(n int) {
	b.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); b.ledger.Status().Waiting != n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("%d operations wait, want %d", b.ledger.Status().Waiting, n)
		}
	}
}

// gated is a bench whose ledger is behind a gate.
func gated(t *testing.T, config sqldb.Config) (*bench, *gate) {
	t.Helper()
	config.Connections = 1
	b := newBench(t, config)
	g := &gate{Store: b.store, arrived: make(chan struct{}, 1)}
	b.ledger = b.start(g)
	return b, g
}

// windows are limits of every kind.
func windows(max int64) []ledger.Limit {
	return []ledger.Limit{
		{Window: ledger.Fixed{Length: 5 * time.Hour}, Max: max}, {Window: ledger.Rolling{Length: 5 * time.Hour}, Max: max},
		{Window: ledger.Rolling{Length: 7 * day}, Max: max}, {Window: ledger.Month{Zone: "Europe/Berlin"}, Max: max},
	}
}

// mixed is a batch of every kind of operation of calls, with holds that are due. The accounts are the same in every round, and have
// charges and refunds.
func mixed(b *bench, round int) (operations []func()) {
	b.t.Helper()
	team := ledger.Account{Scope: ledger.ScopeGroup, ID: "team", Unit: ledger.Tokens}
	next := func(user ledger.Account) ledger.Admission {
		a := forCall(admission(user, 10, 1))
		a.Claims = []ledger.Claim{{Account: user, Limits: windows(1_000_000)}, {Account: team, Limits: windows(10_000_000)}}
		return a
	}
	accounts := []ledger.Account{user("alice"), user("bob"), user("carol")}
	late := b.admit(next(accounts[1]))
	b.Advance(ttl)
	b.touch()
	for range 3 {
		due := next(accounts[2])
		due.TTL = time.Second
		b.admit(due)
	}
	for _, account := range accounts {
		first, second := b.admit(next(account)), b.admit(next(account))
		released, renewed := b.admit(next(account)), b.admit(next(account))
		operations = append(operations, func() { b.admit(next(account)) }, func() {
			a := next(account)
			a.Price = &ledger.Price{Rates: ledger.Rates{Output: int64(1 + round)}}
			b.admit(a)
		}, func() { b.settle(first, 7) }, func() {
			a := next(account)
			a.Call, a.Replaces = nil, &ledger.Replacement{Ending: ending(second), Consumption: &ledger.Consumption{}}
			b.admit(a)
		}, func() {
			b.must("release", b.ledger.Release(ctx, ending(released)))
		}, func() {
			b.renew(renewed)
		}, func() {
			b.must("refuse", b.ledger.Refuse(ctx, newCall(), []byte(`{}`)))
		}, func() {
			b.must("post", b.ledger.Post(ctx, ledger.Posting{Accounts: []ledger.Account{account, team}, Usage: ledger.Usage{Output: 1}}))
		})
	}
	b.Advance(time.Second) // what is due expires in the first of the two batches
	return append(operations, func() {
		_, err := b.ledger.Settle(ctx, ending(late), output(4))
		b.must("settle late", err)
	})
}

// TestABatchIsTwoRoundTrips: whatever is in it, what is due with it, and whatever windows its limits have.
func TestABatchIsTwoRoundTrips(t *testing.T) {
	onPostgres(t, func(t *testing.T, config sqldb.Config) {
		b, g := gated(t, config)
		for round := range 5 {
			operations := mixed(b, round)
			counts := together(b, g, operations)
			wantEqual(t, "commits", counts.Commits, 1)
			if round > 2 { // the statements are prepared
				wantEqual(t, "at the server", counts, pgproxy.Counts{Exchanges: 2, Commits: 1})
			}
			t.Logf("%d operations: %+v", len(operations), counts)
		}
		b.Advance(ttl)
		b.touch() // what is left expires
		b.audit()
	})
}

// TestACallIsTwoTransactions: its admission, and its settlement.
func TestACallIsTwoTransactions(t *testing.T) {
	onPostgres(t, func(t *testing.T, config sqldb.Config) {
		config.Connections = 1
		b := newBench(t, config)
		call := func() {
			a := forCall(admission(user("alice"), 10, 1))
			a.Claims = []ledger.Claim{{Account: user("alice"), Limits: windows(1_000_000)}}
			b.settle(b.admit(a), 7)
		}
		call()
		call()
		before := b.proxy.Counts()
		const calls = 10
		for range calls {
			call()
			b.Advance(time.Minute)
		}
		wantEqual(t, "at the server", b.proxy.Counts().Sub(before), pgproxy.Counts{Exchanges: 4 * calls, Commits: 2 * calls})
		b.audit()
	})
}

// TestADenialIsExplainedWithoutATransaction: when it ends is found by reads, after the transaction in which others were admitted.
func TestADenialIsExplainedWithoutATransaction(t *testing.T) {
	onPostgres(t, func(t *testing.T, config sqldb.Config) {
		b, g := gated(t, config)
		b.settle(b.admit(admission(user("alice"), 100, 100)), 100)
		for round := range 3 {
			var hold ledger.Hold
			counts := together(b, g, []func(){
				func() { hold = b.admit(admission(user("bob"), 10, 1_000_000)) },
				func() {
					a := admission(user("alice"), 1, 1)
					a.Claims[0].Limits = windows(100)
					denial := b.denied(a)
					if denial.RetryAfter == 0 || denial.Structural {
						t.Errorf("when it ends: %+v", denial)
					}
				},
			})
			if round == 2 {
				wantEqual(t, "at the server", counts, pgproxy.Counts{Exchanges: 2 + counts.Loads, Commits: 1, Loads: counts.Loads})
				if counts.Loads == 0 || counts.Loads > 8 { // the rows, and what each window asks
					t.Errorf("%d reads", counts.Loads)
				}
			}
			b.settle(hold, 1)
		}
		b.audit()
	})
}

// TestManyCallersShareACommit: 64 concurrent callers make at least 16 operations a commit.
func TestManyCallersShareACommit(t *testing.T) {
	onPostgres(t, func(t *testing.T, config sqldb.Config) {
		b := newBench(t, config)
		const callers, calls = 64, 10
		before, began := b.proxy.Counts(), time.Now()
		var wg sync.WaitGroup
		failed := make(chan error, callers)
		for i := range callers {
			wg.Go(func() {
				for range calls {
					if err := b.call(user(fmt.Sprint(i))); err != nil {
						failed <- err
						return
					}
				}
			})
		}
		wg.Wait()
		close(failed)
		b.must("a call", errors.Join(<-failed))
		took, counts := time.Since(began), b.proxy.Counts().Sub(before)
		each := float64(2*callers*calls) / float64(counts.Commits)
		t.Logf("%.1f operations a commit, %.0f operations a second, %+v", each, 2*callers*calls/took.Seconds(), counts)
		if each < 16 {
			t.Errorf("%.1f operations a commit, want 16", each)
		}
		b.audit()
	})
}

// call is a call from its admission to its settlement.
func (b *bench) call(account ledger.Account) error {
	hold, err := b.ledger.Admit(ctx, forCall(admission(account, 10, 1_000_000)))
	if err == nil {
		_, err = b.ledger.Settle(ctx, ending(hold), output(7))
	}
	return err
}
