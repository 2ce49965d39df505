package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"regent/adapters"
	"regent/ledger"
)

// rated is a call of alice's that counts under a rate of so many a minute.
func rated(max int64, sources ...string) Request {
	request := called(1000, sources...)
	request.Rates = []ledger.Rate{{Key: "token/alice%2Flaptop/1m", Max: max, Window: time.Minute}}
	return request
}

// guarded is a call whose sources have circuits that open after two failures.
func guarded(sources ...string) Request {
	request := called(1000, sources...)
	for i, source := range sources {
		request.Candidates[i].Circuit = &ledger.Circuit{Key: source, Threshold: 2, CoolDown: 30 * time.Second}
	}
	return request
}

// wantContacted serves a call and checks which sources heard of it.
func (b *bench) wantContacted(request Request, outcomes map[string]Outcome, want ...string) error {
	b.t.Helper()
	contacted, err := b.serve(request, outcomes)
	if !slices.Equal(contacted, want) {
		b.t.Fatalf("contacted %v, want %v (%v)", contacted, want, err)
	}
	return err
}

// wantRefusal checks what a caller is told.
func wantRefusal(t *testing.T, err error, code Code, class Class, reason string, retryAfterMs int64) *Error {
	t.Helper()
	var refusal *Error
	if !errors.As(err, &refusal) {
		t.Fatalf("got %v, want a refusal", err)
	}
	d := refusal.Details
	if refusal.Code != code || d.Class != class || d.Reason != reason || value(d.RetryAfterMs) != retryAfterMs {
		t.Fatalf("got %s, class %d, %s, retry after %d ms: %v", refusal.Code, d.Class, d.Reason, value(d.RetryAfterMs), err)
	}
	return refusal
}

// TestACallersRateEndsTheWalk: no other candidate helps, and a call counts once, however many candidates it takes.
func TestACallersRateEndsTheWalk(t *testing.T) {
	b := newBench(t, nil)
	outcomes := map[string]Outcome{"one": failure(adapters.Overloaded), "two": served}
	for range 2 {
		if err := b.wantContacted(rated(2, "one", "two"), outcomes, "one", "two"); err != nil {
			t.Fatal(err)
		}
	}
	b.Advance(time.Second + time.Nanosecond)
	request := rated(2, "one", "two")
	err := b.wantContacted(request, outcomes)
	refusal := wantRefusal(t, err, CodeRateLimit, ClassRate, ReasonRateLimited, 59_000)
	if want := "2 calls may be made within 1m, and were"; refusal.Message != want {
		t.Errorf("told %q", refusal.Message)
	}
	if r := refusal.Details.Rate; r == nil || r.Max != "2" || r.Window != "fixed/1m" || r.Key != "token/alice%2Flaptop/1m" {
		t.Errorf("the rate: %+v", r)
	}
	b.wantStory(request.ID, "decision one=denied two=not_reached")
	records, err := b.ledger.Store().CallRecords(ctx, request.ID)
	if err != nil || !strings.Contains(string(records[0].Body), `"reason":"rate_limited","rate":{"key":"token/alice%2Flaptop/1m","max":"2","window":"fixed/1m"}`) {
		t.Errorf("recorded %s, %v", records[0].Body, err)
	}
	wantRefusal(t, b.wantContacted(rated(0, "one"), nil), CodeRateLimit, ClassRate, ReasonRateLimited, 0)
}

// TestACandidatesRateYields: another candidate may serve.
func TestACandidatesRateYields(t *testing.T) {
	b := newBench(t, nil)
	limited := func(sources ...string) Request {
		request := called(1000, sources...)
		request.Candidates[0].Rates = []ledger.Rate{{Key: "source/one", Max: 1, Window: time.Minute}}
		return request
	}
	outcomes := map[string]Outcome{"one": served, "two": served}
	_ = b.wantContacted(limited("one", "two"), outcomes, "one")
	request := limited("one", "two")
	_ = b.wantContacted(request, outcomes, "two")
	b.wantStory(request.ID, "decision one=denied two=selected", "two success completed")
	wantRefusal(t, b.wantContacted(limited("one"), outcomes), CodeRateLimit, ClassCapacity, ReasonRateLimited, 60_000)
	host := hosted("one", "two") // a host's call without caps is counted too
	host.Candidates[0].Rates = limited("one").Candidates[0].Rates
	resolution, err := b.router.Resolve(ctx, host)
	if err != nil || resolution.Candidate.Source != "two" {
		t.Errorf("resolved %+v, %v", resolution, err)
	}
}

