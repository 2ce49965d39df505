package fake_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"regent/adapters/adaptertest"
	"regent/adapters/fake"
)

const model = "scripted"

func TestParseScript(t *testing.T) {
	for text, steps := range map[string]int{
		`{}`: 1, ` [{}, {"status": 503}] `: 2, `{"text": ["a"], "error_after": 1}`: 1, `{"usage": "12"}`: 1, `{"break": "after_opening"}`: 1, `{"tool_call": true}`: 1, `{"tool_call": 1}`: 0, `{"break": "after_usage"}`: 1,
		``: 0, `[]`: 0, `null`: 0, `[null]`: 0, `1`: 0, `"x"`: 0, `[[]]`: 0, `{},{}`: 0, `{} {}`: 0, `[{}] x`: 0, `[{}`: 0, `{`: 0, `{}],[{}`: 0,
		`{"texts": []}`: 0, `{"text": "a"}`: 0, `{"break": "now"}`: 0, `{"status": -1}`: 0, `{"status": 200}`: 0, `{"status": 600}`: 0,
		`{"delay_ms": -1}`: 0, `{"chunk_ms": -1}`: 0, `{"split": -1}`: 0, `{"error_after": -1}`: 0, `{"error_after": 6}`: 0, `{"retry_after": -1}`: 0,
		`{"status": 1.5}`: 0, `{"wire": [{"text": "x", "times": 2, "pause_ms": 1}], "wire_end": "reset"}`: 1, `{"wire": [{"text": ""}]}`: 0,
		`{"wire": [{"text": "x", "times": -1}]}`: 0, `{"wire": [{"text": "x", "pause_ms": -1}]}`: 0, `{"wire_end": "later"}`: 0,
	} {
		script, err := fake.ParseScript([]byte(text))
		if len(script) != steps || (err == nil) != (steps > 0) || err != nil && !errors.Is(err, fake.ErrScript) {
			t.Errorf("%s: got %d steps, %v, want %d", text, len(script), err, steps)
		}
	}
}

func start(t *testing.T, script string) *fake.Server {
	t.Helper()
	adaptertest.NoLeaks(t)
	server, err := fake.Start(fake.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Close() // what is still open is ended
		http.DefaultClient.CloseIdleConnections()
	})
	set(t, server, script)
	return server
}

