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
		"a threshold that is a text": {"threshold: 1000", "threshold: many", "c.yaml:10: a value of the wrong type: many"},
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
