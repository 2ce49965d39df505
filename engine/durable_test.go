package engine

import (
	"context"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
)

// newDurableBench has its ledger in an SQLite file.
func newDurableBench(t *testing.T, change func(*Config, *policy.Settings)) *bench {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger.db")
	return newBenchOn(t, func(memory ledger.Store) ledger.Store {
		now := func() time.Time { // the bench's, by which the store that it would have in memory lives
			rows, err := memory.Load(ctx, ledger.Keys{})
			if err != nil {
				t.Error(err)
			}
			return rows.Now
		}
		store, err := sqldb.Open(ctx, sqldb.Config{Path: path, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}, change)
}

// onBothStores runs a test on state in memory and on state that outlives the process.
func onBothStores(t *testing.T, change func(*Config, *policy.Settings), test func(t *testing.T, b *bench)) {
	t.Run("memory", func(t *testing.T) { test(t, newBench(t, change)) })
	t.Run("SQLite", func(t *testing.T) { test(t, newDurableBench(t, change)) })
}

// verified is a request of a host that has proved who asks.
func verified(sources ...string) Request {
	request := hosted(sources...)
	request.Verified = true
	return request
}

// TestDurableStateNeedsAVerifiedIdentity: on each call, and with a proof alone; in memory nobody has to say who they are.
func TestDurableStateNeedsAVerifiedIdentity(t *testing.T) {
	change := func(c *Config, s *policy.Settings) {
		c.Budgets, c.Circuit = &Budgets{MaxTokens: number(1000)}, &Circuit{}
	}
	onBothStores(t, change, func(t *testing.T, b *bench) {
		durable := b.router.durable
		alice := policy.Identity{Tenant: text("acme"), User: text("alice"), Groups: []string{}}
		own := withCap(verified("one"))
		own.Identity = alice
		held := b.resolve(own)
		for _, who := range []struct {
			what     string
			identity policy.Identity
			verified bool
			passes   bool
		}{
			{"nobody", policy.Identity{}, false, false}, {"nobody, proved", policy.Identity{}, true, false},
			{"a group, proved", policy.Identity{Groups: []string{"g"}}, true, false}, {"a kind, proved", policy.Identity{PrincipalKind: text("agent")}, true, false},
			{"a claim", alice, false, false}, {"alice", alice, true, true},
			{"a tenant", policy.Identity{Tenant: text("acme")}, true, true}, {"a principal", policy.Identity{Principal: text("bot")}, true, true},
		} {
			budget := Budget{Identity: who.identity, Verified: who.verified, Provider: "fake", Model: "one"}
			request := withCap(hosted("one"))
			request.Identity, request.Verified = who.identity, who.verified
			usage := ledger.Usage{Output: 1}
			nobodys := Reservation{ID: uuid.Must(uuid.NewV7()), Token: 1}
			for call, ask := range map[string]func() error{
				"Resolve": func() error { return second(b.router.Resolve(ctx, request)) },
				"Serve": func() error {
					return b.router.Serve(ctx, request, func(context.Context, *Grant) Outcome { return served })
				},
				"RecordUsage": func() error { return second(b.router.RecordUsage(ctx, UsageReport{Budget: budget, Usage: usage})) },
				"RecordUsage of an attempt": func() error {
					return second(b.router.RecordUsage(ctx, UsageReport{Budget: budget, Attempt: uuid.Must(uuid.NewV7()), Usage: usage}))
				},
				"RecordUsage with a hold": func() error {
					return second(b.router.RecordUsage(ctx, UsageReport{Budget: budget, Reservation: &nobodys, Usage: usage}))
				},
				"RecordOutcome": func() error {
					return b.router.RecordOutcome(ctx, OutcomeReport{Identity: who.identity, Verified: who.verified, Provider: "fake", Model: "one", Success: true})
				},
				"RenewBudget":   func() error { return second(b.router.RenewBudget(ctx, budget, nobodys, 0)) },
				"ReleaseBudget": func() error { return b.router.ReleaseBudget(ctx, budget, nobodys) },
				"ReadBudget":    func() error { return second(b.router.ReadBudget(ctx, budget)) },
				"RecordUsage of alice's hold": func() error {
					return second(b.router.RecordUsage(ctx, UsageReport{Budget: budget, Reservation: new(held.Reservation()), Usage: ledger.Usage{Output: -1}}))
				},
				"ReleaseBudget of alice's hold": func() error { return b.router.ReleaseBudget(ctx, budget, Reservation{ID: held.Attempt(), Token: 77}) },
			} {
				err := ask()
				if refused := isCode(err, CodeIdentity); refused != (durable && !who.passes) {
					t.Errorf("%s by %s: %v", call, who.what, err)
				}
			}
		}
		want := 1 + 2*8 // alice's own, and by each call that contacts somebody
		if durable {
			want = 1 + 2*3
		}
		if b.resolved["one"] != want {
			t.Errorf("the resolver was asked %d times, want %d", b.resolved["one"], want)
		}
		if err := b.router.ReleaseBudget(ctx, held.Budget(), held.Reservation()); err != nil {
			t.Errorf("alice's own: %v", err)
		}
	})
}

// TestIdentityComesBeforeTheResolver: who is not verified does not even make policy judge.
func TestIdentityComesBeforeTheResolver(t *testing.T) {
	b := newDurableBench(t, nil)
	refusal := wantRefusal(t, second(b.router.Resolve(ctx, hosted("one"))), CodeIdentity, ClassInvalid, ReasonIdentity, 0)
	records, err := b.ledger.Store().Tail(ctx, 10)
	if err != nil || len(records) > 0 || len(b.resolved) > 0 || refusal.Message == "" {
		t.Errorf("%d records, %v, resolved %v", len(records), err, b.resolved)
	}
}

// TestAHoldIsItsOwners: another's identity, provider, model or task is told that there is no such hold, and changes nothing.
func TestAHoldIsItsOwners(t *testing.T) {
	onBothStores(t, withBudget(1000), func(t *testing.T, b *bench) {
		for _, task := range []string{"", "build"} {
			request := withCap(verified("one"))
			request.TaskID = task
			resolution := b.resolve(request)
			reservation, budget := resolution.Reservation(), resolution.Budget()
			other := func(change func(*Budget)) Budget { budget := budget; change(&budget); return budget }
			strangers := map[string]Budget{
				"another tenant": other(func(b *Budget) { b.Identity.Tenant = text("umbrella") }), "no tenant": other(func(b *Budget) { b.Identity.Tenant = nil }),
				"another provider": other(func(b *Budget) { b.Provider = "other" }), "no provider": other(func(b *Budget) { b.Provider = "" }),
				"another task": other(func(b *Budget) { b.TaskID += "2" }),
			}
			if task == "" { // whose workers and models share its pool
				strangers["another principal"] = other(func(b *Budget) { b.Identity.Principal = text("other") })
				strangers["another kind"] = other(func(b *Budget) { b.Identity.PrincipalKind = text("human") })
				strangers["a user"] = other(func(b *Budget) { b.Identity.User = text("alice") })
				strangers["another model"] = other(func(b *Budget) { b.Model = "two" })
			} else {
				strangers["outside of the task"] = other(func(b *Budget) { b.TaskID = "" })
			}
			want := b.wantReport(t, budget, 0, 10)
			for name, stranger := range strangers {
				usage := ledger.Usage{Output: 1}
				for call, err := range map[string]error{
					"release":                b.router.ReleaseBudget(ctx, stranger, reservation),
					"renewal":                second(b.router.RenewBudget(ctx, stranger, reservation, time.Hour)),
					"charge":                 second(b.router.RecordUsage(ctx, UsageReport{Budget: stranger, Reservation: &reservation, Usage: usage})),
					"charge of the attempt":  second(b.router.RecordUsage(ctx, UsageReport{Budget: stranger, Attempt: reservation.ID, Usage: usage})),
					"charge with its amount": second(b.router.RecordUsage(ctx, UsageReport{Budget: stranger, Reservation: &reservation, NanoUSD: number(1)})),
				} {
					if !isCode(err, CodeState) {
						t.Errorf("a %s by %s of %q: got %v, want STATE", call, name, task, err)
					}
				}
			}
			if now := b.wantReport(t, budget, 0, 10); !reflect.DeepEqual(now, want) {
				t.Errorf("it was %+v, and is %+v", want, now)
			}
			renewed, err := b.router.RenewBudget(ctx, budget, reservation, 0)
			if err != nil || renewed.Token != reservation.Token+1 { // nobody renewed it before
				t.Errorf("renewed as %+v, %v", renewed, err)
			}
			if task == "build" { // another worker of the task
				budget.Identity.Principal = text("other")
			}
			charge, err := b.router.RecordUsage(ctx, UsageReport{Budget: budget, Reservation: &renewed, Usage: ledger.Usage{Output: 4}})
			if err != nil || charge.Tokens != 4 {
				t.Errorf("its owner's charge: %+v, %v", charge, err)
			}
			b.wantReport(t, budget, 4, 0)
		}
	})
}

// wantReport reads a budget, and checks its tokens.
func (b *bench) wantReport(t *testing.T, budget Budget, used, held int64) *BudgetReport {
	t.Helper()
	report, err := b.router.ReadBudget(ctx, budget)
	if err != nil {
		t.Fatal(err)
	}
	if report.Used.Tokens != used || report.Held.Tokens != held {
		t.Fatalf("%+v: used %d, held %d; want %d and %d", budget, report.Used.Tokens, report.Held.Tokens, used, held)
	}
	return report
}

// TestReadBudgetSumsUp: what the budget does not name; of a task what it was used for.
func TestReadBudgetSumsUp(t *testing.T) {
	onBothStores(t, func(c *Config, _ *policy.Settings) { c.Budgets = &Budgets{} }, func(t *testing.T, b *bench) {
		owner := verified().Identity
		charge := func(budget Budget, tokens int64) {
			t.Helper()
			budget.Verified = true
			if budget.Identity.Tenant == nil {
				budget.Identity = owner
			}
			if _, err := b.router.RecordUsage(ctx, UsageReport{Budget: budget, Usage: ledger.Usage{Output: tokens}, NanoUSD: number(tokens * 10)}); err != nil {
				t.Fatal(err)
			}
		}
		charge(Budget{Provider: "p", Model: "a"}, 1)
		charge(Budget{Provider: "p", Model: "@cf/b"}, 2)
		charge(Budget{Provider: "p", Model: "-c:d"}, 4)
		charge(Budget{Provider: "p", Model: "é f"}, 8)
		charge(Budget{Provider: "p2", Model: "a"}, 16)
		charge(Budget{Provider: "@q/r", Model: "a"}, 32)
		charge(Budget{Provider: "p", Model: "a", TaskID: "build"}, 64)
		another := owner
		another.Principal = text("bot2")
		charge(Budget{Identity: another, Provider: "p", Model: "a"}, 128)
		request := withCap(verified())
		request.Candidates = []Candidate{modelOf("@cf/b", nil).Candidate(), modelOf("x", nil).Candidate()}
		request.Candidates[0].Provider = "p"
		b.resolve(request)

		for _, test := range []struct {
			budget     Budget
			used, held int64
		}{
			{Budget{Provider: "p", Model: "a"}, 1, 0}, {Budget{Provider: "p", Model: "@cf/b"}, 2, 10}, {Budget{Provider: "p", Model: "none"}, 0, 0},
			{Budget{Provider: "p"}, 15, 10}, {Budget{Provider: "p2"}, 16, 0}, {Budget{Provider: "@q/r"}, 32, 0}, {Budget{Provider: "q"}, 0, 0},
			{Budget{}, 63, 10}, {Budget{Identity: another}, 128, 0}, {Budget{Identity: policy.Identity{Tenant: text("acme")}}, 0, 0},
			{Budget{TaskID: "build"}, 64, 0}, {Budget{TaskID: "build", Provider: "p", Model: "b"}, 64, 0}, {Budget{TaskID: "other"}, 0, 0},
		} {
			test.budget.Verified = true
			if test.budget.Identity.Tenant == nil {
				test.budget.Identity = owner
			}
			report := b.wantReport(t, test.budget, test.used, test.held)
			if report.Used.NanoUSD != 10*test.used {
				t.Errorf("%+v cost %d", test.budget, report.Used.NanoUSD)
			}
			if parts := len(report.ByModel) + len(report.ByKind) + len(report.Attributions); (parts > 0) != (test.budget.TaskID == "build") {
				t.Errorf("%+v has %d parts", test.budget, parts)
			}
		}
		if err := second(b.router.ReadBudget(ctx, Budget{Identity: owner, Verified: true, Model: "a"})); !isCode(err, CodeValidation) {
			t.Errorf("a model of no provider: %v", err)
		}
		report := b.wantReport(t, Budget{Identity: owner, Verified: true, TaskID: "build"}, 64, 0)
		spent := Spent{Tokens: 64, NanoUSD: 640}
		want := &BudgetReport{
			Used: spent, ByModel: map[string]Spent{"p/a": spent}, ByKind: map[string]Spent{Generation: spent},
			Attributions: []Attribution{{Generation, "p", "a", spent}},
		}
		if !reflect.DeepEqual(report, want) {
			t.Errorf("got %+v, want %+v", report, want)
		}
	})
}

// TestADirectChargeIsMadeOnce: by its attempt; and it is a first use like any other, so that it counts against what comes after.
func TestADirectChargeIsMadeOnce(t *testing.T) {
	onBothStores(t, withBudget(100), func(t *testing.T, b *bench) {
		request := verified("one")
		budget := budgetOf(&request)
		budget.Verified = true
		report := UsageReport{Budget: budget, Attempt: uuid.Must(uuid.NewV7()), Usage: ledger.Usage{Output: 95}, NanoUSD: number(5)}
		for range 3 {
			charge, err := b.router.RecordUsage(ctx, report)
			if want := (ledger.Charge{Tokens: 95, NanoUSD: 5}); err != nil || charge != want {
				t.Fatalf("got %+v, %v", charge, err)
			}
			b.wantReport(t, budget, 95, 0)
		}
		refusal := b.refused(withCap(request), CodeBudget, ReasonLimitReached)
		if ms := value(refusal.Details.RetryAfterMs); ms != (24 * time.Hour).Milliseconds() {
			t.Errorf("retry after %d ms", ms)
		}
		changed := report
		changed.Usage.Output++
		if err := second(b.router.RecordUsage(ctx, changed)); !isCode(err, CodeState) {
			t.Errorf("another charge of the attempt: got %v, want STATE", err)
		}
		b.wantReport(t, budget, 95, 0)
		resolution := b.resolve(verified("one")) // has no hold, and an attempt all the same
		report.Attempt, report.Usage, report.NanoUSD = resolution.Attempt(), ledger.Usage{Output: 5}, nil
		for range 2 {
			if charge, err := b.router.RecordUsage(ctx, report); err != nil || charge.Tokens != 5 {
				t.Fatalf("got %+v, %v", charge, err)
			}
		}
		b.wantReport(t, budget, 100, 0)
		b.refused(verified("one"), CodeBudget, ReasonLimitReached)
	})
}

// TestACostThatIsTold: is charged where no price says it, and refused where one does.
func TestACostThatIsTold(t *testing.T) {
	onBothStores(t, withBudget(1000), func(t *testing.T, b *bench) {
		unpriced := withCap(verified())
		unpriced.Candidates = []Candidate{modelOf("one", nil).Candidate()}
		for _, stated := range []*int64{number(123), nil} {
			resolution := b.resolve(unpriced)
			reservation := resolution.Reservation()
			report := UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: 2}, NanoUSD: stated}
			for range 2 {
				charge, err := b.router.RecordUsage(ctx, report)
				if want := (ledger.Charge{Tokens: 2, NanoUSD: value(stated)}); err != nil || charge != want {
					t.Fatalf("got %+v, %v, want %+v", charge, err, want)
				}
			}
		}
		read, err := b.router.ReadBudget(ctx, Budget{Identity: unpriced.Identity, Verified: true, Provider: "fake", Model: "one"})
		if err != nil || read.Used != (Spent{Tokens: 4, NanoUSD: 123}) || read.Held != (Spent{}) {
			t.Errorf("got %+v, %v", read, err)
		}
		resolution := b.resolve(withCap(verified("two")))
		reservation := resolution.Reservation()
		report := UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: 2}, NanoUSD: number(123)}
		for range 2 {
			if err := second(b.router.RecordUsage(ctx, report)); !isCode(err, CodeValidation) {
				t.Errorf("a cost beside a price: got %v, want VALIDATION", err)
			}
			b.wantReport(t, resolution.Budget(), 0, 10)
		}
		for _, amount := range []int64{-1, ledger.NanoUSDMax + 1} {
			report.NanoUSD = &amount
			if err := second(b.router.RecordUsage(ctx, report)); !isCode(err, CodeValidation) {
				t.Errorf("a cost of %d: got %v, want VALIDATION", amount, err)
			}
		}
		report.NanoUSD = nil
		if charge, err := b.router.RecordUsage(ctx, report); err != nil || charge != (ledger.Charge{Tokens: 2, NanoUSD: 2000}) {
			t.Errorf("by its price: %+v, %v", charge, err)
		}
	})
}

