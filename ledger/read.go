package ledger

import (
	"context"
	"net/url"
	"strings"
	"time"
)

// ReadBalances reads balances from a store without a ledger, for tools that only look.
func ReadBalances(ctx context.Context, store Store, claims []Claim) ([]Balance, error) {
	return readBalances(ctx, store, claims, time.Now(), time.Time{})
}

func readBalances(ctx context.Context, store Store, claims []Claim, about, suspendedUntil time.Time) ([]Balance, error) {
	b, err := readBatch(ctx, store, claimKeys(claims, about), suspendedUntil)
	if err != nil {
		return nil, err
	}
	var balances []Balance
	for _, claim := range claims {
		for _, limit := range claim.Limits {
			balance, err := b.balance(ctx, claim.Account, limit)
			if err != nil {
				return nil, err
			}
			balances = append(balances, balance)
		}
	}
	return balances, nil
}

// ReadAccount reads an account with the live holds that stand on it. The row of one that the ledger does not know is
// zero, its TouchedAt too.
func ReadAccount(ctx context.Context, store Store, account Account) (AccountRow, []HoldRow, error) {
	b, err := readBatch(ctx, store, claimKeys([]Claim{{Account: account}}, time.Time{}), time.Time{})
	if err != nil {
		return AccountRow{}, nil, err
	}
	var holds []HoldRow
	for _, id := range b.rows.Standing[account] {
		if hold := b.rows.Holds[id]; hold.State == HoldLive {
			holds = append(holds, hold)
		}
	}
	return b.rows.Accounts[account], holds, nil
}

// claimKeys names what balances are computed from, about a time.
func claimKeys(claims []Claim, about time.Time) (keys Keys) {
	for _, claim := range claims {
		claim.keys(&keys, about)
		keys.Standing = append(keys.Standing, claim.Account)
	}
	return keys
}

// readBatch reads rows as the next transaction would find them: what is due counts as expired.
func readBatch(ctx context.Context, store Store, keys Keys, suspendedUntil time.Time) (*batch, error) {
	keys.Due = true
	tx := reader{store}
	rows, err := tx.Load(ctx, keys)
	if err != nil {
		return nil, err
	}
	b := newBatch(tx, rows)
	b.suspendedUntil = later(suspendedUntil, rows.Sweep.SuspendedUntil)
	return b, b.expireDue()
}

// loader is what reads rows: a [Store], or a [View] of it.
type loader interface {
	Load(ctx context.Context, keys Keys) (*Rows, error)
}

// reader is a transaction that writes nothing.
type reader struct{ loader }

func (reader) Save(context.Context, *Changes) error { return nil }

// balance is how an account stands towards a limit.
func (b *batch) balance(ctx context.Context, account Account, limit Limit) (Balance, error) {
	past := b.pastOf(ctx, account, 0, time.Time{})
	now := later(b.rows.Now, past.row.TouchedAt)
	used, err := past.usedIn(limit.Window, now)
	if err != nil {
		return Balance{}, err
	}
	held := past.row.Held
	balance := Balance{Account: account, Limit: limit, Used: used, Held: held, Left: max(0, limit.spendable()-used-held)}
	if used > 0 {
		balance.RecoversAt = limit.Window.recovers(past, now)
	}
	return balance, nil
}

// ReadSince reads what accounts were charged from a moment on, less refunds. Holds that are due count as charged.
func (l *Ledger) ReadSince(ctx context.Context, accounts []Account, since time.Time) (map[Account]int64, error) {
	claims := make([]Claim, 0, len(accounts))
	for _, account := range accounts {
		claims = append(claims, Claim{Account: account})
	}
	b, err := readBatch(ctx, l.store, claimKeys(claims, time.Time{}), l.Status().SuspendedUntil)
	if err != nil {
		return nil, err
	}
	used := make(map[Account]int64, len(accounts))
	for _, account := range accounts {
		past := b.pastOf(ctx, account, 0, time.Time{})
		before, err := past.totalAt(since.Add(-time.Microsecond))
		if err != nil {
			return nil, err
		}
		refunded, err := past.refunded(before, past.row.Used)
		if err != nil {
			return nil, err
		}
		used[account] = past.row.Used - before - refunded
	}
	return used, nil
}

// accountsPage is how many accounts are listed at a time.
const accountsPage = 1000

// Accounts lists the accounts of a scope whose ids begin with a prefix, which ends with a colon. Accounts are in the order of their
// texts, where what follows an id, a slash, stands amid what can go on with one: so they are looked for from before the colon on.
func (l *Ledger) Accounts(ctx context.Context, scope, prefix string) (found []Account, err error) {
	first := scope + "/" + url.PathEscape(prefix)
	err = l.store.View(ctx, func(view View) error {
		for after := (Account{Scope: scope, ID: strings.TrimSuffix(prefix, ":")}); ; {
			page, err := view.Accounts(ctx, after, accountsPage)
			if err != nil || len(page) == 0 {
				return err
			}
			for _, account := range page {
				switch text := account.String(); {
				case strings.HasPrefix(text, first):
					found = append(found, account)
				case text > first:
					return nil
				}
			}
			after = page[len(page)-1]
		}
	})
	return found, err
}
