package engine

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

// durably says that what a store keeps outlives the process.
type durably struct{ ledger.Store }

func (durably) Durable() bool { return true }

// TestProviderSource is what the synchronous facade allows and refuses, a line each. Nobody is asked for a provider before all checks.
func TestProviderSource(t *testing.T) {
	plain := routed("a/b")
	with := func(change func(*Model)) Model {
		model := plain
		change(&model)
		return model
	}
	configured := func(change func(*Config)) func(*Config, *policy.Settings) {
		return func(c *Config, _ *policy.Settings) { change(c) }
	}
	set := func(change func(*policy.Settings)) func(*Config, *policy.Settings) {
		return func(_ *Config, s *policy.Settings) { change(s) }
	}
	named := func(n int) string { return strings.Repeat("é", n/2) + strings.Repeat("x", n%2) }
	allowed := Code("")
	for _, test := range []struct {
		what    string
		change  func(*Config, *policy.Settings)
		model   Model
		durable bool
		code    Code
		reason  string
		// told is what diagnostics say: nothing of a model that is none, and of a router that cannot answer.
		told string
	}{
		{"nothing restricts", nil, plain, false, allowed, "", "openrouter selected"},
		{"an allow-list with the provider", set(func(s *policy.Settings) { s.AllowList = &policy.AllowList{Providers: &[]string{"openrouter"}} }), plain, false, allowed, "", "openrouter selected"},
		{"the residency is allowed", set(func(s *policy.Settings) { s.AllowedResidencies = &[]string{"us", "eu"} }), plain, false, allowed, "", "openrouter selected"},
		{"a name of 400 bytes", nil, with(func(m *Model) { m.ID = named(400) }), false, allowed, "", "openrouter selected"},
		{"limits of nothing", nil, with(func(m *Model) { m.ContextTokens, m.OutputTokensMax = number(0), number(0) }), false, allowed, "", "openrouter selected"},

		{"another provider's allow-list", set(func(s *policy.Settings) { s.AllowList = &policy.AllowList{Providers: &[]string{"other"}} }), plain, false, CodeAllowList, "PROVIDER_NOT_ALLOWED", "openrouter denied"},
		{"an empty allow-list", set(func(s *policy.Settings) { s.AllowList = &policy.AllowList{Providers: &[]string{}} }), plain, false, CodeAllowList, "PROVIDER_NOT_ALLOWED", "openrouter denied"},
		{"another model's allow-list", set(func(s *policy.Settings) { s.AllowList = &policy.AllowList{Models: &[]string{"a/c"}} }), plain, false, CodeAllowList, "MODEL_NOT_ALLOWED", "openrouter denied"},
		{"another residency", set(func(s *policy.Settings) { s.AllowedResidencies = &[]string{"us"} }), plain, false, CodeResidency, "RESIDENCY_NOT_ALLOWED", "openrouter denied"},
		{"no residency is allowed", set(func(s *policy.Settings) { s.AllowedResidencies = &[]string{} }), plain, false, CodeResidency, "RESIDENCY_NOT_ALLOWED", "openrouter denied"},
		{"the residency is not known", set(func(s *policy.Settings) { s.AllowedResidencies = &[]string{"eu"} }), with(func(m *Model) { m.Compat.Residency = "" }), false, CodeResidency, "RESIDENCY_NOT_ALLOWED", "openrouter denied"},
		{"routing is refused", set(func(s *policy.Settings) { s.OpenRouterRouting = "refuse" }), plain, false, CodePolicy, "OPENROUTER_ROUTING_REFUSED", "openrouter denied"},
		{"strict policy, and no bounds", set(func(s *policy.Settings) { s.Strict = new(true) }), plain, false, CodeAsyncRequired, ReasonFacade, ""},

		{"a durable store", nil, plain, true, CodeAsyncState, ReasonFacade, ""},
		{"a durable store, and budgets", configured(func(c *Config) { c.Budgets = &Budgets{} }), plain, true, CodeAsyncState, ReasonFacade, ""},
		{"budgets", configured(func(c *Config) { c.Budgets = &Budgets{MaxTokens: number(1000)} }), plain, false, CodeAsyncRequired, ReasonFacade, ""},
		{"budgets of nothing", configured(func(c *Config) { c.Budgets = &Budgets{MaxTokens: number(0), MaxCostNanoUSD: number(0)} }), plain, false, CodeAsyncRequired, ReasonFacade, ""},
		{"budgets without a ceiling", configured(func(c *Config) { c.Budgets = &Budgets{} }), plain, false, CodeAsyncRequired, ReasonFacade, ""},
		{"a rate limit", configured(func(c *Config) { c.RateLimit = &RateLimit{Max: 1000} }), plain, false, CodeAsyncRequired, ReasonFacade, ""},
		{"a circuit", configured(func(c *Config) { c.Circuit = &Circuit{} }), plain, false, CodeAsyncRequired, ReasonFacade, ""},
		{"fallbacks", configured(func(c *Config) { c.Fallbacks = []Candidate{candidate("one")} }), plain, false, CodeAsyncRequired, ReasonFacade, ""},
		{"a selection", configured(func(c *Config) { c.Selection = Balanced{} }), plain, false, CodeAsyncRequired, ReasonFacade, ""},
		{"an empty list of fallbacks", configured(func(c *Config) { c.Fallbacks = []Candidate{} }), plain, false, allowed, "", "openrouter selected"},

		{"no provider", nil, with(func(m *Model) { m.Provider = "" }), false, CodeValidation, ReasonInvalid, ""},
		{"no model", nil, with(func(m *Model) { m.ID = "" }), false, CodeValidation, ReasonInvalid, ""},
		{"too long a provider", nil, with(func(m *Model) { m.Provider = named(401) }), false, CodeValidation, ReasonInvalid, ""},
		{"too long a model", nil, with(func(m *Model) { m.ID = named(401) }), false, CodeValidation, ReasonInvalid, ""},
		{"NUL in the provider", nil, with(func(m *Model) { m.Provider = "a\x00b" }), false, CodeValidation, ReasonInvalid, ""},
		{"NUL in the model", nil, with(func(m *Model) { m.ID = "\x00" }), false, CodeValidation, ReasonInvalid, ""},
		{"a provider that is no UTF-8", nil, with(func(m *Model) { m.Provider = "\xff" }), false, CodeValidation, ReasonInvalid, ""},
		{"a model that is no UTF-8", nil, with(func(m *Model) { m.ID = "a\xc3" }), false, CodeValidation, ReasonInvalid, ""},
		{"a context below 0", nil, with(func(m *Model) { m.ContextTokens = number(-1) }), false, CodeValidation, ReasonInvalid, ""},
		{"an output below 0", nil, with(func(m *Model) { m.OutputTokensMax = number(-1) }), false, CodeValidation, ReasonInvalid, ""},
		{"a context beyond numbers", nil, with(func(m *Model) { m.ContextTokens = number(ledger.TokensMax + 1) }), false, CodeValidation, ReasonInvalid, ""},
		{"a residency that is no UTF-8", nil, with(func(m *Model) { m.Compat.Residency = "\xff" }), false, CodeValidation, ReasonInvalid, ""},
		{"too long a residency", nil, with(func(m *Model) { m.Compat.Residency = named(401) }), false, CodeValidation, ReasonInvalid, ""},
		{"broken routing", nil, with(func(m *Model) { m.Compat.OpenRouterRouting = json.RawMessage(`{"only":`) }), false, CodeValidation, ReasonInvalid, ""},
		{"no model, and budgets", configured(func(c *Config) { c.Budgets = &Budgets{} }), Model{}, false, CodeValidation, ReasonInvalid, ""},
	} {
		t.Run(test.what, func(t *testing.T) {
			resolver := &seeing{}
			wrap := func(s ledger.Store) ledger.Store {
				if test.durable {
					return durably{s}
				}
				return s
			}
			b := newBenchOn(t, wrap, func(c *Config, s *policy.Settings) {
				c.Resolver = resolver
				if test.change != nil {
					test.change(c, s)
				}
			})
			_, err := b.router.ProviderSource(test.model)
			b.router.teller.wait()
			if told := told(b.diagnostics); told != test.told {
				t.Errorf("diagnostics: %s, want %s", told, test.told)
			}
			if test.code == allowed {
				if err != nil || len(resolver.candidates) != 1 || resolver.candidates[0].Routing != nil || resolver.candidates[0].Provider != test.model.Provider {
					t.Errorf("%v, and the resolver was asked for %+v", err, resolver.candidates)
				}
				return
			}
			var refusal *Error
			if !errors.As(err, &refusal) || refusal.Code != test.code || refusal.Details.Reason != test.reason || refusal.Message == "" {
				t.Fatalf("got %v (%+v), want %s", err, refusal, test.code)
			}
			if len(resolver.candidates) > 0 {
				t.Errorf("the resolver was asked for %+v", resolver.candidates)
			}
			if refused := told([]Diagnostics{refusal.Diagnostics}); test.told != "" && refused != test.told {
				t.Errorf("the refusal tells %s", refused)
			}
		})
	}
}

