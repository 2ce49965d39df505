package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

// wantIdle waits until nothing is left of a provider's calls: one that was aborted is told of before it has left.
func wantIdle(t *testing.T, g *GovernedProvider) {
	t.Helper()
	running := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.running)
	}
	for deadline := time.Now().Add(10 * time.Second); running() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d calls are under way, want none", running())
		}
	}
}

// wantPool checks what is used and held of the task that [capped] names.
func (b *bench) wantPool(used, held int64) {
	b.t.Helper()
	b.wantBalance(ledger.ScopeTask, TaskKey(hosted().Identity, "task"), used, held)
}

// outcomes tells settlements in short: who, how, and what was charged.
func outcomes(settlements []Settlement) (all []string) {
	for _, s := range settlements {
		mark := map[bool]string{true: "?"}[s.UnknownUsage] + map[bool]string{true: "~"}[s.Charge.Estimated]
		all = append(all, fmt.Sprintf("%s %s %d%s", s.Source, s.Outcome, s.Charge.Tokens, mark))
	}
	return all
}

func (b *bench) wantOutcomes(settlements <-chan Settlement, want ...string) {
	b.t.Helper()
	if got := outcomes(b.awaitSettlements(settlements, len(want))); !slices.Equal(got, want) {
		b.t.Fatalf("settled %q, want %q", got, want)
	}
}

func TestGovernedProvidersAreKnown(t *testing.T) {
	b := newBench(t, governing(providers{"one": answering(1)}, nil))
	governed, _ := b.governed(hosted("one"))
	for provider, want := range map[adapters.Provider]bool{
		governed: true, struct{ *GovernedProvider }{governed}: true, &watched{Provider: governed}: false, answering(1): false, nil: false,
	} {
		if got := IsGovernedProvider(provider); got != want {
			t.Errorf("%T: got %t", provider, got)
		}
	}
	for name, change := range map[string]func(*Request){
		"a call":        func(r *Request) { r.Call = &ledger.Call{} },
		"an id":         func(r *Request) { r.ID = uuid.New() },
		"an attempt":    func(r *Request) { r.Attempt = uuid.New() },
		"attempts":      func(r *Request) { r.Attempts = []policy.Attempt{{}} },
		"no candidates": func(r *Request) { r.Candidates = nil },
		"no model":      func(r *Request) { r.Candidates[0].Model = "" },
		"a kind":        func(r *Request) { r.Facts.Kind = "leisure" },
		"a cap":         func(r *Request) { r.MaxTokens = number(-1) },
	} {
		request := hosted("one")
		change(&request)
		_, err := b.router.NewGovernedProvider(GovernedConfig{Request: request})
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeValidation {
			t.Errorf("with %s: got %v", name, err)
		}
	}
}

// TestAGovernedCallStepByStep: the hold is there before the first policy runs, the policies have run before the provider is contacted, and
// the rest of the hold is given back before the consumer has the end.
func TestAGovernedCallStepByStep(t *testing.T) {
	for _, request := range []adapters.Request{streamed, whole} {
		provider := &watched{Provider: answering(7)}
		b := newBench(t, governing(providers{"one": provider}, nil))
		var steps []string
		step := func(name string) {
			used, held := b.balance(ledger.ScopeTask, TaskKey(hosted().Identity, "task"))
			steps = append(steps, fmt.Sprintf("%s %d/%d", name, used, held))
		}
		provider.send = func(context.Context, adapters.Request) error { step("send"); return nil }
		provider.next = func(read int) { step(fmt.Sprint("next ", read)) }
		governed, settlements := b.governed(capped(100, "one"), func(request adapters.Request) (adapters.Request, error) {
			step("policy")
			return request, nil
		})
		if text, err := ask(ctx, governed, request); err != nil || text != "open hello done" {
			t.Fatalf("got %q, %v", text, err)
		}
		step("over")
		want := []string{"policy 0/100", "send 0/100", "next 0 0/100", "next 1 0/100", "next 2 0/100", "next 3 0/100", "over 7/0"}
		if !slices.Equal(steps, want) {
			t.Errorf("got %q, want %q", steps, want)
		}
		b.wantOutcomes(settlements, "one success 7")
		wantIdle(t, governed)
	}
}

// TestAGovernedCallFailsOver while nothing has reached the consumer, who gets nothing of what was held back.
func TestAGovernedCallFailsOver(t *testing.T) {
	for _, request := range []adapters.Request{streamed, whole} {
		first := &watched{Provider: &scripted{events: []adapters.Event{opening, opening}, end: broken}, closed: make(chan struct{})}
		second := &watched{Provider: &scripted{refusal: errors.New("a host's own words")}}
		third := answering(7)
		b := newBench(t, governing(providers{"one": first, "two": second, "three": third}, nil))
		governed, settlements := b.governed(capped(100, "one", "two", "three"))
		if text, err := ask(ctx, governed, request); err != nil || text != "open hello done" {
			t.Fatalf("got %q, %v", text, err)
		}
		told := b.awaitSettlements(settlements, 3)
		if got, want := outcomes(told), []string{"one error 0", "two error 0", "three success 7"}; !slices.Equal(got, want) {
			t.Errorf("settled %q, want %q", got, want)
		}
		var failure *adapters.Failure
		if !errors.As(told[1].Err, &failure) || failure.Reason != adapters.UpstreamError {
			t.Errorf("a host's own error is told as %v", told[1].Err)
		}
		if told[0].Call != told[2].Call || told[0].Attempt == told[2].Attempt {
			t.Errorf("of calls and attempts: %+v", told)
		}
		<-first.closed // the answer that failed, by nobody who is waited for
		b.wantPool(7, 0)
		wantIdle(t, governed)
	}
}

