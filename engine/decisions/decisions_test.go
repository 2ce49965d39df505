package decisions_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"regent/engine/decisions"
	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// sink fails as often as it is told to, before or after it has taken a page.
type sink struct {
	bytes.Buffer
	writes, failBefore, failAfter int
}

var errSink = errors.New("the pipe is broken")

func (s *sink) Write(page []byte) (int, error) {
	s.writes++
	if s.failBefore > 0 {
		s.failBefore--
		return 0, errSink
	}
	n, err := s.Buffer.Write(page)
	if s.failAfter > 0 {
		s.failAfter--
		return 0, errSink
	}
	return n, err
}

// ids are the decision ids of the events that arrived, in order, an outcome's with a mark.
func (s *sink) ids(t *testing.T) (ids []string) {
	t.Helper()
	for line := range strings.Lines(s.String()) {
		var event decisions.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("not a whole line: %q, %v", line, err)
		}
		id := event.DecisionID
		if event.Path == decisions.OutcomePath {
			id += " ended"
		}
		ids = append(ids, id)
	}
	return ids
}

// journal is a ledger, its store, and what a sink should get of it.
type journal struct {
	*ledger.Ledger
	t    *testing.T
	want []string
}

func newJournal(t *testing.T, store ledger.Store) *journal {
	t.Helper()
	l, err := ledger.Open(ledger.Config{Store: store, SweepEvery: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return &journal{Ledger: l, t: t}
}

// call writes a decision, a charge and an outcome.
func (j *journal) call() {
	j.t.Helper()
	id := uuid.Must(uuid.NewV7())
	hold, err := j.Admit(ctx, ledger.Admission{
		Hold: uuid.Must(uuid.NewV7()), Call: &ledger.Call{ID: id, Owner: "alice"}, Source: "one", Provider: "fake",
		Decision: fmt.Appendf(nil, `{"path":%q,"decision_id":%q}`, decisions.DecisionPath, id),
	})
	if err != nil {
		j.t.Fatal(err)
	}
	_, err = j.Settle(ctx, ledger.Ending{
		Hold: hold.ID, Token: hold.Token, Outcome: ledger.Outcome{Result: ledger.Success, Status: 200}, State: ledger.Completed,
	}, ledger.Consumption{Usage: &ledger.Usage{Output: 3}})
	if err != nil {
		j.t.Fatal(err)
	}
	j.want = append(j.want, id.String(), id.String()+" ended")
}

func (j *journal) wantShipped(s *sink) {
	j.t.Helper()
	if got := s.ids(j.t); strings.Join(got, "\n") != strings.Join(j.want, "\n") {
		j.t.Fatalf("%d events arrived, want %d, in order", len(got), len(j.want))
	}
}

func TestEachEventIsShippedOnce(t *testing.T) {
	j := newJournal(t, memory.New(nil))
	out := &sink{}
	shipper := decisions.Shipper{Store: j.Store(), Name: "file", Sink: out}
	ship := func(want int) {
		t.Helper()
		before := out.writes
		if err := shipper.Ship(ctx); err != nil {
			t.Fatal(err)
		}
		if got := out.writes - before; got != want {
			t.Errorf("%d writes, want %d", got, want)
		}
		j.wantShipped(out)
	}
	ship(0)
	for range 300 { // more than a page
		j.call()
	}
	ship(4) // of 900 records
	ship(0)
	j.call()
	// The cursor is the journal's: another process goes on from there.
	shipper = decisions.Shipper{Store: j.Store(), Name: "file", Sink: out}
	ship(1)
	// A charge alone is shipped to nobody.
	if err := j.Post(ctx, ledger.Posting{Usage: ledger.Usage{Output: 1}}); err != nil {
		t.Fatal(err)
	}
	ship(0)
	// Another sink begins at the beginning.
	out = &sink{}
	shipper = decisions.Shipper{Store: j.Store(), Name: "stdout", Sink: out}
	ship(4)
}

func TestAFailedSinkLosesNothing(t *testing.T) {
	j := newJournal(t, memory.New(nil))
	j.call()
	out := &sink{failBefore: 2}
	shipper := decisions.Shipper{Store: j.Store(), Name: "file", Sink: out}
	for range 2 {
		if err := shipper.Ship(ctx); !errors.Is(err, errSink) || !strings.Contains(err.Error(), "sink file") {
			t.Errorf("got %v", err)
		}
	}
	if err := shipper.Ship(ctx); err != nil {
		t.Fatal(err)
	}
	j.wantShipped(out)
	// What it had taken before it failed, it gets again: at least once.
	j.call()
	out.failAfter = 1
	if err := shipper.Ship(ctx); !errors.Is(err, errSink) {
		t.Errorf("got %v", err)
	}
	if err := shipper.Ship(ctx); err != nil {
		t.Fatal(err)
	}
	j.want = append(j.want, j.want[2:]...)
	j.wantShipped(out)
}

// forgetful is a store that cannot keep a cursor.
type forgetful struct{ ledger.Store }

func (forgetful) SetCursor(context.Context, string, uuid.UUID, int64, int64) error { return errSink }

func TestACursorThatIsNotKeptIsAnError(t *testing.T) {
	j := newJournal(t, memory.New(nil))
	j.call()
	shipper := decisions.Shipper{Store: forgetful{j.Store()}, Name: "file", Sink: &sink{}}
	if err := shipper.Ship(ctx); !errors.Is(err, errSink) {
		t.Errorf("got %v", err)
	}
}

func TestEveryWritersEventsAreShipped(t *testing.T) {
	store := memory.New(nil)
	one, two := newJournal(t, store), newJournal(t, store)
	one.call()
	two.call()
	one.call()
	out := &sink{}
	shipper := decisions.Shipper{Store: store, Name: "file", Sink: out}
	if err := shipper.Ship(ctx); err != nil {
		t.Fatal(err)
	}
	one.want = append(one.want, two.want...) // each stream in its own order; the older process's first
	one.wantShipped(out)
}

func TestRunShipsUntilItIsStoppedAndThenTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal(t, memory.New(nil))
		out := &sink{}
		shipper := decisions.Shipper{Store: j.Store(), Name: "file", Sink: out}
		running, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- shipper.Run(running) }()
		synctest.Wait()
		j.call()
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		j.wantShipped(out)
		j.call() // just before the end
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		j.wantShipped(out)

		j.call()
		out.failBefore = 1
		if err := shipper.Run(ctx); !errors.Is(err, errSink) {
			t.Errorf("got %v", err)
		}
	})
}

