package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
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
	err := e.withStore(ctx, func(store ledger.Store) error {
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
	if c.Follow && errors.Is(err, context.Canceled) {
		return nil // which is how following ends
	}
	return err
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
			return ctx.Err()
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

// withStore opens the gateway's database for looking only; the gateway may run on it.
func (e *environment) withStore(ctx context.Context, look func(ledger.Store) error) (err error) {
	store, err := e.open(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	return look(store)
}

// withLedger opens a ledger of this process's own on the gateway's database, with a stream of its own in the journal. The
// gateway may run on it: what is due is left to it.
func (e *environment) withLedger(ctx context.Context, do func(*ledger.Ledger) error) (err error) {
	store, err := e.open(ctx, false)
	if err != nil {
		return err
	}
	l, err := ledger.Open(ledger.Config{Store: store, LeaveDue: true})
	if err != nil {
		return errors.Join(err, store.Close())
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	return do(l)
}

// open opens the gateway's database, which has to be there.
func (e *environment) open(ctx context.Context, readOnly bool) (ledger.Store, error) {
	database, err := e.database()
	if err != nil {
		return nil, err
	}
	if database.Path != "" {
		if _, err := os.Stat(database.Path); err != nil {
			return nil, fmt.Errorf("no database: %w (REGENT_DATA names its folder; the gateway makes it when it runs)", err)
		}
	}
	database.ReadOnly = readOnly
	return server.OpenDatabase(ctx, database)
}

// database is where the gateway keeps its ledger.
func (e *environment) database() (sqldb.Config, error) {
	config, err := server.FromEnv(e.env)
	if err != nil {
		return sqldb.Config{}, err
	}
	config.Now = e.now
	database, err := config.Database()
	if database.URL != "" {
		database.Now = e.serverNow
	}
	return database, err
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
