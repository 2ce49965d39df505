package sqldb

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/google/uuid"

	"regent/ledger"
)

// Call reads one call.
func (s *Store) Call(ctx context.Context, id uuid.UUID) (ledger.CallReport, error) {
	reports, err := s.reports(ctx, selectCall, id[:])
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
		return s.reports(ctx, selectByClientRequestID, query.Owner, query.ClientRequestID, query.Limit)
	}
	return s.reports(ctx, selectByOwner, query.Owner, query.Limit)
}

// reports reads calls with their attempts.
func (s *Store) reports(ctx context.Context, text string, args ...any) (reports []ledger.CallReport, err error) {
	err = s.readers.inTx(ctx, func(session session) error {
		err := session.query(ctx, func(scan scan) error {
			call, err := scanCall(scan)
			reports = append(reports, ledger.CallReport{Call: call})
			return err
		}, text, args...)
		if err != nil {
			return err
		}
		for i := range reports {
			report := &reports[i]
			err := session.query(ctx, func(scan scan) error {
				hold, err := scanHold(scan)
				report.Attempts = append(report.Attempts, hold.Attempt())
				return err
			}, selectAttempts, report.ID[:])
			if err != nil {
				return err
			}
		}
		return nil
	})
	return reports, err
}

// Streams lists the journal's streams.
func (s *Store) Streams(ctx context.Context) (streams []ledger.Stream, err error) {
	err = s.readers.inTx(ctx, func(session session) error {
		streams, err = session.streams(ctx)
		return err
	})
	return streams, err
}

func (s session) streams(ctx context.Context) (streams []ledger.Stream, err error) {
	err = s.query(ctx, func(scan scan) error {
		var stream ledger.Stream
		err := scan(id{&stream.Writer}, &stream.Last)
		streams = append(streams, stream)
		return err
	}, selectStreams)
	return streams, err
}

// Records reads a stream.
func (s *Store) Records(ctx context.Context, writer uuid.UUID, after int64, limit int) ([]ledger.Record, error) {
	return s.records(ctx, selectRecords, writer[:], after, limit)
}

// Tail reads the newest records, oldest first.
func (s *Store) Tail(ctx context.Context, limit int) ([]ledger.Record, error) {
	records, err := s.records(ctx, selectTail, limit)
	slices.Reverse(records)
	return records, err
}

// CallRecords reads the records of a call.
func (s *Store) CallRecords(ctx context.Context, call uuid.UUID) ([]ledger.Record, error) {
	return s.records(ctx, selectOfCall, call[:])
}

func (s *Store) records(ctx context.Context, text string, args ...any) (records []ledger.Record, err error) {
	err = s.readers.inTx(ctx, func(session session) error {
		records, err = session.records(ctx, text, args...)
		return err
	})
	return records, err
}

func (s session) records(ctx context.Context, text string, args ...any) (records []ledger.Record, err error) {
	err = s.query(ctx, func(scan scan) error {
		var record ledger.Record
		var body string
		err := scan(id{&record.Writer}, &record.Number, micros{&record.At}, &record.Kind, id{&record.Call}, &body)
		record.Body = json.RawMessage(body)
		records = append(records, record)
		return err
	}, text, args...)
	return records, err
}

// Sinks lists the sinks that have read anything.
func (s *Store) Sinks(ctx context.Context) (names []string, err error) {
	err = s.readers.inTx(ctx, func(session session) error {
		return session.query(ctx, func(scan scan) error {
			var name string
			err := scan(&name)
			names = append(names, name)
			return err
		}, selectSinks)
	})
	return names, err
}

// Cursor is how far a sink has read.
func (s *Store) Cursor(ctx context.Context, sink string, writer uuid.UUID) (number int64, err error) {
	err = s.readers.inTx(ctx, func(session session) error {
		return session.query(ctx, func(scan scan) error { return scan(&number) }, selectCursor, sink, writer[:])
	})
	return number, err
}

// SetCursor moves a sink's cursor.
func (s *Store) SetCursor(ctx context.Context, sink string, writer uuid.UUID, number int64) error {
	return s.writer.inTx(ctx, func(session session) error {
		return session.exec(ctx, upsertCursor, sink, writer[:], number)
	})
}
