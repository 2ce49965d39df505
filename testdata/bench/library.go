package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"regent/adapters"
	"regent/adapters/openai"
	"regent/adapters/upstream"
	"regent/engine"
	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/memory"
	"regent/policies"
)

const libraryStage = "library"

// What is measured of the router as a library, with its state in memory.
const (
	resolved = "resolved" // a call of a host: three candidates, one is resolved, and its usage recorded
	charged  = "charged"  // what the ledger does of that
	judged   = "judged"   // what policy does of that, which remembers
	streamed = "streamed" // an answer of 1,000 events, from its provider
	governed = "governed" // the same through a governed provider
)

// streamedEvents is what a stream is measured by.
const streamedEvents = 1000

// library measures what the router itself takes of a call, and a governed provider of a stream.
func (b *bench) library() error {
	l, err := newLibrary(b.ctx, b.mock.url)
	if err != nil {
		return err
	}
	defer l.close()
	timed := map[string]func() error{resolved: l.resolve, charged: l.book, judged: l.judge, trivial: l.trivial, streamed: l.direct, governed: l.through}
	for round := range b.rounds {
		for name, do := range timed {
			took, err := timeOf(do)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			b.samples = append(b.samples, sample{Stage: libraryStage, Target: name, Round: round, Values: values{"ns": took}})
		}
	}
	counted := values{}
	for _, name := range []string{resolved, charged, judged} {
		counted[name] = testing.AllocsPerRun(200, func() { _ = timed[name]() }) // it was seen to do well
	}
	b.samples = append(b.samples, sample{Stage: libraryStage, Target: regent, Values: counted})
	return nil
}

// library is a host's router, and what is beside it.
type library struct {
	ctx      context.Context
	router   *engine.Router
	books    *ledger.Ledger
	provider adapters.Provider
	govern   *engine.GovernedProvider
	request  engine.Request
	trivial  func() error
}

func newLibrary(ctx context.Context, mock string) (*library, error) {
	decisions, err := newDecisions()
	if err != nil {
		return nil, err
	}
	strict := false
	rules, err := policy.NewEngine(ctx, policy.Source{
		Bundles: []policy.Bundle{{Name: "regent", FS: policies.Files(), Tested: true}}, Settings: policy.Settings{Strict: &strict},
	})
	if err != nil {
		return nil, err
	}
	provider, err := openai.New(openai.Config{BaseURL: mock + "/v1", Client: upstream.New(upstream.Config{AllowPrivate: true})})
	if err != nil {
		return nil, err
	}
	l := &library{ctx: ctx, provider: provider, trivial: decisions.timed[trivial]}
	l.router, err = engine.New(engine.Config{Policy: rules, Resolver: l, Budgets: &engine.Budgets{MaxTokens: new(int64(1 << 50))}})
	if err != nil {
		return nil, err
	}
	if l.books, err = ledger.Open(ledger.Config{Store: memory.New(nil)}); err != nil {
		return nil, err
	}
	l.request = engine.Request{Identity: policy.Identity{Principal: new("bench")}, MaxTokens: new(int64(1000))}
	for _, name := range []string{"one", "two", "three"} {
		model := engine.Model{Provider: "mock", ID: name, Cost: &engine.Cost{Input: new(1.0), Output: new(4.0), Unit: engine.PerMillion}}
		l.request.Candidates = append(l.request.Candidates, model.Candidate())
	}
	l.govern, err = l.router.NewGovernedProvider(engine.GovernedConfig{Request: l.request})
	return l, err
}

func (l *library) close() { _ = errors.Join(l.router.Close(l.ctx), l.books.Close()) }

// Resolve is the host's resolver.
func (l *library) Resolve(engine.Candidate) (adapters.Provider, error) { return l.provider, nil }

func (l *library) resolve() error {
	resolution, err := l.router.Resolve(l.ctx, l.request)
	if err != nil {
		return err
	}
	reservation := resolution.Reservation()
	_, err = l.router.RecordUsage(l.ctx, engine.UsageReport{
		Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{UncachedInput: 100, Output: 10},
	})
	return err
}

