package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"regent/engine/policy"
)

// rank puts the candidates into the order of the selection, once, before any of them is judged: that of the policy, or else the host's.
// Without one they stay as they were given. A selection that adds a candidate, drops one or names one twice has said nothing: the call is
// refused.
func (w *walk) rank(ctx context.Context) error {
	w.given = w.request.Candidates
	if w.selection() == "" || len(w.given) == 0 {
		return nil
	}
	order, err := w.order(ctx)
	if err == nil {
		w.request.Candidates, err = permuted(w.given, order)
	}
	if err != nil {
		return policyFailure("the selection did not rank the candidates", ReasonSelectionFailed, err)
	}
	return nil
}

// selection names what ranks the candidates; empty if nothing does.
func (w *walk) selection() string {
	if own := w.activation.Selection(); own != "" || w.Selection == nil {
		return own
	}
	return w.selectionName
}

// order asks the selection for the places of the candidates, in their new order.
func (w *walk) order(ctx context.Context) ([]int, error) {
	if w.activation.Selection() == "" {
		return w.hostOrder()
	}
	facts := factsOf(w.given)
	sources, err := evaluated(ctx, w, func(judge *policy.Judge) ([]string, error) { return judge.Rank(ctx, facts) })
	if err != nil {
		return nil, err
	}
	order := make([]int, len(sources))
	for i, source := range sources {
		order[i] = slices.IndexFunc(w.given, func(c Candidate) bool { return c.Source == source })
	}
	return order, nil
}

// hostOrder asks the host's selection. What panics has ranked nothing.
func (w *walk) hostOrder() (order []int, err error) {
	defer func() {
		if recover() != nil { // what it says may hold anything
			err = errors.New("engine: the selection panicked")
		}
	}()
	switch w.Selection.(type) {
	case Balanced, *CostLatency: // which change nothing
		return w.Selection.Rank(w.now, w.request)
	}
	asked := w.asked // a copy of its own: what it does to it changes nothing
	asked.Candidates = slices.Clone(w.given)
	return w.Selection.Rank(w.now, &asked)
}

// permuted are the candidates in an order of their places.
func permuted(candidates []Candidate, order []int) ([]Candidate, error) {
	if len(order) != len(candidates) {
		return nil, fmt.Errorf("engine: the selection ranks %d of %d candidates", len(order), len(candidates))
	}
	ranked, seen := make([]Candidate, len(candidates)), make([]bool, len(candidates))
	for i, place := range order {
		if place < 0 || place >= len(candidates) || seen[place] {
			return nil, fmt.Errorf("engine: the selection ranks one that is no candidate, or one a second time, at %d", i)
		}
		ranked[i], seen[place] = candidates[place], true
	}
	return ranked, nil
}
