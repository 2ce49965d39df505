package sqldb_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
)

func TestConformance(t *testing.T) {
	ledgertest.Run(t, func(t *testing.T, now func() time.Time) ledgertest.Backend {
		path := filepath.Join(t.TempDir(), "regent.db")
		return ledgertest.Backend{Durable: true, Open: func(t *testing.T) ledger.Store {
			store, err := sqldb.Open(context.Background(), sqldb.Config{Path: path, Now: now})
			if err != nil {
				t.Fatal(err)
			}
			return store
		}}
	})
}