// TestAGovernedCallFailsAtLast: after as many candidates as may be tried the last one's failure is the consumer's, whether Send or Next
// meets it.
func TestAGovernedCallFailsAtLast(t *testing.T) {
	refuses := &scripted{refusal: &adapters.Failure{Reason: adapters.Overloaded, Status: 503}}
	breaks := &scripted{events: []adapters.Event{opening}, end: broken}
	for last, reason := range map[*scripted]adapters.Reason{refuses: adapters.Overloaded, breaks: adapters.StreamBroken} {
		for _, first := range []*scripted{refuses, breaks} {
			b := newBench(t, governing(providers{"one": first, "two": first, "three": last, "four": answering(1)}, nil))
			governed, settlements := b.governed(capped(100, "one", "two", "three", "four"))
			text, err := ask(ctx, governed, streamed)
			if text != "" {
				t.Errorf("got %q", text)
			}
			wantFailure(t, err, reason)
			b.wantOutcomes(settlements, "one error 0", "two error 0", "three error 0")
			b.wantPool(0, 0)
			wantIdle(t, governed)
		}
	}
}

// TestTheEndOfAGovernedAnswerIsFinal, whatever the provider would say after it.
func TestTheEndOfAGovernedAnswerIsFinal(t *testing.T) {
	for name, provider := range map[string]*scripted{
		"complete": answering(7), "without a terminal event": {events: []adapters.Event{hello}}, "broken": {events: []adapters.Event{hello}, end: broken},
	} {
		b := newBench(t, governing(providers{"one": provider}, nil))
		governed, settlements := b.governed(capped(100, "one"))
		answer, err := governed.Send(ctx, streamed)
		if err != nil {
			t.Fatal(err)
		}
		_, end := read(answer)
		for range 3 {
			if _, again := answer.Next(); again != end {
				t.Errorf("%s: after %v came %v", name, end, again)
			}
			if err := answer.Close(); err != nil {
				t.Errorf("%s: closed, and %v", name, err)
			}
		}
		b.awaitSettlements(settlements, 1)
		wantIdle(t, governed)
	}
}

// TestWhatIsHeldBackIsBounded: a provider that opens without an end is passed on from some point on, and not tried elsewhere any more.
func TestWhatIsHeldBackIsBounded(t *testing.T) {
	for name, event := range map[string]adapters.Event{
		"of some size": {Kind: adapters.Opening, Relay: []byte(strings.Repeat(" ", openingMax/4))}, "with nothing to relay": {Kind: adapters.Opening},
	} {
		provider := &watched{Provider: &scripted{events: slices.Repeat([]adapters.Event{event}, 10_000), end: broken}}
		b := newBench(t, governing(providers{"one": provider, "two": answering(1)}, nil))
		governed, settlements := b.governed(capped(100, "one", "two"))
		var read int
		provider.next = func(n int) { read = n }
		answer, err := governed.Send(ctx, streamed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := answer.Next(); err != nil || read > 5_000 {
			t.Errorf("%s: %d events were held back, %v", name, read, err)
		}
		events := 1
		for ; err == nil; events++ {
			_, err = answer.Next()
		}
		wantFailure(t, err, adapters.StreamBroken)
		if events-1 != 10_000 {
			t.Errorf("%s: %d events were passed on", name, events-1)
		}
		b.wantOutcomes(settlements, "one error 100?")
	}
}

// TestAHeldBackEventKeepsItsBytes: those of a provider are good only until its next event.
func TestAHeldBackEventKeepsItsBytes(t *testing.T) {
	buffer := []byte("abc")
	provider := &watched{Provider: &scripted{events: []adapters.Event{
		{Kind: adapters.Opening, Relay: buffer[:1]}, {Kind: adapters.Opening, Relay: buffer[1:2]}, {Kind: adapters.Content, Relay: buffer[2:3]}, {Kind: adapters.Done},
	}}}
	provider.next = func(read int) { copy(buffer, "xxxxxx"[:read]) }
	b := newBench(t, governing(providers{"one": provider}, nil))
	governed, _ := b.governed(hosted("one"))
	if text, err := ask(ctx, governed, streamed); err != nil || text != "abc" {
		t.Errorf("got %q, %v", text, err)
	}
}

// TestAGovernedCallWithoutACap holds nothing, and is charged all the same.
func TestAGovernedCallWithoutACap(t *testing.T) {
	estimate := tokensOf(int64(len(streamed.Body)))
	for text, provider := range map[string]*scripted{
		"one success 7": answering(7),
		fmt.Sprintf("one success %d~", estimate+2): {events: []adapters.Event{opening, hello, done}},
		fmt.Sprintf("one success %d~", estimate):   {},
		fmt.Sprintf("one error %d~", estimate+3):   {events: []adapters.Event{hello, toolCall}, end: broken},
		"one error 0":                              {events: []adapters.Event{opening}, end: &adapters.Failure{Reason: adapters.ContentPolicy}},
		fmt.Sprintf("one error %d", 7):             {events: []adapters.Event{hello, reporting(finish, 7)}, end: broken},
	} {
		watch := &watched{Provider: provider}
		b := newBench(t, governing(providers{"one": watch}, nil))
		watch.next = func(int) { b.wantPool(0, 0) }
		request := hosted("one")
		request.TaskID = "task"
		governed, settlements := b.governed(request)
		_, _ = ask(ctx, governed, streamed)
		told := b.awaitSettlements(settlements, 1)
		if got := outcomes(told); got[0] != text || told[0].Attempt == uuid.Nil {
			t.Errorf("settled %q of attempt %s, want %q", got, told[0].Attempt, text)
		}
		b.wantPool(told[0].Charge.Tokens, 0)
		wantIdle(t, governed)
	}
}

// TestAChargeWithoutAHoldIsMadeOnce, also if nobody knows whether it was made.
func TestAChargeWithoutAHoldIsMadeOnce(t *testing.T) {
	for _, commits := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := &forgetful{commits: commits}
			b := newBenchOn(t, func(s ledger.Store) ledger.Store { store.Store = s; return store }, governing(providers{"one": answering(7)}, nil))
			request := hosted("one")
			request.TaskID = "task"
			governed, settlements := b.governed(request)
			answer, err := governed.Send(ctx, streamed)
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if _, err := answer.Next(); err != nil {
					t.Fatal(err)
				}
			}
			store.forgets.Store(true)
			if _, err := answer.Next(); err == io.EOF || !errors.Is(err, ledger.ErrUnknown) {
				t.Errorf("got %v, want that nobody knows whether it was charged", err)
			}
			b.wantOutcomes(settlements, "one success 7")
			b.wantPool(7, 0)
		})
	}
}

