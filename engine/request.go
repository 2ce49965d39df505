package engine

import (
	"slices"

	"github.com/google/uuid"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

// Kinds of work that usage is attributed to.
const (
	Generation = "generation"
	Embedding  = "embedding"
	Compaction = "compaction"
	Tool       = "tool"
)

// Request is a call that is to be routed.
type Request struct {
	// ID is the call's id and its decision id. The zero value lets the router make one.
	ID uuid.UUID
	// Attempt names the attempt, if the host has a name for it: a charge that names it later settles its hold.
	Attempt uuid.UUID
	// Call is recorded with the first hold or denial; nil for a host that keeps its own records.
	Call     *ledger.Call
	Identity policy.Identity
	// Token names the credential that the caller came with, without telling it: equal denials of one are counted together.
	Token string
	// Facts of the call that policy sees. TokensBounded and CostBounded are filled in by the router.
	Facts policy.Call
	// MaxTokens and MaxCostNanoUSD are caps of this call: each reserves its full amount. nil is no cap.
	MaxTokens      *int64
	MaxCostNanoUSD *int64
	// TaskID puts the call into a task's one shared pool.
	TaskID string
	// Scopes are whose accounts the call stands on, with their limits, besides those of the router's own budgets.
	Scopes []Scope
	// Rates are how often the caller may make calls: each counts once, however many candidates it takes.
	Rates []ledger.Rate
	// Candidates in the order in which they are tried: the primary, then its fallbacks.
	Candidates []Candidate
}

// Candidate is one source that could serve the call.
type Candidate struct {
	// Candidate holds the facts that policy sees.
	policy.Candidate
	// Price is nil if the candidate has none.
	Price *ledger.Price
	// CacheWrites says that the provider's dialect can charge for cache writes, so that a hold must cover them.
	CacheWrites bool
	// CreditRate is nil for a candidate that takes no credits.
	CreditRate *ledger.CreditRate
	// Scopes are the accounts of who serves the call, with their limits. Where one is reached, another candidate may serve.
	Scopes []Scope
	// Rates are how often the candidate may be contacted, and Circuit stands before it while it fails; nil if none does. Where one of
	// them refuses, another candidate may serve.
	Rates   []ledger.Rate
	Circuit *ledger.Circuit
}

// Scope is whose accounts are charged.
type Scope struct {
	// Kind and ID name the accounts, one a unit.
	Kind, ID string
	// Limits are the scope's, by unit. A unit without an entry is closed: the scope's owner has not been given any of it; but calls may
	// always run, and a token is given nothing else. An entry without limits is counted and not limited.
	Limits map[ledger.Unit][]ledger.Limit
}

// Resolver finds what executes a candidate. The router never contacts a provider itself.
type Resolver interface {
	// Resolve returns the candidate's provider, or [ErrUnresolved] (or an error wrapping it) if it knows none. It is called
	// only after every check of the candidate has passed.
	Resolve(candidate Candidate) (adapters.Provider, error)
}

// reserve is what a candidate would have the call set aside: the call's caps in full, else the most that it can use.
func (r *Request) reserve(candidate *Candidate) (ledger.Reserve, error) {
	reserve := ledger.Reserve{Tokens: r.MaxTokens, NanoUSD: r.MaxCostNanoUSD}
	if candidate.CreditRate == nil {
		reserve.NanoCredits = new(int64)
	}
	output := outputBound(r, candidate)
	if r.Facts.InputTokens == nil || output == nil {
		return reserve, nil
	}
	bounds := ledger.Bounds{Input: *r.Facts.InputTokens, Output: *output, CacheWrites: candidate.CacheWrites}
	if *r.Facts.InputTokens > ledger.TokensMax-*output {
		return reserve, ledger.ErrOverflow
	}
	if reserve.Tokens == nil {
		sum := *r.Facts.InputTokens + *output
		reserve.Tokens = &sum
	}
	if reserve.NanoUSD == nil && candidate.Price != nil {
		cost, err := candidate.Price.Ceiling(bounds)
		if err != nil {
			return reserve, err
		}
		reserve.NanoUSD = &cost
	}
	if candidate.CreditRate != nil {
		credits, err := candidate.CreditRate.Ceiling(bounds)
		if err != nil {
			return reserve, err
		}
		reserve.NanoCredits = &credits
	}
	return reserve, nil
}

// outputBound is the most output that the call can bring from a candidate; nil if neither bounds it.
func outputBound(r *Request, candidate *Candidate) *int64 {
	asked, given := r.Facts.OutputTokensMax, candidate.OutputTokensMax
	switch {
	case asked == nil:
		return given
	case given == nil || *asked < *given:
		return asked
	}
	return given
}

// Claims are the scope's accounts with their limits.
func (s Scope) Claims() []ledger.Claim {
	var claims []ledger.Claim
	for _, unit := range append(slices.Clone(ledger.Units), ledger.Calls) {
		if limits, open := s.Limits[unit]; open {
			claims = append(claims, ledger.Claim{
				Account: ledger.Account{Scope: s.Kind, ID: s.ID, Unit: unit}, Limits: limits,
			})
		}
	}
	return claims
}

// claims are all accounts of some scopes. A compaction may take all of a limit: it makes the calls after it smaller.
func claims(scopes []Scope, kind string) []ledger.Claim {
	var all []ledger.Claim
	for _, scope := range scopes {
		all = append(all, scope.Claims()...)
	}
	if kind == Compaction {
		for i := range all {
			all[i].Limits = slices.Clone(all[i].Limits)
			for j := range all[i].Limits {
				all[i].Limits[j].Spendable, all[i].Limits[j].Final = 0, 0
			}
		}
	}
	return all
}

// closedUnit finds an account that the call would need and that its owner has been given none of.
func closedUnit(scopes []Scope, reserve ledger.Reserve) (ledger.Account, bool) {
	for _, scope := range scopes {
		if scope.Kind == ledger.ScopeToken {
			continue
		}
		for _, unit := range ledger.Units {
			amount := reserve.Of(unit)
			if _, open := scope.Limits[unit]; !open && (amount == nil || *amount > 0) {
				return ledger.Account{Scope: scope.Kind, ID: scope.ID, Unit: unit}, true
			}
		}
	}
	return ledger.Account{}, false
}

// limits says whether any scope limits a unit.
func limits(scopes []Scope, unit ledger.Unit) bool {
	for _, scope := range scopes {
		if slices.ContainsFunc(scope.Limits[unit], func(l ledger.Limit) bool { return l.Max < unlimited }) {
			return true
		}
	}
	return false
}
