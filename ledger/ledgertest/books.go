package ledgertest

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// amendment is a new one.
func amendment() ledger.Amendment {
	return ledger.Amendment{ID: newID(), Reason: "an invoice says otherwise", Actor: "root"}
}

// verified fails unless the books are true, and returns what was looked at.
func (b *bench) verified() ledger.Verification {
	b.t.Helper()
	report, err := ledger.Verify(ctx, b.ledger.Store())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, difference := range report.Differences {
		b.t.Error(difference)
	}
	if b.t.Failed() {
		b.t.FailNow()
	}
	return report
}

func (b *bench) reset(accounts ...ledger.Account) {
	b.t.Helper()
	if err := b.ledger.Reset(ctx, amendment(), accounts); err != nil {
		b.t.Fatalf("reset: %v", err)
	}
}

func (b *bench) post(n int64) {
	b.t.Helper()
	if err := b.ledger.Post(ctx, ledger.Posting{Accounts: []ledger.Account{aliceTokens}, Usage: ledger.Usage{Output: n}}); err != nil {
		b.t.Fatalf("post: %v", err)
	}
}

// everyWindow has a limit in each kind of window.
var everyWindow = []ledger.Limit{
	{Window: day, Max: 1 << 40}, {Window: ledger.Rolling{Length: 5 * time.Hour}, Max: 1 << 40},
	{Window: ledger.Rolling{Length: ledger.LengthMax}, Max: 1 << 40}, {Window: ledger.Month{Zone: "Asia/Tokyo"}, Max: 1 << 40},
}

// wantEverywhere checks what is used in every kind of window, and what is held.
func (b *bench) wantEverywhere(used, held int64) {
	b.t.Helper()
	balances, err := b.ledger.Read(ctx, []ledger.Claim{{Account: aliceTokens, Limits: everyWindow}})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, balance := range balances {
		if balance.Used != used || balance.Held != held {
			b.t.Fatalf("%s: used %d, held %d; want %d and %d", balance.Limit.Window, balance.Used, balance.Held, used, held)
		}
	}
}

// records are those of a kind, of all streams.
func (b *bench) records(kind ledger.Kind) (found []ledger.Record) {
	b.t.Helper()
	streams, err := b.ledger.Store().Streams(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, stream := range streams {
		records, err := b.ledger.Store().Records(ctx, stream.Writer, 0, 10_000)
		if err != nil {
			b.t.Fatal(err)
		}
		found = append(found, slices.DeleteFunc(records, func(r ledger.Record) bool { return r.Kind != kind })...)
	}
	return found
}

func resets(t *testing.T, b *bench) {
	a := tokens(100, 1<<40)
	a.Claims[0].Limits = everyWindow
	b.settle(b.admit(a), ledger.Usage{Output: 70})
	expiring := b.admit(tokens(20, 1000))
	b.Advance(ttl)
	b.touch()
	held := tokens(30, 1<<40)
	held.Claims[0].Limits = everyWindow
	hold := b.admit(held)
	b.wantEverywhere(90, 30)
	b.reset(aliceTokens)
	b.wantEverywhere(0, 30)                                                             // what is held stays
	wantEqual(t, "retry after", b.denied(tokens(71, 100)).RetryAfter, 24*time.Hour-ttl) // the window is open still
	b.settle(hold, ledger.Usage{Output: 25})
	b.wantEverywhere(25, 0)
	b.settle(expiring, ledger.Usage{Output: 1}) // a refund of what was reset changes no window
	b.wantEverywhere(25, 0)
	b.Advance(5 * time.Hour)
	b.post(3)
	b.denied(tokens(973, 1000))
	b.admit(tokens(972, 1000)) // exactly what is left

	row, _, err := ledger.ReadAccount(ctx, b.ledger.Store(), aliceTokens)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "used in all", row.Used, 90+25+3) // nothing is erased
	records := b.records(ledger.ResetRecord)
	wantEqual(t, "records of resets", len(records), 1)
	var body ledger.ResetBody
	if err := json.Unmarshal(records[0].Body, &body); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "windows count from", body.Accounts[aliceTokens], 90)
	wantEqual(t, "reason", body.Reason, amendment().Reason)
	wantEqual(t, "actor", body.Actor, "root")
	b.verified()
}

