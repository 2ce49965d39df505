package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

type ledgerCmd struct {
	Show    accountCmd `cmd:"" help:"Print an account: what was used, what is held, and by which live holds."`
	Verify  verifyCmd  `cmd:"" help:"Compute everything again from the journal, and print each difference."`
	Reset   resetCmd   `cmd:"" help:"Have all that an account has used so far leave every window."`
	Correct correctCmd `cmd:"" help:"Charge an account further, or take back of what a call was charged."`
	Export  exportCmd  `cmd:"" help:"Print what each source was charged in a month, as CSV."`
	Prune   pruneCmd   `cmd:"" help:"Remove old records, with the calls that they tell of."`
}

// inJSON is for every command whose output a program may read.
type inJSON struct {
	JSON bool `name:"json" help:"Print JSON. Amounts are decimal texts."`
}

// document writes a document.
func (e *environment) document(document any) error {
	encoder := json.NewEncoder(e.stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}

type accountCmd struct {
	Account string `arg:"" help:"SCOPE/ID or SCOPE/ID/UNIT, for example user/alice or user/alice/usd."`
	inJSON
}

// accountDocument is an account for people and programs.
type accountDocument struct {
	Account string           `json:"account"`
	Unit    string           `json:"unit"`
	Used    string           `json:"used"`
	Held    string           `json:"held"`
	Windows []windowDocument `json:"windows"`
	Holds   []holdDocument   `json:"holds"`
}

type windowDocument struct {
	Window string `json:"window"`
	Limit  string `json:"limit"`
	Used   string `json:"used"`
	Held   string `json:"held"`
	Left   string `json:"left"`
	// RecoversAt is when all that is used in it has left it; null if nothing is.
	RecoversAt *time.Time `json:"recovers_at"`
}

type holdDocument struct {
	Hold string `json:"hold"`
	// Call is empty for a hold of no call.
	Call     string `json:"call"`
	Source   string `json:"source"`
	Provider string `json:"provider"`
	// Held is null if the hold does not bound the unit.
	Held     *string   `json:"held"`
	Deadline time.Time `json:"deadline"`
}

// Run prints the accounts that there are, with their limits as the catalogue sets them.
func (c accountCmd) Run(ctx context.Context, e *environment) error {
	accounts, err := ledger.ParseAccounts(c.Account)
	if err != nil {
		return err
	}
	catalogue, err := e.catalogue()
	if err != nil {
		return err
	}
	var found []accountDocument
	err = e.withStore(ctx, func(store ledger.Store) error {
		if accounts, err = existing(ctx, store, c.Account, accounts); err != nil {
			return err
		}
		for _, account := range accounts {
			document, err := readAccount(ctx, store, account, catalogue.Limits(account))
			if err != nil {
				return err
			}
			found = append(found, document)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return e.document(map[string]any{"accounts": found})
	}
	return e.printAccounts(found)
}

// existing are the accounts that the ledger knows: at least one.
func existing(ctx context.Context, store ledger.Store, text string, accounts []ledger.Account) (known []ledger.Account, err error) {
	for _, account := range accounts {
		row, _, err := ledger.ReadAccount(ctx, store, account)
		if err != nil {
			return nil, err
		}
		if !row.TouchedAt.IsZero() {
			known = append(known, account)
		}
	}
	if len(known) == 0 {
		return nil, fmt.Errorf("no account %s: nothing was ever held or charged there", text)
	}
	return known, nil
}

func readAccount(ctx context.Context, store ledger.Store, account ledger.Account, limits []ledger.Limit) (accountDocument, error) {
	row, holds, err := ledger.ReadAccount(ctx, store, account)
	if err != nil {
		return accountDocument{}, err
	}
	balances, err := ledger.ReadBalances(ctx, store, []ledger.Claim{{Account: account, Limits: limits}})
	if err != nil {
		return accountDocument{}, err
	}
	amount := func(n int64) string { return ledger.FormatAmount(account.Unit, n) }
	document := accountDocument{
		Account: account.String(), Unit: string(account.Unit), Used: amount(row.Used - row.Refunds), Held: amount(row.Held),
		Windows: []windowDocument{}, Holds: []holdDocument{},
	}
	for _, b := range balances {
		window := windowDocument{
			Window: b.Limit.Window.String(), Limit: amount(b.Limit.Max), Used: amount(b.Used), Held: amount(b.Held), Left: amount(b.Left),
		}
		if !b.RecoversAt.IsZero() {
			window.RecoversAt = &b.RecoversAt
		}
		document.Windows = append(document.Windows, window)
	}
	for _, hold := range holds {
		document.Holds = append(document.Holds, readHold(hold, account.Unit))
	}
	return document, nil
}

func readHold(hold ledger.HoldRow, unit ledger.Unit) holdDocument {
	document := holdDocument{Hold: hold.ID.String(), Source: hold.Source, Provider: hold.Provider, Deadline: hold.Deadline}
	if hold.Call != uuid.Nil {
		document.Call = hold.Call.String()
	}
	if reserved := hold.Reserve.Of(unit); reserved != nil {
		document.Held = new(ledger.FormatAmount(unit, *reserved))
	}
	return document
}

func (e *environment) printAccounts(accounts []accountDocument) error {
	out := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	for _, a := range accounts {
		_, _ = fmt.Fprintf(out, "%s\tused in all %s\theld %s\n", a.Account, a.Used, a.Held)
		for _, w := range a.Windows {
			recovers := ""
			if w.RecoversAt != nil {
				recovers = "recovers " + w.RecoversAt.Format(time.RFC3339Nano)
			}
			_, _ = fmt.Fprintf(out, "  %s\tused %s\theld %s\tleft %s of %s\t%s\n", w.Window, w.Used, w.Held, w.Left, w.Limit, recovers)
		}
		for _, h := range a.Holds {
			held := "unbounded"
			if h.Held != nil {
				held = *h.Held
			}
			_, _ = fmt.Fprintf(out, "  hold %s\tof call %s\t%s\tuntil %s\n", h.Hold, h.Call, held, h.Deadline.Format(time.RFC3339Nano))
		}
	}
	return out.Flush()
}
