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
