package ledger

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPriceList(t *testing.T) {
	for name, test := range map[string]struct {
		list PriceList
		want Price
	}{
		"missing classes cost what is known": {
			PriceList{RateList: RateList{Input: "1", Output: "0"}},
			Price{Rates: Rates{1_000_000, 1_000_000, 1_000_000, 1_000_000, 0, 0}},
		},
		"a missing 1-hour write is a 5-minute one, reasoning is output": {
			PriceList{RateList: RateList{Input: "2.50", Output: "15", CachedInput: "0.25", CacheWrite5m: "3.125"}},
			Price{Rates: Rates{2_500_000, 250_000, 3_125_000, 3_125_000, 15_000_000, 15_000_000}},
		},
		"long context, tiers and units": {
			PriceList{
				RateList:    RateList{Input: "2", CachedInput: "0", Output: "8"},
				LongContext: &LongContextList{Threshold: 1000, RateList: RateList{Input: "4", Output: "9"}},
				Tiers: map[string]RowList{
					"flex": {RateList: RateList{Input: "1", Output: "12"}},
					"priority": {
						RateList:    RateList{Input: "3", Output: "16"},
						LongContext: &LongContextList{Threshold: 500, RateList: RateList{Input: "3", Output: "17"}},
					},
				},
				UnitCharges: map[string]string{"web_search": "0.010000001"},
			},
			Price{
				Rates:       Rates{2_000_000, 0, 2_000_000, 2_000_000, 8_000_000, 8_000_000},
				LongContext: &LongContext{1000, Rates{4_000_000, 4_000_000, 4_000_000, 4_000_000, 9_000_000, 9_000_000}},
				Tiers: map[string]Row{
					"flex": { // its own output, the list's long input: neither is cheaper than what is known
						Rates{1_000_000, 1_000_000, 1_000_000, 1_000_000, 12_000_000, 12_000_000},
						&LongContext{1000, Rates{4_000_000, 4_000_000, 4_000_000, 4_000_000, 12_000_000, 12_000_000}},
					},
					"priority": {
						Rates{3_000_000, 3_000_000, 3_000_000, 3_000_000, 16_000_000, 16_000_000},
						&LongContext{500, Rates{3_000_000, 3_000_000, 3_000_000, 3_000_000, 17_000_000, 17_000_000}},
					},
				},
				UnitCharges: map[string]int64{"web_search": 10_000_001},
			},
		},
	} {
		if got, err := test.list.Price(); err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, test.want)
		}
	}
}

