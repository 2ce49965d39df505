package memory

import (
	"time"

	"regent/ledger"
)

const (
	accountsDefault = 4_096 // with some charges each, about a megabyte
	// AccountsMax is the most accounts that a store can be told to keep: some tens of megabytes with their charges.
	AccountsMax = 65_536
	// evictedPart of the bound goes at a time, so that looking for what may go is not done for each new account.
	evictedPart = 64
)

// Config configures a [Store].
type Config struct {
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Accounts bounds the accounts that are kept. What is idle is forgotten first, then what was used longest ago; what is held is never
	// forgotten, and may stand above the bound. Defaults to 4,096; at most 65,536.
	Accounts int
	// Rates bounds the rates that are kept. Those whose window has closed are forgotten first, then those that counted longest ago.
	// Defaults to 4,096; at most 65,536.
	Rates int
	// Circuits bounds the circuits that are kept. Only closed ones are forgotten: where all are open, an admission under another one is
	// [ledger.ErrBusy]. Defaults to 1,024; at most 16,384.
	Circuits int
}

// Open makes an empty store. It returns [ledger.ErrInvalid] for a bound that cannot be.
func Open(config Config) (*Store, error) {
	s := New(config.Now)
	for _, each := range []struct {
		name              string
		of                *int
		n, standard, most int
	}{
		{"Accounts", &s.accountsMax, config.Accounts, accountsDefault, AccountsMax},
		{"Rates", &s.gates.ratesMax, config.Rates, ratesDefault, RatesMax},
		{"Circuits", &s.gates.circuitsMax, config.Circuits, circuitsDefault, CircuitsMax},
	} {
		var err error
		if *each.of, err = bound(each.name, each.n, each.standard, each.most); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// evict forgets accounts beyond the bound, as far as nothing is held of them: idle ones first, then those used longest ago.
func (s *Store) evict() {
	if len(s.accounts) <= s.accountsMax {
		return
	}
	most := s.accountsMax - s.accountsMax/evictedPart
	now := s.clock()
	for _, may := range []func(ledger.AccountRow) bool{
		func(row ledger.AccountRow) bool { return isIdle(row, now) },
		func(ledger.AccountRow) bool { return true },
	} {
		for _, account := range s.recent.Keys() {
			if len(s.accounts) <= most {
				return
			}
			if row := s.accounts[account]; row.Held == 0 && len(s.standing[account]) == 0 && may(row) {
				s.recent.Remove(account)
				delete(s.accounts, account)
				delete(s.charges, account)
				delete(s.refunds, account)
			}
		}
	}
}

// isIdle says whether nothing of what an account used can stand in a window.
func isIdle(row ledger.AccountRow, now time.Time) bool {
	return row.Used == row.Floor || now.Sub(row.ChargedAt) > ledger.LengthMax
}
