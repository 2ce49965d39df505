package memory_test

import (
	"strconv"
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
)

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
