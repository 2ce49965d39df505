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
	// Now is the clock by which a record has been left behind. Required where Own is set.
	Now func() time.Time

	looked time.Time // at the streams of others
}

// leftAfter is how long a record waits for its own process to ship it: many times as long as one that lives takes.
const leftAfter = 5 * time.Second

// Run ships until ctx ends, and then what is left. An error is returned as soon as a write or a read fails.
func (s *Shipper) Run(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if err := s.Ship(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return s.Ship(context.WithoutCancel(ctx))
		case <-tick.C:
		}
	}
}

// Ship copies everything that the sink has not got yet.
func (s *Shipper) Ship(ctx context.Context) error {
	streams, err := s.Store.Streams(ctx)
	if err != nil {
		return fmt.Errorf("decisions: %w", err)
	}
	others := s.others()
	for _, stream := range streams {
		if stream.Writer != s.Own && !others {
			continue
		}
		if err := s.shipStream(ctx, stream); errors.Is(err, ledger.ErrState) {
			continue // its own process ships it after all
		} else if err != nil {
			return fmt.Errorf("decisions: sink %s: %w", s.Name, err)
		}
	}
	return nil
}

func (s *Shipper) shipStream(ctx context.Context, stream ledger.Stream) error {
	at, err := s.Store.Cursor(ctx, s.Name, stream.Writer)
	if err != nil {
		return err
	}
	for at < stream.Last {
		records, err := s.Store.Records(ctx, stream.Writer, at, pageMax)
		if err != nil || len(records) == 0 || s.leaves(records[0]) {
			return err
		}
		var page []byte
		for _, record := range records {
			line, ok, err := Render(record, s.Labels)
			if err != nil {
				return err
			}
			if ok {
				page = append(append(page, line...), '\n')
			}
		}
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

// others says whether to look at what other processes have left behind.
func (s *Shipper) others() bool {
	if s.Own == uuid.Nil {
		return true
	}
	if now := s.Now(); s.Leads() && now.Sub(s.looked).Abs() >= leftAfter {
		s.looked = now
		return true
	}
	return false
}

// leaves says that a record is for its own process to ship.
func (s *Shipper) leaves(record ledger.Record) bool {
	return s.Own != uuid.Nil && record.Writer != s.Own && s.Now().Sub(record.At).Abs() < leftAfter
}
