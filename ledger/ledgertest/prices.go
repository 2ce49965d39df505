package ledgertest

import (
	"encoding/json"
	"testing"

	"regent/ledger"
)

// fullPrice costs 2 nano-USD an output token, 3 in its fast tier, and ten times that after a prompt of more than 100 tokens.
var fullPrice = ledger.Price{
	Rates:       ledger.Rates{Output: 2000},
	LongContext: &ledger.LongContext{Threshold: 100, Rates: ledger.Rates{Output: 20_000}},
	Tiers: map[string]ledger.Row{
		"fast": {Rates: ledger.Rates{Output: 3000}, LongContext: &ledger.LongContext{Threshold: 100, Rates: ledger.Rates{Output: 30_000}}},
	},
	UnitCharges:   map[string]int64{"web_search": 7},
	RequestedTier: "fast",
}

func charges(t *testing.T, b *bench) {
	call := newCall()
	a := forCall(call, "one")
	a.Price, a.Reserve = &fullPrice, ledger.Reserve{Tokens: amount(106), NanoUSD: amount(1000)}
	a.Claims = append(a.Claims, limited(aliceUSD, 1000))
	hold := b.admit(a)
	_, err := b.ledger.Settle(ctx, ending(hold), ledger.Consumption{Usage: &ledger.Usage{Output: 1, Tier: "other"}})
	wantError(t, "a tier that the price does not list", err, ledger.ErrUnpriced)
	_, err = b.ledger.Settle(ctx, ending(hold), ledger.Consumption{Usage: &ledger.Usage{Output: 1, Units: map[string]int64{"other": 1}}})
	wantError(t, "a unit that the price does not list", err, ledger.ErrUnpriced)
	b.want(aliceUSD, 0, 1000)

	usage := ledger.Usage{CachedInput: 101, Output: 5, Units: map[string]int64{"web_search": 2}}
	charge := b.settle(hold, usage) // 5 x 30 + 2 x 7, at the tier that was asked for
	wantEqual(t, "charge", charge, ledger.Charge{Tokens: 106, NanoUSD: 164})
	wantEqual(t, "the same settlement again", b.settle(hold, usage), charge)
	b.want(aliceUSD, 164, 0)

	report, err := b.ledger.Store().Call(ctx, call.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "usage", *report.Attempts[0].Usage, usage)
	records, err := b.ledger.Store().CallRecords(ctx, call.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range records {
		if record.Kind != ledger.ChargeRecord {
			continue
		}
		var body ledger.ChargeBody
		if err := json.Unmarshal(record.Body, &body); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "price", *body.Price, fullPrice)
		again, err := body.Price.Cost(*body.Usage)
		wantEqual(t, "computed again from its record", again, body.NanoUSD)
		wantEqual(t, "error", err, nil)
		return
	}
	t.Fatal("no record of the charge")
}
