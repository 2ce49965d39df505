package main

import (
	"context"
	"fmt"
	"os/user"
	"slices"
	"strings"

	"github.com/google/uuid"

	"regent/ledger"
)

// person is who does something to the books.
type person struct {
	Actor string `help:"Who does it. Defaults to the user of the operating system."`
}

func (p person) name() (string, error) {
	if p.Actor != "" {
		return p.Actor, nil
	}
	current, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("say who does it with --actor: %w", err)
	}
	return current.Username, nil
}

// amendment is who does something to the books, and why.
type amendment struct {
	Reason string `required:"" help:"Why. It is recorded."`
	person
}

// make gives the amendment an id of its own.
func (a amendment) make() (made ledger.Amendment, err error) {
	made.Reason = a.Reason
	if made.Actor, err = a.name(); err != nil {
		return made, err
	}
	made.ID, err = uuid.NewV7()
	return made, err
}

type resetCmd struct {
	Account string `arg:"" help:"SCOPE/ID or SCOPE/ID/UNIT, for example user/alice or user/alice/usd."`
	amendment
	inJSON
}

// Run resets an account, or the accounts of all units.
func (c resetCmd) Run(ctx context.Context, e *environment) error {
	accounts, err := ledger.ParseAccounts(c.Account)
	if err != nil {
		return err
	}
	amendment, err := c.make()
	if err != nil {
		return err
	}
	err = e.withLedger(ctx, func(l *ledger.Ledger) error {
		if accounts, err = existing(ctx, l.Store(), c.Account, accounts); err != nil {
			return err
		}
		return l.Reset(ctx, amendment, accounts)
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return e.document(map[string]any{"id": amendment.ID, "accounts": accounts, "reason": amendment.Reason, "actor": amendment.Actor})
	}
	for _, account := range accounts {
		if _, err := fmt.Fprintf(e.stdout, "%s was reset by %s: what was used so far counts in no window any more\n", account, amendment.Actor); err != nil {
			return err
		}
	}
	return nil
}

type correctCmd struct {
	What    string `arg:"" help:"The hold whose charge is lowered (decisions show names it), or the account that is charged further, as SCOPE/ID or SCOPE/ID/UNIT."`
	Tokens  int64  `help:"How many. Less than 0 takes back, as in --tokens=-100."`
	USD     signed `name:"usd" help:"US dollars, as in --usd=-0.50."`
	Credits signed `help:"Credits, as in --credits=-2.5."`
	amendment
	inJSON
}

// signed is an amount of billionths, with a sign.
type signed int64

// UnmarshalText reads [-]DIGITS[.DIGITS].
func (s *signed) UnmarshalText(text []byte) error {
	amount, negative := strings.CutPrefix(string(text), "-")
	n, err := ledger.ParseUSD(amount)
	if err != nil {
		return err
	}
	if *s = signed(n); negative {
		*s = -*s
	}
	return nil
}

// Run corrects what was charged.
func (c correctCmd) Run(ctx context.Context, e *environment) error {
	amendment, err := c.make()
	if err != nil {
		return err
	}
	correction := ledger.Correction{Amendment: amendment, Tokens: c.Tokens, NanoUSD: int64(c.USD), NanoCredits: int64(c.Credits)}
	var accounts []ledger.Account
	if correction.Hold, err = uuid.Parse(c.What); err != nil {
		if accounts, err = ledger.ParseAccounts(c.What); err != nil {
			return fmt.Errorf("%w (nor is it the id of a hold)", err)
		}
	}
	err = e.withLedger(ctx, func(l *ledger.Ledger) error {
		if correction.Hold == uuid.Nil {
			if correction.Accounts, err = c.charged(ctx, l.Store(), accounts); err != nil {
				return err
			}
		}
		return l.Correct(ctx, correction)
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return e.document(map[string]any{
			"id": amendment.ID, "corrected": c.What, "reason": amendment.Reason, "actor": amendment.Actor, "tokens": fmt.Sprint(c.Tokens),
			"usd": ledger.FormatUSD(int64(c.USD)), "credits": ledger.FormatCredits(int64(c.Credits)),
		})
	}
	_, err = fmt.Fprintf(e.stdout, "%s was corrected by %s: tokens %d, usd %s, credits %s\n",
		c.What, amendment.Actor, c.Tokens, ledger.FormatUSD(int64(c.USD)), ledger.FormatCredits(int64(c.Credits)))
	return err
}

// charged is the accounts in whose units something is charged: the ledger has to know them, so that a slip of the pen opens none.
func (c correctCmd) charged(ctx context.Context, store ledger.Store, accounts []ledger.Account) ([]ledger.Account, error) {
	amounts := map[ledger.Unit]int64{ledger.Tokens: c.Tokens, ledger.USD: int64(c.USD), ledger.Credits: int64(c.Credits)}
	for unit, amount := range amounts {
		named := slices.ContainsFunc(accounts, func(a ledger.Account) bool { return a.Unit == unit })
		if amount != 0 && !named {
			return nil, fmt.Errorf("%s is no account in %s: name the account without a unit, or leave out --%s", c.What, unit, unit)
		}
	}
	accounts = slices.DeleteFunc(accounts, func(a ledger.Account) bool { return amounts[a.Unit] == 0 })
	for _, account := range accounts {
		if _, err := existing(ctx, store, account.String(), []ledger.Account{account}); err != nil {
			return nil, err
		}
	}
	return accounts, nil
}
