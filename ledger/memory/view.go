package memory

import (
	"context"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/google/uuid"

	"regent/ledger"
)

// View runs look on a copy of everything, in which rows are shared: nobody changes one.
func (s *Store) View(_ context.Context, look func(ledger.View) error) error {
	return look(s.copy())
}

func (s *Store) copy() *view {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock()
	c := New(nil)
	c.sweep = s.sweep
	c.accounts, c.holds, c.calls, c.charges, c.records = maps.Clone(s.accounts), maps.Clone(s.holds), maps.Clone(s.calls), maps.Clone(s.charges), maps.Clone(s.records)
	c.amendments = maps.Clone(s.amendments)
	c.gates = s.gates.copy()
	for account, refunds := range s.refunds {
		c.refunds[account] = maps.Clone(refunds)
	}
	for account, holds := range s.standing {
		c.standing[account] = maps.Clone(holds)
	}
	v := &view{tx: tx{c, now}}
	v.accounts = slices.SortedFunc(maps.Keys(c.accounts), func(a, b ledger.Account) int { return strings.Compare(a.String(), b.String()) })
	v.holds = slices.SortedFunc(maps.Keys(c.holds), compareIDs)
	v.calls = slices.SortedFunc(maps.Keys(c.calls), compareIDs)
	return v
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// view is a copy of a store, with its keys in order.
type view struct {
	tx
	accounts     []ledger.Account
	holds, calls []uuid.UUID
}

func (v *view) Accounts(_ context.Context, after ledger.Account, limit int) ([]ledger.Account, error) {
	key := ""
	if after != (ledger.Account{}) {
		key = after.String()
	}
	from := sort.Search(len(v.accounts), func(i int) bool { return v.accounts[i].String() > key })
	return v.accounts[from:min(len(v.accounts), from+limit)], nil
}

func (v *view) Charges(_ context.Context, account ledger.Account, after int64, limit int) ([]ledger.ChargeRow, error) {
	charges := v.Store.charges[account]
	from := sort.Search(len(charges), func(i int) bool { return charges[i].Total > after })
	page := slices.Clone(charges[from:min(len(charges), from+limit)])
	for i := range page {
		page[i].Refunded = v.refunds[account][page[i].Total]
	}
	return page, nil
}

func (v *view) Holds(_ context.Context, after uuid.UUID, limit int) ([]ledger.HoldRow, error) {
	return page(v.Store.holds, v.holds, after, limit), nil
}

func (v *view) Calls(_ context.Context, after uuid.UUID, limit int) ([]ledger.Call, error) {
	return page(v.Store.calls, v.calls, after, limit), nil
}

func page[R any](rows map[uuid.UUID]R, ids []uuid.UUID, after uuid.UUID, limit int) (found []R) {
	from := sort.Search(len(ids), func(i int) bool { return compareIDs(ids[i], after) > 0 })
	for _, id := range ids[from:min(len(ids), from+limit)] {
		found = append(found, rows[id])
	}
	return found
}
