package sqldb_test

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"
	"time"

	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
)

// TestAnActivationIsKeptInOnePlace: its content is in its own table and in no other, and of the content that came under its digest
// later nothing is kept at all.
func TestAnActivationIsKeptInOnePlace(t *testing.T) {
	onPostgres(t, func(t *testing.T, config sqldb.Config) {
		clock := ledgertest.NewClock()
		config.Now = clock.Now
		store, pool := open(t, config), hostPool(t, config)
		holding := func(canary string) (found []string) {
			t.Helper()
			for _, name := range tables(t, pool) {
				var text []byte
				if err := pool.QueryRowContext(ctx, `SELECT coalesce(string_agg(t::text, ' '), '') FROM `+name+` t`).Scan(&text); err != nil {
					t.Fatal(err)
				}
				if bytes.Contains(text, []byte(canary)) || bytes.Contains(text, []byte(hex.EncodeToString([]byte(canary)))) {
					found = append(found, name)
				}
			}
			return found
		}
		digest, _ := activation("alice")
		for _, content := range []string{"first-canary", "second-canary"} {
			if err := store.KeepActivation(ctx, digest, []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		wantEqual(t, "places of the first", slices.Equal(holding("first-canary"), []string{"ledger_activation"}), true)
		wantSame(t, "places of the second", holding("second-canary"), nil)
		clock.Advance(time.Microsecond)
		if _, err := store.DropActivations(ctx, clock.Now()); err != nil {
			t.Fatal(err)
		}
		wantSame(t, "places of the first when it was dropped", holding("first-canary"), nil)
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}
