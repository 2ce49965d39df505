package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"regent/engine/policy"
)

// keeper is an archive of one activation.
type keeper struct{ digest [32]byte }

func (k keeper) Activation(_ context.Context, digest [32]byte) ([]byte, error) {
	if digest != k.digest {
		return nil, errors.New("not found")
	}
	return []byte("content"), nil
}

func TestTheActivationThatDecidedIsRestored(t *testing.T) {
	was := restoreActivation
	t.Cleanup(func() { restoreActivation = was })
	restored := &policy.Activation{}
	restoreActivation = func(_ context.Context, content []byte) (*policy.Activation, error) {
		if string(content) != "content" {
			t.Errorf("got %q", content)
		}
		return restored, nil
	}
	store := keeper{digest: [32]byte{0xab}}
	known := "ab" + strings.Repeat("00", 31)
	if got, err := archived(context.Background(), store, known); err != nil || got != restored {
		t.Errorf("got %v, %v", got, err)
	}
	for digest, want := range map[string]string{
		"cd" + known[2:]: "the policy that decided, cd0000000000: not found",
		"":               `as "", which is no digest`,
		known + "00":     "which is no digest",
		known[:62] + "x": "which is no digest",
	} {
		if _, err := archived(context.Background(), store, digest); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", digest, err)
		}
	}
	restoreActivation = nil
	if _, err := archived(context.Background(), store, known); err == nil || !strings.Contains(err.Error(), "name its bundles by -b") {
		t.Errorf("got %v", err)
	}
}