func TestPriceListRefuses(t *testing.T) {
	rates := func(input, output string) RateList { return RateList{Input: input, Output: output} }
	tier := func(name string, row RowList) PriceList {
		return PriceList{RateList: rates("1", "1"), Tiers: map[string]RowList{name: row}}
	}
	long := func(threshold int64, list RateList) *LongContextList { return &LongContextList{threshold, list} }
	many := PriceList{RateList: rates("1", "1"), UnitCharges: map[string]string{}}
	for i := range namesMax + 1 {
		many.UnitCharges[strings.Repeat("u", i+1)] = "1"
	}
	for name, test := range map[string]struct {
		list PriceList
		keys string
	}{
		"no input":               {PriceList{RateList: rates("", "1")}, ""},
		"no output":              {PriceList{RateList: rates("1", "")}, ""},
		"a sign":                 {PriceList{RateList: rates("-1", "1")}, "input"},
		"a plus":                 {PriceList{RateList: rates("+1", "1")}, "input"},
		"7 places":               {PriceList{RateList: rates("0.0000001", "1")}, "input"},
		"an exponent":            {PriceList{RateList: rates("1e3", "1")}, "input"},
		"NaN":                    {PriceList{RateList: rates("1", "NaN")}, "output"},
		"Inf":                    {PriceList{RateList: rates("1", "Inf")}, "output"},
		"a bare point":           {PriceList{RateList: rates("1.", "1")}, "input"},
		"no whole":               {PriceList{RateList: rates(".5", "1")}, "input"},
		"huge":                   {PriceList{RateList: rates("99999999999999999999", "1")}, "input"},
		"a space":                {PriceList{RateList: rates(" 1", "1")}, "input"},
		"bad cached":             {PriceList{RateList: RateList{Input: "1", Output: "1", CachedInput: "x"}}, "cached_input"},
		"no long input":          {PriceList{RateList: rates("1", "1"), LongContext: long(1, rates("", "1"))}, "long_context"},
		"a bad long rate":        {PriceList{RateList: rates("1", "1"), LongContext: long(1, rates("1", "x"))}, "long_context.output"},
		"no threshold":           {PriceList{RateList: rates("1", "1"), LongContext: long(0, rates("1", "1"))}, "long_context.threshold"},
		"a huge threshold":       {PriceList{RateList: rates("1", "1"), LongContext: long(TokensMax+1, rates("1", "1"))}, "long_context.threshold"},
		"a tier without output":  {tier("flex", RowList{RateList: rates("1", "")}), "tiers.flex"},
		"a tier's bad long rate": {tier("flex", RowList{rates("1", "1"), long(1, rates("x", "1"))}), "tiers.flex.long_context.input"},
		"the default tier":       {tier("default", RowList{RateList: rates("1", "1")}), "tiers.default"},
		"a tier without a name":  {tier("", RowList{RateList: rates("1", "1")}), "tiers"},
		"a tier named unknown":   {tier(UnknownTier, RowList{RateList: rates("1", "1")}), "tiers.unknown"},
		"a tier of two words":    {tier("very fast", RowList{RateList: rates("1", "1")}), "tiers.very fast"},
		"a unit of two words":    {PriceList{RateList: rates("1", "1"), UnitCharges: map[string]string{"a b": "1"}}, "unit_charges.a b"},
		"a unit's bad charge":    {PriceList{RateList: rates("1", "1"), UnitCharges: map[string]string{"a": "-1"}}, "unit_charges.a"},
		"too many units":         {many, "unit_charges"},
	} {
		got, err := test.list.Price()
		var wrong *ListError
		if !errors.Is(err, ErrPrice) || !errors.As(err, &wrong) || strings.Join(wrong.Keys, ".") != test.keys {
			t.Errorf("%s: got %+v, %v, want an error at %q", name, got, err, test.keys)
		}
	}
}

func TestCost(t *testing.T) {
	price := Price{Rates: Rates{UncachedInput: 2_500_000, CachedInput: 250_000, Output: 15_000_000, Reasoning: 15_000_000}}
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
	if got, err := (Price{Rates: Rates{UncachedInput: 1}}).Cost(Usage{UncachedInput: 1}); err != nil || got != 1 {
		t.Errorf("a pico-dollar rounds up to a nano-dollar: got %d, %v", got, err)
	}
	// 2^64 - 1 pico-dollars: rounding up carries into the upper half of the sum.
	if got, err := (Price{Rates: Rates{Output: 42_007_935}}).Cost(Usage{Output: 439_125_228_929}); err != nil || got != 18_446_744_073_709_552 {
		t.Errorf("a sum at the edge of 64 bits: got %d, %v", got, err)
	}
	search := map[string]int64{"search": NanoUSDMax}
	for name, test := range map[string]struct {
		price Price
		usage Usage
		want  error
	}{
		"tokens overflow":      {Price{Rates: Rates{Output: NanoUSDMax}}, Usage{Output: TokensMax}, ErrOverflow},
		"a unit overflows":     {Price{UnitCharges: search}, Usage{Units: map[string]int64{"search": 2}}, ErrOverflow},
		"units overflow":       {Price{UnitCharges: map[string]int64{"a": NanoUSDMax, "b": 1}}, Usage{Units: map[string]int64{"a": 1, "b": 1}}, ErrOverflow},
		"the sum overflows":    {Price{Rates: Rates{Output: 1}, UnitCharges: search}, Usage{Output: 1, Units: map[string]int64{"search": 1}}, ErrOverflow},
		"a negative rate":      {Price{Rates: Rates{Output: -1}}, Usage{Output: 1}, ErrPrice},
		"a negative long rate": {Price{LongContext: &LongContext{Rates: Rates{Output: -1}}}, Usage{}, ErrPrice},
		"a negative threshold": {Price{LongContext: &LongContext{Threshold: -1}}, Usage{}, ErrPrice},
		"a negative tier":      {Price{Tiers: map[string]Row{"flex": {Rates: Rates{Output: -1}}}}, Usage{}, ErrPrice},
		"a negative charge":    {Price{UnitCharges: map[string]int64{"a": -1}}, Usage{}, ErrPrice},
		"an ordinary tier":     {Price{Tiers: map[string]Row{"standard": {}}}, Usage{}, ErrPrice},
		"a tier not listed":    {Price{RequestedTier: "priority"}, Usage{}, ErrPrice},
		"negative usage":       {Price{}, Usage{Output: -1}, ErrUsage},
		"negative units":       {Price{UnitCharges: search}, Usage{Units: map[string]int64{"search": -1}}, ErrUsage},
		"huge units":           {Price{UnitCharges: search}, Usage{Units: map[string]int64{"search": TokensMax + 1}}, ErrUsage},
		"a unit without name":  {Price{}, Usage{Units: map[string]int64{"": 1}}, ErrUsage},
		"a tier that is none":  {Price{}, Usage{Tier: "a b"}, ErrUsage},
	} {
		if got, err := test.price.Cost(test.usage); got != 0 || !errors.Is(err, test.want) {
			t.Errorf("%s: got %d, %v, want %v", name, got, err, test.want)
		}
	}
}

