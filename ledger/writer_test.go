package ledger_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// gated is a store whose transactions can be made to wait or to fail.
type gated struct {
	ledger.Store
	gate    sync.Mutex // held by a test to make transactions wait
	failing atomic.Bool
	poison  atomic.Pointer[uuid.UUID] // a hold whose saving fails
	entered chan struct{}             // gets a token when a transaction begins
}

var errDisk = errors.New("the disk is gone")

func (g *gated) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	g.gate.Lock()
	defer g.gate.Unlock()
	if g.failing.Load() {
		return errDisk
	}
	return g.Store.Update(ctx, func(tx ledger.Tx) error { return decide(poisoned{tx, g}) })
}

// poisoned is a transaction that refuses to save the poisoned hold.
type poisoned struct {
	ledger.Tx
	gated *gated
}

func (p poisoned) Save(ctx context.Context, changes *ledger.Changes) error {
	if id := p.gated.poison.Load(); id != nil {
		if _, ok := changes.Holds[*id]; ok {
			return errDisk
		}
	}
	return p.Tx.Save(ctx, changes)
}

func open(t *testing.T, config ledger.Config) (*ledger.Ledger, *gated, *ledgertest.Clock) {
	t.Helper()
	clock := ledgertest.NewClock()
	store := &gated{Store: memory.New(clock.Now), entered: make(chan struct{}, 1)}
	config.Store, config.Elapsed, config.SweepEvery = store, clock.Elapsed, time.Hour
	l, err := ledger.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, store, clock
}

var account = ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.Tokens}

func admission(n int64) ledger.Admission {
	return ledger.Admission{Hold: uuid.Must(uuid.NewV7()), Reserve: ledger.Reserve{Tokens: &n}, Claims: []ledger.Claim{{
		Account: account, Limits: []ledger.Limit{{Window: ledger.Fixed{Length: time.Hour}, Max: 1 << 40}},
	}}}
}

func wantHeld(t *testing.T, l *ledger.Ledger, want int64) {
	t.Helper()
	row, _, err := ledger.ReadAccount(ctx, l.Store(), account)
	if err != nil || row.Held != want {
		t.Fatalf("held %d, %v, want %d", row.Held, err, want)
	}
}

// waitFor waits until so many operations wait.
func waitFor(t *testing.T, l *ledger.Ledger, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); l.Status().Waiting < n; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d operations wait, want %d", l.Status().Waiting, n)
		}
	}
}

// stalled makes the writer wait inside a transaction, so that what comes next waits in the queue.
func stalled(t *testing.T, l *ledger.Ledger, store *gated) (release func()) {
	t.Helper()
	select {
	case <-store.entered: // an earlier transaction's
	default:
	}
	store.gate.Lock()
	done := make(chan error, 1)
	go func() { done <- l.Refuse(ctx, nil, []byte(`{}`)) }()
	<-store.entered
	return func() {
		store.gate.Unlock()
		if err := <-done; err != nil && !errors.Is(err, ledger.ErrUnavailable) {
			t.Error(err)
		}
	}
}

func TestOnePoisonedOperationTakesNoOtherWithIt(t *testing.T) {
	l, store, _ := open(t, ledger.Config{})
	release := stalled(t, l, store)
	poison := admission(7)
	store.poison.Store(&poison.Hold)
	results := make(chan error, 20)
	var poisonErr error
	var wg sync.WaitGroup
	wg.Go(func() { _, poisonErr = l.Admit(ctx, poison) })
	for range 20 {
		wg.Go(func() { _, err := l.Admit(ctx, admission(1)); results <- err })
	}
	waitFor(t, l, 21)
	release()
	wg.Wait()
	close(results)
	for err := range results {
		if err != nil {
			t.Errorf("an innocent admission: %v", err)
		}
	}
	if !errors.Is(poisonErr, ledger.ErrUnavailable) {
		t.Errorf("the poisoned one: %v", poisonErr)
	}
	wantHeld(t, l, 20)
}

func TestAStoreThatIsGoneFailsAllAndComesBack(t *testing.T) {
	l, store, _ := open(t, ledger.Config{})
	release := stalled(t, l, store)
	store.failing.Store(true)
	results := make(chan error, 100)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { _, err := l.Admit(ctx, admission(1)); results <- err })
	}
	waitFor(t, l, 100)
	release()
	wg.Wait()
	close(results)
	for err := range results {
		if !errors.Is(err, ledger.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
	}
	if l.Status().Err == nil {
		t.Error("health does not say that the store is gone")
	}
	store.failing.Store(false)
	if _, err := l.Admit(ctx, admission(1)); err != nil || l.Status().Err != nil {
		t.Errorf("after it came back: %v, health %v", err, l.Status().Err)
	}
	wantHeld(t, l, 1)
}

func TestTheQueueIsBounded(t *testing.T) {
	l, store, _ := open(t, ledger.Config{QueueMax: 3})
	release := stalled(t, l, store)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := l.Admit(ctx, admission(1)); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, l, 3)
	if _, err := l.Admit(ctx, admission(1)); !errors.Is(err, ledger.ErrBusy) {
		t.Errorf("got %v, want busy", err)
	}
	release()
	wg.Wait()
	wantHeld(t, l, 3)
}

func TestACancelledWaiterHoldsNothing(t *testing.T) {
	l, store, _ := open(t, ledger.Config{})
	release := stalled(t, l, store)
	waiting, cancel := context.WithCancel(ctx)
	result := make(chan error, 1)
	go func() { _, err := l.Admit(waiting, admission(9)); result <- err }()
	waitFor(t, l, 1)
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	release()
	if err := l.Refuse(ctx, nil, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, l, 0)
}

func TestWhatEndsAHoldGoesFirst(t *testing.T) {
	l, store, _ := open(t, ledger.Config{})
	tight := func() ledger.Admission {
		a := admission(100)
		a.Claims[0].Limits[0].Max = 100
		return a
	}
	hold, err := l.Admit(ctx, tight())
	if err != nil {
		t.Fatal(err)
	}
	release := stalled(t, l, store)
	var wg sync.WaitGroup
	wg.Go(func() { // queued first, decided last: it fits only then
		if _, err := l.Admit(ctx, tight()); err != nil {
			t.Errorf("the admission: %v", err)
		}
	})
	waitFor(t, l, 1)
	wg.Go(func() {
		if err := l.Release(ctx, ledger.Ending{Hold: hold.ID, Token: hold.Token}); err != nil {
			t.Errorf("the release: %v", err)
		}
	})
	waitFor(t, l, 2)
	release()
	wg.Wait()
	wantHeld(t, l, 100)
}

func TestAnOutageSuspendsExpiry(t *testing.T) {
	l, store, clock := open(t, ledger.Config{TTL: time.Minute})
	hold, err := l.Admit(ctx, admission(5))
	if err != nil {
		t.Fatal(err)
	}
	store.failing.Store(true)
	_ = l.Refuse(ctx, nil, []byte(`{}`)) // notices the outage
	clock.Advance(10 * time.Minute)
	store.failing.Store(false)
	if _, err := l.Renew(ctx, hold.ID, hold.Token, time.Minute); err != nil {
		t.Errorf("a renewal after the outage: %v", err)
	}
	wantHeld(t, l, 5)
}

func TestCloseRefuses(t *testing.T) {
	l, _, _ := open(t, ledger.Config{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Admit(ctx, admission(1)); !errors.Is(err, ledger.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
