// Package adaptertest is the conformance suite of adapters: what every [adapters.Provider] must do, shown against the built-in
// provider. An adapter's own test calls [Run].
package adaptertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"regent/adapters"
	"regent/adapters/fake"
	"regent/ledger"
)

const (
	key    = "sk-canary"
	prompt = `"canary-prompt"`
	model  = "scripted"
)

// Dialect is what the suite has to know of an adapter's protocol. The rest of it is the same for all.
type Dialect struct {
	Protocol adapters.Protocol
	// Prompt is the members of a request that hold the prompt, a JSON string in place of %s. Defaults to a list of messages.
	Prompt string
	// Content, Error and Done are whole events of a stream: one that brings content, one that reports an error, and the last.
	Content, Error, Done string
	// Untrue are reports of usage that cannot be true.
	Untrue []string
}

// Run runs the suite. newProvider makes the adapter for a provider at a base URL, with a credential.
func Run(t *testing.T, dialect Dialect, newProvider func(t *testing.T, baseURL, key string) adapters.Provider) {
	request := dialect.request
	start := func(t *testing.T, script string) (*fake.Server, adapters.Provider) {
		t.Helper()
		server, err := fake.Start(fake.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() }) // what is still open is ended
		steps, err := fake.ParseScript([]byte(script))
		if err != nil {
			t.Fatal(err)
		}
		server.SetScript(model, steps)
		return server, newProvider(t, server.URL(), key)
	}
	s := suite{dialect, start}
	run := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			NoLeaks(t)
			test(t)
		})
	}
	run("a stream is relayed and its usage read", func(t *testing.T) {
		server, provider := start(t, `{"text": ["Hel", "lo"]}`)
		text, usage, output, err := read(provider, request(true))
		if err != nil || output != 5 || usage == nil || !reflect.DeepEqual(*usage, ledger.Usage{UncachedInput: 4, Output: 2}) {
			t.Errorf("output %d, usage %+v, %v", output, usage, err)
		}
		if !strings.Contains(text, `"Hel"`) || strings.Contains(text, model) || !strings.Contains(text, "public/name") {
			t.Errorf("relayed %q", text)
		}
		wantOne(t, server)
	})
	run("bytes split anywhere are the same stream", func(t *testing.T) {
		_, whole := start(t, `{"text": ["Grüße ", "€"]}`)
		want, _, _, err := read(whole, request(true))
		if err != nil {
			t.Fatal(err)
		}
		for _, script := range []string{`{"text": ["Grüße ", "€"], "split": 1}`, `{"text": ["Grüße ", "€"], "split": 7}`} {
			_, split := start(t, script)
			if got, _, _, err := read(split, request(true)); err != nil || got != want {
				t.Errorf("%s: got %q, %v", script, got, err)
			}
		}
	})
	run("a whole answer is one event", func(t *testing.T) {
		server, provider := start(t, `{"text": ["Hello"]}`)
		text, usage, output, err := read(provider, request(false))
		if err != nil || output != 5 || usage == nil || !reflect.DeepEqual(*usage, ledger.Usage{UncachedInput: 4, Output: 1}) || !strings.Contains(text, "public/name") {
			t.Errorf("%q, output %d, usage %+v, %v", text, output, usage, err)
		}
		wantOne(t, server)
	})
	run("usage that cannot be true is none", func(t *testing.T) {
		for _, usage := range append([]string{`"12"`, `null`}, dialect.Untrue...) {
			_, provider := start(t, `{"usage": `+usage+`}`)
			if _, got, _, err := read(provider, request(true)); err != nil || got != nil {
				t.Errorf("%s: %+v, %v", usage, got, err)
			}
		}
	})
	run("the service tier that served is told with the usage", func(t *testing.T) {
		for script, want := range map[string]string{`{}`: "", `{"service_tier": null}`: "", `{"service_tier": "flex"}`: "flex", `{"service_tier": 1}`: ledger.UnknownTier} {
			for _, stream := range []bool{true, false} {
				_, provider := start(t, script)
				if _, usage, _, err := read(provider, request(stream)); err != nil || usage == nil || usage.Tier != want {
					t.Errorf("%s, stream %t: usage %+v, %v, want %q", script, stream, usage, err, want)
				}
			}
		}
	})
	run("the client's own header and query stay here", s.keeps)
	run("refusals are classified and tell nothing", s.refusals)
	run("breaks are failures", s.breaks)
	run("what cannot be reached is said so", s.unreachable)
	run("an end is final", s.final)
	run("a call is one request on a connection that is used again", s.reuses)
	run("a call that waits for its header can be ended", s.endsEarly)
	run("an exchange can be ended", s.ends)
	run("an answer can be closed from everywhere at once", s.closesEverywhere)
	run("a whole answer can be closed before it is read", s.closesWhole)
	run("calls side by side do not mix", s.parallel)
}

