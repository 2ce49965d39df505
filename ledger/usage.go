package ledger

import (
	"errors"
	"strings"
)

// TokensMax is the largest count of tokens, and the largest limit in tokens: 2^53 - 1, the largest integer that every
// JSON reader keeps exact.
const TokensMax = 1<<53 - 1

// namesMax bounds the kinds of units of one usage, and the tiers and the unit charges of one price: providers have a handful.
const namesMax = 16

// ErrUsage is returned for usage that cannot be true: a negative or too large count, a total beyond [TokensMax], or a unit or
// a tier whose name is none.
var ErrUsage = errors.New("usage is out of range")

// Usage is what one call consumed, in disjoint classes: no token is counted twice, so their sum is the total. An adapter
// makes it from what its provider reports (OpenAI, for one, counts cached tokens inside the prompt and reasoning inside
// the completion).
type Usage struct {
	UncachedInput int64 `json:"uncached_input"`
	CachedInput   int64 `json:"cached_input"`
	CacheWrite5m  int64 `json:"cache_write_5m"`
	CacheWrite1h  int64 `json:"cache_write_1h"`
	Output        int64 `json:"output"`
	Reasoning     int64 `json:"reasoning"`
	// Units counts what is not charged by tokens, for example web_search.
	Units map[string]int64 `json:"units,omitempty"`
	// Tier is the service tier that served the call, as the provider reported it; empty if it did not.
	Tier string `json:"tier,omitempty"`
}

// UnknownTier is the tier of a usage whose provider reported one that cannot be the name of any. No price lists it.
const UnknownTier = "unknown"

// ValidName says whether a text can name a service tier or a unit: letters, digits, points, hyphens and underscores, at most 64.
func ValidName(text string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return text != "" && len(text) <= 64 && strings.Trim(text, letters+"._-") == "" && strings.Contains(letters, text[:1])
}

// Tokens is the sum over all classes. It returns [ErrUsage] if a class or the sum is out of range, or anything else of the usage.
func (u Usage) Tokens() (int64, error) {
	var sum int64
	for _, n := range u.classes() {
		if n < 0 || n > TokensMax-sum {
			return 0, ErrUsage
		}
		sum += n
	}
	for unit, n := range u.Units {
		if n < 0 || n > TokensMax || !ValidName(unit) {
			return 0, ErrUsage
		}
	}
	if len(u.Units) > namesMax || u.Tier != "" && !ValidName(u.Tier) {
		return 0, ErrUsage
	}
	return sum, nil
}

// prompt is the whole input, whatever class it is of.
func (u Usage) prompt() int64 {
	return u.UncachedInput + u.CachedInput + u.CacheWrite5m + u.CacheWrite1h
}

func (u Usage) classes() [6]int64 {
	return [...]int64{u.UncachedInput, u.CachedInput, u.CacheWrite5m, u.CacheWrite1h, u.Output, u.Reasoning}
}

// Bounds are the most that a call can use, as far as that is known before it is made.
type Bounds struct {
	Input, Output int64
	// CacheWrites says that the provider's dialect can charge for cache writes.
	CacheWrites bool
	// Units are the most of each unit that the call can use.
	Units map[string]int64
}

// isBaseTier says whether a service tier is the ordinary one, whose rates are the price's own: none, or what providers call it.
func isBaseTier(tier string) bool {
	switch tier {
	case "", "auto", "default", "standard", "standard_only", "on_demand":
		return true
	}
	return false
}

// leavesTierOpen says whether a tier names none: a request for it gets what its account at the provider is set to, and a report
// of it tells nothing.
func leavesTierOpen(tier string) bool { return tier == "" || tier == "auto" }
