package ledger

import (
	"errors"
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCreditsWorkedExample(t *testing.T) {
	week := Usage{UncachedInput: 600e6, CachedInput: 1500e6, CacheWrite5m: 100e6, Output: 300e6, Reasoning: 50e6}
	rate := CreditRate{Model: 2 * Once, Burn: Once * 5 / 4}
	got, err := rate.Credits(week)
	if err != nil || FormatCredits(got) != "3062.5" {
		t.Errorf("got %s, %v, want 3062.5", FormatCredits(got), err)
	}
}

func TestCreditsOfServiceTiers(t *testing.T) {
	usage := Usage{Output: 1_000_000}
	for _, test := range []struct{ provider, requested, served, want string }{
		{"openai", "", "", "1"}, {"openai", "priority", "", "2"}, {"openai", "fast", "", "2"}, {"openai", "priority", "default", "1"},
		{"openai", "", "priority", "2"}, {"openai", "flex", "flex", "1"}, {"openai", "priority", "auto", "2"},
		{"anthropic", "priority", "priority", "1"}, {"OpenAI", "priority", "", "1"},
	} {
		usage.Tier = test.served
		rate := CreditRate{Model: Once, Burn: Once, Tiers: SubscriptionTiers(test.provider), RequestedTier: test.requested}
		if got, err := rate.Credits(usage); err != nil || FormatCredits(got) != test.want {
			t.Errorf("%+v: got %s, %v", test, FormatCredits(got), err)
		}
	}
	for requested, want := range map[string]string{"": "2", "auto": "2", "default": "1", "priority": "2", "flex": "1"} {
		rate := CreditRate{Model: Once, Burn: Once, Tiers: SubscriptionTiers("openai"), RequestedTier: requested}
		if got, err := rate.Ceiling(Bounds{Output: 1_000_000}); err != nil || FormatCredits(got) != want {
			t.Errorf("held for %q: got %s, %v, want %s", requested, FormatCredits(got), err, want)
		}
	}
}

// TestCreditsHeldForACheaperTier: the provider may fall back to the ordinary one.
func TestCreditsHeldForACheaperTier(t *testing.T) {
	rate := CreditRate{Model: Once, Burn: Once, Tiers: map[string]Multiplier{"flex": Once / 2}, RequestedTier: "flex"}
	used, err := rate.Credits(Usage{Output: 1_000_000})
	if err != nil || FormatCredits(used) != "0.5" {
		t.Errorf("used %s, %v, want 0.5", FormatCredits(used), err)
	}
	if held, err := rate.Ceiling(Bounds{Output: 1_000_000}); err != nil || FormatCredits(held) != "1" {
		t.Errorf("held %s, %v, want 1", FormatCredits(held), err)
	}
}

func TestCreditsRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		rate  CreditRate
		usage Usage
		want  error
	}{
		"no multipliers":        {CreditRate{}, Usage{}, ErrMultiplier},
		"no burn":               {CreditRate{Model: Once}, Usage{}, ErrMultiplier},
		"a negative model":      {CreditRate{Model: -Once, Burn: Once}, Usage{}, ErrMultiplier},
		"a huge burn":           {CreditRate{Model: Once, Burn: math.MaxInt64}, Usage{}, ErrMultiplier},
		"a tier that is free":   {CreditRate{Model: Once, Burn: Once, Tiers: map[string]Multiplier{"x": 0}}, Usage{Tier: "x"}, ErrMultiplier},
		"usage that cannot be":  {CreditRate{Model: Once, Burn: Once}, Usage{Output: -1}, ErrUsage},
		"more than can be kept": {CreditRate{Model: Once, Burn: Once}, Usage{Output: TokensMax}, ErrOverflow},
	} {
		if got, err := test.rate.Credits(test.usage); got != 0 || !errors.Is(err, test.want) {
			t.Errorf("%s: got %d, %v, want %v", name, got, err, test.want)
		}
	}
	if got, err := (CreditRate{Model: Once, Burn: Once}).Ceiling(Bounds{Input: TokensMax, Output: 1}); !errors.Is(err, ErrUsage) {
		t.Errorf("bounds beyond every bound: got %d, %v", got, err)
	}
}

func drawMultiplier(t *rapid.T, name string) Multiplier {
	return Multiplier(rapid.OneOf(rapid.Int64Range(1, int64(multiplierMax)), rapid.Int64Range(1, int64(BurnMax))).Draw(t, name))
}