// suite is what its tests have in common.
type suite struct {
	Dialect
	// start starts a provider with a script, and the adapter for it.
	start func(t *testing.T, script string) (*fake.Server, adapters.Provider)
}

func (d Dialect) request(stream bool) adapters.Request {
	if d.Prompt == "" {
		d.Prompt = `"max_tokens":64,"messages":[{"role":"user","content":%s}]`
	}
	text := `{"model":"public/name",` + fmt.Sprintf(d.Prompt, prompt) + `}`
	if stream {
		text = strings.Replace(text, "{", `{"stream":true,`, 1)
	}
	return adapters.Request{Protocol: d.Protocol, Body: []byte(text), Model: model, PublicModel: "public/name", Stream: stream}
}

// read sends a request and reads its answer to the end.
func read(provider adapters.Provider, request adapters.Request) (text string, usage *ledger.Usage, output int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	answer, err := provider.Send(ctx, request)
	if err != nil {
		return "", nil, 0, err
	}
	defer func() { _ = answer.Close() }()
	for {
		event, err := answer.Next()
		if err == io.EOF {
			return text, usage, output, nil
		}
		if err != nil {
			return text, usage, output, err
		}
		text += string(event.Relay)
		output += event.OutputBytes
		if event.Usage != nil || event.Kind == adapters.Done {
			usage = event.Usage
		}
	}
}

func wantOne(t *testing.T, server *fake.Server) {
	t.Helper()
	if n := server.Seen(model).Requests; n != 1 {
		t.Errorf("the provider saw %d requests, want 1", n)
	}
}

// keeps sends what a client may have sent to be let in, or to say who it is. None of it is for the provider.
func (s suite) keeps(t *testing.T) {
	server, provider := s.start(t, `{}`)
	request := s.request(true)
	request.Query = "key=canary&beta=canary"
	request.Header = http.Header{}
	for _, name := range []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie", "Forwarded", "X-Forwarded-For", "User-Agent", "Session-Id", "Openai-Organization", "Idempotency-Key"} {
		request.Header.Set(name, "canary")
	}
	if _, _, _, err := read(provider, request); err != nil {
		t.Fatal(err)
	}
	seen := server.Seen(model)
	got := strings.ReplaceAll(fmt.Sprint(seen.Header, seen.Query), key, "") // which is the adapter's own
	if strings.Contains(got, "canary") {
		t.Errorf("the provider got %v, query %q", seen.Header, seen.Query)
	}
}

func (s suite) refusals(t *testing.T) {
	for script, want := range map[string]adapters.Reason{
		`{"status": 400}`: adapters.InvalidRequest, `{"status": 422}`: adapters.InvalidRequest, `{"status": 413}`: adapters.InvalidRequest,
		`{"status": 400, "code": "context_length_exceeded"}`: adapters.ContextLength,
		`{"status": 400, "code": "content_filter"}`:          adapters.ContentPolicy,
		`{"status": 401}`: adapters.Credential, `{"status": 402}`: adapters.Credential, `{"status": 403}`: adapters.Credential,
		`{"status": 404}`: adapters.ModelMissing, `{"status": 408}`: adapters.Overloaded, `{"status": 409}`: adapters.Overloaded,
		`{"status": 403, "code": "content_policy_violation"}`: adapters.ContentPolicy, `{"status": 404, "code": "flagged"}`: adapters.ModelMissing,
		`{"status": 405}`: adapters.InvalidRequest, `{"status": 415}`: adapters.InvalidRequest, `{"status": 418}`: adapters.InvalidRequest,
		`{"status": 451}`: adapters.InvalidRequest, `{"status": 499}`: adapters.InvalidRequest,
		`{"status": 429, "retry_after": 7}`: adapters.RateLimited, `{"status": 500}`: adapters.UpstreamError, `{"status": 502}`: adapters.UpstreamError,
		`{"status": 503}`: adapters.Overloaded, `{"status": 529}`: adapters.Overloaded, `{"status": 307}`: adapters.UpstreamError,
	} {
		script = strings.Replace(script, "{", `{"echo": true, `, 1)
		server, provider := s.start(t, script)
		_, _, _, err := read(provider, s.request(true))
		var failure *adapters.Failure
		if !errors.As(err, &failure) || failure.Reason != want {
			t.Errorf("%s: got %v, want %s", script, err, want)
			continue
		}
		if strings.Contains(err.Error()+failure.Code, "canary") {
			t.Errorf("%s: the error tells what it must not: %v", script, err)
		}
		if want == adapters.RateLimited && failure.RetryAfter != 7*time.Second {
			t.Errorf("%s: retry after %v", script, failure.RetryAfter)
		}
		wantOne(t, server)
	}
}

