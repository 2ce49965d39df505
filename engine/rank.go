package engine

import (
	"context"
	"fmt"
	"slices"

	"regent/engine/policy"
)

// rank puts the candidates into the order of the policy's selection, once, before any of them is judged. Without a selection they stay
// as they were given. A selection that adds a candidate, drops one or names one twice has said nothing: the call is refused.
func (w *walk) rank(ctx context.Context) error {
	w.given = w.request.Candidates
	if w.activation.Selection() == "" || len(w.given) == 0 {
		return nil
	}
	facts := factsOf(w.given)
	sources, err := evaluated(ctx, w, func(judge *policy.Judge) ([]string, error) { return judge.Rank(ctx, facts) })
	if err == nil {
		w.request.Candidates, err = permuted(w.given, sources)
	}
	if err != nil {
		return policyFailure("the selection did not rank the candidates", ReasonSelectionFailed, err)
	}
	return nil
}

// permuted are the candidates in the order of their sources.
func permuted(candidates []Candidate, sources []string) ([]Candidate, error) {
	if len(sources) != len(candidates) {
		return nil, fmt.Errorf("engine: the selection ranks %d sources of %d candidates", len(sources), len(candidates))
	}
	ranked := make([]Candidate, 0, len(candidates))
	for _, source := range sources {
		at := slices.IndexFunc(candidates, func(c Candidate) bool { return c.Source == source })
		if at < 0 || slices.ContainsFunc(ranked, func(c Candidate) bool { return c.Source == source }) {
			return nil, fmt.Errorf("engine: the selection ranks %q, which is no candidate, or a second time", source)
		}
		ranked = append(ranked, candidates[at])
	}
	return ranked, nil
}
