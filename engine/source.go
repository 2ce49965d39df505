package engine

import (
	"context"

	"regent/adapters"
	"regent/engine/policy"
)

// ProviderSource is a synchronous facade for a host that only restricts providers, models and residencies: it asks policy, and then the
// resolver for the model's provider. The residency that is asked for is the model's own. It keeps no state and leaves no record.
//
// What it cannot enforce it refuses, whatever the model: ASYNC_STATE with durable state; ASYNC_REQUIRED with budgets, strict ones as the
// shipped rules' settings have them included, a rate limit, a circuit, fallbacks or a selection. It returns VALIDATION for what is no model, UNKNOWN_PROVIDER for one that the resolver does not
// know, and policy's denials as [Router.Resolve] does. The resolver is asked only after all of that, and sees no OpenRouter routing
// that policy does not honour.
func (r *Router) ProviderSource(model Model) (adapters.Provider, error) {
	if err := model.validate(); err != nil {
		return nil, err
	}
	if err := r.checkFacade(); err != nil {
		return nil, err
	}
	request := Request{Candidates: []Candidate{model.Candidate()}, Verified: true}
	if residency := model.Compat.Residency; residency != "" {
		request.Facts.Residency = &residency
	}
	w, err := r.newWalk(request, false)
	if err != nil {
		return nil, err
	}
	w.given, w.position = w.request.Candidates, 1
	candidate := &w.request.Candidates[0]
	decision, denied := w.decide(context.Background(), candidate)
	if denied != nil {
		return nil, w.deny(denied)
	}
	if !decision.HonourRouting && candidate.Routing != nil { // then the candidates are the walk's own
		candidate.Routing = nil
	}
	provider, err := r.Resolver.Resolve(*candidate)
	if err == nil && provider == nil {
		err = ErrUnresolved
	}
	if err != nil {
		return nil, w.deny(missOf(candidate, err))
	}
	w.report("allow", &Grant{Candidate: candidate, HonourRouting: decision.HonourRouting})
	return provider, nil
}

// deny ends a walk of the facade.
func (w *walk) deny(denied *step) error {
	w.steps = append(w.steps, *denied)
	denied.refusal.Diagnostics = w.report("deny", nil)
	return denied.refusal
}

// checkFacade refuses what the facade does not enforce.
func (r *Router) checkFacade() error {
	refuse := func(code Code, message string) error {
		return &Error{Code: code, Message: message, Details: Details{Class: ClassInvalid, Reason: ReasonFacade}}
	}
	if r.durable {
		return refuse(CodeAsyncState, "the synchronous facade keeps no durable state: use Resolve")
	}
	activation := r.Policy.Current()
	if activation == nil {
		return nil // which the walk refuses
	}
	for _, configured := range []struct {
		what string
		is   bool
	}{
		{"budgets", r.Budgets != nil}, {"strict budgets", isStrict(activation.Settings())}, {"a rate limit", r.RateLimit != nil}, {"a circuit", r.Circuit != nil},
		{"fallbacks", len(r.Fallbacks) > 0}, {"a selection", r.Selection != nil || activation.Selection() != ""},
	} {
		if configured.is {
			return refuse(CodeAsyncRequired, "the synchronous facade does not enforce "+configured.what+": use Resolve")
		}
	}
	return nil
}

// isStrict says whether what cannot be bounded is denied: unless the settings say that it is not.
func isStrict(settings policy.Settings) bool { return settings.Strict == nil || *settings.Strict }
