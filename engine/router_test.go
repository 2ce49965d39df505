package engine

import (
	"errors"
	"testing"
	"time"

	"regent/engine/policy"
	"regent/ledger"
)

func TestNewRefuses(t *testing.T) {
	b := newBench(t, nil)
	for name, change := range map[string]func(*Config){
		"no policy":                 func(c *Config) { c.Policy = nil },
		"no resolver":               func(c *Config) { c.Resolver = nil },
		"a negative ceiling":        func(c *Config) { c.Budgets = &Budgets{MaxTokens: number(-1)} },
		"a negative cost ceiling":   func(c *Config) { c.Budgets = &Budgets{MaxCostNanoUSD: number(-1)} },
		"a huge ceiling":            func(c *Config) { c.Budgets = &Budgets{MaxCostNanoUSD: number(ledger.NanoUSDMax + 1)} },
		"a window of 32 days":       func(c *Config) { c.Budgets = &Budgets{Window: 32 * 24 * time.Hour} },
		"a negative window":         func(c *Config) { c.Budgets = &Budgets{Window: -time.Hour} },
		"a negative time to live":   func(c *Config) { c.Budgets = &Budgets{ReservationTTL: -1} },
		"a negative hold's life":    func(c *Config) { c.HoldTTL = -1 },
		"negative attempts":         func(c *Config) { c.Attempts = -1 },
		"9 attempts":                func(c *Config) { c.Attempts = 9 },
		"diagnostics beyond 64 KiB": func(c *Config) { c.DiagnosticsBytes = 64<<10 + 1 },
	} {
		config := b.router.Config
		change(&config)
		_, err := New(config)
		want := CodeValidation
		if name == "negative attempts" || name == "9 attempts" || name == "diagnostics beyond 64 KiB" {
			want = CodeLimits
		}
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
	config := b.router.Config
	config.Attempts, config.DiagnosticsBytes, config.HoldTTL = 8, 64<<10, 0
	config.Budgets = &Budgets{ReservationTTL: time.Hour}
	r, err := New(config)
	if err != nil || r.HoldTTL != time.Hour || r.Budgets.Window != 24*time.Hour {
		t.Errorf("the hard caps: %v", err)
	}
	if b.router.Attempts != 3 || b.router.DiagnosticsBytes != 8<<10 || b.router.HoldTTL != time.Minute {
		t.Errorf("defaults: %d attempts, %d bytes, %v", b.router.Attempts, b.router.DiagnosticsBytes, b.router.HoldTTL)
	}
}

// TestACapWithoutACeilingIsHeld: it bounds the call, and usage before it cannot exhaust it.
func TestACapWithoutACeilingIsHeld(t *testing.T) {
	b := newBench(t, nil)
	request := hosted("one")
	request.MaxTokens = number(500)
	for range 3 {
		resolution, err := b.router.Resolve(ctx, request)
		if err != nil || resolution.Reservation().Token == 0 {
			t.Fatalf("%+v, %v", resolution, err)
		}
		reservation := resolution.Reservation()
		if _, err := b.router.RecordUsage(ctx, UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: 1 << 40}}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAZeroCeilingAdmitsNothing(t *testing.T) {
	b := newBench(t, withBudget(0))
	request := hosted("one")
	b.refused(request, CodeBudget, ReasonNeverFits)
	request.MaxTokens = number(1)
	b.refused(request, CodeBudget, ReasonNeverFits)
	if len(b.resolved) != 0 {
		t.Errorf("the resolver was asked: %v", b.resolved)
	}
}

// TestCostBudget: caps in money are held in full, and a charge is what the tokens cost.
func TestCostBudget(t *testing.T) {
	b := newBench(t, func(c *Config, _ *policy.Settings) { c.Budgets = &Budgets{MaxCostNanoUSD: number(100_000)} })
	request := hosted("one")
	request.TaskID, request.MaxCostNanoUSD = "build", number(60_000)
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	refusal := b.refused(request, CodeBudget, ReasonLimitReached)
	limit := refusal.Details.Limit
	if limit.Account != "task/acme:build/usd" || limit.Limit != "0.0001" || limit.Held != "0.00006" || limit.Shortfall != "0.00002" || limit.Window != "fixed/24h" {
		t.Errorf("limit: %+v", limit)
	}
	reservation := resolution.Reservation()
	charge, err := b.router.RecordUsage(ctx, UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{UncachedInput: 3, Output: 4}})
	if want := (ledger.Charge{Tokens: 7, NanoUSD: 7000}); err != nil || charge != want {
		t.Errorf("charge %+v, %v", charge, err)
	}
	direct := UsageReport{Budget: budgetOf(&request), NanoUSD: number(93_000)}
	if charge, err := b.router.RecordUsage(ctx, direct); err != nil || charge.NanoUSD != 93_000 {
		t.Errorf("a direct charge: %+v, %v", charge, err)
	}
	b.refused(request, CodeBudget, ReasonLimitReached)
}

func TestATaskIsOnePool(t *testing.T) {
	b := newBench(t, withBudget(1000))
	worker := func(tenant, principal, source, task string) Request {
		request := hosted(source)
		request.Identity.Tenant, request.Identity.Principal = &tenant, &principal
		request.TaskID, request.MaxTokens = task, number(500)
		return request
	}
	for _, request := range []Request{worker("acme", "a", "one", "build"), worker("acme", "b", "two", "build")} {
		if _, err := b.router.Resolve(ctx, request); err != nil {
			t.Fatal(err)
		}
	}
	b.refused(worker("acme", "c", "three", "build"), CodeBudget, ReasonLimitReached) // another worker, another model
	for name, request := range map[string]Request{
		"another task": worker("acme", "a", "one", "test"), "another tenant's task of that name": worker("umbrella", "a", "one", "build"),
		"the owner's use outside of tasks": worker("acme", "a", "one", ""), "another owner's": worker("acme", "b", "one", ""),
		"and of another model": worker("acme", "a", "two", ""),
	} {
		if _, err := b.router.Resolve(ctx, request); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.wantBalance(ledger.ScopeTask, "acme:build", 0, 1000)
}

func TestRecordUsageRefuses(t *testing.T) {
	b := newBench(t, withBudget(1000))
	request := hosted("one")
	request.MaxTokens = number(10)
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	reservation := resolution.Reservation()
	for name, report := range map[string]UsageReport{
		"nothing to charge":       {Usage: ledger.Usage{Output: 1}},
		"no candidate":            {Budget: Budget{Identity: request.Identity, Provider: "fake"}},
		"negative usage":          {Budget: budgetOf(&request), Usage: ledger.Usage{Output: -1}},
		"a negative cost":         {Budget: budgetOf(&request), NanoUSD: number(-1)},
		"negative usage of holds": {Budget: budgetOf(&request), Reservation: &reservation, Usage: ledger.Usage{Output: -1}},
	} {
		_, err := b.router.RecordUsage(ctx, report)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeValidation {
			t.Errorf("%s: got %v, want VALIDATION", name, err)
		}
	}
	key := modelKey(request.Identity, request.Candidates[0].Provider, request.Candidates[0].Model)
	b.wantBalance(ledger.ScopeModel, key, 0, 10)
	settle := func(output int64) (ledger.Charge, error) {
		return b.router.RecordUsage(ctx, UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: output}})
	}
	for range 2 { // the same report again is the same charge
		if charge, err := settle(25); err != nil || charge.Tokens != 25 || !charge.Overage {
			t.Errorf("a charge above the hold: %+v, %v", charge, err)
		}
	}
	for name, err := range map[string]error{
		"another report": second(settle(26)), "a release": b.router.ReleaseBudget(ctx, resolution.Budget(), reservation),
		"a renewal": second(b.router.RenewBudget(ctx, resolution.Budget(), reservation, 0)), "nobody's hold": b.router.ReleaseBudget(ctx, resolution.Budget(), Reservation{}),
	} {
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeState {
			t.Errorf("%s after the end: got %v, want STATE", name, err)
		}
	}
	b.wantBalance(ledger.ScopeModel, key, 25, 0)
}