// told is what diagnostics say of each attempt.
func told(diagnostics []Diagnostics) string {
	var all []string
	for _, d := range diagnostics {
		for _, attempt := range d.Attempts {
			all = append(all, attempt.Provider+" "+attempt.Outcome)
		}
	}
	return strings.Join(all, ", ")
}

// TestProviderSourceOfAPolicysSelection: it ranks, which the facade cannot either.
func TestProviderSourceOfAPolicysSelection(t *testing.T) {
	b := rankedBy(t, cheapestFirst)
	if _, err := b.router.ProviderSource(routed("a/b")); !isCode(err, CodeAsyncRequired) || len(b.resolved) > 0 {
		t.Errorf("got %v, resolved %v", err, b.resolved)
	}
}

// TestProviderSourceOfWhatNobodyKnows: the one refusal for which the resolver is asked.
func TestProviderSourceOfWhatNobodyKnows(t *testing.T) {
	b := newBench(t, nil)
	b.unknown["openrouter/a/b"] = true
	_, err := b.router.ProviderSource(routed("a/b"))
	refusal := wantRefusal(t, err, CodeUnknownProvider, ClassCapacity, ReasonMiss, 0)
	b.router.teller.wait()
	if !errors.Is(err, ErrUnresolved) || b.resolved["openrouter/a/b"] != 1 || told(b.diagnostics) != "openrouter miss" || refusal.Diagnostics.Outcome != "deny" {
		t.Errorf("%v, resolved %v, diagnostics %+v", err, b.resolved, b.diagnostics)
	}
}

