package main

import (
	"context"
	"encoding/json"
	"fmt"

	"regent/ledger/sqldb"
)

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" default:"1" help:"Bring the tables up to date. Of several processes one does it, and the others wait."`
	Status migrateStatusCmd `cmd:"" help:"Tell at which version the tables are, and which this program serves."`
}

type migrateUpCmd struct{}

// Run migrates.
func (migrateUpCmd) Run(ctx context.Context, e *environment) error {
	database, err := e.database()
	if err != nil {
		return err
	}
	before, after, err := sqldb.Migrate(ctx, database)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.stdout, "the tables were at version %d and are at %d\n", before.Database, after.Database)
	return err
}

type migrateStatusCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// Run prints the versions. Tables that this program cannot serve are an error, so that a script can wait for them.
func (c migrateStatusCmd) Run(ctx context.Context, e *environment) error {
	database, err := e.database()
	if err != nil {
		return err
	}
	database.ReadOnly = true
	version, err := sqldb.ReadVersion(ctx, database)
	if err != nil {
		return err
	}
	if c.JSON {
		err = json.NewEncoder(e.stdout).Encode(version)
	} else {
		_, err = fmt.Fprintf(e.stdout, "the tables are at version %d; this program serves %d and %d\n", version.Database, version.Program, version.Program+1)
	}
	if err != nil {
		return err
	}
	return version.Check()
}
