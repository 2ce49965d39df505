package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	hanging atomic.Bool               // transactions wait until their context ends
	pausing atomic.Int64              // the next transaction takes so long to begin, in nanoseconds
	lasting atomic.Int64              // the next transaction takes so long to commit, in nanoseconds
	replays atomic.Bool               // each transaction is lost before its commit, and decided again
	forgets atomic.Int32              // so many commits succeed, and their answers are lost
	poison  atomic.Pointer[uuid.UUID] // a hold whose saving fails
	entered chan struct{}             // gets a token when a transaction begins
	updates atomic.Int64              // transactions begun
}

var (
	errDisk = errors.New("the disk is gone")
	errLost = errors.New("the transaction was lost")
)

func (g *gated) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	g.updates.Add(1)
	select {
	case g.entered <- struct{}{}:
	default:
	}
	g.gate.Lock()
	defer g.gate.Unlock()
	time.Sleep(time.Duration(g.pausing.Swap(0)))
	defer func() { time.Sleep(time.Duration(g.lasting.Swap(0))) }()
	if g.hanging.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if g.failing.Load() {
		return errDisk
	}
	if g.replays.Load() {
		err := g.Store.Update(ctx, func(tx ledger.Tx) error { return decide(edited{tx, lose}) })
		if err != nil && !errors.Is(err, errLost) {
			return err
		}
	}
	err := g.Store.Update(ctx, func(tx ledger.Tx) error { return decide(edited{tx, g.refusePoison}) })
	if err == nil && g.forgets.Load() > 0 {
		g.forgets.Add(-1)
		return errLost
	}
	return err
}

// edited is a transaction that asks before it saves.
type edited struct {
	ledger.Tx
	check func(*ledger.Changes) error
}

func (e edited) Save(ctx context.Context, changes *ledger.Changes) error {
	if err := e.check(changes); err != nil {
		return err
	}
	return e.Tx.Save(ctx, changes)
}

func lose(*ledger.Changes) error { return errLost }

