package engine

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

// scripted is a host's provider: it refuses, or answers with events and then with an end, io.EOF if that is nil. It goes on although its
// answer is closed or its context has ended, as a careless one does.
type scripted struct {
	refusal error
	events  []adapters.Event
	end     error
}

func (s *scripted) Send(context.Context, adapters.Request) (adapters.Answer, error) {
	if s.refusal != nil {
		return nil, s.refusal
	}
	return &scriptedAnswer{script: s}, nil
}

type scriptedAnswer struct {
	script *scripted
	read   int
}

func (*scriptedAnswer) Status() int  { return 0 }
func (*scriptedAnswer) Close() error { return nil }

func (a *scriptedAnswer) Next() (adapters.Event, error) {
	if a.read < len(a.script.events) {
		a.read++
		return a.script.events[a.read-1], nil
	}
	if a.script.end != nil {
		return adapters.Event{}, a.script.end
	}
	return adapters.Event{}, io.EOF
}

// watched is a provider whose steps a test is told of before they are taken, and may keep from being taken. All hooks are optional.
type watched struct {
	adapters.Provider
	send func(ctx context.Context, request adapters.Request) error
	next func(read int) // how many events were read before
	// closing is told of each Close; closed is closed by the first.
	closing func()
	closed  chan struct{}

	contacted, closes atomic.Int64
}

func (w *watched) Send(ctx context.Context, request adapters.Request) (adapters.Answer, error) {
	w.contacted.Add(1)
	if w.send != nil {
		if err := w.send(ctx, request); err != nil {
			return nil, err
		}
	}
	answer, err := w.Provider.Send(ctx, request)
	if err != nil {
		return nil, err
	}
	return &watchedAnswer{Answer: answer, watch: w}, nil
}

type watchedAnswer struct {
	adapters.Answer
	watch *watched
	read  int
}

func (a *watchedAnswer) Next() (adapters.Event, error) {
	if a.watch.next != nil {
		a.watch.next(a.read)
	}
	event, err := a.Answer.Next()
	if err == nil {
		a.read++
	}
	return event, err
}

func (a *watchedAnswer) Close() error {
	err := a.Answer.Close()
	if n := a.watch.closes.Add(1); n == 1 && a.watch.closed != nil {
		close(a.watch.closed)
	}
	if a.watch.closing != nil {
		a.watch.closing()
	}
	return err
}

// The events that scripts are made of.
var (
	opening  = adapters.Event{Kind: adapters.Opening, Relay: []byte("open ")}
	hello    = adapters.Event{Kind: adapters.Content, Relay: []byte("hello "), OutputBytes: 5}
	toolCall = adapters.Event{Kind: adapters.ToolCall, Relay: []byte("tool "), OutputBytes: 4}
	finish   = adapters.Event{Kind: adapters.Closing, Relay: []byte("finish ")}
	done     = adapters.Event{Kind: adapters.Done, Relay: []byte("done")}
	broken   = &adapters.Failure{Reason: adapters.StreamBroken, Status: 200, Accepted: true}
)

// reporting is an event that reports so many tokens.
func reporting(event adapters.Event, tokens int64) adapters.Event {
	event.Usage = &ledger.Usage{Output: tokens}
	return event
}

// answering is a provider that answers well, with a usage of so many tokens.
func answering(tokens int64) *scripted {
	return &scripted{events: []adapters.Event{opening, hello, reporting(done, tokens)}}
}

// providers resolves candidates by their source.
type providers map[string]adapters.Provider

func (p providers) Resolve(candidate Candidate) (adapters.Provider, error) {
	if provider, known := p[candidate.Source]; known {
		return provider, nil
	}
	return nil, ErrUnresolved
}

// governing has a bench's router resolve some providers, and count all that is used.
func governing(resolver Resolver, change func(*Config)) func(*Config, *policy.Settings) {
	return func(c *Config, _ *policy.Settings) {
		c.Resolver, c.Budgets = resolver, &Budgets{}
		if change != nil {
			change(c)
		}
	}
}

// capped is a request of a host for one task, that holds so many tokens.
func capped(tokens int64, sources ...string) Request {
	request := hosted(sources...)
	request.TaskID, request.MaxTokens = "task", &tokens
	return request
}

// governed makes a governed provider, whose settlements come in by the channel.
func (b *bench) governed(request Request, policies ...RequestPolicy) (*GovernedProvider, <-chan Settlement) {
	b.t.Helper()
	settlements := make(chan Settlement, 1024)
	provider, err := NewGovernedProvider(b.router, GovernedConfig{
		Request: request, RequestPolicies: policies, OnSettlement: func(s Settlement) { settlements <- s },
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return provider, settlements
}

// awaitSettlements waits for as many settlements as are wanted, and then for any further one.
func (b *bench) awaitSettlements(settlements <-chan Settlement, want int) []Settlement {
	b.t.Helper()
	all := make([]Settlement, 0, want)
	for late := time.After(10 * time.Second); len(all) < want; {
		select {
		case settlement := <-settlements:
			all = append(all, settlement)
		case <-late:
			b.t.Fatalf("%d settlements were told, want %d: %+v", len(all), want, all)
		}
	}
	b.flush()
	for len(settlements) > 0 {
		all = append(all, <-settlements)
	}
	if len(all) != want {
		b.t.Fatalf("%d settlements were told, want %d: %+v", len(all), want, all)
	}
	return all
}

// read reads an answer to its end, and returns all that was relayed.
func read(answer adapters.Answer) (text string, err error) {
	for {
		event, err := answer.Next()
		if err != nil {
			return text, err
		}
		text += string(event.Relay)
	}
}

// ask makes a call, reads its answer to the end and closes it. A complete one has no error.
func ask(ctx context.Context, provider adapters.Provider, request adapters.Request) (text string, err error) {
	answer, err := provider.Send(ctx, request)
	if err != nil {
		return "", err
	}
	text, err = read(answer)
	if closing := answer.Close(); err == io.EOF {
		err = closing
	}
	return text, err
}

// panicOf runs a function, and returns what it panicked with.
func panicOf(run func()) (value any) {
	defer func() { value = recover() }()
	run()
	return nil
}

func wantFailure(t *testing.T, err error, reason adapters.Reason) {
	t.Helper()
	var failure *adapters.Failure
	if !errors.As(err, &failure) || failure.Reason != reason {
		t.Fatalf("got %v, want a failure: %s", err, reason)
	}
}

var (
	streamed = adapters.Request{Protocol: adapters.OpenAIChat, Body: []byte(`{"model":"public"}`), Stream: true, PublicModel: "public"}
	whole    = adapters.Request{Protocol: adapters.OpenAIChat, Body: []byte(`{"model":"public"}`), PublicModel: "public"}
)

// lines is where a log's lines go.
type lines struct{ written chan string }

func (l *lines) Write(line []byte) (int, error) {
	l.written <- string(line)
	return len(line), nil
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
