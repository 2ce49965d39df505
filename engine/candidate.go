package engine

import (
	"encoding/json"
	"fmt"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

// Candidate is one source that could serve the call. A host makes one of its model by [Model.Candidate]; one that is made by hand is
// available only if Enabled and Connection say so.
type Candidate struct {
	// Candidate holds the facts that policy sees.
	policy.Candidate
	// Price is nil if the candidate has none.
	Price *ledger.Price
	// UnitPrice is what [CostLatency] ranks by, in pico-USD for a token of each class. nil is the sum of the price's rates for input,
	// output and cached input.
	UnitPrice *int64
	// QuotaLeft is how much is left of the quota at the provider, in millionths of it; nil if that is not known.
	QuotaLeft *int64
	// Routing is the model's own OpenRouter routing metadata. A resolver sees it only where policy honours it.
	Routing json.RawMessage
	// CacheWrites says that the provider's dialect can charge for cache writes, so that a hold must cover them.
	CacheWrites bool
	// HiddenTokens says that the provider charges for output that an answer does not show, such as reasoning, so that what was relayed
	// cannot tell what was used.
	HiddenTokens bool
	// CreditRate is nil for a candidate that takes no credits.
	CreditRate *ledger.CreditRate
	// Scopes are the accounts of who serves the call, with their limits. Where one is reached, another candidate may serve.
	Scopes []Scope
	// Rates are how often the candidate may be contacted, and Circuit stands before it while it fails; nil if none does. Where one of
	// them refuses, another candidate may serve.
	Rates   []ledger.Rate
	Circuit *ledger.Circuit

	named bool // by a host's model, whose name may carry OpenRouter's routing
}

// Resolver finds what executes a candidate. The router never contacts a provider itself.
type Resolver interface {
	// Resolve returns the candidate's provider, or [ErrUnresolved] (or an error wrapping it) if it knows none. It is called
	// only after every check of the candidate has passed.
	Resolve(candidate Candidate) (adapters.Provider, error)
}

// isSame says whether another candidate is the same model of the same provider.
func (c *Candidate) isSame(other Candidate) bool {
	return c.Provider == other.Provider && c.Model == other.Model
}

// sourceOf is the source of a candidate that has no name for it.
func sourceOf(provider, model string) string { return provider + "/" + model }

// complete fills in the facts that the rest of the candidate tells. One that serves no protocol by name serves the call's.
func (c *Candidate) complete(protocols []string) error {
	if !isName(c.Provider) || !isName(c.Model) {
		return invalid(fmt.Sprintf("a candidate needs a provider and a model: texts of at most %d bytes", nameMax))
	}
	if c.Source == "" {
		c.Source = sourceOf(c.Provider, c.Model)
	}
	if c.Accounting == "" {
		c.Accounting = policy.ByAPIKey
	}
	if c.Protocols == nil || c.named && len(c.Protocols) == 1 && c.Protocols[0] == hostProtocol {
		c.Protocols = protocols
	}
	c.Modalities = listOf(c.Modalities)
	if c.Price != nil && c.InputPrice == nil && c.OutputPrice == nil {
		c.InputPrice, c.OutputPrice = &c.Price.UncachedInput, &c.Price.Output
	}
	c.OpenRouterRouting = c.OpenRouterRouting || len(c.Routing) > 0
	return nil
}

// noCredits is what a candidate reserves that takes none.
var noCredits int64

// reserve is what a candidate would have the call set aside: the call's caps in full, else the most that it can use.
func (r *Request) reserve(candidate *Candidate) (ledger.Reserve, error) {
	reserve := ledger.Reserve{Tokens: r.MaxTokens, NanoUSD: r.MaxCostNanoUSD}
	if candidate.CreditRate == nil {
		reserve.NanoCredits = &noCredits
	}
	output := outputBound(r, candidate)
	if r.Facts.InputTokens == nil || output == nil {
		return reserve, nil
	}
	if *r.Facts.InputTokens > ledger.TokensMax-r.AddedInput || *r.Facts.InputTokens+r.AddedInput > ledger.TokensMax-*output {
		return reserve, ledger.ErrOverflow
	}
	bounds := ledger.Bounds{Input: *r.Facts.InputTokens + r.AddedInput, Output: *output, CacheWrites: candidate.CacheWrites}
	if reserve.Tokens == nil {
		sum := bounds.Input + bounds.Output
		reserve.Tokens = &sum
	}
	if reserve.NanoUSD == nil && candidate.Price != nil {
		bounds.Units = listed(r.Units, candidate.Price)
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

// listed are the units that a price lists.
func listed(units map[string]int64, price *ledger.Price) map[string]int64 {
	known := map[string]int64{}
	for unit, n := range units {
		if _, has := price.UnitCharges[unit]; has {
			known[unit] = n
		}
	}
	return known
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