// TestProviderSourceWithoutAPolicy: nothing is allowed then.
func TestProviderSourceWithoutAPolicy(t *testing.T) {
	b := newBench(t, nil)
	config := b.router.Config
	config.Policy = &policy.Engine{}
	router, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := router.ProviderSource(routed("a/b")); !isCode(err, CodePolicy) || len(b.resolved) > 0 {
		t.Errorf("got %v, resolved %v", err, b.resolved)
	}
}

// provider is one that nobody contacts.
type provider struct{ adapters.Provider }

// TestProviderSourceIsSynchronous: what is returned is the resolver's own, for the residency of the model; nothing is kept or recorded.
func TestProviderSourceIsSynchronous(t *testing.T) {
	own := &provider{}
	resolver := resolving(func(Candidate) (adapters.Provider, error) { return own, nil })
	b := newBench(t, func(c *Config, s *policy.Settings) {
		c.Resolver, s.OpenRouterRouting, s.AllowedResidencies = resolver, "honour", &[]string{"eu"}
	})
	for range 3 {
		got, err := b.router.ProviderSource(routed("a/b:free"))
		if err != nil || got != own {
			t.Fatalf("got %v, %v", got, err)
		}
	}
	b.router.teller.wait()
	for _, d := range b.diagnostics {
		if d.Outcome != "allow" || d.SelectedModel != "a/b:free" || !d.OpenRouterRoutingHonored || d.Residency != "eu" {
			t.Errorf("diagnostics: %+v", d)
		}
	}
	records, err := b.ledger.Store().Tail(ctx, 10)
	if err != nil || len(records) > 0 || len(b.diagnostics) != 3 {
		t.Errorf("%d records, %v, %d diagnostics", len(records), err, len(b.diagnostics))
	}
}

// resolving is a resolver that is a function.
type resolving func(Candidate) (adapters.Provider, error)

func (r resolving) Resolve(candidate Candidate) (adapters.Provider, error) { return r(candidate) }
