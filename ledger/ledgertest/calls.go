package ledgertest

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"regent/ledger"
)

// forCall is an admission of 100 tokens for a call.
func forCall(call *ledger.Call, source string) ledger.Admission {
	a := tokens(100, 1000)
	a.Call, a.Source, a.Provider, a.Decision = call, source, "fake", []byte(`{"source":"`+source+`"}`)
	return a
}

func newCall() *ledger.Call {
	return &ledger.Call{ID: newID(), Owner: "alice", Model: "demo", Protocol: "openai.chat", Stream: true, ClientRequestID: "mine"}
}

func callStates(t *testing.T, b *bench) {
	denied, completed, cancelled := newCall(), newCall(), newCall()
	if err := b.ledger.Refuse(ctx, denied, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	_, err := b.ledger.Admit(ctx, forCall(denied, "one"))
	wantError(t, "admitting a denied call", err, ledger.ErrState)
	hold := b.admit(forCall(completed, "one"))
	_, err = b.ledger.Admit(ctx, forCall(completed, "two"))
	wantError(t, "admitting a running call again without ending its attempt", err, ledger.ErrState)
	wantError(t, "denying a running call", b.ledger.Refuse(ctx, completed, []byte(`{}`)), ledger.ErrState)
	b.settle(hold, ledger.Usage{Output: 5})
	hold = b.admit(forCall(cancelled, "one"))
	e := ending(hold)
	e.State, e.Outcome = ledger.Cancelled, ledger.Outcome{Result: ledger.Aborted, Reason: "client_gone"}
	if err := b.ledger.Release(ctx, e); err != nil {
		t.Fatal(err)
	}
	for call, want := range map[*ledger.Call]ledger.State{denied: ledger.Denied, completed: ledger.Completed, cancelled: ledger.Cancelled} {
		report, err := b.ledger.Store().Call(ctx, call.ID)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "state", report.State, want)
		wantEqual(t, "created at", report.CreatedAt, b.Now())
		wantEqual(t, "ended at", report.EndedAt, b.Now())
	}
	reports, err := b.ledger.Store().Calls(ctx, ledger.CallQuery{Owner: "alice", ClientRequestID: "mine", Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "newest calls", len(reports), 2)
	wantEqual(t, "newest", reports[0].ID, cancelled.ID)
	wantEqual(t, "next", reports[1].ID, completed.ID)
	wantEqual(t, "attempts", len(reports[1].Attempts), 1)
	wantEqual(t, "usage", *reports[1].Attempts[0].Usage, ledger.Usage{Output: 5})
	_, err = b.ledger.Store().Call(ctx, newID())
	wantError(t, "an unknown call", err, ledger.ErrNotFound)
}

func replacing(hold ledger.Hold, outcome ledger.Outcome) *ledger.Replacement {
	return &ledger.Replacement{Ending: ledger.Ending{Hold: hold.ID, Token: hold.Token, Outcome: outcome}}
}

func failsOver(t *testing.T, b *bench) {
	call := newCall()
	first := b.admit(forCall(call, "one"))
	second := forCall(call, "two")
	second.Claims[0].Limits[0].Max = 100 // fits only because the first hold is given back in the same step
	second.Replaces = replacing(first, ledger.Outcome{Result: ledger.Errored, Reason: "overloaded", Status: 503})
	denied := second
	denied.Hold, denied.Reserve.Tokens = newID(), amount(101)
	b.denied(denied)
	b.want(aliceTokens, 0, 100) // a denial leaves the first hold as it was
	charging := second
	charging.Replaces = replacing(first, second.Replaces.Outcome)
	charging.Replaces.Consumption = &ledger.Consumption{Usage: &ledger.Usage{UncachedInput: 1}, Estimated: true}
	wantEqual(t, "used, with what the first attempt is charged", b.denied(charging).Used, 1)
	b.want(aliceTokens, 0, 100)
	hold := b.admit(second)
	b.want(aliceTokens, 0, 100)
	_, err := b.ledger.Settle(ctx, ending(first), ledger.Consumption{})
	wantError(t, "settling the replaced hold", err, ledger.ErrState)
	b.settle(hold, ledger.Usage{Output: 40})
	b.want(aliceTokens, 40, 0)
	report, err := b.ledger.Store().Call(ctx, call.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "state", report.State, ledger.Completed)
	wantEqual(t, "attempts", len(report.Attempts), 2)
	wantEqual(t, "first attempt", report.Attempts[0].Outcome, ledger.Outcome{Result: ledger.Errored, Reason: "overloaded", Status: 503})
	wantEqual(t, "second attempt", report.Attempts[1].Source, "two")
	third := forCall(call, "three")
	third.Replaces = replacing(hold, ledger.Outcome{})
	_, err = b.ledger.Admit(ctx, third)
	wantError(t, "an attempt after the end", err, ledger.ErrState)
}

func idempotencyKeys(t *testing.T, b *bench) {
	keyed := func(owner string) *ledger.Call {
		call := newCall()
		call.Owner, call.IdempotencyKey = owner, "key"
		return call
	}
	first := keyed("alice")
	hold := b.admit(forCall(first, "one"))
	refused := func(state ledger.State) {
		t.Helper()
		_, err := b.ledger.Admit(ctx, forCall(keyed("alice"), "one"))
		var duplicate *ledger.DuplicateError
		if !errors.As(err, &duplicate) {
			t.Fatalf("the same key: got %v, want a duplicate", err)
		}
		wantEqual(t, "call", duplicate.Call, first.ID)
		wantEqual(t, "state", duplicate.State, state)
	}
	refused(ledger.Held)
	b.release(b.admit(forCall(keyed("bob"), "one"))) // another owner's key is another key
	b.release(hold)                                  // a failed call gives its key up
	first = keyed("alice")
	b.settle(b.admit(forCall(first, "one")), ledger.Usage{Output: 1})
	refused(ledger.Completed)
}

func journal(t *testing.T, b *bench) {
	call := newCall()
	first := b.admit(forCall(call, "one"))
	second := forCall(call, "two")
	second.Price = &price
	second.Replaces = replacing(first, ledger.Outcome{Result: ledger.Errored, Reason: "timeout"})
	b.settle(b.admit(second), ledger.Usage{UncachedInput: 1})
	b.admit(tokens(77, 1000))
	b.Advance(ttl)
	b.touch()
	streams, err := b.ledger.Store().Streams(ctx)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "streams", len(streams), 1)
	records, err := b.ledger.Store().Records(ctx, streams[0].Writer, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []ledger.Kind
	for i, record := range records {
		wantEqual(t, "number", record.Number, int64(i+1))
		kinds = append(kinds, record.Kind)
	}
	want := []ledger.Kind{
		ledger.DecisionRecord,                       // first attempt admitted
		ledger.OutcomeRecord, ledger.DecisionRecord, // failover
		ledger.ChargeRecord, ledger.OutcomeRecord, // settlement
		ledger.ChargeRecord, ledger.OutcomeRecord, // expiry of a hold of no call
		ledger.DecisionRecord, // touch
	}
	if !slices.Equal(kinds, want) {
		t.Fatalf("kinds: got %v, want %v", kinds, want)
	}
	wantEqual(t, "last", streams[0].Last, int64(len(want)))
	var charge ledger.ChargeBody
	if err := json.Unmarshal(records[3].Body, &charge); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "charged", charge.Accounts[aliceTokens], 1)
	wantEqual(t, "cost", charge.NanoUSD, 2_500)
	wantEqual(t, "price", *charge.Price, price)
	ofCall, err := b.ledger.Store().CallRecords(ctx, call.ID)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "records of the call", len(ofCall), 5)
	tail, err := b.ledger.Store().Tail(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "tail", len(tail), 2)
	wantEqual(t, "newest", tail[1].Number, int64(len(want)))
	page, err := b.ledger.Store().Records(ctx, streams[0].Writer, 6, 1)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "page", page[0].Number, 7)
}

func cursors(t *testing.T, b *bench) {
	b.touch()
	store := b.ledger.Store()
	streams, err := store.Streams(ctx)
	if err != nil {
		t.Fatal(err)
	}
	writer := streams[0].Writer
	from := int64(0)
	for _, want := range []int64{0, 1, 7} {
		if want > 0 {
			if err := store.SetCursor(ctx, "file", writer, from, want); err != nil {
				t.Fatal(err)
			}
			wantError(t, "a cursor that has moved meanwhile", store.SetCursor(ctx, "file", writer, want+1, 9), ledger.ErrState)
		}
		from = want
		got, err := store.Cursor(ctx, "file", writer)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "cursor", got, want)
	}
	got, err := store.Cursor(ctx, "stdout", writer)
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "another sink's cursor", got, 0)
}
