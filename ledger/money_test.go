package ledger

import (
	"errors"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestPriceList(t *testing.T) {
	price, err := PriceList{Input: "2.50", Output: "15", CachedInput: "0.25", CacheWrite5m: "3.125"}.Price()
	want := Price{UncachedInput: 2_500_000, CachedInput: 250_000, CacheWrite5m: 3_125_000, CacheWrite1h: 3_125_000, Output: 15_000_000, Reasoning: 15_000_000}
	if err != nil || price != want {
		t.Errorf("got %+v, %v, want %+v", price, err, want)
	}
	price, err = PriceList{Input: "1", Output: "0"}.Price()
	want = Price{UncachedInput: 1_000_000, CachedInput: 1_000_000, CacheWrite5m: 1_000_000, CacheWrite1h: 1_000_000}
	if err != nil || price != want {
		t.Errorf("missing classes cost what is known: got %+v, %v, want %+v", price, err, want)
	}
	for name, list := range map[string]PriceList{
		"no input": {Output: "1"}, "no output": {Input: "1"}, "a sign": {Input: "-1", Output: "1"}, "a plus": {Input: "+1", Output: "1"},
		"7 places": {Input: "0.0000001", Output: "1"}, "an exponent": {Input: "1e3", Output: "1"}, "NaN": {Input: "NaN", Output: "1"},
		"Inf": {Input: "Inf", Output: "1"}, "a bare point": {Input: "1.", Output: "1"}, "no whole": {Input: ".5", Output: "1"},
		"huge": {Input: "99999999999999999999", Output: "1"}, "a space": {Input: " 1", Output: "1"}, "bad cached": {Input: "1", Output: "1", CachedInput: "x"},
	} {
		if got, err := list.Price(); !errors.Is(err, ErrPrice) {
			t.Errorf("%s: got %+v, %v, want an error", name, got, err)
		}
	}
}

func TestCost(t *testing.T) {
	price := Price{UncachedInput: 2_500_000, CachedInput: 250_000, Output: 15_000_000, Reasoning: 15_000_000}
	for _, test := range []struct {
		usage Usage
		want  int64
	}{
		{Usage{}, 0},
		{Usage{UncachedInput: 200, CachedInput: 800, Output: 120, Reasoning: 80}, 3_700_000},
		{Usage{UncachedInput: 7, Output: 3}, 62_500},
		{Usage{CachedInput: 1}, 250},
	} {
		if got, err := price.Cost(test.usage); err != nil || got != test.want {
			t.Errorf("%+v: got %d, %v, want %d", test.usage, got, err, test.want)
		}
	}
	if got, err := (Price{UncachedInput: 1}).Cost(Usage{UncachedInput: 1}); err != nil || got != 1 {
		t.Errorf("a pico-dollar rounds up to a nano-dollar: got %d, %v", got, err)
	}
	if _, err := (Price{Output: NanoUSDMax}).Cost(Usage{Output: TokensMax}); !errors.Is(err, ErrOverflow) {
		t.Errorf("overflow: %v", err)
	}
	if _, err := (Price{Output: -1}).Cost(Usage{Output: 1}); !errors.Is(err, ErrPrice) {
		t.Errorf("a negative price: %v", err)
	}
	if _, err := price.Cost(Usage{Output: -1}); !errors.Is(err, ErrUsage) {
		t.Errorf("negative usage: %v", err)
	}
}

func TestCeiling(t *testing.T) {
	price := Price{UncachedInput: 1_000_000, CachedInput: 100_000, CacheWrite5m: 1_250_000, CacheWrite1h: 2_000_000, Output: 5_000_000, Reasoning: 6_000_000}
	for _, test := range []struct {
		input, output int64
		cacheWrites   bool
		want          int64
	}{
		{0, 0, true, 0},
		{100, 0, false, 100_000},
		{100, 0, true, 200_000}, // all of it may be written to the dearer cache
		{0, 100, false, 600_000},
		{100, 100, true, 800_000},
	} {
		if got, err := price.Ceiling(test.input, test.output, test.cacheWrites); err != nil || got != test.want {
			t.Errorf("%+v: got %d, %v", test, got, err)
		}
	}
	if got, err := (Price{CachedInput: 7000}).Ceiling(1, 0, false); err != nil || got != 7 {
		t.Errorf("a cached token that is dearer than another: got %d, %v", got, err)
	}
	for name, err := range map[string]error{
		"too much input": ceilingError(price, TokensMax, 1), "negative input": ceilingError(price, -1, 0),
	} {
		if !errors.Is(err, ErrUsage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ceilingError(Price{UncachedInput: 1, CacheWrite1h: -1}, 1, 1); !errors.Is(err, ErrPrice) {
		t.Errorf("a negative class that the ceiling does not need: %v", err)
	}
}

func ceilingError(price Price, input, output int64) error {
	_, err := price.Ceiling(input, output, true)
	return err
}

func TestPriceID(t *testing.T) {
	price := Price{1, 2, 3, 4, 5, 6}
	if price.ID() != (Price{1, 2, 3, 4, 5, 6}).ID() || price.ID() == (Price{2, 1, 3, 4, 5, 6}).ID() {
		t.Error("a price is not addressed by its content")
	}
}

// TestCostIsExact compares with arithmetic that cannot overflow, and the ceiling with every split into classes.
func TestCostIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.Int64Range(0, TokensMax/6)
		per := rapid.Int64Range(0, 1<<40)
		u := Usage{tokens.Draw(t, "a"), tokens.Draw(t, "b"), tokens.Draw(t, "c"), tokens.Draw(t, "d"), tokens.Draw(t, "e"), tokens.Draw(t, "f")}
		p := Price{per.Draw(t, "A"), per.Draw(t, "B"), per.Draw(t, "C"), per.Draw(t, "D"), per.Draw(t, "E"), per.Draw(t, "F")}
		sum := new(big.Int)
		for i, n := range u.classes() {
			sum.Add(sum, new(big.Int).Mul(big.NewInt(n), big.NewInt(p.classes()[i])))
		}
		want := sum.Add(sum, big.NewInt(999)).Div(sum, big.NewInt(1000))
		got, err := p.Cost(u)
		if want.Cmp(big.NewInt(NanoUSDMax)) > 0 {
			if !errors.Is(err, ErrOverflow) {
				t.Fatalf("got %d, %v, want an overflow", got, err)
			}
			return
		}
		if err != nil || want.Cmp(big.NewInt(got)) != 0 {
			t.Fatalf("got %d, %v, want %s", got, err, want)
		}
		ceiling, err := p.Ceiling(u.UncachedInput+u.CachedInput+u.CacheWrite5m+u.CacheWrite1h, u.Output+u.Reasoning, true)
		if err == nil && ceiling < got {
			t.Fatalf("the ceiling %d is below a cost of %d", ceiling, got)
		}
	})
}

func TestUSDRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nano := rapid.Int64Range(0, (1<<52)*1000).Draw(t, "nano")
		if got, err := ParseUSD(FormatUSD(nano)); err != nil || got != nano {
			t.Fatalf("%d is written %s and read %d, %v", nano, FormatUSD(nano), got, err)
		}
	})
	for text, want := range map[string]string{"0": "0", "2.50": "2.5", "0.000000001": "0.000000001", "007": "7"} {
		if nano, err := ParseUSD(text); err != nil || FormatUSD(nano) != want {
			t.Errorf("%s: %d, %v", text, nano, err)
		}
	}
	if nano, err := ParseUSD("4503599627.370496"); err != nil || nano != 1<<52*1000 {
		t.Errorf("the largest amount: %d, %v", nano, err)
	}
	for _, text := range []string{"", "-1", "1e3", "0.0000000001", "4503599627.370496001", "4503599628", "1,5", "$1", "١"} {
		if nano, err := ParseUSD(text); !errors.Is(err, ErrPrice) {
			t.Errorf("%q: %d, %v", text, nano, err)
		}
	}
	for nano, want := range map[int64]string{-1_500_000_000: "-1.5", -1: "-0.000000001", NanoUSDMax: "4611686018.427387904"} {
		if got := FormatUSD(nano); got != want {
			t.Errorf("%d: got %s, want %s", nano, got, want)
		}
	}
	if tokens, usd := FormatAmount(Tokens, 1500), FormatAmount(USD, 1500); tokens != "1500" || usd != "0.0000015" {
		t.Errorf("amounts are written %s and %s", tokens, usd)
	}
}

func TestAccountNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		account := Account{Scope: rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "scope"), ID: rapid.StringN(1, 20, 80).Draw(t, "id"), Unit: USD}
		got, err := ParseAccounts(account.String())
		if err != nil || len(got) != 1 || got[0] != account {
			t.Fatalf("%+v is written %s and read %+v, %v", account, account, got, err)
		}
		var read Account
		if err := read.UnmarshalText([]byte(account.String())); err != nil || read != account {
			t.Fatalf("%s is read %+v, %v", account, read, err)
		}
	})
	if err := new(Account).UnmarshalText([]byte("user/alice")); !errors.Is(err, ErrAccount) {
		t.Errorf("all of a scope's accounts are one: %v", err)
	}
	if got, err := ParseAccounts("user/alice"); err != nil || len(got) != 2 || got[0].Unit != Tokens || got[1].Unit != USD {
		t.Errorf("got %v, %v", got, err)
	}
	for _, text := range []string{"", "user", "user/", "/alice", "user/alice/euro", "user/a/b/c", "user/%zz"} {
		if got, err := ParseAccounts(text); !errors.Is(err, ErrAccount) {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
}

func FuzzParseAccounts(f *testing.F) {
	f.Add("user/alice/usd")
	f.Add("task/a%2Fb/tokens")
	for _, text := range []string{"", "user/", "user/%zz", "user/a/b/c", "user/%00/usd", "group/é", "user/%2F%2F", "user/a%25b", "user/\xff", "/user/a/"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		accounts, err := ParseAccounts(text)
		for _, account := range accounts {
			again, err := ParseAccounts(account.String())
			if err != nil || len(again) != 1 || again[0] != account {
				t.Fatalf("%q: %v is read %v, %v", text, account, again, err)
			}
		}
		if (err == nil) != (len(accounts) > 0) {
			t.Fatalf("%q: %v, %v", text, accounts, err)
		}
	})
}

func TestFixedWindow(t *testing.T) {
	for length, want := range map[time.Duration]string{
		24 * time.Hour: "fixed/24h", LengthMax: "fixed/744h", 90 * time.Minute: "fixed/1h30m", 10 * time.Minute: "fixed/10m",
		time.Second: "fixed/1s", time.Hour + time.Second: "fixed/1h0m1s", 100 * time.Second: "fixed/1m40s", time.Microsecond: "fixed/1µs",
	} {
		if got := (Fixed{length}).String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for _, length := range []time.Duration{time.Microsecond, LengthMax} {
		if err := (Fixed{length}).Validate(); err != nil {
			t.Errorf("%v: %v", length, err)
		}
	}
	for _, length := range []time.Duration{0, -time.Hour, LengthMax + time.Microsecond, time.Nanosecond} {
		if err := (Fixed{length}).Validate(); !errors.Is(err, ErrWindow) {
			t.Errorf("%v: %v", length, err)
		}
	}
}
