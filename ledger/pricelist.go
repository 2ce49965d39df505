package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// PriceList is a price as an administrator writes it: rates in USD per million tokens, as decimal texts with at most 6 places,
// and unit charges in USD each, with at most 9. Its JSON and YAML forms have the same keys.
type PriceList struct {
	RateList    `yaml:",inline"`
	LongContext *LongContextList   `json:"long_context,omitempty" yaml:"long_context"`
	Tiers       map[string]RowList `json:"tiers,omitempty" yaml:"tiers"`
	UnitCharges map[string]string  `json:"unit_charges,omitempty" yaml:"unit_charges"`
}

// RowList is one service tier of a list.
type RowList struct {
	RateList    `yaml:",inline"`
	LongContext *LongContextList `json:"long_context,omitempty" yaml:"long_context"`
}

// LongContextList is what a call costs whose prompt has more tokens than the threshold.
type LongContextList struct {
	Threshold int64 `json:"threshold" yaml:"threshold"`
	RateList  `yaml:",inline"`
}

// RateList are the rates of a row. Input and Output are required (a free class is written "0"); the others may be left out.
type RateList struct {
	Input        string `json:"input,omitempty" yaml:"input"`
	CachedInput  string `json:"cached_input,omitempty" yaml:"cached_input"`
	CacheWrite5m string `json:"cache_write_5m,omitempty" yaml:"cache_write_5m"`
	CacheWrite1h string `json:"cache_write_1h,omitempty" yaml:"cache_write_1h"`
	Output       string `json:"output,omitempty" yaml:"output"`
	Reasoning    string `json:"reasoning,omitempty" yaml:"reasoning"`
}

// ListError is an [ErrPrice], and where it is in a list.
type ListError struct {
	// Keys lead to what is wrong, for example tiers, priority, output. Empty if it is the list as a whole.
	Keys []string
	Err  error
}

func (e *ListError) Error() string {
	if len(e.Keys) == 0 {
		return e.Err.Error()
	}
	return strings.Join(e.Keys, ".") + ": " + e.Err.Error()
}

// Unwrap returns the error itself.
func (e *ListError) Unwrap() error { return e.Err }

// in is the error, seen from further above.
func (e *ListError) in(keys ...string) *ListError {
	if e != nil {
		e.Keys = append(keys, e.Keys...)
	}
	return e
}

// wrongList is an error of a list at a key; the empty key is the list itself.
func wrongList(key, format string, args ...any) *ListError {
	e := &ListError{Err: fmt.Errorf("%w: "+format, append([]any{ErrPrice}, args...)...)}
	if key != "" {
		e.Keys = []string{key}
	}
	return e
}

// Price resolves the list. What is missing is never cheaper than what is known: a cached or 5-minute write rate is the input
// rate, a 1-hour write rate the 5-minute one, a reasoning rate the output rate; and in a list with long-context rates a tier
// without its own charges a long prompt at its own rate of a class or the list's long one, whichever is more. It returns a
// [*ListError] if an input or an output rate is missing, or if something is no price.
func (l PriceList) Price() (Price, error) {
	var p Price
	base, wrong := RowList{RateList: l.RateList, LongContext: l.LongContext}.row()
	if wrong != nil {
		return p, wrong
	}
	p.Rates, p.LongContext = base.Rates, base.LongContext
	if p.Tiers, wrong = l.tiers(base); wrong != nil {
		return Price{}, wrong
	}
	if p.UnitCharges, wrong = l.unitCharges(); wrong != nil {
		return Price{}, wrong
	}
	return p, nil
}

func (l PriceList) tiers(base Row) (map[string]Row, *ListError) {
	if len(l.Tiers) > namesMax {
		return nil, wrongList("tiers", "more than %d service tiers", namesMax)
	}
	var tiers map[string]Row
	for _, tier := range slices.Sorted(maps.Keys(l.Tiers)) {
		if !ValidName(tier) || tier == UnknownTier {
			return nil, wrongList(tier, "%q cannot name a service tier", tier).in("tiers")
		}
		if isBaseTier(tier) {
			return nil, wrongList(tier, "the ordinary service tier is what stands outside of the tiers").in("tiers")
		}
		row, wrong := l.Tiers[tier].row()
		if wrong != nil {
			return nil, wrong.in("tiers", tier)
		}
		if row.LongContext == nil && base.LongContext != nil {
			row.LongContext = &LongContext{base.LongContext.Threshold, row.Rates.atLeast(base.LongContext.Rates)}
		}
		if tiers == nil {
			tiers = map[string]Row{}
		}
		tiers[tier] = row
	}
	return tiers, nil
}

// atLeast is the dearer of two rates, class by class.
func (r Rates) atLeast(other Rates) Rates {
	return Rates{
		max(r.UncachedInput, other.UncachedInput), max(r.CachedInput, other.CachedInput), max(r.CacheWrite5m, other.CacheWrite5m),
		max(r.CacheWrite1h, other.CacheWrite1h), max(r.Output, other.Output), max(r.Reasoning, other.Reasoning),
	}
}

func (l PriceList) unitCharges() (map[string]int64, *ListError) {
	if len(l.UnitCharges) > namesMax {
		return nil, wrongList("unit_charges", "more than %d units", namesMax)
	}
	var charges map[string]int64
	for _, unit := range slices.Sorted(maps.Keys(l.UnitCharges)) {
		if !ValidName(unit) {
			return nil, wrongList(unit, "%q cannot name a unit", unit).in("unit_charges")
		}
		charge, err := ParseUSD(l.UnitCharges[unit])
		if err != nil {
			return nil, &ListError{Keys: []string{"unit_charges", unit}, Err: err}
		}
		if charges == nil {
			charges = map[string]int64{}
		}
		charges[unit] = charge
	}
	return charges, nil
}

func (l RowList) row() (Row, *ListError) {
	rates, wrong := l.rates()
	if wrong != nil {
		return Row{}, wrong
	}
	row := Row{Rates: rates}
	if l.LongContext == nil {
		return row, nil
	}
	if l.LongContext.Threshold <= 0 || l.LongContext.Threshold > TokensMax {
		return Row{}, wrongList("threshold", "a number of tokens above 0, beyond which a prompt is long").in("long_context")
	}
	if rates, wrong = l.LongContext.rates(); wrong != nil {
		return Row{}, wrong.in("long_context")
	}
	row.LongContext = &LongContext{l.LongContext.Threshold, rates}
	return row, nil
}

func (l RateList) rates() (Rates, *ListError) {
	if l.Input == "" || l.Output == "" {
		return Rates{}, wrongList("", "input and output must both be given (write 0 for free)")
	}
	var r Rates
	for _, class := range []struct {
		to       *int64
		name     string
		text     string
		fallback *int64
	}{
		{&r.UncachedInput, "input", l.Input, nil},
		{&r.CachedInput, "cached_input", l.CachedInput, &r.UncachedInput},
		{&r.CacheWrite5m, "cache_write_5m", l.CacheWrite5m, &r.UncachedInput},
		{&r.CacheWrite1h, "cache_write_1h", l.CacheWrite1h, &r.CacheWrite5m},
		{&r.Output, "output", l.Output, nil},
		{&r.Reasoning, "reasoning", l.Reasoning, &r.Output},
	} {
		if class.text == "" {
			*class.to = *class.fallback
			continue
		}
		n, err := parseDecimal(class.text, microPlaces)
		if err != nil {
			return Rates{}, wrongList(class.name, "%w", err)
		}
		*class.to = n
	}
	return r, nil
}