func second[T any](_ T, err error) error { return err }

func TestRenewalKeepsAHold(t *testing.T) {
	b := newBench(t, func(c *Config, _ *policy.Settings) {
		c.Budgets = &Budgets{MaxTokens: number(100), ReservationTTL: 10 * time.Second}
	})
	request := hosted("one")
	request.TaskID, request.MaxTokens = "build", number(60)
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	reservation := resolution.Reservation()
	for _, extend := range []time.Duration{0, 0, time.Minute} { // 0: the router's own
		b.Advance(9 * time.Second)
		if reservation, err = b.router.RenewBudget(ctx, resolution.Budget(), reservation, extend); err != nil {
			t.Fatal(err)
		}
	}
	b.Advance(time.Minute - time.Microsecond)
	b.wantBalance(ledger.ScopeTask, "acme:build", 0, 60)
	b.Advance(time.Microsecond)
	b.wantBalance(ledger.ScopeTask, "acme:build", 60, 0)
}

// TestAnExpiryIsToldOnce: whoever touches the ledger next, one diagnostic says that the usage is unknown, and no more.
func TestAnExpiryIsToldOnce(t *testing.T) {
	b := newBench(t, withBudget(1000))
	request := hosted("one")
	request.MaxTokens = number(600)
	if _, err := b.router.Resolve(ctx, request); err != nil {
		t.Fatal(err)
	}
	b.Advance(time.Minute)
	for range 2 {
		b.refused(request, CodeBudget, ReasonLimitReached)
	}
	outcomes := map[string]int{}
	for _, d := range b.diagnostics {
		outcomes[d.Outcome]++
		if d.Outcome == "unknown_usage" && (d.SelectedProvider != "fake" || d.SelectedModel != "one") {
			t.Errorf("%+v", d)
		}
	}
	if outcomes["allow"] != 1 || outcomes["deny"] != 2 || outcomes["unknown_usage"] != 1 {
		t.Errorf("diagnostics: %v", outcomes)
	}
}

// TestFallbacksFollow: the router's own candidates come after those of the request, each once, and the request is not changed.
func TestFallbacksFollow(t *testing.T) {
	fallbacks := []Candidate{candidate("two"), candidate("one"), candidate("three")}
	b := newBench(t, func(c *Config, _ *policy.Settings) { c.Fallbacks = fallbacks })
	b.unknown["one"], b.unknown["two"] = true, true
	request := hosted("one")
	for range 2 {
		resolution := b.resolve(request)
		if got := told([]Diagnostics{resolution.Diagnostics}); got != "fake miss, fake miss, fake selected" || resolution.Candidate.Source != "three" {
			t.Errorf("%s: %+v", got, resolution.Diagnostics)
		}
	}
	if len(request.Candidates) != 1 || request.Candidates[0].InputPrice != nil || fallbacks[0].InputPrice != nil || b.resolved["one"] != 2 {
		t.Errorf("the request is %+v, resolved %v", request.Candidates, b.resolved)
	}
	if resolution := b.resolve(Request{Identity: request.Identity, Facts: request.Facts}); resolution.Candidate.Source != "three" {
		t.Errorf("without candidates of its own: %+v", resolution.Diagnostics)
	}
}