func (g *gated) refusePoison(changes *ledger.Changes) error {
	if id := g.poison.Load(); id != nil {
		if _, ok := changes.Holds[*id]; ok {
			return errDisk
		}
	}
	return nil
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
	before := store.updates.Load()
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
	if got := store.updates.Load() - before; got != 9 {
		t.Errorf("%d transactions were tried, want 9: the batch, and eight alone", got)
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

func TestAStoreThatHangsIsNotWaitedForByEachInTurn(t *testing.T) {
	l, store, _ := open(t, ledger.Config{Timeout: 20 * time.Millisecond})
	release := stalled(t, l, store)
	store.hanging.Store(true)
	before := store.updates.Load()
	results := make(chan error, 300)
	var wg sync.WaitGroup
	for range 300 { // more than one batch
		wg.Go(func() { _, err := l.Admit(ctx, admission(1)); results <- err })
	}
	waitFor(t, l, 300)
	release()
	wg.Wait()
	close(results)
	for err := range results {
		if !errors.Is(err, ledger.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
	}
	if got := store.updates.Load() - before; got != 2 {
		t.Errorf("%d time-outs were waited for, want one for each of two batches", got)
	}
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

// TestWhoHasGoneWritesNothing: neither does an operation whose context has ended before it began.
func TestWhoHasGoneWritesNothing(t *testing.T) {
	l, store, _ := open(t, ledger.Config{})
	before := store.updates.Load()
	gone, leave := context.WithCancelCause(ctx)
	leave(errDisk)
	for range 10 {
		if _, err := l.Admit(gone, admission(9)); !errors.Is(err, errDisk) {
			t.Errorf("got %v", err)
		}
	}
	if got := store.updates.Load(); got != before {
		t.Errorf("%d transactions", got-before)
	}
}

// TestAnAdmissionThatIsBeingWrittenIsAnswered: whoever stops waiting must learn of a hold that they have got.
func TestAnAdmissionThatIsBeingWrittenIsAnswered(t *testing.T) {
	l, store, _ := open(t, ledger.Config{})
	select {
	case <-store.entered: // an earlier transaction's
	default:
	}
	store.gate.Lock()
	waiting, cancel := context.WithCancel(ctx)
	type answer struct {
		hold ledger.Hold
		err  error
	}
	answers := make(chan answer, 1)
	go func() { hold, err := l.Admit(waiting, admission(9)); answers <- answer{hold, err} }()
	<-store.entered
	cancel()
	store.gate.Unlock()
	got := <-answers
	if got.err != nil || got.hold.Token == 0 {
		t.Fatalf("got %+v, %v, want the hold", got.hold, got.err)
	}
	wantHeld(t, l, 9)
	if err := l.Release(ctx, ledger.Ending{Hold: got.hold.ID, Token: got.hold.Token}); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, l, 0)
}

// panicking is a store that panics.
type panicking struct{ ledger.Store }

func (panicking) Update(context.Context, func(ledger.Tx) error) error {
	panic("the store has panicked")
}

// TestAPanicWhileWritingEndsTheProcess: a server recovers from it in the goroutine of its request, which is the one that writes; and then
// nobody would ever have the turn again.
func TestAPanicWhileWritingEndsTheProcess(t *testing.T) {
	const child = "REGENT_TEST_PANIC"
	if os.Getenv(child) == "" {
		command := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		command.Env = append(os.Environ(), child+"=1")
		said, err := command.CombinedOutput()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || !bytes.Contains(said, []byte("ledger: the store has panicked")) {
			t.Errorf("got %v: %s", err, said)
		}
		return
	}
	l, err := ledger.Open(ledger.Config{Store: panicking{memory.New(time.Now)}, SweepEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = recover() }()
	_, _ = l.Admit(ctx, admission(1))
}

// TestRenewalsGoBeforeAdmissions: a denial tells of a hold's new deadline, although it was asked for before the renewal.
func TestRenewalsGoBeforeAdmissions(t *testing.T) {
	l, store, _ := open(t, ledger.Config{TTL: time.Minute})
	tight := func() ledger.Admission {
		a := admission(100)
		a.Claims[0].Limits[0] = ledger.Limit{Window: ledger.Fixed{Length: time.Minute}, Max: 100}
		return a
	}
	hold, err := l.Admit(ctx, tight())
	if err != nil {
		t.Fatal(err)
	}
	release := stalled(t, l, store)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := l.Admit(ctx, tight())
		var denial *ledger.LimitError
		if !errors.As(err, &denial) || denial.RetryAfter != time.Hour+time.Minute {
			t.Errorf("the admission: %+v, want a denial until the renewed hold is forgotten", err)
		}
	})
	waitFor(t, l, 1)
	wg.Go(func() {
		if _, err := l.Renew(ctx, hold.ID, hold.Token, time.Hour); err != nil {
			t.Errorf("the renewal: %v", err)
		}
	})
	waitFor(t, l, 2)
	wg.Go(func() {
		if err := l.Refuse(ctx, nil, []byte(`{}`)); err != nil {
			t.Error(err)
		}
	})
	waitFor(t, l, 3)
	release()
	wg.Wait()
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
	touch := func() error { return l.Refuse(ctx, nil, []byte(`{}`)) }
	outage := func(length time.Duration) {
		t.Helper()
		store.failing.Store(true)
		if err := touch(); !errors.Is(err, ledger.ErrUnavailable) {
			t.Fatalf("in the outage: %v", err)
		}
		clock.Advance(length)
		store.failing.Store(false)
	}
	outage(10 * time.Minute)
	if hold, err = l.Renew(ctx, hold.ID, hold.Token, time.Minute); err != nil {
		t.Fatalf("a renewal after a long outage: %v", err)
	}
	if got, want := l.Status().SuspendedUntil, clock.Now().Add(time.Minute); !got.Equal(want) {
		t.Errorf("health says that expiry is suspended until %v, want %v", got, want)
	}
	wantHeld(t, l, 5)

	// The suspension ends, and half a TTL without the store suspends nothing more.
	clock.Advance(time.Minute - 30*time.Second)
	outage(30 * time.Second)
	if _, err := l.Renew(ctx, hold.ID, hold.Token, time.Minute); !errors.Is(err, ledger.ErrExpired) {
		t.Errorf("a renewal after a short outage: %v", err)
	}
	wantHeld(t, l, 0)
}

// TestAStallSuspendsExpiry: a transaction that takes long and succeeds, as after a process was stopped and goes on, finds holds
// due whose renewals and settlements could not be written. They are not charged for that.
func TestAStallSuspendsExpiry(t *testing.T) {
	for name, test := range map[string]struct {
		stall      time.Duration
		committing bool // the transaction before the renewal's stalls, once it has looked at the clock
		suspended  bool
	}{
		"more than half a TTL":            {40 * time.Second, false, true},
		"several TTLs":                    {5 * time.Minute, false, true},
		"less":                            {30 * time.Second, false, false},
		"more than half a TTL, at commit": {40 * time.Second, true, true},
		"several TTLs, at commit":         {5 * time.Minute, true, true},
		"less, at commit":                 {30 * time.Second, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &gated{Store: memory.New(nil), entered: make(chan struct{}, 1)}
				l := openInBubble(t, ledger.Config{Store: store, TTL: time.Minute})
				defer closeLedger(t, l)
				renewed, dead := admission(5), admission(7)
				hold, err := l.Admit(ctx, renewed)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := l.Admit(ctx, dead); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Second)
				if test.committing {
					store.lasting.Store(int64(test.stall))
					go func() { _ = l.Refuse(ctx, nil, []byte("{}")) }()
					synctest.Wait()
				} else {
					store.pausing.Store(int64(test.stall))
				}
				if hold, err = l.Renew(ctx, hold.ID, hold.Token, 0); err != nil {
					t.Fatalf("a renewal after a stall of %v: %v", test.stall, err)
				}
				if balances, err := l.Read(ctx, dead.Claims); err != nil || balances[0].Held != 12 {
					t.Errorf("held %+v, %v, want both holds", balances, err)
				}
				if got, want := l.Status().SuspendedUntil, time.Now().Add(time.Minute); test.suspended != got.Equal(want) {
					t.Errorf("suspended until %v, now + TTL is %v", got, want)
				}
				time.Sleep(59 * time.Second)
				if _, err := l.Settle(ctx, ledger.Ending{Hold: hold.ID, Token: hold.Token}, ledger.Consumption{Usage: &ledger.Usage{Output: 4}}); err != nil {
					t.Errorf("a settlement after a stall: %v", err)
				}
				time.Sleep(2 * time.Second) // the suspension has ended, and a sweep has come by
				row, _, err := ledger.ReadAccount(ctx, l.Store(), account)
				if err != nil || row.Used != 4+7 || row.Held != 0 {
					t.Errorf("used %d, held %d, %v, want what was settled and the hold that nobody renewed", row.Used, row.Held, err)
				}
			})
		})
	}
}

