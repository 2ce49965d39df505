package memory_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
)

// What is done once is remembered up to a bound, the newest of it.
func TestAmendmentsAreBounded(t *testing.T) {
	const most, more = 1 << 16, 100
	store := memory.New(nil)
	id := func(i int) uuid.UUID { return uuid.UUID{byte(i), byte(i >> 8), byte(i >> 16)} }
	kept := func(from, to int) int {
		t.Helper()
		var keys ledger.Keys
		for i := from; i < to; i++ {
			keys.Amendments = append(keys.Amendments, id(i))
		}
		rows, err := store.Load(t.Context(), keys)
		if err != nil {
			t.Fatal(err)
		}
		return len(rows.Amendments)
	}
	for i := range most + more {
		changes := &ledger.Changes{Amendments: map[uuid.UUID]ledger.AmendmentRow{id(i): {}}}
		if err := store.Update(t.Context(), func(tx ledger.Tx) error { return tx.Save(t.Context(), changes) }); err != nil {
			t.Fatal(err)
		}
	}
	if old, fresh := kept(0, more), kept(more, most+more); old != 0 || fresh != most {
		t.Errorf("kept %d of the oldest, and %d of the %d newest", old, fresh, most)
	}
}

func TestConformance(t *testing.T) {
	ledgertest.Run(t, func(_ *testing.T, now func() time.Time) ledgertest.Backend {
		return ledgertest.Backend{Open: func(*testing.T) ledger.Store { return memory.New(now) }}
	})
}

// One long history, in which accounts are old, and many short ones, in which they are new.
func TestHistoryStorm(t *testing.T) {
	open := func(now func() time.Time) ledger.Store { return memory.New(now) }
	rounds := ledgertest.Rounds(t, 10)
	t.Run("long", func(t *testing.T) { ledgertest.RunHistory(t, open, 500*rounds) })
	for i := range 10 * rounds {
		t.Run("short/"+strconv.Itoa(i), func(t *testing.T) { ledgertest.RunHistory(t, open, 50) })
	}
}