// tiered costs 1, 2 and 3 nano-USD an input token in its tiers, and 10 times that beyond 100 tokens in two of them.
var tiered = Price{
	Rates: Rates{UncachedInput: 2000}, LongContext: &LongContext{100, Rates{UncachedInput: 20_000}},
	Tiers: map[string]Row{
		"flex":     {Rates{UncachedInput: 1000}, &LongContext{100, Rates{UncachedInput: 10_000}}},
		"priority": {Rates: Rates{UncachedInput: 3000}},
	},
	UnitCharges: map[string]int64{"web_search": 7},
}

func TestTheServedTierIsCharged(t *testing.T) {
	for _, test := range []struct {
		requested, served string
		input, want       int64
	}{
		{"", "", 100, 200}, {"", "", 101, 2020},
		{"auto", "auto", 100, 200}, {"default", "", 100, 200}, {"standard", "", 101, 2020}, {"on_demand", "", 1, 2},
		{"flex", "", 100, 100}, {"flex", "", 101, 1010}, {"flex", "auto", 1, 1},
		{"flex", "default", 100, 200}, {"flex", "standard", 101, 2020}, {"flex", "priority", 1, 3},
		{"priority", "", 101, 303}, {"priority", "default", 101, 2020}, {"priority", "flex", 1, 1},
		{"", "priority", 100, 300}, {"auto", "flex", 100, 100}, {"default", "priority", 100, 300},
	} {
		price, err := tiered.For(test.requested)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := price.Cost(Usage{UncachedInput: test.input, Tier: test.served}); err != nil || got != test.want {
			t.Errorf("%+v: got %d, %v", test, got, err)
		}
	}
}

// TestWhatIsNotListedIsNeverFree: neither a tier nor a unit that a price does not list is charged as if nothing were wrong.
func TestWhatIsNotListedIsNeverFree(t *testing.T) {
	for _, tier := range []string{"scale", "Priority", UnknownTier, "fast"} {
		if got, err := tiered.For(tier); !errors.Is(err, ErrUnpriced) {
			t.Errorf("asked for %s: got %+v, %v", tier, got, err)
		}
		if got, err := tiered.Cost(Usage{UncachedInput: 10, Tier: tier}); got != 30 || !errors.Is(err, ErrUnpriced) {
			t.Errorf("served by %s: got %d, %v, want the dearest, 30, and an error", tier, got, err)
		}
		if got, err := tiered.Cost(Usage{UncachedInput: 101, Tier: tier}); got != 2020 || !errors.Is(err, ErrUnpriced) {
			t.Errorf("served by %s: got %d, %v, want the dearest, 2020, and an error", tier, got, err)
		}
	}
	plain := Price{Rates: Rates{UncachedInput: 2000}}
	if got, err := plain.For("flex"); !errors.Is(err, ErrUnpriced) {
		t.Errorf("a price without tiers: got %+v, %v", got, err)
	}
	usage := Usage{UncachedInput: 1, Units: map[string]int64{"web_search": 2, "image": 1, "unused": 0}}
	if got, err := tiered.Cost(usage); got != 16 || !errors.Is(err, ErrUnpriced) || !strings.Contains(err.Error(), "image") {
		t.Errorf("got %d, %v, want what is known, 16, and an error that names the unit", got, err)
	}
	delete(usage.Units, "image")
	if got, err := tiered.Cost(usage); got != 16 || err != nil {
		t.Errorf("a unit that was not used costs nothing: got %d, %v", got, err)
	}
}

