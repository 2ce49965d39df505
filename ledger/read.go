package ledger

import (
	"context"
	"time"
)

// ReadBalances reads balances from a store without a ledger, for tools that only look.
func ReadBalances(ctx context.Context, store Store, claims []Claim) ([]Balance, error) {
	return readBalances(ctx, store, claims, time.Time{})
}

func readBalances(ctx context.Context, store Store, claims []Claim, suspendedUntil time.Time) ([]Balance, error) {
	b, err := readBatch(ctx, store, claims, suspendedUntil)
	if err != nil {
		return nil, err
	}
	var balances []Balance
	for _, claim := range claims {
		row := b.rows.Accounts[claim.Account]
		for _, limit := range claim.Limits {
			balances = append(balances, row.balance(claim.Account, limit, b.rows.Now))
		}
	}
	return balances, nil
}

// ReadAccount reads an account with the live holds that stand on it.
func ReadAccount(ctx context.Context, store Store, account Account) (AccountRow, []HoldRow, error) {
	b, err := readBatch(ctx, store, []Claim{{Account: account}}, time.Time{})
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

// readBatch reads accounts as the next transaction would find them: what is due counts as expired.
func readBatch(ctx context.Context, store Store, claims []Claim, suspendedUntil time.Time) (*batch, error) {
	keys := Keys{Due: true}
	for _, claim := range claims {
		keys.Accounts = append(keys.Accounts, claim.Account)
		keys.Standing = append(keys.Standing, claim.Account)
	}
	tx := reader{store}
	rows, err := tx.Load(ctx, keys)
	if err != nil {
		return nil, err
	}
	b := newBatch(tx, rows)
	b.suspendedUntil = suspendedUntil
	return b, b.expireDue(ctx)
}

// reader is a transaction that writes nothing.
type reader struct{ Store }

func (reader) Save(context.Context, *Changes) error { return nil }

// balance is how the account stands towards a limit at a time.
func (r *AccountRow) balance(account Account, limit Limit, now time.Time) Balance {
	now = later(now, r.TouchedAt)
	used := r.usedIn(limit.Window, now)
	balance := Balance{Account: account, Limit: limit, Used: used, Held: r.Held, Left: max(0, limit.Max-used-r.Held)}
	if used > 0 {
		balance.RecoversAt = r.Openings[limit.Window.Length].At.Add(limit.Window.Length)
	}
	return balance
}
