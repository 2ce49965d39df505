package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// readersMax bounds the connections that read: more than the cores of a small machine gain nothing.
const readersMax = 4

// file is an SQLite database, with one connection that writes, since SQLite has one writer anyway, and some that read and never wait
// for it.
type file struct{ writer, readers *pool }

// openFile opens the file. Nothing is read or written yet.
func openFile(path string, readOnly bool) (*file, error) {
	f := &file{}
	var err error
	if !readOnly {
		if f.writer, err = openPool(dsn(path, "rwc"), 1, "BEGIN IMMEDIATE"); err != nil {
			return nil, err
		}
	}
	f.readers, err = openPool(dsn(path, "ro"), readersMax, "BEGIN")
	return f, err
}

// dsn opens the file with a write-ahead log and a full sync at each commit: what was acknowledged survives a power cut.
// Another process's transaction is waited for up to 5 s, half of a ledger transaction's time-out.
func dsn(path, mode string) string {
	query := url.Values{"mode": {mode}, "_pragma": {"busy_timeout(5000)", "synchronous(FULL)"}}
	if mode != "ro" {
		query["_pragma"] = append(query["_pragma"], "journal_mode(WAL)")
	}
	return (&url.URL{Scheme: "file", Opaque: url.PathEscape(path), RawQuery: query.Encode()}).String()
}

func (f *file) inTx(ctx context.Context, access access, fn func(session) error) error {
	if access == reading {
		return f.readers.inTx(ctx, fn)
	}
	if f.writer == nil {
		return errors.New("sqldb: the database was opened for reading only")
	}
	return f.writer.inTx(ctx, fn)
}

func (f *file) close() error { return errors.Join(f.readers.close(), f.writer.close()) }

// pool is connections, each with the statements that were prepared on it.
type pool struct {
	db    *sql.DB
	begin string
	idle  chan *fileSession
}

func openPool(dsn string, connections int, begin string) (*pool, error) {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	p := &pool{db: db, begin: begin, idle: make(chan *fileSession, connections)}
	for range connections {
		p.idle <- &fileSession{}
	}
	return p, nil
}

func (p *pool) close() error {
	if p == nil {
		return nil
	}
	return p.db.Close()
}

func (p *pool) inTx(ctx context.Context, fn func(session) error) error {
	var s *fileSession
	select {
	case s = <-p.idle:
	case <-ctx.Done():
		return fmt.Errorf("sqldb: waiting for a connection: %w", context.Cause(ctx))
	}
	defer func() { p.idle <- s }()
	if err := s.begin(ctx, p); err != nil {
		return fmt.Errorf("sqldb: begin: %w", err)
	}
	defer s.end()
	return fn(s)
}

// preparedMax bounds the statements that a connection keeps prepared, at some 20 KB each. There are some 60, each for a few lengths of
// its lists.
const preparedMax = 400

// fileSession is one connection. It runs prepared statements one by one: there is no round trip to save.
type fileSession struct {
	connection *sql.Conn
	prepared   map[string]*sql.Stmt
	open       bool // a transaction
}

func (s *fileSession) begin(ctx context.Context, p *pool) (err error) {
	if s.connection == nil {
		if s.connection, err = p.db.Conn(ctx); err != nil {
			s.connection = nil
			return err
		}
		s.prepared = map[string]*sql.Stmt{}
	}
	if err := s.run(ctx, query{text: p.begin}); err != nil {
		return err
	}
	s.open = true
	return nil
}

// end rolls back what was not committed. A connection on which that fails is given up.
func (s *fileSession) end() {
	if !s.open {
		return
	}
	s.open = false
	ctx, cancel := context.WithTimeout(context.Background(), rollbackTime)
	defer cancel()
	if err := s.run(ctx, query{text: "ROLLBACK"}); err != nil {
		_ = s.connection.Close() // it is of no use, whatever it says
		s.connection = nil
	}
}

// rollbackTime is what is given to ending a transaction that failed, when the caller's own time may be over: a connection that takes
// longer is closed, which ends it too.
const rollbackTime = 2 * time.Second

func (s *fileSession) exchange(ctx context.Context, queries []query) error {
	for _, q := range queries {
		if err := s.run(ctx, q); err != nil {
			return fmt.Errorf("sqldb: %q: %w", q.text, err)
		}
	}
	return nil
}

func (s *fileSession) commit(ctx context.Context, queries []query) error {
	if err := s.exchange(ctx, queries); err != nil {
		return err
	}
	// From here on the caller's time does not count: one who was told that it is over would not know what was committed.
	if err := s.exchange(context.WithoutCancel(ctx), []query{commitQuery}); err != nil {
		return err
	}
	s.open = false
	return nil
}

func (s *fileSession) run(ctx context.Context, q query) error {
	statement, err := s.prepare(ctx, q.text)
	if err != nil {
		return err
	}
	if q.row == nil {
		_, err := statement.ExecContext(ctx, q.args...)
		return err
	}
	rows, err := statement.QueryContext(ctx, q.args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // its error is rows.Err's
	for rows.Next() {
		if err := q.row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (s *fileSession) prepare(ctx context.Context, text string) (*sql.Stmt, error) {
	if statement, known := s.prepared[text]; known {
		return statement, nil
	}
	if len(s.prepared) >= preparedMax {
		for _, statement := range s.prepared {
			_ = statement.Close() // which only frees memory
		}
		clear(s.prepared)
	}
	statement, err := s.connection.PrepareContext(ctx, text)
	if err == nil {
		s.prepared[text] = statement
	}
	return statement, err
}