// TestATaskOfManyGovernedCalls: calls side by side, by several workers and of several models, never pass their task's budget together,
// however each ends.
func TestATaskOfManyGovernedCalls(t *testing.T) {
	const most, hold = 1000, 60
	for _, calls := range []int{32, 256} {
		var b *bench
		over := atomic.Int64{}
		look := func(context.Context, adapters.Request) error {
			used, held := b.balance(ledger.ScopeTask, TaskKey(hosted().Identity, "task"))
			over.Store(max(over.Load(), used+held))
			return nil
		}
		resolver := providers{}
		for name, provider := range map[string]*scripted{
			"good": answering(hold), "silent": {events: []adapters.Event{opening, hello, done}}, "flaky": {events: []adapters.Event{opening}, end: broken},
			"late": {events: []adapters.Event{hello}, end: broken}, "greedy": {events: []adapters.Event{hello, reporting(done, 1)}},
		} {
			resolver[name] = &watched{Provider: provider, send: look}
		}
		b = newBench(t, governing(resolver, func(c *Config) { c.Budgets = &Budgets{MaxTokens: number(most)} }))
		var workers []*GovernedProvider
		settlements := make(chan Settlement, 4*calls)
		for i, sources := range [][]string{{"good"}, {"flaky", "silent"}, {"flaky", "greedy", "good"}, {"late", "good"}} {
			request := capped(hold, sources...)
			request.Identity.Principal = text(fmt.Sprint("worker ", i))
			worker, err := b.router.NewGovernedProvider(GovernedConfig{Request: request, OnSettlement: func(s Settlement) { settlements <- s }})
			if err != nil {
				t.Fatal(err)
			}
			workers = append(workers, worker)
		}
		var all sync.WaitGroup
		refused := atomic.Int64{}
		for i := range calls {
			all.Go(func() {
				answer, err := workers[i%len(workers)].Send(ctx, streamed)
				var refusal *Error
				switch {
				case errors.As(err, &refusal) && refusal.Code == CodeBudget:
					refused.Add(1)
					return
				case err != nil:
					t.Errorf("got %v", err)
					return
				case i%5 == 0:
					_, _ = answer.Next()
				default:
					_, _ = read(answer)
				}
				_ = answer.Close()
			})
		}
		all.Wait()
		b.flush()
		charged := int64(0)
		seen := map[uuid.UUID]bool{}
		for len(settlements) > 0 {
			s := <-settlements
			if seen[s.Attempt] {
				t.Errorf("attempt %s was settled twice", s.Attempt)
			}
			seen[s.Attempt] = true
			charged += s.Charge.Tokens
		}
		b.wantPool(charged, 0)
		if over.Load() > most || charged > most || over.Load() < most-hold || calls == 256 && refused.Load() == 0 {
			t.Errorf("%d calls: at most %d tokens were used and held, %d charged, %d calls refused; the budget is %d", calls, over.Load(), charged, refused.Load(), most)
		}
		for _, worker := range workers {
			wantIdle(t, worker)
		}
	}
}

// TestCallbacksOfAHostHoldUpNothing: one that blocks, or panics.
func TestCallbacksOfAHostHoldUpNothing(t *testing.T) {
	blocked := make(chan struct{})
	var told atomic.Int64
	b := newBench(t, governing(providers{"one": answering(7)}, func(c *Config) {
		c.OnSettlement = func(Settlement) { <-blocked; told.Add(1); panic("a fault") }
		c.OnDiagnostics = func(Diagnostics) { <-blocked; panic("a fault") }
	}))
	governed, err := b.router.NewGovernedProvider(GovernedConfig{Request: capped(100, "one"), OnSettlement: func(Settlement) {
		<-blocked
		told.Add(1)
		panic("another fault")
	}})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if text, err := ask(ctx, governed, streamed); err != nil || text != "open hello done" {
			t.Fatalf("got %q, %v", text, err)
		}
	}
	answer, err := governed.Send(ctx, streamed)
	if err != nil {
		t.Fatal(err)
	}
	if err := answer.Close(); err != nil {
		t.Fatal(err)
	}
	wantIdle(t, governed)
	close(blocked)
	b.flush()
	b.wantPool(70, 0)
	if told.Load() != 22 {
		t.Errorf("%d settlements were told, want one of each call to both", told.Load())
	}
}

// TestAnAbortIsSettledThoughNobodyReads.
func TestAnAbortIsSettledThoughNobodyReads(t *testing.T) {
	for read, want := range []string{"one abort 0", "one abort 100?", "one abort 100?", "one success 7"} {
		b := newBench(t, governing(providers{"one": answering(7), "two": answering(1)}, nil))
		governed, settlements := b.governed(capped(100, "one", "two"))
		left, leave := context.WithCancel(ctx)
		answer, err := governed.Send(left, streamed)
		if err != nil {
			t.Fatal(err)
		}
		for range read {
			if _, err := answer.Next(); err != nil {
				t.Fatal(err)
			}
		}
		leave()
		b.wantOutcomes(settlements, want)
		wantIdle(t, governed)
		for read < 3 { // what had been passed on before is the consumer's; nothing else is
			if _, err = answer.Next(); err != nil {
				break
			}
		}
		if read < 3 && !errors.Is(err, ErrAborted) {
			t.Errorf("got %v", err)
		}
		if err := answer.Close(); err != nil {
			t.Error(err)
		}
	}
}

// blocking is a provider whose answer brings an event, and then nothing until it is closed.
func blocking() *watched {
	w := &watched{Provider: &scripted{events: []adapters.Event{opening, hello}, end: broken}, closed: make(chan struct{})}
	w.next = func(read int) {
		if read == 2 {
			<-w.closed
		}
	}
	return w
}

