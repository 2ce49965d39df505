package ledger_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
)

// What leaves no row of its own is not done again in a batch that was committed unknown, as long as a record tells the batch; a probe is
// known by itself, and so is a posting.
func TestAnUnknownCommitCountsOnce(t *testing.T) {
	clock := ledgertest.NewClock()
	store := &reissuing{Store: memory.New(clock.Now)}
	l, err := ledger.Open(ledger.Config{Store: store, Elapsed: clock.Elapsed, SweepEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // a store in memory
	id := func() uuid.UUID { return uuid.Must(uuid.NewV7()) }
	circuit := &ledger.Circuit{Key: "one", Threshold: 1, CoolDown: time.Minute}
	once := ledger.Admission{Hold: id(), Unheld: true, Rates: []ledger.Rate{{Key: "one", Max: 1, Window: time.Hour}}, Decision: []byte(`{}`)}

	store.armed = true
	hold, err := l.Admit(t.Context(), once)
	if err != nil || hold != (ledger.Hold{AdmittedAt: clock.Now()}) {
		t.Errorf("admitted: %+v, %v", hold, err)
	}
	again := once
	again.Hold, again.Decision = id(), nil
	var rate *ledger.RateError
	if _, err := l.Admit(t.Context(), again); !errors.As(err, &rate) {
		t.Errorf("another one: got %v, want a denial by a rate", err)
	}
	unused := ledger.Report{Attempt: once.Hold, AdmittedAt: hold.AdmittedAt, Rates: []string{"one"}, Unused: true}
	if err := l.Report(t.Context(), unused); err != nil {
		t.Error(err)
	}

	if err := l.Report(t.Context(), ledger.Report{Circuit: circuit, Health: ledger.Failing}); err != nil {
		t.Error(err)
	}
	clock.Advance(time.Minute)
	store.armed = true
	again.Hold, again.Circuit = id(), circuit
	if hold, err = l.Admit(t.Context(), again); err != nil || hold != (ledger.Hold{Probe: true, AdmittedAt: clock.Now()}) {
		t.Errorf("the probe: %+v, %v", hold, err)
	}
	store.armed = true
	if err := l.Report(t.Context(), ledger.Report{Attempt: again.Hold, Circuit: circuit, Health: ledger.Failing}); err != nil {
		t.Error(err)
	}
	rows, err := store.Load(t.Context(), ledger.Keys{Circuits: []string{"one"}, Rates: []string{"one"}})
	want := ledger.CircuitRow{Failures: 2, RetryAt: clock.Now().Add(time.Minute)}
	if err != nil || rows.Circuits["one"] != want || rows.Rates["one"].Count != 1 {
		t.Errorf("the circuit is %+v, the rate %+v, %v", rows.Circuits["one"], rows.Rates["one"], err)
	}

	for _, posting := range []ledger.Posting{{}, {ID: id()}} {
		posting.Accounts, posting.Usage = []ledger.Account{aliceTokens}, ledger.Usage{Output: 5}
		store.armed = true
		if err := l.Post(t.Context(), posting); err != nil {
			t.Error(err)
		}
	}
	if row, _, err := ledger.ReadAccount(t.Context(), store, aliceTokens); err != nil || row.Used != 10 {
		t.Errorf("used %d, %v", row.Used, err)
	}
}