func TestForAnOrdinaryTier(t *testing.T) {
	plain := Price{Rates: Rates{UncachedInput: 2000}}
	for _, tier := range []string{"", "auto", "default", "standard", "standard_only", "on_demand"} {
		if got, err := plain.For(tier); err != nil || got.ID() != plain.ID() {
			t.Errorf("%q makes %+v, %v of a price without tiers", tier, got, err)
		}
	}
	open, _ := tiered.For("auto")
	ordinary, _ := tiered.For("standard")
	fixed, _ := tiered.For("default")
	if open.ID() != tiered.ID() || ordinary.ID() != fixed.ID() || ordinary.ID() == open.ID() {
		t.Errorf("requested tiers %q, %q, %q", open.RequestedTier, ordinary.RequestedTier, fixed.RequestedTier)
	}
}

func TestCeiling(t *testing.T) {
	price := Price{Rates: Rates{1_000_000, 100_000, 1_250_000, 2_000_000, 5_000_000, 6_000_000}}
	asked := func(tier string) Price {
		p, err := tiered.For(tier)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	// Long prompts are cheaper here: one that may be long may also be short.
	cheaperLong := Price{Rates: Rates{UncachedInput: 2000}, LongContext: &LongContext{100, Rates{UncachedInput: 1000}}}
	for name, test := range map[string]struct {
		price  Price
		bounds Bounds
		want   int64
	}{
		"nothing":                     {price, Bounds{CacheWrites: true}, 0},
		"input":                       {price, Bounds{Input: 100}, 100_000},
		"input, all of it written":    {price, Bounds{Input: 100, CacheWrites: true}, 200_000},
		"output, all of it reasoning": {price, Bounds{Output: 100}, 600_000},
		"both":                        {price, Bounds{Input: 100, Output: 100, CacheWrites: true}, 800_000},
		"a dearer cached token":       {Price{Rates: Rates{CachedInput: 7000}}, Bounds{Input: 1}, 7},
		"an open tier may be any":     {tiered, Bounds{Input: 100}, 300},
		"and long":                    {tiered, Bounds{Input: 101}, 2020},
		"the ordinary tier":           {asked("default"), Bounds{Input: 100}, 200},
		"flex falls back to it":       {asked("flex"), Bounds{Input: 100}, 200},
		"priority":                    {asked("priority"), Bounds{Input: 100}, 300},
		"priority, or long":           {asked("priority"), Bounds{Input: 101}, 2020},
		"long and cheaper":            {cheaperLong, Bounds{Input: 150}, 200},
		"long and dearer in sum":      {cheaperLong, Bounds{Input: 250}, 250},
		"units":                       {tiered, Bounds{Units: map[string]int64{"web_search": 3}}, 21},
	} {
		if got, err := test.price.Ceiling(test.bounds); err != nil || got != test.want {
			t.Errorf("%s: got %d, %v, want %d", name, got, err, test.want)
		}
	}
	for name, test := range map[string]struct {
		price  Price
		bounds Bounds
		want   error
	}{
		"too much input":                         {price, Bounds{Input: TokensMax, Output: 1}, ErrUsage},
		"negative input":                         {price, Bounds{Input: -1}, ErrUsage},
		"negative output":                        {price, Bounds{Output: -1}, ErrUsage},
		"negative units":                         {tiered, Bounds{Units: map[string]int64{"web_search": -1}}, ErrUsage},
		"a unit unlisted":                        {tiered, Bounds{Units: map[string]int64{"image": 1}}, ErrUnpriced},
		"overflow":                               {Price{Rates: Rates{Output: NanoUSDMax}}, Bounds{Output: TokensMax}, ErrOverflow},
		"a negative class that it does not need": {Price{Rates: Rates{UncachedInput: 1, CacheWrite1h: -1}}, Bounds{Input: 1, Output: 1}, ErrPrice},
	} {
		if got, err := test.price.Ceiling(test.bounds); !errors.Is(err, test.want) {
			t.Errorf("%s: got %d, %v, want %v", name, got, err, test.want)
		}
	}
}

// TestPriceIDsStay: a price that is stored must be found again under its id.
func TestPriceIDsStay(t *testing.T) {
	full := tiered
	full.RequestedTier = "flex"
	for want, price := range map[string]Price{
		"cf9598dc35aea3cbb28f709ce2fb9f173b82f206fb895303f61b96186815fdf2": {Rates: Rates{1, 2, 3, 4, 5, 6}},
		"f2a3ee663bee90ccec2bbeeeece067ac9db916743c17e154872cd3f45a54e0bd": full,
	} {
		if id := price.ID(); hex.EncodeToString(id[:]) != want {
			t.Errorf("%+v has the id %x, want %s", price, id, want)
		}
	}
}

// TestPriceIDTellsApart: prices that differ in one thing have ids of their own.
func TestPriceIDTellsApart(t *testing.T) {
	long := &LongContext{100, Rates{UncachedInput: 20_000}}
	seen := map[[32]byte]Price{}
	for _, price := range []Price{
		{}, {Rates: Rates{1, 2, 3, 4, 5, 6}}, {Rates: Rates{2, 1, 3, 4, 5, 6}}, tiered,
		{LongContext: long}, {LongContext: &LongContext{101, long.Rates}}, {LongContext: &LongContext{100, Rates{CachedInput: 20_000}}},
		{Tiers: map[string]Row{"a": {}}}, {Tiers: map[string]Row{"b": {}}}, {Tiers: map[string]Row{"a": {}, "b": {}}},
		{Tiers: map[string]Row{"a": {LongContext: long}}}, {Tiers: map[string]Row{"a": {Rates: Rates{Output: 1}}}},
		{UnitCharges: map[string]int64{"a": 0}}, {UnitCharges: map[string]int64{"a": 1}}, {UnitCharges: map[string]int64{"b": 1}},
		{UnitCharges: map[string]int64{"a": 1, "b": 1}},
		{Tiers: map[string]Row{"a": {}}, RequestedTier: "a"}, {Tiers: map[string]Row{"a": {}}, RequestedTier: "default"},
	} {
		if other, taken := seen[price.ID()]; taken {
			t.Errorf("%+v and %+v have one id", price, other)
		}
		seen[price.ID()] = price
	}
	if empty := (Price{Tiers: map[string]Row{}, UnitCharges: map[string]int64{}}); empty.ID() != (Price{}).ID() {
		t.Error("no tiers, and an empty list of them, are two prices")
	}
}

// TestStoredRowsStillLoad reads what was written when a price was its rates, and a usage its classes, alone.
func TestStoredRowsStillLoad(t *testing.T) {
	var price Price
	stored := `{"uncached_input":1,"cached_input":2,"cache_write_5m":3,"cache_write_1h":4,"output":5,"reasoning":6}`
	if err := json.Unmarshal([]byte(stored), &price); err != nil || !reflect.DeepEqual(price, Price{Rates: Rates{1, 2, 3, 4, 5, 6}}) {
		t.Errorf("price: %+v, %v", price, err)
	}
	var usage Usage
	if err := json.Unmarshal([]byte(stored), &usage); err != nil || usage.classes() != price.classes() || usage.Units != nil || usage.Tier != "" {
		t.Errorf("usage: %+v, %v", usage, err)
	}
	for _, value := range []any{price, usage} {
		if text, err := json.Marshal(value); err != nil || string(text) != stored {
			t.Errorf("%T is written %s, %v, want what was stored", value, text, err)
		}
	}
}

// drawing of prices and usages.

func drawRates(t *rapid.T, name string) Rates {
	rate := rapid.OneOf(rapid.Int64Range(0, 50_000_000), rapid.Int64Range(0, 1<<40))
	draw := func(class string) int64 { return rate.Draw(t, name+class) }
	return Rates{draw("a"), draw("b"), draw("c"), draw("d"), draw("e"), draw("f")}
}

func drawRow(t *rapid.T, name string) Row {
	row := Row{Rates: drawRates(t, name)}
	if rapid.Bool().Draw(t, name+" long") {
		row.LongContext = &LongContext{rapid.Int64Range(0, 1000).Draw(t, name+" threshold"), drawRates(t, name+" long")}
	}
	return row
}

var (
	drawnTiers = []string{"flex", "priority", "scale"}
	drawnUnits = []string{"file_search", "web_search"}
)

func drawPrice(t *rapid.T) Price {
	base := drawRow(t, "base")
	p := Price{Rates: base.Rates, LongContext: base.LongContext, Tiers: map[string]Row{}, UnitCharges: map[string]int64{}}
	for _, tier := range drawnTiers {
		if rapid.Bool().Draw(t, "has "+tier) {
			p.Tiers[tier] = drawRow(t, tier)
		}
	}
	for _, unit := range drawnUnits {
		if rapid.Bool().Draw(t, "has "+unit) {
			p.UnitCharges[unit] = rapid.Int64Range(0, 1<<40).Draw(t, unit)
		}
	}
	requested := rapid.SampledFrom(append([]string{"", "default"}, slices.Sorted(maps.Keys(p.Tiers))...)).Draw(t, "requested")
	p, err := p.For(requested)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func drawUsage(t *rapid.T) Usage {
	tokens := rapid.OneOf(rapid.Int64Range(0, 400), rapid.Int64Range(0, 10_000_000), rapid.Int64Range(0, TokensMax/6))
	draw := func(class string) int64 { return tokens.Draw(t, class) }
	u := Usage{UncachedInput: draw("a"), CachedInput: draw("b"), CacheWrite5m: draw("c"), CacheWrite1h: draw("d"), Output: draw("e"), Reasoning: draw("f")}
	u.Tier = rapid.SampledFrom(append([]string{"", "auto", "default"}, drawnTiers...)).Draw(t, "served")
	u.Units = map[string]int64{}
	for _, unit := range drawnUnits {
		if n := rapid.Int64Range(0, 100).Draw(t, "n "+unit); n > 0 {
			u.Units[unit] = n
		}
	}
	return u
}

// exactCost is the cost by the words of [Price] alone, in arithmetic that cannot overflow. listed says that everything is.
func exactCost(p Price, u Usage) (nano *big.Int, listed bool) {
	tier := u.Tier
	if tier == "" || tier == "auto" {
		tier = p.RequestedTier
	}
	row, listed := p.Tiers[tier]
	if tier == "" || tier == "default" {
		row, listed = Row{p.Rates, p.LongContext}, true
	}
	rates := row.Rates
	if row.LongContext != nil && u.UncachedInput+u.CachedInput+u.CacheWrite5m+u.CacheWrite1h > row.LongContext.Threshold {
		rates = row.LongContext.Rates
	}
	times := func(n, each int64) *big.Int { return new(big.Int).Mul(big.NewInt(n), big.NewInt(each)) }
	pico := new(big.Int)
	for _, product := range []*big.Int{
		times(u.UncachedInput, rates.UncachedInput), times(u.CachedInput, rates.CachedInput), times(u.CacheWrite5m, rates.CacheWrite5m),
		times(u.CacheWrite1h, rates.CacheWrite1h), times(u.Output, rates.Output), times(u.Reasoning, rates.Reasoning),
	} {
		pico.Add(pico, product)
	}
	for unit, n := range u.Units {
		charge, priced := p.UnitCharges[unit]
		listed = listed && priced
		pico.Add(pico, times(n, charge).Mul(times(n, charge), big.NewInt(1000)))
	}
	return pico.Add(pico, big.NewInt(999)).Div(pico, big.NewInt(1000)), listed
}

func TestCostIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, u := drawPrice(t), drawUsage(t)
		want, listed := exactCost(p, u)
		got, err := p.Cost(u)
		switch {
		case !listed:
			if !errors.Is(err, ErrUnpriced) && !errors.Is(err, ErrOverflow) {
				t.Fatalf("got %d, %v, want an error: the price does not list everything", got, err)
			}
		case want.Cmp(big.NewInt(NanoUSDMax)) > 0:
			if got != 0 || !errors.Is(err, ErrOverflow) {
				t.Fatalf("got %d, %v, want an overflow: it is %s", got, err, want)
			}
		case err != nil || want.Cmp(big.NewInt(got)) != 0:
			t.Fatalf("got %d, %v, want %s", got, err, want)
		}
	})
}

