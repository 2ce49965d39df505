package decisions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

const (
	// pageMax bounds the records that are read at a time: at some KB each, about a megabyte of memory.
	pageMax = 256
	// pollEvery is how long a record waits at most before it is shipped, when all is well.
	pollEvery = 250 * time.Millisecond
)

// Shipper copies decisions and outcomes from the journal to a sink, a line each. The journal is the truth: a sink that
// fails loses nothing and is served from where it stopped, at least once.
type Shipper struct {
	// Store holds the journal.
	Store ledger.Store
	// Name is the sink's, under which the journal remembers how far it has come.
	Name string
	// Sink takes whole lines. A write that fails is tried again with the same lines.
	Sink io.Writer
	// Labels go into outcome events, as into decision events.
	Labels map[string]string
	// Own is this process's stream, where several processes write to the journal: each ships its own. What others leave behind is
	// shipped by the one that Leads. If Own is zero all streams are shipped.
	Own   uuid.UUID
	Leads func() bool
	// Report is told of an error while the store cannot answer, and of nil when it does again. Optional.
	Report func(error)

	// others are the streams of other processes, as they were last looked at.
	others   map[uuid.UUID]otherStream
	lookedAt time.Time
	page     []byte // of lines, written over by each
}

// otherStream is a stream of another process, with records that are not shipped since a time.
type otherStream struct {
	cursor, last int64
	since        time.Time
}

const (
	// lookEvery is how often the streams of others are looked at.
	lookEvery = time.Second
	// leftAfter is how long a stream of another process has to stand still, with records to ship, while this one could look, until it
	// counts as left behind: many times as long as a process takes that lives.
	leftAfter = 5 * time.Second
)

// Run ships until ctx ends, and then what is left. While the store cannot answer it waits; any other error is returned.
func (s *Shipper) Run(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	failing := false
	for {
		err := s.Ship(context.WithoutCancel(ctx))
		if err != nil && !errors.Is(err, ledger.ErrUnavailable) {
			return err
		}
		if s.Report != nil && (err != nil || failing) {
			s.Report(err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return s.Ship(context.WithoutCancel(ctx))
		case <-tick.C:
		}
	}
}

// Ship copies everything that the sink has not got yet, and that is not left to other processes.
func (s *Shipper) Ship(ctx context.Context) error {
	streams, err := s.Store.Streams(ctx)
	if err != nil {
		return fmt.Errorf("decisions: %w", err)
	}
	others := s.Own == uuid.Nil || s.looksAtOthers()
	for _, stream := range streams {
		if stream.Writer != s.Own && !others {
			continue
		}
		err := s.shipStream(ctx, stream)
		if errors.Is(err, ledger.ErrState) {
			continue // its own process ships it after all
		}
		if err != nil {
			return fmt.Errorf("decisions: sink %s: %w", s.Name, err)
		}
	}
	return nil
}

func (s *Shipper) shipStream(ctx context.Context, stream ledger.Stream) error {
	if known := s.others[stream.Writer]; known.last == stream.Last && known.cursor == stream.Last {
		return nil // nothing has come since
	}
	at, err := s.Store.Cursor(ctx, s.Name, stream.Writer)
	if err != nil || s.isLeft(stream, at) {
		return err
	}
	for at < stream.Last {
		records, err := s.Store.Records(ctx, stream.Writer, at, pageMax)
		if err != nil || len(records) == 0 {
			return err
		}
		page := s.page[:0]
		for _, record := range records {
			line, ok, err := Render(record, s.Labels)
			if err != nil {
				return err
			}
			if ok {
				page = append(append(page, line...), '\n')
			}
		}
		s.page = page
		if len(page) > 0 {
			if _, err := s.Sink.Write(page); err != nil {
				return err
			}
		}
		from := at
		at = records[len(records)-1].Number
		if err := s.Store.SetCursor(ctx, s.Name, stream.Writer, from, at); err != nil {
			return err
		}
	}
	return nil
}

// looksAtOthers says whether it is time to look at what other processes have left behind.
func (s *Shipper) looksAtOthers() bool {
	if !s.Leads() {
		s.others = nil // whoever leads again begins to look anew
		return false
	}
	if time.Since(s.lookedAt) < lookEvery {
		return false
	}
	if time.Since(s.lookedAt) > leftAfter { // who could not look does not know that something has stood still
		s.others = nil
	}
	s.lookedAt = time.Now()
	return true
}

// isLeft says whether a stream is left to its own process for now.
func (s *Shipper) isLeft(stream ledger.Stream, cursor int64) bool {
	if s.Own == uuid.Nil || stream.Writer == s.Own {
		return false
	}
	known, seen := s.others[stream.Writer]
	if !seen || known.cursor != cursor || known.cursor == known.last || cursor == stream.Last {
		if s.others == nil {
			s.others = map[uuid.UUID]otherStream{}
		}
		s.others[stream.Writer] = otherStream{cursor, stream.Last, time.Now()}
		return true
	}
	return time.Since(known.since) < leftAfter
}
