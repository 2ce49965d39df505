package engine

import (
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"regent/ledger"
)

// usd is a listed price.
func usd(amount float64) *float64 { return &amount }

// perMillion is a cost for a million tokens.
func perMillion(input, output float64) *Cost {
	return &Cost{Input: &input, Output: &output, Unit: PerMillion}
}

// modelOf is a model of a catalogue, with its cost for a million tokens.
func modelOf(id string, cost *Cost) Model { return Model{Provider: "fake", ID: id, Cost: cost} }

// TestPrice: what is not listed is charged at the rate that is never cheaper, and rounded up to a pico-USD.
func TestPrice(t *testing.T) {
	for name, test := range map[string]struct {
		cost Cost
		want ledger.Rates
	}{
		"a token": {Cost{Input: usd(2e-6), Output: usd(8e-6)},
			ledger.Rates{UncachedInput: 2_000_000, CachedInput: 2_000_000, CacheWrite5m: 2_000_000, CacheWrite1h: 2_000_000, Output: 8_000_000, Reasoning: 8_000_000}},
		"a million": {Cost{Input: usd(2), Output: usd(8), CacheRead: usd(0.5), Unit: PerMillion},
			ledger.Rates{UncachedInput: 2_000_000, CachedInput: 500_000, CacheWrite5m: 2_000_000, CacheWrite1h: 2_000_000, Output: 8_000_000, Reasoning: 8_000_000}},
		"a cache write, whatever it lives": {Cost{Input: usd(3), Output: usd(15), CacheRead: usd(0.3), CacheWrite: usd(3.75), Unit: "USD / 1 MILLION tokens"},
			ledger.Rates{UncachedInput: 3_000_000, CachedInput: 300_000, CacheWrite5m: 3_750_000, CacheWrite1h: 3_750_000, Output: 15_000_000, Reasoning: 15_000_000}},
		"what is free is listed": {Cost{Input: usd(1), Output: usd(1), CacheRead: usd(0), CacheWrite: usd(0), Unit: "Million"},
			ledger.Rates{UncachedInput: 1_000_000, Output: 1_000_000, Reasoning: 1_000_000}},
		"less than a pico-USD": {Cost{Input: usd(1e-13), Output: usd(1.000001), Unit: "per_token"},
			ledger.Rates{UncachedInput: 1, CachedInput: 1, CacheWrite5m: 1, CacheWrite1h: 1, Output: 1_000_001_000_000, Reasoning: 1_000_001_000_000}},
		"no binary fraction": {Cost{Input: usd(0.1), Output: usd(0.3), Unit: PerMillion},
			ledger.Rates{UncachedInput: 100_000, CachedInput: 100_000, CacheWrite5m: 100_000, CacheWrite1h: 100_000, Output: 300_000, Reasoning: 300_000}},
	} {
		price, priced := test.cost.Price()
		if !priced || !reflect.DeepEqual(price, ledger.Price{Rates: test.want}) {
			t.Errorf("%s: got %+v, %v, want %+v", name, price.Rates, priced, test.want)
		}
	}
}

// TestNoPrice: a cost that lacks an input or an output, or holds what is no amount, is none.
func TestNoPrice(t *testing.T) {
	costs := map[string]*Cost{
		"none":               nil,
		"nothing":            {},
		"no output":          {Input: usd(1)},
		"no input":           {Output: usd(1)},
		"more than a ledger": {Input: usd(2e6), Output: usd(1)},
	}
	for name, amount := range map[string]float64{"negative": -1, "-0.0…1": -math.SmallestNonzeroFloat64, "NaN": math.NaN(), "Inf": math.Inf(1), "-Inf": math.Inf(-1)} {
		costs[name+" input"] = &Cost{Input: usd(amount), Output: usd(1)}
		costs[name+" output"] = &Cost{Input: usd(1), Output: usd(amount)}
		costs[name+" cache read"] = &Cost{Input: usd(1), Output: usd(1), CacheRead: usd(amount)}
		costs[name+" cache write"] = &Cost{Input: usd(1), Output: usd(1), CacheWrite: usd(amount)}
	}
	for name, cost := range costs {
		if price, priced := cost.Price(); priced || !reflect.DeepEqual(price, ledger.Price{}) {
			t.Errorf("%s: got %+v", name, price)
		}
		if c := modelOf("m", cost).Candidate(); c.Price != nil || c.UnitPrice != nil || c.Priced {
			t.Errorf("%s: the candidate has a price: %+v, %v", name, c.Price, c.UnitPrice)
		}
	}
}

// drawCost is a cost whose amounts are as catalogues have them, or anything.
func drawCost(t *rapid.T) *Cost {
	amount := rapid.OneOf(
		rapid.Float64Range(0, 100), rapid.Float64Range(0, 1e-6), rapid.Float64Min(0),
		rapid.Map(rapid.IntRange(0, 100_000), func(n int) float64 { return float64(n) / 1000 }),
		rapid.SampledFrom([]float64{0, 1, 0.075, 1e6, 1 << 60, math.MaxFloat64, math.SmallestNonzeroFloat64}),
	)
	optional := rapid.Ptr(amount, true)
	return &Cost{
		Input: new(amount.Draw(t, "input")), Output: new(amount.Draw(t, "output")),
		CacheRead: optional.Draw(t, "cache read"), CacheWrite: optional.Draw(t, "cache write"),
		Unit: rapid.SampledFrom([]string{"", "per_token", PerMillion, "1 Million"}).Draw(t, "unit"),
	}
}