func set(t *testing.T, server *fake.Server, script string) {
	t.Helper()
	steps, err := fake.ParseScript([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	server.SetScript(model, steps)
}

func post(ctx context.Context, server *fake.Server, body string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL()+"/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(request)
}

// ask posts a request and returns all of the answer, and whether it ended as it should.
func ask(server *fake.Server, body string) (text string, response *http.Response, err error) {
	response, err = post(context.Background(), server, body)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = response.Body.Close() }()
	all, err := io.ReadAll(response.Body)
	return string(all), response, err
}

const (
	stream = `{"model":"scripted","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"12345678"}]}`
	whole  = `{"model":"scripted","messages":[{"role":"user","content":"12345678"}]}`
	tools  = `{"model":"scripted","stream":true,"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"run",` +
		`"parameters":{"properties":{"command":{"type":["array","null"]},"n":{"type":"integer"},"any":{}}}}}]}`
	shown = `{"model":"scripted","messages":[{"role":"tool","content":"x"}],"tools":[{"type":"function","function":{"name":"run","parameters":{}}}]}`
)

func TestSteps(t *testing.T) {
	server := start(t, `{}`)
	for _, test := range []struct {
		script, body string
		contains     []string
		lacks        []string
		broken       bool
	}{
		{`{"text": ["a", "b"]}`, stream, []string{`"content":"a"`, `"content":"b"`, `"prompt_tokens":3,"completion_tokens":2`, "data: [DONE]\n\n"}, nil, false},
		{`{"text": ["a", "b"]}`, whole, []string{`"content":"ab"`, `"prompt_tokens":3,"completion_tokens":2`}, []string{"data:"}, false},
		{`{"text": ["a"], "split": 3}`, stream, []string{`"content":"a"`, "data: [DONE]\n\n"}, nil, false},
		{`{"omit_usage": true}`, stream, []string{"[DONE]"}, []string{"prompt_tokens"}, false},
		{`{"omit_usage": true}`, whole, []string{"choices"}, []string{"usage"}, false},
		{`{"omit_done": true}`, stream, []string{"prompt_tokens"}, []string{"[DONE]"}, false},
		{`{"usage": {"odd":true}}`, stream, []string{`"usage":{"odd":true}`}, nil, false},
		{`{"text": ["a", "b"], "error_after": 1}`, stream, []string{`"content":"a"`, `"error"`}, []string{`"content":"b"`, "[DONE]"}, true},
		{`{"break": "before_header"}`, stream, nil, nil, true},
		{`{"break": "before_first_byte"}`, stream, nil, []string{"data"}, true},
		{`{"break": "after_opening"}`, stream, []string{`"role"`}, []string{`"content":"This"`}, true},
		{`{"break": "after_first_delta"}`, stream, []string{`"content":"This"`}, []string{`"content":" is"`}, true},
		{`{"break": "after_usage"}`, stream, []string{`"prompt_tokens"`}, []string{"[DONE]"}, true},
		{`{"break": "before_first_byte"}`, whole, nil, []string{"{"}, true},
		{`{"break": "after_opening"}`, whole, []string{"{"}, []string{"}\n"}, true},
		{`{"break": "after_first_delta"}`, tools, []string{`"name":"run"`}, []string{"[DONE]"}, true},
		{`{"raw": "data: x\n\n", "content_type": "text/event-stream"}`, whole, []string{"data: x\n\n"}, nil, false},
		{`{"status": 418, "code": "tea"}`, stream, []string{`"code":"tea"`}, []string{"12345678"}, false},
		{`{"status": 400, "echo": true}`, stream, []string{"12345678"}, nil, false},
		{`{}`, tools, []string{`"name":"run"`, `"arguments":"{\"an"`, `"arguments":"y\":\""`, `"finish_reason":"tool_calls"`}, nil, false},
		{`{"tool_call": true}`, stream, []string{`"name":"tool"`, `"arguments":"{}"`, `"completion_tokens":2`, `"finish_reason":"tool_calls"`, "[DONE]"}, []string{"built-in"}, false},
		{`{"tool_call": true, "break": "after_first_delta"}`, stream, []string{`"name":"tool"`}, []string{`"arguments":"{}"`, "[DONE]"}, true},
		{`{"tool_call": true}`, whole, []string{`"name":"tool"`, `"arguments":"{}"`, `"content":null`, `"finish_reason":"tool_calls"`}, nil, false},
		{`{"tool_call": true}`, shown, []string{`"name":"run"`, `"finish_reason":"tool_calls"`}, nil, false},
		{`{}`, shown, []string{"built-in"}, []string{"tool_calls"}, false},
		{`{"wire": [{"text": "HTTP/1.1 200 OK\r\n\r\n"}, {"text": "ab", "times": 40000}, {"text": "c"}]}`, whole, []string{strings.Repeat("ab", 40000) + "c"}, nil, false},
		{`{"wire": [{"text": "HTTP/1.1 200 OK\r\n\r\nab"}, {"text": "c", "times": 3, "pause_ms": 1}], "split": 1}`, whole, []string{"abccc"}, nil, false},
		{`{"wire": [{"text": "HTTP/1.1 200 OK\r\n\r\nab"}], "wire_end": "reset"}`, whole, nil, []string{"c"}, true},
	} {
		set(t, server, test.script)
		text, _, err := ask(server, test.body)
		if (err != nil) != test.broken {
			t.Errorf("%s: %v", test.script, err)
		}
		for _, part := range test.contains {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %q lacks %q", test.script, text, part)
			}
		}
		for _, part := range test.lacks {
			if strings.Contains(text, part) {
				t.Errorf("%s: %q contains %q", test.script, text, part)
			}
		}
		if n := server.Seen(model).Requests; n != 1 {
			t.Errorf("%s: %d requests", test.script, n)
		}
	}
}

