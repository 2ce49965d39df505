package memory

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"regent/ledger"
)

// activationsMax bounds the activations that are kept, in bytes: any one of [ledger.ActivationMax], or hundreds of the usual size. Those
// that were used longest ago are forgotten first; what was used last has room alone.
const activationsMax = 64 << 20

// activations are the policies that records name, the one used longest ago first.
type activations struct {
	recent *simplelru.LRU[[32]byte, activation]
	bytes  int
}

type activation struct {
	content []byte
	usedAt  time.Time
}

// KeepActivation keeps an activation, or notes that it was used.
func (s *Store) KeepActivation(_ context.Context, digest [32]byte, content []byte) error {
	if err := ledger.CheckActivation(content); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, known := s.activations.recent.Peek(digest)
	if !known && len(content) == 0 {
		return ledger.ErrNotFound
	}
	if !known {
		kept.content = bytes.Clone(content)
		s.activations.bytes += len(content)
	}
	if now := s.clock(); now.After(kept.usedAt) {
		kept.usedAt = now
	}
	s.activations.recent.Add(digest, kept)
	for s.activations.bytes > activationsMax {
		oldest, _, _ := s.activations.recent.GetOldest()
		s.activations.remove(oldest)
	}
	return nil
}

// Activation reads an activation.
func (s *Store) Activation(_ context.Context, digest [32]byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept, known := s.activations.recent.Peek(digest)
	if !known {
		return nil, ledger.ErrNotFound
	}
	return bytes.Clone(kept.content), nil
}

// OldActivations lists those that were last used before a moment.
func (s *Store) OldActivations(_ context.Context, before time.Time) ([][32]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.activations.old(before), nil
}

// DropActivations removes them.
func (s *Store) DropActivations(_ context.Context, before time.Time) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.activations.old(before)
	for _, digest := range old {
		s.activations.remove(digest)
	}
	return len(old), nil
}

func (a *activations) old(before time.Time) (found [][32]byte) {
	for _, digest := range a.recent.Keys() {
		if kept, _ := a.recent.Peek(digest); kept.usedAt.Before(before) {
			found = append(found, digest)
		}
	}
	slices.SortFunc(found, func(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) })
	return found
}

func (a *activations) remove(digest [32]byte) {
	kept, _ := a.recent.Peek(digest)
	a.bytes -= len(kept.content)
	a.recent.Remove(digest)
}