// TestAMissIsNotCounted: what was never contacted is given back, and the next candidate counts in its place.
func TestAMissIsNotCounted(t *testing.T) {
	b := newBench(t, nil)
	b.unknown["one"] = true
	_ = b.wantContacted(rated(1, "one", "two"), map[string]Outcome{"two": served}, "two")
	wantRefusal(t, b.wantContacted(rated(1, "two"), nil), CodeRateLimit, ClassRate, ReasonRateLimited, 60_000)
	b.Advance(time.Minute)
	wantRefusal(t, b.wantContacted(rated(1, "one"), nil), CodeUnknownProvider, ClassCapacity, ReasonMiss, 0)
	_ = b.wantContacted(rated(1, "two"), map[string]Outcome{"two": served}, "two")
	// A miss after a contacted candidate takes back nothing of the call's.
	b.Advance(time.Minute)
	_ = b.wantContacted(rated(1, "two", "one"), map[string]Outcome{"two": failure(adapters.Overloaded)}, "two")
	wantRefusal(t, b.wantContacted(rated(1, "two"), nil), CodeRateLimit, ClassRate, ReasonRateLimited, 60_000)
}

// TestTooManyCallsAtOnce: they are refused while others run, and not for longer.
func TestTooManyCallsAtOnce(t *testing.T) {
	b := newBench(t, nil)
	one := func() Request {
		request := called(1000, "one", "two")
		request.Scopes = append(request.Scopes, Scope{Kind: ledger.ScopeToken, ID: "alice/laptop", Limits: map[ledger.Unit][]ledger.Limit{
			ledger.Calls: {{Window: ledger.AtOnce{}, Max: 1}},
		}})
		return request
	}
	err := b.router.Serve(ctx, one(), func(_ context.Context, grant *Grant) Outcome {
		if grant.Candidate.Source == "two" {
			return served
		}
		err := b.router.Serve(ctx, one(), nil)
		refusal := wantRefusal(t, err, CodeRateLimit, ClassRate, ReasonConcurrency, 60_000)
		if want := "1 calls run for token/alice%2Flaptop/calls, and 1 may at once"; refusal.Message != want {
			t.Errorf("told %q", refusal.Message)
		}
		if l := refusal.Details.Limit; l == nil || l.Window != "at-once" || l.Held != "1" || l.Shortfall != "1" {
			t.Errorf("the limit: %+v", l)
		}
		return failure(adapters.Overloaded) // the next attempt runs in its place
	})
	if err != nil {
		t.Fatal(err)
	}
	b.flush()
	_ = b.wantContacted(one(), map[string]Outcome{"one": served}, "one")
}

// TestAnOpenCircuitYields: it is left alone, then probed by one call, which closes it or has it left alone again.
func TestAnOpenCircuitYields(t *testing.T) {
	b := newBench(t, nil)
	down := map[string]Outcome{"one": failure(adapters.UpstreamError), "two": served}
	up := map[string]Outcome{"one": served, "two": served}
	for range 2 {
		_ = b.wantContacted(guarded("one", "two"), down, "one", "two")
	}
	request := guarded("one", "two")
	_ = b.wantContacted(request, up, "two")
	b.wantStory(request.ID, "decision one=circuit_open two=selected", "two success completed")
	wantRefusal(t, b.wantContacted(guarded("one"), up), CodeCircuit, ClassCapacity, ReasonCircuitOpen, 30_000)
	b.Advance(30 * time.Second)
	_ = b.wantContacted(guarded("one", "two"), down, "one", "two") // the probe fails
	_ = b.wantContacted(guarded("one", "two"), up, "two")
	b.Advance(30 * time.Second)
	err := b.router.Serve(ctx, guarded("one", "two"), func(context.Context, *Grant) Outcome {
		wantRefusal(t, b.router.Serve(ctx, guarded("one"), nil), CodeCircuit, ClassCapacity, ReasonCircuitOpen, 60_000)
		return served
	})
	if err != nil {
		t.Fatal(err)
	}
	b.flush()
	_ = b.wantContacted(guarded("one"), up, "one")
}