// TestRender is the form of events, which tools made for OPA's decision logs read.
func TestRender(t *testing.T) {
	call, at := uuid.Must(uuid.Parse("0198b8a0-0000-7000-8000-000000000001")), ledgertest.NewClock().Now()
	labels := map[string]string{"id": "process-1"}
	for name, test := range map[string]struct {
		record ledger.Record
		want   string
	}{
		"a decision is as it was recorded": {ledger.Record{Kind: ledger.DecisionRecord, Call: call, Body: json.RawMessage(`{"decision_id":"x"}`)}, `{"decision_id":"x"}`},
		"an outcome": {ledger.Record{Kind: ledger.OutcomeRecord, Call: call, At: at, Body: json.RawMessage(`{"result":"success"}`)},
			`{"labels":{"id":"process-1"},"decision_id":"0198b8a0-0000-7000-8000-000000000001","path":"regent/outcome","result":{"result":"success"},"timestamp":"2026-03-04T12:00:00Z"}`},
		"an outcome of no call": {ledger.Record{Kind: ledger.OutcomeRecord, At: at, Body: json.RawMessage(`{}`)},
			`{"labels":{"id":"process-1"},"decision_id":"","path":"regent/outcome","result":{},"timestamp":"2026-03-04T12:00:00Z"}`},
		"a correction": {ledger.Record{Kind: ledger.CorrectionRecord, Call: call, At: at, Body: json.RawMessage(`{"reason":"refunded","actor":"ann"}`)},
			`{"labels":{"id":"process-1"},"decision_id":"0198b8a0-0000-7000-8000-000000000001","path":"regent/ledger/correction","result":{"reason":"refunded","actor":"ann"},"timestamp":"2026-03-04T12:00:00Z"}`},
		"a reset": {ledger.Record{Kind: ledger.ResetRecord, At: at, Body: json.RawMessage(`{"accounts":{"user/alice/tokens":7}}`)},
			`{"labels":{"id":"process-1"},"decision_id":"","path":"regent/ledger/reset","result":{"accounts":{"user/alice/tokens":7}},"timestamp":"2026-03-04T12:00:00Z"}`},
		"a closing is without its balances": {ledger.Record{Kind: ledger.ClosingRecord, At: at, Body: json.RawMessage(
			`{"id":"0198b8a0-0000-7000-8000-000000000002","reason":"old","actor":"ann","before":5,"streams":{},"records":3,"accounts":{"user/alice/tokens":{"used":7}}}`)},
			`{"labels":{"id":"process-1"},"decision_id":"","path":"regent/ledger/closing","result":{"id":"0198b8a0-0000-7000-8000-000000000002","reason":"old","actor":"ann","before":5,"streams":{},"records":3},"timestamp":"2026-03-04T12:00:00Z"}`},
		"a charge is the ledger's own": {ledger.Record{Kind: ledger.ChargeRecord, Body: json.RawMessage(`{}`)}, ""},
	} {
		line, ok, err := decisions.Render(test.record, labels)
		if err != nil || ok != (test.want != "") || string(line) != test.want {
			t.Errorf("%s: got %s, %v, %v", name, line, ok, err)
		}
	}
	for _, kind := range []ledger.Kind{ledger.OutcomeRecord, ledger.CorrectionRecord, ledger.ResetRecord, ledger.ClosingRecord} {
		if line, ok, err := decisions.Render(ledger.Record{Kind: kind, Body: json.RawMessage(`{`)}, labels); err == nil || ok {
			t.Errorf("a broken record: %s, %v", line, ok)
		}
	}
}

func TestNewLimit(t *testing.T) {
	got := decisions.NewLimit(&ledger.LimitError{
		Account: ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.USD}, Window: ledger.Fixed{Length: 24 * time.Hour},
		Limit: 1_000_000_000, Spendable: 1_000_000_000, Used: 400_000_000, Held: 500_000_000, Amount: new(int64(250_000_000)),
	})
	want := decisions.Limit{Account: "user/alice/usd", Unit: "usd", Window: "fixed/24h", Limit: "1", Used: "0.4", Held: "0.5", Shortfall: "0.15"}
	if *got != want {
		t.Errorf("got %+v, want %+v", *got, want)
	}
}