// TestAGovernedAnswerIsClosedFromAnywhere, as often as anybody likes, while somebody reads.
func TestAGovernedAnswerIsClosedFromAnywhere(t *testing.T) {
	for range 50 {
		b := newBench(t, governing(providers{"one": blocking(), "two": answering(1)}, nil))
		governed, settlements := b.governed(capped(100, "one", "two"))
		answer, err := governed.Send(ctx, streamed)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := read(answer); !errors.Is(err, ErrEarlyClose) {
				t.Errorf("the reader got %v", err)
			}
		})
		for range 4 {
			all.Go(func() {
				if err := answer.Close(); err != nil {
					t.Errorf("closed, and %v", err)
				}
				_ = answer.Status()
			})
		}
		all.Wait()
		told := b.awaitSettlements(settlements, 1)
		if got := outcomes(told)[0]; got != "one early_close 0" && got != "one early_close 100?" {
			t.Errorf("settled %q", got)
		}
		b.wantPool(told[0].Charge.Tokens, 0)
		wantIdle(t, governed)
	}
}

// TestAGovernedAnswerIsClosedWhileItFailsOver: the next candidate is left at once, wherever it is.
func TestAGovernedAnswerIsClosedWhileItFailsOver(t *testing.T) {
	for _, end := range []string{"close", "abort"} {
		for _, place := range []string{"resolving", "policy", "send, which heeds it", "send, which does not", "send, which is done"} {
			t.Run(end+" "+place, func(t *testing.T) {
				left, leave := context.WithCancel(ctx)
				defer leave()
				var answer adapters.Answer
				act := leave
				if end == "close" {
					act = func() {
						var all sync.WaitGroup
						for range 2 {
							all.Go(func() { _ = answer.Close() })
						}
						all.Wait()
					}
				}
				second := &watched{Provider: answering(7)}
				resolver := &hooked{providers: providers{"one": &scripted{events: []adapters.Event{opening}, end: broken}, "two": second, "three": answering(1)}}
				at := func(here string) {
					if here == place {
						act()
					}
				}
				resolver.resolving = func(source string) {
					if source == "two" {
						at("resolving")
					}
				}
				second.send = func(ctx context.Context, _ adapters.Request) error {
					at("send, which heeds it")
					at("send, which does not")
					at("send, which is done")
					if place == "send, which heeds it" {
						<-ctx.Done()
						return ctx.Err()
					}
					if place == "send, which does not" {
						return errors.New("an error of its own")
					}
					return nil
				}
				b := newBench(t, governing(resolver, nil))
				governed, settlements := b.governed(capped(100, "one", "two", "three"), func(request adapters.Request) (adapters.Request, error) {
					if request.Model == "two" {
						at("policy")
					}
					return request, nil
				})
				var err error
				if answer, err = governed.Send(left, streamed); err != nil {
					t.Fatal(err)
				}
				_, err = read(answer)
				outcome, cause := "abort", ErrAborted
				if end == "close" {
					outcome, cause = "early_close", ErrEarlyClose
				}
				var failure *adapters.Failure
				if !errors.As(err, &failure) || !errors.Is(err, cause) {
					t.Errorf("got %v", err)
				}
				b.wantOutcomes(settlements, "one error 0", "two "+outcome+" 0")
				b.wantPool(0, 0)
				wantIdle(t, governed)
				if contacted := second.contacted.Load() > 0; contacted == (place == "resolving" || place == "policy") {
					t.Errorf("the next candidate was contacted: %t", contacted)
				}
			})
		}
	}
}

// hooked is a resolver that a test is told of.
type hooked struct {
	providers
	resolving func(source string)
}

func (h *hooked) Resolve(candidate Candidate) (adapters.Provider, error) {
	h.resolving(candidate.Source)
	return h.providers.Resolve(candidate)
}

// TestPanicsOfOthersAreSettledOnce, wherever they come, and go on.
func TestPanicsOfOthersAreSettledOnce(t *testing.T) {
	fault := func() { panic(errFault) }
	opened := func() *watched { return &watched{Provider: &scripted{events: []adapters.Event{opening}, end: broken}} }
	for name, test := range map[string]struct {
		one, two func() adapters.Provider
		want     []string
	}{
		"in Send": {func() adapters.Provider {
			return &watched{Provider: answering(7), send: func(context.Context, adapters.Request) error { fault(); return nil }}
		}, nil, []string{"one error 0"}},
		"in Send after a failover": {func() adapters.Provider { return opened() }, func() adapters.Provider {
			return &watched{Provider: answering(7), send: func(context.Context, adapters.Request) error { fault(); return nil }}
		}, []string{"one error 0", "two error 0"}},
		"in Close after all": {func() adapters.Provider { return once(&watched{Provider: answering(7)}) }, nil, []string{"one success 7"}},
		"in Next":            {func() adapters.Provider { w := opened(); w.next = func(int) { fault() }; return w }, nil, []string{"one error 0"}},
		"in Next after a failover": {func() adapters.Provider { return opened() }, func() adapters.Provider {
			return &watched{Provider: answering(7), next: func(read int) {
				if read == 2 {
					fault()
				}
			}}
		}, []string{"one error 0", "two error 100?"}},
		"in Status": {func() adapters.Provider { return unstable{} }, nil, []string{"one error 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			two := func() adapters.Provider { return answering(1) }
			if test.two != nil {
				two = test.two
			}
			b := newBench(t, governing(providers{"one": test.one(), "two": two()}, nil))
			governed, settlements := b.governed(capped(100, "one", "two"))
			value := panicOf(func() { _, _ = ask(ctx, governed, streamed) })
			if value != errFault {
				t.Errorf("it panicked with %v", value)
			}
			b.wantOutcomes(settlements, test.want...)
			if _, held := b.balance(ledger.ScopeTask, TaskKey(hosted().Identity, "task")); held != 0 {
				t.Errorf("%d are held", held)
			}
			wantIdle(t, governed)
		})
	}
}

