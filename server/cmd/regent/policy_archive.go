package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"regent/engine/policy"
)

// activationArchive keeps the activations that decisions name; a [ledger.Store] does.
type activationArchive interface {
	// Activation returns the content of the activation with a digest.
	Activation(ctx context.Context, digest [32]byte) ([]byte, error)
}

// restoreActivation makes an activation of an archive's content. It is nil where no archive is kept: then a recorded decision is explained
// under bundles that are named.
var restoreActivation func(ctx context.Context, content []byte) (*policy.Activation, error)

// archived is the activation that decided, by its digest in hex.
func archived(ctx context.Context, archive activationArchive, digest string) (*policy.Activation, error) {
	if restoreActivation == nil {
		return nil, errors.New("the policy that decided is not kept here: name its bundles by -b, and its settings by --settings")
	}
	var key [32]byte
	if decoded, err := hex.DecodeString(digest); err != nil || len(decoded) != len(key) || copy(key[:], decoded) < len(key) {
		return nil, fmt.Errorf("the record names its policy as %q, which is no digest: name its bundles by -b", digest)
	}
	content, err := archive.Activation(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("the policy that decided, %.12s: %w", digest, err)
	}
	return restoreActivation(ctx, content)
}
