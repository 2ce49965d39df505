// Package sqldb is a ledger store on an SQL database: SQLite, for one machine.
//
// It keeps rows and decides nothing. All statements are in this package, one text each, written so that one source can be
// rendered for each database; they use neither sequences nor triggers nor anything of the database's own arithmetic.
package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"regent/ledger"
)

// Config configures a [Store].
type Config struct {
	// Path is the SQLite file. It is created if it is missing; its folder must exist. Required.
	Path string
	// ReadOnly opens an existing database for looking only; Update then fails.
	ReadOnly bool
	// Now is the database's clock. SQLite has none of its own finer than a millisecond, so it is the process's. Defaults to
	// time.Now.
	Now func() time.Time
}

// readersMax bounds the connections that read: more than the cores of a small machine gain nothing.
const readersMax = 4

// Store is a [ledger.Store]. Use Open.
type Store struct {
	now func() time.Time
	// writer has one connection, since SQLite has one writer anyway; readers never wait for it.
	writer, readers handle
}

var _ ledger.Store = (*Store)(nil)

// Open opens a database and brings its tables up to date.
func Open(ctx context.Context, config Config) (_ *Store, err error) {
	s := &Store{now: config.Now}
	if s.now == nil {
		s.now = time.Now
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("sqldb: open %s: %w", config.Path, err), s.Close())
		}
	}()
	if !config.ReadOnly {
		if s.writer.db, err = sql.Open("sqlite", dsn(config.Path, "rwc", "immediate")); err != nil {
			return nil, err
		}
		s.writer.db.SetMaxOpenConns(1)
		if err := migrate(ctx, s.writer.db); err != nil {
			return nil, err
		}
		if err := s.writer.prepare(ctx); err != nil {
			return nil, err
		}
	}
	if s.readers.db, err = sql.Open("sqlite", dsn(config.Path, "ro", "deferred")); err != nil {
		return nil, err
	}
	s.readers.db.SetMaxOpenConns(readersMax)
	return s, s.readers.prepare(ctx)
}

// dsn opens the file with a write-ahead log and a full sync at each commit: what was acknowledged survives a power cut.
// Another process's transaction is waited for up to 5 s, half of a ledger transaction's time-out.
func dsn(path, mode, lock string) string {
	query := url.Values{
		"mode":    {mode},
		"_txlock": {lock},
		"_pragma": {"busy_timeout(5000)", "synchronous(FULL)"},
	}
	if mode != "ro" {
		query["_pragma"] = append(query["_pragma"], "journal_mode(WAL)")
	}
	return (&url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: query.Encode()}).String()
}

// Update runs decide in one transaction that has the database's only write lock from its beginning.
func (s *Store) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	if s.writer.db == nil {
		return errors.New("sqldb: the database was opened for reading only")
	}
	return s.writer.inTx(ctx, func(session session) error {
		return decide(tx{session, s.clock()})
	})
}

// Load reads rows in one snapshot.
func (s *Store) Load(ctx context.Context, keys ledger.Keys) (rows *ledger.Rows, err error) {
	err = s.readers.inTx(ctx, func(session session) error {
		rows, err = session.load(ctx, keys, s.clock())
		return err
	})
	return rows, err
}

func (s *Store) clock() time.Time { return s.now().UTC().Truncate(time.Microsecond) }

// Close closes the database.
func (s *Store) Close() error {
	return errors.Join(s.readers.close(), s.writer.close())
}

// tx is a writing transaction at one reading of the clock.
type tx struct {
	session
	now time.Time
}

func (t tx) Load(ctx context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	return t.load(ctx, keys, t.now)
}

func (t tx) Save(ctx context.Context, changes *ledger.Changes) error { return t.save(ctx, changes) }

// handle is a pool of connections with every statement prepared.
type handle struct {
	db       *sql.DB
	prepared map[string]*sql.Stmt
}

func (h *handle) prepare(ctx context.Context) error {
	h.prepared = make(map[string]*sql.Stmt, len(statements))
	for _, text := range statements {
		stmt, err := h.db.PrepareContext(ctx, text)
		if err != nil {
			return fmt.Errorf("prepare %q: %w", text, err)
		}
		h.prepared[text] = stmt
	}
	return nil
}

func (h *handle) close() error {
	if h.db == nil {
		return nil
	}
	return h.db.Close()
}

// inTx runs fn in a transaction and commits it. COMMIT's own error counts.
func (h *handle) inTx(ctx context.Context, fn func(session) error) error {
	sqlTx, err := h.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("sqldb: begin: %w", err)
	}
	defer func() { _ = sqlTx.Rollback() }() // nothing after a commit; else the transaction is lost in any case
	if err := fn(session{sqlTx, h.prepared}); err != nil {
		return err
	}
	if err := sqlTx.Commit(); err != nil {
		return fmt.Errorf("sqldb: commit: %w", err)
	}
	return nil
}

// session runs prepared statements in a transaction.
type session struct {
	tx       *sql.Tx
	prepared map[string]*sql.Stmt
}

func (s session) exec(ctx context.Context, text string, args ...any) error {
	if _, err := s.tx.StmtContext(ctx, s.prepared[text]).ExecContext(ctx, args...); err != nil {
		return fmt.Errorf("sqldb: %q: %w", text, err)
	}
	return nil
}

// query calls row for each row; row scans it.
func (s session) query(ctx context.Context, row func(scan) error, text string, args ...any) error {
	rows, err := s.tx.StmtContext(ctx, s.prepared[text]).QueryContext(ctx, args...)
	if err != nil {
		return fmt.Errorf("sqldb: %q: %w", text, err)
	}
	defer func() { _ = rows.Close() }() // its error is rows.Err's
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return fmt.Errorf("sqldb: %q: %w", text, err)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("sqldb: %q: %w", text, err)
	}
	return nil
}

type scan func(...any) error
