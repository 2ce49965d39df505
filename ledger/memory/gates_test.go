package memory_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
)

// gated opens a ledger on a store with small bounds. admit admits under a rate and behind a circuit, each if it is named; end ends a hold.
func gated(t *testing.T, config memory.Config) (clock *ledgertest.Clock, admit func(rate, circuit string) (ledger.Hold, error), end func(ledger.Hold, ledger.Health)) {
	t.Helper()
	clock = ledgertest.NewClock()
	config.Now = clock.Now
	store, err := memory.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(ledger.Config{Store: store, Elapsed: clock.Elapsed, SweepEvery: time.Hour, TTL: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // a store in memory
	admit = func(rate, circuit string) (ledger.Hold, error) {
		a := ledger.Admission{Hold: uuid.Must(uuid.NewV7())}
		if rate != "" {
			a.Rates = []ledger.Rate{{Key: rate, Max: 1, Window: time.Minute}}
		}
		if circuit != "" {
			a.Circuit = &ledger.Circuit{Key: circuit, Threshold: 1, CoolDown: time.Minute}
		}
		return l.Admit(t.Context(), a)
	}
	end = func(hold ledger.Hold, health ledger.Health) {
		t.Helper()
		if err := l.Release(t.Context(), ledger.Ending{Hold: hold.ID, Token: hold.Token, Health: health}); err != nil {
			t.Fatal(err)
		}
	}
	return clock, admit, end
}

// Beyond its bound a store forgets rates whose window has closed, then those that counted longest ago.
func TestRatesAreBounded(t *testing.T) {
	clock, admit, _ := gated(t, memory.Config{Rates: 64})
	count := func(kind string, n int) (denied int) {
		t.Helper()
		for i := range n {
			_, err := admit(fmt.Sprint(kind, i), "")
			var denial *ledger.RateError
			switch {
			case errors.As(err, &denial):
				denied++
			case err != nil:
				t.Fatal(err)
			}
		}
		return denied
	}
	count("old", 10)
	clock.Advance(30 * time.Second)
	count("open", 50)
	clock.Advance(30 * time.Second)
	count("new", 10) // 70 in all: those that have closed make room
	if open, fresh := count("open", 50), count("new", 10); open != 50 || fresh != 10 {
		t.Errorf("remembered %d of 50 that are open, and %d of 10 new ones", open, fresh)
	}
	count("newer", 60) // none has closed: the oldest go
	if newer := count("newer", 60); newer != 60 {
		t.Errorf("remembered %d of the 60 newest", newer)
	}
}

// A store forgets closed circuits only. Where all are open it refuses another one rather than forget that something is down.
func TestCircuitsAreBounded(t *testing.T) {
	clock, admit, end := gated(t, memory.Config{Circuits: 8})
	fail := func(circuit string) {
		t.Helper()
		hold, err := admit("", circuit)
		if err != nil {
			t.Fatal(err)
		}
		end(hold, ledger.Failing)
	}
	for n := range 7 {
		fail(fmt.Sprint("down", n))
	}
	running, err := admit("", "running")
	if err != nil {
		t.Fatal(err)
	}
	fail("down7")
	if _, err := admit("", "another"); !errors.Is(err, ledger.ErrBusy) || errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("a ninth circuit: got %v, want busy", err)
	}
	if _, err := admit("one", ""); err != nil {
		t.Errorf("without a circuit: %v", err)
	}
	end(running, ledger.Failing) // was admitted in time: it opens above the bound
	var open *ledger.CircuitError
	for _, circuit := range []string{"running", "down0", "down7"} {
		if _, err := admit("", circuit); !errors.As(err, &open) {
			t.Errorf("%s: got %v, want an open circuit", circuit, err)
		}
	}
	clock.Advance(time.Minute)
	for _, circuit := range []string{"down0", "down1"} {
		probe, err := admit("", circuit)
		if err != nil {
			t.Fatal(err)
		}
		end(probe, ledger.Healthy)
	}
	if _, err := admit("", "another"); err != nil {
		t.Errorf("once two have closed: %v", err)
	}
}

func TestBoundsOfGatesAreChecked(t *testing.T) {
	for _, config := range []memory.Config{{Rates: -1}, {Rates: 65_537}, {Circuits: -1}, {Circuits: 16_385}} {
		if _, err := memory.Open(config); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("%+v: got %v", config, err)
		}
	}
	if _, err := memory.Open(memory.Config{Rates: memory.RatesMax, Circuits: memory.CircuitsMax}); err != nil {
		t.Error(err)
	}
}

// A report of a failure is refused where there is no room for its circuit; any other has nothing to remember.
func TestReportsAreBounded(t *testing.T) {
	clock := ledgertest.NewClock()
	store, err := memory.Open(memory.Config{Now: clock.Now, Circuits: 2})
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(ledger.Config{Store: store, Elapsed: clock.Elapsed, SweepEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // a store in memory
	report := func(circuit string, health ledger.Health) error {
		return l.Report(t.Context(), ledger.Report{Circuit: &ledger.Circuit{Key: circuit, Threshold: 1, CoolDown: time.Minute}, Health: health})
	}
	for _, circuit := range []string{"one", "two"} {
		if err := report(circuit, ledger.Failing); err != nil {
			t.Fatal(err)
		}
	}
	if err := report("three", ledger.Failing); !errors.Is(err, ledger.ErrBusy) || errors.Is(err, ledger.ErrUnavailable) {
		t.Errorf("a third circuit: got %v, want busy", err)
	}
	for _, health := range []ledger.Health{ledger.Neutral, ledger.Healthy, ledger.Unsaid} {
		if err := report("three", health); err != nil {
			t.Errorf("%q: %v", health, err)
		}
	}
	if err := report("two", ledger.Failing); err != nil {
		t.Errorf("a circuit that is known: %v", err)
	}
}
