package ledger

import (
	"encoding/json"
	"os"
	"testing"
)

// invoice is a usage with the charge that is right, computed with exact fractions and without this package.
type invoice struct {
	Name        string
	Price       *PriceList
	Multipliers *struct{ Model, Burn, Tier string }
	ServedTier  string `json:"served_tier"`
	// Classes stand at the top where no provider's report is behind them.
	Classes *Usage
	Expect  struct {
		Classes     *Usage
		Units       map[string]int64
		NanoUSD     *int64 `json:"nano_usd"`
		NanoCredits *int64 `json:"nano_credits"`
	}
}

func (i *invoice) usage() Usage {
	usage := i.Classes
	if usage == nil {
		usage = i.Expect.Classes
	}
	usage.Units, usage.Tier = i.Expect.Units, i.ServedTier
	return *usage
}

func TestInvoices(t *testing.T) {
	text, err := os.ReadFile("testdata/invoices.json")
	if err != nil {
		t.Fatal(err)
	}
	var invoices struct{ Cases []invoice }
	if err := json.Unmarshal(text, &invoices); err != nil {
		t.Fatal(err)
	}
	inUSD, inCredits := 0, 0
	for _, i := range invoices.Cases {
		t.Run(i.Name, func(t *testing.T) {
			if i.Expect.NanoUSD != nil {
				inUSD++
				if got := invoicedUSD(t, i); got != *i.Expect.NanoUSD {
					t.Errorf("got %d nano-USD, want %d", got, *i.Expect.NanoUSD)
				}
			}
			if i.Expect.NanoCredits != nil {
				inCredits++
				if got := invoicedCredits(t, i); got != *i.Expect.NanoCredits {
					t.Errorf("got %d nano-credits, want %d", got, *i.Expect.NanoCredits)
				}
			}
		})
	}
	if inUSD != 23 || inCredits != 4 {
		t.Errorf("%d charges in US dollars and %d in credits, want 23 and 4", inUSD, inCredits)
	}
}

// invoicedUSD also asks what a call with this usage had held: never less than it costs.
func invoicedUSD(t *testing.T, i invoice) int64 {
	price, err := i.Price.Price()
	if err != nil {
		t.Fatal(err)
	}
	usage := i.usage()
	got, err := price.Cost(usage)
	if err != nil {
		t.Fatal(err)
	}
	bounds := Bounds{Input: usage.prompt(), Output: usage.Output + usage.Reasoning, CacheWrites: true, Units: usage.Units}
	if held, err := price.Ceiling(bounds); err != nil || held < got {
		t.Errorf("held %d, %v", held, err)
	}
	return got
}

func invoicedCredits(t *testing.T, i invoice) int64 {
	multiplier := func(text string) Multiplier {
		m, err := ParseMultiplier(text)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	rate := CreditRate{
		Model: multiplier(i.Multipliers.Model), Burn: multiplier(i.Multipliers.Burn),
		Tiers: map[string]Multiplier{"tier": multiplier(i.Multipliers.Tier)}, RequestedTier: "tier",
	}
	usage := i.usage()
	got, err := rate.Credits(usage)
	if err != nil {
		t.Fatal(err)
	}
	held, err := rate.Ceiling(Bounds{Input: usage.prompt(), Output: usage.Output + usage.Reasoning, CacheWrites: true})
	if err != nil || held < got {
		t.Errorf("held %d, %v", held, err)
	}
	return got
}