// once panics when its first answer is closed for the first time.
func once(w *watched) *watched {
	faults := atomic.Bool{}
	faults.Store(true)
	w.closing = func() {
		if faults.CompareAndSwap(true, false) {
			panic(errFault)
		}
	}
	return w
}

// unstable is a provider whose answers panic when they are asked for their status.
type unstable struct{ scriptedAnswer }

func (unstable) Send(context.Context, adapters.Request) (adapters.Answer, error) {
	return &unstable{scriptedAnswer{script: answering(7)}}, nil
}
func (unstable) Status() int { panic(errFault) }

// TestAProviderThatIsNoneFailsOver: whether it answers with nothing, or panics when what it began is closed.
func TestAProviderThatIsNoneFailsOver(t *testing.T) {
	careless := once(&watched{Provider: &scripted{events: []adapters.Event{opening}, end: broken}})
	for name, one := range map[string]adapters.Provider{"no answer": missing{}, "a panic of its Close": careless} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, governing(providers{"one": one, "two": answering(1)}, nil))
			governed, settlements := b.governed(capped(100, "one", "two"))
			if got, err := ask(ctx, governed, streamed); err != nil {
				t.Errorf("got %q, %v", got, err)
			}
			b.wantOutcomes(settlements, "one error 0", "two success 1")
			wantIdle(t, governed)
		})
	}
}

// missing is a provider that says it has answered, and has not.
type missing struct{}

func (missing) Send(context.Context, adapters.Request) (adapters.Answer, error) { return nil, nil }

// TestAPanicThatHasNobodyToGoTo: an answer whose context has ended is closed by nobody of the host's.
func TestAPanicThatHasNobodyToGoTo(t *testing.T) {
	log := &lines{written: make(chan string, 8)}
	b := newBench(t, governing(providers{"one": once(&watched{Provider: answering(7)})}, func(c *Config) { c.Log = log.logger() }))
	governed, settlements := b.governed(capped(100, "one"))
	left, leave := context.WithCancel(ctx)
	answer, err := governed.Send(left, streamed)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	b.wantOutcomes(settlements, "one abort 0")
	if line := <-log.written; !strings.Contains(line, "panicked") || strings.Contains(line, errFault.Error()) {
		t.Errorf("logged %s", line)
	}
	if err := answer.Close(); err != nil {
		t.Error(err)
	}
	wantIdle(t, governed)
}

// TestRenewBudgetOfCallsThatRun: the holds of calls that run live on, whether they answer or are still being contacted, and are settled.
func TestRenewBudgetOfCallsThatRun(t *testing.T) {
	provider := &watched{Provider: answering(7)}
	b := newBench(t, governing(providers{"one": provider, "two": answering(1)}, nil))
	governed, settlements := b.governed(capped(100, "one"))
	renew := func() {
		t.Helper()
		before := map[*Grant]Reservation{}
		for _, grant := range governed.grants() {
			before[grant] = grant.Reservation()
		}
		b.Advance(50 * time.Second)
		if err := governed.RenewBudget(ctx, 0); err != nil {
			t.Errorf("renewed, and %v", err)
		}
		for grant, was := range before {
			if is := grant.Reservation(); is.ID != was.ID || is.Token <= was.Token {
				t.Errorf("renewed %+v to %+v", was, is)
			}
		}
	}
	contacting := 0
	provider.send = func(context.Context, adapters.Request) error {
		contacting = len(governed.grants())
		renew()
		renew()
		return nil
	}
	first, err := governed.Send(ctx, streamed)
	if err != nil || contacting != 1 {
		t.Fatalf("%d calls while one was being contacted, %v", contacting, err)
	}
	second, err := governed.Send(ctx, streamed)
	if err != nil || contacting != 2 {
		t.Fatalf("%d calls while a second one was being contacted, %v", contacting, err)
	}
	renew()
	renew()
	b.wantPool(0, 200)
	for _, answer := range []adapters.Answer{first, second} {
		if _, err := read(answer); err != io.EOF {
			t.Errorf("got %v", err)
		}
	}
	b.wantOutcomes(settlements, "one success 7", "one success 7")
	b.wantPool(14, 0)
	renew() // nothing runs
	if err := governed.RenewBudget(ctx, -1); err == nil {
		t.Error("a negative time is refused")
	}
	free, _ := b.governed(hosted("two")) // holds nothing
	answer, err := free.Send(ctx, streamed)
	if err != nil {
		t.Fatal(err)
	}
	if err := free.RenewBudget(ctx, 0); err != nil {
		t.Errorf("nothing is held, and %v", err)
	}
	_ = answer.Close()
}