func corrects(t *testing.T, b *bench) {
	a := tokens(100, 1<<40)
	a.Price, a.Reserve.NanoUSD = &price, amount(10_000_000)
	a.Claims = append(a.Claims, limited(aliceUSD, 1<<40), limited(taskTokens, 1<<40))
	first := b.admit(a)
	b.settle(first, ledger.Usage{Output: 50}) // for 500,000 nano-USD
	b.Advance(time.Hour)
	b.post(7)
	take := func(hold uuid.UUID, tokens, nano int64) error {
		return b.ledger.Correct(ctx, ledger.Correction{Amendment: amendment(), Hold: hold, Tokens: -tokens, NanoUSD: -nano})
	}
	for _, step := range []error{take(first.ID, 20, 100), take(first.ID, 30, 0)} {
		if step != nil {
			t.Fatal(step)
		}
	}
	wantError(t, "more than what is left", take(first.ID, 1, 0), ledger.ErrInvalid)
	wantError(t, "one unit more than what is left", take(first.ID, 0, 499_901), ledger.ErrInvalid)
	wantError(t, "an unknown hold", take(newID(), 1, 0), ledger.ErrState)
	live := b.admit(tokens(5, 1<<40))
	wantError(t, "a live hold", take(live.ID, 1, 0), ledger.ErrState)
	b.release(live)
	wantError(t, "a hold that was released", take(live.ID, 1, 0), ledger.ErrState)
	b.want(aliceTokens, 7, 0)
	b.want(taskTokens, 0, 0)
	b.want(aliceUSD, 499_900, 0)
	further := ledger.Correction{Amendment: amendment(), Accounts: []ledger.Account{aliceTokens, aliceUSD}, Tokens: 4, NanoUSD: 100}
	if err := b.ledger.Correct(ctx, further); err != nil {
		t.Fatal(err)
	}
	b.want(aliceTokens, 11, 0)
	b.want(aliceUSD, 500_000, 0)
	// What was taken back leaves a window together with its charge: nothing is lent meanwhile.
	rolling := []ledger.Claim{{Account: aliceTokens, Limits: []ledger.Limit{{Window: ledger.Rolling{Length: 5 * time.Hour}, Max: 100}}}}
	for _, step := range []struct {
		after time.Duration
		used  int64
	}{{0, 11}, {4 * time.Hour, 11}, {time.Hour, 0}} {
		b.Advance(step.after)
		balances, err := b.ledger.Read(ctx, rolling)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "used in 5 hours", balances[0].Used, step.used)
	}
	// A person has the last word: no late settlement lowers a charge that was corrected.
	late := b.admit(tokens(100, 1<<40))
	b.Advance(ttl)
	b.touch()
	if err := take(late.ID, 10, 0); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the charge of a late settlement", b.settle(late, ledger.Usage{Output: 1}).Tokens, 90)
	wantEqual(t, "records of corrections", len(b.records(ledger.CorrectionRecord)), 4)
	b.verified()
}

