package engine

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

func TestASourceIsTriedAtMostOnce(t *testing.T) {
	b := newBench(t, nil)
	request := called(1000, "one", "one", "two", "one")
	contacted, err := b.serve(request, map[string]Outcome{"one": failure(adapters.Overloaded), "two": served})
	if err != nil || !slices.Equal(contacted, []string{"one", "two"}) {
		t.Fatalf("contacted %v, %v", contacted, err)
	}
	b.wantStory(request.ID, "decision one=selected one=not_reached two=not_reached one=not_reached", "one error ",
		"decision one=failed one=denied two=selected one=not_reached", "two success completed")
}

func TestPolicySaysWhichFailuresAreTriedElsewhere(t *testing.T) {
	for reason, want := range map[adapters.Reason][]string{adapters.Overloaded: {"one", "two"}, adapters.Timeout: {"one"}} {
		b := newBench(t, func(_ *Config, s *policy.Settings) { s.Fallback = &policy.Fallback{On: []string{"overloaded"}} })
		request := called(1000, "one", "two")
		outcome := failure(reason)
		contacted, err := b.serve(request, map[string]Outcome{"one": outcome, "two": served})
		if !slices.Equal(contacted, want) || (err == nil) != (len(want) == 2) {
			t.Errorf("%s: contacted %v, %v", reason, contacted, err)
		}
		if len(want) == 1 {
			b.wantStory(request.ID, "decision one=selected two=not_reached", "decision one=failed two=denied", "one error failed")
			if !errors.Is(err, outcome.Err) {
				t.Errorf("the answer is %v, want the failure of the one attempt", err)
			}
		}
		if len(b.settlements) != len(want) {
			t.Errorf("%s: %d settlements told, want %d", reason, len(b.settlements), len(want))
		}
	}
}

// TestARequestAtFaultIsNeverTriedElsewhere: not even if policy would have it.
func TestARequestAtFaultIsNeverTriedElsewhere(t *testing.T) {
	for _, reason := range []adapters.Reason{adapters.InvalidRequest, adapters.ContentPolicy, adapters.ContextLength} {
		b := newBench(t, func(_ *Config, s *policy.Settings) { s.Fallback = &policy.Fallback{On: []string{string(reason)}} })
		request := called(1000, "one", "two")
		contacted, err := b.serve(request, map[string]Outcome{"one": failure(reason), "two": served})
		if err == nil || !slices.Equal(contacted, []string{"one"}) {
			t.Errorf("%s: contacted %v, %v", reason, contacted, err)
		}
		b.wantStory(request.ID, "decision one=selected two=not_reached", "one error failed")
	}
}

// TestAFailoverLeavesAPool: without a task each model has its own, which the failed attempt's hold goes back to.
func TestAFailoverLeavesAPool(t *testing.T) {
	b := newBench(t, withBudget(100))
	request := hosted("one", "two")
	request.MaxTokens = number(60)
	contacted, err := b.serve(request, map[string]Outcome{"one": failure(adapters.Overloaded), "two": served})
	if err != nil || !slices.Equal(contacted, []string{"one", "two"}) {
		t.Fatalf("contacted %v, %v", contacted, err)
	}
	b.wantBalance(ledger.ScopeModel, modelKey(request.Identity, "fake", "one"), 0, 0)
	b.wantBalance(ledger.ScopeModel, modelKey(request.Identity, "fake", "two"), 5, 0)
}

// TestTheCallersLimitEndsAFailover: what the first attempt is charged may leave too little for another.
func TestTheCallersLimitEndsAFailover(t *testing.T) {
	b := newBench(t, nil)
	request := called(100, "one", "two", "three") // a call needs 60
	charged := failure(adapters.StreamBroken)
	charged.Accepted, charged.Usage = true, &ledger.Usage{UncachedInput: 41}
	contacted, err := b.serve(request, map[string]Outcome{"one": charged, "two": served, "three": served})
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Details.Class != ClassCallerLimit || !slices.Equal(contacted, []string{"one"}) {
		t.Fatalf("contacted %v, %v", contacted, err)
	}
	if d := refusal.Diagnostics; d.Outcome != "deny" || len(d.Attempts) != 2 || d.Attempts[0].Outcome != Failed || d.Attempts[1].Outcome != DeniedStep {
		t.Errorf("diagnostics: %+v", d)
	}
	b.wantBalance(ledger.ScopeUser, "alice", 41, 0)
	b.wantStory(request.ID, "decision one=selected two=not_reached three=not_reached", "decision one=failed two=denied three=not_reached", "one error failed")
	if len(b.settlements) != 1 || b.settlements[0].Charge.Tokens != 41 || b.settlements[0].BudgetReleased {
		t.Errorf("settlements: %+v", b.settlements)
	}
}

