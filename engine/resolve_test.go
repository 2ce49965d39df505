package engine

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/engine/policy"
	"regent/ledger"
)

// refused resolves a request that must be refused.
func (b *bench) refused(request Request, code Code, reason string) *Error {
	b.t.Helper()
	_, err := b.router.Resolve(ctx, request)
	var refusal *Error
	if !errors.As(err, &refusal) {
		b.t.Fatalf("got %v, want a refusal", err)
	}
	b.router.teller.wait()
	if refusal.Code != code || refusal.Details.Reason != reason {
		b.t.Fatalf("got %s (%s), want %s (%s)", refusal.Code, refusal.Details.Reason, code, reason)
	}
	return refusal
}

func TestPolicyDenialsNeverReachTheResolver(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config, *policy.Settings)
		code   Code
		reason string
	}{
		"allow-list": {func(_ *Config, s *policy.Settings) { s.AllowList = &policy.AllowList{Providers: &[]string{"other"}} }, CodeAllowList, "PROVIDER_NOT_ALLOWED"},
		"residency":  {func(_ *Config, s *policy.Settings) { s.AllowedResidencies = &[]string{"eu"} }, CodeResidency, "RESIDENCY_NOT_ALLOWED"},
		"strict":     {func(_ *Config, s *policy.Settings) { strict := true; s.Strict = &strict }, CodeBudget, "CALL_UNBOUNDED"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, test.change)
			b.refused(hosted("one", "two"), test.code, test.reason)
			if len(b.resolved) != 0 {
				t.Errorf("the resolver was asked: %v", b.resolved)
			}
			// A terminal denial ends the library's walk: the second candidate was not judged.
			if steps := b.diagnostics[0].Attempts; len(steps) != 1 || steps[0].Outcome != DeniedStep {
				t.Errorf("attempts: %+v", steps)
			}
		})
	}
}

func withBudget(max int64) func(*Config, *policy.Settings) {
	return func(c *Config, _ *policy.Settings) { c.Budgets = &Budgets{MaxTokens: &max} }
}

func TestCapReservesInFullAndUsageGivesBack(t *testing.T) {
	b := newBench(t, withBudget(1000))
	request := hosted("one")
	request.TaskID, request.MaxTokens = "build", number(600)
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	b.wantBalance(ledger.ScopeTask, "acme:build", 0, 600)
	refusal := b.refused(request, CodeBudget, ReasonLimitReached)
	if refusal.Details.RetryAfterMs == nil || *refusal.Details.RetryAfterMs != (24*time.Hour).Milliseconds() {
		t.Errorf("retryAfterMs: %v", refusal.Details.RetryAfterMs)
	}
	if refusal.Details.Limit.Shortfall != "200" {
		t.Errorf("shortfall: %s", refusal.Details.Limit.Shortfall)
	}
	reservation := resolution.Reservation()
	charge, err := b.router.RecordUsage(ctx, UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: 50}})
	if err != nil || charge.Tokens != 50 {
		t.Fatalf("charge %+v, %v", charge, err)
	}
	b.wantBalance(ledger.ScopeTask, "acme:build", 50, 0)
	request.MaxTokens = number(2000)
	b.refused(request, CodeBudget, ReasonNeverFits)
	request.MaxTokens = number(0)
	b.refused(request, CodeBudget, ReasonZeroCap)
	if b.resolved["one"] != 1 {
		t.Errorf("the resolver was asked %d times, want once", b.resolved["one"])
	}
}

func TestUncappedCallsGetNoReservation(t *testing.T) {
	b := newBench(t, withBudget(100))
	request := hosted("one")
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil || resolution.Reservation() != (Reservation{}) {
		t.Fatalf("%+v, %v", resolution, err)
	}
	used := UsageReport{Budget: budgetOf(&request), Usage: ledger.Usage{Output: 99}}
	if _, err := b.router.RecordUsage(ctx, used); err != nil {
		t.Fatal(err)
	}
	if _, err := b.router.Resolve(ctx, request); err != nil {
		t.Fatalf("with 1 of 100 left: %v", err)
	}
	used.Usage.Output = 1
	if _, err := b.router.RecordUsage(ctx, used); err != nil {
		t.Fatal(err)
	}
	b.refused(request, CodeBudget, ReasonLimitReached)
}

