package engine

import (
	"errors"
	"testing"

	"regent/ledger"
)

func TestReserve(t *testing.T) {
	for name, test := range map[string]struct {
		change        func(*Request, *Candidate)
		tokens, money *int64
	}{
		"nothing is known":      {func(*Request, *Candidate) {}, nil, nil},
		"a cap":                 {func(r *Request, _ *Candidate) { r.MaxTokens = number(7) }, number(7), nil},
		"a cost cap":            {func(r *Request, _ *Candidate) { r.MaxCostNanoUSD = number(7) }, nil, number(7)},
		"an estimate":           {func(r *Request, _ *Candidate) { r.Facts.InputTokens = number(10) }, number(60), number(60_000)},
		"an estimate and a cap": {func(r *Request, _ *Candidate) { r.Facts.InputTokens, r.MaxTokens = number(10), number(7) }, number(7), number(60_000)},
		"a smaller bound":       {func(r *Request, _ *Candidate) { r.Facts.InputTokens, r.Facts.OutputTokensMax = number(10), number(5) }, number(15), number(15_000)},
		"a larger bound":        {func(r *Request, _ *Candidate) { r.Facts.InputTokens, r.Facts.OutputTokensMax = number(10), number(99) }, number(60), number(60_000)},
		"a bound of nothing":    {func(r *Request, _ *Candidate) { r.Facts.InputTokens, r.Facts.OutputTokensMax = number(10), number(0) }, number(10), number(10_000)},
		"the request's own bound": {func(r *Request, c *Candidate) {
			r.Facts.InputTokens, r.Facts.OutputTokensMax, c.OutputTokensMax = number(10), number(5), nil
		}, number(15), number(15_000)},
		"no bound of output": {func(r *Request, c *Candidate) { r.Facts.InputTokens, c.OutputTokensMax = number(10), nil }, nil, nil},
		"no price":           {func(r *Request, c *Candidate) { r.Facts.InputTokens, c.Price = number(10), nil }, number(60), nil},
		"a price of nothing": {func(r *Request, c *Candidate) { r.Facts.InputTokens, c.Price = number(10), &ledger.Price{} }, number(60), number(0)},
		"dear cache writes, which the dialect has": {func(r *Request, c *Candidate) {
			r.Facts.InputTokens, c.Price, c.CacheWrites = number(10), &ledger.Price{Rates: ledger.Rates{CacheWrite1h: 2_000_000}}, true
		}, number(60), number(20_000)},
		"units that the price lists, and others": {func(r *Request, c *Candidate) {
			r.Facts.InputTokens, c.Price = number(10), &ledger.Price{UnitCharges: map[string]int64{"web_search": 10_000_000, "page": 1}}
			r.Units = map[string]int64{"web_search": 3, "image": 5}
		}, number(60), number(30_000_000)},
		"dear cache writes, which it has not": {func(r *Request, c *Candidate) {
			r.Facts.InputTokens, c.Price = number(10), &ledger.Price{Rates: ledger.Rates{CacheWrite1h: 2_000_000}}
		}, number(60), number(0)},
	} {
		request := hosted("one")
		test.change(&request, &request.Candidates[0])
		got, err := request.reserve(&request.Candidates[0])
		if err != nil || !equal(got.Tokens, test.tokens) || !equal(got.NanoUSD, test.money) {
			t.Errorf("%s: got %v tokens and %v, %v", name, got.Tokens, got.NanoUSD, err)
		}
	}
	request := hosted("one")
	request.Facts.InputTokens = number(ledger.TokensMax)
	if _, err := request.reserve(&request.Candidates[0]); !errors.Is(err, ledger.ErrOverflow) {
		t.Errorf("too large an estimate: %v", err)
	}
}

func equal(a, b *int64) bool { return (a == nil) == (b == nil) && value(a) == value(b) }

// TestClosedUnit: a unit of which nobody has been given anything may not be used, unless nothing of it is asked for.
func TestClosedUnit(t *testing.T) {
	open := Scope{Kind: ledger.ScopeUser, ID: "alice", Limits: map[ledger.Unit][]ledger.Limit{ledger.Tokens: {}, ledger.USD: nil}}
	tokens := Scope{Kind: ledger.ScopeTask, ID: "build", Limits: map[ledger.Unit][]ledger.Limit{ledger.Tokens: {}}}
	money := Scope{Kind: ledger.ScopeTask, ID: "build", Limits: map[ledger.Unit][]ledger.Limit{ledger.USD: {}}}
	for name, test := range map[string]struct {
		scopes  []Scope
		reserve ledger.Reserve
		want    string
	}{
		"no scopes":                 {nil, ledger.Reserve{}, ""},
		"both units open":           {[]Scope{open}, ledger.Reserve{NanoCredits: number(0)}, ""},
		"money closed, unbounded":   {[]Scope{open, tokens}, ledger.Reserve{Tokens: number(1), NanoCredits: number(0)}, "task/build/usd"},
		"money closed, asked for":   {[]Scope{open, tokens}, ledger.Reserve{Tokens: number(1), NanoUSD: number(1), NanoCredits: number(0)}, "task/build/usd"},
		"money closed, free":        {[]Scope{open, tokens}, ledger.Reserve{Tokens: number(1), NanoUSD: number(0), NanoCredits: number(0)}, ""},
		"tokens closed, unbounded":  {[]Scope{money}, ledger.Reserve{NanoUSD: number(1), NanoCredits: number(0)}, "task/build/tokens"},
		"tokens closed, none asked": {[]Scope{money}, ledger.Reserve{Tokens: number(0), NanoUSD: number(1), NanoCredits: number(0)}, ""},
		"credits closed, asked for": {[]Scope{open}, ledger.Reserve{Tokens: number(1), NanoUSD: number(1), NanoCredits: number(1)}, "user/alice/credits"},
	} {
		account, closed := closedUnit(test.scopes, test.reserve)
		if closed != (test.want != "") || closed && account.String() != test.want {
			t.Errorf("%s: got %s, %v", name, account, closed)
		}
	}
}
