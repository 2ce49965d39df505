package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
)

// picoPerNano is how many pico-USD, the unit of a rate, make a nano-USD, the unit of an amount.
const picoPerNano = 1000

var (
	// ErrPrice is returned for a text that is no price or no amount of money, and for one that is out of range.
	ErrPrice = errors.New("not a price")
	// ErrUnpriced is returned for what a price does not list: a service tier, or a unit.
	ErrUnpriced = errors.New("the price does not list what is charged")
	// ErrOverflow is returned where a sum or a product of amounts would leave the range of the ledger.
	ErrOverflow = errors.New("amount is out of range")
)

// Price is what a provider charges for a model. It is complete: whoever makes one has already resolved a class without a rate
// of its own ([PriceList.Price]). A price is frozen into the hold of a call, so a later change of the catalogue changes no
// charge that is under way.
//
// A call is charged by one row: the service tier that served it, by the provider's report, else the one that it asked for; and
// of that row by the long-context rates if its prompt is longer than their threshold. Its cost is the sum of tokens times rate
// over the classes, rounded up once to a nano-USD, and its units times their charges.
type Price struct {
	// Rates and LongContext are the row of the ordinary service tier, which providers call default or standard.
	Rates
	LongContext *LongContext `json:"long_context,omitempty"`
	// Tiers are the rows of other service tiers, by the provider's name.
	Tiers map[string]Row `json:"tiers,omitempty"`
	// UnitCharges are in nano-USD each.
	UnitCharges map[string]int64 `json:"unit_charges,omitempty"`
	// RequestedTier is the service tier that the call asked for, which [Price.For] sets. It counts where the provider reports
	// none.
	RequestedTier string `json:"requested_tier,omitempty"`
}

// Row is what tokens cost in one service tier.
type Row struct {
	Rates
	// LongContext is nil where a long prompt costs what others do.
	LongContext *LongContext `json:"long_context,omitempty"`
}

// LongContext is what every token of a call costs, its output included, if its whole prompt has more tokens than the threshold:
// cached tokens and cache writes count like others.
type LongContext struct {
	Threshold int64 `json:"threshold"`
	Rates
}

// Rates is what one token of each class costs, in pico-USD, which is micro-USD per million tokens.
type Rates struct {
	UncachedInput int64 `json:"uncached_input"`
	CachedInput   int64 `json:"cached_input"`
	CacheWrite5m  int64 `json:"cache_write_5m"`
	CacheWrite1h  int64 `json:"cache_write_1h"`
	Output        int64 `json:"output"`
	Reasoning     int64 `json:"reasoning"`
}

// clone copies all of a price that somebody may change; nil stays nil.
func (p *Price) clone() *Price {
	if p == nil {
		return nil
	}
	own := *p
	own.LongContext = p.LongContext.clone()
	own.UnitCharges = maps.Clone(p.UnitCharges)
	if own.Tiers = maps.Clone(p.Tiers); own.Tiers != nil {
		for tier, row := range own.Tiers {
			row.LongContext = row.LongContext.clone()
			own.Tiers[tier] = row
		}
	}
	return &own
}

func (l *LongContext) clone() *LongContext {
	if l == nil {
		return nil
	}
	own := *l
	return &own
}

// IsFree says that nothing costs anything at this price, whatever tier serves a call and whatever units it uses.
func (p Price) IsFree() bool {
	rows := append(slices.Collect(maps.Values(p.Tiers)), p.base())
	for _, row := range rows {
		if row.Rates != (Rates{}) || row.LongContext != nil && row.LongContext.Rates != (Rates{}) {
			return false
		}
	}
	for _, charge := range p.UnitCharges {
		if charge != 0 {
			return false
		}
	}
	return true
}

// For is the price for calls that ask for a service tier, empty if they ask for none. It returns [ErrUnpriced] for a tier that
// the price does not list: it may cost more than any that is listed, so that such a call must not be admitted at this price.
func (p Price) For(tier string) (Price, error) {
	if _, listed := p.Tiers[tier]; !listed && !isBaseTier(tier) {
		return Price{}, fmt.Errorf("%w: the service tier %q", ErrUnpriced, tier)
	}
	switch {
	case len(p.Tiers) == 0 || leavesTierOpen(tier):
		p.RequestedTier = ""
	case isBaseTier(tier):
		p.RequestedTier = "default"
	default:
		p.RequestedTier = tier
	}
	return p, nil
}

