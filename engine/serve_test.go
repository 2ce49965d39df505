package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"regent/adapters"
	"regent/engine/decisions"
	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/memory"
	"regent/policies"
)

// serve runs a call whose attempts end as scripted, by source, and returns the sources contacted.
func (b *bench) serve(request Request, outcomes map[string]Outcome) (contacted []string, err error) {
	b.t.Helper()
	err = b.router.Serve(ctx, request, func(_ context.Context, grant *Grant) Outcome {
		contacted = append(contacted, grant.Candidate.Source)
		return outcomes[grant.Candidate.Source]
	})
	b.flush()
	return contacted, err
}

// story is what the journal says of a call: the candidates' outcomes in each decision, and how each attempt ended.
func (b *bench) story(id uuid.UUID) []string {
	b.t.Helper()
	records, err := b.ledger.Store().CallRecords(ctx, id)
	if err != nil {
		b.t.Fatal(err)
	}
	var story []string
	for _, record := range records {
		switch record.Kind {
		case ledger.DecisionRecord:
			var event struct {
				DecisionID string `json:"decision_id"`
				Result     decisions.Result
			}
			if err := json.Unmarshal(record.Body, &event); err != nil {
				b.t.Fatal(err)
			}
			if event.DecisionID != id.String() {
				b.t.Fatalf("decision id %s, want the call's %s", event.DecisionID, id)
			}
			line := "decision"
			for _, c := range event.Result.Candidates {
				line += " " + c.Source + "=" + c.Outcome
			}
			story = append(story, line)
		case ledger.OutcomeRecord:
			var body ledger.OutcomeBody
			if err := json.Unmarshal(record.Body, &body); err != nil {
				b.t.Fatal(err)
			}
			story = append(story, body.Source+" "+body.Result+" "+string(body.State))
		}
	}
	return story
}

func (b *bench) wantStory(id uuid.UUID, want ...string) {
	b.t.Helper()
	if got := b.story(id); !slices.Equal(got, want) {
		b.t.Fatalf("the journal says\n%q\nwant\n%q", got, want)
	}
}

func failure(reason adapters.Reason) Outcome {
	return Outcome{Err: &adapters.Failure{Reason: reason}}
}

var served = Outcome{Output: true, Accepted: true, Status: 200, Usage: &ledger.Usage{Output: 5}}

func TestServeFailsOver(t *testing.T) {
	for _, reason := range []adapters.Reason{
		adapters.Credential, adapters.ModelMissing, adapters.RateLimited, adapters.Overloaded, adapters.UpstreamError,
		adapters.Connection, adapters.Timeout, adapters.StreamBroken,
	} {
		b := newBench(t, nil)
		request := called(1000, "one", "two", "three")
		contacted, err := b.serve(request, map[string]Outcome{"one": failure(reason), "two": served})
		if err != nil || !slices.Equal(contacted, []string{"one", "two"}) {
			t.Errorf("%s: contacted %v, %v", reason, contacted, err)
		}
		b.wantStory(request.ID, "decision one=selected two=not_reached three=not_reached", "one error ",
			"decision one=failed two=selected three=not_reached", "two success completed")
		b.wantBalance(ledger.ScopeUser, "alice", 5, 0)
		if len(b.settlements) != 2 || !b.settlements[0].BudgetReleased || b.settlements[1].Charge.Tokens != 5 {
			t.Errorf("%s: settlements told: %+v, want one of each attempt", reason, b.settlements)
		}
	}
}

// TestWhatAFailedAttemptUsed is charged, however much it says: what no price can be computed for, at what was held.
func TestWhatAFailedAttemptUsed(t *testing.T) {
	for name, test := range map[string]struct {
		usage ledger.Usage
		want  int64 // tokens
	}{
		"little":          {ledger.Usage{UncachedInput: 3, Output: 4}, 7},
		"beyond a charge": {ledger.Usage{Output: ledger.TokensMax - 1}, 1000},
	} {
		b := newBench(t, nil)
		request := called(10_000, "one", "two")
		request.Candidates[0].Price = &ledger.Price{Rates: ledger.Rates{Output: 1 << 40}}
		request.MaxTokens = number(1000)
		failed := Outcome{Accepted: true, Err: &adapters.Failure{Reason: adapters.StreamBroken, Usage: &test.usage}}
		contacted, err := b.serve(request, map[string]Outcome{"one": failed, "two": served})
		if err != nil || !slices.Equal(contacted, []string{"one", "two"}) {
			t.Errorf("%s: contacted %v, %v", name, contacted, err)
		}
		b.wantBalance(ledger.ScopeUser, "alice", test.want+5, 0)
	}
}

