package engine

import (
	"fmt"

	"regent/engine/decisions"
	"regent/engine/policy"
)

// event is the decision record: the facts of all candidates and how each fared. selected is nil for a refusal.
func (w *walk) event(selected *Candidate, refusal *Error) []byte {
	result := decisions.Result{Allow: selected != nil, Selection: w.selection(), Candidates: make([]decisions.Candidate, 0, len(w.request.Candidates))}
	for _, s := range w.steps {
		judged := decisions.Candidate{
			Source: s.candidate.Source, Provider: s.candidate.Provider, Outcome: s.outcome, Reason: s.reason, Denials: s.denials,
		}
		if s.refusal != nil {
			judged.Limit, judged.Rate = s.refusal.Details.Limit, s.refusal.Details.Rate
		}
		result.Candidates = append(result.Candidates, judged)
	}
	if selected != nil {
		result.Selected = selected.Source
		result.Candidates = append(result.Candidates, decisions.Candidate{Source: selected.Source, Provider: selected.Provider, Outcome: Selected})
	}
	if refusal != nil {
		result.Code, result.Reason = string(refusal.Code), refusal.Details.Reason
	}
	input := decisions.Input{
		Now: policy.Nanos(w.now), Call: w.request.Facts, Identity: w.request.Identity, Candidates: factsOf(w.given), Attempts: w.attempts,
	}
	if input.Attempts == nil { // as policy sees it
		input.Attempts = []policy.Attempt{}
	}
	for _, candidate := range w.request.Candidates[w.position:] {
		result.Candidates = append(result.Candidates, decisions.Candidate{Source: candidate.Source, Provider: candidate.Provider, Outcome: NotReached})
	}
	stamp := w.stampOf(w.activation)
	event := decisions.Event{
		Labels: w.Labels, DecisionID: w.request.ID.String(), Bundles: stamp.bundles, Path: decisions.DecisionPath,
		Input: &input, Result: &result, Timestamp: w.now, Custom: &stamp.custom,
	}
	body, err := event.Encode()
	if err != nil { // only a year of more than four digits has no form
		panic(fmt.Sprintf("engine: decision record: %v", err))
	}
	return body
}

// factsOf are the facts of candidates that policy sees.
func factsOf(candidates []Candidate) []policy.Candidate {
	facts := make([]policy.Candidate, len(candidates))
	for i := range candidates {
		facts[i] = candidates[i].Candidate
	}
	return facts
}

// stamp is what the records of one activation have in common.
type stamp struct {
	activation *policy.Activation
	bundles    map[string]decisions.Bundle
	custom     decisions.Custom
}

// stampOf is that of an activation; the newest one's is kept.
func (r *Router) stampOf(activation *policy.Activation) *stamp {
	if newest := r.stamp.Load(); newest != nil && newest.activation == activation {
		return newest
	}
	made := &stamp{activation: activation, bundles: map[string]decisions.Bundle{}, custom: decisions.Custom{Activation: activation.Digest()}}
	for name, revision := range activation.Bundles() {
		made.bundles[name] = decisions.Bundle{Revision: revision}
	}
	r.stamp.Store(made)
	return made
}