// Cost is what usage costs at this price, in nano-USD. It returns [ErrUnpriced] if the usage has units, or was served by a tier,
// that the price does not list; the amount is then what is known of the cost, at the dearest tier that is listed.
func (p Price) Cost(u Usage) (int64, error) {
	if _, err := u.Tokens(); err != nil {
		return 0, err
	}
	if err := p.validate(); err != nil {
		return 0, err
	}
	tier := u.Tier
	if leavesTierOpen(tier) {
		tier = p.RequestedTier
	}
	var unpriced error
	rows := []Row{p.base()}
	if row, listed := p.Tiers[tier]; listed {
		rows[0] = row
	} else if !isBaseTier(tier) {
		unpriced = fmt.Errorf("%w: the service tier %q", ErrUnpriced, tier)
		rows = slices.AppendSeq(rows, maps.Values(p.Tiers))
	}
	tokens, err := dearest(rows, func(row Row) (int64, error) { return row.cost(u) })
	if err != nil {
		return 0, err
	}
	units, err := p.unitCost(u.Units)
	if err != nil && !errors.Is(err, ErrUnpriced) {
		return 0, err
	}
	if tokens > NanoUSDMax-units {
		return 0, ErrOverflow
	}
	return tokens + units, errors.Join(unpriced, err)
}

// Ceiling is the most that a call within bounds can cost when nothing is known of its classes yet: every token at the dearest
// class that it can turn out to be, in the dearest row that it can turn out to be charged by. That is the requested tier's, or
// the ordinary one's, which providers fall back to; a call that leaves its tier open is served by whatever its account at the
// provider is set to, which may be any that the price lists.
func (p Price) Ceiling(b Bounds) (int64, error) {
	if _, err := (Usage{UncachedInput: b.Input, Output: b.Output, Units: b.Units}).Tokens(); err != nil {
		return 0, err
	}
	if err := p.validate(); err != nil {
		return 0, err
	}
	rows := []Row{p.base()}
	if leavesTierOpen(p.RequestedTier) {
		rows = slices.AppendSeq(rows, maps.Values(p.Tiers))
	} else if row, listed := p.Tiers[p.RequestedTier]; listed {
		rows = append(rows, row)
	}
	tokens, err := dearest(rows, func(row Row) (int64, error) { return row.ceiling(b) })
	if err != nil {
		return 0, err
	}
	units, err := p.unitCost(b.Units)
	if err != nil {
		return 0, err
	}
	if tokens > NanoUSDMax-units {
		return 0, ErrOverflow
	}
	return tokens + units, nil
}

func (p Price) base() Row { return Row{Rates: p.Rates, LongContext: p.LongContext} }

// dearest is the most that any of the rows comes to.
func dearest(rows []Row, amount func(Row) (int64, error)) (int64, error) {
	var most int64
	for _, row := range rows {
		n, err := amount(row)
		if err != nil {
			return 0, err
		}
		most = max(most, n)
	}
	return most, nil
}

// unitCost is what units cost. With [ErrUnpriced] the amount is that of the others.
func (p Price) unitCost(units map[string]int64) (int64, error) {
	var sum int64
	var unpriced error
	for unit, n := range units {
		charge, listed := p.UnitCharges[unit]
		if !listed {
			if n > 0 {
				unpriced = fmt.Errorf("%w: the unit %q", ErrUnpriced, unit)
			}
			continue
		}
		hi, lo := bits.Mul64(uint64(n), uint64(charge))
		if hi != 0 || lo > uint64(NanoUSDMax-sum) {
			return 0, ErrOverflow
		}
		sum += int64(lo)
	}
	return sum, unpriced
}

// cost is what the tokens of a usage cost in this row.
func (r Row) cost(u Usage) (int64, error) {
	if r.LongContext != nil && u.prompt() > r.LongContext.Threshold {
		return r.LongContext.cost(u)
	}
	return r.Rates.cost(u)
}

// ceiling is the most that tokens within bounds cost in this row. A prompt that may be long may also turn out not to be.
func (r Row) ceiling(b Bounds) (int64, error) {
	if r.LongContext == nil || b.Input <= r.LongContext.Threshold {
		return r.Rates.ceiling(b)
	}
	long, err := r.LongContext.ceiling(b)
	if err != nil {
		return 0, err
	}
	b.Input = r.LongContext.Threshold
	short, err := r.Rates.ceiling(b)
	return max(long, short), err
}

