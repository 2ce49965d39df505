package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/ledgertest"
)

// capsOf is a configuration whose ledger is the router's own.
func capsOf(t *testing.T, change func(*Config)) Config {
	t.Helper()
	config := newBench(t, nil).router.Config
	config.Ledger = nil
	change(&config)
	return config
}

// TestCapsAreFrozen: each stands at its default, can be raised as far as its hard cap, and no further.
func TestCapsAreFrozen(t *testing.T) {
	for _, limit := range []struct {
		name string
		of   func(*Config) *int
		// standard is 0 where the router's own ledger has the default; see [TestTheRoutersOwnLedgerIsBounded].
		standard, hard int
	}{
		{"Attempts", func(c *Config) *int { return &c.Attempts }, 3, 8},
		{"DiagnosticsBytes", func(c *Config) *int { return &c.DiagnosticsBytes }, 8 << 10, 64 << 10},
		{"BudgetKeys", func(c *Config) *int { return &c.BudgetKeys }, 0, 65_536},
		{"RateKeys", func(c *Config) *int { return &c.RateKeys }, 0, 65_536},
		{"CircuitKeys", func(c *Config) *int { return &c.CircuitKeys }, 0, 16_384},
	} {
		for n, want := range map[int]int{0: limit.standard, 1: 1, limit.hard: limit.hard} {
			router, err := New(capsOf(t, func(c *Config) { *limit.of(c) = n }))
			if err != nil {
				t.Errorf("%s of %d: %v", limit.name, n, err)
				continue
			}
			if got := *limit.of(&router.Config); got != want {
				t.Errorf("%s of %d is %d, want %d", limit.name, n, got, want)
			}
			if err := router.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		for _, n := range []int{limit.hard + 1, -1, 1 << 40, -1 << 40} {
			_, err := New(capsOf(t, func(c *Config) { *limit.of(c) = n }))
			if !isCode(err, CodeLimits) || !strings.Contains(err.Error(), fmt.Sprintf("%s must be within 1 and %d, not %d", limit.name, limit.hard, n)) {
				t.Errorf("%s of %d: got %v, want LIMITS", limit.name, n, err)
			}
		}
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.BudgetKeys = 1 }, func(c *Config) { c.RateKeys = 1 }, func(c *Config) { c.CircuitKeys = 1 },
	} {
		config := newBench(t, nil).router.Config
		change(&config)
		if _, err := New(config); !isCode(err, CodeValidation) {
			t.Errorf("a bound of a host's ledger: got %v, want VALIDATION", err)
		}
	}
}

// ownBench is a router with a ledger of its own.
func ownBench(t *testing.T, change func(*Config)) *bench {
	t.Helper()
	b := &bench{Clock: ledgertest.NewClock(), t: t, resolved: map[string]int{}, unknown: map[string]bool{}}
	router, err := New(capsOf(t, func(c *Config) {
		c.Now, c.Resolver, c.OnDiagnostics, c.OnSettlement = b.Now, b, nil, nil
		change(c)
	}))
	if err != nil {
		t.Fatal(err)
	}
	b.router = router
	t.Cleanup(b.close)
	return b
}

// owned is a request of one of many owners.
func owned(i int) Request {
	request := hosted("one")
	request.Identity.Principal = text(fmt.Sprint(i))
	return request
}

