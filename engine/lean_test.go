//go:build !race

// The race detector makes pools forget at random, so that more is allocated.

package engine

import (
	"testing"

	"github.com/google/uuid"

	"regent/engine/policy"
	"regent/ledger"
)

// TestResolveIsLean: what the router itself allocates of a call, without the ledger's part of it and policy's, is bounded, since times are
// of the machine.
func TestResolveIsLean(t *testing.T) {
	const most = 20
	calls := newLeanCalls(t)
	total, books, judging := calls.allocations(calls.whole), calls.allocations(calls.books), calls.allocations(calls.judge)
	if own := total - books - judging; own > most {
		t.Errorf("a call allocates %.0f times besides the ledger (%.0f) and policy (%.0f), more than %d", own, books, judging, most)
	}
}

// leanCalls are a host's calls with three candidates, of which the first is served.
type leanCalls struct {
	t       *testing.T
	bench   *bench
	request Request
	claims  []ledger.Claim
	event   []byte
}

func newLeanCalls(t *testing.T) *leanCalls {
	b := newBench(t, func(c *Config, _ *policy.Settings) {
		c.Budgets = &Budgets{MaxTokens: number(1 << 50)}
		c.OnDiagnostics, c.OnSettlement = nil, nil
	})
	request := hosted()
	request.Facts.Protocol, request.MaxTokens = "", number(1000)
	for _, id := range []string{"one", "two", "three"} {
		request.Candidates = append(request.Candidates, Model{Provider: "fake", ID: id, Cost: &Cost{Input: new(1.0), Output: new(2.0)}}.Candidate())
	}
	w, err := b.router.newWalk(request, false)
	if err != nil {
		t.Fatal(err)
	}
	w.given, w.position = w.request.Candidates, 1
	one := &w.request.Candidates[0]
	return &leanCalls{t: t, bench: b, request: request, claims: claims(b.router.scopes(w.request, one), Generation), event: w.event(one, nil)}
}

func (c *leanCalls) allocations(do func() error) float64 {
	return testing.AllocsPerRun(300, func() {
		if err := do(); err != nil {
			c.t.Fatal(err)
		}
	})
}

func (c *leanCalls) whole() error {
	resolution, err := c.bench.router.Resolve(ctx, c.request)
	if err != nil {
		return err
	}
	reservation := resolution.Reservation()
	_, err = c.bench.router.RecordUsage(ctx, UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: 10}})
	return err
}

// books is what the ledger does of it.
func (c *leanCalls) books() error {
	reserve, err := c.request.reserve(&c.request.Candidates[0])
	if err != nil {
		return err
	}
	hold, err := c.bench.ledger.Admit(ctx, ledger.Admission{
		Hold: uuid.Must(uuid.NewV7()), Source: "fake/one", Provider: "fake", Price: c.request.Candidates[0].Price, Reserve: reserve, Claims: c.claims, Decision: c.event,
	})
	if err != nil {
		return err
	}
	_, err = c.bench.ledger.Settle(ctx, ledger.Ending{
		Hold: hold.ID, Token: hold.Token, State: ledger.Completed, Outcome: ledger.Outcome{Result: ledger.Success},
	}, ledger.Consumption{Usage: &ledger.Usage{Output: 10}})
	return err
}

// judge is what policy does of it.
func (c *leanCalls) judge() error {
	judge := c.bench.router.Policy.Current().Judge(c.bench.Now(), c.request.Facts, c.request.Identity)
	_, err := judge.Decide(ctx, c.request.Candidates[0].Candidate, nil)
	return err
}
