package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// server is a PostgreSQL or CockroachDB, through database/sql, so that a host's own pool will do. A transaction goes around
// database/sql: its statements are sent in pipelines, which that cannot.
type server struct {
	// writer and readers are the same pool if it is a host's.
	writer, readers *sql.DB
	dialect         dialect
	owned           bool // the pools are ours to close
}

func (s *server) close() error {
	if !s.owned {
		return nil
	}
	return errors.Join(s.writer.Close(), s.readers.Close())
}

func (s *server) inTx(ctx context.Context, access access, fn func(session) error) error {
	pool := s.readers
	if access == writing {
		pool = s.writer
	}
	connection, err := pool.Conn(ctx)
	if err != nil {
		return &failure{err: err}
	}
	defer func() { _ = connection.Close() }() // which gives it back to the pool
	var failed error
	err = connection.Raw(func(raw any) error {
		own, err := own(raw)
		if err != nil {
			return err
		}
		tx := &serverSession{connection: own.Conn(), access: access, pending: s.begin(access)}
		failed = fn(tx)
		if !tx.end(ctx) || isState(failed, readOnly) {
			return driver.ErrBadConn // so that the pool forgets it
		}
		return nil
	})
	if failed != nil || errors.Is(err, driver.ErrBadConn) {
		return failed
	}
	return err
}

// own is a driver's connection, if the driver is the one that can send pipelines.
func own(raw any) (*stdlib.Conn, error) {
	connection, is := raw.(*stdlib.Conn)
	if !is {
		return nil, fmt.Errorf("the pool's connections are of type %T, not those of pgx's stdlib driver", raw)
	}
	return connection, nil
}

// checkDriver refuses a pool of another driver.
func checkDriver(ctx context.Context, db *sql.DB) error {
	connection, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }() // which gives it back to the pool
	return connection.Raw(func(raw any) error {
		_, err := own(raw)
		return err
	})
}

// begin begins a transaction.
func (s *server) begin(access access) []query {
	begin := query{text: s.dialect.read}
	if access == writing {
		begin.text = s.dialect.write
	}
	if s.dialect.settings == "" {
		return []query{begin}
	}
	return []query{begin, {text: s.dialect.settings}}
}

// serverSession sends the statements of an exchange in one pipeline.
type serverSession struct {
	connection *pgx.Conn
	access     access
	// pending is BEGIN with its settings, until the first exchange takes it along.
	pending []query
	// committing says that COMMIT of what was written was handed to the connection: from then on only the server's own word says that it failed.
	committing bool
}

// readingTime bounds one round trip of reading: many times what the longest page takes. Whoever reads may have no time of its own, and
// a server that hangs, or has silently gone, would keep the connection.
const readingTime = 10 * time.Second

func (s *serverSession) exchange(ctx context.Context, queries []query) error {
	if s.access == reading { // to its end, also if its caller has gone: a read that is broken off costs the connection
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), readingTime)
		defer cancel()
	}
	queries = append(s.pending, queries...)
	s.pending = nil
	batch := &pgx.Batch{}
	for _, q := range queries {
		batch.Queue(q.text, q.args...)
	}
	results := s.connection.SendBatch(ctx, batch)
	err := readAll(results, queries)
	if closing := results.Close(); err == nil {
		err = closing
	}
	if err == nil {
		return nil
	}
	var own *rowError
	if errors.As(err, &own) {
		return err
	}
	return &failure{err: err, committing: s.committing, ours: !s.connection.IsClosed() && !isSent(err) && !errors.Is(err, errRolledBack)}
}

func (s *serverSession) commit(ctx context.Context, queries []query) error {
	s.committing = s.access == writing // there is nothing to be unsure of where nothing was written
	return s.exchange(ctx, append(queries, commitQuery))
}