func amends(t *testing.T, b *bench) {
	first := b.admit(tokens(100, 1000))
	b.settle(first, ledger.Usage{Output: 50})
	reset, back, further := amendment(), amendment(), amendment()
	takeBack := ledger.Correction{Amendment: back, Hold: first.ID, Tokens: -10}
	charge := ledger.Correction{Amendment: further, Accounts: []ledger.Account{aliceTokens}, Tokens: 10}
	for range 2 { // the second time changes nothing
		for _, err := range []error{
			b.ledger.Correct(ctx, takeBack), b.ledger.Reset(ctx, reset, []ledger.Account{aliceTokens}), b.ledger.Correct(ctx, charge),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		b.want(aliceTokens, 10, 0)
	}
	takeBack.Tokens--
	wantError(t, "another correction of the same id", b.ledger.Correct(ctx, takeBack), ledger.ErrState)
	wantError(t, "a reset by the id of a correction", b.ledger.Reset(ctx, back, []ledger.Account{aliceTokens}), ledger.ErrState)
	wantError(t, "a reset of others by the same id", b.ledger.Reset(ctx, reset, []ledger.Account{aliceUSD}), ledger.ErrState)
	wantError(t, "a reset of an account that is unknown", b.ledger.Reset(ctx, amendment(), []ledger.Account{aliceTokens, taskTokens}), ledger.ErrNotFound)
	for name, edit := range map[string]func(*ledger.Amendment){
		"no id":                func(a *ledger.Amendment) { a.ID = uuid.Nil },
		"no reason":            func(a *ledger.Amendment) { a.Reason = " " },
		"no actor":             func(a *ledger.Amendment) { a.Actor = "" },
		"a reason of lines":    func(a *ledger.Amendment) { a.Reason = "one\ntwo" },
		"a reason that is not": func(a *ledger.Amendment) { a.Reason = "\xff" },
		"a very long reason":   func(a *ledger.Amendment) { a.Reason = strings.Repeat("x", 1001) },
		"a very long actor":    func(a *ledger.Amendment) { a.Actor = strings.Repeat("x", 201) },
	} {
		wrong := amendment()
		edit(&wrong)
		wantError(t, name, b.ledger.Reset(ctx, wrong, []ledger.Account{aliceTokens}), ledger.ErrInvalid)
		charge.Amendment = wrong
		wantError(t, name, b.ledger.Correct(ctx, charge), ledger.ErrInvalid)
	}
	wantError(t, "a reset of nothing", b.ledger.Reset(ctx, amendment(), nil), ledger.ErrInvalid)
	for name, wrong := range map[string]ledger.Correction{
		"nothing":                   {Accounts: []ledger.Account{aliceTokens}},
		"more and less":             {Accounts: []ledger.Account{aliceTokens}, Tokens: 1, NanoUSD: -1},
		"taking back of no hold":    {Tokens: -1},
		"taking back of an account": {Tokens: -1, Accounts: []ledger.Account{aliceTokens}},
		"charging a hold":           {Tokens: 1, Hold: first.ID},
		"charging nobody":           {Tokens: 1},
		"an account twice":          {Tokens: 1, Accounts: []ledger.Account{aliceTokens, aliceTokens}},
		"too many tokens":           {Tokens: 1 << 53, Accounts: []ledger.Account{aliceTokens}},
		"the least number":          {Tokens: -1 << 63, Hold: first.ID},
	} {
		wrong.Amendment = amendment()
		wantError(t, name, b.ledger.Correct(ctx, wrong), ledger.ErrInvalid)
	}
	b.want(aliceTokens, 10, 0)
	b.verified()
}

// old is more than what has to be kept.
const old = ledger.PruneAgeMin + time.Hour

func (b *bench) prune(sinks ...string) ledger.PruneReport {
	b.t.Helper()
	pruning := ledger.Pruning{Reason: "old", Actor: "root", OlderThan: old, Sinks: sinks, DryRun: true}
	dry, err := b.ledger.Prune(ctx, pruning)
	if err != nil {
		b.t.Fatal(err)
	}
	pruning.DryRun = false
	report, err := b.ledger.Prune(ctx, pruning)
	if err != nil {
		b.t.Fatal(err)
	}
	b.verified()
	if len(report.Behind) > 0 && dry.Records >= report.Records {
		return report
	}
	if dry.Activations != report.Activations || dry.Records != report.Records || dry.Holds != report.Holds || dry.Charges != report.Charges || dry.Calls != report.Calls {
		b.t.Fatalf("a dry run says %+v, it was %+v", dry, report)
	}
	return report
}

func prunes(t *testing.T, b *bench) {
	finished, denied := newCall(), newCall()
	finished.IdempotencyKey = "key"
	b.settle(b.admit(forCall(finished, "one")), ledger.Usage{Output: 10}) // 3 records
	if err := b.ledger.Refuse(ctx, denied, []byte(`{}`)); err != nil {    // the 4th
		t.Fatal(err)
	}
	b.reset(aliceTokens)
	lowered := b.admit(tokens(40, 1<<40))
	b.settle(lowered, ledger.Usage{Output: 40}) // 2 more
	takeBack := ledger.Correction{Amendment: amendment(), Hold: lowered.ID, Tokens: -15}
	if err := b.ledger.Correct(ctx, takeBack); err != nil {
		t.Fatal(err)
	}
	b.post(5)
	b.Advance(old)
	a := tokens(100, 1<<40)
	a.Claims[0].Limits = everyWindow
	b.settle(b.admit(a), ledger.Usage{Output: 3})
	b.wantEverywhere(3, 0)
	b.Advance(time.Microsecond) // what is as old as that stays: it is a microsecond older
	report := b.prune()
	wantEqual(t, "records", report.Records, 9)
	wantEqual(t, "calls", report.Calls, 2)
	wantEqual(t, "holds", report.Holds, 2)
	wantEqual(t, "charges", report.Charges, 3)
	b.wantEverywhere(3, 0)
	for _, call := range []uuid.UUID{finished.ID, denied.ID} {
		_, err := b.ledger.Store().Call(ctx, call)
		wantError(t, "a call that was pruned", err, ledger.ErrNotFound)
	}
	takeBack.Amendment = amendment()
	wantError(t, "correcting what was pruned", b.ledger.Correct(ctx, takeBack), ledger.ErrState)
	records := b.records(ledger.ClosingRecord)
	wantEqual(t, "closing records", len(records), 1)
	var body ledger.ClosingBody
	if err := json.Unmarshal(records[0].Body, &body); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "closed", body.Accounts[aliceTokens], ledger.Closed{Used: 55, Refunds: 15, Refunded: 50, Floor: 55})
	wantEqual(t, "why", body.Reason, "old")

	// The closing record is pruned in its turn, and its balances go into the next.
	b.Advance(old + time.Microsecond)
	b.post(1)
	wantEqual(t, "records pruned later", b.prune().Records, 3)
	b.wantEverywhere(1, 0)
	wantEqual(t, "closing records", len(b.records(ledger.ClosingRecord)), 1)
	b.settle(b.admit(forCall(newCall(), "one")), ledger.Usage{Output: 1})
	row, _, err := ledger.ReadAccount(ctx, b.ledger.Store(), aliceTokens)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "used in all", row.Used, 60)
	b.verified()
	_, err = b.ledger.Prune(ctx, ledger.Pruning{Reason: "old", Actor: "root", OlderThan: ledger.PruneAgeMin - 1})
	wantError(t, "pruning what a window reaches", err, ledger.ErrInvalid)
	_, err = b.ledger.Prune(ctx, ledger.Pruning{Actor: "root", OlderThan: old})
	wantError(t, "pruning without a reason", err, ledger.ErrInvalid)
}

