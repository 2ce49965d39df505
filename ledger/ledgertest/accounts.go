package ledgertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"regent/ledger"
)

// opensByPosting: a charge may be the first use of an account, and counts in its windows then.
func opensByPosting(t *testing.T, b *bench) {
	claim := ledger.Claim{Account: aliceTokens, Limits: everyWindow}
	used := func() (used []int64) {
		t.Helper()
		balances, err := b.ledger.Read(ctx, []ledger.Claim{claim})
		if err != nil {
			t.Fatal(err)
		}
		for _, balance := range balances {
			used = append(used, balance.Used)
		}
		return used
	}
	each := func(n int64) (all []int64) {
		for range everyWindow {
			all = append(all, n)
		}
		return all
	}
	posting := ledger.Posting{
		ID: newID(), Accounts: []ledger.Account{aliceTokens}, Limits: map[ledger.Account][]ledger.Limit{aliceTokens: everyWindow},
		Usage: ledger.Usage{Output: 10},
	}
	post := func() {
		t.Helper()
		if err := b.ledger.Post(ctx, posting); err != nil {
			t.Fatal(err)
		}
	}
	post()
	wantEqual(t, "used", used(), each(10))
	posting.Limits = nil // what tells postings apart are not their limits
	post()
	wantEqual(t, "used after the same one", used(), each(10))
	b.Advance(time.Hour)
	b.post(5)
	wantEqual(t, "used after a charge in them", used(), each(15))
	b.verified()
	for name, limit := range map[string]ledger.Limit{
		"no window": {}, "a window of nothing": {Window: ledger.Fixed{}}, "a limit below 0": {Window: ledger.AtOnce{}, Max: -1},
	} {
		posting.Limits = map[ledger.Account][]ledger.Limit{aliceTokens: {limit}}
		wantError(t, name, b.ledger.Post(ctx, posting), ledger.ErrInvalid)
	}
}

// listsAccounts: with whatever an id goes on, and whatever other ids stand between.
func listsAccounts(t *testing.T, b *bench) {
	account := func(scope, id string) ledger.Account {
		return ledger.Account{Scope: scope, ID: id, Unit: ledger.Tokens}
	}
	want := map[ledger.Account]bool{}
	var all []ledger.Account
	for _, rest := range []string{"a", "Z", "0", "-", ".", "+", "$", "%40cf", "@cf", " ", "/", "~", "_", ":", "é", "="} {
		all = append(all, account("model", "p:"+rest))
		want[account("model", "p:"+rest)] = true
	}
	all = append(all,
		account("model", "p"), account("model", "p00:a"), account("model", "p-:a"), account("model", "p/:a"), account("model", "p~:a"),
		account("model", "o:a"), account("model", "q:a"), account("model", "P:a"), account("mode", "p:a"), account("models", "p:a"),
	)
	for i := range 1100 { // more than are listed at a time
		all = append(all, account("model", fmt.Sprintf("p:many%d", i)))
		want[all[len(all)-1]] = true
		all = append(all, account("model", fmt.Sprintf("p%d:a", i)))
	}
	for some := range slices.Chunk(all, 50) {
		if err := b.ledger.Post(ctx, ledger.Posting{Accounts: some, Usage: ledger.Usage{Output: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	found, err := b.ledger.Accounts(ctx, "model", "p:")
	if err != nil {
		t.Fatal(err)
	}
	for _, account := range found {
		if !want[account] {
			t.Errorf("%s is listed, or listed twice", account)
		}
		delete(want, account)
	}
	for account := range want {
		t.Errorf("%s is not listed", account)
	}
}
