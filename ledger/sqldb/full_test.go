package sqldb_test

import (
	"bytes"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
)

const (
	noRoom  = 1
	allRoom = 1 << 30
)

// newFile opens a ledger on an SQLite file.
func newFile(t *testing.T) *bench {
	t.Helper()
	b := &bench{Clock: ledgertest.NewClock(), t: t}
	b.store = open(t, sqldb.Config{Path: filepath.Join(t.TempDir(), "regent.db"), Now: b.Now})
	b.ledger = b.start(b.store)
	return b
}

// bigAdmission is one of 10 tokens whose decision takes some pages.
func bigAdmission() ledger.Admission {
	a := forCall(admission(user("alice"), 10, 1_000_000))
	a.Decision = []byte(`{"padding":"` + string(bytes.Repeat([]byte("x"), 16<<10)) + `"}`)
	return a
}

// verify checks the books while holds are live.
func (b *bench) verify() {
	b.t.Helper()
	report, err := ledger.Verify(ctx, b.store)
	b.must("verify", err)
	for _, difference := range report.Differences {
		b.t.Error(difference)
	}
}

// TestADiskThatIsFull: what finds no room on the disk is refused, nothing of it is written, and what was held is settled when there is
// room again.
func TestADiskThatIsFull(t *testing.T) {
	b := newFile(t)
	held := []ledger.Hold{b.admit(bigAdmission()), b.admit(bigAdmission()), b.admit(bigAdmission())}
	b.store.LimitPages(noRoom)
	var refused ledger.Admission
	for len(held) < 100 && refused.Call == nil {
		a := bigAdmission()
		hold, err := b.ledger.Admit(ctx, a)
		if err == nil {
			held = append(held, hold)
			continue
		}
		wantError(t, "admit on a full disk", err, ledger.ErrUnavailable)
		refused = a
	}
	wantError(t, "the ledger's status", b.ledger.Status().Err, ledger.ErrUnavailable)
	b.want(user("alice"), 0, 10*int64(len(held)))
	b.verify()
	_, err := b.store.Call(ctx, refused.Call.ID)
	wantError(t, "the call that was refused", err, ledger.ErrNotFound)

	b.store.LimitPages(allRoom)
	b.settle(b.admit(refused), 7)
	for _, hold := range held {
		b.settle(b.renew(hold), 7)
	}
	wantEqual(t, "the ledger's status", b.ledger.Status().Err, nil)
	b.want(user("alice"), 7*int64(len(held)+1), 0)
	b.audit()
	numbers(t, b.store)
}

// TestADiskThatFillsInABatch: callers that share a batch with what finds no room are told of their own operation what became of it.
func TestADiskThatFillsInABatch(t *testing.T) {
	b := newFile(t)
	var held []ledger.Hold
	for range 16 {
		held = append(held, b.admit(forCall(admission(user("alice"), 10, 1_000_000))))
	}
	b.store.LimitPages(noRoom)
	var mu sync.Mutex
	var callers sync.WaitGroup
	admitted, left, refused := []ledger.Hold{}, []ledger.Hold{}, 0
	answered := func(err error, hold ledger.Hold, done, not *[]ledger.Hold) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil && done != nil:
			*done = append(*done, hold)
		case errors.Is(err, ledger.ErrUnavailable):
			refused++
			if not != nil {
				*not = append(*not, hold)
			}
		case err != nil:
			t.Error(err)
		}
	}
	for _, hold := range held {
		callers.Go(func() {
			_, err := b.ledger.Settle(ctx, ending(hold), output(7))
			answered(err, hold, nil, &left)
		})
		callers.Go(func() {
			hold, err := b.ledger.Admit(ctx, bigAdmission())
			answered(err, hold, &admitted, nil)
		})
	}
	callers.Wait()
	if refused == 0 {
		t.Fatal("there was room for all")
	}
	settled := int64(len(held) - len(left))
	b.want(user("alice"), 7*settled, 10*int64(len(left)+len(admitted)))
	b.verify()

	b.store.LimitPages(allRoom)
	for _, hold := range append(left, admitted...) {
		b.settle(hold, 7)
	}
	b.want(user("alice"), 7*int64(len(held)+len(admitted)), 0)
	b.audit()
	numbers(t, b.store)
	t.Logf("%d settled, %d admitted, %d refused", settled, len(admitted), refused)
}

// TestAFullDiskExpiresNobody: holds are renewed where there is no room for new ones, and one that cannot be is not charged for it.
func TestAFullDiskExpiresNobody(t *testing.T) {
	b := newFile(t)
	hold := b.admit(bigAdmission())
	b.store.LimitPages(noRoom)
	for range 10 {
		for {
			if _, err := b.ledger.Admit(ctx, bigAdmission()); err != nil {
				break
			}
		}
		if renewed, err := b.ledger.Renew(ctx, hold.ID, hold.Token, 0); err == nil {
			hold = renewed
		} else if !errors.Is(err, ledger.ErrUnavailable) {
			t.Fatal(err)
		}
		b.Advance(time.Minute - time.Microsecond)
	}
	b.store.LimitPages(allRoom)
	b.touch()
	b.settle(b.renew(hold), 7)
}