// end makes sure that no transaction is left open, and says whether the connection is fit for another one.
func (s *serverSession) end(ctx context.Context) bool {
	if s.connection.IsClosed() {
		return false
	}
	if s.connection.PgConn().TxStatus() == 'I' {
		return true
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTime)
	defer cancel()
	_, err := s.connection.Exec(ctx, "ROLLBACK")
	return err == nil && s.connection.PgConn().TxStatus() == 'I'
}

// errRolledBack is a COMMIT that the server has answered by a rollback.
var errRolledBack = errors.New("the transaction was rolled back at its commit")

// readAll reads the results of a pipeline.
func readAll(results pgx.BatchResults, queries []query) error {
	for _, q := range queries {
		if q.row == nil {
			tag, err := results.Exec()
			if err != nil {
				return fmt.Errorf("sqldb: %q: %w", q.text, err)
			}
			if q.text == commitQuery.text && tag.String() != commitQuery.text {
				return errRolledBack
			}
			continue
		}
		if err := readRows(results, q); err != nil {
			return fmt.Errorf("sqldb: %q: %w", q.text, err)
		}
	}
	return nil
}

// rowError is the failure to understand a row: no fault of the server's, and no other time will do.
type rowError struct{ err error }

func (e *rowError) Error() string { return e.err.Error() }
func (e *rowError) Unwrap() error { return e.err }

func readRows(results pgx.BatchResults, q query) error {
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := q.row(rows.Scan); err != nil {
			return &rowError{err}
		}
	}
	return rows.Err()
}

// failure is what went wrong with a transaction at a server.
type failure struct {
	err error
	// committing says that COMMIT had been handed over.
	committing bool
	// ours says that the driver refused what it was given: the connection lives, and the server has said nothing.
	ours bool
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// verdict says what a failure means.
type verdict string

const (
	// conflict: another transaction was in the way, and this one is rolled back. It is done again.
	conflict verdict = "conflict"
	// unknown: whether it was committed nobody has said. It is done again, under the same names, and finds out.
	unknown verdict = "unknown"
	// lost: the connection is gone, or there is none, and nothing was committed. It is done again on another one.
	lost verdict = "lost"
	// refused: the server has said no to what was to be done, and would again.
	refused verdict = "refused"
)

// classify judges a failure. Once COMMIT was handed over only an error that the server itself has sent says that it failed: what the
// driver says of a connection that broke, SafeToRetry included, is true of its own last step and not of what it had sent before.
func (f *failure) classify() verdict {
	var sent *pgconn.PgError
	switch {
	case errors.Is(f.err, errRolledBack):
		return conflict
	case errors.As(f.err, &sent):
		return classifyState(sent.Code, f.committing)
	case f.ours:
		return refused
	case f.committing:
		return unknown
	}
	return lost
}

// readOnly is the SQLSTATE of a write in a session that may only read. Another session may do more.
const readOnly = "25006"

// isSent says whether the server itself has sent an error.
func isSent(err error) bool {
	var sent *pgconn.PgError
	return errors.As(err, &sent)
}

// classifyState judges an SQLSTATE. See PostgreSQL's appendix A and CockroachDB's "Transaction retry error reference".
func classifyState(state string, committing bool) verdict {
	switch state {
	case "40001", "40P01", "CR000", "55P03": // serialization failure, deadlock, CockroachDB's old restart, lock time-out
		return conflict
	case "23505": // somebody else wrote the row between our look and our write
		return conflict
	case "40003": // statement completion unknown
		return unknown
	case readOnly: // a server that was demoted, or a session that began while the database was so
		return lost
	case "25P03": // the transaction stood still for too long, and the connection was ended
		return lost
	}
	switch state[:2] {
	case "08", "57", "58", "XX", "53": // connection, operator intervention, system, internal, resources
		if committing {
			return unknown
		}
		return lost
	}
	return refused
}

// isDuplicate says whether a row was there already that was to be written anew.
func isDuplicate(err error) bool { return isState(err, "23505") }

func isState(err error, state string) bool {
	var sent *pgconn.PgError
	return errors.As(err, &sent) && sent.Code == state
}