func TestReservationsAreFencedAndExpire(t *testing.T) {
	b := newBench(t, withBudget(1000))
	request := hosted("one")
	request.TaskID, request.MaxTokens = "build", number(600)
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	old := resolution.Reservation()
	renewed, err := b.router.RenewBudget(ctx, resolution.Budget(), old, 0)
	if err != nil || renewed.ID != old.ID || renewed.Token <= old.Token {
		t.Fatalf("%+v, %v", renewed, err)
	}
	wantState := func(what string, err error) {
		t.Helper()
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeState {
			t.Fatalf("%s: got %v, want STATE", what, err)
		}
	}
	wantState("releasing with the old token", b.router.ReleaseBudget(ctx, resolution.Budget(), old))
	if err := b.router.ReleaseBudget(ctx, resolution.Budget(), renewed); err != nil {
		t.Fatal(err)
	}
	b.wantBalance(ledger.ScopeTask, "acme:build", 0, 0)

	resolution, err = b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	b.Advance(time.Minute)
	late := resolution.Reservation()
	_, err = b.router.RenewBudget(ctx, resolution.Budget(), late, time.Hour)
	wantState("renewing an expired hold", err)
	charge, err := b.router.RecordUsage(ctx, UsageReport{Budget: resolution.Budget(), Reservation: &late, Usage: ledger.Usage{Output: 1}})
	if err != nil || !charge.UnknownUsage || charge.Tokens != 600 {
		t.Fatalf("a late report: %+v, %v; want what was reserved", charge, err)
	}
	b.wantBalance(ledger.ScopeTask, "acme:build", 600, 0)
	b.router.teller.wait()
	unknown := 0
	for _, d := range b.diagnostics {
		if d.Outcome == "unknown_usage" {
			unknown++
		}
	}
	if unknown != 1 {
		t.Errorf("%d diagnostics of unknown usage, want 1", unknown)
	}
}

