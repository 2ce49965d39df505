package ledgertest

import (
	"encoding/json"
	"testing"
	"time"

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

// What a price does not list is charged at what was held, or at what is known of it if that is more, and says so.
func chargesTheUnpriced(t *testing.T, b *bench) {
	usd := func(held int64, usage ledger.Usage) ledger.Charge {
		a := tokens(106, 1000)
		a.Price, a.Reserve.NanoUSD = &fullPrice, &held
		a.Claims = append(a.Claims, limited(aliceUSD, 1_000_000))
		return b.settle(b.admit(a), usage)
	}
	wantEqual(t, "another tier", usd(1000, ledger.Usage{Output: 1, Tier: "other"}), ledger.Charge{Tokens: 1, NanoUSD: 1000, UnknownUsage: true})
	wantEqual(t, "another unit", usd(1000, ledger.Usage{Output: 1, Units: map[string]int64{"other": 1}}), ledger.Charge{Tokens: 1, NanoUSD: 1000, UnknownUsage: true})
	wantEqual(t, "more than was held", usd(10, ledger.Usage{Output: 6, Units: map[string]int64{"web_search": 2, "other": 1}}),
		ledger.Charge{Tokens: 6, NanoUSD: 32, UnknownUsage: true, Overage: true})
	b.want(aliceUSD, 2032, 0)
}

// Credits are held and charged beside tokens and money, by multipliers that are frozen with the hold.
func chargesCredits(t *testing.T, b *bench) {
	credits := ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.Credits}
	rate := &ledger.CreditRate{Model: 2 * ledger.Once, Burn: 1_250_000, Tiers: ledger.SubscriptionTiers("openai")}
	call := newCall()
	admit := func(nano int64) ledger.Admission {
		a := tokens(1000, 100_000)
		a.CreditRate, a.Reserve.NanoCredits, a.Reserve.NanoUSD = rate, &nano, amount(0)
		a.Claims = append(a.Claims, limited(aliceUSD, 1), ledger.Claim{Account: credits, Limits: []ledger.Limit{
			{Window: ledger.Rolling{Length: 5 * time.Hour}, Max: 10_000_000, Spendable: 9_500_000, Final: 9_600_000},
		}})
		return a
	}
	first := admit(2_500_000)
	first.Call = call
	hold := b.admit(first)
	wantEqual(t, "held", b.balance(credits).Held, 2_500_000)
	// 100 + 10 x 0.1 + 8 x 1.25 = 111 weighted tokens x 2 x 1.25 = 277.5e-6 credits, of which the served tier makes twice as many
	usage := ledger.Usage{UncachedInput: 60, CachedInput: 10, CacheWrite5m: 8, Output: 40, Tier: "priority"}
	wantEqual(t, "charge", b.settle(hold, usage), ledger.Charge{Tokens: 118, NanoCredits: 555_000})
	wantEqual(t, "used", b.balance(credits).Used, 555_000)

	// Calls may spend 95 %; one further call 1 % more, unless 95 % are spent already; exactly at the ceiling admits.
	b.denied(admit(9_045_001))
	wantEqual(t, "left", b.balance(credits).Left, 9_500_000-555_000)
	second := b.admit(admit(9_045_000)) // 96 % exactly
	denial := b.denied(admit(1))
	wantEqual(t, "spendable", denial.Spendable, 9_500_000)
	b.release(second)
	third := b.admit(admit(9_500_000 - 555_000))
	wantEqual(t, "what one further call lacks", b.denied(admit(1)).Shortfall(), 1)
	b.release(third)

	report, err := b.ledger.Store().Call(ctx, call.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the call's charge", report.Attempts[0].Charge.NanoCredits, 555_000)
	records, err := b.ledger.Store().CallRecords(ctx, call.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, record := range records {
		var body ledger.ChargeBody
		if err := json.Unmarshal(record.Body, &body); err != nil {
			t.Fatal(err)
		}
		if record.Kind == ledger.ChargeRecord {
			again, err := body.CreditRate.Credits(*body.Usage)
			wantEqual(t, "computed again from its record", again, body.NanoCredits)
			wantEqual(t, "error", err, nil)
			wantEqual(t, "the account's", body.Accounts[credits], 555_000)
		}
	}
}

// balance is how an account stands in a window of five hours.
func (b *bench) balance(account ledger.Account) ledger.Balance {
	b.t.Helper()
	balances, err := b.ledger.Read(ctx, []ledger.Claim{{Account: account, Limits: []ledger.Limit{
		{Window: ledger.Rolling{Length: 5 * time.Hour}, Max: 10_000_000, Spendable: 9_500_000},
	}}})
	if err != nil {
		b.t.Fatal(err)
	}
	return balances[0]
}
