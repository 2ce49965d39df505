package engine

import (
	"context"
	"errors"
	"io"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

// What hosts do without meaning it, and what others do to them on purpose.

// TestWhatAHostChangesLaterChangesNoHold: its caps, prices and lists are what they were when the candidate was admitted.
func TestWhatAHostChangesLaterChangesNoHold(t *testing.T) {
	b := newBench(t, withBudget(1000))
	price, most := perToken, int64(100)
	request := hosted("one")
	request.TaskID, request.MaxTokens, request.Candidates[0].Price = "build", &most, &price
	for range 3 {
		most, price = 100, perToken
		resolution, err := b.router.Resolve(ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		most, price = 900, ledger.Price{}
		b.wantBalance(ledger.ScopeTask, "acme:build", 0, 100)
		if err := b.router.ReleaseBudget(ctx, resolution.Budget(), resolution.Reservation()); err != nil {
			t.Fatal(err)
		}
		b.wantBalance(ledger.ScopeTask, "acme:build", 0, 0)
	}
	most, price = 100, perToken
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	price = ledger.Price{}
	reservation := resolution.Reservation()
	charge, err := b.router.RecordUsage(ctx, UsageReport{Budget: resolution.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: 50}})
	if err != nil || charge.NanoUSD != 50_000 {
		t.Errorf("charged %+v, %v", charge, err)
	}
}

// TestAnAttemptIsWhoseItIs: its name opens nobody else's hold, and nothing else for its owner.
func TestAnAttemptIsWhoseItIs(t *testing.T) {
	b := newBench(t, withBudget(1000))
	own := hosted("one", "two")
	own.TaskID, own.MaxTokens, own.Attempt = "build", number(10), uuid.Must(uuid.NewV7())
	first, err := b.router.Resolve(ctx, own)
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.router.Resolve(ctx, own)
	if err != nil || again.Reservation() != first.Reservation() {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	for name, change := range map[string]func(*Request){
		"another tenant": func(r *Request) { r.Identity.Tenant = text("evil") },
		"another task":   func(r *Request) { r.TaskID = "other" },
		"another model":  func(r *Request) { r.Candidates = r.Candidates[1:] },
		"more":           func(r *Request) { r.MaxTokens = number(1_000_000) },
		"money":          func(r *Request) { r.MaxCostNanoUSD = number(1) },
	} {
		other := own
		change(&other)
		_, err := b.router.Resolve(ctx, other)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeState && refusal.Code != CodeBudget {
			t.Errorf("%s: got %v", name, err)
		}
	}
	b.wantBalance(ledger.ScopeTask, "acme:build", 0, 10)
}

// TestAReportOfAnAttemptThatHasEnded is answered as one by its reservation is.
func TestAReportOfAnAttemptThatHasEnded(t *testing.T) {
	b := newBench(t, withBudget(1000))
	for ended, end := range map[string]func(*Resolution) error{
		"released": func(r *Resolution) error { return b.router.ReleaseBudget(ctx, r.Budget(), r.Reservation()) },
		"charged": func(r *Resolution) error {
			reservation := r.Reservation()
			return second(b.router.RecordUsage(ctx, UsageReport{Budget: r.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: 3}}))
		},
	} {
		request := hosted("one")
		request.TaskID, request.MaxTokens = ended, number(10)
		resolution, err := b.router.Resolve(ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		if err := end(resolution); err != nil {
			t.Fatal(err)
		}
		report := UsageReport{Budget: resolution.Budget(), Attempt: resolution.Attempt(), Usage: ledger.Usage{Output: 5}}
		_, err = b.router.RecordUsage(ctx, report)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeState {
			t.Errorf("%s: got %v, want STATE", ended, err)
		}
		report.Usage.Output = 3
		if charge, err := b.router.RecordUsage(ctx, report); ended == "charged" && (err != nil || charge.Tokens != 3) {
			t.Errorf("the same report again: %+v, %v", charge, err)
		}
	}
}

// TestCallsShareTheirCandidates: a host may make them once, for all calls at once.
func TestCallsShareTheirCandidates(t *testing.T) {
	b := newBench(t, governing(resolvers(answering(1)), nil))
	cost := &Cost{Input: new(1.0), Output: new(2.0), Unit: PerMillion}
	request := capped(10)
	request.Facts.Protocol = ""
	for _, id := range []string{"one", "two:nitro"} {
		request.Candidates = append(request.Candidates, Model{Provider: "fake", ID: id, Cost: cost, Compat: Compat{OpenRouterRouting: []byte(`{"sort":"price"}`)}}.Candidate())
	}
	plain := request
	plain.Candidates = []Candidate{Model{Provider: "fake", ID: "plain", Cost: cost}.Candidate()}
	var wg sync.WaitGroup
	for _, shared := range []Request{request, plain} {
		governed, _ := b.governed(shared)
		for range 8 {
			wg.Go(func() {
				if _, err := ask(ctx, governed, streamed); err != nil {
					t.Error(err)
				}
				if _, err := b.router.Resolve(ctx, shared); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	if request.Candidates[0].Routing == nil || request.Candidates[1].Model != "two:nitro" {
		t.Errorf("the host's own candidates were changed: %+v", request.Candidates)
	}
}

// resolvers has everything served by one provider.
type everything struct{ provider adapters.Provider }

func resolvers(provider adapters.Provider) Resolver { return everything{provider} }

func (e everything) Resolve(Candidate) (adapters.Provider, error) { return e.provider, nil }

// TestAProviderThatDoesNotReturnHoldsNothing: what it held is settled when its consumer goes, or its answer is complete.
func TestAProviderThatDoesNotReturnHoldsNothing(t *testing.T) {
	t.Run("Send", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release, contacted := make(chan struct{}), make(chan struct{})
			b := newBench(t, governing(resolvers(&watched{Provider: answering(7), send: func(context.Context, adapters.Request) error {
				close(contacted)
				<-release
				return nil
			}}), nil))
			governed, settlements := b.governed(capped(100, "one"))
			leaving, leave := context.WithCancel(ctx)
			told := make(chan error)
			go func() {
				_, err := governed.Send(leaving, streamed)
				told <- err
			}()
			<-contacted
			leave()
			b.wantOutcomes(settlements, "one abort 0")
			b.wantBalance(ledger.ScopeTask, "acme:task", 0, 0)
			close(release)
			if err := <-told; !errors.Is(err, ErrAborted) {
				t.Errorf("got %v", err)
			}
		})
	})
	t.Run("Close", func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(t, governing(resolvers(&watched{Provider: answering(7), closing: func() { <-release }}), nil))
		governed, settlements := b.governed(capped(100, "one"))
		answer, err := governed.Send(ctx, streamed)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			_, err := read(answer)
			ended <- err
		}()
		b.wantOutcomes(settlements, "one success 7")
		close(release)
		if err := <-ended; err != io.EOF {
			t.Errorf("got %v", err)
		}
	})
}

// TestAResolverThatOutlivesTheHold has found nobody: nothing is contacted on a hold that has been charged.
func TestAResolverThatOutlivesTheHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config, _ *policy.Settings) {
			c.Budgets = &Budgets{MaxTokens: number(1000), ReservationTTL: time.Second}
		})
		request := hosted("one")
		request.TaskID, request.MaxTokens = "build", number(100)
		b.resolving = func() { time.Sleep(500 * time.Millisecond); b.Advance(900 * time.Millisecond) }
		resolution, err := b.router.Resolve(ctx, request)
		if err != nil || resolution.Reservation().Token < 2 {
			t.Fatalf("a slow one: %+v, %v; the hold is renewed", resolution, err)
		}
		b.resolving = func() { time.Sleep(2 * time.Second); b.Advance(2 * time.Second) }
		if _, err := b.router.Resolve(ctx, request); err == nil {
			t.Error("one that is too slow was taken")
		}
	})
}