// cost is the exact sum over the classes, rounded up once.
func (r Rates) cost(u Usage) (int64, error) {
	var hi, lo uint64 // the sum in pico-USD, 128 bits
	rates := r.classes()
	for i, n := range u.classes() {
		h, l := bits.Mul64(uint64(n), uint64(rates[i]))
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi += h + carry // 6 products below 2^53 x 2^63 stay below 2^119: no overflow
	}
	lo, carry := bits.Add64(lo, picoPerNano-1, 0)
	hi += carry
	if hi >= picoPerNano {
		return 0, ErrOverflow
	}
	nano, _ := bits.Div64(hi, lo, picoPerNano)
	if nano > NanoUSDMax {
		return 0, ErrOverflow
	}
	return int64(nano), nil
}

func (r Rates) ceiling(b Bounds) (int64, error) {
	input := max(r.UncachedInput, r.CachedInput)
	if b.CacheWrites {
		input = max(input, r.CacheWrite5m, r.CacheWrite1h)
	}
	return Rates{UncachedInput: input, Output: max(r.Output, r.Reasoning)}.cost(Usage{UncachedInput: b.Input, Output: b.Output})
}

func (r Rates) classes() [6]int64 {
	return [...]int64{r.UncachedInput, r.CachedInput, r.CacheWrite5m, r.CacheWrite1h, r.Output, r.Reasoning}
}

// validate returns [ErrPrice] for what can be no price.
func (p Price) validate() error {
	if len(p.Tiers) > namesMax || len(p.UnitCharges) > namesMax {
		return fmt.Errorf("%w: more than %d tiers or unit charges", ErrPrice, namesMax)
	}
	if err := p.base().validate(); err != nil {
		return err
	}
	for tier, row := range p.Tiers {
		if !ValidName(tier) || isBaseTier(tier) || tier == UnknownTier {
			return fmt.Errorf("%w: %q cannot name a service tier", ErrPrice, tier)
		}
		if err := row.validate(); err != nil {
			return err
		}
	}
	for unit, charge := range p.UnitCharges {
		if !ValidName(unit) || charge < 0 {
			return fmt.Errorf("%w: a charge for %q", ErrPrice, unit)
		}
	}
	if _, listed := p.Tiers[p.RequestedTier]; !listed && !isBaseTier(p.RequestedTier) {
		return fmt.Errorf("%w: it does not list the requested tier", ErrPrice)
	}
	return nil
}

func (r Row) validate() error {
	if long := r.LongContext; long != nil {
		if long.Threshold < 0 {
			return fmt.Errorf("%w: a threshold below 0", ErrPrice)
		}
		if err := long.Rates.validate(); err != nil {
			return err
		}
	}
	return r.Rates.validate()
}

func (r Rates) validate() error {
	for _, n := range r.classes() {
		if n < 0 {
			return fmt.Errorf("%w: a class costs less than nothing", ErrPrice)
		}
	}
	return nil
}

// ID addresses the price by its content, so that the same price is stored once. It is the SHA-256 of the rates in their order, 8
// bytes each; and, where the price is more than that, of the rest: the long-context rates, the tiers and the unit charges by
// name, and the requested tier, each told from the next by its length.
func (p Price) ID() [32]byte {
	encoded := p.Rates.encode(nil)
	if p.LongContext == nil && len(p.Tiers) == 0 && len(p.UnitCharges) == 0 && p.RequestedTier == "" {
		return sha256.Sum256(encoded)
	}
	encoded = p.LongContext.encode(encoded)
	encoded = binary.AppendUvarint(encoded, uint64(len(p.Tiers)))
	for _, tier := range slices.Sorted(maps.Keys(p.Tiers)) {
		row := p.Tiers[tier]
		encoded = row.LongContext.encode(row.Rates.encode(appendText(encoded, tier)))
	}
	encoded = binary.AppendUvarint(encoded, uint64(len(p.UnitCharges)))
	for _, unit := range slices.Sorted(maps.Keys(p.UnitCharges)) {
		encoded = binary.BigEndian.AppendUint64(appendText(encoded, unit), uint64(p.UnitCharges[unit]))
	}
	return sha256.Sum256(appendText(encoded, p.RequestedTier))
}

func (r Rates) encode(to []byte) []byte {
	for _, n := range r.classes() {
		to = binary.BigEndian.AppendUint64(to, uint64(n))
	}
	return to
}

func (l *LongContext) encode(to []byte) []byte {
	if l == nil {
		return append(to, 0)
	}
	return l.Rates.encode(binary.BigEndian.AppendUint64(append(to, 1), uint64(l.Threshold)))
}

func appendText(to []byte, text string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(text))), text...)
}