// TestRenewBudgetBesideCallsThatEnd: one that has ended meanwhile is no failure.
func TestRenewBudgetBesideCallsThatEnd(t *testing.T) {
	b := newBench(t, governing(providers{"one": answering(1)}, nil))
	governed, _ := b.governed(capped(100, "one"))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 25 {
				if _, err := ask(ctx, governed, streamed); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	for over := false; !over; {
		if err := governed.RenewBudget(ctx, 0); err != nil {
			t.Errorf("renewed, and %v", err)
		}
		select {
		case <-ended:
			over = true
		default:
		}
	}
	b.flush()
	b.wantPool(200, 0)
}

// TestRenewBudgetTooLate: what has expired was charged, and the call goes on.
func TestRenewBudgetTooLate(t *testing.T) {
	b := newBench(t, governing(providers{"one": answering(7)}, nil))
	governed, settlements := b.governed(capped(100, "one"))
	answer, err := governed.Send(ctx, streamed)
	if err != nil {
		t.Fatal(err)
	}
	b.Advance(2 * time.Minute)
	err = governed.RenewBudget(ctx, 0)
	var refusal *Error
	if !errors.As(err, &refusal) || refusal.Code != CodeState || !errors.Is(err, ledger.ErrExpired) {
		t.Errorf("got %v", err)
	}
	if text, err := read(answer); err != io.EOF || text != "open hello done" {
		t.Errorf("got %q, %v", text, err)
	}
	b.wantOutcomes(settlements, "one success 100?")
	b.wantPool(100, 0)
}

// TestAUsageThatCannotBeRecorded is the consumer's error where the answer is complete, and nobody's elsewhere. It is settled later.
func TestAUsageThatCannotBeRecorded(t *testing.T) {
	for _, isCapped := range []bool{true, false} {
		request := capped(100, "one")
		if !isCapped {
			request.MaxTokens = nil
		}
		for name, test := range map[string]struct {
			provider *scripted
			end      func(answer adapters.Answer) error
			fails    bool
			want     string
		}{
			"complete":           {answering(7), func(a adapters.Answer) error { _, err := read(a); return err }, true, "one success 7"},
			"closed when done":   {answering(7), func(a adapters.Answer) error { readEvents(t, a, 3); return a.Close() }, true, "one success 7"},
			"closed before that": {answering(7), adapters.Answer.Close, false, "one early_close 0"},
			"broken": {&scripted{events: []adapters.Event{hello, reporting(finish, 7)}, end: broken},
				func(a adapters.Answer) error { _, err := read(a); return err }, false, "one error 7"},
		} {
			synctest.Test(t, func(t *testing.T) {
				store := &failing{}
				b := newBenchOn(t, func(inner ledger.Store) ledger.Store { store.Store = inner; return store }, governing(providers{"one": test.provider}, nil))
				governed, settlements := b.governed(request)
				answer, err := governed.Send(ctx, streamed)
				if err != nil {
					t.Fatal(err)
				}
				store.down.Store(true)
				err = test.end(answer)
				var refusal *Error
				var failure *adapters.Failure
				if test.fails && (!errors.As(err, &refusal) || refusal.Code != CodeState || !errors.As(err, &failure)) {
					t.Errorf("%s: got %v, want that it could not be recorded", name, err)
				}
				if !test.fails && errors.As(err, &refusal) {
					t.Errorf("%s: got %v, which is not the consumer's", name, err)
				}
				wantIdle(t, governed)
				store.down.Store(false)
				b.wantOutcomes(settlements, test.want)
			})
		}
	}
}

// TestAUsageThatCannotBe is one that nobody knows: what was held is charged for it, or an estimate. The consumer of a complete answer is
// told, as of any usage that is not recorded.
func TestAUsageThatCannotBe(t *testing.T) {
	for _, isCapped := range []bool{true, false} {
		request, want := capped(100, "one"), "100?"
		if !isCapped {
			request.MaxTokens, want = nil, fmt.Sprint(tokensOf(int64(len(streamed.Body)))+2, "~")
		}
		for outcome, end := range map[string]error{"success": nil, "error": broken} {
			b := newBench(t, governing(providers{"one": &scripted{events: []adapters.Event{hello, reporting(done, -1)}}}, nil))
			if end != nil {
				b = newBench(t, governing(providers{"one": &scripted{events: []adapters.Event{hello, reporting(finish, -1)}, end: end}}, nil))
			}
			governed, settlements := b.governed(request)
			_, err := ask(ctx, governed, streamed)
			var refusal *Error
			if told := errors.As(err, &refusal) && refusal.Code == CodeValidation; told != (end == nil) {
				t.Errorf("%s: got %v", outcome, err)
			}
			b.wantOutcomes(settlements, "one "+outcome+" "+want)
		}
	}
}

// TestAUsageThatCannotBeHoldsUpNoFailover: what the first candidate held is charged, and the next one answers.
func TestAUsageThatCannotBeHoldsUpNoFailover(t *testing.T) {
	b := newBench(t, governing(providers{"one": &scripted{events: []adapters.Event{reporting(finish, -1)}, end: broken}, "two": answering(7)}, nil))
	governed, settlements := b.governed(capped(100, "one", "two"))
	if got, err := ask(ctx, governed, streamed); err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	b.wantOutcomes(settlements, "one error 100?", "two success 7")
}

// TestAPanicOfTheResolver gives back what the candidate was admitted with, with a hold and without, and goes on.
func TestAPanicOfTheResolver(t *testing.T) {
	for name, max := range map[string]*int64{"a hold": number(100), "no hold": nil} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *Config, _ *policy.Settings) {
				c.Budgets, c.RateLimit = &Budgets{MaxTokens: number(100)}, &RateLimit{Max: 1}
			})
			request := hosted("one")
			request.TaskID, request.MaxTokens = "build", max
			b.resolving = func() { b.resolving = nil; panic("the host's") }
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the panic was kept")
					}
				}()
				_, _ = b.router.Resolve(ctx, request)
			}()
			b.wantBalance(ledger.ScopeTask, "acme:build", 0, 0)
			if _, err := b.router.Resolve(ctx, request); err != nil { // nor has the rate counted it
				t.Error(err)
			}
		})
	}
}

