package sqldb

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// Call reads one call.
func (s *Store) Call(ctx context.Context, id uuid.UUID) (ledger.CallReport, error) {
	reports, err := s.reports(ctx, readCall, id[:])
	if err != nil {
		return ledger.CallReport{}, err
	}
	if len(reports) == 0 {
		return ledger.CallReport{}, ledger.ErrNotFound
	}
	return reports[0], nil
}

// Calls reads calls, newest first.
func (s *Store) Calls(ctx context.Context, query ledger.CallQuery) ([]ledger.CallReport, error) {
	if query.ClientRequestID != "" {
		return s.reports(ctx, readByName, query.Owner, query.ClientRequestID, query.ClientRequestID, query.Limit)
	}
	return s.reports(ctx, readByOwner, query.Owner, query.Limit)
}

// reports reads calls with their attempts.
func (s *Store) reports(ctx context.Context, statement string, args ...any) (reports []ledger.CallReport, err error) {
	err = s.inTx(ctx, reading, func(session session) error {
		reports = nil
		err := session.exchange(ctx, one(s.read(func(scan scan) error {
			call, err := scanCall(scan)
			reports = append(reports, ledger.CallReport{Call: call})
			return err
		}, statement, args...)))
		if err != nil {
			return err
		}
		queries := make([]query, len(reports))
		for i := range reports {
			report := &reports[i]
			queries[i] = s.read(func(scan scan) error {
				hold, err := scanHold(scan)
				report.Attempts = append(report.Attempts, hold.Attempt())
				return err
			}, readAttempts, report.ID[:])
		}
		return session.commit(ctx, queries)
	})
	return reports, err
}

// Streams lists the journal's streams.
func (s *Store) Streams(ctx context.Context) (streams []ledger.Stream, err error) {
	err = s.look(ctx, func() query {
		streams = nil
		return s.read(stream(&streams), readStreams)
	})
	return streams, err
}

// stream scans a stream and appends it.
func stream(to *[]ledger.Stream) func(scan) error {
	return func(scan scan) error {
		var stream ledger.Stream
		err := scan(id{&stream.Writer}, &stream.Last)
		*to = append(*to, stream)
		return err
	}
}

// Records reads a stream.
func (s *Store) Records(ctx context.Context, writer uuid.UUID, after int64, limit int) ([]ledger.Record, error) {
	return s.records(ctx, readRecords, writer[:], after, limit)
}

// Oldest is the earliest time of the records of a stream above a number.
func (s *Store) Oldest(ctx context.Context, writer uuid.UUID, after int64) (oldest time.Time, err error) {
	err = s.look(ctx, func() query {
		return s.read(func(scan scan) error { return scan(micros{&oldest}) }, readOldest, writer[:], after)
	})
	return oldest, err
}

// Tail reads the newest records, oldest first.
func (s *Store) Tail(ctx context.Context, limit int) ([]ledger.Record, error) {
	records, err := s.records(ctx, readTail, limit)
	slices.Reverse(records)
	return records, err
}

// CallRecords reads the records of a call.
func (s *Store) CallRecords(ctx context.Context, call uuid.UUID) ([]ledger.Record, error) {
	return s.records(ctx, readOfCall, call[:])
}

func (s *Store) records(ctx context.Context, statement string, args ...any) (records []ledger.Record, err error) {
	err = s.look(ctx, func() query {
		records = nil
		return s.read(record(&records), statement, args...)
	})
	return records, err
}

// Sinks lists the sinks that have read anything.
func (s *Store) Sinks(ctx context.Context) (names []string, err error) {
	err = s.look(ctx, func() query {
		names = nil
		return s.read(func(scan scan) error {
			var name string
			err := scan(&name)
			names = append(names, name)
			return err
		}, readSinks)
	})
	return names, err
}

// Cursor is how far a sink has read.
func (s *Store) Cursor(ctx context.Context, sink string, writer uuid.UUID) (number int64, err error) {
	err = s.look(ctx, func() query {
		return s.read(func(scan scan) error { return scan(&number) }, readCursor, sink, writer[:])
	})
	return number, err
}

// SetCursor moves a sink's cursor.
func (s *Store) SetCursor(ctx context.Context, sink string, writer uuid.UUID, from, to int64) error {
	return s.inTx(ctx, writing, func(session session) error {
		moved := false
		err := session.commit(ctx, one(s.read(func(scan scan) error {
			moved = true
			return scan(new(int64))
		}, writeCursor, sink, writer[:], to, from, to)))
		if err == nil && !moved {
			err = fmt.Errorf("%w: another process has moved the cursor of %s", ledger.ErrState, sink)
		}
		return err
	})
}

// look reads by one statement; ask makes it anew for each attempt.
func (s *Store) look(ctx context.Context, ask func() query) error {
	return s.inTx(ctx, reading, func(session session) error { return session.commit(ctx, one(ask())) })
}
