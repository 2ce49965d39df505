package decisions

import (
	"context"
	"fmt"
	"io"
	"time"

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
}

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
	for _, stream := range streams {
		if err := s.shipStream(ctx, stream); err != nil {
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
		if err != nil || len(records) == 0 {
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
		at = records[len(records)-1].Number
		if err := s.Store.SetCursor(ctx, s.Name, stream.Writer, at); err != nil {
			return err
		}
	}
	return nil
}
