package sqldb

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"

	"regent/ledger"
	"regent/ledger/ledgertest"
)

// firstVersion makes a database as the first migration left it, with a charge of 30 tokens and its record.
func firstVersion(t *testing.T, path string, at time.Time) {
	t.Helper()
	ctx := context.Background()
	s, db, err := open(ctx, Config{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	source, err := s.migrations()
	if err != nil {
		t.Fatal(err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, source, goose.WithTableName("ledger_migration"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`INSERT INTO ledger_account VALUES ('user/alice/tokens', 30, 0, $1)`, at.UnixMicro()); err != nil {
		t.Fatal(err)
	}
	writer := uuid.Must(uuid.NewV7())
	for number, amount := range []string{"10", "25", "-5"} {
		body := `{"usage":null,"price":null,"tokens":0,"nano_usd":0,"accounts":{"user/alice/tokens":` + amount + `}}`
		if _, err := db.Exec(`INSERT INTO ledger_record VALUES ($1, $2, $3, 'charge', NULL, $4)`, writer[:], number+1, at.UnixMicro(), body); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestBooksOfEarlierVersionsStayTrue: what was charged before charges had rows is one charge since then, and can be pruned.
func TestBooksOfEarlierVersionsStayTrue(t *testing.T) {
	ctx, clock := context.Background(), ledgertest.NewClock()
	path := filepath.Join(t.TempDir(), "regent.db")
	firstVersion(t, path, clock.Now())
	store, err := Open(ctx, Config{Path: path, Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(ledger.Config{Store: store, Elapsed: clock.Elapsed, SweepEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	alice := ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.Tokens}
	want := func(what string, used, windowed int64) {
		t.Helper()
		if err := ledgertest.Audit(ctx, store); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		row, _, err := ledger.ReadAccount(ctx, store, alice)
		if err != nil || row.Used-row.Refunds != used {
			t.Errorf("%s: used %d, %v, want %d", what, row.Used-row.Refunds, err, used)
		}
		limit := ledger.Limit{Window: ledger.Rolling{Length: 5 * time.Hour}, Max: 100}
		balances, err := l.Read(ctx, []ledger.Claim{{Account: alice, Limits: []ledger.Limit{limit}}})
		if err != nil || balances[0].Used != windowed {
			t.Errorf("%s: %+v, %v, want %d", what, balances, err, windowed)
		}
	}
	post := func(n int64) {
		t.Helper()
		if err := l.Post(ctx, ledger.Posting{Accounts: []ledger.Account{alice}, Usage: ledger.Usage{Output: n}}); err != nil {
			t.Fatal(err)
		}
	}
	want("after the migration", 30, 30)
	post(5)
	want("with a charge more", 35, 35)
	clock.Advance(2 * ledger.PruneAgeMin)
	post(7)
	want("later", 42, 7)
	report, err := l.Prune(ctx, ledger.Pruning{Reason: "old", Actor: "root", OlderThan: ledger.PruneAgeMin})
	if err != nil || report.Records != 3 { // 2 of the stream before, whose newest stays, and one of this
		t.Fatalf("%+v, %v", report, err)
	}
	want("when the old is pruned", 42, 7)
}
