package memory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
)

// Beyond its bound a store forgets what is idle, then what was used longest ago, and never what is held.
func TestAccountsAreBounded(t *testing.T) {
	clock := ledgertest.NewClock()
	store, err := memory.Open(memory.Config{Now: clock.Now, Accounts: 64})
	if err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(ledger.Config{Store: store, Elapsed: clock.Elapsed, SweepEvery: time.Hour, TTL: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // a store in memory
	ctx := context.Background()
	account := func(kind string, n int) ledger.Account {
		return ledger.Account{Scope: ledger.ScopeUser, ID: fmt.Sprint(kind, n), Unit: ledger.Tokens}
	}
	admit := func(account ledger.Account) ledger.Hold {
		t.Helper()
		clock.Advance(time.Second)
		tokens := int64(10)
		hold, err := l.Admit(ctx, ledger.Admission{Hold: uuid.Must(uuid.NewV7()), Reserve: ledger.Reserve{Tokens: &tokens}, Claims: []ledger.Claim{
			{Account: account, Limits: []ledger.Limit{{Window: ledger.Rolling{Length: time.Hour}, Max: 1000}}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return hold
	}
	settle := func(hold ledger.Hold, tokens int64) {
		t.Helper()
		_, err := l.Settle(ctx, ledger.Ending{Hold: hold.ID, Token: hold.Token}, ledger.Consumption{Usage: &ledger.Usage{Output: tokens}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for n := range 20 {
		admit(account("held", n))
		settle(admit(account("used", n)), 5)
		settle(admit(account("idle", n)), 0)
	}
	kept := func(kind string) (n int) {
		for i := range 200 {
			rows, err := store.Load(ctx, ledger.Keys{Accounts: []ledger.Account{account(kind, i)}})
			if err != nil {
				t.Fatal(err)
			}
			n += len(rows.Accounts)
		}
		return n
	}
	for n := range 15 { // 75 in all: what is idle makes room
		settle(admit(account("new", n)), 5)
	}
	if held, used, idle, fresh := kept("held"), kept("used"), kept("idle"), kept("new"); held != 20 || used != 20 || idle >= 20 || fresh != 15 {
		t.Errorf("kept %d held, %d used, %d idle, %d new", held, used, idle, fresh)
	}
	for n := range 60 { // no idle one is left: what was used longest ago goes
		settle(admit(account("newer", n)), 5)
	}
	if held, used, newer := kept("held"), kept("used"), kept("newer"); held != 20 || used != 0 || newer < 40 {
		t.Errorf("kept %d held, %d used, %d newer", held, used, newer)
	}
	for n := range 70 { // more is held than the bound: it stays
		admit(account("also held", n))
	}
	if held := kept("held") + kept("also held"); held != 90 {
		t.Errorf("kept %d of 90 that are held", held)
	}
	for _, bound := range []int{-1, 65_537} {
		if _, err := memory.Open(memory.Config{Accounts: bound}); !errors.Is(err, ledger.ErrInvalid) {
			t.Errorf("a bound of %d: got %v", bound, err)
		}
	}
}

// Charges beyond the bound of an account are merged: what a window shows is never less than what was used in it, and soon exact.
func TestManyChargesAreNeverUnderCounted(t *testing.T) {
	clock := ledgertest.NewClock()
	store := memory.New(clock.Now)
	account := ledger.Account{Scope: ledger.ScopeUser, ID: "busy", Unit: ledger.Tokens}
	const charges, every = 200_000, 100 * time.Millisecond
	begin := clock.Now()
	row := ledger.AccountRow{}
	for n := range charges {
		at := begin.Add(time.Duration(n) * every)
		row.Used += 3
		row.TouchedAt, row.ChargedAt = at, at
		changes := &ledger.Changes{
			Accounts: map[ledger.Account]ledger.AccountRow{account: row},
			Charges:  []ledger.ChargeRow{{Account: account, Total: row.Used, At: at, Amount: 3}},
		}
		if err := store.Update(t.Context(), func(tx ledger.Tx) error { return tx.Save(t.Context(), changes) }); err != nil {
			t.Fatal(err)
		}
	}
	clock.Advance(charges * every)
	for _, length := range []time.Duration{time.Minute, time.Hour, 5 * time.Hour, 7 * 24 * time.Hour} {
		balances, err := ledger.ReadBalances(t.Context(), store, []ledger.Claim{{Account: account, Limits: []ledger.Limit{{Window: ledger.Rolling{Length: length}, Max: 1 << 40}}}})
		if err != nil {
			t.Fatal(err)
		}
		want := 3 * min(int64(charges), int64(length/every)-1)
		if got := balances[0].Used; got < want || got > want+want/3+3 {
			t.Errorf("%v: used %d, want %d or a little more", length, got, want)
		}
	}
}