func TestStepsInOrder(t *testing.T) {
	server := start(t, `[{"status": 503, "retry_after": 3}, {"status": 429}, {}]`)
	for _, want := range []int{503, 429, 200, 200} {
		_, response, err := ask(server, whole)
		if err != nil || response.StatusCode != want {
			t.Fatalf("got %v, %v, want %d", response, err, want)
		}
		if after := response.Header.Get("Retry-After"); want == 503 && after != "3" {
			t.Errorf("Retry-After %q", after)
		}
	}
	seen := server.Seen(model)
	if seen.Requests != 4 || seen.Open != 0 || string(seen.Body) != whole || seen.Header.Get("User-Agent") == "" {
		t.Errorf("seen %+v", seen)
	}
	server.SetScript(model, fake.Script{})
	if _, response, err := ask(server, whole); err != nil || response.StatusCode != http.StatusNotFound {
		t.Errorf("without a script: %v, %v", response, err)
	}
	for _, want := range []int{503, 200, 503, 200, 503} {
		if _, response, err := ask(server, `{"model":"flaky"}`); err != nil || response.StatusCode != want {
			t.Errorf("flaky: got %v, %v, want %d", response, err, want)
		}
	}
	if _, response, err := ask(server, `{"model":`); err != nil || response.StatusCode != http.StatusBadRequest {
		t.Errorf("half a body: %v, %v", response, err)
	}
}

func TestEachCallIsTold(t *testing.T) {
	adaptertest.NoLeaks(t)
	told := make(chan string, 2)
	server, err := fake.Start(fake.Config{OnCall: func(model string, body []byte) { told <- model + " " + string(body) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Close() // nothing is open
		http.DefaultClient.CloseIdleConnections()
	})
	set(t, server, `{"status": 418}`)
	if _, response, err := ask(server, whole); err != nil || response.StatusCode != http.StatusTeapot {
		t.Fatalf("got %v, %v", response, err)
	}
	if got, want := <-told, model+" "+whole; got != want {
		t.Errorf("told of %q, want %q", got, want)
	}
}

func TestTimesPass(t *testing.T) {
	server := start(t, `{"delay_ms": 30, "chunk_ms": 10, "text": ["a", "b", "c"]}`)
	started := time.Now()
	if _, _, err := ask(server, stream); err != nil || time.Since(started) < 60*time.Millisecond {
		t.Errorf("it took %v, %v", time.Since(started), err)
	}
}

func TestHeldCalls(t *testing.T) {
	for _, script := range []string{`{"hold": true}`, `{"hold_after_delta": true}`} {
		server := start(t, script)
		ends := make(chan error, 2)
		call := func() {
			_, _, err := ask(server, stream)
			ends <- err
		}
		go call()
		waitOpen(t, server, 1)
		time.Sleep(20 * time.Millisecond) // for a delta to be sent, and for a call that is not held to end
		server.Release()
		if err := end(t, ends); err != nil {
			t.Errorf("%s: released, and %v", script, err)
		}
		go call()
		waitOpen(t, server, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			response, err := post(ctx, server, stream)
			if err == nil {
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			gone <- err
		}()
		waitOpen(t, server, 2)
		cancel()
		if err := end(t, gone); err == nil {
			t.Errorf("%s: a client that has gone got its answer", script)
		}
		waitOpen(t, server, 1)
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
		end(t, ends) // by Close, or, if that came first, by its Release
		waitOpen(t, server, 0)
	}
}

func end(t *testing.T, ends chan error) error {
	t.Helper()
	select {
	case err := <-ends:
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("the call does not end")
		return nil
	}
}

func waitOpen(t *testing.T, server *fake.Server, open int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); server.Seen(model).Open != open; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d calls are open, want %d", server.Seen(model).Open, open)
		}
	}
}

func TestAThousandSlowStreams(t *testing.T) {
	server := start(t, `{"chunk_ms": 20, "text": ["a", "b", "c", "d", "e"]}`)
	const calls = 1000
	var all sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]int{}
	for range calls {
		all.Go(func() {
			text, _, err := ask(server, stream)
			if err != nil || strings.Count(text, `"content":`) != 6 || !strings.HasSuffix(text, "data: [DONE]\n\n") {
				mu.Lock()
				failed[fmt.Sprint(err)]++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if seen := server.Seen(model); len(failed) > 0 || seen.Requests != calls {
		t.Errorf("%d requests, failed %v", seen.Requests, failed)
	}
	waitOpen(t, server, 0)
}

func TestTheListOfModels(t *testing.T) {
	server := start(t, `{}`)
	response, err := http.Get(server.URL() + "/models")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if text, err := io.ReadAll(response.Body); err != nil || !bytes.Contains(text, []byte(`"id":"steady"`)) {
		t.Errorf("got %s, %v", text, err)
	}
}
