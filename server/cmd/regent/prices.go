package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"regent/ledger"
	"regent/server/catalog/pricelist"
)

type pricesCmd struct {
	Model  string `arg:"" optional:"" help:"PROVIDER/MODEL, for example openai/gpt-5-mini. All are listed without it."`
	JSON   bool   `name:"json" help:"Print a JSON document."`
	Notice bool   `help:"Print the licence of the list."`
}

// pricesView is what is shown of the list.
type pricesView struct {
	pricelist.List
	AgeDays int  `json:"age_days"`
	Stale   bool `json:"stale"`
}

// Run prints the list, or one model of it.
func (c pricesCmd) Run(e *environment) error {
	if c.Notice {
		_, err := io.WriteString(e.stdout, pricelist.Notice)
		return err
	}
	list, now := pricelist.Published(), time.Now()
	view := pricesView{List: *list, AgeDays: int(list.Age(now).Hours() / 24), Stale: list.Stale(now)}
	if c.Model != "" {
		model := list.Find(c.Model)
		if model == nil {
			return fmt.Errorf("no price of %q is published; `regent prices` lists those that are", c.Model)
		}
		view.Models = []pricelist.Model{*model}
	}
	if c.JSON {
		encoder := json.NewEncoder(e.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(view)
	}
	out := tabwriter.NewWriter(e.stdout, 0, 0, 2, ' ', 0)
	view.print(out)
	return out.Flush() // which tells of every write before it
}

func (v pricesView) print(out io.Writer) {
	old := ""
	if v.Stale {
		old = ": OLD, and may be too low"
	}
	_, _ = fmt.Fprintf(out, "%s %s of %s, %d days old%s. US dollars per million tokens.\n\n",
		v.Source, v.Version, v.Date, v.AgeDays, old)
	for _, model := range v.Models {
		if len(v.Models) == 1 {
			printModel(out, model)
			return
		}
		input, output := "-", "-"
		if model.Price != nil {
			input, output = model.Price.Input, model.Price.Output
		}
		_, _ = fmt.Fprintf(out, "%s\tinput %s\toutput %s\t%s\n", model.ID, input, output, strings.Join(remarks(model), "; "))
	}
}

// remarks are what its input and output prices do not say of a model.
func remarks(model pricelist.Model) []string {
	var all []string
	if model.Unusable != "" {
		all = append(all, "cannot be used: "+model.Unusable)
	}
	if model.Price != nil && model.Price.LongContext != nil {
		all = append(all, fmt.Sprintf("more beyond %d tokens", model.Price.LongContext.Threshold))
	}
	for _, modality := range model.Apart {
		all = append(all, "not for "+modality)
	}
	if model.Deprecated {
		all = append(all, "deprecated")
	}
	return all
}

func printModel(out io.Writer, model pricelist.Model) {
	_, _ = fmt.Fprintln(out, model.ID)
	if model.ContextTokens > 0 {
		_, _ = fmt.Fprintf(out, "  context\t%d tokens\n", model.ContextTokens)
	}
	if price := model.Price; price != nil {
		printRates(out, "  ", price.RateList)
		if long := price.LongContext; long != nil {
			_, _ = fmt.Fprintf(out, "  prompts of more than %d tokens\n", long.Threshold)
			printRates(out, "    ", long.RateList)
		}
		for _, unit := range slices.Sorted(maps.Keys(price.UnitCharges)) {
			_, _ = fmt.Fprintf(out, "  %s\t%s each\n", unit, price.UnitCharges[unit])
		}
	}
	for _, remark := range remarks(model) {
		_, _ = fmt.Fprintf(out, "  %s\n", remark)
	}
}

// printRates prints the rates that are published; what is missing is charged like what is known.
func printRates(out io.Writer, indent string, rates ledger.RateList) {
	for _, rate := range []struct{ name, value string }{
		{"input", rates.Input}, {"cached_input", rates.CachedInput}, {"cache_write_5m", rates.CacheWrite5m},
		{"cache_write_1h", rates.CacheWrite1h}, {"output", rates.Output}, {"reasoning", rates.Reasoning},
	} {
		if rate.value != "" {
			_, _ = fmt.Fprintf(out, "%s%s\t%s\n", indent, rate.name, rate.value)
		}
	}
}