// TestCeilingCoversEveryUsage: whatever a call within its bounds turns out to be, it costs at most what was held, if the provider
// serves it by the tier that it asked for, by the ordinary one, or, where it asked for none, by any.
func TestCeilingCoversEveryUsage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, u := drawPrice(t), drawUsage(t)
		served := []string{"", "default", p.RequestedTier}
		if p.RequestedTier == "" {
			served = append(served, slices.Sorted(maps.Keys(p.Tiers))...)
		}
		u.Tier = rapid.SampledFrom(served).Draw(t, "served in bounds")
		bounds := Bounds{CacheWrites: rapid.Bool().Draw(t, "cache writes"), Units: map[string]int64{}}
		if !bounds.CacheWrites {
			u.CacheWrite5m, u.CacheWrite1h = 0, 0
		}
		bounds.Input = u.prompt() + rapid.Int64Range(0, 1000).Draw(t, "more input")
		bounds.Output = u.Output + u.Reasoning + rapid.Int64Range(0, 1000).Draw(t, "more output")
		for unit, n := range u.Units {
			if _, listed := p.UnitCharges[unit]; listed {
				bounds.Units[unit] = n + 1
			} else {
				delete(u.Units, unit)
			}
		}
		ceiling, err := p.Ceiling(bounds)
		if errors.Is(err, ErrOverflow) {
			return
		}
		if cost, costErr := p.Cost(u); err != nil || costErr != nil || ceiling < cost {
			t.Fatalf("held %d, %v, for a cost of %d, %v", ceiling, err, cost, costErr)
		}
	})
}