func TestServeNeverFailsOver(t *testing.T) {
	late := failure(adapters.StreamBroken)
	late.Output, late.Accepted = true, true
	for name, outcome := range map[string]Outcome{
		"after output":             late,
		"for an invalid request":   failure(adapters.InvalidRequest),
		"for refused content":      failure(adapters.ContentPolicy),
		"for a too long request":   failure(adapters.ContextLength),
		"when the consumer left":   {Err: ErrAborted},
		"for a fault of our own":   {Err: errors.New("x")},
		"after a complete answer":  served,
		"after an empty success":   {Accepted: true, Usage: &ledger.Usage{}},
		"after one without usage":  {Output: true, Accepted: true},
		"after output and an exit": {Err: ErrAborted, Output: true, Accepted: true},
	} {
		b := newBench(t, nil)
		request := called(1000, "one", "two")
		contacted, err := b.serve(request, map[string]Outcome{"one": outcome, "two": served})
		if !slices.Equal(contacted, []string{"one"}) || !errors.Is(err, outcome.Err) {
			t.Errorf("%s: contacted %v, %v", name, contacted, err)
		}
		report, err := b.ledger.Store().Call(ctx, request.ID)
		if err != nil {
			t.Fatal(err)
		}
		if report.State == ledger.Held || len(report.Attempts) != 1 {
			t.Errorf("%s: state %s, %d attempts", name, report.State, len(report.Attempts))
		}
		if len(b.settlements) != 1 {
			t.Errorf("%s: %d settlements told, want 1", name, len(b.settlements))
		}
		if _, held := b.balance(ledger.ScopeUser, "alice"); held != 0 {
			t.Errorf("%s: %d still held", name, held)
		}
	}
}

func TestServeStopsAtTheAttemptCap(t *testing.T) {
	b := newBench(t, nil)
	request := called(1000, "one", "two", "three", "four")
	down := failure(adapters.Overloaded)
	contacted, err := b.serve(request, map[string]Outcome{"one": down, "two": down, "three": down, "four": served})
	var upstream *adapters.Failure
	if !slices.Equal(contacted, []string{"one", "two", "three"}) || !errors.As(err, &upstream) {
		t.Errorf("contacted %v, %v", contacted, err)
	}
	story := b.story(request.ID)
	if last := story[len(story)-1]; last != "three error failed" {
		t.Errorf("the journal ends with %q", last)
	}
	b.wantBalance(ledger.ScopeUser, "alice", 0, 0)
}

func TestServeWalksOnAfterPolicyAndEndsAtTheCallersLimit(t *testing.T) {
	b := newBench(t, func(_ *Config, s *policy.Settings) { s.AllowList = &policy.AllowList{Models: &[]string{"two"}} })
	request := called(1000, "one", "two")
	contacted, err := b.serve(request, map[string]Outcome{"two": served})
	if err != nil || !slices.Equal(contacted, []string{"two"}) {
		t.Fatalf("contacted %v, %v, %v", contacted, err, b.story(request.ID))
	}
	b.wantStory(request.ID, "decision one=denied two=selected", "two success completed")

	b = newBench(t, nil)
	request = called(30, "one", "two") // a call needs 60
	contacted, err = b.serve(request, nil)
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Details.Class != ClassCallerLimit || len(contacted) != 0 {
		t.Fatalf("contacted %v, %v", contacted, err)
	}
	b.wantStory(request.ID, "decision one=denied two=not_reached")
	report, err := b.ledger.Store().Call(ctx, request.ID)
	if err != nil || report.State != ledger.Denied {
		t.Fatalf("%+v, %v", report, err)
	}
}

func TestServeSettlesAPanic(t *testing.T) {
	b := newBench(t, nil)
	request := called(1000, "one")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = b.router.Serve(ctx, request, func(context.Context, *Grant) Outcome { panic("an adapter's fault") })
	}()
	b.flush()
	b.wantStory(request.ID, "decision one=selected", "one error failed")
	b.wantBalance(ledger.ScopeUser, "alice", 0, 0)
}

func TestServeRenewsWhileItRuns(t *testing.T) {
	b := newBench(t, func(c *Config, _ *policy.Settings) { c.HoldTTL = 30 * time.Millisecond })
	request := called(1000, "one")
	var first, last Reservation
	err := b.router.Serve(ctx, request, func(_ context.Context, grant *Grant) Outcome {
		first = grant.Reservation()
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline) && last.Token < first.Token+3; {
			time.Sleep(time.Millisecond)
			last = grant.Reservation()
		}
		return served
	})
	b.flush()
	if err != nil || last.Token < first.Token+3 {
		t.Fatalf("tokens %d to %d, %v", first.Token, last.Token, err)
	}
	b.wantBalance(ledger.ScopeUser, "alice", 5, 0)
}

// failing is a store that can be made to fail.
type failing struct {
	ledger.Store
	down atomic.Bool
}

func (f *failing) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	if f.down.Load() {
		return errors.New("the disk is gone")
	}
	return f.Store.Update(ctx, decide)
}

func TestSettlementIsTriedUntilItIsWritten(t *testing.T) {
	var store *failing
	b := newBenchOn(t, func(s ledger.Store) ledger.Store {
		store = &failing{Store: s}
		return store
	}, nil)
	request := called(1000, "one")
	err := b.router.Serve(ctx, request, func(context.Context, *Grant) Outcome {
		store.down.Store(true) // the answer does not wait for it
		return served
	})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, func() { store.down.Store(false) })
	b.flush()
	b.wantBalance(ledger.ScopeUser, "alice", 5, 0)
	b.wantStory(request.ID, "decision one=selected", "one success completed")
}

