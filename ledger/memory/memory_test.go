package memory_test

import (
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

func TestHistoryStorm(t *testing.T) {
	ledgertest.RunHistory(t, func(now func() time.Time) ledger.Store { return memory.New(now) }, 500*ledgertest.Rounds(t, 10))
}