func keepsWhatIsNeeded(t *testing.T, b *bench) {
	b.settle(b.admit(forCall(newCall(), "one")), ledger.Usage{Output: 10}) // records 1 to 3
	long := forCall(newCall(), "one")
	long.TTL = 2 * old
	running := b.admit(long) // 4
	b.post(1)                // 5
	b.Advance(old + time.Hour)
	b.post(2) // 6
	streams, err := b.ledger.Store().Streams(ctx)
	if err != nil {
		t.Fatal(err)
	}
	report := b.prune("file")
	wantEqual(t, "pruned, and a sink has read nothing", report.Records, 0)
	wantEqual(t, "the sink", strings.Join(report.Behind, " "), "file")
	if err := b.ledger.Store().SetCursor(ctx, "file", streams[0].Writer, 0, 2); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "pruned, and the sink has read a charge without its outcome", b.prune().Records, 1)
	if err := b.ledger.Store().SetCursor(ctx, "file", streams[0].Writer, 2, 6); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "pruned up to the call that runs", b.prune().Records, 2)
	b.settle(running, ledger.Usage{Output: 3})
	wantEqual(t, "pruned, and the call has just ended", b.prune().Records, 0)
	b.Advance(old + time.Hour)
	report = b.prune()
	wantEqual(t, "pruned up to what was read", report.Records, 3)
	wantEqual(t, "sinks behind", len(report.Behind), 1)
	gone, err := b.ledger.Prune(ctx, ledger.Pruning{Reason: "old", Actor: "root", OlderThan: old, Gone: []string{"file"}})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "pruned, and the sink is gone", gone.Records, 4) // two closing records, a charge, an outcome
	// The newest record stays, so that numbers go on.
	after, err := b.ledger.Store().Streams(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(after) != 1 || after[0].Last <= streams[0].Last {
		t.Fatalf("streams: %+v, before %+v", after, streams)
	}
	b.verified()
}

// shared is a store that another ledger closes.
type shared struct{ ledger.Store }

func (shared) Close() error { return nil }

