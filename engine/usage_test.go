package engine

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/engine/policy"
	"regent/ledger"
)

// TestATaskHasOnePool: models, workers and kinds of work draw from one pool, and it says what each has used.
func TestATaskHasOnePool(t *testing.T) {
	b := newBench(t, withBudget(100))
	tenant := text("acme")
	call := func(worker, source, kind string, tokens int64) error {
		request := hosted(source)
		request.Identity = policy.Identity{Tenant: tenant, Principal: text(worker), PrincipalKind: text("agent"), Groups: []string{}}
		request.TaskID, request.Facts.Kind, request.MaxTokens = "build:1", kind, &tokens
		resolution, err := b.router.Resolve(ctx, request)
		if err != nil {
			return err
		}
		reservation := resolution.Reservation()
		_, err = b.router.RecordUsage(ctx, UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: tokens}})
		return err
	}
	for _, each := range []struct {
		worker, source, kind string
		tokens               int64
	}{{"one", "a", "", 10}, {"two", "a", Generation, 5}, {"two", "b/c", Tool, 7}, {"three", "b/c", Generation, 20}} {
		if err := call(each.worker, each.source, each.kind, each.tokens); err != nil {
			t.Fatalf("%+v: %v", each, err)
		}
	}
	var refusal *Error
	if err := call("four", "d", Generation, 59); !errors.As(err, &refusal) || refusal.Code != CodeBudget {
		t.Errorf("beyond the pool: got %v", err)
	}
	// Another tenant's task of the same name, and one whose name begins like it, are other pools.
	tenant = text("acme:build")
	if err := call("one", "a", Generation, 99); err != nil {
		t.Fatal(err)
	}
	tenant = text("acme")

	running := hosted("a")
	running.Identity, running.TaskID, running.MaxTokens = policy.Identity{Tenant: tenant, Groups: []string{}}, "build:1", number(8)
	if _, err := b.router.Resolve(ctx, running); err != nil {
		t.Fatal(err)
	}
	report, err := b.router.ReadBudget(ctx, Budget{Identity: policy.Identity{Tenant: tenant}, TaskID: "build:1"})
	if err != nil {
		t.Fatal(err)
	}
	micro := func(tokens int64) Spent { return Spent{Tokens: tokens, NanoUSD: tokens * 1000} }
	want := &BudgetReport{
		Used: micro(42), Held: Spent{Tokens: 8},
		ByModel: map[string]Spent{"fake/a": micro(15), "fake/b/c": micro(27)},
		ByKind:  map[string]Spent{Generation: micro(35), Tool: micro(7)},
		Attributions: []Attribution{
			{Generation, "fake", "a", micro(15)}, {Generation, "fake", "b/c", micro(20)}, {Tool, "fake", "b/c", micro(7)},
		},
	}
	if !reflect.DeepEqual(report, want) {
		t.Errorf("got  %+v\nwant %+v", report, want)
	}

	// When the window has closed, all of it is forgotten.
	b.Advance(25 * time.Hour)
	report, err = b.router.ReadBudget(ctx, Budget{Identity: policy.Identity{Tenant: tenant}, TaskID: "build:1"})
	if err != nil || report.Used.Tokens > 8 || len(report.Attributions) > 1 {
		t.Errorf("a day later: %+v, %v", report, err)
	}
}

// TestReadBudgetOfAModel: without a task an owner's use of a model is a budget of its own.
func TestReadBudgetOfAModel(t *testing.T) {
	b := newBench(t, withBudget(100))
	request := hosted("a")
	request.MaxTokens = number(30)
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	reservation := resolution.Reservation()
	if _, err := b.router.RecordUsage(ctx, UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: 12}}); err != nil {
		t.Fatal(err)
	}
	report, err := b.router.ReadBudget(ctx, Budget{Identity: request.Identity, Provider: "fake", Model: "a"})
	if err != nil || report.Used != (Spent{Tokens: 12, NanoUSD: 12_000}) || report.Held != (Spent{}) || len(report.ByModel)+len(report.Attributions) > 0 {
		t.Errorf("got %+v, %v", report, err)
	}
	if report, err := b.router.ReadBudget(ctx, Budget{Identity: request.Identity, Provider: "fake", Model: "b"}); err != nil || report.Used != (Spent{}) {
		t.Errorf("another model: got %+v, %v", report, err)
	}
	var refusal *Error
	if _, err := newBench(t, nil).router.ReadBudget(ctx, Budget{}); !errors.As(err, &refusal) || refusal.Code != CodeValidation {
		t.Errorf("without budgets: got %v", err)
	}
}

// TestAChargeOfAnAttemptSettlesItsHold: once, whatever its token is by now; an attempt without a hold is charged directly.
func TestAChargeOfAnAttemptSettlesItsHold(t *testing.T) {
	b := newBench(t, withBudget(100))
	request := hosted("a")
	request.Attempt, request.MaxTokens, request.TaskID = uuid.Must(uuid.NewV7()), number(60), "build"
	attempt := request.Attempt
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	if resolution.Reservation().ID != attempt {
		t.Errorf("the reservation is %s, not the attempt %s", resolution.Reservation().ID, attempt)
	}
	if _, err := b.router.RenewBudget(ctx, resolution.Budget(), resolution.Reservation(), 0); err != nil {
		t.Fatal(err)
	}
	report := UsageReport{Budget: budgetOf(&request), Attempt: attempt, Usage: ledger.Usage{Output: 7}}
	for range 2 {
		charge, err := b.router.RecordUsage(ctx, report)
		if err != nil || charge.Tokens != 7 {
			t.Fatalf("got %+v, %v", charge, err)
		}
		b.wantBalance(ledger.ScopeTask, "acme:build", 7, 0)
	}
	report.Attempt = uuid.Must(uuid.NewV7())
	if _, err := b.router.RecordUsage(ctx, report); err != nil {
		t.Fatal(err)
	}
	b.wantBalance(ledger.ScopeTask, "acme:build", 14, 0)
	report.Kind = "leisure"
	var refusal *Error
	if _, err := b.router.RecordUsage(ctx, report); !errors.As(err, &refusal) || refusal.Code != CodeValidation {
		t.Errorf("an unknown kind: got %v", err)
	}
}

// TestAChargeOfAnAttemptThatRanOutLowersIt: what was held is charged by then; what was really used is known now.
func TestAChargeOfAnAttemptThatRanOutLowersIt(t *testing.T) {
	b := newBenchWith(t, time.Hour, nil, withBudget(100))
	request := hosted("a")
	request.Attempt, request.MaxTokens, request.TaskID = uuid.Must(uuid.NewV7()), number(60), "build"
	attempt := request.Attempt
	if _, err := b.router.Resolve(ctx, request); err != nil {
		t.Fatal(err)
	}
	b.Advance(10 * time.Minute)
	report := UsageReport{Budget: budgetOf(&request), Attempt: attempt, Usage: ledger.Usage{Output: 7}}
	for range 2 {
		charge, err := b.router.RecordUsage(ctx, report)
		if err != nil || charge.Tokens != 7 {
			t.Fatalf("got %+v, %v", charge, err)
		}
		b.wantBalance(ledger.ScopeTask, "acme:build", 7, 0)
	}
}