func (s suite) breaks(t *testing.T) {
	for script, want := range map[string]adapters.Reason{
		`{"break": "before_header"}`:                              adapters.Connection,
		`{"break": "before_first_byte"}`:                          adapters.StreamBroken,
		`{"break": "after_opening"}`:                              adapters.StreamBroken,
		`{"break": "after_first_delta"}`:                          adapters.StreamBroken,
		`{"omit_done": true}`:                                     adapters.StreamBroken,
		`{"error_after": 1}`:                                      adapters.StreamBroken,
		`{"raw": "<html>", "content_type": "text/html"}`:          adapters.UpstreamError,
		`{"raw": "{}", "content_type": "application/json"}`:       adapters.UpstreamError,
		`{"raw": "data: x", "content_type": "text/event-stream"}`: adapters.StreamBroken,
	} {
		server, provider := s.start(t, script)
		_, _, _, err := read(provider, s.request(true))
		var failure *adapters.Failure
		if !errors.As(err, &failure) || failure.Reason != want || failure.Accepted != (want != adapters.Connection) {
			t.Errorf("%s: got %v (%+v), want %s", script, err, failure, want)
		}
		wantOne(t, server)
	}
	for script, want := range map[string]adapters.Reason{
		`{"break": "before_header"}`:     adapters.Connection,
		`{"break": "before_first_byte"}`: adapters.StreamBroken,
		`{"break": "after_opening"}`:     adapters.StreamBroken,
		`{"break": "after_first_delta"}`: adapters.StreamBroken,
	} {
		server, provider := s.start(t, script)
		_, _, _, err := read(provider, s.request(false))
		if failure := asFailure(err); failure == nil || failure.Reason != want || failure.Accepted != (want != adapters.Connection) {
			t.Errorf("%s, not streamed: got %v, want %s", script, err, want)
		}
		wantOne(t, server)
	}
	for _, script := range []string{`{"raw": "<html>", "content_type": "text/html"}`, `{"raw": "{\"error\":{}}", "content_type": "application/json"}`} {
		_, provider := s.start(t, script)
		var failure *adapters.Failure
		if _, _, _, err := read(provider, s.request(false)); !errors.As(err, &failure) || failure.Reason != adapters.UpstreamError {
			t.Errorf("%s, not streamed: got %v", script, err)
		}
	}
}

func (s suite) ends(t *testing.T) {
	server, provider := s.start(t, `{"hold_after_delta": true}`)
	open := func(ctx context.Context) adapters.Answer {
		t.Helper()
		answer, err := provider.Send(ctx, s.request(true))
		if err != nil {
			t.Fatal(err)
		}
		for { // to the first delta
			event, err := answer.Next()
			if err != nil {
				t.Fatal(err)
			}
			if event.Kind.IsOutput() {
				return answer
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answer := open(ctx)
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := answer.Next(); err == nil || err == io.EOF {
		t.Errorf("after its context ended, Next says %v", err)
	}
	_ = answer.Close()
	waitClosed(t, server)
	answer = open(context.Background())
	time.AfterFunc(20*time.Millisecond, func() { _ = answer.Close() })
	if _, err := answer.Next(); err == nil || err == io.EOF {
		t.Errorf("after Close, Next says %v", err)
	}
	waitClosed(t, server)
	if err := answer.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func asFailure(err error) *adapters.Failure {
	var failure *adapters.Failure
	errors.As(err, &failure)
	return failure
}

func (s suite) unreachable(t *testing.T) {
	server, provider := s.start(t, `{}`)
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, _, err := read(provider, s.request(true))
	failure := asFailure(err)
	if failure == nil || failure.Reason != adapters.Connection || failure.Accepted || failure.Status != 0 {
		t.Fatalf("got %v", err)
	}
	if errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("nobody cancelled the call and nobody should see its address: %v", err)
	}
}

// final reads on after the end: neither a failure nor the terminal event may be followed by anything.
func (s suite) final(t *testing.T) {
	raw := func(stream string) string {
		return fmt.Sprintf(`{"raw": %q, "content_type": "text/event-stream"}`, stream)
	}
	for script, complete := range map[string]bool{
		`{}`: true, `{"omit_done": true}`: false, `{"break": "after_first_delta"}`: false,
		raw(s.Error + s.Content + s.Done): false, raw(s.Done + s.Content + s.Done): true,
	} {
		_, provider := s.start(t, script)
		answer, err := provider.Send(t.Context(), s.request(true))
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = answer.Next()
		}
		for range 3 {
			event, again := answer.Next()
			if again != err || (err == io.EOF) != complete || len(event.Relay) > 0 {
				t.Errorf("%s: after %v came %q, %v", script, err, event.Relay, again)
			}
		}
		_ = answer.Close()
	}
}

// reuses breaks a connection that has served a call before, which is where clients are tempted to send again.
func (s suite) reuses(t *testing.T) {
	const before = 50
	server, provider := s.start(t, `[`+strings.Repeat(`{}, `, before)+`{"break": "before_header"}]`)
	for range before {
		if _, _, _, err := read(provider, s.request(true)); err != nil {
			t.Fatal(err)
		}
	}
	_, _, _, err := read(provider, s.request(true))
	if failure := asFailure(err); failure == nil || failure.Reason != adapters.Connection {
		t.Errorf("got %v", err)
	}
	if n := server.Seen(model).Requests; n != before+1 {
		t.Errorf("the provider saw %d requests, want %d", n, before+1)
	}
	if n := server.Connections(); n != 1 {
		t.Errorf("the calls took %d connections, want 1", n)
	}
}

func (s suite) endsEarly(t *testing.T) {
	for _, stream := range []bool{true, false} {
		server, provider := s.start(t, `{"hold": true}`)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		_, err := provider.Send(ctx, s.request(stream))
		if failure := asFailure(err); failure == nil || failure.Accepted || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: got %v", err)
		}
		late, end := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer end()
		_, err = provider.Send(late, s.request(stream))
		if failure := asFailure(err); failure == nil || failure.Reason != adapters.Timeout {
			t.Errorf("out of time: got %v", err)
		}
		waitClosed(t, server)
	}
}

func (s suite) closesEverywhere(t *testing.T) {
	server, provider := s.start(t, `{"chunk_ms": 1, "text": ["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p"]}`)
	for i := range 20 {
		answer, err := provider.Send(t.Context(), s.request(true))
		if err != nil {
			t.Fatal(err)
		}
		var closing sync.WaitGroup
		for range 3 {
			closing.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				_ = answer.Close()
			})
		}
		for err == nil {
			_, err = answer.Next()
		}
		if err != io.EOF && asFailure(err) == nil {
			t.Errorf("got %v", err)
		}
		closing.Wait()
	}
	waitClosed(t, server)
}

