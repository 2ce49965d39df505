package sqldb

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestVerdicts: what a failure means before COMMIT was handed over, and after.
func TestVerdicts(t *testing.T) {
	sent := func(state string) error { return fmt.Errorf("a statement: %w", &pgconn.PgError{Code: state}) }
	for _, test := range []struct {
		name          string
		err           error
		before, after verdict
	}{
		{"serialization failure", sent("40001"), conflict, conflict},
		{"deadlock", sent("40P01"), conflict, conflict},
		{"restart transaction", sent("CR000"), conflict, conflict},
		{"lock time-out", sent("55P03"), conflict, conflict},
		{"a row that is there", sent("23505"), conflict, conflict},
		{"a rollback in answer to COMMIT", errRolledBack, conflict, conflict},
		{"completion unknown", sent("40003"), unknown, unknown},
		{"shutdown", sent("57P01"), lost, unknown},
		{"starting up", sent("57P03"), lost, unknown},
		{"too many connections", sent("53300"), lost, unknown},
		{"disk full", sent("53100"), lost, unknown},
		{"input and output", sent("58030"), lost, unknown},
		{"internal", sent("XX000"), lost, unknown},
		{"idle in a transaction", sent("25P03"), lost, lost},
		{"a check of a column", sent("23514"), refused, refused},
		{"out of range", sent("22003"), refused, refused},
		{"no such table", sent("42P01"), refused, refused},
		{"wrong password", sent("28P01"), refused, refused},
		{"a connection that ended", io.ErrUnexpectedEOF, lost, unknown},
		{"a driver's own", errors.New("conn closed"), lost, unknown},
	} {
		if got := (&failure{err: test.err}).classify(); got != test.before {
			t.Errorf("%s before COMMIT: %s, want %s", test.name, got, test.before)
		}
		if got := (&failure{err: test.err, committing: true}).classify(); got != test.after {
			t.Errorf("%s after COMMIT: %s, want %s", test.name, got, test.after)
		}
	}
}