// exactRate is an independent reference: the shortest decimal of an amount, as a fraction, rounded up to whole pico-USD.
func exactRate(t *rapid.T, usd float64, unit string) *big.Int {
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(usd, 'e', -1, 64), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	power, err := strconv.Atoi(exponent)
	if err != nil {
		t.Fatal(err)
	}
	power += 12 - len(fraction)
	if strings.Contains(strings.ToUpper(unit), "MILLION") {
		power -= 6
	}
	digits, _ := new(big.Int).SetString(whole+fraction, 10)
	ten := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(power, -power))), nil)
	if power >= 0 {
		return digits.Mul(digits, ten)
	}
	return digits.Sub(digits.Add(digits, ten), big.NewInt(1)).Quo(digits, ten)
}

// TestPricesAreExact: whatever the amounts are.
func TestPricesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cost := drawCost(t)
		or := func(listed, instead *float64) *float64 {
			if listed == nil {
				return instead
			}
			return listed
		}
		write := or(cost.CacheWrite, cost.Input)
		var want []*big.Int
		countable := true
		for _, amount := range []*float64{cost.Input, or(cost.CacheRead, cost.Input), write, write, cost.Output, cost.Output} {
			rate := exactRate(t, *amount, cost.Unit)
			countable = countable && rate.Cmp(big.NewInt(1<<60)) <= 0
			want = append(want, rate)
		}
		price, priced := cost.Price()
		if priced != countable {
			t.Fatalf("%+v: priced %v, want %v", price, priced, countable)
		}
		if !priced {
			return
		}
		got := []int64{price.UncachedInput, price.CachedInput, price.CacheWrite5m, price.CacheWrite1h, price.Output, price.Reasoning}
		for i := range got {
			if want[i].Cmp(big.NewInt(got[i])) != 0 {
				t.Fatalf("class %d: got %d, want %s", i, got[i], want[i])
			}
		}
		unit := new(big.Int).Add(want[0], want[4])
		if cost.CacheRead != nil {
			unit.Add(unit, want[1])
		}
		if ranked := cost.unitPrice(price); unit.Cmp(big.NewInt(ranked)) != 0 {
			t.Fatalf("ranked by %d, want %s", ranked, unit)
		}
	})
}

// TestACandidateOfAModel: its facts are the model's.
func TestACandidateOfAModel(t *testing.T) {
	model, err := UnmarshalModel([]byte(`{"provider": "openrouter", "model": "a/b:free", "cost": {"input": 1, "output": 2, "cacheRead": 0.5, "unit": "per_million_tokens"},
		"contextTokens": 1000, "maxOutputTokens": 100, "modalities": ["image"], "compat": {"residency": "eu", "openRouterRouting": {"only": ["x"]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	c := model.Candidate()
	if c.Provider != "openrouter" || c.Model != "a/b:free" || !c.Enabled || c.Connection != "authorised" || value(c.Residency) != "eu" ||
		value(c.ContextTokens) != 1000 || value(c.OutputTokensMax) != 100 || !reflect.DeepEqual(c.Modalities, []string{"image"}) ||
		!c.Priced || c.Price.UncachedInput != 1_000_000 || c.Price.CachedInput != 500_000 || value(c.UnitPrice) != 3_500_000 || string(c.Routing) != `{"only": ["x"]}` {
		t.Errorf("got %+v", c)
	}
	text, err := json.Marshal(Model{Provider: "p", ID: "m"})
	if err != nil || string(text) != `{"provider":"p","model":"m"}` {
		t.Errorf("the least model is %s, %v", text, err)
	}
	for name, text := range map[string]string{"no JSON": `{`, "a list": `[]`, "no model": `{"provider": "p"}`, "a number": `{"provider": "p", "model": 1}`} {
		var refusal *Error
		if _, err := UnmarshalModel([]byte(text)); !errors.As(err, &refusal) || refusal.Code != CodeValidation {
			t.Errorf("%s: got %v, want VALIDATION", name, err)
		}
	}
}

// TestAModelIsChargedWhatItCosts: a cached token that is not listed is charged as a prompt's, though it ranks as nothing.
func TestAModelIsChargedWhatItCosts(t *testing.T) {
	b := newBench(t, withBudget(1000))
	request := hosted()
	request.MaxTokens = number(500)
	request.Candidates = []Candidate{modelOf("m", perMillion(2, 8)).Candidate()}
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	if unit := value(resolution.Candidate.UnitPrice); unit != 10_000_000 {
		t.Errorf("it ranks by %d", unit)
	}
	reservation := resolution.Reservation()
	usage := ledger.Usage{UncachedInput: 1, CachedInput: 10, CacheWrite5m: 20, CacheWrite1h: 30, Output: 3, Reasoning: 4}
	charge, err := b.router.RecordUsage(ctx, UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: usage})
	if want := (ledger.Charge{Tokens: 68, NanoUSD: 61*2000 + 7*8000}); err != nil || charge != want {
		t.Errorf("got %+v, %v, want %+v", charge, err, want)
	}
}