// TestAMissGivesTheProbeBack: the next call may probe at once.
func TestAMissGivesTheProbeBack(t *testing.T) {
	b := newBench(t, nil)
	for range 2 {
		_ = b.wantContacted(guarded("one"), map[string]Outcome{"one": failure(adapters.Connection)}, "one")
	}
	b.Advance(30 * time.Second)
	b.unknown["one"] = true
	_ = b.wantContacted(guarded("one"), nil)
	b.unknown["one"] = false
	_ = b.wantContacted(guarded("one"), map[string]Outcome{"one": {Err: ErrAborted}}, "one") // says nothing either
	_ = b.wantContacted(guarded("one"), map[string]Outcome{"one": served}, "one")
}

// TestACallerWhoLeavesBeforeTheCandidateIsContacted takes nothing along.
func TestACallerWhoLeavesBeforeTheCandidateIsContacted(t *testing.T) {
	left, leave := context.WithCancel(ctx)
	b := newBench(t, nil)
	b.resolving = leave // which is between the admission and the attempt
	request := rated(1, "one")
	err := b.router.Serve(left, request, func(context.Context, *Grant) Outcome {
		t.Error("a provider was contacted")
		return served
	})
	if !errors.Is(err, ErrAborted) {
		t.Fatalf("got %v", err)
	}
	b.flush()
	b.wantStory(request.ID, "decision one=selected", "one abort cancelled")
	b.wantBalance(ledger.ScopeUser, "alice", 0, 0)
	if err := b.wantContacted(rated(1, "one"), map[string]Outcome{"one": served}, "one"); err != nil {
		t.Error(err)
	}
}

func TestHealth(t *testing.T) {
	refused := func(reason adapters.Reason, status int) Outcome {
		return Outcome{Err: &adapters.Failure{Reason: reason, Status: status}}
	}
	stalled := func(reason adapters.Reason) Outcome {
		outcome := refused(reason, 200)
		outcome.Stalled, outcome.Output, outcome.Accepted = true, true, true
		return outcome
	}
	for want, outcomes := range map[ledger.Health][]Outcome{
		ledger.Healthy: {served, {}, {Stalled: true}},
		ledger.Failing: {
			refused(adapters.UpstreamError, 500), refused(adapters.UpstreamError, 502), refused(adapters.UpstreamError, 200),
			refused(adapters.UpstreamError, 307), refused(adapters.Overloaded, 503), refused(adapters.Overloaded, 529),
			refused(adapters.Overloaded, 408), refused(adapters.Credential, 401), refused(adapters.Credential, 402),
			refused(adapters.Connection, 0), refused(adapters.Timeout, 0), refused(adapters.Timeout, 200), refused(adapters.StreamBroken, 200),
		},
		ledger.Neutral: {
			refused(adapters.Credential, 403), refused(adapters.Credential, 200), refused(adapters.ModelMissing, 404), refused(adapters.ModelMissing, 0),
			refused(adapters.Overloaded, 409), refused(adapters.Overloaded, 200), refused(adapters.RateLimited, 429),
			refused(adapters.InvalidRequest, 400), refused(adapters.InvalidRequest, 418), refused(adapters.UpstreamError, 415),
			refused(adapters.ContentPolicy, 403), refused(adapters.ContextLength, 400),
			stalled(adapters.StreamBroken), stalled(adapters.Timeout), stalled(adapters.Connection),
			{Err: ErrAborted}, {Err: errors.New("our own")}, {Err: ErrAborted, Output: true},
		},
	} {
		for _, outcome := range outcomes {
			if got := health(outcome); got != want {
				t.Errorf("%+v: got %q, want %q", outcome, got, want)
			}
		}
	}
}
