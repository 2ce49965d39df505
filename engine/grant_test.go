package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"regent/engine/policy"
	"regent/ledger"
)

// slow attempts take so long, by the bubble's clock, which the store reads too.
func slow(d time.Duration, outcome Outcome) func(context.Context, *Grant) Outcome {
	return func(context.Context, *Grant) Outcome {
		time.Sleep(d)
		return outcome
	}
}

// newTimedBench has a store and a ledger that read the time of a synctest bubble.
func newTimedBench(t *testing.T, store *failing) *bench {
	return newBenchOn(t, func(inner ledger.Store) ledger.Store {
		store.Store = inner
		return store
	}, func(c *Config, _ *policy.Settings) { c.HoldTTL = time.Minute })
}

func TestAHoldIsRenewedWhileItsCallRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTimedBench(t, &failing{})
		pass := b.passes()
		defer pass()
		request := called(1000, "one")
		var first, last Reservation
		err := b.router.Serve(ctx, request, func(_ context.Context, grant *Grant) Outcome {
			first = grant.Reservation()
			time.Sleep(10*time.Minute + time.Second) // ten times its life
			last = grant.Reservation()
			return served
		})
		b.flush()
		if err != nil || last.ID != first.ID || last.Token != first.Token+30 { // one at each third of it
			t.Fatalf("tokens %d to %d, %v", first.Token, last.Token, err)
		}
		b.wantBalance(ledger.ScopeUser, "alice", 5, 0)
		if want := (ledger.Charge{Tokens: 5, NanoUSD: 5000}); b.settlements[0].Charge != want {
			t.Errorf("charged %+v", b.settlements[0].Charge)
		}
	})
}

// passes lets the store's clock follow the bubble's until the function that it returns is called.
func (b *bench) passes() (stop func()) {
	done := make(chan struct{})
	go func() {
		for tick := time.NewTicker(time.Second); ; {
			select {
			case <-tick.C:
				b.Advance(time.Second)
			case <-done:
				tick.Stop()
				return
			}
		}
	}()
	return func() { close(done) }
}

// TestAFailedRenewalIsTriedAgain: it is no error of the call, which is settled by the newest token.
func TestAFailedRenewalIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &failing{}
		b := newTimedBench(t, store)
		pass := b.passes()
		defer pass()
		request := called(1000, "one")
		time.AfterFunc(15*time.Second, func() { store.down.Store(true) })
		time.AfterFunc(45*time.Second, func() { store.down.Store(false) })
		if err := b.router.Serve(ctx, request, slow(3*time.Minute, served)); err != nil {
			t.Fatal(err)
		}
		b.flush()
		b.wantBalance(ledger.ScopeUser, "alice", 5, 0)
		b.wantStory(request.ID, "decision one=selected", "one success completed")
	})
}

// TestATooLateReleaseTellsTheCharge: a hold that expired under a running attempt was charged, whatever the attempt came to.
func TestATooLateReleaseTellsTheCharge(t *testing.T) {
	b := newBench(t, nil)
	request := called(1000, "one", "two")
	err := b.router.Serve(ctx, request, func(context.Context, *Grant) Outcome {
		b.Advance(2 * time.Minute)
		return failure("overloaded")
	})
	b.flush()
	if err == nil {
		t.Fatal("a failure is no success")
	}
	if len(b.settlements) != 1 || !b.settlements[0].Charge.UnknownUsage || b.settlements[0].Charge.Tokens != 60 || b.settlements[0].BudgetReleased {
		t.Errorf("settlements: %+v", b.settlements)
	}
	b.wantBalance(ledger.ScopeUser, "alice", 60, 0)
	report, err := b.ledger.Store().Call(ctx, request.ID)
	if err != nil || report.State != ledger.Failed || len(report.Attempts) != 1 {
		t.Errorf("%+v, %v", report, err)
	}
}

// TestALateUsageIsTold: a call that outlived its hold was charged what it held, which its settlement says.
func TestALateUsageIsTold(t *testing.T) {
	b := newBench(t, nil)
	request := called(1000, "one")
	err := b.router.Serve(ctx, request, func(context.Context, *Grant) Outcome {
		b.Advance(2 * time.Minute)
		return served
	})
	b.flush()
	if err != nil || len(b.settlements) != 1 || !b.settlements[0].Charge.UnknownUsage || b.settlements[0].Charge.Tokens != 60 {
		t.Errorf("settlements: %+v, %v", b.settlements, err)
	}
	report, err := b.ledger.Store().Call(ctx, request.ID)
	if err != nil || report.State != ledger.Failed { // a late commit changes the charge at most, never the state
		t.Errorf("%+v, %v", report, err)
	}
}

func TestCloseGivesUpWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &failing{}
		b := newTimedBench(t, store)
		err := b.router.Serve(ctx, called(1000, "one"), func(context.Context, *Grant) Outcome {
			store.down.Store(true)
			return served
		})
		if err != nil {
			t.Fatal(err)
		}
		late, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := b.router.Close(late); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		store.down.Store(false)
		b.flush()
		b.wantBalance(ledger.ScopeUser, "alice", 5, 0)
	})
}
