package sqldb

import (
	"context"
	"time"

	"regent/ledger"
)

// KeepActivation keeps an activation, or notes that it was used: the content is sent only if it is not there.
func (s *Store) KeepActivation(ctx context.Context, digest [32]byte, content []byte) error {
	if err := ledger.CheckActivation(content); err != nil {
		return err
	}
	return s.inTx(ctx, writing, func(session session) error {
		clock, found := s.clock(), false
		err := session.exchange(ctx, one(s.read(func(scan scan) error {
			found = true
			return scan(new(int64))
		}, touchActivation, clock, clock, digest[:])))
		switch {
		case err != nil:
			return err
		case found:
			return session.commit(ctx, nil)
		case len(content) == 0:
			return ledger.ErrNotFound
		}
		return session.commit(ctx, one(s.bind(makeActivation, digest[:], clock, content)))
	})
}

// Activation reads an activation.
func (s *Store) Activation(ctx context.Context, digest [32]byte) (content []byte, err error) {
	found := false
	err = s.look(ctx, func() query {
		content, found = nil, false
		return s.read(func(scan scan) error {
			found = true
			return scan(&content)
		}, readActivation, digest[:])
	})
	if err == nil && !found {
		err = ledger.ErrNotFound
	}
	return content, err
}

// OldActivations lists those that were last used before a moment.
func (s *Store) OldActivations(ctx context.Context, before time.Time) (found [][32]byte, err error) {
	err = s.look(ctx, func() query {
		found = nil
		return s.read(digests(&found), oldActivations, before.UnixMicro())
	})
	return found, err
}

// DropActivations removes them.
func (s *Store) DropActivations(ctx context.Context, before time.Time) (int, error) {
	var dropped [][32]byte
	err := s.inTx(ctx, writing, func(session session) error {
		dropped = nil
		return session.commit(ctx, one(s.read(digests(&dropped), deleteActivations, before.UnixMicro())))
	})
	return len(dropped), err
}

// digests scans a digest and appends it.
func digests(to *[][32]byte) func(scan) error {
	return func(scan scan) error {
		var found [32]byte
		err := scan(digest{&found})
		*to = append(*to, found)
		return err
	}
}