func prunesStreams(t *testing.T, b *bench) {
	other, err := openLedger(b.Clock, shared{b.ledger.Store()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }() // the store is the bench's
	touch := func() {
		t.Helper()
		if err := other.Refuse(ctx, nil, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	b.touch()
	one := b.streams()[0].Writer
	lowered := b.admit(tokens(50, 1000))
	b.Advance(ttl)
	b.touch() // it expires here, and is refunded there
	if _, err := other.Settle(ctx, ending(lowered), ledger.Consumption{Usage: &ledger.Usage{Output: 1}}); err != nil {
		t.Fatal(err)
	}
	spanning := forCall(newCall(), "one")
	b.admit(spanning)
	b.Advance(ttl)
	touch() // it was admitted here, and expires there
	b.Advance(old + time.Microsecond)
	b.touch()
	touch()
	if err := b.ledger.Store().SetCursor(ctx, "file", b.streams()[1].Writer, 0, 100); err != nil {
		t.Fatal(err)
	}
	// A refund stays as long as its charge: here all that came after it does, too.
	wantEqual(t, "pruned of the other's stream", b.prune().Records, 0)
	if err := b.ledger.Store().SetCursor(ctx, "file", one, 0, 3); err != nil {
		t.Fatal(err)
	}
	// The charge goes, with the record before it and its outcome; then the refund, the end of a call whose decision stays, a touch.
	report := b.prune()
	wantEqual(t, "pruned when the charge was read", report.Records, 3+4)
	wantEqual(t, "calls", report.Calls, 1)
	_, err = b.ledger.Store().Call(ctx, spanning.Call.ID)
	wantError(t, "the call that ended in the other's stream", err, ledger.ErrNotFound)
	wantEqual(t, "decisions that stay", len(b.records(ledger.DecisionRecord)), 4)
	if err := b.ledger.Store().SetCursor(ctx, "file", one, 3, 100); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "pruned when all was read", b.prune().Records, 2)
}

func (b *bench) streams() []ledger.Stream {
	b.t.Helper()
	streams, err := b.ledger.Store().Streams(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	return streams
}

func verifiesLive(t *testing.T, b *bench) {
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for i := range int64(40) {
				a := forCall(newCall(), "one")
				a.Claims[0].Limits[0].Max = 1 << 40
				hold, err := b.ledger.Admit(ctx, a)
				if err == nil && i%3 > 0 { // some go on
					_, err = b.ledger.Settle(ctx, ending(hold), ledger.Consumption{Usage: &ledger.Usage{Output: i}})
				}
				if err != nil {
					t.Errorf("while the books are verified: %v", err)
				}
			}
		})
	}
	for range 5 {
		b.verified()
	}
	clients.Wait()
	wantEqual(t, "live holds", b.verified().Live, 4*14)
}

func administrates(t *testing.T, b *bench) {
	if !b.backend.Durable {
		return // nobody else can open it
	}
	due := b.admit(tokens(50, 1<<40))
	b.settle(b.admit(tokens(10, 1<<40)), ledger.Usage{Output: 10})
	b.Advance(ttl)
	other, err := ledger.Open(ledger.Config{Store: b.backend.Open(t), Elapsed: b.Elapsed, SweepEvery: time.Hour, LeaveDue: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Reset(ctx, amendment(), []ledger.Account{aliceTokens}); err != nil {
		t.Fatal(err)
	}
	row, holds, err := ledger.ReadAccount(ctx, b.ledger.Store(), aliceTokens)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "windows count from", row.Floor, 10)
	wantEqual(t, "live holds, as a read counts them", len(holds), 0)
	b.touch() // the ledger expires it
	wantEqual(t, "expired", b.expiries[0].Hold, due.ID)
	b.want(aliceTokens, 50, 0)

	var busy sync.WaitGroup
	busy.Go(func() {
		for range 40 {
			if err := other.Reset(ctx, amendment(), []ledger.Account{aliceTokens}); err != nil {
				t.Errorf("a reset beside calls: %v", err)
			}
		}
	})
	for range 40 {
		b.settle(b.admit(tokens(10, 1<<40)), ledger.Usage{Output: 10})
	}
	busy.Wait()
	b.reset(aliceTokens)
	b.want(aliceTokens, 0, 0)
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Audit(ctx, b.ledger.Store()); err != nil {
		t.Fatal(err)
	}
}
