package sqldb_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
)

// hostPool is a pool that belongs to a host, on a fresh database of a server's.
func hostPool(t *testing.T, config sqldb.Config) *sql.DB {
	t.Helper()
	pool, err := sql.Open("pgx", config.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
	return pool
}

func execute(t *testing.T, pool *sql.DB, text string, args ...any) {
	t.Helper()
	if _, err := pool.ExecContext(ctx, text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// tables are the names of a database's tables.
func tables(t *testing.T, pool *sql.DB) (names []string) {
	t.Helper()
	rows, err := pool.QueryContext(ctx, `SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY table_name`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return names
}

// onServers runs a test on each database that many processes share.
func onServers(t *testing.T, test func(t *testing.T, config sqldb.Config)) {
	for _, server := range servers {
		t.Run(server.name, func(t *testing.T) { test(t, server.config(t)) })
	}
}

// TestAHostsPool: a ledger lives in a host's own pool beside the host's tables, and leaves both to it.
func TestAHostsPool(t *testing.T) {
	onServers(t, func(t *testing.T, config sqldb.Config) {
		pool := hostPool(t, config)
		execute(t, pool, `CREATE TABLE ledger_account (mine INT)`) // the host's own name
		config.URL, config.DB, config.Namespace = "", pool, "budget"
		migrated(t, config)
		for _, name := range tables(t, pool) {
			if name != "ledger_account" && !strings.HasPrefix(name, "budget_") {
				t.Errorf("the migration made table %s", name)
			}
		}
		b := &bench{Clock: ledgertest.NewClock(), t: t}
		config.Now = b.Now
		b.store = open(t, config)
		b.ledger = b.start(b.store)
		b.settle(b.renew(b.admit(forCall(admission(user("alice"), 100, 100)))), 30)
		b.want(user("alice"), 30, 0)
		b.audit()
		if err := b.ledger.Close(); err != nil {
			t.Fatal(err)
		}
		execute(t, pool, `INSERT INTO ledger_account VALUES (1)`)
		wantEqual(t, "connections in use", pool.Stats().InUse, 0)
	})
}

// TestNamespacesAreApart: two stores in one database do not see each other.
func TestNamespacesAreApart(t *testing.T) {
	onServers(t, func(t *testing.T, config sqldb.Config) {
		pool, clock := hostPool(t, config), ledgertest.NewClock()
		benches := map[string]*bench{}
		for _, namespace := range []string{"one", "two", "one_more"} {
			b := &bench{Clock: clock, t: t, config: sqldb.Config{DB: pool, Namespace: namespace, Now: clock.Now, Serializable: config.Serializable}}
			b.store = open(t, migrated(t, b.config))
			b.ledger = b.start(b.store)
			benches[namespace] = b
		}
		one, two := benches["one"], benches["two"]
		a := forCall(admission(user("alice"), 100, 100))
		hold := one.admit(a)
		two.want(user("alice"), 0, 0)
		_, err := two.ledger.Settle(ctx, ending(hold), output(1))
		wantError(t, "settle in another namespace", err, ledger.ErrState)
		other := two.admit(a) // the same ids and key
		one.settle(hold, 30)
		two.want(user("alice"), 0, 100)
		two.settle(other, 40)
		one.want(user("alice"), 30, 0)
		two.want(user("alice"), 40, 0)
		for namespace, b := range benches {
			b.audit()
			records := 3
			if namespace == "one_more" {
				records = 0
			}
			wantEqual(t, "records of "+namespace, len(numbers(t, b.store)), records)
		}
	})
}

// TestAnotherDriversPool: is refused before anything is done, by a message that says what is wrong.
func TestAnotherDriversPool(t *testing.T) {
	pool, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "host.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	_, err = sqldb.Open(ctx, sqldb.Config{DB: pool})
	if err == nil || !strings.Contains(err.Error(), "pgx's stdlib") {
		t.Errorf("open: %v", err)
	}
	if _, _, err := sqldb.Migrate(ctx, sqldb.Config{DB: pool}); err == nil || !strings.Contains(err.Error(), "pgx's stdlib") {
		t.Errorf("migrate: %v", err)
	}
	if err := pool.Ping(); err != nil {
		t.Errorf("the host's pool: %v", err)
	}
}

func TestConfig(t *testing.T) {
	pool, err := sql.Open("sqlite", "x")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	for _, config := range []sqldb.Config{
		{}, {Path: "a", URL: "b"}, {URL: "a", DB: pool}, {Path: "a", DB: pool},
		{DB: pool, Namespace: "Ledger"}, {DB: pool, Namespace: "a-b"}, {DB: pool, Namespace: `a"; DROP TABLE b`}, {DB: pool, Namespace: "1a"},
		{DB: pool, Namespace: strings.Repeat("a", 26)},
	} {
		if _, err := sqldb.Open(ctx, config); err == nil || !strings.HasPrefix(err.Error(), "sqldb: ") {
			t.Errorf("%+v: %v", config, err)
		}
	}
	_, err = sqldb.Open(ctx, sqldb.Config{URL: "postgres://alice:secret@:x/"})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a URL that cannot be read: %v", err)
	}
}

// TestVersions: a program serves the tables of its own version and of the next, and says of others what to do.
func TestVersions(t *testing.T) {
	onServers(t, func(t *testing.T, config sqldb.Config) {
		pool := hostPool(t, config)
		config.URL, config.DB = "", pool
		want := func(what string, err error, says string) {
			t.Helper()
			wantError(t, what, err, sqldb.ErrVersion)
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %q does not say %q", what, err, says)
			}
		}
		_, err := sqldb.Open(ctx, config)
		want("no tables", err, `run "regent migrate"`)
		wantSame(t, "tables", tables(t, pool), nil)
		before, after, err := sqldb.Migrate(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		newest := after.Program
		wantEqual(t, "before", before, sqldb.Version{Database: 0, Program: newest})
		wantEqual(t, "after", after, sqldb.Version{Database: newest, Program: newest})

		store := open(t, config)
		load := func(what string) {
			t.Helper()
			if _, err := store.Load(ctx, ledger.Keys{Accounts: []ledger.Account{user("alice")}}); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		load("its own version")
		// What the next version adds, while this one runs.
		execute(t, pool, `ALTER TABLE ledger_account ADD COLUMN later INT8 NOT NULL DEFAULT 0`)
		execute(t, pool, `INSERT INTO ledger_migration (version_id, is_applied) VALUES ($1, true)`, newest+1)
		load("the next version, which came while it ran")
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		store = open(t, config)
		b := &bench{Clock: ledgertest.NewClock(), t: t, store: store}
		b.ledger = b.start(store)
		b.settle(b.admit(forCall(admission(user("alice"), 100, 100))), 30)
		b.audit()
		before, after, err = sqldb.Migrate(ctx, config)
		if err != nil {
			t.Fatalf("migrate what is of the next version: %v", err)
		}
		wantEqual(t, "before", before, sqldb.Version{Database: newest + 1, Program: newest})
		wantEqual(t, "after", after, before)

		execute(t, pool, `INSERT INTO ledger_migration (version_id, is_applied) VALUES ($1, true)`, newest+2)
		_, err = sqldb.Open(ctx, config)
		want("the one after the next", err, "run a newer one")
		_, _, err = sqldb.Migrate(ctx, config)
		want("migrate it", err, "run a newer one")
		execute(t, pool, `DELETE FROM ledger_migration WHERE version_id >= $1`, newest)
		_, err = sqldb.Open(ctx, config)
		want("the version before", err, fmt.Sprintf(`they are at %d, this program serves %d and %d; run "regent migrate"`, newest-1, newest, newest+1))
		version, err := sqldb.ReadVersion(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "version", version, sqldb.Version{Database: newest - 1, Program: newest})
	})
}

// TestSchemas: tables in another schema are somebody else's.
func TestSchemas(t *testing.T) {
	onPostgres(t, func(t *testing.T, config sqldb.Config) {
		execute(t, hostPool(t, config), `CREATE SCHEMA app`)
		config.URL += "&search_path=app"
		_, err := sqldb.Open(ctx, config)
		wantError(t, "open", err, sqldb.ErrVersion)
		before, _, err := sqldb.Migrate(ctx, config)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "before", before.Database, 0)
		if err := open(t, config).Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestMigrationsAtOnce: one process migrates, the others wait, and all succeed.
func TestMigrationsAtOnce(t *testing.T) {
	onServers(t, func(t *testing.T, config sqldb.Config) {
		var mu sync.Mutex
		var processes sync.WaitGroup
		migrations := map[sqldb.Version]int{}
		for range 3 {
			processes.Go(func() {
				_, after, err := sqldb.Migrate(context.Background(), config)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				migrations[after]++
			})
		}
		processes.Wait()
		wantEqual(t, "outcomes", len(migrations), 1)
		pool := hostPool(t, config)
		var rows, versions int
		err := pool.QueryRowContext(ctx, `SELECT count(*), count(DISTINCT version_id) FROM ledger_migration WHERE version_id > 0`).Scan(&rows, &versions)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "migrations that were run", rows, versions)
		if err := open(t, config).Close(); err != nil {
			t.Error(err)
		}
	})
}
