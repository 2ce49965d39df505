package main

import (
	"context"
	"fmt"

	"regent/engine/policy"
)

// activationArchive keeps the activations that decisions name; a [ledger.Store] does.
type activationArchive interface {
	// Activation returns the archive of the activation with a digest.
	Activation(ctx context.Context, digest [32]byte) ([]byte, error)
}

// archived is the activation that decided, by its digest in hex.
func archived(ctx context.Context, archive activationArchive, digest string) (*policy.Activation, error) {
	key, err := policy.ParseDigest(digest)
	if err != nil {
		return nil, fmt.Errorf("the record names the policy that decided otherwise than by its digest, name its bundles by -b: %w", err)
	}
	content, err := archive.Activation(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("the policy that decided, %.12s, name its bundles by -b: %w", digest, err)
	}
	activation, err := policy.Restore(ctx, content)
	if err != nil {
		return nil, err
	}
	if activation.Digest() != digest {
		return nil, fmt.Errorf("what is kept as the policy %.12s is %.12s: somebody has changed it", digest, activation.Digest())
	}
	return activation, nil
}
