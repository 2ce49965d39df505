package ledger

import (
	"errors"
	"fmt"
	"math/big"
	"time"
)

// NanoCreditsMax is the largest amount of credits, in nano-credits: 2^53 - 1, the largest integer that every JSON reader keeps
// exact. It is some 9 million credits.
const NanoCreditsMax = 1<<53 - 1

var (
	// ErrMultiplier is returned for a text that is no multiplier, and for one that is out of range.
	ErrMultiplier = errors.New("not a multiplier")
	// ErrCredits is returned for a text that is no amount of credits.
	ErrCredits = errors.New("not an amount of credits")
)

// Multiplier is a decimal number with 6 places, in millionths.
type Multiplier int64

const (
	// Once is the multiplier that changes nothing.
	Once Multiplier = 1_000_000
	// BurnMax is the most that a shared quota that runs out makes of a call.
	BurnMax = 8 * Once
	// multiplierMax is far beyond what a model costs more than another.
	multiplierMax = 1000 * Once
)

// ParseMultiplier reads a multiplier such as "1.25", above 0 and at most 1000. It returns [ErrMultiplier].
func ParseMultiplier(text string) (Multiplier, error) {
	n, err := parseDecimal(text, microPlaces)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrMultiplier, err)
	}
	m := Multiplier(n)
	return m, m.validate()
}

func (m Multiplier) String() string { return formatDecimal(int64(m), microPlaces) }

func (m Multiplier) validate() error {
	if m <= 0 || m > multiplierMax {
		return fmt.Errorf("%w: %s must be above 0 and at most %s", ErrMultiplier, m, multiplierMax)
	}
	return nil
}

// CreditRate is what a call's weighted tokens are multiplied by. It is frozen at admission. Credits measure what a call takes of a
// subscription's capacity, and are no money: one credit is a million weighted tokens at the multiplier 1.
//
//	weighted = uncached input + cached input x 0.10 + cache writes x 1.25 + output + reasoning
//	credits  = weighted / 1,000,000 x model x burn x service tier
//
// Amounts are integer nano-credits; the exact product is rounded up once.
//
// What a user may take in a week, to begin with; nothing is limited by it unless it is written:
//
//	light         2,500  now and then a session with an agent, short daily work
//	regular       5,000  daily development with contexts of a middling size, and tools
//	intensive     7,500  long sessions often, several repositories, large contexts again and again
//	heavy        10,000  agents all day, with contexts that change a lot
//	extra heavy  15,000  nearly without a pause, or many agents at once
//
// Take the nearest, watch a whole week, and adjust it to the multipliers that came about. It is a person's limit: a team's is not
// one of them times its people.
type CreditRate struct {
	// Model is the published model's multiplier, or its source's own.
	Model Multiplier `json:"model"`
	// Burn is [Burn] at admission; [Once] for a compaction and where no quota is known.
	Burn Multiplier `json:"burn"`
	// Tiers are the multipliers of service tiers; one that is not listed counts once.
	Tiers map[string]Multiplier `json:"tiers,omitempty"`
	// RequestedTier is the service tier that the call asked for. It counts where the provider reports none.
	RequestedTier string `json:"requested_tier,omitempty"`
}

// SubscriptionTiers are the multipliers of service tiers at a provider's subscriptions: OpenAI's fast one, which its protocol
// calls priority, counts twice, every other once.
func SubscriptionTiers(provider string) map[string]Multiplier {
	if provider == "openai" {
		return map[string]Multiplier{"fast": 2 * Once, "priority": 2 * Once}
	}
	return nil
}

// The weights of the classes, in hundredths.
const (
	weightOfToken      = 100
	weightOfCached     = 10
	weightOfCacheWrite = 125
)

// weighted are the weighted tokens of a usage, in hundredths.
func (u Usage) weighted() int64 {
	whole, written := u.UncachedInput+u.Output+u.Reasoning, u.CacheWrite5m+u.CacheWrite1h
	return whole*weightOfToken + u.CachedInput*weightOfCached + written*weightOfCacheWrite // TokensMax x 125 is below 2^60
}

// Credits is what usage takes, in nano-credits.
func (r CreditRate) Credits(u Usage) (int64, error) {
	if _, err := u.Tokens(); err != nil {
		return 0, err
	}
	tier := u.Tier
	if leavesTierOpen(tier) {
		tier = r.RequestedTier
	}
	return r.credits(u.weighted(), r.tier(tier))
}

