package ledgertest

import (
	"context"
	"slices"
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/memory"
)

// Designs that are wrong on purpose are found: the histories have teeth.
func TestWrongDesignsPartFromTheLog(t *testing.T) {
	for name, wrong := range map[string]wrongStore{
		"a window that is a microsecond short": {load: func(keys *ledger.Keys) {
			for i := range keys.Totals {
				keys.Totals[i].At = keys.Totals[i].At.Add(time.Microsecond)
			}
		}},
		"a refund that stays in no window":   {save: func(c *ledger.Changes) { clear(c.Refunds) }},
		"a refund that leaves with the next": {save: refundNewest},
		"a charge dated before its hold's end": {save: func(c *ledger.Changes) {
			for i := range c.Charges {
				c.Charges[i].At = c.Charges[i].At.Add(-time.Minute)
			}
		}},
		"a charge that is lost": {save: func(c *ledger.Changes) {
			c.Charges = slices.DeleteFunc(c.Charges, func(charge ledger.ChargeRow) bool { return charge.Amount == 7 })
		}},
		"an opening that is forgotten": {save: func(c *ledger.Changes) {
			for account, row := range c.Accounts {
				delete(row.Openings, time.Hour)
				c.Accounts[account] = row
			}
		}},
		"a reset that is not kept": {save: func(c *ledger.Changes) {
			for account, row := range c.Accounts {
				row.Floor = 0
				c.Accounts[account] = row
			}
		}},
		"a reset that counts a token less": {save: func(c *ledger.Changes) {
			for account, row := range c.Accounts {
				row.Floor = max(0, row.Floor-1)
				c.Accounts[account] = row
			}
		}},
		"a prune that takes a charge too many": {save: func(c *ledger.Changes) {
			if n := len(c.Pruned.Charges); n > 0 {
				last := c.Pruned.Charges[n-1]
				c.Pruned.Charges = append(c.Pruned.Charges, ledger.Mark{Account: last.Account, Total: c.Accounts[last.Account].Used})
			}
		}},
		"a prune that leaves a hold": {save: func(c *ledger.Changes) { c.Pruned.Holds = nil }},
		"a prune that says nothing of it": {save: func(c *ledger.Changes) {
			c.Records = slices.DeleteFunc(c.Records, func(r ledger.Record) bool { return r.Kind == ledger.ClosingRecord })
		}},
		"a prune without a floor": {save: func(c *ledger.Changes) {
			if c.Pruned.UpTo > 0 {
				clear(c.Accounts)
			}
		}},
		"an id that is forgotten": {save: func(c *ledger.Changes) { clear(c.Amendments) }},
		"a hold that is not held": {save: func(c *ledger.Changes) {
			for account, row := range c.Accounts {
				row.Held = max(0, row.Held-1)
				c.Accounts[account] = row
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			clock := NewClock()
			wrong.Store = memory.New(clock.Now)
			l, err := openLedger(clock, wrong, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }() // a store in memory
			if err := agrees(clock, l, 1, 5000); err == nil {
				t.Error("nothing was found")
			} else {
				t.Log(err)
			}
		})
	}
}

// refundNewest books refunds on the newest charge that there is.
func refundNewest(c *ledger.Changes) {
	for mark, amount := range c.Refunds {
		if row := c.Accounts[mark.Account]; row.Used > mark.Total {
			delete(c.Refunds, mark)
			c.Refunds[ledger.Mark{Account: mark.Account, Total: row.Used}] += amount
			row.Refunded = row.Used
			c.Accounts[mark.Account] = row
		}
	}
}

// wrongStore changes what is asked of a store, or written to it.
type wrongStore struct {
	ledger.Store
	load func(*ledger.Keys)
	save func(*ledger.Changes)
}

func (s wrongStore) Load(ctx context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	if s.load == nil {
		return s.Store.Load(ctx, keys)
	}
	asked := keys
	asked.Totals = append([]ledger.Moment(nil), keys.Totals...)
	s.load(&asked)
	return renamed(keys, asked)(s.Store.Load(ctx, asked))
}

func (s wrongStore) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	return s.Store.Update(ctx, func(tx ledger.Tx) error { return decide(wrongTx{tx, s}) })
}

type wrongTx struct {
	ledger.Tx
	store wrongStore
}

func (t wrongTx) Load(ctx context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	if t.store.load == nil {
		return t.Tx.Load(ctx, keys)
	}
	asked := keys
	asked.Totals = append([]ledger.Moment(nil), keys.Totals...)
	t.store.load(&asked)
	return renamed(keys, asked)(t.Tx.Load(ctx, asked))
}

func (t wrongTx) Save(ctx context.Context, changes *ledger.Changes) error {
	if t.store.save != nil {
		t.store.save(changes)
	}
	return t.Tx.Save(ctx, changes)
}

// renamed gives answers under the keys that were asked first.
func renamed(keys, asked ledger.Keys) func(*ledger.Rows, error) (*ledger.Rows, error) {
	return func(rows *ledger.Rows, err error) (*ledger.Rows, error) {
		if err == nil {
			totals := map[ledger.Moment]int64{}
			for i, moment := range keys.Totals {
				totals[moment] = rows.Totals[asked.Totals[i]]
			}
			rows.Totals = totals
		}
		return rows, err
	}
}