func TestStoreFailureRefusesTheCall(t *testing.T) {
	b := newBenchOn(t, func(s ledger.Store) ledger.Store {
		store := &failing{Store: s}
		store.down.Store(true)
		return store
	}, nil)
	contacted, err := b.serve(called(1000, "one"), nil)
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Code != CodeState || refusal.Details.Class != ClassUnavailable || len(contacted) != 0 {
		t.Fatalf("contacted %v, %v", contacted, err)
	}
	if refusal.Message == "" || errors.Is(err, ledger.ErrUnavailable) && refusal.Message == errors.Unwrap(err).Error() {
		t.Errorf("the store's own words are told: %q", refusal.Message)
	}
}

// forgetful is a store of which nobody knows once whether it has committed.
type forgetful struct {
	ledger.Store
	forgets atomic.Bool
	commits bool
	// late is after which time it commits all the same; 0 is never.
	late time.Duration
}

func (s *forgetful) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	if !s.forgets.CompareAndSwap(true, false) {
		return s.Store.Update(ctx, decide)
	}
	err := s.Store.Update(ctx, func(tx ledger.Tx) error {
		if !s.commits {
			tx = uncommitted{tx, s.keep}
		}
		return decide(tx)
	})
	return cmp.Or(err, ledger.ErrUnknown)
}

// keep commits what a transaction wanted to save when it is time for it.
func (s *forgetful) keep(changes *ledger.Changes) {
	if s.late == 0 {
		return
	}
	time.AfterFunc(s.late, func() {
		_ = s.Store.Update(context.Background(), func(tx ledger.Tx) error { return tx.Save(context.Background(), changes) }) // what comes of it, the ledger is asked for
	})
}

// uncommitted is a transaction that comes to nothing, as far as it knows.
type uncommitted struct {
	ledger.Tx
	keep func(*ledger.Changes)
}

func (u uncommitted) Save(_ context.Context, changes *ledger.Changes) error {
	u.keep(changes)
	return nil
}

// A call whose admission nobody knows of is refused, and nothing is charged for it or stays held, whether it was made, was not, or is
// made only after it was first looked for.
func TestAnUnknownAdmissionIsTakenBack(t *testing.T) {
	for name, test := range map[string]struct {
		store *forgetful
		made  bool
	}{
		"made":                  {&forgetful{commits: true}, true},
		"not made":              {&forgetful{}, false},
		"made half a second on": {&forgetful{late: 500 * time.Millisecond}, true},
		"made four seconds on":  {&forgetful{late: 4 * time.Second}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := test.store
				b := newBenchOn(t, func(s ledger.Store) ledger.Store {
					store.Store = s
					return store
				}, nil)
				b.serve(called(1000, "one"), nil)
				b.flush()
				before, _, err := ledger.ReadAccount(ctx, store, ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.Tokens})
				if err != nil {
					t.Fatal(err)
				}
				store.forgets.Store(true)
				request := called(1000, "one")
				contacted, err := b.serve(request, nil)
				var refusal *Error
				if !errors.As(err, &refusal) || refusal.Details.Reason != ReasonUnavailable || len(contacted) != 0 {
					t.Fatalf("contacted %v, %v", contacted, err)
				}
				b.flush()
				b.wantBalance(ledger.ScopeUser, "alice", before.Used, 0)
				call, err := store.Call(ctx, request.ID)
				if test.made && (err != nil || call.State != ledger.Failed || call.Attempts[0].Charge != ledger.Charge{}) || !test.made && !errors.Is(err, ledger.ErrNotFound) {
					t.Errorf("%+v, %v", call, err)
				}
			})
		})
	}
}

func BenchmarkServe(b *testing.B) {
	store := memory.New(nil)
	l, err := ledger.Open(ledger.Config{Store: store})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	strict := false
	activation, err := policy.Load(ctx, policy.Source{
		Bundles: []policy.Bundle{{Name: "regent", FS: policies.Files(), Tested: true}}, Settings: policy.Settings{Strict: &strict}, TimeLimit: time.Minute,
	})
	if err != nil {
		b.Fatal(err)
	}
	engine := &policy.Engine{}
	engine.Activate(activation)
	router, err := New(Config{Policy: engine, Ledger: l, Resolver: anyProvider{}})
	if err != nil {
		b.Fatal(err)
	}
	answered := Outcome{Output: true, Accepted: true, Status: 200, Usage: &ledger.Usage{UncachedInput: 10, Output: 5}}
	b.ReportAllocs()
	for b.Loop() {
		if err := router.Serve(ctx, called(1<<50, "a"), func(context.Context, *Grant) Outcome { return answered }); err != nil {
			b.Fatal(err)
		}
	}
	if err := router.Close(ctx); err != nil {
		b.Fatal(err)
	}
}

type anyProvider struct{}

func (anyProvider) Resolve(Candidate) (adapters.Provider, error) { return nil, nil }