// TestCreditsAreExact compares with fractions, and what is held with every split into classes.
func TestCreditsAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := drawUsage(t)
		u.Tier = rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "tier")
		rate := CreditRate{Model: drawMultiplier(t, "model"), Burn: drawMultiplier(t, "burn"), Tiers: map[string]Multiplier{"x": drawMultiplier(t, "tier x")}}
		weighted := new(big.Rat)
		for i, weight := range []*big.Rat{big.NewRat(1, 1), big.NewRat(1, 10), big.NewRat(5, 4), big.NewRat(5, 4), big.NewRat(1, 1), big.NewRat(1, 1)} {
			weighted.Add(weighted, weight.Mul(weight, new(big.Rat).SetInt64(u.classes()[i])))
		}
		exact := weighted.Mul(weighted, big.NewRat(1e9, 1e6))
		multipliers := []Multiplier{rate.Model, rate.Burn}
		if u.Tier == "x" {
			multipliers = append(multipliers, rate.Tiers["x"])
		}
		for _, multiplier := range multipliers {
			exact.Mul(exact, big.NewRat(int64(multiplier), 1e6))
		}
		want, rest := new(big.Int).QuoRem(exact.Num(), exact.Denom(), new(big.Int))
		if rest.Sign() > 0 {
			want.Add(want, big.NewInt(1))
		}
		got, err := rate.Credits(u)
		if want.Cmp(big.NewInt(NanoCreditsMax)) > 0 {
			if got != 0 || !errors.Is(err, ErrOverflow) {
				t.Fatalf("got %d, %v, want an overflow", got, err)
			}
			return
		}
		if err != nil || want.Cmp(big.NewInt(got)) != 0 {
			t.Fatalf("got %d, %v, want %s", got, err, want)
		}
		held, err := rate.Ceiling(Bounds{Input: u.prompt(), Output: u.Output + u.Reasoning, CacheWrites: true})
		if held < got && !errors.Is(err, ErrOverflow) {
			t.Fatalf("held %d, %v, for %d", held, err, got)
		}
	})
}

func TestBurn(t *testing.T) {
	const week = 7 * 24 * time.Hour
	window := func(left, quota int64, remaining time.Duration) QuotaWindow {
		return QuotaWindow{Left: left, Quota: quota, Remaining: remaining, Length: week}
	}
	stale := window(100, 100, week)
	stale.Stale = true
	lengthless := window(100, 100, week)
	lengthless.Length = 0
	for name, test := range map[string]struct {
		windows []QuotaWindow
		want    string
	}{
		"no window is known":                     {nil, "1"},
		"all of it is left":                      {[]QuotaWindow{window(100, 100, week)}, "1"},
		"half the quota for half the time":       {[]QuotaWindow{window(50, 100, week/2)}, "1"},
		"more quota than time":                   {[]QuotaWindow{window(80, 100, week/2)}, "1"},
		"40 % of the quota for half the time":    {[]QuotaWindow{window(40, 100, week/2)}, "1.25"},
		"a third for all of it, rounded up":      {[]QuotaWindow{window(3, 7, week)}, "2.333334"},
		"little quota for less time":             {[]QuotaWindow{window(10, 100, week/100)}, "3"},
		"30 % of the quota at its end":           {[]QuotaWindow{window(30, 100, 0)}, "1"},
		"just under 30 %":                        {[]QuotaWindow{window(299, 1000, 0)}, "1.003345"},
		"at the cap":                             {[]QuotaWindow{window(125, 1000, week)}, "8"},
		"beyond the cap":                         {[]QuotaWindow{window(1, 1000, week)}, "8"},
		"far beyond the cap":                     {[]QuotaWindow{window(1, math.MaxInt64, week)}, "8"},
		"used up":                                {[]QuotaWindow{window(0, 100, week)}, "8"},
		"overdrawn":                              {[]QuotaWindow{window(-5, 100, week)}, "8"},
		"no quota":                               {[]QuotaWindow{window(5, 0, week)}, "8"},
		"stale":                                  {[]QuotaWindow{stale}, "8"},
		"a window without length":                {[]QuotaWindow{lengthless}, "8"},
		"more left than there is":                {[]QuotaWindow{window(200, 100, week)}, "1"},
		"more time left than there is":           {[]QuotaWindow{window(50, 100, 2*week)}, "2"},
		"past its end":                           {[]QuotaWindow{window(50, 100, -week)}, "1"},
		"the worst window counts":                {[]QuotaWindow{window(40, 100, week/2), window(50, 100, week), window(100, 100, week)}, "2"},
		"the worst window counts, in any order":  {[]QuotaWindow{window(100, 100, week), window(50, 100, week), window(40, 100, week/2)}, "2"},
		"one that is used up beats a good one's": {[]QuotaWindow{window(100, 100, week), window(0, 100, week)}, "8"},
	} {
		if got := Burn(test.windows); got.String() != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

// TestBurnIsExact compares with fractions: never below the true value, and less than a millionth above.
func TestBurnIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		positive := rapid.OneOf(rapid.Int64Range(1, 100), rapid.Int64Range(1, math.MaxInt64))
		w := QuotaWindow{Quota: positive.Draw(t, "quota"), Length: time.Duration(positive.Draw(t, "length"))}
		w.Left = rapid.Int64Range(1, w.Quota).Draw(t, "left")
		w.Remaining = time.Duration(rapid.Int64Range(0, int64(w.Length)).Draw(t, "remaining"))
		quota := big.NewRat(w.Left, w.Quota)
		exact := big.NewRat(1, 1)
		for _, time := range []*big.Rat{big.NewRat(int64(w.Remaining), int64(w.Length)), big.NewRat(3, 10)} {
			if burn := time.Quo(time, quota); burn.Cmp(exact) > 0 {
				exact = burn
			}
		}
		if eight := big.NewRat(8, 1); exact.Cmp(eight) > 0 {
			exact = eight
		}
		excess := new(big.Rat).Sub(big.NewRat(int64(Burn([]QuotaWindow{w})), int64(Once)), exact)
		if excess.Sign() < 0 || excess.Cmp(big.NewRat(1, int64(Once))) >= 0 {
			t.Fatalf("%+v: the true value is %s, the excess %s", w, exact.FloatString(9), excess.FloatString(9))
		}
	})
}

func TestMultiplierRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMultiplier(t, "m")
		if got, err := ParseMultiplier(m.String()); err != nil || got != m {
			t.Fatalf("%d is written %s and read %d, %v", m, m, got, err)
		}
	})
	for text, want := range map[string]Multiplier{"1": Once, "0.333333": 333_333, "1.250": 1_250_000, "0.000001": 1, "1000": 1000 * Once} {
		if got, err := ParseMultiplier(text); err != nil || got != want {
			t.Errorf("%s: got %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "1e0", "NaN", "Inf", "0.0000001", "1000.000001", "1,5", "2x", " 1"} {
		if got, err := ParseMultiplier(text); !errors.Is(err, ErrMultiplier) {
			t.Errorf("%q: got %d, %v", text, got, err)
		}
	}
}

func TestCreditsRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nano := rapid.Int64Range(0, NanoCreditsMax).Draw(t, "nano")
		if got, err := ParseCredits(FormatCredits(nano)); err != nil || got != nano {
			t.Fatalf("%d is written %s and read %d, %v", nano, FormatCredits(nano), got, err)
		}
	})
	if got, err := ParseCredits("9007199.254740991"); err != nil || got != NanoCreditsMax {
		t.Errorf("the largest amount: got %d, %v", got, err)
	}
	for _, text := range []string{"", "-1", "1e3", "NaN", "0.0000000001", "9007199.254740992", "2,500"} {
		if got, err := ParseCredits(text); !errors.Is(err, ErrCredits) {
			t.Errorf("%q: got %d, %v", text, got, err)
		}
	}
}

// FuzzDecimals: what is read is written and read again as the same.
func FuzzDecimals(f *testing.F) {
	for _, text := range []string{"0", "2.50", "0.333333", "9007199.254740991", "4503599627.370496", "1e3", "-1", ".", "١"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := ParseMultiplier(text); err == nil {
			if again, err := ParseMultiplier(m.String()); err != nil || again != m || m <= 0 || m > multiplierMax {
				t.Fatalf("%q is the multiplier %d, %v", text, m, err)
			}
		}
		if nano, err := ParseCredits(text); err == nil {
			if again, err := ParseCredits(FormatCredits(nano)); err != nil || again != nano || nano < 0 || nano > NanoCreditsMax {
				t.Fatalf("%q is %d nano-credits, %v", text, nano, err)
			}
		}
		if nano, err := ParseUSD(text); err == nil {
			if again, err := ParseUSD(FormatUSD(nano)); err != nil || again != nano || nano < 0 {
				t.Fatalf("%q is %d nano-USD, %v", text, nano, err)
			}
		}
	})
}
