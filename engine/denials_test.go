package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"regent/engine/decisions"
	"regent/engine/policy"
	"regent/ledger"
)

// denialCounts are the counts of the journal's decision records, in order; 0 for a record of a single denial.
func (b *bench) denialCounts() (counts []int) {
	b.t.Helper()
	records, err := b.ledger.Store().Tail(ctx, 1000)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, record := range records {
		var event struct{ Result decisions.Result }
		if err := json.Unmarshal(record.Body, &event); err != nil {
			b.t.Fatal(err)
		}
		if event.Result.Allow || len(event.Result.Candidates) != 1 || event.Result.Candidates[0].Outcome != DeniedStep {
			b.t.Fatalf("not a denial: %s", record.Body)
		}
		counts = append(counts, event.Result.Count)
	}
	return counts
}

func TestEqualDenialsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(_ *Config, s *policy.Settings) { s.AllowedResidencies = &[]string{} })
		deny := func(n int, token string) {
			for range n {
				request := hosted("one")
				request.Token = token
				b.refused(request, CodeResidency, "RESIDENCY_NOT_ALLOWED")
			}
		}
		want := func(what string, singles int, counted ...int) {
			t.Helper()
			got := b.denialCounts()
			if len(got) != singles+len(counted) {
				t.Fatalf("%s: %d records, want %d and %d", what, len(got), singles, len(counted))
			}
			for i, count := range counted {
				if got[len(got)-len(counted)+i] != count {
					t.Fatalf("%s: counts %v, want %v at the end", what, got, counted)
				}
			}
		}
		deny(30, "a")
		want("within the second", denialsPerSecond)
		time.Sleep(time.Second)
		synctest.Wait()
		want("after it", denialsPerSecond, 20)

		deny(10, "a") // a new second
		deny(11, "b") // another credential is counted apart
		time.Sleep(time.Second)
		synctest.Wait()
		want("of two credentials", 3*denialsPerSecond+1, 1)

		deny(13, "a")
		b.flush() // stopping loses none
		want("at the end", 4*denialsPerSecond+2, 3)
		if len(b.diagnostics) != 30+21+13 {
			t.Errorf("%d diagnostics, want one of each denial", len(b.diagnostics))
		}
	})
}

// TestModelsThatAreMadeUpAreCountedTogether: a client in a loop over names cannot fill the journal either.
func TestModelsThatAreMadeUpAreCountedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		for i := range 1000 {
			request := hosted()
			request.Facts.Model = fmt.Sprint("made-up-", i)
			b.refused(request, CodeUnknownProvider, ReasonNoCandidates)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		records, err := b.ledger.Store().Tail(ctx, 2000)
		if err != nil || len(records) != denialsPerSecond+1 {
			t.Fatalf("%d records, %v, want %d", len(records), err, denialsPerSecond+1)
		}
		var last struct{ Result decisions.Result }
		if err := json.Unmarshal(records[denialsPerSecond].Body, &last); err != nil || last.Result.Count != 1000-denialsPerSecond {
			t.Errorf("the last record counts %d, %v, want %d", last.Result.Count, err, 1000-denialsPerSecond)
		}
	})
}

// TestACountedCallIsNotKept: the journal stands for it, and nothing is left to end.
func TestACountedCallIsNotKept(t *testing.T) {
	b := newBench(t, func(_ *Config, s *policy.Settings) { s.AllowedResidencies = &[]string{} })
	var last Request
	for range denialsPerSecond + 1 {
		last = called(1000, "one")
		if err := b.router.Serve(ctx, last, nil); err == nil {
			t.Fatal("admitted")
		}
	}
	if _, err := b.ledger.Store().Call(ctx, last.ID); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("the eleventh call: %v", err)
	}
}

// TestADenialThatCannotBeRecordedIsAFailure: nobody is answered of what the journal does not know.
func TestADenialThatCannotBeRecordedIsAFailure(t *testing.T) {
	store := &failing{}
	b := newBenchOn(t, func(inner ledger.Store) ledger.Store { store.Store = inner; return store },
		func(_ *Config, s *policy.Settings) { s.AllowedResidencies = &[]string{} })
	store.down.Store(true)
	b.refused(hosted("one"), CodeState, ReasonUnavailable)
	store.down.Store(false)
	b.refused(hosted("one"), CodeResidency, "RESIDENCY_NOT_ALLOWED")
	if got := b.denialCounts(); len(got) != 1 {
		t.Errorf("%d records, want 1", len(got))
	}
}

func TestManyKindsOfDenialsAreRecordedOneByOne(t *testing.T) {
	fold := denialFold{write: func(map[denialKey]*folded) {}}
	defer fold.flush()
	event := func() decisions.Event { return decisions.Event{} }
	for i := range foldedMax {
		fold.admit(denialKey{token: fmt.Sprint(i)}, event)
	}
	for range 2 * denialsPerSecond {
		if !fold.admit(denialKey{token: "one more"}, event) {
			t.Fatal("a denial was counted that is not remembered")
		}
	}
	if len(fold.counts) != foldedMax {
		t.Errorf("%d kinds are remembered, want at most %d", len(fold.counts), foldedMax)
	}
}