// TestManyAtOnceFillATasksBudget: to the last call that fits, and never beyond it, whichever models and workers ask.
func TestManyAtOnceFillATasksBudget(t *testing.T) {
	for _, callers := range []int{32, 256} {
		onBothStores(t, withBudget(1000), func(t *testing.T, b *bench) {
			var asking sync.WaitGroup
			admitted := make(chan *Resolution, callers)
			for i := range callers {
				request := verified([]string{"one", "two", "three"}[i%3])
				request.TaskID, request.MaxTokens = "build", number(90)
				request.Identity.Principal = text(string(rune('a' + i%7)))
				asking.Go(func() {
					switch resolution, err := b.router.Resolve(ctx, request); {
					case err == nil:
						admitted <- resolution
					case !isCode(err, CodeBudget):
						t.Errorf("got %v, want BUDGET", err)
					}
				})
			}
			asking.Wait()
			close(admitted)
			if len(admitted) != 11 {
				t.Errorf("%d of %d were admitted, want 11 of 90 in 1000", len(admitted), callers)
			}
			task := Budget{Identity: verified().Identity, Verified: true, TaskID: "build"}
			b.wantReport(t, task, 0, 990)
			var settling sync.WaitGroup
			for resolution := range admitted {
				settling.Go(func() {
					reservation := resolution.Reservation()
					report := UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: 10}}
					if _, err := b.router.RecordUsage(ctx, report); err != nil {
						t.Error(err)
					}
				})
			}
			settling.Wait()
			b.wantReport(t, task, 110, 0)
			if err := ledgertest.Audit(ctx, b.ledger.Store()); err != nil {
				t.Error(err)
			}
		})
	}
}
