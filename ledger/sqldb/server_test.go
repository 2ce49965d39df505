package sqldb_test

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
)

var n atomic.Int64

func TestServerConformance(t *testing.T) {
	url := os.Getenv("PGX")
	if url == "" {
		t.Skip("no server")
	}
	for _, serializable := range []bool{false, true} {
		t.Run(fmt.Sprint(serializable), func(t *testing.T) {
			ledgertest.Run(t, func(t *testing.T, now func() time.Time) ledgertest.Backend {
				config := sqldb.Config{URL: url, Now: now, Namespace: fmt.Sprintf("t%d_%d", os.Getpid(), n.Add(1)), Serializable: serializable}
				if _, _, err := sqldb.Migrate(context.Background(), config); err != nil {
					t.Fatal(err)
				}
				return ledgertest.Backend{Durable: true, Open: func(t *testing.T) ledger.Store {
					store, err := sqldb.Open(context.Background(), config)
					if err != nil {
						t.Fatal(err)
					}
					return store
				}}
			})
		})
	}
}