// TestAFailoverThatIsChargedTellsSo: the first attempt's charge is in its own settlement.
func TestAFailoverThatIsChargedTellsSo(t *testing.T) {
	b := newBench(t, func(_ *Config, s *policy.Settings) {
		s.Settlement = &policy.Settlement{Interrupted: "estimate", AcceptedWithoutOutput: "estimate"}
	})
	accepted := failure(adapters.StreamBroken)
	accepted.Accepted = true
	request := called(1000, "one", "two")
	request.TaskID, request.Facts.Kind = "build", Tool
	if _, err := b.serve(request, map[string]Outcome{"one": accepted, "two": served}); err != nil {
		t.Fatal(err)
	}
	if len(b.settlements) != 2 {
		t.Fatalf("settlements: %+v", b.settlements)
	}
	first, last := b.settlements[0], b.settlements[1]
	if want := (ledger.Charge{Tokens: 10, NanoUSD: 10_000, Estimated: true}); first.Charge != want || first.BudgetReleased || first.Source != "one" || first.Outcome != ledger.Errored {
		t.Errorf("the first: %+v", first)
	}
	if want := (ledger.Charge{Tokens: 5, NanoUSD: 5000}); last.Charge != want || last.Source != "two" || last.Outcome != ledger.Success || !reflect.DeepEqual(last.Usage, served.Usage) {
		t.Errorf("the last: %+v", last)
	}
	for _, s := range b.settlements {
		if s.Call != request.ID || s.TaskID != "build" || s.Kind != Tool || s.Identity.PrincipalID != "alice" || s.Provider != "fake" {
			t.Errorf("of the call: %+v", s)
		}
	}
	if first.Attempt == last.Attempt {
		t.Error("two attempts have one id")
	}
	b.wantBalance(ledger.ScopeUser, "alice", 15, 0)
}

// TestSettledByTheRules is the table of [TestSettle] once more, through the ledger: each ends once, with the charge.
func TestSettledByTheRules(t *testing.T) {
	for name, test := range map[string]struct {
		outcome  Outcome
		settings policy.Settlement
		charge   ledger.Charge
		released bool
		state    ledger.State
	}{
		"success": {served, policy.Settlement{Interrupted: "held", AcceptedWithoutOutput: "release"},
			ledger.Charge{Tokens: 5, NanoUSD: 5000}, false, ledger.Completed},
		"held": {Outcome{Output: true, OutputTokens: 7}, policy.Settlement{Interrupted: "held", AcceptedWithoutOutput: "release"},
			ledger.Charge{Tokens: 60, NanoUSD: 60_000, UnknownUsage: true}, false, ledger.Completed},
		"estimate": {Outcome{Err: ErrAborted, Output: true, OutputTokens: 7}, policy.Settlement{Interrupted: "estimate", AcceptedWithoutOutput: "release"},
			ledger.Charge{Tokens: 17, NanoUSD: 17_000, Estimated: true}, false, ledger.Cancelled},
		"an estimate above what was held": {Outcome{Err: ErrAborted, Output: true, OutputTokens: 999}, policy.Settlement{Interrupted: "estimate", AcceptedWithoutOutput: "release"},
			ledger.Charge{Tokens: 60, NanoUSD: 60_000, Estimated: true}, false, ledger.Cancelled},
		"release": {Outcome{Err: ErrAborted, Accepted: true}, policy.Settlement{Interrupted: "estimate", AcceptedWithoutOutput: "release"},
			ledger.Charge{}, true, ledger.Cancelled},
		"more than was held": {Outcome{Output: true, Usage: &ledger.Usage{Output: 100}}, policy.Settlement{Interrupted: "estimate", AcceptedWithoutOutput: "release"},
			ledger.Charge{Tokens: 100, NanoUSD: 100_000, Overage: true}, false, ledger.Completed},
		"a service tier that the price does not list": {Outcome{Output: true, Usage: &ledger.Usage{Output: 5, Tier: "scale"}}, policy.Settlement{Interrupted: "estimate", AcceptedWithoutOutput: "release"},
			ledger.Charge{Tokens: 5, NanoUSD: 60_000, UnknownUsage: true}, false, ledger.Completed},
		"a unit that the price does not list": {Outcome{Output: true, Usage: &ledger.Usage{Output: 5, Units: map[string]int64{"web_search": 1}}}, policy.Settlement{Interrupted: "estimate", AcceptedWithoutOutput: "release"},
			ledger.Charge{Tokens: 5, NanoUSD: 60_000, UnknownUsage: true}, false, ledger.Completed},
		"usage that cannot be": {Outcome{Output: true, Usage: &ledger.Usage{Output: -1}}, policy.Settlement{Interrupted: "estimate", AcceptedWithoutOutput: "release"},
			ledger.Charge{Tokens: 60, NanoUSD: 60_000, UnknownUsage: true}, false, ledger.Completed},
	} {
		b := newBench(t, func(_ *Config, s *policy.Settings) { s.Settlement = &test.settings })
		request := called(1000, "one")
		_, _ = b.serve(request, map[string]Outcome{"one": test.outcome})
		if len(b.settlements) != 1 || b.settlements[0].Charge != test.charge || b.settlements[0].BudgetReleased != test.released {
			t.Errorf("%s: settlements %+v", name, b.settlements)
		}
		b.wantBalance(ledger.ScopeUser, "alice", test.charge.Tokens, 0)
		report, err := b.ledger.Store().Call(ctx, request.ID)
		if err != nil || report.State != test.state || report.Attempts[0].Charge != test.charge {
			t.Errorf("%s: %+v, %v", name, report, err)
		}
		outcomes := 0
		for _, line := range b.story(request.ID) {
			if strings.HasPrefix(line, "one ") {
				outcomes++
			}
		}
		if outcomes != 1 {
			t.Errorf("%s: %d outcomes, want 1", name, outcomes)
		}
	}
}