// openInBubble opens a ledger on the bubble's own clock. What runs in a bubble is closed before it ends.
func openInBubble(t *testing.T, config ledger.Config) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func closeLedger(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestAWriterThatSweepsSuspendsNothing: time in which there was nothing to write is no stall.
func TestAWriterThatSweepsSuspendsNothing(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			l := openInBubble(t, ledger.Config{Store: memory.New(nil), TTL: ttl})
			defer closeLedger(t, l)
			if _, err := l.Admit(ctx, admission(5)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(ttl * 11 / 10)
			row, _, err := ledger.ReadAccount(ctx, l.Store(), account)
			if err != nil || row.Used != 5 || row.Held != 0 || !l.Status().SuspendedUntil.IsZero() {
				t.Errorf("TTL %v: used %d, held %d, suspended until %v, %v", ttl, row.Used, row.Held, l.Status().SuspendedUntil, err)
			}
		})
	}
}

func TestIdleTimeSuspendsNothing(t *testing.T) {
	l, _, clock := open(t, ledger.Config{TTL: time.Minute})
	hold, err := l.Admit(ctx, admission(5))
	if err != nil {
		t.Fatal(err)
	}
	clock.Advance(24 * time.Hour)
	if _, err := l.Renew(ctx, hold.ID, hold.Token, time.Minute); !errors.Is(err, ledger.ErrExpired) {
		t.Errorf("got %v", err)
	}
	if got := l.Status().SuspendedUntil; !got.IsZero() {
		t.Errorf("suspended until %v", got)
	}
}

