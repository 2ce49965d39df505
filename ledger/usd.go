package ledger

import (
	"fmt"
	"strings"
)

// NanoUSDMax bounds every amount of money, in nano-USD: 2^62, so that the sum of two amounts still fits an int64.
const NanoUSDMax = 1 << 62

// ParseUSD reads an amount of US dollars such as "2.50", with at most 9 places, as nano-USD. It returns [ErrPrice] for
// anything else: signs, exponents, NaN, more places, or more than 2^52 micro-USD, the largest amount that is accepted.
func ParseUSD(text string) (int64, error) {
	n, err := parseDecimal(text, nanoPlaces)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrPrice, err)
	}
	if n > 1<<52*1000 {
		return 0, fmt.Errorf("%w: %q is more than 2^52 micro-USD", ErrPrice, text)
	}
	return n, nil
}

// FormatUSD writes nano-USD as an exact decimal of US dollars, without trailing zeros.
func FormatUSD(nano int64) string { return formatDecimal(nano, nanoPlaces) }

// The decimal places of amounts, and of prices per million tokens and multipliers.
const (
	nanoPlaces  = 9
	microPlaces = 6
)

// parseDecimal reads digits[.digits] as an integer of the given number of decimal places, at most 2^62.
func parseDecimal(text string, places int) (int64, error) {
	whole, fraction, point := strings.Cut(text, ".")
	if whole == "" || point && fraction == "" || len(fraction) > places {
		return 0, fmt.Errorf("%q must be a decimal number with at most %d places", text, places)
	}
	var n uint64
	for _, digit := range whole + fraction + strings.Repeat("0", places-len(fraction)) {
		if digit < '0' || digit > '9' {
			return 0, fmt.Errorf("%q must be a decimal number with at most %d places", text, places)
		}
		if n = n*10 + uint64(digit-'0'); n > NanoUSDMax {
			return 0, fmt.Errorf("%q is too large", text)
		}
	}
	return int64(n), nil
}

// formatDecimal writes what parseDecimal reads, without trailing zeros; negative numbers, too.
func formatDecimal(n int64, places int) string {
	sign, digits := "", fmt.Sprintf("%0*d", places+1, n)
	if n < 0 {
		sign, digits = "-", fmt.Sprintf("%0*d", places+1, -n)
	}
	point := len(digits) - places
	return sign + strings.TrimSuffix(strings.TrimRight(digits[:point]+"."+digits[point:], "0"), ".")
}