func TestParallelCallsNeverPassATasksBudget(t *testing.T) {
	for _, callers := range []int{32, 256} {
		b := newBench(t, withBudget(1000))
		var wg sync.WaitGroup
		var mu sync.Mutex
		admitted := 0
		for i := range callers {
			request := hosted([]string{"one", "two", "three"}[i%3])
			request.TaskID, request.MaxTokens = "build", number(90)
			worker := string(rune('a' + i%5))
			request.Identity.Principal = &worker
			wg.Go(func() {
				if _, err := b.router.Resolve(ctx, request); err == nil {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if admitted != 11 {
			t.Errorf("%d callers: %d admitted, want 11 of 90 in 1000", callers, admitted)
		}
		b.wantBalance(ledger.ScopeTask, "acme:build", 0, 990)
	}
}

func TestMissesMoveOn(t *testing.T) {
	b := newBench(t, withBudget(1000))
	b.unknown["one"] = true
	request := hosted("one", "two")
	request.TaskID, request.MaxTokens = "build", number(600)
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	if resolution.Candidate.Source != "two" {
		t.Errorf("selected %s", resolution.Candidate.Source)
	}
	b.wantBalance(ledger.ScopeTask, "acme:build", 0, 600) // the first one's hold was given back
	if err := b.router.ReleaseBudget(ctx, resolution.Budget(), resolution.Reservation()); err != nil {
		t.Fatal(err)
	}
	b.unknown["two"] = true
	b.refused(request, CodeUnknownProvider, ReasonMiss)
	b.flush()
	b.wantBalance(ledger.ScopeTask, "acme:build", 0, 0)
}

func TestHardCaps(t *testing.T) {
	b := newBench(t, nil)
	for name, change := range map[string]func(*Config){
		"attempts":    func(c *Config) { c.Attempts = attemptsMax + 1 },
		"diagnostics": func(c *Config) { c.DiagnosticsBytes = diagnosticsBytesMax + 1 },
	} {
		config := b.router.Config
		change(&config)
		_, err := New(config)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeLimits {
			t.Errorf("%s: got %v, want LIMITS", name, err)
		}
	}
	for name, change := range map[string]func(*Request){
		"a negative cap": func(r *Request) { r.MaxTokens = number(-1) },
		"a huge cap":     func(r *Request) { r.MaxCostNanoUSD = number(1 << 53) },
		"another kind":   func(r *Request) { r.Facts.Kind = "thinking" },
	} {
		request := hosted("one")
		change(&request)
		_, err := b.router.Resolve(ctx, request)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeValidation {
			t.Errorf("%s: got %v, want VALIDATION", name, err)
		}
	}
}

// TestDiagnosticsShape is the shape that hosts rely on.
func TestDiagnosticsShape(t *testing.T) {
	b := newBench(t, func(_ *Config, s *policy.Settings) { s.AllowedResidencies = &[]string{"eu"} })
	request := hosted("gpt-4o", "auto")
	request.Candidates[1].Provider = "openrouter"
	request.Candidates[0].CoolingUntil = policy.Nanos(b.Now().Add(time.Minute))
	request.Facts.Residency = text("eu")
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(resolution.Diagnostics, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
  "outcome": "allow",
  "selectedProvider": "openrouter",
  "selectedModel": "auto",
  "attempts": [
    {
      "provider": "fake",
      "model": "gpt-4o",
      "outcome": "denied",
      "reason": "SOURCE_COOLING"
    },
    {
      "provider": "openrouter",
      "model": "auto",
      "outcome": "selected"
    }
  ],
  "identityRefs": {
    "tenantId": "acme",
    "principalId": "bot",
    "principalKind": "agent"
  },
  "openRouterRoutingHonored": false,
  "residency": "eu"
}`
	if string(got) != want {
		t.Errorf("got %s", got)
	}
}

// TestDiagnosticsShapeOfAnOpenCircuit is the shape once more, where the router's own circuit had a candidate left alone.
func TestDiagnosticsShapeOfAnOpenCircuit(t *testing.T) {
	b := newBench(t, func(c *Config, s *policy.Settings) {
		c.Circuit = &Circuit{Threshold: 1}
		s.AllowedResidencies = &[]string{"eu"}
	})
	request := hosted("gpt-4o", "auto")
	request.Candidates[1].Provider = "openrouter"
	request.Candidates[0].Residency, request.Candidates[1].Residency = text("eu"), text("eu")
	request.Facts.Residency = text("eu")
	b.outcome("gpt-4o", false, uuid.Nil)
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(resolution.Diagnostics)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"outcome":"allow","selectedProvider":"openrouter","selectedModel":"auto",` +
		`"attempts":[{"provider":"fake","model":"gpt-4o","outcome":"circuit_open","reason":"circuit_open"},` +
		`{"provider":"openrouter","model":"auto","outcome":"selected"}],` +
		`"identityRefs":{"tenantId":"acme","principalId":"bot","principalKind":"agent"},` +
		`"openRouterRoutingHonored":false,"residency":"eu"}`
	if string(got) != want {
		t.Errorf("got %s", got)
	}
}

func TestDiagnosticsAreCapped(t *testing.T) {
	d := Diagnostics{Outcome: "deny"}
	for range 100 {
		d.Attempts = append(d.Attempts, AttemptStep{Provider: strings.Repeat("p", 100), Model: "m", Outcome: DeniedStep})
	}
	capped := d.capped(2048)
	text, err := json.Marshal(capped)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 2048 || !capped.Truncated || len(capped.Attempts) == 0 || !strings.Contains(string(text), `"diagnostics_truncated":true`) {
		t.Errorf("%d bytes, %d attempts, truncated %v", len(text), len(capped.Attempts), capped.Truncated)
	}
}

func TestModelKeysKeepOwnersApart(t *testing.T) {
	one := candidate("one")
	keys := []string{
		modelKey(policy.Identity{}, one.Provider, one.Model),
		modelKey(policy.Identity{Tenant: text("")}, one.Provider, one.Model),
		modelKey(policy.Identity{Tenant: text("a"), User: text("b")}, one.Provider, one.Model),
		modelKey(policy.Identity{Tenant: text("a:=b")}, one.Provider, one.Model),
		modelKey(policy.Identity{User: text("a"), Principal: text("b")}, one.Provider, one.Model),
		TaskKey(policy.Identity{}, "a:b"),
		TaskKey(policy.Identity{Tenant: text("a")}, "b"),
	}
	slices.Sort(keys)
	if len(slices.Compact(keys)) != 7 {
		t.Errorf("two owners have one key: %q", keys)
	}
}
