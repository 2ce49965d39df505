package catalog

import (
	"slices"
	"strings"

	"regent/engine/policy"
	"regent/ledger"
)

var accountings = []string{policy.ByAPIKey, policy.BySubscription, policy.Unmetered}

// accounting reads how a source is paid: by its price, by its multiplier of credits, or not at all, which has to be written as a
// price of 0.
func (p *parser) accounting(source *Source, model *Model, entry sourceEntry, way []any) (err error) {
	if source.Accounting = entry.Accounting; source.Accounting == "" {
		source.Accounting = policy.ByAPIKey
	}
	if !slices.Contains(accountings, source.Accounting) {
		return p.fail(append(way, "accounting"), "source %q: unknown accounting %q (known: %s)", entry.ID, entry.Accounting, strings.Join(accountings, ", "))
	}
	if entry.Price != nil {
		if source.Price, err = p.price(entry.ID, *entry.Price, model.Modalities, append(way, "price")); err != nil {
			return err
		}
		source.PublishedPrice = entry.Price.Published
	}
	switch source.Accounting {
	case policy.ByAPIKey:
		if source.Price != nil && source.Price.UncachedInput == 0 && source.Price.Output == 0 {
			return p.fail(append(way, "price"), "source %q: a price of 0 is accounting: unmetered, which policy has to allow", entry.ID)
		}
	case policy.BySubscription:
		if source.Price != nil {
			return p.fail(append(way, "price"), "source %q: a subscription is paid by credits: it has a multiplier, and no price", entry.ID)
		}
		source.Price, source.Multiplier = &ledger.Price{}, model.Multiplier
	case policy.Unmetered:
		if source.Price == nil || !source.Price.IsFree() {
			return p.fail(append(way, "price"), "source %q: what is unmetered needs a price of 0, in writing", entry.ID)
		}
	}
	if entry.Multiplier == "" {
		return nil
	}
	if source.Accounting != policy.BySubscription {
		return p.fail(append(way, "multiplier"), "source %q: only a subscription has a multiplier", entry.ID)
	}
	if source.Multiplier, err = ledger.ParseMultiplier(entry.Multiplier); err != nil {
		return p.fail(append(way, "multiplier"), "source %q: %v", entry.ID, err)
	}
	return nil
}

// creditRate is what the source's calls that ask for a service tier take of a subscription; nil if it is none. No quota of a
// subscription is discovered yet, so that it burns once.
func (s *Source) creditRate(tier string) *ledger.CreditRate {
	if s.Accounting != policy.BySubscription {
		return nil
	}
	return &ledger.CreditRate{
		Model: s.Multiplier, Burn: ledger.Once, Tiers: ledger.SubscriptionTiers(s.Connection.Provider), RequestedTier: tier,
	}
}