func readEvents(t *testing.T, answer adapters.Answer, n int) {
	t.Helper()
	for range n {
		if _, err := answer.Next(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRequestPoliciesOfAGovernedProvider run in order, the router's own last, and for each candidate anew; none of them changes the model
// that was judged.
func TestRequestPoliciesOfAGovernedProvider(t *testing.T) {
	var got []adapters.Request
	keep := func(_ context.Context, request adapters.Request) error { got = append(got, request); return nil }
	one := &watched{Provider: &scripted{refusal: broken}, send: keep}
	two := &watched{Provider: answering(7), send: keep}
	b := newBench(t, governing(providers{"one": one, "two": two}, nil))
	var order []string
	mark := func(name string) RequestPolicy {
		return func(request adapters.Request) (adapters.Request, error) {
			order = append(order, name+" "+request.Model)
			request.Model, request.Header = "another:free", request.Header.Clone()
			request.Header.Add("X-Mark", name)
			request.Body = append(slices.Clone(request.Body[:len(request.Body)-1]), `,"route":"fallback"}`...)
			return request, nil
		}
	}
	governed, _ := b.governed(capped(100, "one", "two"), mark("first"), mark("second"))
	asked := streamed
	asked.Header = http.Header{"X-Mark": {"client"}, "X-Title": {"title"}}
	if _, err := ask(ctx, governed, asked); err != nil {
		t.Fatal(err)
	}
	if want := []string{"first one", "second another:free", "first two", "second another:free"}; !slices.Equal(order, want) {
		t.Errorf("the order was %q", order)
	}
	for i, model := range []string{"one", "two"} {
		request := got[i]
		if request.Model != model || !slices.Equal(request.Header["X-Mark"], []string{"client", "first", "second"}) || request.Header["X-Title"] != nil {
			t.Errorf("%s got the model %s and the header %v", model, request.Model, request.Header)
		}
		if strings.Contains(string(request.Body), "route") || !slices.Contains(request.Strip, "route") {
			t.Errorf("%s got %s, without %q", model, request.Body, request.Strip)
		}
	}
	if string(asked.Body) != string(whole.Body) || len(asked.Header) != 2 {
		t.Errorf("the consumer's own request was changed: %s, %v", asked.Body, asked.Header)
	}
}

// TestAPolicyThatRefusesIsNoAttempt: its provider was never contacted, so that no rate counts it.
func TestAPolicyThatRefusesIsNoAttempt(t *testing.T) {
	for _, fails := range []func() error{func() error { return errFault }, func() error { panic(errFault) }} {
		for _, isCapped := range []bool{true, false} {
			one := &watched{Provider: answering(7)}
			b := newBench(t, governing(providers{"one": one}, func(c *Config) { c.RateLimit = &RateLimit{Max: 1} }))
			request := capped(100, "one")
			if !isCapped {
				request.MaxTokens = nil
			}
			refuses := true
			governed, settlements := b.governed(request, func(request adapters.Request) (adapters.Request, error) {
				if refuses {
					return request, fails()
				}
				return request, nil
			})
			for range 3 {
				var err error
				if value := panicOf(func() { _, err = governed.Send(ctx, streamed) }); value == nil {
					wantFailure(t, err, adapters.InvalidRequest)
					if !errors.Is(err, errFault) {
						t.Errorf("got %v", err)
					}
				}
				b.wantOutcomes(settlements, "one error 0")
			}
			refuses = false
			if _, err := ask(ctx, governed, streamed); err != nil || one.contacted.Load() != 1 {
				t.Errorf("contacted %d times, %v", one.contacted.Load(), err)
			}
			wantIdle(t, governed)
		}
	}
}

// TestGovernedProvidersInOneAnother: a governed provider is a provider, so that another may govern it. Each settles for itself.
func TestGovernedProvidersInOneAnother(t *testing.T) {
	inner := newBench(t, governing(providers{"deep": answering(7)}, func(c *Config) { c.Budgets = &Budgets{MaxTokens: number(150)} }))
	nested, within := inner.governed(capped(100, "deep"))
	outer := newBench(t, governing(providers{"one": nested, "two": answering(3)}, nil))
	governed, settlements := outer.governed(capped(50, "one", "two"))
	if text, err := ask(ctx, governed, streamed); err != nil || text != "open hello done" {
		t.Fatalf("got %q, %v", text, err)
	}
	outer.wantOutcomes(settlements, "one success 7")
	inner.wantOutcomes(within, "deep success 7")

	answer, err := governed.Send(ctx, streamed)
	if err != nil {
		t.Fatal(err)
	}
	readEvents(t, answer, 2)
	if err := answer.Close(); err != nil {
		t.Fatal(err)
	}
	outer.wantOutcomes(settlements, "one early_close 50?")
	inner.wantOutcomes(within, "deep early_close 100?")

	// What the inner one refuses, the outer one tries elsewhere.
	if text, err := ask(ctx, governed, streamed); err != nil || text != "open hello done" {
		t.Fatalf("got %q, %v", text, err)
	}
	told := outer.awaitSettlements(settlements, 2)
	var refusal *Error
	if !errors.As(told[0].Err, &refusal) || refusal.Code != CodeBudget || told[1].Source != "two" {
		t.Errorf("settled %+v", told)
	}
	outer.wantPool(60, 0)
	inner.wantPool(107, 0)
	wantIdle(t, governed)
	wantIdle(t, nested)
}

// TestRefusalsOfGovernedProviders are errors of the router's, and failures by the contract of providers.
func TestRefusalsOfGovernedProviders(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*Config, *policy.Settings)
		request Request
		code    Code
		reason  adapters.Reason
	}{
		"a rule": {func(_ *Config, s *policy.Settings) { s.AllowedResidencies = &[]string{"eu"} }, hosted("one"), CodeResidency, adapters.InvalidRequest},
		"a budget that has no room": {func(c *Config, _ *policy.Settings) { c.Budgets = &Budgets{MaxTokens: number(50)} },
			capped(100, "one"), CodeBudget, adapters.RateLimited},
		"a rate":           {func(c *Config, _ *policy.Settings) { c.RateLimit = &RateLimit{Max: 0} }, hosted("one"), CodeRateLimit, adapters.Overloaded},
		"an unknown model": {nil, hosted("three"), CodeUnknownProvider, adapters.Overloaded},
		"a cap of nothing": {nil, capped(0, "one"), CodeBudget, adapters.RateLimited},
		"a caller's rate": {nil, func() Request {
			request := hosted("one")
			request.Rates = []ledger.Rate{{Key: "caller", Max: 0, Window: time.Minute}}
			return request
		}(), CodeRateLimit, adapters.RateLimited},
	} {
		one := &watched{Provider: answering(1)}
		b := newBench(t, func(c *Config, s *policy.Settings) {
			governing(providers{"one": one}, nil)(c, s)
			if test.change != nil {
				test.change(c, s)
			}
		})
		governed, settlements := b.governed(test.request)
		answer, err := governed.Send(ctx, streamed)
		var refusal *Error
		var failure *adapters.Failure
		if !errors.As(err, &refusal) || refusal.Code != test.code || !errors.As(err, &failure) || answer != nil {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		if failure.Reason != test.reason {
			t.Errorf("%s: got the failure %+v, want %s", name, failure, test.reason)
		}
		if one.contacted.Load() != 0 {
			t.Errorf("%s: the provider was contacted", name)
		}
		b.awaitSettlements(settlements, 0)
		wantIdle(t, governed)
	}
}

// TestAStoreThatIsAwayRefusesGovernedCalls.
func TestAStoreThatIsAwayRefusesGovernedCalls(t *testing.T) {
	store := &failing{}
	store.down.Store(true)
	b := newBenchOn(t, func(inner ledger.Store) ledger.Store { store.Store = inner; return store }, governing(providers{"one": answering(1)}, nil))
	governed, _ := b.governed(capped(100, "one"))
	_, err := governed.Send(ctx, streamed)
	wantFailure(t, err, adapters.Overloaded)
	wantRefusal(t, err, CodeState, ClassUnavailable, ReasonUnavailable, 0)
	wantIdle(t, governed)
}

// TestAContextThatHasEnded contacts nobody and leaves nothing.
func TestAContextThatHasEnded(t *testing.T) {
	one := &watched{Provider: answering(1)}
	b := newBench(t, governing(providers{"one": one, "two": one}, nil))
	gone, leave := context.WithCancel(ctx)
	leave()
	for _, request := range []Request{capped(100, "one", "two"), hosted("one", "two")} {
		governed, settlements := b.governed(request)
		for range 30 { // which of two things that are ready comes first is chance
			_, err := governed.Send(gone, streamed)
			var failure *adapters.Failure
			if !errors.As(err, &failure) {
				t.Errorf("got %v", err)
			}
		}
		b.flush()
		for len(settlements) > 0 {
			if s := <-settlements; s.Outcome != ledger.Aborted || s.Charge != (ledger.Charge{}) {
				t.Errorf("settled %+v", s)
			}
		}
		wantIdle(t, governed)
	}
	if one.contacted.Load() != 0 {
		t.Errorf("a provider was contacted %d times", one.contacted.Load())
	}
	b.wantPool(0, 0)
}

// TestCircuitsBeforeGovernedCalls: failures open one, an abort of its probe gives that back, and a success of it closes the circuit; with
// a hold and without.
func TestCircuitsBeforeGovernedCalls(t *testing.T) {
	for _, isCapped := range []bool{true, false} {
		t.Run(fmt.Sprintf("capped=%t", isCapped), func(t *testing.T) {
			script := &scripted{events: []adapters.Event{opening}, end: broken}
			b := newBench(t, governing(providers{"one": script}, func(c *Config) { c.Circuit = &Circuit{Threshold: 2} }))
			request := capped(100, "one")
			if !isCapped {
				request.MaxTokens = nil
			}
			governed, settlements := b.governed(request)
			wantOpen := func(ms int64) {
				t.Helper()
				_, err := governed.Send(ctx, streamed)
				wantFailure(t, err, adapters.Overloaded)
				wantRefusal(t, err, CodeCircuit, ClassCapacity, ReasonCircuitOpen, ms)
				var failure *adapters.Failure
				if errors.As(err, &failure); failure.RetryAfter != time.Duration(ms)*time.Millisecond {
					t.Errorf("to be tried again after %v", failure.RetryAfter)
				}
			}
			for range 2 {
				_, err := ask(ctx, governed, streamed)
				wantFailure(t, err, adapters.StreamBroken)
				b.wantOutcomes(settlements, "one error 0")
			}
			wantOpen(30_000)
			b.Advance(30 * time.Second)
			for range 2 { // each gives its probe back
				left, leave := context.WithCancel(ctx)
				answer, err := governed.Send(left, streamed)
				if err != nil {
					t.Fatal(err)
				}
				wantOpen(60_000) // one probe at a time
				leave()
				b.wantOutcomes(settlements, "one abort 0")
				_ = answer.Close()
			}
			_, err := ask(ctx, governed, streamed) // the probe fails
			wantFailure(t, err, adapters.StreamBroken)
			b.wantOutcomes(settlements, "one error 0")
			wantOpen(30_000)
			b.Advance(30 * time.Second)
			*script = *answering(7)
			for range 3 { // the first closes it
				if _, err := ask(ctx, governed, streamed); err != nil {
					t.Fatal(err)
				}
				b.wantOutcomes(settlements, "one success 7")
			}
			first, err := governed.Send(ctx, streamed)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ask(ctx, governed, streamed); err != nil {
				t.Errorf("beside another call: %v", err)
			}
			_ = first.Close()
		})
	}
}

// TestRatesBeforeGovernedCalls: an owner asks a model so often, with holds and without.
func TestRatesBeforeGovernedCalls(t *testing.T) {
	for _, isCapped := range []bool{true, false} {
		b := newBench(t, governing(providers{"one": answering(7), "two": answering(1)}, func(c *Config) { c.RateLimit = &RateLimit{Max: 2} }))
		request := capped(100, "one")
		if !isCapped {
			request.MaxTokens = nil
		}
		governed, settlements := b.governed(request)
		for range 2 {
			if _, err := ask(ctx, governed, streamed); err != nil {
				t.Fatal(err)
			}
		}
		b.Advance(time.Second)
		_, err := governed.Send(ctx, streamed)
		wantRefusal(t, err, CodeRateLimit, ClassCapacity, ReasonRateLimited, 59_000)
		wantFailure(t, err, adapters.Overloaded)
		b.wantOutcomes(settlements, "one success 7", "one success 7")
		request.Candidates = append(request.Candidates, candidate("two"))
		wider, settlements := b.governed(request)
		if _, err := ask(ctx, wider, streamed); err != nil {
			t.Fatal(err)
		}
		b.wantOutcomes(settlements, "two success 1")
		b.Advance(time.Minute)
		if _, err := ask(ctx, governed, streamed); err != nil {
			t.Error(err)
		}
	}
}