// TestCloseWaitsForCalls: none begins any more, and those that run are settled.
func TestCloseWaitsForCalls(t *testing.T) {
	b := newBench(t, governing(resolvers(answering(7)), nil))
	governed, settlements := b.governed(capped(100, "one"))
	answer, err := governed.Send(ctx, streamed)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan error)
	go func() { closed <- b.router.Close(ctx) }()
	for refused := false; !refused; runtime.Gosched() {
		_, err := b.router.Resolve(ctx, hosted("one"))
		var refusal *Error
		refused = errors.As(err, &refusal) && refusal.Code == CodeState
	}
	if _, err := governed.Send(ctx, streamed); err == nil {
		t.Error("a call began on a router that closes")
	}
	if _, err := read(answer); err != io.EOF {
		t.Errorf("a call that ran: %v", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	b.wantOutcomes(settlements, "one success 7")
}

// TestCountsOfAnOpeningAreNone: they are those of a call that only begins.
func TestCountsOfAnOpeningAreNone(t *testing.T) {
	b := newBench(t, governing(resolvers(&scripted{events: []adapters.Event{reporting(opening, 1), hello, hello}}), nil))
	governed, settlements := b.governed(capped(100, "one"))
	answer, err := governed.Send(ctx, streamed)
	if err != nil {
		t.Fatal(err)
	}
	readEvents(t, answer, 2)
	_ = answer.Close()
	b.wantOutcomes(settlements, "one early_close 100?")
}

// TestOutputThatCannotBeIsCountedAllTheSame: by its parts, and up to what can be charged.
func TestOutputThatCannotBeIsCountedAllTheSame(t *testing.T) {
	for bytes, want := range map[int]int64{-1 << 62: 1, math.MinInt: 1, math.MaxInt: outputBytesMax / 4, math.MaxInt - 2: outputBytesMax / 4} {
		var outcome Outcome
		for range 3 {
			outcome.Count(&adapters.Event{Kind: adapters.Content, OutputBytes: bytes})
		}
		if got := outcome.OutputTokens; got < want || got > outputBytesMax {
			t.Errorf("%d bytes: %d tokens", bytes, got)
		}
	}
}

// TestAUsageIsWhatItWasWhenItCame: its provider may go on counting in it.
func TestAUsageIsWhatItWasWhenItCame(t *testing.T) {
	usage := ledger.Usage{Output: 7, Units: map[string]int64{"web_search": 1}}
	var outcome Outcome
	outcome.Count(&adapters.Event{Kind: adapters.Done, Usage: &usage})
	usage.Output, usage.Units["web_search"] = 0, 0
	if outcome.Usage.Output != 7 || outcome.Usage.Units["web_search"] != 1 {
		t.Errorf("%+v", outcome.Usage)
	}
}

// TestASelectionChangesNoRequest, whatever it does to what it is given.
func TestASelectionChangesNoRequest(t *testing.T) {
	b := newBench(t, selecting(ranking{rank: func(r *Request) ([]int, error) {
		r.Candidates[0], r.Candidates[1] = r.Candidates[1], candidate("evil")
		r.MaxTokens, r.TaskID = nil, "elsewhere"
		return []int{0, 1}, nil
	}}))
	request := hosted("one", "two")
	request.TaskID, request.MaxTokens = "build", number(10)
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil || resolution.Candidate.Source != "one" || resolution.Budget().TaskID != "build" || resolution.Reservation().Token == 0 {
		t.Errorf("%+v, %v", resolution, err)
	}
	if request.Candidates[0].Source != "one" || request.Candidates[1].Source != "two" {
		t.Errorf("the host's own candidates were changed")
	}
}

// TestACallbackThatEndsItsGoroutineEndsNoOther.
func TestACallbackThatEndsItsGoroutineEndsNoOther(t *testing.T) {
	b := newBench(t, nil)
	told := make(chan struct{}, 8)
	b.router.OnDiagnostics = func(Diagnostics) { told <- struct{}{}; runtime.Goexit() }
	for range 3 {
		if _, err := b.router.Resolve(ctx, hosted("one")); err != nil {
			t.Fatal(err)
		}
	}
	b.router.teller.wait()
	if len(told) != 3 {
		t.Errorf("told %d times, want 3", len(told))
	}
}

// TestAnEmptyNameIsNobodys: state that outlives the process is kept for somebody.
func TestAnEmptyNameIsNobodys(t *testing.T) {
	b := newBenchOn(t, func(s ledger.Store) ledger.Store { return durably{s} }, nil)
	for _, identity := range []policy.Identity{{}, {User: text("")}, {Principal: text(""), Tenant: text("")}} {
		request := hosted("one")
		request.Identity, request.Verified = identity, true
		_, err := b.router.Resolve(ctx, request)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeIdentity {
			t.Errorf("%+v: got %v", identity, err)
		}
	}
}

// TestAModelThatIsNothingButRouting cannot be asked for without it.
func TestAModelThatIsNothingButRouting(t *testing.T) {
	b := newBench(t, nil)
	for _, id := range []string{"@preset/cheap", "@PRESET/cheap"} {
		request := hosted()
		request.Candidates = []Candidate{Model{Provider: "openrouter", ID: id}.Candidate()}
		b.refused(request, CodeValidation, ReasonInvalid)
	}
	if bare := withoutSuffixes("a/b@Preset/mine:free"); bare != "a/b" {
		t.Errorf("got %q", bare)
	}
}

// TestAPolicyThatIsNone is told at once.
func TestAPolicyThatIsNone(t *testing.T) {
	b := newBench(t, nil)
	_, err := b.router.NewGovernedProvider(GovernedConfig{Request: hosted("one"), RequestPolicies: []RequestPolicy{nil}})
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Code != CodeValidation {
		t.Errorf("got %v", err)
	}
}

// TestAReservationIsPrintedWithoutItsToken.
func TestAReservationIsPrintedWithoutItsToken(t *testing.T) {
	reservation := Reservation{ID: uuid.Must(uuid.NewV7()), Token: 987654}
	if got := reservation.String(); got != reservation.ID.String() {
		t.Errorf("got %s", got)
	}
}
