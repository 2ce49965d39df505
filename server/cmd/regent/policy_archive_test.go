package main

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"regent/engine/policy"
	"regent/policies"
)

// keeper is an archive of activations by their digests in hex.
type keeper map[string][]byte

func (k keeper) Activation(_ context.Context, digest [32]byte) ([]byte, error) {
	if content, kept := k[hex.EncodeToString(digest[:])]; kept {
		return content, nil
	}
	return nil, errors.New("not found")
}

func TestTheActivationThatDecidedIsRestored(t *testing.T) {
	original, err := policy.Load(context.Background(), policy.Source{Bundles: []policy.Bundle{{Name: "regent", FS: policies.Files(), Tested: true}}})
	if err != nil {
		t.Fatal(err)
	}
	content, err := original.Archive()
	if err != nil {
		t.Fatal(err)
	}
	digest := original.Digest()
	other := strings.Repeat("ab", 32)
	store := keeper{digest: content, other: content}
	if got, err := archived(context.Background(), store, digest); err != nil || got.Digest() != digest {
		t.Errorf("got %v, %v", got, err)
	}
	for name, want := range map[string]string{
		strings.Repeat("cd", 32): "the policy that decided, cdcdcdcdcdcd, name its bundles by -b: not found",
		"":                       `"" is no digest`,
		digest + "00":            "is no digest",
		digest[:62] + "xx":       "is no digest",
		other:                    "somebody has changed it",
	} {
		if _, err := archived(context.Background(), store, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