// TestADecisionMayRunTwice: a store that loses a transaction before its commit decides again from the start.
func TestADecisionMayRunTwice(t *testing.T) {
	expired := 0
	l, store, clock := open(t, ledger.Config{TTL: time.Minute, OnExpire: func(ledger.Expiry) { expired++ }})
	store.replays.Store(true)
	first := admission(5)
	first.Decision = []byte(`{}`)
	hold, err := l.Admit(ctx, first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Admit(ctx, admission(3)); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, l, 8)
	if hold, err = l.Renew(ctx, hold.ID, hold.Token, time.Hour); err != nil || hold.Token != 2 {
		t.Fatalf("renewal: %+v, %v", hold, err)
	}
	charge, err := l.Settle(ctx, ledger.Ending{Hold: hold.ID, Token: hold.Token}, ledger.Consumption{Usage: &ledger.Usage{Output: 4}})
	if err != nil || charge.Tokens != 4 {
		t.Fatalf("settlement: %+v, %v", charge, err)
	}
	clock.Advance(time.Minute)
	if err := l.Post(ctx, ledger.Posting{Accounts: []ledger.Account{account}, Usage: ledger.Usage{Output: 1}}); err != nil {
		t.Fatal(err)
	}
	row, _, err := ledger.ReadAccount(ctx, l.Store(), account)
	if err != nil || row.Used != 4+3+1 || row.Held != 0 {
		t.Errorf("used %d, held %d, %v", row.Used, row.Held, err)
	}
	if expired != 1 {
		t.Errorf("%d expiries were told, want 1", expired)
	}
	records, err := l.Store().Tail(ctx, 100)
	if err != nil || len(records) != 1+2+2+1 {
		t.Errorf("%d records, %v, want the decision, two ends with their charges, and a charge", len(records), err)
	}
}

