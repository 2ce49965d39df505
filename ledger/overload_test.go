package ledger_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
)

// slow is a store whose transactions take a while, so that it is overloaded by as many clients on every machine.
type slow struct {
	ledger.Store
	takes time.Duration
}

func (s slow) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	time.Sleep(s.takes)
	return s.Store.Update(ctx, decide)
}

// storm is more clients than the ledger can serve, in a bubble in which waiting takes no time.
type storm struct {
	t       *testing.T
	ledger  *ledger.Ledger
	ends    context.Context // when no client begins anything any more
	clients sync.WaitGroup

	busy, admitted, denied, renewals atomic.Int64
	charged                          atomic.Int64 // by settlements that were acknowledged
}

const (
	stormTTL   = 15 * time.Second
	stormQueue = 300
	// stormTakes makes the ledger serve 256 operations in this time.
	stormTakes = 200 * time.Millisecond
)

// run lets clients come back until the storm ends: a third of them is denied all the time, the others hold, renew and settle.
func (s *storm) run(clients int, random *rand.Rand) {
	for n := range clients {
		own := rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))
		s.clients.Go(func() {
			for s.ends.Err() == nil {
				if n%3 == 0 {
					s.refused()
				} else {
					s.call(own)
				}
				time.Sleep(time.Duration(own.Int64N(int64(time.Second))))
			}
		})
	}
}

func (s *storm) refused() {
	err := s.ledger.Refuse(ctx, &ledger.Call{ID: uuid.Must(uuid.NewV7()), Owner: "alice", Model: "m", Protocol: "p"}, []byte(`{}`))
	s.count(err, &s.denied)
}

// call is one client's call, as the router carries it: renewed at a third of its TTL, settled until that is acknowledged.
func (s *storm) call(random *rand.Rand) {
	a := admission(1000)
	a.Call = &ledger.Call{ID: uuid.Must(uuid.NewV7()), Owner: "alice", Model: "m", Protocol: "p"}
	a.Decision = []byte(`{}`)
	hold, err := s.ledger.Admit(ctx, a)
	if !s.count(err, &s.admitted) {
		return
	}
	for range random.IntN(6) {
		time.Sleep(stormTTL / 3)
		if hold, err = s.ledger.Renew(ctx, hold.ID, hold.Token, 0); err != nil {
			s.t.Errorf("a renewal: %v", err)
			return
		}
		s.renewals.Add(1)
	}
	used := random.Int64N(1000)
	ending := ledger.Ending{Hold: hold.ID, Token: hold.Token, State: ledger.Completed, Outcome: ledger.Outcome{Result: ledger.Success}}
	if _, err := s.ledger.Settle(ctx, ending, ledger.Consumption{Usage: &ledger.Usage{Output: used}}); err != nil {
		s.t.Errorf("a settlement: %v", err)
		return
	}
	s.charged.Add(used)
}

// count says whether something was done; that the ledger is busy is the only reason for which it may not be.
func (s *storm) count(err error, done *atomic.Int64) bool {
	switch {
	case err == nil:
		done.Add(1)
		return true
	case errors.Is(err, ledger.ErrBusy):
		s.busy.Add(1)
	default:
		s.t.Errorf("in the storm: %v", err)
	}
	return false
}

// TestOverloadStorm: more clients than can be served are refused at once. Those that are served renew and settle all the while;
// no hold expires because of the load; and when the clients stop, the queue is worked off and everything is admitted again.
func TestOverloadStorm(t *testing.T) {
	seed := ledgertest.Seed(t)
	for round := range ledgertest.Rounds(t, 2) {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		synctest.Test(t, func(t *testing.T) { overload(t, random) })
	}
}

func overload(t *testing.T, random *rand.Rand) {
	var expired atomic.Int64
	l := openInBubble(t, ledger.Config{
		Store: slow{memory.New(nil), stormTakes}, TTL: stormTTL, QueueMax: stormQueue, OnExpire: func(ledger.Expiry) { expired.Add(1) },
	})
	defer closeLedger(t, l)
	ends, stop := context.WithCancel(ctx)
	s := &storm{t: t, ledger: l, ends: ends}
	s.run(3000, random)
	for range 200 {
		time.Sleep(100*time.Millisecond + time.Duration(random.Int64N(int64(10*time.Millisecond))))
		if waiting := l.Status().Waiting; waiting > stormQueue+3000 { // each client waits for one thing
			t.Fatalf("%d wait", waiting)
		}
	}
	stop()
	s.clients.Wait()
	if l.Status().Waiting != 0 {
		t.Errorf("%d operations wait when nobody does", l.Status().Waiting)
	}
	for range 100 {
		hold, err := l.Admit(ctx, admission(1))
		if err == nil {
			err = l.Release(ctx, ledger.Ending{Hold: hold.ID, Token: hold.Token})
		}
		if err != nil {
			t.Fatalf("after the storm: %v", err)
		}
	}
	for name, n := range map[string]*atomic.Int64{"refused": &s.busy, "admitted": &s.admitted, "denied": &s.denied, "renewed": &s.renewals} {
		if n.Load() < 100 {
			t.Errorf("%s: %d, so it was no storm", name, n.Load())
		}
	}
	if expired.Load() != 0 || !l.Status().SuspendedUntil.IsZero() {
		t.Errorf("%d holds expired, suspended until %v", expired.Load(), l.Status().SuspendedUntil)
	}
	row, _, err := ledger.ReadAccount(ctx, l.Store(), account)
	if err != nil || row.Used != s.charged.Load() {
		t.Errorf("used %d, %v; settlements of %d were acknowledged", row.Used, err, s.charged.Load())
	}
	if err := ledgertest.Audit(ctx, l.Store()); err != nil {
		t.Error(err)
	}
	t.Logf("admitted %d, denied %d, refused as busy %d, renewed %d", s.admitted.Load(), s.denied.Load(), s.busy.Load(), s.renewals.Load())
}

// TestWhoIsDeniedOverAndOverKeepsNobodyFromRenewing: in a bubble, where a transaction takes a known time, so that what goes first
// can be told by it.
func TestWhoIsDeniedOverAndOverKeepsNobodyFromRenewing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := openInBubble(t, ledger.Config{Store: slow{memory.New(nil), stormTakes}, TTL: stormTTL})
		defer closeLedger(t, l)
		hold, err := l.Admit(ctx, admission(1))
		if err != nil {
			t.Fatal(err)
		}
		ends, stop := context.WithCancel(ctx)
		s := &storm{t: t, ledger: l, ends: ends}
		for range 1000 { // several batches
			s.clients.Go(func() {
				for ends.Err() == nil {
					s.refused()
				}
			})
		}
		for range 20 {
			time.Sleep(stormTTL / 3)
			patience, cancel := context.WithTimeout(ctx, 2*stormTakes+time.Millisecond) // one that is under way, and its own
			hold, err = l.Renew(patience, hold.ID, hold.Token, 0)
			cancel()
			if err != nil {
				t.Errorf("a renewal: %v", err)
				break
			}
		}
		stop()
		s.clients.Wait()
	})
}
