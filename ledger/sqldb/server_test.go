package sqldb_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgtest"
)

// servers are the databases that many processes share, each in the ways in which it is used: what makes a fresh one.
var servers = []struct {
	name   string
	config func(t *testing.T) sqldb.Config
}{
	{"PostgreSQL at READ COMMITTED", func(t *testing.T) sqldb.Config {
		return sqldb.Config{URL: pgtest.Shared(t).NewDatabase(t)}
	}},
	{"PostgreSQL at SERIALIZABLE", func(t *testing.T) sqldb.Config {
		return sqldb.Config{URL: pgtest.Shared(t).NewDatabase(t), Serializable: true}
	}},
	{"CockroachDB", func(t *testing.T) sqldb.Config { return sqldb.Config{URL: pgtest.Cockroach(t)} }},
}

// migrated brings a database's tables up to date.
func migrated(t *testing.T, config sqldb.Config) sqldb.Config {
	t.Helper()
	if _, _, err := sqldb.Migrate(context.Background(), config); err != nil {
		t.Fatal(err)
	}
	return config
}

func open(t *testing.T, config sqldb.Config) *sqldb.Store {
	t.Helper()
	store, err := sqldb.Open(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// TestServerConformance runs the suite on each, every test in a namespace of its own.
func TestServerConformance(t *testing.T) {
	for _, server := range servers {
		t.Run(server.name, func(t *testing.T) {
			t.Parallel()
			config, tests := server.config(t), 0
			ledgertest.Run(t, func(t *testing.T, now func() time.Time) ledgertest.Backend {
				config := config
				tests++
				config.Now, config.Namespace = now, fmt.Sprintf("test%d", tests)
				migrated(t, config)
				return ledgertest.Backend{Durable: true, Open: func(t *testing.T) ledger.Store { return open(t, config) }}
			})
		})
	}
}
