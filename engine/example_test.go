package engine_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing/fstest"
	"time"

	"regent/adapters"
	"regent/engine"
	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/sqldb"
	"regent/policies"
)

// Two models of a host's own catalogue.
var (
	large = engine.Model{Provider: "openai", ID: "gpt-large", Cost: perMillion(2, 8), Compat: engine.Compat{Residency: "us"}}
	small = engine.Model{Provider: "local", ID: "tiny", Cost: perMillion(0, 0), Compat: engine.Compat{Residency: "eu"}}
)

func perMillion(input, output float64) *engine.Cost {
	return &engine.Cost{Input: &input, Output: &output, Unit: engine.PerMillion}
}

// providers are a host's own: each says its model's name.
type providers struct{}

func (providers) Resolve(candidate engine.Candidate) (adapters.Provider, error) {
	return adapters.ProviderFunc(func(context.Context, adapters.Request) (adapters.Answer, error) {
		return adapters.Whole([]byte("I am "+candidate.Model+"."), &ledger.Usage{UncachedInput: 12, Output: 5}), nil
	}), nil
}

// rules are the shipped ones, with a host's settings.
func rules(settings policy.Settings, bundles ...policy.Bundle) *policy.Engine {
	return must(policy.NewEngine(context.Background(), policy.Source{
		Bundles: append(bundles, policy.Bundle{Name: "regent", FS: policies.Files(), Tested: true}), Settings: settings,
	}))
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// A router finds the first candidate that may serve; the host calls its provider, and says what came of it. The shipped rules are strict
// about calls that nothing bounds, unless a host says otherwise.
func ExampleRouter_Resolve() {
	ctx := context.Background()
	router := must(engine.New(engine.Config{
		Policy:    rules(policy.Settings{Strict: new(false), AllowList: &policy.AllowList{Providers: &[]string{"openai", "local"}}}),
		Resolver:  providers{},
		Fallbacks: []engine.Candidate{small.Candidate()},
		Circuit:   &engine.Circuit{Threshold: 1},
	}))
	defer func() { _ = router.Close(ctx) }()

	for _, works := range []bool{false, true} {
		resolution := must(router.Resolve(ctx, engine.Request{Candidates: []engine.Candidate{large.Candidate()}}))
		fmt.Println(resolution.Candidate.Provider, resolution.Candidate.Model)
		for _, attempt := range resolution.Diagnostics.Attempts {
			fmt.Println("-", attempt.Model, attempt.Outcome)
		}
		// Here the host calls resolution.Provider.
		report := engine.OutcomeReport{Provider: resolution.Candidate.Provider, Model: resolution.Candidate.Model, Success: works, Probe: resolution.Probe()}
		if err := router.RecordOutcome(ctx, report); err != nil {
			fmt.Println(err)
		}
	}
	_, err := router.Resolve(ctx, engine.Request{Candidates: []engine.Candidate{engine.Model{Provider: "elsewhere", ID: "big"}.Candidate()}})
	var refusal *engine.Error
	if errors.As(err, &refusal) {
		fmt.Println(refusal.Code, refusal.Details.Reason)
	}
	// Output:
	// openai gpt-large
	// - gpt-large selected
	// local tiny
	// - gpt-large circuit_open
	// - tiny selected
	// ERR_PRISM_MODEL_ROUTER_ALLOW_LIST PROVIDER_NOT_ALLOWED
}

// With a store, budgets outlive the process and are shared by all that have the database. Then every call needs an identity that the host
// has verified.
func ExampleConfig_durableState() {
	ctx := context.Background()
	folder := must(os.MkdirTemp("", "example-"))
	defer func() { _ = os.RemoveAll(folder) }()
	open := func() *engine.Router {
		return must(engine.New(engine.Config{
			Policy: rules(policy.Settings{}), Resolver: providers{},
			Store:   must(sqldb.Open(ctx, sqldb.Config{Path: filepath.Join(folder, "budgets.db")})),
			Budgets: &engine.Budgets{MaxTokens: new(int64(1000))},
		}))
	}
	identity := policy.Identity{Tenant: new("acme"), Principal: new("builder"), PrincipalKind: new("agent")}
	call := engine.Request{
		Identity: identity, Verified: true, TaskID: "build", MaxTokens: new(int64(600)), Candidates: []engine.Candidate{large.Candidate()},
	}
	call.Facts.OutputTokensMax = new(int64(500))

	router := open()
	resolution := must(router.Resolve(ctx, call)) // 600 tokens are held from now on
	_ = router.Close(ctx)

	router = open() // or another replica
	defer func() { _ = router.Close(ctx) }()
	_, err := router.Resolve(ctx, call)
	var refusal *engine.Error
	if errors.As(err, &refusal) {
		fmt.Println(refusal.Code, "held:", refusal.Details.Limit.Held)
	}
	reservation := resolution.Reservation()
	charge := must(router.RecordUsage(ctx, engine.UsageReport{
		Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{UncachedInput: 40, Output: 10},
	}))
	fmt.Println("charged:", charge.Tokens, "tokens, USD", ledger.FormatUSD(charge.NanoUSD))
	budget := must(router.ReadBudget(ctx, engine.Budget{Identity: identity, Verified: true, TaskID: "build"}))
	fmt.Println("used:", budget.Used.Tokens, "held:", budget.Held.Tokens)
	// Output:
	// ERR_PRISM_MODEL_ROUTER_BUDGET held: 600
	// charged: 50 tokens, USD 0.00016
	// used: 50 held: 0
}

// A governed provider does all of it for each call: it admits, holds, streams, goes on to the next candidate if one fails before it has
// said anything, and settles once.
func ExampleRouter_NewGovernedProvider() {
	ctx := context.Background()
	flaky := resolverFunc(func(candidate engine.Candidate) (adapters.Provider, error) {
		if candidate.Provider == "openai" {
			return adapters.ProviderFunc(func(context.Context, adapters.Request) (adapters.Answer, error) {
				return nil, &adapters.Failure{Reason: adapters.Overloaded, Status: 503}
			}), nil
		}
		return providers{}.Resolve(candidate)
	})
	var settlements []string
	router := must(engine.New(engine.Config{
		Policy: rules(policy.Settings{}), Resolver: flaky, Fallbacks: []engine.Candidate{small.Candidate()},
		Budgets: &engine.Budgets{MaxTokens: new(int64(1000))},
		OnSettlement: func(s engine.Settlement) {
			settlements = append(settlements, fmt.Sprint(s.Model, ": ", s.Outcome, ", charged ", s.Charge.Tokens, " tokens"))
		},
	}))
	request := engine.Request{TaskID: "build", MaxTokens: new(int64(100)), Candidates: []engine.Candidate{large.Candidate()}}
	request.Facts.OutputTokensMax = new(int64(50))
	governed := must(router.NewGovernedProvider(engine.GovernedConfig{Request: request}))

	answer := must(governed.Send(ctx, adapters.Request{Body: []byte("Who are you?")}))
	for {
		event, err := answer.Next()
		if err == io.EOF {
			break
		}
		fmt.Println(string(must(event, err).Relay))
	}
	_ = answer.Close()
	_ = router.Close(ctx) // which waits for the callbacks, too
	fmt.Println(strings.Join(settlements, "\n"))
	// Output:
	// I am tiny.
	// gpt-large: error, charged 0 tokens
	// tiny: success, charged 17 tokens
}

type resolverFunc func(engine.Candidate) (adapters.Provider, error)

func (f resolverFunc) Resolve(candidate engine.Candidate) (adapters.Provider, error) {
	return f(candidate)
}

// nearest is a selection of a host's own: what is served where the caller is comes first. It can prefer, and allow nothing.
type nearest struct{ residency string }

func (nearest) Name() string { return "nearest" }

func (n nearest) Rank(_ time.Time, request *engine.Request) ([]int, error) {
	var near, far []int
	for i, candidate := range request.Candidates {
		if candidate.Residency != nil && *candidate.Residency == n.residency {
			near = append(near, i)
		} else {
			far = append(far, i)
		}
	}
	return slices.Concat(near, far), nil
}

// A selection ranks the candidates before any of them is judged. Two are there already: NewCostLatency and Balanced.
func ExampleSelection() {
	ctx := context.Background()
	router := must(engine.New(engine.Config{
		Policy: rules(policy.Settings{Strict: new(false)}), Resolver: providers{}, Selection: nearest{"eu"},
	}))
	defer func() { _ = router.Close(ctx) }()
	resolution := must(router.Resolve(ctx, engine.Request{Candidates: []engine.Candidate{large.Candidate(), small.Candidate()}}))
	fmt.Println(resolution.Candidate.Model, "by", resolution.Diagnostics.Selection)
	// Output: tiny by nearest
}

// An organisation's own rules stand beside the shipped ones, in Rego: a folder is a rule.
func Example_ownRules() {
	ctx := context.Background()
	organisation := policy.Bundle{Name: "org", FS: fstest.MapFS{
		".manifest": {Data: []byte(`{"roots": ["org"], "rego_version": 1}`)},
		"org/rules/tools/tools.rego": {Data: []byte(`# METADATA
# title: Tools run on local models
# schemas:
#   - input: schema.input.candidate
package org.rules.tools

import data.regent.lib

# METADATA
# title: Tool calls stay in the house
# custom:
#   code: TOOLS_STAY_LOCAL
#   remedy: Use a local model.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if {
	input.call.kind == "tool"
	not input.candidate.provider == "local"
}
`)},
	}}
	router := must(engine.New(engine.Config{
		Policy: rules(policy.Settings{Strict: new(false)}, organisation), Resolver: providers{}, Fallbacks: []engine.Candidate{small.Candidate()},
	}))
	defer func() { _ = router.Close(ctx) }()
	for _, kind := range []string{engine.Generation, engine.Tool} {
		request := engine.Request{Candidates: []engine.Candidate{large.Candidate()}}
		request.Facts.Kind = kind
		resolution := must(router.Resolve(ctx, request))
		for _, attempt := range resolution.Diagnostics.Attempts {
			fmt.Printf("%s on %s: %s\n", kind, attempt.Model, cmp.Or(attempt.Reason, attempt.Outcome))
		}
	}
	// Output:
	// generation on gpt-large: selected
	// tool on gpt-large: TOOLS_STAY_LOCAL
	// tool on tiny: selected
}
