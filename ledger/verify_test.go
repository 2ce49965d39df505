package ledger_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
)

var (
	aliceTokens = ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.Tokens}
	aliceUSD    = ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.USD}
)

// tampered is a store that shows something else than it holds.
type tampered struct {
	ledger.Store
	records  func([]ledger.Record) []ledger.Record
	rows     func(*ledger.Rows)
	charges  func([]ledger.ChargeRow) []ledger.ChargeRow
	calls    func(*ledger.Call)
	lastPlus int64 // more records than the streams have
}

func (s tampered) View(ctx context.Context, look func(ledger.View) error) error {
	return s.Store.View(ctx, func(view ledger.View) error { return look(tamperedView{view, s}) })
}

type tamperedView struct {
	ledger.View
	store tampered
}

// all is a bound that no test reaches.
const all = 1000

func (v tamperedView) Streams(ctx context.Context) ([]ledger.Stream, error) {
	streams, err := v.View.Streams(ctx)
	for i := range streams {
		records, err := v.Records(ctx, streams[i].Writer, 0, all)
		if err != nil || len(records) == 0 {
			return streams, err
		}
		streams[i].Last = records[len(records)-1].Number + v.store.lastPlus
	}
	return streams, err
}

func (v tamperedView) Records(ctx context.Context, writer uuid.UUID, after int64, limit int) ([]ledger.Record, error) {
	records, err := v.View.Records(ctx, writer, 0, all)
	if v.store.records != nil {
		records = v.store.records(records)
	}
	records = slices.DeleteFunc(records, func(r ledger.Record) bool { return r.Number <= after })
	return records[:min(len(records), limit)], err
}

func (v tamperedView) Load(ctx context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	rows, err := v.View.Load(ctx, keys)
	if v.store.rows != nil {
		v.store.rows(rows)
	}
	return rows, err
}

func (v tamperedView) Charges(ctx context.Context, account ledger.Account, after int64, _ int) ([]ledger.ChargeRow, error) {
	charges, err := v.View.Charges(ctx, account, 0, all)
	if v.store.charges != nil && account == aliceTokens {
		charges = v.store.charges(charges)
	}
	return slices.DeleteFunc(charges, func(c ledger.ChargeRow) bool { return c.Total <= after }), err
}

func (v tamperedView) Holds(ctx context.Context, after uuid.UUID, limit int) ([]ledger.HoldRow, error) {
	holds, err := v.View.Holds(ctx, after, limit)
	if v.store.rows != nil {
		rows := &ledger.Rows{Holds: map[uuid.UUID]ledger.HoldRow{}}
		for _, hold := range holds {
			rows.Holds[hold.ID] = hold
		}
		v.store.rows(rows)
		for i := range holds {
			holds[i] = rows.Holds[holds[i].ID]
		}
		holds = slices.DeleteFunc(holds, func(h ledger.HoldRow) bool { return h.ID == uuid.Nil })
	}
	return holds, err
}

func (v tamperedView) Calls(ctx context.Context, after uuid.UUID, limit int) ([]ledger.Call, error) {
	calls, err := v.View.Calls(ctx, after, limit)
	for i := range calls {
		if v.store.calls != nil {
			v.store.calls(&calls[i])
		}
	}
	return calls, err
}

