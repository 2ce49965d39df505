package ledgertest

import (
	"encoding/json"
	"testing"
	"time"

	"regent/ledger"
)

// named is a posting that bears an id: 10 tokens and 500 nano-USD for alice, and for a task.
func named() ledger.Posting {
	return ledger.Posting{
		ID: newID(), Accounts: []ledger.Account{taskTokens, aliceUSD, aliceTokens}, NanoUSD: 500, Source: "one", Provider: "p",
		Usage: ledger.Usage{Output: 10, Units: map[string]int64{"web_search": 2, "pages": 1}},
	}
}

// wantUsed checks what was ever charged to an account.
func (b *bench) wantUsed(account ledger.Account, used int64) {
	b.t.Helper()
	row, _, err := ledger.ReadAccount(ctx, b.ledger.Store(), account)
	if err != nil {
		b.t.Fatal(err)
	}
	wantEqual(b.t, "used of "+account.String(), row.Used, used)
}

func postsOnce(t *testing.T, b *bench) {
	posting := named()
	post := func(change func(*ledger.Posting)) error {
		p := posting
		change(&p)
		return b.ledger.Post(ctx, p)
	}
	for _, change := range []func(*ledger.Posting){
		func(*ledger.Posting) {}, func(*ledger.Posting) {},
		func(p *ledger.Posting) { p.Accounts = []ledger.Account{aliceTokens, taskTokens, aliceUSD} }, // in another order
	} {
		if err := post(change); err != nil {
			t.Fatal(err)
		}
		b.wantUsed(aliceTokens, 10)
		b.wantUsed(taskTokens, 10)
		b.wantUsed(aliceUSD, 500)
	}
	for name, change := range map[string]func(*ledger.Posting){
		"another usage":    func(p *ledger.Posting) { p.Usage.Output++ },
		"another cost":     func(p *ledger.Posting) { p.NanoUSD++ },
		"other credits":    func(p *ledger.Posting) { p.NanoCredits++ },
		"another source":   func(p *ledger.Posting) { p.Source = "two" },
		"another provider": func(p *ledger.Posting) { p.Provider = "" },
		"other accounts":   func(p *ledger.Posting) { p.Accounts = p.Accounts[1:] },
	} {
		wantError(t, name, post(change), ledger.ErrState)
	}
	a := amendment()
	a.ID = posting.ID
	wantError(t, "a reset by the id of a posting", b.ledger.Reset(ctx, a, []ledger.Account{aliceTokens}), ledger.ErrState)
	a = amendment()
	if err := b.ledger.Reset(ctx, a, []ledger.Account{taskTokens}); err != nil {
		t.Fatal(err)
	}
	wantError(t, "a posting by the id of a reset", post(func(p *ledger.Posting) { p.ID = a.ID }), ledger.ErrState)
	hold := b.admit(tokens(5, 1000))
	underHold := func(p *ledger.Posting) { p.ID = hold.ID }
	wantError(t, "a posting by the id of a hold", post(underHold), ledger.ErrState)
	b.settle(hold, ledger.Usage{Output: 1})
	wantError(t, "a posting by the id of what a hold became", post(underHold), ledger.ErrState)
	b.wantUsed(aliceTokens, 11)

	nobody := ledger.Posting{ID: newID(), Usage: ledger.Usage{Output: 3}} // is for no account
	for range 2 {
		if err := b.ledger.Post(ctx, nobody); err != nil {
			t.Fatal(err)
		}
	}
	b.post(1) // what bears no id is posted each time
	b.post(1)
	b.wantUsed(aliceTokens, 13)
	wantEqual(t, "records of charges", len(b.records(ledger.ChargeRecord)), 5)
	var body ledger.ChargeBody
	if err := json.Unmarshal(b.records(ledger.ChargeRecord)[0].Body, &body); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the posting in its record", body.Posting, posting.ID)
	b.verified()
}

// processes are the ledger, and another one's where the store can have several.
func (b *bench) processes() []*ledger.Ledger {
	b.t.Helper()
	if !b.backend.Durable {
		return []*ledger.Ledger{b.ledger}
	}
	other, err := openLedger(b.Clock, b.backend.Open(b.t), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := other.Close(); err != nil {
			b.t.Errorf("close: %v", err)
		}
	})
	return []*ledger.Ledger{b.ledger, other}
}