// Ceiling is the most that a call within bounds can take: every token of the heaviest class that it can turn out to be. A call
// that leaves its tier open may be served by any.
func (r CreditRate) Ceiling(b Bounds) (int64, error) {
	dearest := Usage{UncachedInput: b.Input, Output: b.Output}
	if b.CacheWrites {
		dearest = Usage{CacheWrite5m: b.Input, Output: b.Output}
	}
	if _, err := dearest.Tokens(); err != nil {
		return 0, err
	}
	most := max(Once, r.tier(r.RequestedTier)) // a provider falls back to its ordinary tier
	if leavesTierOpen(r.RequestedTier) {
		for _, multiplier := range r.Tiers {
			most = max(most, multiplier)
		}
	}
	return r.credits(dearest.weighted(), most)
}

func (r CreditRate) tier(name string) Multiplier {
	if multiplier, listed := r.Tiers[name]; listed {
		return multiplier
	}
	return Once
}

// perNanoCredit is how much of hundredths of weighted tokens times three multipliers in millionths makes a nano-credit:
// 100 x 1e6 tokens a credit x (1e6)^3, by 1e9 nano-credits a credit.
var perNanoCredit = big.NewInt(1e17)

// credits is the exact product, rounded up once.
func (r CreditRate) credits(weighted int64, tier Multiplier) (int64, error) {
	product := big.NewInt(weighted)
	for _, multiplier := range []Multiplier{r.Model, r.Burn, tier} {
		if err := multiplier.validate(); err != nil {
			return 0, err
		}
		product.Mul(product, big.NewInt(int64(multiplier)))
	}
	nano := divideUp(product, perNanoCredit)
	if nano.Cmp(big.NewInt(NanoCreditsMax)) > 0 {
		return 0, ErrOverflow
	}
	return nano.Int64(), nil
}

// divideUp is n / d, rounded up; neither is negative.
func divideUp(n, d *big.Int) *big.Int {
	quotient, rest := new(big.Int).QuoRem(n, d, new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return quotient
}

// QuotaWindow is what is known of one window in which a provider counts a subscription's quota.
type QuotaWindow struct {
	// Left of Quota is still there, in any unit, be it percent. A quota that is not above 0 counts as used up.
	Left, Quota int64
	// Remaining is how much of the window's Length is still to come.
	Remaining, Length time.Duration
	// Stale says that this is too old to be relied on.
	Stale bool
}

// Burn is what a call counts more for where a shared quota is used faster than its time passes, over all windows that are known:
//
//	min(8, max(1, time left / quota left, 0.30 / quota left))
//
// with both as fractions of their whole. A window that is stale or used up makes it 8; without any window it is 1: one whose
// quota was never discovered is left out. The exact quotient is rounded up at its 6th place, so that it is never below the true
// value, and less than a millionth above.
func Burn(windows []QuotaWindow) Multiplier {
	most := Once
	for _, window := range windows {
		most = max(most, window.burn())
	}
	return most
}

func (w QuotaWindow) burn() Multiplier {
	if w.Stale || w.Left <= 0 || w.Quota <= 0 || w.Length <= 0 {
		return BurnMax
	}
	product := func(factors ...int64) *big.Int {
		n := big.NewInt(1)
		for _, factor := range factors {
			n.Mul(n, big.NewInt(factor))
		}
		return n
	}
	remaining := min(max(w.Remaining, 0), w.Length) // clocks differ, time left does not exceed the whole
	byTime := divideUp(product(int64(remaining), w.Quota, int64(Once)), product(int64(w.Length), w.Left))
	reserve := divideUp(product(30, w.Quota, int64(Once)), product(100, w.Left)) // 0.30 / (left / quota)
	for _, burn := range []*big.Int{byTime, reserve} {
		if burn.Cmp(big.NewInt(int64(BurnMax))) >= 0 {
			return BurnMax
		}
	}
	return max(Once, Multiplier(byTime.Int64()), Multiplier(reserve.Int64()))
}

// ParseCredits reads an amount of credits such as "2500", with at most 9 places, as nano-credits. It returns [ErrCredits] for
// anything else, and for more than [NanoCreditsMax].
func ParseCredits(text string) (int64, error) {
	n, err := parseDecimal(text, nanoPlaces)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrCredits, err)
	}
	if n > NanoCreditsMax {
		return 0, fmt.Errorf("%w: %q is more than 2^53 - 1 nano-credits", ErrCredits, text)
	}
	return n, nil
}

// FormatCredits writes nano-credits as an exact decimal of credits, without trailing zeros.
func FormatCredits(nano int64) string { return formatDecimal(nano, nanoPlaces) }

func (r CreditRate) validate() error {
	multipliers := []Multiplier{r.Model, r.Burn}
	for _, multiplier := range r.Tiers {
		multipliers = append(multipliers, multiplier)
	}
	for _, multiplier := range multipliers {
		if err := multiplier.validate(); err != nil {
			return err
		}
	}
	return nil
}
