package ledger

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// Unit is what an account counts.
type Unit string

const (
	// Tokens are counted one by one.
	Tokens Unit = "tokens"
	// USD is counted in nano-USD.
	USD Unit = "usd"
	// Credits is counted in nano-credits.
	Credits Unit = "credits"
	// Calls are those that run: each hold holds one, and becomes no charge of it.
	Calls Unit = "calls"
)

// Units are the units of what is charged, in the order in which people are shown them.
var Units = []Unit{Tokens, USD, Credits}

// accountUnits are the units that an account can have.
var accountUnits = []Unit{Tokens, USD, Credits, Calls}

// Scopes of accounts that the gateway and the router use. The ledger itself gives them no meaning.
const (
	ScopeUser   = "user"
	ScopeGroup  = "group"
	ScopeTenant = "tenant"
	ScopeTask   = "task"
	// ScopeToken is a credential: how many calls run under it.
	ScopeToken = "token"
	// ScopePart is a part of a task's use: what it used of one model for one kind of work.
	ScopePart = "part"
	// ScopeSource and ScopeConnection are who serves: what all calls use of them.
	ScopeSource     = "source"
	ScopeConnection = "connection"
	// ScopeModel is an owner's use of one provider's model, outside of any task.
	ScopeModel = "model"
)

// ErrAccount is returned for a text that names no account.
var ErrAccount = errors.New("not an account: want SCOPE/ID or SCOPE/ID/UNIT, for example user/alice/usd")

// Account is what is counted for one scope and unit.
type Account struct {
	Scope string
	ID    string
	Unit  Unit
}

// validate returns [ErrInvalid] for an account that no text names: a journal that tells of it could not be read again.
func (a Account) validate() error {
	if len(a.ID) > textMax/2 && len(a.String()) > accountMax || len(a.Scope) > textMax/2 {
		return fmt.Errorf("%w: account %.40q…: its name is longer than %d bytes", ErrInvalid, a, accountMax)
	}
	if a.Scope == "" || url.PathEscape(a.Scope) != a.Scope || a.ID == "" || !slices.Contains(accountUnits, a.Unit) {
		return fmt.Errorf("%w: account %q: want a plain scope, an id and one of the units %v", ErrInvalid, a, accountUnits)
	}
	return nil
}

// validateAccounts returns [ErrInvalid] for accounts that are none, and for one that is named twice.
func validateAccounts(accounts []Account) error {
	seen := make(map[Account]bool, len(accounts))
	for _, account := range accounts {
		if err := account.validate(); err != nil {
			return err
		}
		if seen[account] {
			return fmt.Errorf("%w: account %s is named twice", ErrInvalid, account)
		}
		seen[account] = true
	}
	return nil
}

// String is the account's key in stores and its name for people: SCOPE/ID/UNIT, with the id escaped as in a URL's path.
func (a Account) String() string {
	return a.Scope + "/" + url.PathEscape(a.ID) + "/" + string(a.Unit)
}

// MarshalText is [Account.String].
func (a Account) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (a *Account) UnmarshalText(text []byte) error {
	accounts, err := ParseAccounts(string(text))
	if err != nil {
		return err
	}
	if len(accounts) != 1 {
		return ErrAccount
	}
	*a = accounts[0]
	return nil
}

// ParseAccounts reads SCOPE/ID/UNIT as one account, and SCOPE/ID as the accounts of all units. It returns [ErrAccount].
func ParseAccounts(text string) ([]Account, error) {
	parts := strings.Split(text, "/")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return nil, fmt.Errorf("%w: %q", ErrAccount, text)
	}
	id, err := url.PathUnescape(parts[1])
	if err != nil {
		return nil, fmt.Errorf("%w: %q", ErrAccount, text)
	}
	units := accountUnits
	if len(parts) == 3 {
		units = []Unit{Unit(parts[2])}
	}
	accounts := make([]Account, 0, len(units))
	for _, unit := range units {
		if !slices.Contains(accountUnits, unit) {
			return nil, fmt.Errorf("%w: unknown unit in %q", ErrAccount, text)
		}
		accounts = append(accounts, Account{Scope: parts[0], ID: id, Unit: unit})
	}
	return accounts, nil
}

// FormatAmount writes an amount of a unit for people and APIs, exact: tokens and calls as they are, nano-USD as US dollars, nano-credits as
// credits.
func FormatAmount(unit Unit, amount int64) string {
	switch unit {
	case USD:
		return FormatUSD(amount)
	case Credits:
		return FormatCredits(amount)
	}
	return fmt.Sprint(amount)
}
