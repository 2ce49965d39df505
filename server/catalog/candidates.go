package catalog

import (
	"maps"
	"slices"
	"sync"
	"time"

	"regent/engine"
	"regent/engine/policy"
	"regent/ledger"
)

// Candidates are all sources of the model with their facts, for one call. routed says that the request carries OpenRouter's
// routing metadata; tier is the service tier that it asks for, empty if none. A source whose price does not list that tier has
// no price for the call.
func (m *Model) Candidates(cooling *Cooling, routed bool, tier string) []engine.Candidate {
	candidates := make([]engine.Candidate, 0, len(m.Sources))
	for _, source := range m.Sources {
		price := source.priceFor(tier)
		candidate := engine.Candidate{
			Candidate: policy.Candidate{
				Source: source.ID, Provider: source.Connection.Provider, Model: source.Model, Residency: source.Residency,
				Enabled:    m.Enabled && source.Enabled && source.Connection.Enabled,
				Connection: source.Connection.State, CoolingUntil: cooling.until(source.ID),
				Protocols: source.Connection.Protocols, Modalities: slices.AppendSeq([]string{}, maps.Keys(m.Modalities)),
				ContextTokens: m.ContextTokens, OutputTokensMax: m.OutputTokensMax, Priced: price != nil,
				OpenRouterRouting: routed && source.Connection.routes(), Accounting: source.Accounting,
			},
			Price: price, CreditRate: source.creditRate(tier), Scopes: source.scopes(), Circuit: source.Circuit,
			CacheWrites:  knownAdapters[source.Connection.Adapter].writesCache,
			HiddenTokens: knownAdapters[source.Connection.Adapter].hidesTokens,
		}
		if price != nil {
			candidate.InputPrice, candidate.OutputPrice = &price.UncachedInput, &price.Output
		}
		candidates = append(candidates, candidate)
	}
	return candidates
}

// priceFor is the source's price for calls that ask for a service tier; nil if it has none.
func (s *Source) priceFor(tier string) *ledger.Price {
	if s.Price == nil || tier == "" || s.Accounting == policy.BySubscription { // whose tiers are its multipliers'
		return s.Price
	}
	price, err := s.Price.For(tier)
	if err != nil { // the tier is not listed
		return nil
	}
	return &price
}

// openRouter is the id of the provider that acts on OpenRouter's routing metadata, and the adapter that speaks to it.
const openRouter = "openrouter"

func (c *Connection) routes() bool { return c.Provider == openRouter || c.Adapter == openRouter }

// Cooling is which sources asked to be left alone, and until when. The zero value is ready; it is this process's own.
type Cooling struct {
	mu      sync.Mutex
	sources map[string]time.Time
}

// Set leaves a source alone until a time.
func (c *Cooling) Set(source string, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sources == nil {
		c.sources = map[string]time.Time{}
	}
	c.sources[source] = until
}

// until is when the source may be tried again, as policy sees it: 0 if it never asked.
func (c *Cooling) until(source string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if until, asked := c.sources[source]; asked {
		return policy.Nanos(until)
	}
	return 0
}
