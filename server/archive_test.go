package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/memory"
)

// archiving is a store whose archive of policies can be out of order.
type archiving struct {
	ledger.Store
	down atomic.Bool
}

func (a *archiving) KeepActivation(ctx context.Context, digest [32]byte, content []byte) error {
	if a.down.Load() {
		return fmt.Errorf("%w: it is down", ledger.ErrUnavailable)
	}
	return a.Store.KeepActivation(ctx, digest, content)
}

// restored is the policy in force, as its archive has it.
func (g *gateway) restored(t *testing.T) (*policy.Activation, error) {
	t.Helper()
	digest, err := policy.ParseDigest(g.policy.Current().Digest())
	if err != nil {
		t.Fatal(err)
	}
	content, err := g.Ledger().Store().Activation(context.Background(), digest)
	if err != nil {
		return nil, err
	}
	return policy.Restore(context.Background(), content)
}

// TestAPolicyIsArchivedBeforeItCounts: no record names a policy that is not kept, and one that cannot be kept leaves the last in force.
func TestAPolicyIsArchivedBeforeItCounts(t *testing.T) {
	folder := t.TempDir()
	writeBundle(t, folder, rule("FIRST"))
	store := &archiving{Store: memory.New(time.Now)}
	g := startGatewayWith(t, func(c *Config) { c.Store = store }, withBundle(catalogueText, `    - {name: org, folder: "`+folder+`"}
`), nil)
	g.Activate()
	first := g.policy.Current()
	restored, err := g.restored(t)
	if err != nil || restored.Digest() != first.Digest() || restored.Bundles()["org"] != "FIRST" {
		t.Fatalf("restored is %v, %v", restored, err)
	}

	store.down.Store(true)
	writeBundle(t, folder, rule("SECOND"))
	g.Activate()
	if g.policy.Current() != first || g.streamed(t) != "FIRST" {
		t.Error("a policy counts that is not archived")
	}
	if p := g.ready(t).Components["policy"]; p.Status != degraded || !strings.Contains(p.Message, "cannot be archived, so that no record may name it") {
		t.Errorf("health says %+v", p)
	}
	store.down.Store(false)
	wait(t, "the policy to be archived", func() bool { return g.policy.Current() != first })
	restored, err = g.restored(t)
	if err != nil || restored.Digest() != g.policy.Current().Digest() || g.streamed(t) != "SECOND" {
		t.Errorf("restored is %v, %v", restored, err)
	}
	wait(t, "health", func() bool { return g.ready(t).Components["policy"].Status == ok })
}

// TestAPolicyInForceStaysArchived: what somebody has pruned too early is kept again.
func TestAPolicyInForceStaysArchived(t *testing.T) {
	g := startGateway(t, nil)
	if n, err := g.Ledger().Store().DropActivations(context.Background(), time.Now().Add(time.Hour)); err != nil || n != 1 {
		t.Fatalf("%d were kept, %v", n, err)
	}
	if _, err := g.restored(t); !errors.Is(err, ledger.ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	for range 2 {
		if err := g.touchArchive(context.Background(), g.policy.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if restored, err := g.restored(t); err != nil || restored.Digest() != g.policy.Current().Digest() {
		t.Errorf("restored is %v, %v", restored, err)
	}
}
