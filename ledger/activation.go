package ledger

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// An activation is a loaded policy: its bundles, data and settings. Decisions name theirs by its digest, and the store keeps it as long
// as one does, so that each can be explained and made again.

// ActivationMax bounds an activation's content, in bytes: a bundle has at most 32 MiB of files, is compressed, and has data beside it.
const ActivationMax = 48 << 20

// CheckActivation returns [ErrInvalid] for content that no store keeps.
func CheckActivation(content []byte) error {
	if len(content) > ActivationMax {
		return fmt.Errorf("%w: an activation of %d bytes; it may have %d", ErrInvalid, len(content), ActivationMax)
	}
	return nil
}

const (
	// namedWithin is how long after its last use an activation is named by a new record at most: a process says every hour that one is
	// in force, and a call writes its record some minutes after it took one. A day is many times that.
	namedWithin = 24 * time.Hour
	// restMax bounds the records that are left of a stream and are read for what they name: a process that is gone leaves one or two
	// for ever, at some KB each.
	restMax = 64
)

// pruneActivations removes the activations that no record names which remains after a pruning, or counts them.
func (l *Ledger) pruneActivations(ctx context.Context, pruned *PruneReport, dry bool) (int, error) {
	oldest, named, err := l.remaining(ctx, pruned)
	if err != nil {
		return 0, err
	}
	before := oldest.Add(-namedWithin)
	old, err := l.store.OldActivations(ctx, before)
	if err != nil {
		return 0, err
	}
	unnamed := 0
	for _, digest := range old {
		switch {
		case !named[digest]:
			unnamed++
		case !dry: // as long as a record names it, it is in use
			if err := l.store.KeepActivation(ctx, digest, nil); err != nil && !errors.Is(err, ErrNotFound) {
				return 0, err
			}
		}
	}
	if dry {
		return unnamed, nil
	}
	return l.store.DropActivations(ctx, before)
}

// remaining looks at the records that remain after a pruning. Those of a stream that has few left are read for what they name. The
// others are no older than oldest, which is no later than what was to be kept.
func (l *Ledger) remaining(ctx context.Context, pruned *PruneReport) (oldest time.Time, named map[[32]byte]bool, err error) {
	streams, err := l.store.Streams(ctx)
	if err != nil {
		return oldest, nil, err
	}
	oldest, named = pruned.Before, map[[32]byte]bool{}
	for _, stream := range streams {
		rest, err := l.store.Records(ctx, stream.Writer, pruned.upTo[stream.Writer], restMax+1)
		if err != nil {
			return oldest, nil, err
		}
		if len(rest) > restMax {
			if oldest, err = l.older(ctx, oldest, stream.Writer, pruned.upTo[stream.Writer]); err != nil {
				return oldest, nil, err
			}
			continue
		}
		for _, record := range rest {
			if digest, names := activationOf(record); names {
				named[digest] = true
			}
		}
	}
	return oldest, named, nil
}

// older is the time of the oldest record of a stream above a number, or a moment that is earlier.
func (l *Ledger) older(ctx context.Context, moment time.Time, writer uuid.UUID, after int64) (time.Time, error) {
	at, err := l.store.Oldest(ctx, writer, after)
	if err == nil && !at.IsZero() && at.Before(moment) {
		moment = at
	}
	return moment, err
}

// activationOf is the activation that a record names, if it names one.
func activationOf(record Record) (digest [32]byte, names bool) {
	var body struct {
		Custom struct {
			Activation string `json:"activation"`
		} `json:"custom"`
	}
	if record.Kind != DecisionRecord || json.Unmarshal(record.Body, &body) != nil {
		return digest, false
	}
	named, err := hex.DecodeString(body.Custom.Activation)
	return digest, err == nil && len(named) == len(digest) && copy(digest[:], named) == len(digest)
}
