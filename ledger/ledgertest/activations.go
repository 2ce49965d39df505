package ledgertest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"regent/ledger"
)

// policy is an activation by a name, whose content has every byte there is.
func policy(name string) (digest [32]byte, content []byte) {
	content = []byte(name)
	for b := range 256 {
		content = append(content, byte(b))
	}
	return sha256.Sum256(content), content
}

// use keeps an activation, or says that it is in force.
func (b *bench) use(name string) {
	b.t.Helper()
	digest, content := policy(name)
	if err := b.ledger.Store().KeepActivation(ctx, digest, content); err != nil {
		b.t.Fatalf("keep %s: %v", name, err)
	}
}

// decide leaves a record of a decision that names an activation.
func (b *bench) decide(name string) {
	b.t.Helper()
	digest, _ := policy(name)
	body := fmt.Sprintf(`{"custom":{"activation":"%s"}}`, hex.EncodeToString(digest[:]))
	if err := b.ledger.Refuse(ctx, nil, []byte(body)); err != nil {
		b.t.Fatalf("decide by %s: %v", name, err)
	}
}

// wantKept checks that an activation is there as it was kept.
func (b *bench) wantKept(names ...string) {
	b.t.Helper()
	for _, name := range names {
		digest, want := policy(name)
		content, err := b.ledger.Store().Activation(ctx, digest)
		if err != nil || !bytes.Equal(content, want) {
			b.t.Fatalf("%s: %d bytes, %v; want %d", name, len(content), err, len(want))
		}
	}
}

func (b *bench) wantGone(names ...string) {
	b.t.Helper()
	for _, name := range names {
		digest, _ := policy(name)
		_, err := b.ledger.Store().Activation(ctx, digest)
		wantError(b.t, name, err, ledger.ErrNotFound)
	}
}

// wantOld checks which activations were last used before a moment.
func (b *bench) wantOld(before time.Time, names ...string) {
	b.t.Helper()
	var want [][32]byte
	for _, name := range names {
		digest, _ := policy(name)
		want = append(want, digest)
	}
	slices.SortFunc(want, func(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) })
	old, err := b.ledger.Store().OldActivations(ctx, before)
	if err != nil {
		b.t.Fatal(err)
	}
	wantEqual(b.t, "old activations", old, want)
}

// drop drops what was last used before a moment, and checks how many went.
func (b *bench) drop(before time.Time, want int) {
	b.t.Helper()
	n, err := b.ledger.Store().DropActivations(ctx, before)
	if err != nil {
		b.t.Fatal(err)
	}
	wantEqual(b.t, "dropped", n, want)
}

func keepsActivations(t *testing.T, b *bench) {
	b.touch()
	journal := b.streams()
	one, content := policy("one")
	keep := func(digest [32]byte, content []byte) error {
		return b.ledger.Store().KeepActivation(ctx, digest, content)
	}
	b.wantGone("one")
	wantError(t, "the use of one that is not there", keep(one, nil), ledger.ErrNotFound)
	lent := bytes.Clone(content)
	for _, content := range [][]byte{lent, lent, nil, []byte("canary")} { // what is there stays
		if err := keep(one, content); err != nil {
			t.Fatal(err)
		}
	}
	clear(lent) // is the caller's
	b.use("two")
	b.wantKept("one", "two")
	b.wantGone("three")
	three, _ := policy("three")
	wantError(t, "too big a one", keep(three, make([]byte, ledger.ActivationMax+1)), ledger.ErrInvalid)
	wantError(t, "too big a one that is there", keep(one, make([]byte, ledger.ActivationMax+1)), ledger.ErrInvalid)
	b.wantGone("three")
	if b.backend.Durable {
		if err := b.ledger.Close(); err != nil {
			t.Fatal(err)
		}
		b.open()
	}
	b.wantKept("one", "two")
	wantEqual(t, "the journal", b.streams(), journal) // none of this is in it
	if err := keep(three, bytes.Repeat([]byte("x"), ledger.ActivationMax)); err != nil {
		t.Fatalf("the biggest: %v", err)
	}
	kept, err := b.ledger.Store().Activation(ctx, three)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the biggest", len(kept), ledger.ActivationMax)
	b.wantKept("one", "two")
	b.verified()
}