func TestServeMovesOnAfterAMiss(t *testing.T) {
	b := newBench(t, nil)
	b.unknown["one"] = true
	request := called(60, "one", "two") // enough for one hold
	contacted, err := b.serve(request, map[string]Outcome{"two": served})
	if err != nil || !slices.Equal(contacted, []string{"two"}) {
		t.Fatalf("contacted %v, %v", contacted, err)
	}
	b.wantBalance(ledger.ScopeUser, "alice", 5, 0)
	b.wantStory(request.ID, "decision one=selected two=not_reached", "one error ", "decision one=miss two=selected", "two success completed")
	if len(b.settlements) != 1 || b.settlements[0].Source != "two" {
		t.Errorf("settlements: %+v, want one of the candidate that was contacted", b.settlements)
	}
}

// TestMissesAreNoAttempts: the cap counts what was contacted.
func TestMissesAreNoAttempts(t *testing.T) {
	b := newBench(t, nil)
	b.unknown["one"], b.unknown["three"] = true, true
	down := failure(adapters.Overloaded)
	request := called(60, "one", "two", "three", "four", "five", "six")
	contacted, err := b.serve(request, map[string]Outcome{"two": down, "four": down, "five": down, "six": served})
	if !errors.Is(err, down.Err) || !slices.Equal(contacted, []string{"two", "four", "five"}) {
		t.Errorf("contacted %v, %v", contacted, err)
	}
	b.wantBalance(ledger.ScopeUser, "alice", 0, 0)
}

func TestServeWithMissesAlone(t *testing.T) {
	b := newBench(t, nil)
	b.unknown["one"], b.unknown["two"] = true, true
	request := called(60, "one", "two")
	contacted, err := b.serve(request, nil)
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Code != CodeUnknownProvider || len(contacted) != 0 {
		t.Fatalf("contacted %v, %v", contacted, err)
	}
	if d := refusal.Diagnostics; d.Outcome != "deny" || len(d.Attempts) != 2 || d.Attempts[1].Outcome != Miss {
		t.Errorf("diagnostics: %+v", d)
	}
	b.wantBalance(ledger.ScopeUser, "alice", 0, 0)
	b.wantStory(request.ID, "decision one=selected two=not_reached", "one error ", "decision one=miss two=selected",
		"decision one=miss two=miss", "two error failed")
	if len(b.settlements) != 0 {
		t.Errorf("settlements of what was never contacted: %+v", b.settlements)
	}
}

func TestAMissAfterAFailure(t *testing.T) {
	b := newBench(t, nil)
	b.unknown["two"] = true
	request := called(60, "one", "two")
	down := failure(adapters.Overloaded)
	if _, err := b.serve(request, map[string]Outcome{"one": down}); !errors.Is(err, down.Err) {
		t.Errorf("the answer is %v, want the failure of the one attempt", err)
	}
	b.wantBalance(ledger.ScopeUser, "alice", 0, 0)
	report, err := b.ledger.Store().Call(ctx, request.ID)
	if err != nil || report.State != ledger.Failed || len(b.settlements) != 1 || b.settlements[0].Source != "one" {
		t.Errorf("%+v, %v, settlements %+v", report, err, b.settlements)
	}
}