// TestTheRoutersOwnLedgerIsBounded: by 4,096 rates and 1,024 circuits, or as many as it is told to keep.
func TestTheRoutersOwnLedgerIsBounded(t *testing.T) {
	for _, told := range []bool{false, true} {
		rates, circuits := 4096, 1024
		b := ownBench(t, func(c *Config) {
			if told {
				rates, circuits = 40, 10
				c.RateKeys, c.CircuitKeys = rates, circuits
			}
			c.RateLimit, c.Circuit = &RateLimit{Max: 1, Window: time.Hour}, &Circuit{Threshold: 1}
		})
		for i := range rates {
			b.resolve(owned(i))
		}
		_, err := b.router.Resolve(ctx, owned(0)) // is remembered
		wantRefusal(t, err, CodeRateLimit, ClassCapacity, ReasonRateLimited, time.Hour.Milliseconds())
		b.resolve(owned(rates))
		b.resolve(owned(0)) // who counted longest ago is forgotten

		fail := func(i int) error {
			return b.router.RecordOutcome(ctx, OutcomeReport{Identity: owned(i).Identity, Provider: "fake", Model: "one"})
		}
		for i := range circuits {
			if err := fail(rates + 1 + i); err != nil {
				t.Fatal(err)
			}
		}
		for _, i := range []int{0, circuits - 1} { // no open one is forgotten
			_, err := b.router.Resolve(ctx, owned(rates+1+i))
			wantRefusal(t, err, CodeCircuit, ClassCapacity, ReasonCircuitOpen, 30_000)
		}
		wantRefusal(t, fail(rates+1+circuits), CodeState, ClassUnavailable, ReasonBusy, 0)
		_, err = b.router.Resolve(ctx, owned(rates+1+circuits)) // which yields to the next candidate, if there is one
		wantRefusal(t, err, CodeCircuit, ClassCapacity, ReasonCircuitOpen, 0)
	}
}

// TestTheRoutersOwnBudgetsAreBounded: who spent longest ago is forgotten, and nothing that is held.
func TestTheRoutersOwnBudgetsAreBounded(t *testing.T) {
	for _, told := range []int{0, 40} {
		b := ownBench(t, func(c *Config) { c.BudgetKeys, c.Budgets = told, &Budgets{MaxTokens: number(100)} })
		keys := told
		if keys == 0 {
			keys = 4096
		}
		b.resolve(withCap(owned(0)))
		spend := func(i int) {
			t.Helper()
			request := owned(i)
			if _, err := b.router.RecordUsage(ctx, UsageReport{Budget: budgetOf(&request), Usage: ledger.Usage{Output: 7}, NanoUSD: number(7)}); err != nil {
				t.Fatal(err)
			}
		}
		pools := keys / 2 // each is one account of tokens and one of money
		for i := 1; i < pools; i++ {
			spend(i)
		}
		first, held := owned(1), owned(0)
		b.wantReport(t, budgetOf(&first), 7, 0)
		spend(pools)
		b.wantReport(t, budgetOf(&first), 0, 0)
		b.wantReport(t, budgetOf(&held), 0, 10)
	}
}

// TestAHardCapOfAttempts: as many are contacted.
func TestAHardCapOfAttempts(t *testing.T) {
	for attempts, want := range map[int]int{0: 3, 1: 1, 8: 8} {
		b := newBench(t, func(c *Config, _ *policy.Settings) { c.Attempts = attempts })
		outcomes, sources := map[string]Outcome{}, []string{}
		for i := range 10 {
			sources = append(sources, fmt.Sprint("source ", i))
			outcomes[sources[i]] = failure(adapters.Overloaded)
		}
		contacted, err := b.serve(called(10_000, sources...), outcomes)
		if err == nil || len(contacted) != want {
			t.Errorf("of %d: contacted %v, %v", attempts, contacted, err)
		}
	}
}

// TestAGrantNamesItsAttempt: as the host does, if it has a name.
func TestAGrantNamesItsAttempt(t *testing.T) {
	bothWays(t, func(t *testing.T, request func(...string) Request) {
		b := newBench(t, nil)
		first, other := b.resolve(request("one")), b.resolve(request("one"))
		if first.Attempt() == uuid.Nil || first.Attempt() == other.Attempt() || first.Probe() != uuid.Nil {
			t.Errorf("the attempts are %s and %s", first.Attempt(), other.Attempt())
		}
		named := request("one")
		named.Attempt = uuid.Must(uuid.NewV7())
		if got := b.resolve(named).Attempt(); got != named.Attempt {
			t.Errorf("the attempt is %s, not %s", got, named.Attempt)
		}
	})
}
