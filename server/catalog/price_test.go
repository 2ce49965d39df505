package catalog

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"regent/ledger"
)

// priced is a catalogue whose one source has a price over the lines 8 to 13.
func priced(price string) string {
	return hashed(strings.Replace(good, `{input: "1", output: "2"}`, price, 1))
}

const fullPrice = `{input: "1", cached_input: "0.1",
      cache_write_5m: "1.25", cache_write_1h: "2", output: "2", reasoning: "2.5",
      long_context: {threshold: 1000, input: "2", output: "3"},
      tiers: {flex: {input: "0.5", output: "1"},
        priority: {input: "1.75", output: "3.5", reasoning: "4"}},
      unit_charges: {web_search: "0.01"}}`

func TestParsePrice(t *testing.T) {
	c, err := Parse("c.yaml", []byte(priced(fullPrice)), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	long := ledger.Rates{UncachedInput: 2e6, CachedInput: 2e6, CacheWrite5m: 2e6, CacheWrite1h: 2e6, Output: 3e6, Reasoning: 3e6}
	priorityLong := long
	priorityLong.Output, priorityLong.Reasoning = 3.5e6, 4e6
	want := ledger.Price{
		Rates:       ledger.Rates{UncachedInput: 1e6, CachedInput: 1e5, CacheWrite5m: 1.25e6, CacheWrite1h: 2e6, Output: 2e6, Reasoning: 2.5e6},
		LongContext: &ledger.LongContext{Threshold: 1000, Rates: long},
		Tiers: map[string]ledger.Row{
			"flex": {
				Rates:       ledger.Rates{UncachedInput: 5e5, CachedInput: 5e5, CacheWrite5m: 5e5, CacheWrite1h: 5e5, Output: 1e6, Reasoning: 1e6},
				LongContext: &ledger.LongContext{Threshold: 1000, Rates: long},
			},
			"priority": {
				Rates:       ledger.Rates{UncachedInput: 1.75e6, CachedInput: 1.75e6, CacheWrite5m: 1.75e6, CacheWrite1h: 1.75e6, Output: 3.5e6, Reasoning: 4e6},
				LongContext: &ledger.LongContext{Threshold: 1000, Rates: priorityLong},
			},
		},
		UnitCharges: map[string]int64{"web_search": 10_000_000},
	}
	if got := c.Models["m"].Sources[0].Price; !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}

// TestParsePriceRefuses changes one thing in a full price: each is refused, with the line of what is wrong in it.
func TestParsePriceRefuses(t *testing.T) {
	if _, err := Parse("c.yaml", []byte(priced(fullPrice)), noEnv); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ from, to, want string }{
		"an unknown key":             {"cached_input", "cached", "c.yaml:8: unknown key cached"},
		"an unknown key of a tier":   {`reasoning: "4"`, `thinking: "4"`, "c.yaml:12: unknown key thinking"},
		"a tier within a tier":       {`reasoning: "4"`, `tiers: {}`, "c.yaml:12: unknown key tiers"},
		"a bad rate":                 {`output: "2",`, `output: "2e1",`, `c.yaml:9: source "s": price: output: not a price: "2e1"`},
		"no output":                  {`output: "2",`, ``, `c.yaml:8: source "s": price: not a price: input and output`},
		"no threshold":               {"threshold: 1000, ", "", `c.yaml:10: source "s": price: long_context.threshold: `},
		"a negative threshold":       {"threshold: 1000", "threshold: -1", `c.yaml:10: source "s": price: long_context.threshold: `},
		"a threshold that is a text": {"threshold: 1000", "threshold: many", "c.yaml:10: threshold: want a number, not the text \"many\""},
		"half a long price":          {`, output: "3"`, ``, `c.yaml:10: source "s": price: long_context: not a price: input and output`},
		"a bad rate of a tier":       {"1.75", "1.7500001", `c.yaml:12: source "s": price: tiers.priority.input: `},
		"an ordinary tier":           {"priority", "default", `c.yaml:12: source "s": price: tiers.default: `},
		"a tier twice":               {"priority", "flex", "c.yaml:12: "},
		"a unit charge of words":     {`"0.01"`, "free", `c.yaml:13: source "s": price: unit_charges.web_search: `},
		"a unit that is two":         {"web_search", "web search", `c.yaml:13: source "s": price: unit_charges.web search: `},
	} {
		if !strings.Contains(fullPrice, test.from) {
			t.Fatalf("%s: %q is not in the price", name, test.from)
		}
		_, err := Parse("c.yaml", []byte(priced(strings.Replace(fullPrice, test.from, test.to, 1))), noEnv)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// TestCandidatesOfAServiceTier: a source is priced for the tiers that its price lists, and for no other.
func TestCandidatesOfAServiceTier(t *testing.T) {
	c, err := Parse("c.yaml", []byte(priced(fullPrice)), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	for tier, want := range map[string]string{"": "", "auto": "", "default": "default", "standard": "default", "flex": "flex", "priority": "priority"} {
		got := c.Models["m"].Candidates(&Cooling{}, false, tier)[0]
		if !got.Priced || got.Price == nil || got.Price.RequestedTier != want {
			t.Errorf("%q: %+v, want a price for %q", tier, got.Price, want)
		}
	}
	for _, tier := range []string{"scale", "Priority", ledger.UnknownTier} {
		if got := c.Models["m"].Candidates(&Cooling{}, false, tier)[0]; got.Priced || got.Price != nil {
			t.Errorf("%q: %+v, want no price", tier, got.Price)
		}
	}
	if price := c.Models["m"].Sources[0].Price; price.RequestedTier != "" {
		t.Errorf("the source's own price is changed: %+v", price)
	}
}

func TestPublishedPrice(t *testing.T) {
	read := func(price string) (*Source, error) {
		c, err := Parse("c.yaml", []byte(priced(price)), noEnv)
		if err != nil {
			return nil, err
		}
		if n := c.PublishedPrices(); n != 1 {
			t.Errorf("%s: %d published prices", price, n)
		}
		return c.Models["m"].Sources[0], nil
	}
	source, err := read(`{published: openai/gpt-5-mini}`)
	if err != nil {
		t.Fatal(err)
	}
	want := ledger.Price{
		Rates:       ledger.Rates{UncachedInput: 250_000, CachedInput: 25_000, CacheWrite5m: 250_000, CacheWrite1h: 250_000, Output: 2e6, Reasoning: 2e6},
		UnitCharges: map[string]int64{"web_search": 10_000_000, "file_search": 2_500_000},
	}
	if !reflect.DeepEqual(*source.Price, want) || source.PublishedPrice != "openai/gpt-5-mini" {
		t.Errorf("got %+v of %q", *source.Price, source.PublishedPrice)
	}
	source, err = read(`{published: openai/gpt-5.4, tiers: {flex: {input: "1.25", output: "7.5"}}, unit_charges: {web_search: "0.02", image: "1"}}`)
	if err != nil {
		t.Fatal(err)
	}
	price := source.Price
	if price.UncachedInput != 2_500_000 || price.LongContext == nil || price.LongContext.Threshold != 271_999 ||
		price.Tiers["flex"].UncachedInput != 1_250_000 || price.Tiers["flex"].LongContext.UncachedInput != 5_000_000 {
		t.Errorf("tiers beside a published price: %+v", price)
	}
	if !reflect.DeepEqual(price.UnitCharges, map[string]int64{"web_search": 20_000_000, "file_search": 2_500_000, "image": 1_000_000_000}) {
		t.Errorf("units beside a published price: %v", price.UnitCharges)
	}
	if again, err := read(`{published: openai/gpt-5.4}`); err != nil || again.Price.UnitCharges["web_search"] != 10_000_000 || again.Price.Tiers != nil {
		t.Errorf("what was written beside it has changed the published price: %+v, %v", again.Price, err)
	}
	if c, err := Parse("c.yaml", []byte(hashed(good)), noEnv); err != nil || c.PublishedPrices() != 0 {
		t.Errorf("a price of the file's own is published: %v", err)
	}
}

func TestPublishedPriceRefuses(t *testing.T) {
	for price, want := range map[string]string{
		`{published: openai/gpt-5-minni}`:                                  `c.yaml:8: source "s": price: no price of "openai/gpt-5-minni" is published`,
		"{\n      published: openai/nothing}":                              `c.yaml:9: source "s": price: no price of "openai/nothing"`,
		`{published: ""}`:                                                  `c.yaml:8: source "s": price: not a price: input and output`,
		`{published: openai/gpt-5-mini, input: "1"}`:                       `c.yaml:8: source "s": price: the rates are the published ones`,
		`{published: openai/gpt-5-mini, long_context: {threshold: 1}}`:     `c.yaml:8: source "s": price: the rates are the published ones`,
		`{published: google/gemini-3.6-flash}`:                             `cannot be used: the price changes on 2027-01-01; write the price`,
		`{published: deepseek/deepseek-chat}`:                              `cannot be used: the price changes with the time of day; write the price`,
		`{published: openai/text-embedding-3-small}`:                       `cannot be used: output has no price per token; write the price`,
		`{published: perplexity/sonar}`:                                    `cannot be used: it is also priced by requests_kcount; write the price`,
		`{published: openai/gpt-5-mini, tiers: {default: {}}}`:             `price: tiers.default: `,
		`{published: openai/gpt-5-mini, unit_charges: {web_search: free}}`: `price: unit_charges.web_search: `,
	} {
		if c, err := Parse("c.yaml", []byte(priced(price)), noEnv); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %+v, %v, want %q", price, c, err, want)
		}
	}
	// Its audio has a rate of its own: it may be used where no audio is accepted.
	audio := priced(`{published: google/gemini-2.5-flash}`)
	if _, err := Parse("c.yaml", []byte(audio), noEnv); err != nil {
		t.Error(err)
	}
	_, err := Parse("c.yaml", []byte(strings.Replace(audio, "image: 1000", "audio: 1000", 1)), noEnv)
	if err == nil || !strings.Contains(err.Error(), `c.yaml:8: source "s": price: the published price of "google/gemini-2.5-flash" has a rate of its own for audio`) {
		t.Errorf("audio at the rate of text: %v", err)
	}
}

// TestDemoPriceIsThePublishedOne: the demo's only source that costs money.
func TestDemoPriceIsThePublishedOne(t *testing.T) {
	c, err := Parse("demo.yaml", demo, func(string) (string, bool) { return token, true })
	if err != nil {
		t.Fatal(err)
	}
	source := c.Models["gpt-5-mini"].Sources[0]
	if source.PublishedPrice != "openai/"+source.Model || source.Price.UncachedInput != 250_000 || source.Price.Output != 2_000_000 {
		t.Errorf("%+v", source.Price)
	}
}
