package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"regent/engine/decisions"
	"regent/ledger"
	"regent/ledger/sqldb"
	"regent/server"
	"regent/server/catalog"
)

type decisionsCmd struct {
	Tail tailCmd `cmd:"" help:"Print the newest records, a JSON line each."`
	Show showCmd `cmd:"" help:"Print every record of one decision."`
}

type tailCmd struct {
	N      int  `short:"n" default:"20" help:"How many records."`
	Follow bool `short:"f" help:"Go on as records come."`
}

// followEvery is how often a followed log is looked at.
const followEvery = 250 * time.Millisecond

// Run prints the newest decisions and outcomes.
func (c tailCmd) Run(ctx context.Context, e *environment) error {
	return e.withStore(ctx, func(store ledger.Store) error {
		printed := map[uuid.UUID]int64{}
		if c.Follow { // what follows the tail is read stream by stream
			streams, err := store.Streams(ctx)
			if err != nil {
				return err
			}
			for _, stream := range streams {
				printed[stream.Writer] = stream.Last
			}
		}
		records, err := store.Tail(ctx, 2*c.N) // some are the ledger's own and not shown
		if err != nil {
			return err
		}
		if err := e.print(records, c.N); err != nil || !c.Follow {
			return err
		}
		return e.follow(ctx, store, printed)
	})
}

func (e *environment) follow(ctx context.Context, store ledger.Store, printed map[uuid.UUID]int64) error {
	for {
		streams, err := store.Streams(ctx)
		if err != nil {
			return err
		}
		for _, stream := range streams {
			records, err := store.Records(ctx, stream.Writer, printed[stream.Writer], 1000)
			if err != nil {
				return err
			}
			if err := e.print(records, len(records)); err != nil {
				return err
			}
			if len(records) > 0 {
				printed[stream.Writer] = records[len(records)-1].Number
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followEvery):
		}
	}
}

// print writes at most the last n records that belong to a decision log.
func (e *environment) print(records []ledger.Record, n int) error {
	var lines [][]byte
	for _, record := range records {
		line, ok, err := decisions.Render(record, map[string]string{"service": "regent"})
		if err != nil {
			return err
		}
		if ok {
			lines = append(lines, line)
		}
	}
	for _, line := range lines[max(0, len(lines)-n):] {
		if _, err := fmt.Fprintf(e.stdout, "%s\n", line); err != nil {
			return err
		}
	}
	return nil
}

type showCmd struct {
	ID string `arg:"" help:"The decision's id, which is the request's."`
}

// Run prints the records of one decision, charges included.
func (c showCmd) Run(ctx context.Context, e *environment) error {
	id, err := uuid.Parse(c.ID)
	if err != nil {
		return fmt.Errorf("%q is no decision id", c.ID)
	}
	return e.withStore(ctx, func(store ledger.Store) error {
		records, err := store.CallRecords(ctx, id)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			return fmt.Errorf("no record of decision %s", id)
		}
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		for _, record := range records {
			document := map[string]any{
				"writer": record.Writer, "number": record.Number, "at": record.At, "kind": record.Kind, "body": record.Body,
			}
			if err := encoder.Encode(document); err != nil {
				return err
			}
		}
		return nil
	})
}

type ledgerCmd struct {
	Show accountCmd `cmd:"" help:"Print an account: what was used, what is held, and by which live holds."`
}

type accountCmd struct {
	Account string `arg:"" help:"SCOPE/ID or SCOPE/ID/UNIT, for example user/alice or user/alice/usd."`
}

// Run prints accounts with their limits, as the catalogue sets them.
func (c accountCmd) Run(ctx context.Context, e *environment) error {
	accounts, err := ledger.ParseAccounts(c.Account)
	if err != nil {
		return err
	}
	catalogue, err := e.catalogue()
	if err != nil {
		return err
	}
	return e.withStore(ctx, func(store ledger.Store) error {
		out := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
		for _, account := range accounts {
			if err := showAccount(ctx, out, store, account, catalogue.Limits(account)); err != nil {
				return err
			}
		}
		return out.Flush()
	})
}

func showAccount(ctx context.Context, out *tabwriter.Writer, store ledger.Store, account ledger.Account, limits []ledger.Limit) error {
	row, holds, err := ledger.ReadAccount(ctx, store, account)
	if err != nil {
		return err
	}
	amount := func(n int64) string { return ledger.FormatAmount(account.Unit, n) }
	_, _ = fmt.Fprintf(out, "%s\tused in all %s\theld %s\n", account, amount(row.Used-row.Refunds), amount(row.Held))
	balances, err := ledger.ReadBalances(ctx, store, []ledger.Claim{{Account: account, Limits: limits}})
	if err != nil {
		return err
	}
	for _, b := range balances {
		recovers := ""
		if !b.RecoversAt.IsZero() {
			recovers = "recovers " + b.RecoversAt.Format(time.RFC3339Nano)
		}
		_, _ = fmt.Fprintf(out, "  %s\tused %s\theld %s\tleft %s of %s\t%s\n", b.Limit.Window, amount(b.Used), amount(b.Held), amount(b.Left), amount(b.Limit.Max), recovers)
	}
	for _, hold := range holds {
		held := "unbounded"
		if reserved := hold.Reserve.Of(account.Unit); reserved != nil {
			held = amount(*reserved)
		}
		_, _ = fmt.Fprintf(out, "  hold %s\tof call %s\t%s\tuntil %s\n", hold.ID, hold.Call, held, hold.Deadline.Format(time.RFC3339Nano))
	}
	return nil
}

// withStore opens the database of the data folder for looking only; the gateway may run on it.
func (e *environment) withStore(ctx context.Context, look func(ledger.Store) error) (err error) {
	config, err := server.FromEnv(e.env)
	if err != nil {
		return err
	}
	path := filepath.Join(cmp.Or(config.Data, server.DefaultData), "regent.db")
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("no database: %w (REGENT_DATA names its folder; the gateway makes it when it runs)", err)
	}
	store, err := sqldb.Open(ctx, sqldb.Config{Path: path, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return look(store)
}

// catalogue reads the catalogue that the gateway reads, for its limits.
func (e *environment) catalogue() (*catalog.Catalogue, error) {
	config, err := server.FromEnv(e.env)
	if err != nil {
		return nil, err
	}
	live, err := catalog.Open(config.Catalogue, e.env, func(*catalog.Catalogue) {})
	if err != nil {
		return nil, err
	}
	return live.Current(), nil
}