// books is a store on which calls have ended in every way: settled, estimated, released and replaced, expired, expired and
// refunded, denied; a charge without a hold; corrections and a reset. The records of each are numbered in this order.
func books(t *testing.T) ledger.Store {
	clock := ledgertest.NewClock()
	store := memory.New(clock.Now)
	l, err := ledger.Open(ledger.Config{Store: store, TTL: time.Minute, LateRefund: time.Hour, Elapsed: clock.Elapsed, SweepEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	call := func() *ledger.Call {
		return &ledger.Call{ID: uuid.Must(uuid.NewV7()), Owner: "alice", Model: "m", Protocol: "p"}
	}
	admit := func(call *ledger.Call, replaces *ledger.Replacement) ledger.Hold {
		t.Helper()
		reserved, nano := int64(100), int64(200)
		hold, err := l.Admit(ctx, ledger.Admission{
			Hold: uuid.Must(uuid.NewV7()), Call: call, Replaces: replaces, Source: "s", Decision: []byte(`{}`),
			Price:   &ledger.Price{Rates: ledger.Rates{Output: 2000}},
			Reserve: ledger.Reserve{Tokens: &reserved, NanoUSD: &nano},
			Claims: []ledger.Claim{
				{Account: aliceTokens, Limits: []ledger.Limit{
					{Window: ledger.Fixed{Length: 24 * time.Hour}, Max: 1000}, {Window: ledger.Month{Zone: "Europe/Berlin"}, Max: 1000},
				}},
				{Account: aliceUSD},
			},
		})
		check(err)
		return hold
	}
	ending := func(hold ledger.Hold, state ledger.State) ledger.Ending {
		return ledger.Ending{Hold: hold.ID, Token: hold.Token, State: state, Outcome: ledger.Outcome{Result: ledger.Success}}
	}
	settle := func(hold ledger.Hold, consumption ledger.Consumption) {
		t.Helper()
		_, err := l.Settle(ctx, ending(hold, ledger.Completed), consumption)
		check(err)
	}
	settled := admit(call(), nil)
	settle(settled, ledger.Consumption{Usage: &ledger.Usage{Output: 30}}) // records 1 to 3
	settle(admit(call(), nil), ledger.Consumption{Usage: &ledger.Usage{Output: 500}, Estimated: true})
	failing := call()
	first := admit(failing, nil) // 7
	second := admit(failing, &ledger.Replacement{Ending: ending(first, "")})
	check(l.Release(ctx, ending(second, ledger.Failed))) // 10
	refunded := admit(call(), nil)                       // 11
	admit(call(), nil)
	clock.Advance(time.Minute)
	settle(refunded, ledger.Consumption{Usage: &ledger.Usage{Output: 1}}) // both expire first, 13 to 16; the refund is 17
	check(l.Refuse(ctx, call(), []byte(`{}`)))
	check(l.Post(ctx, ledger.Posting{Accounts: []ledger.Account{aliceTokens}, Usage: ledger.Usage{Output: 9}}))
	amendment := func() ledger.Amendment {
		return ledger.Amendment{ID: uuid.Must(uuid.NewV7()), Reason: "a test", Actor: "root"}
	}
	check(l.Correct(ctx, ledger.Correction{Amendment: amendment(), Hold: settled.ID, Tokens: -10, NanoUSD: -20})) // 20
	check(l.Correct(ctx, ledger.Correction{Amendment: amendment(), Accounts: []ledger.Account{aliceTokens}, Tokens: 5}))
	check(l.Reset(ctx, amendment(), []ledger.Account{aliceTokens})) // at 245
	check(l.Post(ctx, ledger.Posting{Accounts: []ledger.Account{aliceTokens}, Usage: ledger.Usage{Output: 6}}))
	check(l.Close()) // 23 records
	return store
}

func TestTrueBooksHaveNoDifference(t *testing.T) {
	store := books(t)
	report, err := ledger.Verify(ctx, tampered{Store: store})
	if err != nil || len(report.Differences) > 0 {
		t.Fatalf("%+v, %v", report, err)
	}
	if passes, err := ledger.VerifyIn(ctx, store, 1); err != nil || !equal(passes, report) || len(passes.Differences) > 0 {
		t.Errorf("in passes: %+v, %v", passes, err)
	}
	want := ledger.Verification{Streams: 1, Records: 23, Accounts: 2, Charges: 11, Calls: 6, Holds: 6}
	if !equal(report, want) {
		t.Errorf("got %+v, want %+v", report, want)
	}
	row, _, err := ledger.ReadAccount(ctx, store, aliceTokens)
	if err != nil || row.Used-row.Refunds != 20+100+1+100+9+5+6 || row.Floor != 30+100+100+100+9+5 {
		t.Errorf("used %d, floor %d, %v", row.Used-row.Refunds, row.Floor, err)
	}
}

func equal(a, b ledger.Verification) bool {
	a.Differences, b.Differences = nil, nil
	x, _ := json.Marshal(a) // numbers always marshal
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

// without leaves out the record at a place, and numbers the rest as if it had never been.
func without(place int) func([]ledger.Record) []ledger.Record {
	return func(records []ledger.Record) []ledger.Record {
		return renumbered(slices.Delete(records, place, place+1))
	}
}

func twice(place int) func([]ledger.Record) []ledger.Record {
	return func(records []ledger.Record) []ledger.Record {
		return renumbered(slices.Insert(records, place, records[place]))
	}
}

func renumbered(records []ledger.Record) []ledger.Record {
	for i := range records {
		records[i].Number = int64(i + 1)
	}
	return records
}

// changed edits the body of the charge record at a place, changedOutcome that of the outcome record.
func changed(place int, edit func(*ledger.ChargeBody)) func([]ledger.Record) []ledger.Record {
	return changedBody(place, ledger.ChargeRecord, edit)
}

func changedOutcome(place int, edit func(*ledger.OutcomeBody)) func([]ledger.Record) []ledger.Record {
	return changedBody(place, ledger.OutcomeRecord, edit)
}

func changedBody[B any](place int, kind ledger.Kind, edit func(*B)) func([]ledger.Record) []ledger.Record {
	return func(records []ledger.Record) []ledger.Record {
		var body B
		if records[place].Kind != kind || json.Unmarshal(records[place].Body, &body) != nil {
			panic("no such record is there")
		}
		edit(&body)
		records[place].Body, _ = json.Marshal(body) // what was read can be written
		return records
	}
}

// editAccount edits the row of alice's tokens.
func editAccount(edit func(*ledger.AccountRow)) func(*ledger.Rows) {
	return func(rows *ledger.Rows) {
		if row, ok := rows.Accounts[aliceTokens]; ok {
			edit(&row)
			rows.Accounts[aliceTokens] = row
		}
	}
}

// editOpening edits the opening of the fixed window of alice's tokens.
func editOpening(edit func(*ledger.OpeningRow)) func(*ledger.Rows) {
	return editAccount(func(r *ledger.AccountRow) {
		opened := r.Openings[24*time.Hour]
		edit(&opened)
		r.Openings = map[time.Duration]ledger.OpeningRow{24 * time.Hour: opened}
	})
}

// editHold edits the rows of holds in a state.
func editHold(state ledger.HoldState, edit func(*ledger.HoldRow)) func(*ledger.Rows) {
	return func(rows *ledger.Rows) {
		for id, row := range rows.Holds {
			if row.State == state {
				edit(&row)
				rows.Holds[id] = row
			}
		}
	}
}

// editCharge edits the charge with a total.
func editCharge(total int64, edit func(*ledger.ChargeRow)) func([]ledger.ChargeRow) []ledger.ChargeRow {
	return func(charges []ledger.ChargeRow) []ledger.ChargeRow {
		at := slices.IndexFunc(charges, func(c ledger.ChargeRow) bool { return c.Total == total })
		edit(&charges[at])
		return charges
	}
}

// textOf is what was found, in an order that does not depend on that of the passes.
func textOf(report ledger.Verification) string {
	var lines []string
	for _, difference := range report.Differences {
		lines = append(lines, difference.String())
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestAHoldThatRunsHasNotEnded: whatever its row tells of an end is a difference.
func TestAHoldThatRunsHasNotEnded(t *testing.T) {
	store := memory.New(nil)
	l, err := ledger.Open(ledger.Config{Store: store})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	reserved := int64(100)
	admission := ledger.Admission{
		Hold: uuid.Must(uuid.NewV7()), Reserve: ledger.Reserve{Tokens: &reserved}, Claims: []ledger.Claim{{Account: aliceTokens}},
	}
	if _, err := l.Admit(ctx, admission); err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string]func(*ledger.HoldRow){
		"":                           func(*ledger.HoldRow) {},
		"hold of the outcome of":     func(h *ledger.HoldRow) { h.Outcome.Result = ledger.Success },
		"hold of the usage of":       func(h *ledger.HoldRow) { h.Usage = &ledger.Usage{Output: 1} },
		"charge of hold":             func(h *ledger.HoldRow) { h.Charge.Tokens = 1 },
		"charge of the charges of":   func(h *ledger.HoldRow) { h.Totals = map[ledger.Account]int64{aliceTokens: 1} },
		"hold of that something was": func(h *ledger.HoldRow) { h.Refunded = true },
	} {
		report, err := ledger.Verify(ctx, tampered{Store: store, rows: editHold(ledger.HoldLive, edit)})
		if err != nil || report.Live != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		if found := textOf(report); (found == "") != (want == "") || !strings.HasPrefix(found, want) {
			t.Errorf("want %q, got %s", want, found)
		}
	}
}

func TestVerifyFindsWhatIsWrong(t *testing.T) {
	const settled, estimated, released, expired, refund, denial, posted, takenBack, reset = 1, 4, 9, 12, 16, 17, 18, 19, 21 // places of records
	for name, test := range map[string]struct {
		store tampered
		want  string
	}{
		"a lost charge":                     {tampered{records: without(settled)}, "settled: want 1, got 0"},
		"a lost charge of an expiry":        {tampered{records: without(expired)}, "expired: want 1, got 0"},
		"a charge twice":                    {tampered{records: twice(settled)}, "settled: want 1, got 2"},
		"a refund twice":                    {tampered{records: twice(refund)}, "refunds of hold"},
		"a lost refund":                     {tampered{records: without(refund)}, "refunds of user/alice/tokens: want 10, got 109"},
		"a lost charge without a hold":      {tampered{records: without(posted)}, "used of user/alice/tokens: want 341, got 350"},
		"a charge without a hold twice":     {tampered{records: twice(posted)}, "used of user/alice/tokens: want 359, got 350"},
		"a lost outcome":                    {tampered{records: without(settled + 1)}, "the outcomes of hold"},
		"an outcome twice":                  {tampered{records: twice(settled + 1)}, "completed: want 1, got 2"},
		"a lost decision":                   {tampered{records: without(0)}, "completed: want at least 1, got 0"},
		"a lost decision of a failover":     {tampered{records: without(8)}, "failed: want at least 2, got 1"},
		"a lost decision of a denial":       {tampered{records: without(denial)}, "denied: want at least 1, got 0"},
		"a lost correction":                 {tampered{records: without(takenBack)}, "what is left of hold"},
		"a refund that stands in no record": {tampered{records: without(takenBack)}, "what was taken back of user/alice/tokens at 30: want 0, got 10"},
		"a floor that stands in no record":  {tampered{records: without(reset)}, "floor of user/alice/tokens: want 0, got 344"},
		"a charge of an account": {
			tampered{records: changed(settled, func(b *ledger.ChargeBody) { b.Accounts[aliceTokens]++ })}, "in user/alice/tokens: want 30, got 31"},
		"a charge of an account too many": {
			tampered{records: changed(settled, func(b *ledger.ChargeBody) {
				b.Accounts[ledger.Account{Scope: "user", ID: "eve", Unit: ledger.Tokens}] = 30
			})}, "used of user/eve/tokens: want 30, got no account"},
		"a charge too high": {tampered{records: changed(settled, func(b *ledger.ChargeBody) { b.Tokens++ })}, "want {Tokens:30 NanoUSD:60 NanoCredits:0 Estimated:false UnknownUsage:false Overage:false}, got {Tokens:31 NanoUSD:60 "},
		"another price": {
			tampered{records: changed(settled, func(b *ledger.ChargeBody) { b.Price.Output++ })}, "charge of the price of hold"},
		"another usage": {
			tampered{records: changed(settled, func(b *ledger.ChargeBody) { b.Usage.Output++ })}, "want {Tokens:31 NanoUSD:62 NanoCredits:0 Estimated:false UnknownUsage:false Overage:false}, got {Tokens:30 NanoUSD:60 "},
		"an estimate above what was held": {
			tampered{records: changed(estimated, func(b *ledger.ChargeBody) { b.NanoUSD = 1000 })}, "want {Tokens:100 NanoUSD:200 NanoCredits:0 Estimated:true UnknownUsage:false Overage:false}, got {Tokens:100 NanoUSD:1000 "},
		"a refund too high": {
			tampered{records: changed(refund, func(b *ledger.ChargeBody) { b.Accounts[aliceTokens]-- })}, "the refund of hold"},
		"a charge that names another": {
			tampered{records: changed(settled, func(b *ledger.ChargeBody) { b.Totals[aliceTokens]++ })}, "charge of the charges of hold"},
		"a gap": {tampered{records: func(records []ledger.Record) []ledger.Record {
			for i := range records[5:] {
				records[5+i].Number++
			}
			return records
		}}, "want 6, got 7"},
		"a stream that is cut":           {tampered{lastPlus: 2}, "numbering of the end of stream"},
		"a stream without its beginning": {tampered{records: func(records []ledger.Record) []ledger.Record { return records[3:] }}, "numbering of the beginning of stream"},
		"a call without end": {tampered{calls: func(c *ledger.Call) {
			if c.State == ledger.Completed {
				c.State, c.EndedAt = ledger.Held, time.Time{}
			}
		}}, "held: want 1, got 0"}, // a live hold
		"a call in another state": {tampered{calls: func(c *ledger.Call) {
			if c.State == ledger.Completed {
				c.State = ledger.Cancelled
			}
		}}, "want cancelled, got completed"},
		"another end of a call": {tampered{calls: func(c *ledger.Call) {
			if c.State == ledger.Completed {
				c.EndedAt = c.EndedAt.Add(time.Microsecond)
			}
		}}, "completed: want 2026-03-04T12:00:00Z, got 2026-03-04T12:00:00.000001Z"},
		"a denial that ended later": {tampered{calls: func(c *ledger.Call) {
			if c.State == ledger.Denied {
				c.EndedAt = c.EndedAt.Add(time.Microsecond)
			}
		}}, "denied: want 2026-03-04T12:01:00Z, got 2026-03-04T12:01:00.000001Z"},
		"a denial at another time": {tampered{calls: func(c *ledger.Call) {
			if c.State == ledger.Denied {
				c.CreatedAt, c.EndedAt = c.CreatedAt.Add(time.Second), c.EndedAt.Add(time.Second)
			}
		}}, "denied: want 2026-03-04T12:01:00Z, got 2026-03-04T12:01:01Z"},
		"a hold without end":   {tampered{rows: editHold(ledger.HoldReleased, func(h *ledger.HoldRow) { h.State = ledger.HoldLive })}, "live: want 0, got 1"},
		"a hold without a row": {tampered{rows: func(rows *ledger.Rows) { clear(rows.Holds) }}, "want the row of a hold in the journal, got none"},
		"another charge of a hold": {
			tampered{rows: editHold(ledger.HoldSettled, func(h *ledger.HoldRow) { h.Charge.Tokens++ })}, "want {Tokens:100 NanoUSD:200 NanoCredits:0 Estimated:true UnknownUsage:false Overage:false}, got {Tokens:101 NanoUSD:200 "},
		"another time of a hold": {
			tampered{rows: editHold(ledger.HoldExpired, func(h *ledger.HoldRow) { h.EndedAt = h.EndedAt.Add(time.Microsecond) })}, "hold of the time of the outcome"},
		"another usage of a hold": {
			tampered{rows: editHold(ledger.HoldSettled, func(h *ledger.HoldRow) { h.Usage = &ledger.Usage{Output: h.Usage.Output, Reasoning: 1} })},
			`"output":500,"reasoning":0}, got {"uncached_input":0,"cached_input":0,"cache_write_5m":0,"cache_write_1h":0,"output":500,"reasoning":1}`},
		"a usage of a hold that expired": {
			tampered{rows: editHold(ledger.HoldExpired, func(h *ledger.HoldRow) { h.Usage = &ledger.Usage{Output: 1} })}, `want unknown, got {"uncached_input":0,`},
		"no usage of a hold that was refunded": {
			tampered{rows: editHold(ledger.HoldExpired, func(h *ledger.HoldRow) { h.Usage = nil })}, `"output":1,"reasoning":0}, got unknown`},
		"another source of a hold": {
			tampered{rows: editHold(ledger.HoldReleased, func(h *ledger.HoldRow) { h.Source = "other" })}, "as its outcome tells: want \"s\", got \"other\""},
		"another source of a charge": {
			tampered{records: changed(settled, func(b *ledger.ChargeBody) { b.Source = "other" })}, "as its charge tells: want \"other\", got \"s\""},
		"another provider of a hold": {
			tampered{rows: editHold(ledger.HoldReleased, func(h *ledger.HoldRow) { h.Provider = "other" })}, "as its outcome tells: want \"\", got \"other\""},
		"another provider of a refund": {
			tampered{records: changed(refund, func(b *ledger.ChargeBody) { b.Provider = "other" })}, "as its refund tells: want \"other\", got \"\""},
		"another price of a refund": {
			tampered{records: changed(refund, func(b *ledger.ChargeBody) { b.Price.Output++ })}, "as its refund tells: want "},
		"a refund of another charge": {
			tampered{records: changed(refund, func(b *ledger.ChargeBody) { b.Totals[aliceTokens]++ })}, "as its refund tells: want map[user/alice/tokens:"},
		"a refund that was estimated": {
			tampered{records: changed(refund, func(b *ledger.ChargeBody) { b.Estimated = true })}, "charge of what is left of hold"},
		"a settled hold that is said to have expired": {
			tampered{rows: editHold(ledger.HoldSettled, func(h *ledger.HoldRow) { h.State = ledger.HoldExpired })}, "want settled, got expired"},
		"an expired hold that is said to be settled": {
			tampered{rows: editHold(ledger.HoldExpired, func(h *ledger.HoldRow) { h.State = ledger.HoldSettled })}, "want expired, got settled"},
		"a released hold that is said to be settled": {
			tampered{rows: editHold(ledger.HoldReleased, func(h *ledger.HoldRow) { h.State = ledger.HoldSettled })}, "want released, got settled"},
		"a refund of a hold that stands in no record": {
			tampered{rows: editHold(ledger.HoldSettled, func(h *ledger.HoldRow) { h.Refunded = true })}, "settled: want false, got true"},
		"a refund of what was released": {
			tampered{rows: editHold(ledger.HoldReleased, func(h *ledger.HoldRow) { h.Refunded = true })}, "released: want false, got true"},
		"a charge of what was released": {
			tampered{rows: editHold(ledger.HoldReleased, func(h *ledger.HoldRow) { h.Totals = map[ledger.Account]int64{aliceTokens: 30} })}, "released: want 0, got 1"},
		"a refund that the hold does not know": {
			tampered{rows: editHold(ledger.HoldExpired, func(h *ledger.HoldRow) { h.Refunded = false })}, "expired: want true, got false"},
		"another end of a hold": {
			tampered{records: changedOutcome(settled+1, func(b *ledger.OutcomeBody) { b.EndedAt++ })}, "hold of the end of hold"},
		"another admission of a hold": {
			tampered{rows: editHold(ledger.HoldSettled, func(h *ledger.HoldRow) { h.AdmittedAt = h.AdmittedAt.Add(time.Microsecond) })},
			"want 2026-03-04T12:00:00Z, got 2026-03-04T12:00:00.000001Z"},
		"an outcome with another source": {
			tampered{records: changedOutcome(settled+1, func(b *ledger.OutcomeBody) { b.Source = "other" })}, "charge of the source of the outcome of hold"},
		"an outcome with another provider": {
			tampered{records: changedOutcome(settled+1, func(b *ledger.OutcomeBody) { b.Provider = "other" })}, "charge of the provider of the outcome of hold"},
		"an outcome with another usage": {
			tampered{records: changedOutcome(settled+1, func(b *ledger.OutcomeBody) { b.Usage.Output++ })}, "charge of the usage of the outcome of hold"},
		"an outcome with other tokens": {
			tampered{records: changedOutcome(settled+1, func(b *ledger.OutcomeBody) { b.Tokens++ })}, "charge of the tokens of the outcome of hold"},
		"an outcome with other USD": {
			tampered{records: changedOutcome(settled+1, func(b *ledger.OutcomeBody) { b.USD = "0.5" })}, "charge of the USD of the outcome of hold"},
		"an outcome with other credits": {
			tampered{records: changedOutcome(settled+1, func(b *ledger.OutcomeBody) { b.Credits = "0.5" })}, "charge of the credits of the outcome of hold"},
		"an outcome with no estimate": {
			tampered{records: changedOutcome(settled+1, func(b *ledger.OutcomeBody) { b.Estimated = true })}, "charge of that it is estimated, of the outcome of hold"},
		"an outcome with no known usage": {
			tampered{records: changedOutcome(settled+1, func(b *ledger.OutcomeBody) { b.UnknownUsage = true })}, "charge of that the usage is unknown, of the outcome of hold"},
		"an outcome with overage": {
			tampered{records: changedOutcome(settled+1, func(b *ledger.OutcomeBody) { b.Overage = true })}, "charge of the overage of the outcome of hold"},
		"an outcome of a release that tells of a charge": {
			tampered{records: changedOutcome(released, func(b *ledger.OutcomeBody) { b.Tokens = 7 })}, "want 0, got 7"},
		"an outcome of an expiry that tells of a late settlement": {
			tampered{records: changedOutcome(expired+1, func(b *ledger.OutcomeBody) { b.Tokens = 1 })}, "want 100, got 1"},
		"a window that opened at a total that never was": {tampered{rows: editOpening(func(o *ledger.OpeningRow) { o.Total = 31 })},
			"window of the total at which fixed/24h of user/alice/tokens opened: want 30, got 31"},
		"a window that opened above all that was used": {tampered{rows: editOpening(func(o *ledger.OpeningRow) { o.Total = 351 })},
			"window of the total at which fixed/24h of user/alice/tokens opened: want 350, got 351"},
		"a window that leaves out a charge in it": {tampered{rows: editOpening(func(o *ledger.OpeningRow) { o.Total = 350 })},
			"window of the time of user/alice/tokens at 350, before fixed/24h opened: want not after 2026-03-04T12:00:00Z, got 2026-03-04T12:01:00Z"},
		"a window that opened after a charge in it": {tampered{rows: editOpening(func(o *ledger.OpeningRow) { o.At = o.At.Add(time.Second) })},
			"window of the time of user/alice/tokens at 30, in fixed/24h: want from 2026-03-04T12:00:01Z on, before 2026-03-05T12:00:01Z, got 2026-03-04T12:00:00Z"},
		"a window that closed before a charge in it": {tampered{rows: editOpening(func(o *ledger.OpeningRow) { o.At = o.At.Add(-24 * time.Hour) })},
			"window of the time of user/alice/tokens at 30, in fixed/24h: want from 2026-03-03T12:00:00Z on, before 2026-03-04T12:00:00Z, got 2026-03-04T12:00:00Z"},
		"a window that has yet to open": {tampered{rows: editOpening(func(o *ledger.OpeningRow) { o.At, o.Total = o.At.Add(time.Hour), 350 })},
			"window of the time at which fixed/24h of user/alice/tokens opened: want not after 2026-03-04T12:01:00Z, got 2026-03-04T13:00:00Z"},
		"a month that ends within": {tampered{rows: editAccount(func(r *ledger.AccountRow) { r.Month.Ends = r.Month.Ends.Add(-time.Hour) })},
			"window of the end of month/Europe/Berlin of user/alice/tokens: want 2026-03-31T22:00:00Z, got 2026-03-31T21:00:00Z"},
		"a month of another zone": {tampered{rows: editAccount(func(r *ledger.AccountRow) { r.Month.Zone = "UTC" })},
			"window of the end of month/UTC of user/alice/tokens: want 2026-04-01T00:00:00Z, got 2026-03-31T22:00:00Z"},
		"a month of no zone": {tampered{rows: editAccount(func(r *ledger.AccountRow) { r.Month.Zone = "Nowhere" })},
			"window of the end of month/Nowhere of user/alice/tokens: want that of a month in a time zone"},
		"a month that has yet to begin": {tampered{rows: editAccount(func(r *ledger.AccountRow) { r.Month.Ends = r.Month.Ends.AddDate(0, 0, 30) })},
			"window of the beginning of month/Europe/Berlin of user/alice/tokens: want not after 2026-03-04T12:01:00Z, got 2026-03-31T22:00:00Z"},
		"a charge after the newest entry": {tampered{rows: editAccount(func(r *ledger.AccountRow) { r.TouchedAt = r.TouchedAt.Add(-time.Microsecond) })},
			"posting of the newest entry of user/alice/tokens: want none before 2026-03-04T12:01:00Z, got 2026-03-04T12:00:59.999999Z"},
		"something held":    {tampered{rows: editAccount(func(r *ledger.AccountRow) { r.Held = 5 })}, "held of user/alice/tokens: want 0, got 5"},
		"used too much":     {tampered{rows: editAccount(func(r *ledger.AccountRow) { r.Used++ })}, "used of user/alice/tokens: want 350, got 351"},
		"used too little":   {tampered{rows: editAccount(func(r *ledger.AccountRow) { r.Used-- })}, "used of user/alice/tokens: want 350, got 349"},
		"refunded too much": {tampered{rows: editAccount(func(r *ledger.AccountRow) { r.Refunds++ })}, "refunds of user/alice/tokens: want 109, got 110"},
		"another floor":     {tampered{rows: editAccount(func(r *ledger.AccountRow) { r.Floor-- })}, "floor of user/alice/tokens: want 344, got 343"},
		"a lost charge row": {tampered{charges: func(charges []ledger.ChargeRow) []ledger.ChargeRow { return slices.Delete(charges, 1, 2) }},
			"posting of user/alice/tokens at 130: want 100 charged at 2026-03-04T12:00:00Z, got none"},
		"the newest charge row lost": {tampered{charges: func(charges []ledger.ChargeRow) []ledger.ChargeRow { return charges[:len(charges)-1] }},
			"posting of the newest of user/alice/tokens: want 350, got 344"},
		"a doubled charge row": {tampered{charges: func(charges []ledger.ChargeRow) []ledger.ChargeRow {
			double := charges[0]
			double.Total++
			return slices.Insert(charges, 1, double)
		}}, "posting of user/alice/tokens at 31: want none, got 30 charged at"},
		"an altered charge row": {tampered{charges: editCharge(130, func(c *ledger.ChargeRow) { c.Amount-- })},
			"posting of user/alice/tokens at 130: want 100 charged at 2026-03-04T12:00:00Z, got 99 charged at"},
		"a misdated charge row": {tampered{charges: editCharge(130, func(c *ledger.ChargeRow) { c.At = c.At.Add(time.Microsecond) })},
			"posting of user/alice/tokens at 130: want 100 charged at 2026-03-04T12:00:00Z, got 100 charged at 2026-03-04T12:00:00.000001Z"},
		"a charge row before the one before it": {tampered{charges: editCharge(344, func(c *ledger.ChargeRow) { c.At = c.At.Add(-2 * time.Minute) })},
			"posting of the time of user/alice/tokens at 344: want not before"},
		"a charge row that is refunded more": {tampered{charges: editCharge(130, func(c *ledger.ChargeRow) { c.Refunded++ })},
			"what was taken back of user/alice/tokens at 130: want 0, got 1"},
		"a window that counts what is not in it": {tampered{charges: editCharge(350, func(c *ledger.ChargeRow) { c.At = c.At.Add(-40 * 24 * time.Hour) })},
			"window of user/alice/tokens in rolling/5h: want 0, got 6"},
	} {
		t.Run(name, func(t *testing.T) {
			test.store.Store = books(t)
			report, err := ledger.Verify(ctx, test.store)
			if err != nil {
				t.Fatal(err)
			}
			found := textOf(report)
			if !strings.Contains(found, test.want) {
				t.Errorf("got %s\nwant %q", found, test.want)
			}
			// A journal of any length is read in passes, which find the same.
			if report, err = ledger.VerifyIn(ctx, test.store, 4); err != nil || textOf(report) != found {
				t.Errorf("in passes: %s, %v\nwant %s", textOf(report), err, found)
			}
		})
	}
}

// toldBooks is a store on which costs were told, of a hold that was settled and of one that had expired, beside a hold with a price and
// two postings that bear an id, one of which is for nobody.
func toldBooks(t *testing.T) ledger.Store {
	clock := ledgertest.NewClock()
	store := memory.New(clock.Now)
	l, err := ledger.Open(ledger.Config{Store: store, TTL: time.Minute, LateRefund: time.Hour, Elapsed: clock.Elapsed, SweepEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	id := func() uuid.UUID { return uuid.Must(uuid.NewV7()) }
	admit := func(price *ledger.Price) ledger.Ending {
		t.Helper()
		nano := int64(1000)
		hold, err := l.Admit(ctx, ledger.Admission{
			Hold: id(), Price: price, Reserve: ledger.Reserve{NanoUSD: &nano}, Claims: []ledger.Claim{{Account: aliceTokens}, {Account: aliceUSD}},
		})
		check(err)
		return ledger.Ending{Hold: hold.ID, Token: hold.Token}
	}
	settle := func(ending ledger.Ending, told *int64) {
		t.Helper()
		_, err := l.Settle(ctx, ending, ledger.Consumption{Usage: &ledger.Usage{Output: 30}, NanoUSD: told})
		check(err)
	}
	cost, refunded := int64(700), int64(200)
	settle(admit(nil), &cost) // records 1 and 2
	settle(admit(&ledger.Price{Rates: ledger.Rates{Output: 2000}}), nil)
	late := admit(nil)
	clock.Advance(time.Minute)
	settle(late, &refunded) // it expires first, 5 and 6; the refund is 7
	check(l.Post(ctx, ledger.Posting{ID: id(), Usage: ledger.Usage{Output: 9}, NanoUSD: 5, Accounts: []ledger.Account{aliceTokens}}))
	check(l.Post(ctx, ledger.Posting{ID: id(), Usage: ledger.Usage{Output: 9}, NanoUSD: 5}))
	check(l.Close())
	return store
}

func TestVerifyFindsWhatWasTold(t *testing.T) {
	const told, priced, refund, posted, posted2 = 0, 2, 6, 7, 8 // places of records
	one := int64(1)
	for name, test := range map[string]struct {
		store tampered
		want  string // empty if the books are true
	}{
		"true books":     {},
		"another cost":   {tampered{records: changed(told, func(b *ledger.ChargeBody) { *b.ToldNanoUSD = 1 })}, "NanoUSD:1 NanoCredits:0 Estimated:false UnknownUsage:false Overage:false}, got {Tokens:30 NanoUSD:700 "},
		"no cost":        {tampered{records: changed(told, func(b *ledger.ChargeBody) { b.ToldNanoUSD = nil })}, "NanoUSD:0 NanoCredits:0 Estimated:false UnknownUsage:false Overage:false}, got {Tokens:30 NanoUSD:700 "},
		"another charge": {tampered{records: changed(told, func(b *ledger.ChargeBody) { b.NanoUSD = 1 })}, "NanoUSD:700 NanoCredits:0 Estimated:false UnknownUsage:false Overage:false}, got {Tokens:30 NanoUSD:1 "},
		"another cost and charge": {
			tampered{records: changed(told, func(b *ledger.ChargeBody) { *b.ToldNanoUSD, b.NanoUSD, b.Accounts[aliceUSD] = 1, 1, 1 })},
			"charge of the USD of the outcome of hold"},
		"a cost beside a price": {tampered{records: changed(priced, func(b *ledger.ChargeBody) { b.ToldNanoUSD = &one })}, "charge of a cost beside the price of hold"},
		"another cost of a refund": {
			tampered{records: changed(refund, func(b *ledger.ChargeBody) { *b.ToldNanoUSD = 1 })}, "user/alice/usd: want -999, got -800"},
		"no cost of a refund": {
			tampered{records: changed(refund, func(b *ledger.ChargeBody) { b.ToldNanoUSD = nil })}, "user/alice/usd: want -1000, got -800"},
		"another posting":        {tampered{records: changed(posted, func(b *ledger.ChargeBody) { b.Source = "other" })}, "charge of posting "},
		"another cost of nobody": {tampered{records: changed(posted2, func(b *ledger.ChargeBody) { b.NanoUSD++ })}, "charge of posting "},
		"another id":             {tampered{records: changed(posted, func(b *ledger.ChargeBody) { b.Posting[0]++ })}, ", got none"},
		"a posting that can be made again": {
			tampered{rows: func(rows *ledger.Rows) { clear(rows.Amendments) }}, ", got none"},
	} {
		t.Run(name, func(t *testing.T) {
			test.store.Store = toldBooks(t)
			report, err := ledger.Verify(ctx, test.store)
			if err != nil {
				t.Fatal(err)
			}
			if found := textOf(report); !strings.Contains(found, test.want) || (found == "") != (test.want == "") {
				t.Errorf("got %s\nwant %q", found, test.want)
			}
			if passes, err := ledger.VerifyIn(ctx, test.store, 2); err != nil || textOf(passes) != textOf(report) {
				t.Errorf("in passes: %s, %v\nwant %s", textOf(passes), err, textOf(report))
			}
		})
	}
}
