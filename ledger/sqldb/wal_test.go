package sqldb_test

import (
	"database/sql"
	"strconv"
	"sync"
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgtest"
)

// written counts the rows that a database has written since it was made, by table.
func written(t *testing.T, pool *sql.DB) map[string]int64 {
	t.Helper()
	rows, err := pool.QueryContext(ctx, `SELECT relname, pg_stat_get_tuples_inserted(relid) + pg_stat_get_tuples_updated(relid)
		+ pg_stat_get_tuples_deleted(relid) FROM pg_stat_user_tables`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	counts := map[string]int64{}
	for rows.Next() {
		var name string
		var n int64
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		counts[name] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return counts
}

// logged is how many bytes a cluster has written to its log.
func logged(t *testing.T, pool *sql.DB) (bytes int64) {
	t.Helper()
	if err := pool.QueryRowContext(ctx, `SELECT CAST(pg_current_wal_lsn() - '0/0'::pg_lsn AS BIGINT)`).Scan(&bytes); err != nil {
		t.Fatal(err)
	}
	return bytes
}

// TestARenewalWritesItsHold: and nothing else, since there are many more renewals than anything else while answers are streamed.
func TestARenewalWritesItsHold(t *testing.T) {
	cluster := pgtest.Shared(t)
	config := migrated(t, sqldb.Config{URL: cluster.NewDatabase(t)})
	b := newBench(t, config)
	pool := hostPool(t, config)
	const holds, rounds = 100, 10
	var held []ledger.Hold
	for i := range holds {
		a := forCall(admission(user(strconv.Itoa(i%10)), 10, 1_000_000))
		a.Claims = append(a.Claims, ledger.Claim{Account: ledger.Account{Scope: ledger.ScopeGroup, ID: "team", Unit: ledger.Tokens}})
		held = append(held, b.admit(a))
	}
	renew := func() {
		var callers sync.WaitGroup
		for i := range held {
			callers.Go(func() { held[i] = b.renew(held[i]) })
		}
		callers.Wait()
		b.Advance(time.Second)
	}
	renew() // the statements are prepared
	execute(t, pool, `CHECKPOINT`)
	rows := b.settled(pool)
	bytes, commits := logged(t, pool), b.proxy.Counts().Commits
	for range rounds {
		renew()
	}
	bytes, commits = logged(t, pool)-bytes, b.proxy.Counts().Commits-commits
	for name, n := range b.settled(pool) {
		want := int64(0)
		if name == "ledger_hold" {
			want = holds * rounds
		}
		if n-rows[name] != want {
			t.Errorf("%d renewals wrote %d rows of %s, want %d", holds*rounds, n-rows[name], name, want)
		}
	}
	each := bytes / (holds * rounds)
	t.Logf("a renewal is %d bytes of the write-ahead log, in %d commits of %d renewals", each, commits, holds*rounds)
	if each > 2000 {
		t.Errorf("a renewal is %d bytes of the write-ahead log", each)
	}
	for _, hold := range held {
		b.settle(hold, 5)
	}
	b.audit()
}

// settled is what was written, by connections that have ended: the others tell of it late.
func (b *bench) settled(pool *sql.DB) map[string]int64 {
	b.t.Helper()
	b.proxy.KillAll()
	deadline := time.Now().Add(20 * time.Second)
	for connected := 1; connected > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatal("connections that were cut do not end")
		}
		err := pool.QueryRowContext(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'regent' AND datname = current_database()`).Scan(&connected)
		b.must("count connections", err)
	}
	return written(b.t, pool)
}
