// Package adaptertest is the conformance suite of adapters: what every [adapters.Provider] must do, shown against the built-in
// provider. An adapter's own test calls [Run].
package adaptertest

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"regent/adapters"
	"regent/adapters/fake"
	"regent/ledger"
)

const (
	key    = "sk-canary"
	prompt = "canary-prompt"
	model  = "scripted"
	body   = `{"model":"public/name","messages":[{"role":"user","content":"` + prompt + `"}]}`
)

// Run runs the suite. newProvider makes the adapter for a provider at a base URL, with a credential.
func Run(t *testing.T, newProvider func(t *testing.T, baseURL, key string) adapters.Provider) {
	start := func(t *testing.T, script string) (*fake.Server, adapters.Provider) {
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
	t.Run("a stream is relayed and its usage read", func(t *testing.T) {
		server, provider := start(t, `{"text": ["Hel", "lo"]}`)
		text, usage, output, err := read(provider, request(true))
		if err != nil || output != 5 || usage == nil || *usage != (ledger.Usage{UncachedInput: 4, Output: 2}) {
			t.Errorf("output %d, usage %+v, %v", output, usage, err)
		}
		if !strings.Contains(text, `"Hel"`) || strings.Contains(text, model) || !strings.Contains(text, "public/name") {
			t.Errorf("relayed %q", text)
		}
		wantOne(t, server)
	})
	t.Run("bytes split anywhere are the same stream", func(t *testing.T) {
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
	t.Run("a whole answer is one event", func(t *testing.T) {
		server, provider := start(t, `{"text": ["Hello"]}`)
		text, usage, output, err := read(provider, request(false))
		if err != nil || output != 5 || usage == nil || *usage != (ledger.Usage{UncachedInput: 4, Output: 1}) || !strings.Contains(text, "public/name") {
			t.Errorf("%q, output %d, usage %+v, %v", text, output, usage, err)
		}
		wantOne(t, server)
	})
	t.Run("usage that cannot be true is none", func(t *testing.T) {
		for _, usage := range []string{`{"prompt_tokens":-1,"completion_tokens":1}`, `{"prompt_tokens":1e300,"completion_tokens":1}`, `"12"`, `null`} {
			_, provider := start(t, `{"usage": `+usage+`}`)
			if _, got, _, err := read(provider, request(true)); err != nil || got != nil {
				t.Errorf("%s: %+v, %v", usage, got, err)
			}
		}
	})
	t.Run("refusals are classified and tell nothing", func(t *testing.T) { refusals(t, start) })
	t.Run("breaks are failures", func(t *testing.T) { breaks(t, start) })
	t.Run("an exchange can be ended", func(t *testing.T) { ends(t, start) })
}

type starter func(t *testing.T, script string) (*fake.Server, adapters.Provider)

func request(stream bool) adapters.Request {
	text := body
	if stream {
		text = strings.Replace(body, "{", `{"stream":true,`, 1)
	}
	return adapters.Request{Protocol: adapters.OpenAIChat, Body: []byte(text), Model: model, PublicModel: "public/name", Stream: stream}
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
		if event.Usage != nil {
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

func refusals(t *testing.T, start starter) {
	for script, want := range map[string]adapters.Reason{
		`{"status": 400}`: adapters.InvalidRequest, `{"status": 422}`: adapters.InvalidRequest, `{"status": 413}`: adapters.InvalidRequest,
		`{"status": 400, "code": "context_length_exceeded"}`: adapters.ContextLength,
		`{"status": 400, "code": "content_filter"}`:          adapters.ContentPolicy,
		`{"status": 401}`: adapters.Credential, `{"status": 402}`: adapters.Credential, `{"status": 403}`: adapters.Credential,
		`{"status": 404}`: adapters.ModelMissing, `{"status": 408}`: adapters.Overloaded, `{"status": 409}`: adapters.Overloaded,
		`{"status": 429, "retry_after": 7}`: adapters.RateLimited, `{"status": 500}`: adapters.UpstreamError, `{"status": 502}`: adapters.UpstreamError,
		`{"status": 503}`: adapters.Overloaded, `{"status": 529}`: adapters.Overloaded, `{"status": 307}`: adapters.UpstreamError,
	} {
		script = strings.Replace(script, "{", `{"echo": true, `, 1)
		server, provider := start(t, script)
		_, _, _, err := read(provider, request(true))
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

func breaks(t *testing.T, start starter) {
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
		server, provider := start(t, script)
		_, _, _, err := read(provider, request(true))
		var failure *adapters.Failure
		if !errors.As(err, &failure) || failure.Reason != want || failure.Accepted != (want != adapters.Connection) {
			t.Errorf("%s: got %v (%+v), want %s", script, err, failure, want)
		}
		wantOne(t, server)
	}
	for _, script := range []string{`{"raw": "<html>", "content_type": "text/html"}`, `{"raw": "{\"error\":{}}", "content_type": "application/json"}`} {
		_, provider := start(t, script)
		var failure *adapters.Failure
		if _, _, _, err := read(provider, request(false)); !errors.As(err, &failure) || failure.Reason != adapters.UpstreamError {
			t.Errorf("%s, not streamed: got %v", script, err)
		}
	}
}

func ends(t *testing.T, start starter) {
	server, provider := start(t, `{"hold_after_delta": true}`)
	open := func(ctx context.Context) adapters.Answer {
		t.Helper()
		answer, err := provider.Send(ctx, request(true))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the opening and the first delta
			if _, err := answer.Next(); err != nil {
				t.Fatal(err)
			}
		}
		return answer
	}
	waitClosed := func(what string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); server.Seen(model).Open > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the provider's call is still open", what)
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
	waitClosed("a context that ends")
	answer = open(context.Background())
	time.AfterFunc(20*time.Millisecond, func() { _ = answer.Close() })
	if _, err := answer.Next(); err == nil || err == io.EOF {
		t.Errorf("after Close, Next says %v", err)
	}
	waitClosed("Close")
	if err := answer.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}