// TestAStoreThatFailsBetweenAttempts: the first attempt's failure is the answer, and it is settled when the store is back.
func TestAStoreThatFailsBetweenAttempts(t *testing.T) {
	store := &failing{}
	b := newBenchOn(t, func(inner ledger.Store) ledger.Store { store.Store = inner; return store }, nil)
	request := called(1000, "one", "two")
	down := failure(adapters.Overloaded)
	err := b.router.Serve(ctx, request, func(_ context.Context, grant *Grant) Outcome {
		store.down.Store(true)
		return down
	})
	if !errors.Is(err, down.Err) {
		t.Errorf("got %v", err)
	}
	store.down.Store(false)
	b.flush()
	b.wantStory(request.ID, "decision one=selected two=not_reached", "decision one=failed two=denied", "one error failed")
	b.wantBalance(ledger.ScopeUser, "alice", 0, 0)
	if len(b.settlements) != 1 {
		t.Errorf("%d settlements told, want 1", len(b.settlements))
	}
}

func TestAnIdempotencyKeyIsTakenOnce(t *testing.T) {
	b := newBench(t, nil)
	first, again := called(1000, "one"), called(1000, "one", "two")
	first.Call.IdempotencyKey, again.Call.IdempotencyKey = "key", "key"
	err := b.router.Serve(ctx, first, func(context.Context, *Grant) Outcome {
		contacted, err := b.serveWithin(again)
		var refusal *Error
		var duplicate *ledger.DuplicateError
		if !errors.As(err, &refusal) || refusal.Details.Class != ClassDuplicate || !errors.As(err, &duplicate) || duplicate.Call != first.ID || contacted {
			t.Errorf("the key again: contacted %v, %v", contacted, err)
		}
		return served
	})
	b.flush()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.ledger.Store().Call(ctx, again.ID); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("no call came about: %v", err)
	}
	b.wantBalance(ledger.ScopeUser, "alice", 5, 0)
}

// serveWithin serves a call while another runs.
func (b *bench) serveWithin(request Request) (contacted bool, err error) {
	err = b.router.Serve(ctx, request, func(context.Context, *Grant) Outcome {
		contacted = true
		return served
	})
	return contacted, err
}

// TestACallerWhoIsGone: nothing is tried for them, and nothing is recorded of a call that did not come about.
func TestACallerWhoIsGone(t *testing.T) {
	b := newBench(t, nil)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	request := called(1000, "one", "two")
	err := b.router.Serve(gone, request, func(context.Context, *Grant) Outcome {
		t.Error("a provider was contacted")
		return served
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	b.flush()
	if _, err := b.ledger.Store().Call(ctx, request.ID); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("the call: %v", err)
	}

	left, leave := context.WithCancel(ctx)
	request = called(1000, "one", "two")
	contacted := 0
	err = b.router.Serve(left, request, func(context.Context, *Grant) Outcome {
		contacted++
		leave()
		return failure(adapters.Connection)
	})
	b.flush()
	if contacted != 1 || err == nil {
		t.Errorf("%d providers were contacted, %v; want no other one after the caller left", contacted, err)
	}
	b.wantStory(request.ID, "decision one=selected two=not_reached", "one error failed")
	b.wantBalance(ledger.ScopeUser, "alice", 0, 0)
}

// TestWhatEndsInAPanicIsSettledOnce: whoever it was that panicked.
func TestWhatEndsInAPanicIsSettledOnce(t *testing.T) {
	b := newBench(t, nil)
	request := called(1000, "one", "two")
	func() {
		defer func() {
			if recover() != "a fault" {
				t.Error("the panic was swallowed")
			}
		}()
		_ = b.router.Serve(ctx, request, func(_ context.Context, grant *Grant) Outcome {
			if grant.Candidate.Source == "one" {
				return failure(adapters.Overloaded)
			}
			panic("a fault")
		})
	}()
	b.flush()
	if len(b.settlements) != 2 || b.settlements[1].Source != "two" || b.settlements[1].Outcome != ledger.Errored || !b.settlements[1].BudgetReleased {
		t.Errorf("settlements: %+v", b.settlements)
	}
	b.wantBalance(ledger.ScopeUser, "alice", 0, 0)
	b.wantStory(request.ID, "decision one=selected two=not_reached", "one error ", "decision one=failed two=selected", "two error failed")
}
