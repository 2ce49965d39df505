package sqldb

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// ErrVersion is returned for a database whose tables this program cannot serve.
var ErrVersion = errors.New("the database's tables are of another version")

// Version is where a database's tables are.
type Version struct {
	// Database is what they are at, Program the newest that this program knows.
	Database int64 `json:"database"`
	Program  int64 `json:"program"`
}

// Check returns [ErrVersion] for tables that this program cannot serve. It serves its own version and the next: a migration adds first
// what the one after it takes away, so that replicas of both versions run beside each other while they are replaced.
func (v Version) Check() error {
	switch {
	case v.Database == 0:
		return fmt.Errorf("%w: there are none yet; run \"regent migrate\"", ErrVersion)
	case v.Database < v.Program:
		return fmt.Errorf("%w: they are at %d, this program serves %d and %d; run \"regent migrate\"", ErrVersion, v.Database, v.Program, v.Program+1)
	case v.Database > v.Program+1:
		return fmt.Errorf("%w: they are at %d, this program serves %d and %d; run a newer one", ErrVersion, v.Database, v.Program, v.Program+1)
	}
	return nil
}

// Migrate brings the tables of a database up to date, one process at a time: the others wait. It returns what they were at and are at.
// Tables of the next version are left as they are; those of a later one are [ErrVersion].
func Migrate(ctx context.Context, config Config) (before, after Version, err error) {
	err = withDatabase(ctx, config, func(s *Store, db *sql.DB) error {
		if before, err = s.version(ctx, db); err != nil {
			return err
		}
		if before.Database > before.Program {
			after = before
			return before.Check()
		}
		if err := s.migrate(ctx, db); err != nil {
			return err
		}
		after, err = s.version(ctx, db)
		return err
	})
	return before, after, err
}

// ReadVersion reads where the tables of a database are.
func ReadVersion(ctx context.Context, config Config) (version Version, err error) {
	err = withDatabase(ctx, config, func(s *Store, db *sql.DB) error {
		version, err = s.version(ctx, db)
		return err
	})
	return version, err
}

func withDatabase(ctx context.Context, config Config, do func(*Store, *sql.DB) error) error {
	s, db, err := open(ctx, config)
	if err != nil {
		return err
	}
	return errors.Join(do(s, db), s.Close())
}

// checkVersion refuses tables that this program cannot serve.
func (s *Store) checkVersion(ctx context.Context, db *sql.DB) error {
	version, err := s.version(ctx, db)
	if err != nil {
		return err
	}
	return version.Check()
}

func (s *Store) version(ctx context.Context, db *sql.DB) (version Version, err error) {
	source, err := s.migrations()
	if err != nil {
		return version, err
	}
	names, err := fs.Glob(source, "*.sql")
	if err != nil {
		return version, err
	}
	version.Program = int64(len(names)) // they are numbered from 1
	read := func() error {
		row := db.QueryRowContext(ctx, s.words.Replace(`SELECT coalesce(max(version_id), 0) FROM ledger_migration`))
		return row.Scan(&version.Database)
	}
	if err = read(); err != nil && !s.isEmpty(ctx, db, err) {
		return version, fmt.Errorf("read the tables' version: %w", err)
	}
	return version, nil
}

// isEmpty says whether the table of versions could not be read because it does not exist.
func (s *Store) isEmpty(ctx context.Context, db *sql.DB, err error) bool {
	if s.dialect.rows {
		var sent *pgconn.PgError
		return errors.As(err, &sent) && sent.Code == "42P01" // undefined table
	}
	var found int
	err = db.QueryRowContext(ctx, s.words.Replace(`SELECT count(*) FROM sqlite_schema WHERE name = 'ledger_migration'`)).Scan(&found)
	return err == nil && found == 0
}

// lockEvery is how often one that waits for another's migrations looks whether they are done, lockFor for how long: a start of many
// replicas waits no longer than it has to, and a migration of a big table may take minutes.
const (
	lockEvery = 200 * time.Millisecond
	lockFor   = 5 * time.Minute
)

// migrate brings the tables up to date. At a server it is done under a lock that is a row of a table: CockroachDB has no other.
func (s *Store) migrate(ctx context.Context, db *sql.DB) error {
	source, err := s.migrations()
	if err != nil {
		return err
	}
	options := []goose.ProviderOption{
		goose.WithTableName(s.words.Replace("ledger_migration")), goose.WithDisableGlobalRegistry(true),
	}
	if s.dialect.rows {
		locker, err := lock.NewPostgresTableLocker(lock.WithTableName(s.words.Replace("ledger_migration_lock")),
			lock.WithTableLockTimeout(lockEvery, uint64(lockFor/lockEvery)))
		if err != nil {
			return fmt.Errorf("migrations: %w", err)
		}
		options = append(options, goose.WithLocker(locker))
	}
	provider, err := goose.NewProvider(s.dialect.goose, db, source, options...)
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

// migrations are the rendered migrations.
func (s *Store) migrations() (fs.FS, error) {
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
		rendered[strings.TrimPrefix(path, "migrations/")] = &fstest.MapFile{Data: []byte(s.words.Replace(string(text)))}
	}
	return rendered, nil
}
