package memory

import (
	"fmt"
	"math"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

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
}

// Open makes an empty store. It returns [ledger.ErrInvalid] for a bound that cannot be.
func Open(config Config) (*Store, error) {
	if config.Accounts == 0 {
		config.Accounts = accountsDefault
	}
	if config.Accounts < 0 || config.Accounts > AccountsMax {
		return nil, fmt.Errorf("%w: memory.Config.Accounts must be within 1 and %d, not %d", ledger.ErrInvalid, AccountsMax, config.Accounts)
	}
	s := New(config.Now)
	s.accountsMax = config.Accounts
	return s, nil
}

// newRecent keeps accounts in the order of their last use. It forgets nothing by itself.
func newRecent() *simplelru.LRU[ledger.Account, struct{}] {
	recent, err := simplelru.NewLRU[ledger.Account, struct{}](math.MaxInt, nil)
	if err != nil { // only a size below 1 fails
		panic(err)
	}
	return recent
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
