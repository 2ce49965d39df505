package policy_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"regent/engine/policy"
)

// selecting is a bundle with a selection that ranks by these rules.
func selecting(rank string) policy.Bundle {
	return org(map[string]string{"org/selection/selection.rego": `# METADATA
# title: Ours
# schemas:
#   - input: schema.input.selection
package org.selection

` + rank + "\n"})
}

const europeFirst = `rank := array.concat(
	[candidate.source | some candidate in input.candidates; candidate.residency == "eu"],
	[candidate.source | some candidate in input.candidates; not candidate.residency == "eu"],
)`

func TestRankAsksTheSelection(t *testing.T) {
	activation := load(t, policy.Source{Bundles: []policy.Bundle{selecting(europeFirst)}})
	if activation.Selection() != "org.selection" {
		t.Fatalf("the selection is %q", activation.Selection())
	}
	f := facts()
	us, none, eu := f.Candidate, f.Candidate, f.Candidate
	us.Source, us.Residency, none.Source, none.Residency, eu.Source = "us", new("us"), "none", nil, "eu"
	judge := activation.Judge(time.UnixMicro(f.Now/1000), f.Call, f.Identity)
	sources, err := judge.Rank(context.Background(), []policy.Candidate{us, none, eu})
	if err != nil || !slices.Equal(sources, []string{"eu", "us", "none"}) {
		t.Errorf("got %v, %v", sources, err)
	}
	us.Model = strings.Repeat("x", 2000)
	if _, err := judge.Rank(context.Background(), []policy.Candidate{us}); !errors.Is(err, policy.ErrTooLarge) {
		t.Errorf("got %v, want %v", err, policy.ErrTooLarge)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := judge.Rank(ended, []policy.Candidate{eu}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestWithoutASelectionNothingIsRanked(t *testing.T) {
	activation := load(t, policy.Source{})
	f := facts()
	_, err := activation.Judge(time.Now(), f.Call, f.Identity).Rank(context.Background(), []policy.Candidate{f.Candidate})
	if activation.Selection() != "" || !errors.Is(err, policy.ErrUndefined) {
		t.Errorf("the selection is %q, and ranks: %v", activation.Selection(), err)
	}
}

func TestLoadRefusesASelection(t *testing.T) {
	for name, test := range map[string]struct{ rank, want string }{
		"undefined":         {`rank := ["a"] if input.now < 0`, "org.selection.rank does not rank two ordinary candidates: policy: the decision is undefined"},
		"drops a candidate": {`rank := [input.candidates[0].source]`, `org.selection.rank makes ["ordinary"] of the candidates ["ordinary" "other"]`},
		"twice":             {`rank := [input.candidates[0].source, input.candidates[0].source]`, "it has to name each source once"},
		"no array":          {`rank := {candidate.source | some candidate in input.candidates}`, "the ranking is no array of sources"},
		"no text":           {`rank := [i | some i, _ in input.candidates]`, "the ranking holds something that is no source's id, at 0"},
		"misspelt":          {`rank := [candidate.sauce | some candidate in input.candidates]`, "undefined ref: "},
		"by the clock":      {`rank := [candidate.source | some candidate in input.candidates; time.now_ns() > 0]`, "time.now_ns may not be used in policy"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policy.Load(context.Background(), policy.Source{Bundles: []policy.Bundle{ours(), selecting(test.rank)}, TimeLimit: time.Minute})
			refused(t, err, test.want)
		})
	}
}

func TestOneSelectionRanks(t *testing.T) {
	tree := copied(t)
	tree["regent/selection/selection.rego"] = &fstest.MapFile{Data: []byte(`# METADATA
# schemas:
#   - input: schema.input.selection
package regent.selection

rank := [candidate.source | some candidate in input.candidates]
`)}
	regent := policy.Bundle{Name: "regent", FS: tree, Tested: true}
	activation, err := policy.Load(context.Background(), policy.Source{Bundles: []policy.Bundle{regent}})
	if err != nil || activation.Selection() != "regent.selection" {
		t.Errorf("got %v", err)
	}
	_, err = policy.Load(context.Background(), policy.Source{Bundles: []policy.Bundle{regent, selecting(europeFirst)}})
	refused(t, err, "regent.selection.rank is there, too: one selection can rank")
}
