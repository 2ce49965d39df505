package engine

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
	"regent/policies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// bench is a router on the shipped policies and a ledger in memory.
type bench struct {
	*ledgertest.Clock
	t      *testing.T
	router *Router
	ledger *ledger.Ledger
	// resolved counts what was asked of the resolver, by source; unknown are the sources that it does not know.
	resolved map[string]int
	unknown  map[string]bool
	// resolving is called each time the resolver is. Optional.
	resolving func()

	mu          sync.Mutex // guards what callbacks note
	diagnostics []Diagnostics
	settlements []Settlement
}

// newBench makes one; change may alter the router's configuration and the policy's settings.
func newBench(t *testing.T, change func(*Config, *policy.Settings)) *bench {
	return newBenchOn(t, nil, change)
}

// newBenchOn has its ledger on a store that wrap makes of the one in memory.
func newBenchOn(t *testing.T, wrap func(ledger.Store) ledger.Store, change func(*Config, *policy.Settings)) *bench {
	return newBenchWith(t, 0, wrap, change)
}

// newBenchWith has its ledger lower the charges of holds that ran out for a while.
func newBenchWith(t *testing.T, lateRefund time.Duration, wrap func(ledger.Store) ledger.Store, change func(*Config, *policy.Settings)) *bench {
	t.Helper()
	b := &bench{Clock: ledgertest.NewClock(), t: t, resolved: map[string]int{}, unknown: map[string]bool{}}
	var store ledger.Store = memory.New(b.Now)
	if wrap != nil {
		store = wrap(store)
	}
	var err error
	b.ledger, err = ledger.Open(ledger.Config{Store: store, Elapsed: b.Elapsed, SweepEvery: time.Hour, LateRefund: lateRefund, OnExpire: func(e ledger.Expiry) { b.router.Expired(e) }})
	if err != nil {
		t.Fatal(err)
	}
	strict := false
	settings := policy.Settings{Strict: &strict}
	config := Config{
		Policy: &policy.Engine{}, Ledger: b.ledger, Resolver: b, Now: b.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		OnDiagnostics: func(d Diagnostics) { b.mu.Lock(); b.diagnostics = append(b.diagnostics, d); b.mu.Unlock() },
		OnSettlement:  func(s Settlement) { b.mu.Lock(); b.settlements = append(b.settlements, s); b.mu.Unlock() },
	}
	if change != nil {
		change(&config, &settings)
	}
	activation, err := policy.Load(ctx, policy.Source{Bundles: []policy.Bundle{{Name: "regent", FS: policies.Files(), Tested: true}}, Settings: settings,
		TimeLimit: time.Minute}) // a busy machine must not fail a test of something else
	if err != nil {
		t.Fatal(err)
	}
	config.Policy.Activate(activation)
	if b.router, err = New(config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.close()
		if err := b.ledger.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// noProvider is what tests resolve whose attempts contact nobody.
var noProvider = adapters.ProviderFunc(func(context.Context, adapters.Request) (adapters.Answer, error) {
	return nil, errors.New("it contacts nobody")
})

// close closes the router.
func (b *bench) close() {
	late, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	if err := b.router.Close(late); err != nil {
		b.t.Error(err)
	}
}

// flush waits for settlements.
func (b *bench) flush() {
	b.t.Helper()
	late, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	settled := make(chan struct{})
	go func() {
		b.router.denials.flush()
		b.router.settling.Wait()
		b.router.denials.writing.Wait()
		b.router.teller.wait()
		close(settled)
	}()
	select {
	case <-settled:
	case <-late.Done():
		b.t.Fatal("settlements are still being written")
	}
}

// Resolve is the host's resolver.
func (b *bench) Resolve(candidate Candidate) (adapters.Provider, error) {
	b.mu.Lock()
	b.resolved[candidate.Source]++
	unknown, resolving := b.unknown[candidate.Source], b.resolving
	b.mu.Unlock()
	if resolving != nil {
		resolving()
	}
	if unknown {
		return nil, ErrUnresolved
	}
	return noProvider, nil
}

func text(s string) *string { return &s }

func number(n int64) *int64 { return &n }

var perToken = ledger.Price{Rates: ledger.Rates{UncachedInput: 1_000_000, CachedInput: 1_000_000, CacheWrite5m: 1_000_000, CacheWrite1h: 1_000_000, Output: 1_000_000, Reasoning: 1_000_000}}

// budgetOf is what a request's first candidate is paid from.
func budgetOf(request *Request) Budget {
	one := request.Candidates[0]
	return Budget{Identity: request.Identity, Provider: one.Provider, Model: one.Model, TaskID: request.TaskID, Kind: request.Facts.Kind}
}

// candidate is a source that can serve everything, at a micro-dollar a token.
func candidate(source string) Candidate {
	return Candidate{
		Candidate: policy.Candidate{
			Source: source, Provider: "fake", Model: source, Enabled: true, Connection: "authorised", Protocols: []string{"openai.chat"},
			Modalities: []string{}, OutputTokensMax: number(50), Priced: true,
		},
		Price: &perToken,
	}
}

// hosted is a request of a library host: caps, no calls, no estimate.
func hosted(sources ...string) Request {
	request := Request{
		Identity: policy.Identity{Tenant: text("acme"), Principal: text("bot"), PrincipalKind: text("agent"), Groups: []string{}},
		Facts:    policy.Call{Model: "m", Protocol: "openai.chat", Modalities: []string{}},
	}
	for _, source := range sources {
		request.Candidates = append(request.Candidates, candidate(source))
	}
	return request
}

// called is a call of the gateway: recorded, with an estimate, on alice's accounts.
func called(limit int64, sources ...string) Request {
	request := hosted(sources...)
	request.ID = uuid.Must(uuid.NewV7())
	request.Call = &ledger.Call{ID: request.ID, Owner: "alice", Model: "m", Protocol: "openai.chat"}
	request.Identity = policy.Identity{User: text("alice"), Groups: []string{}}
	request.Facts.InputTokens = number(10)
	request.Scopes = []Scope{{Kind: ledger.ScopeUser, ID: "alice", Limits: map[ledger.Unit][]ledger.Limit{
		ledger.Tokens: {{Window: ledger.Fixed{Length: time.Hour}, Max: limit}}, ledger.USD: {},
	}}}
	return request
}

// balance is what is used and held of an account's tokens.
func (b *bench) balance(scope, id string) (used, held int64) {
	b.t.Helper()
	row, _, err := ledger.ReadAccount(ctx, b.ledger.Store(), ledger.Account{Scope: scope, ID: id, Unit: ledger.Tokens})
	if err != nil {
		b.t.Fatal(err)
	}
	return row.Used - row.Refunds, row.Held
}

func (b *bench) wantBalance(scope, id string, used, held int64) {
	b.t.Helper()
	if gotUsed, gotHeld := b.balance(scope, id); gotUsed != used || gotHeld != held {
		b.t.Fatalf("%s/%s: used %d, held %d; want %d and %d", scope, id, gotUsed, gotHeld, used, held)
	}
}
