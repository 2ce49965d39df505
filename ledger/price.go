package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

// NanoUSDMax bounds every amount of money, in nano-USD: 2^62, so that the sum of two amounts still fits an int64.
const NanoUSDMax = 1 << 62

// picoPerNano is how many pico-USD, the unit of a price, make a nano-USD, the unit of an amount.
const picoPerNano = 1000

var (
	// ErrPrice is returned for a text that is no price or no amount of money, and for one that is out of range.
	ErrPrice = errors.New("not a price")
	// ErrOverflow is returned where a sum or a product of amounts would leave the range of the ledger.
	ErrOverflow = errors.New("amount is out of range")
)

// Price is what one token of each class costs, in pico-USD, which is micro-USD per million tokens. It is complete: whoever
// makes one has already resolved a class without a price of its own ([PriceList.Price]). A price is frozen into the hold
// of a call, so a later change of the catalogue changes no charge that is under way.
type Price struct {
	UncachedInput int64 `json:"uncached_input"`
	CachedInput   int64 `json:"cached_input"`
	CacheWrite5m  int64 `json:"cache_write_5m"`
	CacheWrite1h  int64 `json:"cache_write_1h"`
	Output        int64 `json:"output"`
	Reasoning     int64 `json:"reasoning"`
}

// PriceList is a price as an administrator writes it: USD per million tokens, as decimal texts with at most 6 places.
// Input and Output are required (a free class is written "0"); the others may be left out.
type PriceList struct {
	Input        string
	Output       string
	CachedInput  string
	CacheWrite5m string
	CacheWrite1h string
	Reasoning    string
}

// Price resolves the list. A missing cached or 5-minute write price is the input price, a missing 1-hour write price the
// 5-minute one, a missing reasoning price the output price: never cheaper than what is known. It returns [ErrPrice] if
// the input or the output price is missing, or if a text is no price.
func (l PriceList) Price() (Price, error) {
	if l.Input == "" || l.Output == "" {
		return Price{}, fmt.Errorf("%w: input and output must both be given (write 0 for free)", ErrPrice)
	}
	var p Price
	for _, class := range []struct {
		to       *int64
		name     string
		text     string
		fallback *int64
	}{
		{&p.UncachedInput, "input", l.Input, nil},
		{&p.CachedInput, "cached_input", l.CachedInput, &p.UncachedInput},
		{&p.CacheWrite5m, "cache_write_5m", l.CacheWrite5m, &p.UncachedInput},
		{&p.CacheWrite1h, "cache_write_1h", l.CacheWrite1h, &p.CacheWrite5m},
		{&p.Output, "output", l.Output, nil},
		{&p.Reasoning, "reasoning", l.Reasoning, &p.Output},
	} {
		if class.text == "" {
			*class.to = *class.fallback
			continue
		}
		n, err := parseDecimal(class.text, 6)
		if err != nil {
			return Price{}, fmt.Errorf("%s: %w", class.name, err)
		}
		*class.to = n
	}
	return p, nil
}

// ID addresses the price by its content, so that the same price is stored once.
func (p Price) ID() [32]byte {
	var b [48]byte
	for i, n := range p.classes() {
		binary.BigEndian.PutUint64(b[i*8:], uint64(n))
	}
	return sha256.Sum256(b[:])
}

// Cost is what usage costs at this price, in nano-USD: the exact sum over the classes, rounded up once.
func (p Price) Cost(u Usage) (int64, error) {
	if _, err := u.Tokens(); err != nil {
		return 0, err
	}
	if err := p.validate(); err != nil {
		return 0, err
	}
	var hi, lo uint64 // the sum in pico-USD, 128 bits
	prices := p.classes()
	for i, n := range u.classes() {
		h, l := bits.Mul64(uint64(n), uint64(prices[i]))
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

// Ceiling is the most that input and output tokens can cost when nothing is known of their classes yet: every token at
// the dearest class that it can turn out to be. Cache writes count only where the provider's dialect has them.
func (p Price) Ceiling(input, output int64, cacheWrites bool) (int64, error) {
	if err := p.validate(); err != nil {
		return 0, err
	}
	dearestInput := max(p.UncachedInput, p.CachedInput)
	if cacheWrites {
		dearestInput = max(dearestInput, p.CacheWrite5m, p.CacheWrite1h)
	}
	dearest := Price{UncachedInput: dearestInput, Output: max(p.Output, p.Reasoning)}
	return dearest.Cost(Usage{UncachedInput: input, Output: output})
}

func (p Price) validate() error {
	for _, n := range p.classes() {
		if n < 0 {
			return fmt.Errorf("%w: a class costs less than nothing", ErrPrice)
		}
	}
	return nil
}

func (p Price) classes() [6]int64 {
	return [...]int64{p.UncachedInput, p.CachedInput, p.CacheWrite5m, p.CacheWrite1h, p.Output, p.Reasoning}
}

// ParseUSD reads an amount of US dollars such as "2.50", with at most 9 places, as nano-USD. It returns [ErrPrice] for
// anything else: signs, exponents, NaN, more places, or more than 2^52 micro-USD, the largest amount that is accepted.
func ParseUSD(text string) (int64, error) {
	n, err := parseDecimal(text, 9)
	if err != nil {
		return 0, err
	}
	if n > 1<<52*1000 {
		return 0, fmt.Errorf("%w: %q is more than 2^52 micro-USD", ErrPrice, text)
	}
	return n, nil
}

// FormatUSD writes nano-USD as an exact decimal of US dollars, without trailing zeros.
func FormatUSD(nano int64) string {
	sign := ""
	if nano < 0 {
		sign, nano = "-", -nano
	}
	text := fmt.Sprintf("%s%d.%09d", sign, nano/1e9, nano%1e9)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

// parseDecimal reads digits[.digits] as an integer of the given number of decimal places.
func parseDecimal(text string, places int) (int64, error) {
	whole, fraction, point := strings.Cut(text, ".")
	if whole == "" || point && fraction == "" || len(fraction) > places {
		return 0, fmt.Errorf("%w: %q must be a decimal number with at most %d places", ErrPrice, text, places)
	}
	var n uint64
	for _, digit := range whole + fraction + strings.Repeat("0", places-len(fraction)) {
		if digit < '0' || digit > '9' {
			return 0, fmt.Errorf("%w: %q must be a decimal number with at most %d places", ErrPrice, text, places)
		}
		if n = n*10 + uint64(digit-'0'); n > NanoUSDMax {
			return 0, fmt.Errorf("%w: %q is too large", ErrPrice, text)
		}
	}
	return int64(n), nil
}