// TestALostAnswerIsGivenAgain: whoever repeats an operation whose commit was not acknowledged finds it done, once.
func TestALostAnswerIsGivenAgain(t *testing.T) {
	l, store, _ := open(t, ledger.Config{})
	a := admission(5)
	store.forgets.Store(1)
	if _, err := l.Admit(ctx, a); !errors.Is(err, ledger.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	hold, err := l.Admit(ctx, a)
	if err != nil || hold.Token != 1 {
		t.Fatalf("the admission again: %+v, %v", hold, err)
	}
	wantHeld(t, l, 5)
	settle := func() (ledger.Charge, error) {
		return l.Settle(ctx, ledger.Ending{Hold: hold.ID, Token: hold.Token}, ledger.Consumption{Usage: &ledger.Usage{Output: 4}})
	}
	store.forgets.Store(1)
	if _, err := settle(); !errors.Is(err, ledger.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	if charge, err := settle(); err != nil || charge.Tokens != 4 {
		t.Fatalf("the settlement again: %+v, %v", charge, err)
	}
	row, _, err := ledger.ReadAccount(ctx, l.Store(), account)
	if err != nil || row.Used != 4 || row.Held != 0 {
		t.Errorf("used %d, held %d, %v", row.Used, row.Held, err)
	}
}

// TestABatchWhoseAnswerIsLostIsDoneOnce: the writer asks again for each of its operations.
func TestABatchWhoseAnswerIsLostIsDoneOnce(t *testing.T) {
	l, store, _ := open(t, ledger.Config{})
	release := stalled(t, l, store)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := l.Admit(ctx, admission(1)); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, l, 20)
	store.forgets.Store(2) // the transaction that stalls is the first
	release()
	wg.Wait()
	wantHeld(t, l, 20)
	if got := store.forgets.Load(); got != 0 {
		t.Errorf("%d answers were not lost", got)
	}
}

func TestCloseRefusesAndWorksOff(t *testing.T) {
	l, store, _ := open(t, ledger.Config{})
	release := stalled(t, l, store)
	var wg sync.WaitGroup
	for range 300 { // more than one batch
		wg.Go(func() {
			if _, err := l.Admit(ctx, admission(1)); err != nil {
				t.Errorf("what waited: %v", err)
			}
		})
	}
	waitFor(t, l, 300)
	closed := make(chan error, 1)
	go func() { closed <- l.Close() }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		late, cancel := context.WithTimeout(ctx, time.Millisecond)
		_, err := l.Admit(late, admission(1))
		cancel()
		if errors.Is(err, ledger.ErrClosed) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("a closing ledger takes what comes: %v", err)
		}
	}
	release()
	wg.Wait()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	wantHeld(t, l, 300)
	if _, err := l.Admit(ctx, admission(1)); !errors.Is(err, ledger.ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// TestAHoldCanAlwaysBeCharged: no charge leaves so little room in an account that an expiry could not be posted.
func TestAHoldCanAlwaysBeCharged(t *testing.T) {
	l, _, clock := open(t, ledger.Config{TTL: time.Minute})
	money := ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.USD}
	admit := func(nano int64) (ledger.Hold, error) {
		return l.Admit(ctx, ledger.Admission{
			Hold: uuid.Must(uuid.NewV7()), Reserve: ledger.Reserve{NanoUSD: &nano}, Price: &ledger.Price{Rates: ledger.Rates{Output: 1000 * 1e6}},
			Claims: []ledger.Claim{{Account: money}},
		})
	}
	standing, err := admit(100)
	if err != nil {
		t.Fatal(err)
	}
	greedy, err := admit(50)
	if err != nil {
		t.Fatal(err)
	}
	post := func(nano int64) error {
		return l.Post(ctx, ledger.Posting{Accounts: []ledger.Account{money}, NanoUSD: nano})
	}
	if err := post(ledger.NanoUSDMax - 149); !errors.Is(err, ledger.ErrOverflow) {
		t.Fatalf("a charge into what is held: %v", err)
	}
	if err := post(ledger.NanoUSDMax - 150); err != nil {
		t.Fatal(err)
	}
	end := ledger.Ending{Hold: greedy.ID, Token: greedy.Token}
	if _, err := l.Settle(ctx, end, ledger.Consumption{Usage: &ledger.Usage{Output: 1}}); !errors.Is(err, ledger.ErrOverflow) {
		t.Fatalf("an overage into what is held: %v", err)
	}
	if charge, err := l.Settle(ctx, end, ledger.Consumption{}); err != nil || charge.NanoUSD != 50 {
		t.Fatalf("%+v, %v", charge, err)
	}
	if _, err := admit(1); !errors.Is(err, ledger.ErrOverflow) {
		t.Fatalf("an admission without room: %v", err)
	}
	clock.Advance(time.Minute)
	if _, err := l.Renew(ctx, standing.ID, standing.Token, time.Minute); !errors.Is(err, ledger.ErrExpired) {
		t.Fatal(err)
	}
	row, _, err := ledger.ReadAccount(ctx, l.Store(), money)
	if err != nil || row.Used != ledger.NanoUSDMax || row.Held != 0 {
		t.Errorf("used %d, held %d, %v", row.Used, row.Held, err)
	}
}

func TestANegativePriceIsRefused(t *testing.T) {
	l, _, _ := open(t, ledger.Config{})
	a := admission(1)
	a.Price = &ledger.Price{Rates: ledger.Rates{Reasoning: -1}}
	if _, err := l.Admit(ctx, a); !errors.Is(err, ledger.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	wantHeld(t, l, 0)
}

// TestAFailoverTellsWhatItCharged: also if its answer has to be given again.
func TestAFailoverTellsWhatItCharged(t *testing.T) {
	l, _, _ := open(t, ledger.Config{})
	first, err := l.Admit(ctx, admission(10))
	if err != nil {
		t.Fatal(err)
	}
	second := admission(10)
	second.Replaces = &ledger.Replacement{
		Ending:      ledger.Ending{Hold: first.ID, Token: first.Token},
		Consumption: &ledger.Consumption{Usage: &ledger.Usage{UncachedInput: 3}, Estimated: true},
	}
	for range 2 {
		hold, err := l.Admit(ctx, second)
		if want := (ledger.Charge{Tokens: 3, Estimated: true}); err != nil || hold.Replaced != want {
			t.Errorf("got %+v, %v, want %+v", hold.Replaced, err, want)
		}
	}
}