// postsOnceAtOnce: whoever posts, and however many.
func postsOnceAtOnce(t *testing.T, b *bench) {
	ledgers := b.processes()
	const callers, postings = 8, 10
	for range postings {
		posting := named()
		answers := make(chan error, callers)
		for i := range callers {
			go func() { answers <- ledgers[i%len(ledgers)].Post(ctx, posting) }()
		}
		for range callers {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
	}
	b.wantUsed(aliceTokens, 10*postings)
	b.wantUsed(aliceUSD, 500*postings)
	b.verified()
}

// prunesPostings: what bears an id goes with its record, and is made again from then on.
func prunesPostings(t *testing.T, b *bench) {
	posting := named()
	again := func() {
		t.Helper()
		if err := b.ledger.Post(ctx, posting); err != nil {
			t.Fatal(err)
		}
	}
	again()
	b.Advance(old - time.Hour)
	b.post(1)
	wantEqual(t, "pruned, and it is too young", b.prune().Records, 0)
	again()
	b.wantUsed(aliceTokens, 11)
	b.Advance(2 * time.Hour)
	wantEqual(t, "records", b.prune().Records, 1)
	again()
	b.wantUsed(aliceTokens, 21)
	b.verified()
}

// toldUSD is an admission without a price, that holds so many nano-USD; of none, it holds as much as it takes.
func toldUSD(held *int64) ledger.Admission {
	a := tokens(100, 1_000_000)
	a.Source, a.Provider, a.Reserve.NanoUSD = "one", "p", held
	a.Claims = append(a.Claims, limited(aliceUSD, 1_000_000))
	return a
}

func chargesToldCosts(t *testing.T, b *bench) {
	settle := func(a ledger.Admission, c ledger.Consumption) ledger.Charge {
		t.Helper()
		hold := b.admit(a)
		charge, err := b.ledger.Settle(ctx, ending(hold), c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := b.ledger.Settle(ctx, ending(hold), c)
		wantEqual(t, "the same settlement again", again, charge)
		wantEqual(t, "its error", err, nil)
		other := c
		other.NanoUSD = amount(*c.NanoUSD + 1)
		_, err = b.ledger.Settle(ctx, ending(hold), other)
		wantError(t, "another cost", err, ledger.ErrState)
		return charge
	}
	used := &ledger.Usage{Output: 40}
	wantEqual(t, "charge", settle(toldUSD(amount(1000)), ledger.Consumption{Usage: used, NanoUSD: amount(700)}), ledger.Charge{Tokens: 40, NanoUSD: 700})
	wantEqual(t, "more than was held", settle(toldUSD(amount(1000)), ledger.Consumption{Usage: used, NanoUSD: amount(1001)}),
		ledger.Charge{Tokens: 40, NanoUSD: 1001, Overage: true})
	wantEqual(t, "an estimate", settle(toldUSD(amount(1000)), ledger.Consumption{Usage: used, NanoUSD: amount(1001), Estimated: true}),
		ledger.Charge{Tokens: 40, NanoUSD: 1000, Estimated: true})
	wantEqual(t, "of what is not bounded", settle(toldUSD(nil), ledger.Consumption{Usage: used, NanoUSD: amount(5000)}),
		ledger.Charge{Tokens: 40, NanoUSD: 5000})
	wantEqual(t, "nothing", settle(toldUSD(nil), ledger.Consumption{Usage: used, NanoUSD: amount(0)}), ledger.Charge{Tokens: 40})
	b.want(aliceUSD, 7701, 0)
	b.want(aliceTokens, 200, 0)

	// A late settlement lowers the charge to it; a failover charges what is told of the attempt before.
	late := b.admit(toldUSD(amount(1000)))
	b.Advance(ttl)
	b.touch()
	b.want(aliceUSD, 8701, 0)
	charge, err := b.ledger.Settle(ctx, ending(late), ledger.Consumption{Usage: used, NanoUSD: amount(300)})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "late charge", charge, ledger.Charge{Tokens: 40, NanoUSD: 300, UnknownUsage: true})
	call := newCall()
	first, second := toldUSD(amount(1000)), toldUSD(nil)
	first.Call, second.Call = call, call
	first.Decision, second.Decision = []byte(`{}`), []byte(`{}`)
	hold := b.admit(first)
	second.Replaces = &ledger.Replacement{
		Ending: ledger.Ending{Hold: hold.ID, Token: hold.Token}, Consumption: &ledger.Consumption{Usage: used, NanoUSD: amount(200)},
	}
	replaced := b.admit(second)
	wantEqual(t, "charge of what was replaced", replaced.Replaced, ledger.Charge{Tokens: 40, NanoUSD: 200})
	b.release(replaced)
	b.want(aliceUSD, 8201, 0)

	spendings, err := ledger.Spendings(ctx, b.ledger.Store(), b.Now().Add(-time.Hour), b.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, spending := range spendings {
		sum += spending.NanoUSD
	}
	wantEqual(t, "spent", sum, 8201)
	b.verified()
}

func badCosts(t *testing.T, b *bench) {
	priced := toldUSD(amount(1000))
	priced.Price = &price
	pricedHold, hold := b.admit(priced), b.admit(toldUSD(amount(1000)))
	used := &ledger.Usage{Output: 1}
	for name, c := range map[string]ledger.Consumption{
		"a cost below 0":     {Usage: used, NanoUSD: amount(-1)},
		"a cost beyond 2^62": {Usage: used, NanoUSD: amount(1<<62 + 1)},
		"a cost of no usage": {NanoUSD: amount(1)},
	} {
		_, err := b.ledger.Settle(ctx, ending(hold), c)
		wantError(t, name, err, ledger.ErrInvalid)
		next := toldUSD(nil)
		next.Replaces = &ledger.Replacement{Ending: ending(hold), Consumption: &c}
		_, err = b.ledger.Admit(ctx, next)
		wantError(t, name+" of what is replaced", err, ledger.ErrInvalid)
	}
	told := ledger.Consumption{Usage: used, NanoUSD: amount(5)}
	next := toldUSD(nil)
	next.Replaces = &ledger.Replacement{Ending: ending(pricedHold), Consumption: &told}
	_, err := b.ledger.Admit(ctx, next)
	wantError(t, "a cost of what has a price, and is replaced", err, ledger.ErrInvalid)
	_, err = b.ledger.Settle(ctx, ending(pricedHold), told)
	wantError(t, "a cost of what has a price", err, ledger.ErrInvalid)
	b.want(aliceUSD, 0, 2000)
	b.settle(pricedHold, ledger.Usage{})
	b.release(hold)
	b.want(aliceUSD, 0, 0)
	b.verified()
}
