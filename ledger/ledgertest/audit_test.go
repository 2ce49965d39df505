package ledgertest_test

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
	ctx    = context.Background()
	tokens = ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.Tokens}
	usd    = ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.USD}
)

// tampered is a store that shows something else than it holds.
type tampered struct {
	ledger.Store
	records  func([]ledger.Record) []ledger.Record
	rows     func(*ledger.Rows)
	calls    func(*ledger.CallReport)
	lastPlus int64 // more records than the streams have
}

func (s tampered) Streams(ctx context.Context) ([]ledger.Stream, error) {
	streams, err := s.Store.Streams(ctx)
	for i := range streams {
		records, err := s.Records(ctx, streams[i].Writer, 0, 1000)
		if err != nil || len(records) == 0 {
			return streams, err
		}
		streams[i].Last = records[len(records)-1].Number + s.lastPlus
	}
	return streams, err
}

func (s tampered) Records(ctx context.Context, writer uuid.UUID, after int64, limit int) ([]ledger.Record, error) {
	records, err := s.Store.Records(ctx, writer, 0, 1000)
	if s.records != nil {
		records = s.records(records)
	}
	records = slices.DeleteFunc(records, func(r ledger.Record) bool { return r.Number <= after })
	return records[:min(len(records), limit)], err
}

func (s tampered) Load(ctx context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	rows, err := s.Store.Load(ctx, keys)
	if s.rows != nil {
		s.rows(rows)
	}
	return rows, err
}

func (s tampered) Call(ctx context.Context, id uuid.UUID) (ledger.CallReport, error) {
	report, err := s.Store.Call(ctx, id)
	if s.calls != nil {
		s.calls(&report)
	}
	return report, err
}

// books is a store on which calls have ended in every way: settled, estimated, released and replaced, expired, expired and
// refunded, denied; and a charge without a hold. The records of each are numbered in this order.
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
			Reserve: ledger.Reserve{Tokens: &reserved, NanoUSD: &nano}, Claims: []ledger.Claim{{Account: tokens}, {Account: usd}},
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
	settle(admit(call(), nil), ledger.Consumption{Usage: &ledger.Usage{Output: 30}}) // records 1 to 3
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
	check(l.Post(ctx, ledger.Posting{Accounts: []ledger.Account{tokens}, Usage: ledger.Usage{Output: 9}}))
	check(l.Close()) // 19 records
	return store
}

func TestAuditOfGoodBooks(t *testing.T) {
	store := books(t)
	if err := ledgertest.Audit(ctx, store, []string{"alice"}, tokens, usd); err != nil {
		t.Error(err)
	}
	records, err := store.Tail(ctx, 100)
	if err != nil || len(records) != 19 {
		t.Errorf("%d records, %v, want 19", len(records), err)
	}
	row, _, err := ledger.ReadAccount(ctx, store, tokens)
	if err != nil || row.Used-row.Refunds != 30+100+1+100+9 {
		t.Errorf("used %d, %v", row.Used, err)
	}
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

// changed edits the body of the charge record at a place.
func changed(place int, edit func(*ledger.ChargeBody)) func([]ledger.Record) []ledger.Record {
	return func(records []ledger.Record) []ledger.Record {
		var body ledger.ChargeBody
		if records[place].Kind != ledger.ChargeRecord || json.Unmarshal(records[place].Body, &body) != nil {
			panic("no charge is there")
		}
		edit(&body)
		records[place].Body, _ = json.Marshal(body) // what was read can be written
		return records
	}
}

func TestAuditFindsWhatIsWrong(t *testing.T) {
	const settled, estimated, expired, refund, denial = 1, 4, 12, 16, 17 // places of records
	for name, test := range map[string]struct {
		store tampered
		want  string
	}{
		"a lost charge":                 {tampered{records: without(settled)}, "(settled) has 0 charges, want 1"},
		"a lost charge of an expiry":    {tampered{records: without(expired)}, "(expired) has 0 charges, want 1"},
		"a charge twice":                {tampered{records: twice(settled)}, "(settled) has 2 charges, want 1"},
		"a refund twice":                {tampered{records: twice(refund)}, "(expired) has 2 refunds"},
		"a lost refund":                 {tampered{records: without(refund)}, "its charges and refunds come to"},
		"a lost charge without a hold":  {tampered{records: without(18)}, "its charges and refunds come to"},
		"a lost outcome":                {tampered{records: without(settled + 1)}, "has 0 outcomes, want 1"},
		"an outcome twice":              {tampered{records: twice(settled + 1)}, `its outcomes gave it ["completed" "completed"]`},
		"a lost decision":               {tampered{records: without(0)}, "has 0 decisions for 1 attempts"},
		"a lost decision of a failover": {tampered{records: without(8)}, "has 1 decisions for 2 attempts"},
		"a lost decision of a denial":   {tampered{records: without(denial)}, "has 0 decisions for 0 attempts"},
		"a charge of an account": {
			tampered{records: changed(settled, func(b *ledger.ChargeBody) { b.Accounts[tokens]++ })}, "was charged 31 in the end, want 30"},
		"a charge too high": {
			tampered{records: changed(settled, func(b *ledger.ChargeBody) { b.Tokens++ })}, "was charged {tokens:31 nanoUSD:60}, want {tokens:30 nanoUSD:60}"},
		"an estimate above what was held": {
			tampered{records: changed(estimated, func(b *ledger.ChargeBody) { b.NanoUSD = 1000 })}, "want {tokens:100 nanoUSD:200}"},
		"a gap": {tampered{records: func(records []ledger.Record) []ledger.Record {
			for i := range records[5:] {
				records[5+i].Number++
			}
			return records
		}}, "record 7 follows 5"},
		"a stream that is cut": {tampered{lastPlus: 2}, "ends at record 19, want 21"},
		"a call without end": {tampered{calls: func(r *ledger.CallReport) {
			if r.State == ledger.Completed {
				r.State, r.EndedAt = ledger.Held, time.Time{}
			}
		}}, "has not ended: held"},
		"a call in another state": {tampered{calls: func(r *ledger.CallReport) {
			if r.State == ledger.Completed {
				r.State = ledger.Cancelled
			}
		}}, `is cancelled; its outcomes gave it ["completed"]`},
		"a hold without end": {tampered{rows: func(rows *ledger.Rows) {
			for id, hold := range rows.Holds {
				if hold.State == ledger.HoldReleased {
					hold.State = ledger.HoldLive
					rows.Holds[id] = hold
				}
			}
		}}, "has not ended: live"},
		"a hold without a row": {tampered{rows: func(rows *ledger.Rows) { clear(rows.Holds) }}, "is in the journal and has no row"},
		"something held": {tampered{rows: func(rows *ledger.Rows) {
			if row, ok := rows.Accounts[usd]; ok {
				row.Held = 5
				rows.Accounts[usd] = row
			}
		}}, "user/alice/usd: 5 is held"},
		"used too much": {tampered{rows: func(rows *ledger.Rows) {
			if row, ok := rows.Accounts[usd]; ok {
				row.Used++
				rows.Accounts[usd] = row
			}
		}}, "user/alice/usd has used 463; its charges and refunds come to 462"},
	} {
		t.Run(name, func(t *testing.T) {
			test.store.Store = books(t)
			err := ledgertest.Audit(ctx, test.store, []string{"alice"}, tokens, usd)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v\nwant %q", err, test.want)
			}
		})
	}
}
