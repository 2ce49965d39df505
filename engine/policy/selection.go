package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
)

// selections are the packages whose `rank` puts candidates into an order, before each is judged. One of them may have it.
var selections = []string{"data.regent.selection", "data.org.selection"}

// Selection is the name of the selection that ranks candidates, "regent.selection" or "org.selection"; empty if the activation has
// none, and candidates stay in the order in which they are given.
func (a *Activation) Selection() string { return a.selection }

// Rank asks the activation's selection for the order of the candidates: the ids of their sources, first the one that is to be tried
// first. Whether it is the same candidates is for the caller to see. It fails as Decide does, and with [ErrUndefined] if there is no
// selection.
func (j *Judge) Rank(ctx context.Context, candidates []Candidate) ([]string, error) {
	if j.activation.rank == nil {
		return nil, ErrUndefined
	}
	err := j.err
	for i := range candidates {
		err = cmp.Or(err, checkCandidate(candidates[i]))
	}
	if err != nil {
		return nil, err
	}
	j.prepare()
	return j.activation.ranked(ctx, rankingOf(j.now, j.call, j.identity, candidates))
}

func (a *Activation) ranked(ctx context.Context, input ast.Object) ([]string, error) {
	answer, err := a.ask(ctx, a.rank, input)
	if err != nil {
		return nil, err
	}
	return decodeRanking(answer)
}

// decodeRanking reads an array of the ids of sources.
func decodeRanking(answer *ast.Term) ([]string, error) {
	array, isArray := answer.Value.(*ast.Array)
	if !isArray {
		return nil, malformed("the ranking is no array of sources")
	}
	if array.Len() > maxRanked {
		return nil, malformed("the ranking has %d sources, more than %d", array.Len(), maxRanked)
	}
	sources := make([]string, array.Len())
	for i := range sources {
		source, isText := array.Elem(i).Value.(ast.String)
		if !isText {
			return nil, malformed("the ranking holds something that is no source's id, at %d", i)
		}
		sources[i] = string(source)
	}
	return sources, nil
}

// maxRanked bounds a ranking: a router has 64 candidates at most.
const maxRanked = 1024

// prepareSelection finds the selection and prepares its query.
func (a *Activation) prepareSelection(ctx context.Context) []Problem {
	var problems []Problem
	for _, at := range selections {
		ref := ast.MustParseRef(at)
		rules := a.compiler.GetRulesExact(ref.Append(ast.StringTerm("rank")))
		if len(rules) == 0 {
			if other := a.compiler.GetRulesWithPrefix(ref); len(other) > 0 {
				problems = append(problems, problemAt(other[0].Loc(), fmt.Sprintf("the package %s has no rule `rank`, which ranks: is it misspelt?", at)))
			}
			if _, err := a.store.Read(ctx, a.txn, storage.Path(names(ref))); err == nil {
				problems = append(problems, Problem{Text: at + " is data: what ranks is a rule"})
			}
			continue
		}
		if a.selection != "" {
			problems = append(problems, problemAt(rules[0].Loc(), a.selection+".rank is there, too: one selection can rank"))
			continue
		}
		rank, err := a.prepared(ctx, at+".rank")
		if err != nil {
			return []Problem{{Text: err.Error()}}
		}
		a.selection, a.rank = strings.TrimPrefix(at, "data."), &rank
	}
	return problems
}

// probeSelection has two ordinary candidates ranked.
func (a *Activation) probeSelection(ctx context.Context) error {
	if a.rank == nil {
		return nil
	}
	other := ordinary.Candidate
	other.Source = "other"
	input := rankingOf(wholeTerm(ordinary.Now), callTerm(ordinary.Call), identityTerm(ordinary.Identity), []Candidate{ordinary.Candidate, other})
	sources, err := a.ranked(ctx, input)
	if errors.Is(err, ErrLate) { // once more: the machine may have been busy
		sources, err = a.ranked(ctx, input)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s.rank does not rank two ordinary candidates: %w", a.selection, err)
	case !slices.Contains([]string{"ordinary other", "other ordinary"}, strings.Join(sources, " ")):
		return fmt.Errorf("%s.rank makes %q of the candidates %q: it has to name each source once", a.selection, sources, []string{"ordinary", "other"})
	}
	return nil
}