// TestMoreNeverCostsLess: a further token or unit never makes a call cheaper, unless its prompt becomes long by it.
func TestMoreNeverCostsLess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, less := drawPrice(t), drawUsage(t)
		more := less
		more.Units = maps.Clone(less.Units)
		n := rapid.Int64Range(1, 1000).Draw(t, "n")
		class := rapid.IntRange(0, 6).Draw(t, "class")
		if class == 6 {
			more.Units["web_search"] += n
		} else {
			*[]*int64{&more.UncachedInput, &more.CachedInput, &more.CacheWrite5m, &more.CacheWrite1h, &more.Output, &more.Reasoning}[class] += n
		}
		for _, row := range append(slices.Collect(maps.Values(p.Tiers)), p.base()) {
			if row.LongContext != nil && (less.prompt() > row.LongContext.Threshold) != (more.prompt() > row.LongContext.Threshold) {
				return
			}
		}
		cheap, errLess := p.Cost(less)
		dear, errMore := p.Cost(more)
		if dear < cheap && !errors.Is(errMore, ErrOverflow) {
			t.Fatalf("%+v costs %d, %v; %+v costs %d, %v", less, cheap, errLess, more, dear, errMore)
		}
	})
}

// TestPriceIDIsOfTheContent: the order in which maps were filled does not matter, and what is stored is found again.
func TestPriceIDIsOfTheContent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPrice(t)
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var again Price
		if err := json.Unmarshal(text, &again); err != nil || again.ID() != p.ID() {
			t.Fatalf("%s: %v, or another id", text, err)
		}
		other := p
		other.Tiers = map[string]Row{}
		names := slices.Collect(maps.Keys(p.Tiers))
		slices.Reverse(names)
		for _, tier := range names {
			other.Tiers[tier] = p.Tiers[tier]
		}
		if other.ID() != p.ID() {
			t.Fatal("the same price has another id")
		}
		if other = drawPrice(t); reflect.DeepEqual(p, other) != (p.ID() == other.ID()) {
			t.Fatalf("%+v and %+v: equal %t, one id %t", p, other, reflect.DeepEqual(p, other), p.ID() == other.ID())
		}
	})
}

func FuzzPriceList(f *testing.F) {
	f.Add(`{"input":"2.50","cached_input":"0.25","output":"15.00","long_context":{"threshold":272000,"input":"5","output":"22.5"}}`)
	f.Add(`{"input":"2","output":"8","tiers":{"priority":{"input":"3.5","output":"14"}},"unit_charges":{"web_search":"0.01"}}`)
	f.Add(`{"input":"1","output":null,"tiers":{"":{}}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var list PriceList
		if json.Unmarshal([]byte(text), &list) != nil {
			return
		}
		price, err := list.Price()
		if err != nil {
			if !errors.Is(err, ErrPrice) || !reflect.DeepEqual(price, Price{}) {
				t.Fatalf("%s: %+v, %v", text, price, err)
			}
			return
		}
		if err := price.validate(); err != nil {
			t.Fatalf("%s makes a price that is none: %v", text, err)
		}
		stored, err := json.Marshal(price)
		var again Price
		if err != nil || json.Unmarshal(stored, &again) != nil || again.ID() != price.ID() {
			t.Fatalf("%s: stored as %s, %v", text, stored, err)
		}
	})
}
