package sqldb

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"testing/fstest"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// sqlite renders the one SQL source for SQLite. STRICT tables refuse a value of another type, so an integer that overflowed
// to a float is an error there and never a wrong amount.
var sqlite = strings.NewReplacer("{int}", "INTEGER", "{bytes}", "BLOB", "{strict}", "STRICT")

// migrate brings the tables up to date.
func migrate(ctx context.Context, db *sql.DB) error {
	source, err := render(sqlite)
	if err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, source,
		goose.WithTableName("ledger_migration"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// render substitutes a database's own words in the migrations.
func render(dialect *strings.Replacer) (fs.FS, error) {
	rendered := fstest.MapFS{}
	paths, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		text, err := migrations.ReadFile(path)
		if err != nil {
			return nil, err
		}
		rendered[strings.TrimPrefix(path, "migrations/")] = &fstest.MapFile{Data: []byte(dialect.Replace(string(text)))}
	}
	return rendered, nil
}