func usesActivations(t *testing.T, b *bench) {
	began := b.Now()
	b.use("one")
	b.Advance(time.Hour)
	b.use("two")
	b.wantOld(began)
	b.wantOld(began.Add(time.Microsecond), "one")
	b.drop(began, 0)
	b.use("one")
	b.wantOld(b.Now())
	b.Step(-2 * time.Hour)
	b.use("one")
	b.use("two")
	b.use("three")
	b.wantOld(began.Add(time.Hour), "three")
	b.wantOld(began.Add(time.Hour+time.Microsecond), "one", "two", "three")
	b.drop(began.Add(time.Hour), 1)
	b.wantGone("three")
	b.wantKept("one", "two")
	b.drop(began.Add(2*time.Hour), 2)
	b.drop(began.Add(2*time.Hour), 0)
	b.wantGone("one", "two")
	b.use("one") // again
	b.wantKept("one")
}

func keepsActivationsAtOnce(t *testing.T, b *bench) {
	stores := []ledger.Store{b.ledger.Store(), b.ledger.Store()}
	if b.backend.Durable {
		other := b.backend.Open(t)
		defer func() { _ = other.Close() }() // which has nothing to lose
		stores[1] = other
	}
	const policies = 20
	var keepers sync.WaitGroup
	for _, store := range append(stores, stores...) {
		keepers.Go(func() {
			for i := range policies {
				digest, content := policy(fmt.Sprint(i))
				if err := store.KeepActivation(ctx, digest, content); err != nil {
					t.Errorf("keep one that others keep: %v", err)
				}
				if _, err := store.DropActivations(ctx, b.Now()); err != nil { // which are used now
					t.Errorf("drop beside keepers: %v", err)
				}
			}
		})
	}
	keepers.Wait()
	for i := range policies {
		b.wantKept(fmt.Sprint(i))
	}
	b.drop(b.Now().Add(time.Microsecond), policies)
}

func prunesActivations(t *testing.T, b *bench) {
	b.use("first")
	b.decide("first")
	b.Advance(time.Hour)
	b.use("unnamed")
	b.Advance(time.Microsecond)
	b.use("at the edge")
	b.Advance(48 * time.Hour)
	b.use("second")
	b.decide("second")
	b.use("third") // in force, and has decided nothing yet
	b.Advance(old - 24*time.Hour)
	report := b.prune() // which keeps from a day after "at the edge" was used
	wantEqual(t, "records", report.Records, 1)
	wantEqual(t, "activations", report.Activations, 2)
	b.wantGone("first", "unnamed")
	b.wantKept("at the edge", "second", "third")
	b.Advance(old)
	b.decide("third")
	b.Advance(old)
	report = b.prune()
	wantEqual(t, "activations when their records have gone", report.Activations, 2)
	b.wantGone("at the edge", "second")
	b.wantKept("third")
}

func keepsNamedActivations(t *testing.T, b *bench) {
	other, err := openLedger(b.Clock, shared{b.ledger.Store()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	mine := b.ledger
	b.ledger = other
	for _, name := range []string{"earlier", "last"} {
		b.use(name)
		b.decide(name)
	}
	b.use("unnamed")
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	b.ledger = mine
	for _, want := range []int{2, 0} {
		b.Advance(3 * old)
		b.touch()
		wantEqual(t, "activations", b.prune().Activations, want)
		b.wantKept("last") // the newest record of a process that is gone stays, and can be explained
		b.wantGone("earlier", "unnamed")
	}
}

func keepsWhatMayBeNamed(t *testing.T, b *bench) {
	b.use("long gone")
	b.Advance(time.Microsecond)
	b.use("a day before")
	b.Advance(25 * time.Hour)
	b.touch()
	b.Step(-time.Hour) // the first record is not the oldest
	for range 100 {
		b.touch()
	}
	b.Advance(3 * old)
	report := b.prune("file") // which has read nothing
	wantEqual(t, "records", report.Records, 0)
	wantEqual(t, "activations", report.Activations, 1)
	b.wantGone("long gone")
	b.wantKept("a day before")
	gone, err := b.ledger.Prune(ctx, ledger.Pruning{Reason: "old", Actor: "root", OlderThan: old, Sinks: []string{"file"}, Gone: []string{"file"}})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "records without the sink", gone.Records, 101)
	wantEqual(t, "activations without the sink", gone.Activations, 1)
	b.wantGone("a day before")
}
