package decisions_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"regent/engine/decisions"
	"regent/ledger"
	"regent/ledger/memory"
)

// away is a store that cannot be read for a while.
type away struct {
	ledger.Store
	is atomic.Bool
}

func (a *away) Streams(ctx context.Context) ([]ledger.Stream, error) {
	if a.is.Load() {
		return nil, ledger.ErrUnavailable
	}
	return a.Store.Streams(ctx)
}

// shared is a sink that a test reads while it is written to.
type shared struct {
	mu sync.Mutex
	sink
}

func (s *shared) Write(page []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink.Write(page)
}

// replica is a process with a sink of its own on a journal that others write to.
type replica struct {
	*journal
	out     *shared
	store   *away
	reports []error
	stop    func()
}

// wantOut waits until nothing is under way, and checks what has come out.
func (r *replica) wantOut() {
	r.t.Helper()
	synctest.Wait()
	r.out.mu.Lock()
	defer r.out.mu.Unlock()
	r.wantShipped(&r.out.sink)
}

func newReplica(t *testing.T, store ledger.Store, leads bool) *replica {
	t.Helper()
	r := &replica{journal: newJournal(t, unclosed{store}), out: &shared{}, store: &away{Store: store}}
	shipper := &decisions.Shipper{
		Store: r.store, Name: "file", Sink: r.out, Own: r.Writer(), Leads: func() bool { return leads },
		Report: func(err error) { r.reports = append(r.reports, err) },
	}
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- shipper.Run(ctx) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(r.stop)
	return r
}

// unclosed is a store that outlives the ledgers on it.
type unclosed struct{ ledger.Store }

func (unclosed) Close() error { return nil }

// TestEachProcessShipsItsOwn: whatever the others do, and also if the store was away for long.
func TestEachProcessShipsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		leader, other := newReplica(t, store, true), newReplica(t, store, false)
		both := func() {
			t.Helper()
			leader.wantOut()
			other.wantOut()
		}
		for range 20 {
			leader.call()
			other.call()
			time.Sleep(time.Second)
		}
		both()
		leader.store.is.Store(true)
		other.store.is.Store(true)
		leader.call()
		other.call()
		time.Sleep(time.Minute)
		leader.store.is.Store(false)
		time.Sleep(time.Second)
		other.store.is.Store(false) // it comes back later
		time.Sleep(time.Minute)
		both()
		leader.stop()
		if n := len(leader.reports); n < 2 || leader.reports[0] == nil || leader.reports[n-1] != nil {
			t.Errorf("the leader reported %v", leader.reports)
		}
	})
}

// TestWhatIsLeftBehindIsShipped by the one that leads, once it has stood still for a while.
func TestWhatIsLeftBehindIsShipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(nil)
		leader, other := newReplica(t, store, true), newReplica(t, store, false)
		leader.call()
		other.call()
		time.Sleep(10 * time.Second)
		leader.wantOut()
		other.stop()
		other.call() // it has died, and nobody has shipped this
		time.Sleep(3 * time.Second)
		leader.wantOut()
		time.Sleep(5 * time.Second)
		leader.want = append(leader.want, other.want[len(other.want)-2:]...)
		leader.wantOut()
		leader.stop()
	})
}