// book admits and settles what resolve does, with a record of the same size.
func (l *library) book() error {
	scope := engine.Scope{Kind: ledger.ScopeModel, ID: ":::=bench:mock:one", Limits: map[ledger.Unit][]ledger.Limit{
		ledger.Tokens: {{Window: ledger.Fixed{Length: 24 * time.Hour}, Max: 1 << 50}}, ledger.USD: {{Window: ledger.Fixed{Length: 24 * time.Hour}, Max: ledger.NanoUSDMax}},
	}}
	hold, err := l.books.Admit(l.ctx, ledger.Admission{
		Hold: uuid.Must(uuid.NewV7()), Source: "mock/one", Provider: "mock", Price: l.request.Candidates[0].Price,
		Reserve: ledger.Reserve{Tokens: l.request.MaxTokens, NanoCredits: new(int64)}, Claims: scope.Claims(), Decision: bookedRecord,
	})
	if err != nil {
		return err
	}
	_, err = l.books.Settle(l.ctx, ledger.Ending{
		Hold: hold.ID, Token: hold.Token, State: ledger.Completed, Outcome: ledger.Outcome{Result: ledger.Success},
	}, ledger.Consumption{Usage: &ledger.Usage{UncachedInput: 100, Output: 10}})
	return err
}

// bookedRecord is a decision record of the usual size, with three candidates.
var bookedRecord = []byte(`{"path":"regent/main/decision","result":"` + strings.Repeat("x", 2000) + `"}`)

// judge decides what resolve does.
func (l *library) judge() error {
	call := policy.Call{Model: "one", Protocol: "host", Kind: engine.Generation, Modalities: []string{}, TokensBounded: true}
	candidate := l.request.Candidates[0].Candidate
	candidate.Protocols, candidate.Modalities, candidate.Accounting = []string{"host"}, []string{}, policy.ByAPIKey
	decision, err := l.router.Policy.Current().Judge(l.router.Now(), call, l.request.Identity).Decide(l.ctx, candidate, nil)
	if err == nil && !decision.Allow {
		err = fmt.Errorf("it is denied: %v", decision.Denials)
	}
	return err
}

func (l *library) direct() error  { return l.read(l.provider) }
func (l *library) through() error { return l.read(l.govern) }

// read reads a stream to its end.
func (l *library) read(provider adapters.Provider) error {
	prompt := plan{chunks: streamedEvents}.String()
	answer, err := provider.Send(l.ctx, adapters.Request{
		Protocol: adapters.OpenAIChat, Model: "one", Stream: true,
		Body: []byte(`{"model":"one","stream":true,"messages":[{"role":"user","content":"` + prompt + `"}]}`),
	})
	if err != nil {
		return err
	}
	defer func() { _ = answer.Close() }() // its end has been read
	events := 0
	for {
		_, err := answer.Next()
		switch {
		case err == io.EOF && events >= streamedEvents:
			return nil
		case err != nil:
			return fmt.Errorf("after %d events: %w", events, err)
		}
		events++
	}
}

// ownShare is what the router itself takes of a call, without the ledger's part and policy's.
func ownShare(of func(name string) float64) float64 { return of(resolved) - of(charged) - of(judged) }

// judgeLibrary holds what was measured of the library against its targets.
func (b *bench) judgeLibrary() []judgement {
	if len(b.all(libraryStage, regent, "")) == 0 {
		return nil
	}
	took := func(name string) float64 { return b.of(libraryStage, name, "ns") }
	count := func(name string) float64 { return b.of(libraryStage, regent, name) }
	return []judgement{
		atMost(20, "allocations of the router itself, of a call with 3 candidates", ownShare(count)),
		atMost(0.5, "its time, to a trivial query", ownShare(took)/took(trivial)),
		atMost(1.1, "a stream of 1,000 events through a governed provider, to the provider's own", took(governed)/took(streamed)),
	}
}

// reportLibrary shows what was measured of the library.
func (b *bench) reportLibrary(w *tabwriter.Writer) {
	if len(b.all(libraryStage, regent, "")) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w, "library\t\tµs\tallocations\t")
	for _, name := range []string{trivial, resolved, charged, judged, streamed, governed} {
		_, _ = fmt.Fprintf(w, "\t%s\t%.2f\t%.0f\t\n", name, b.of(libraryStage, name, "ns")/1e3, b.of(libraryStage, regent, name))
	}
	_, _ = fmt.Fprintln(w)
}
