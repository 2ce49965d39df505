package engine

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"regent/engine/decisions"
	"regent/engine/policy"
	"regent/ledger"
	"regent/policies"
)

// rankedBy has candidates ranked by a selection of the organisation.
func rankedBy(t *testing.T, rank string) *bench {
	t.Helper()
	b := newBench(t, nil)
	activation, err := policy.Load(ctx, policy.Source{
		Bundles: []policy.Bundle{
			{Name: "regent", FS: policies.Files(), Tested: true},
			{Name: "org", FS: fstest.MapFS{
				".manifest": {Data: []byte(`{"roots": ["org"], "rego_version": 1}`)},
				"org/selection/selection.rego": {Data: []byte(`# METADATA
# title: Cheapest first
# schemas:
#   - input: schema.input.selection
package org.selection

` + rank + "\n")},
			}},
		},
		Settings: b.router.Policy.Current().Settings(), TimeLimit: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.router.Policy.Activate(activation)
	return b
}

const cheapestFirst = `rank := [entry[2] | some entry in sort([[candidate.input_price, i, candidate.source] | some i, candidate in input.candidates])]`

// priced are candidates of these prices.
func priced(prices ...int64) Request {
	var request Request
	for i, price := range prices {
		one := hosted(string(rune('a' + i)))
		one.Candidates[0].Price = inputAt(price)
		request.Identity, request.Facts = one.Identity, one.Facts
		request.Candidates = append(request.Candidates, one.Candidates...)
	}
	return request
}

func inputAt(price int64) *ledger.Price {
	other := perToken
	other.UncachedInput = price
	return &other
}

func TestASelectionRanksBeforeAnyCheck(t *testing.T) {
	b := rankedBy(t, cheapestFirst)
	b.unknown["c"] = true // the cheapest is a miss, so that the next one is tried
	resolution, err := b.router.Resolve(ctx, priced(300, 200, 100, 400))
	if err != nil {
		t.Fatal(err)
	}
	var tried []string
	for _, attempt := range resolution.Diagnostics.Attempts {
		tried = append(tried, attempt.Model+" "+attempt.Outcome)
	}
	if got := strings.Join(tried, ", "); got != "c miss, b selected" || resolution.Diagnostics.Selection != "org.selection" {
		t.Errorf("tried %s by %q", got, resolution.Diagnostics.Selection)
	}
}

// The cap on attempts cuts what was ranked, not what was given.
func TestTheCapCutsTheRankedCandidates(t *testing.T) {
	b := rankedBy(t, cheapestFirst)
	for _, source := range []string{"b", "c", "d"} {
		b.unknown[source] = true
	}
	_, err := b.router.Resolve(ctx, priced(400, 300, 200, 100))
	b.router.teller.wait()
	if err == nil || len(b.diagnostics) != 1 || len(b.diagnostics[0].Attempts) != 3 || b.resolved["a"] != 0 {
		t.Errorf("got %v, %+v, and the dearest was asked for %d times", err, b.diagnostics, b.resolved["a"])
	}
}

func TestWithoutASelectionTheOrderIsThatOfTheRequest(t *testing.T) {
	b := newBench(t, nil)
	resolution, err := b.router.Resolve(ctx, priced(300, 200, 100))
	if err != nil || resolution.Candidate.Source != "a" || resolution.Diagnostics.Selection != "" {
		t.Fatalf("%+v, %v", resolution, err)
	}
	text, err := json.Marshal(resolution.Diagnostics)
	if err != nil || strings.Contains(string(text), "selection\"") {
		t.Errorf("%s, %v", text, err)
	}
}

// Whatever is not the same candidates in another order refuses the call, asks nobody, and is recorded.
func TestARankingThatIsNoPermutationRefuses(t *testing.T) {
	// The selection ranks well what is tried while loading, and otherwise as the case says.
	loads := `

rank := ["ordinary", "other"] if input.call.model == "ordinary"`
	for name, rank := range map[string]string{
		"drops":       `rank := ["a"] if input.call.model == "m"`,
		"adds":        `rank := ["a", "b", "c"] if input.call.model == "m"`,
		"twice":       `rank := ["a", "a"] if input.call.model == "m"`,
		"another":     `rank := ["a", "z"] if input.call.model == "m"`,
		"nothing":     `rank := [] if input.call.model == "m"`,
		"undefined":   `rank := ["a", "b"] if input.call.model == "none"`,
		"a set":       `rank := {"a", "b"} if input.call.model == "m"`,
		"numbers":     `rank := [1, 0] if input.call.model == "m"`,
		"conflicting": "rank := [\"a\", \"b\"] if input.call.model == \"m\"\n\nrank := [\"b\", \"a\"] if input.call.model == \"m\"",
	} {
		t.Run(name, func(t *testing.T) {
			b := rankedBy(t, rank+loads)
			refusal := b.refused(priced(2, 1), CodePolicy, ReasonSelectionFailed)
			if len(b.resolved) != 0 || len(refusal.Diagnostics.Attempts) != 0 || refusal.Diagnostics.Selection != "org.selection" {
				t.Errorf("resolved %v, diagnostics %+v", b.resolved, refusal.Diagnostics)
			}
		})
	}
}

// The record holds the candidates as they were given, and how they fared in the order in which they were tried.
func TestTheRecordTellsTheRanking(t *testing.T) {
	b := rankedBy(t, cheapestFirst)
	request := called(1_000_000, "a", "b")
	request.Candidates[0].Price, request.Candidates[1].Price = inputAt(900), inputAt(100)
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil || resolution.Candidate.Source != "b" {
		t.Fatalf("%+v, %v", resolution, err)
	}
	records, err := b.ledger.Store().CallRecords(ctx, request.ID)
	if err != nil || len(records) == 0 {
		t.Fatal(records, err)
	}
	var event struct {
		Input  decisions.Input  `json:"input"`
		Result decisions.Result `json:"result"`
	}
	if err := json.Unmarshal(records[0].Body, &event); err != nil {
		t.Fatal(err)
	}
	given := []string{event.Input.Candidates[0].Source, event.Input.Candidates[1].Source}
	fared := []string{event.Result.Candidates[0].Source + " " + event.Result.Candidates[0].Outcome, event.Result.Candidates[1].Source + " " + event.Result.Candidates[1].Outcome}
	if !slices.Equal(given, []string{"a", "b"}) || !slices.Equal(fared, []string{"b selected", "a not_reached"}) || event.Result.Selection != "org.selection" {
		t.Errorf("given %v, fared %v, by %q", given, fared, event.Result.Selection)
	}
	if price := event.Input.Candidates[1].InputPrice; price == nil || *price != 100 {
		t.Errorf("the price among the facts is %v", price)
	}
}