// closesWhole reads a whole answer that is closed before, or meanwhile: it is all there, or gone.
func (s suite) closesWhole(t *testing.T) {
	_, provider := s.start(t, `{}`)
	for range 20 {
		answer, err := provider.Send(t.Context(), s.request(false))
		if err != nil {
			t.Fatal(err)
		}
		var closing sync.WaitGroup
		closing.Go(func() { _ = answer.Close() })
		event, err := answer.Next()
		if err == nil && !strings.HasSuffix(string(event.Relay), "}") || err != nil && asFailure(err) == nil {
			t.Errorf("got %q, %v", event.Relay, err)
		}
		closing.Wait()
	}
	answer, err := provider.Send(t.Context(), s.request(false))
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Close()
	for range 2 {
		if event, err := answer.Next(); asFailure(err) == nil {
			t.Errorf("after its end: got %q, %v", event.Relay, err)
		}
	}
}

func (s suite) parallel(t *testing.T) {
	server, provider := s.start(t, `{"split": 50}`)
	const calls = 64
	want, _, _, err := read(provider, s.request(true))
	if err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	for range calls - 1 {
		reading.Go(func() {
			if got, usage, _, err := read(provider, s.request(true)); err != nil || got != want || usage == nil {
				t.Errorf("got %q, %+v, %v", got, usage, err)
			}
		})
	}
	reading.Wait()
	if n := server.Seen(model).Requests; n != calls {
		t.Errorf("the provider saw %d requests, want %d", n, calls)
	}
}

// waitClosed waits until the provider has no call open.
func waitClosed(t *testing.T, server *fake.Server) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); server.Seen(model).Open > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the provider's call is still open")
		}
	}
}

// NoLeaks fails a test that leaves an exchange behind: a goroutine of an adapter, or of a connection in use or kept. It is to be
// called first, as it looks when all that the test has opened was closed.
func NoLeaks(t *testing.T) {
	t.Cleanup(func() {
		var left []string
		for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if left = exchanges(); len(left) == 0 {
				return
			}
		}
		t.Errorf("%d goroutines are left, the first:\n%s", len(left), left[0])
	})
}

// exchanges lists the goroutines that are part of an exchange.
func exchanges() []string {
	stacks := make([]byte, 8<<20) // some 4,000 goroutines
	stacks = stacks[:runtime.Stack(stacks, true)]
	var found []string
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		ours := strings.Contains(stack, "regent/adapters/") || strings.Contains(stack, "net/http.(*persistConn)")
		if ours && !strings.Contains(stack, "testing.tRunner") && !strings.Contains(stack, "testing.(*T)") {
			found = append(found, stack)
		}
	}
	return found
}
