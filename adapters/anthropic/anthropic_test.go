package anthropic

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"regent/adapters"
	"regent/adapters/adaptertest"
	"regent/adapters/fake"
	"regent/adapters/upstream"
)

func TestConformance(t *testing.T) {
	adaptertest.Run(t, adaptertest.Dialect{
		Protocol: adapters.AnthropicMessages,
		Content:  `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}` + "\n\n",
		Error:    "event: error\n" + `data: {"type":"error","error":{}}` + "\n\n",
		Done:     "event: message_stop\n" + `data: {"type":"message_stop"}` + "\n\n",
		Untrue:   []string{`{"input_tokens":-1,"output_tokens":1}`, `{"input_tokens":1e300,"output_tokens":1}`, `{}`},
	}, newProvider)
}

func newProvider(t *testing.T, baseURL, key string) adapters.Provider {
	t.Helper()
	return newClient(t, Config{BaseURL: baseURL, APIKey: key})
}

func newClient(t *testing.T, config Config) *Provider {
	t.Helper()
	config.Client = upstream.New(upstream.Config{AllowPrivate: true})
	t.Cleanup(config.Client.CloseIdleConnections)
	provider, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

func TestNew(t *testing.T) {
	client := &http.Client{}
	for name, config := range map[string]Config{
		"no URL":                 {Client: client},
		"no client":              {BaseURL: "http://x"},
		"two credentials":        {BaseURL: "http://x", Client: client, APIKey: "a", AuthToken: "b"},
		"a key of two lines":     {BaseURL: "http://x", Client: client, APIKey: "a\nb"},
		"a token with a control": {BaseURL: "http://x", Client: client, AuthToken: "a\x00"},
	} {
		if _, err := New(config); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// sent is a provider's view of a request.
type sent struct {
	target string
	header http.Header
	body   string
}

// listen starts a provider that answers nothing of use, and says what it has got.
func listen(t *testing.T) (baseURL string, got *sent) {
	t.Helper()
	got = new(sent)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*got = sent{r.URL.RequestURI(), r.Header.Clone(), string(body)}
	}))
	t.Cleanup(server.Close)
	return server.URL, got
}

// TestWhatIsSent: the header is an allow-list, and the body the client's own but for the edits, of which every byte that is not named
// stays: unknown fields, the order of keys, spaces, escapes, big numbers.
func TestWhatIsSent(t *testing.T) {
	baseURL, got := listen(t)
	const before = `{ "max_tokens":1e2,"thinking":{"type":"adaptive"}, "system":[{"type":"text","text":"\u00e9\/","cache_control":{"type":"ephemeral","ttl":"1h"}}],` + "\n\t"
	const after = `, "messages":[{"role":"user","content":"x"},{"role":"system","content":"y"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s=="}]}],` +
		`"context_management":{"edits":[]},"output_config":{"effort":"high"},"new_field":12345678901234567890.10,"stream":true }`
	client := http.Header{
		"Authorization": {"Bearer canary"}, "X-Api-Key": {"canary"}, "Cookie": {"canary"}, "User-Agent": {"canary"}, "X-Stainless-Os": {"canary"},
		"Anthropic-Version": {"2026-10-21"}, "Anthropic-Beta": {"claude-code-20250219, output-128k-2025-02-19", "effort-2025-11-24"},
	}
	for _, test := range []struct {
		config Config
		name   string
		value  string
	}{
		{Config{BaseURL: baseURL + "/", APIKey: "key"}, "X-Api-Key", "key"},
		{Config{BaseURL: baseURL + "/v1", AuthToken: "token"}, "Authorization", "Bearer token"},
	} {
		_, err := newClient(t, test.config).Send(t.Context(), adapters.Request{
			Body: []byte(before + `"model" : "pub"` + `,"route":"x"` + after), Model: "up", Stream: true, Strip: []string{"route"}, Header: client, Query: "x=canary&beta=true",
		})
		if err == nil || got.body != before+`"model" : "up"`+after {
			t.Errorf("sent %s, %v", got.body, err)
		}
		want := http.Header{
			"Accept": {"text/event-stream"}, "Content-Type": {"application/json"}, "User-Agent": {"regent"}, test.name: {test.value},
			"Content-Length": {fmt.Sprint(len(got.body))}, "Anthropic-Version": {"2026-10-21"},
			"Anthropic-Beta": {"claude-code-20250219,output-128k-2025-02-19,effort-2025-11-24"},
		}
		if !reflect.DeepEqual(got.header, want) || got.target != "/v1/messages?beta=true" {
			t.Errorf("%s, header %v", got.target, got.header)
		}
	}
	if _, err := newClient(t, Config{BaseURL: baseURL}).Send(t.Context(), adapters.Request{Body: []byte(`{"messages":[],"fallbacks":[{"model":"dear"}]}`), Model: "up"}); err == nil {
		t.Error("nothing is an answer")
	}
	want := http.Header{
		"Accept": {"application/json"}, "Content-Type": {"application/json"}, "User-Agent": {"regent"}, "Content-Length": {fmt.Sprint(len(got.body))},
		"Anthropic-Version": {"2023-06-01"},
	}
	if !reflect.DeepEqual(got.header, want) || got.target != "/v1/messages" || got.body != `{"messages":[],"model":"up"}` {
		t.Errorf("%s %s, header %v", got.target, got.body, got.header)
	}
}

// TestWhatIsNotPassedOn: a client's version, betas and query go on only where they can be what they should.
func TestWhatIsNotPassedOn(t *testing.T) {
	p := newClient(t, Config{BaseURL: "http://x"})
	for version, want := range map[string]string{
		"2023-01-01": "2023-01-01", "2026-10-21": "2026-10-21", "": versionDefault, "latest": versionDefault, "2026-13-01": versionDefault,
		"2026-10-21 ": versionDefault, "2026-10-21\r\nX: y": versionDefault, strings.Repeat("2", 100): versionDefault,
	} {
		if got := p.header(http.Header{versionName: {version}}).Get(versionName); got != want {
			t.Errorf("version %q: got %q", version, got)
		}
	}
	for beta, want := range map[string]string{
		"": "", ",": "", "a": "a", "a,b": "a,b", " a , ,b\t": "a,b", "a b,c": "c", "a\r\nX: y": "", "é,d": "d", strings.Repeat("a", betaMax+1) + ",e": "e",
		strings.Repeat("a", betaMax): strings.Repeat("a", betaMax), "Files-API_2025.04": "Files-API_2025.04",
	} {
		if got := p.header(http.Header{betaName: {beta}}).Get(betaName); got != want {
			t.Errorf("beta %q: got %q", beta, got)
		}
	}
	for text, want := range map[string]string{
		"": "", "beta=true": "?beta=true", "beta=false": "", "beta": "", "x=1&beta=true": "?beta=true", "%zz&beta=true": "?beta=true", "beta=true%26key=x": "",
		"key=secret": "",
	} {
		if got := query(text); got != want {
			t.Errorf("query %q: got %q", text, got)
		}
	}
}

func TestARequestThatIsNone(t *testing.T) {
	p := newClient(t, Config{BaseURL: "http://x"})
	for _, body := range []string{``, `null`, `[]`, `{`, `{"a":"}`, `{"model":"pub"}x`} {
		_, err := p.Send(t.Context(), adapters.Request{Body: []byte(body), Model: "up"})
		if failure, _ := err.(*adapters.Failure); failure == nil || failure.Reason != adapters.InvalidRequest || failure.Accepted {
			t.Errorf("%s: got %v", body, err)
		}
	}
}

// TestCountTokens: the answer is the provider's, byte for byte, and failures are those of any call.
func TestCountTokens(t *testing.T) {
	server, err := fake.Start(fake.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }() // nothing is open
	p := newClient(t, Config{BaseURL: server.URL(), APIKey: "key"})
	for script, want := range map[string]string{
		`{}`:                                 `{"input_tokens":1}`,
		`{"raw": "{\"input_tokens\" : 7 }"}`: `{"input_tokens" : 7 }`,
		`{"raw": "{}"}`:                      "upstream_error",
		`{"raw": "[]"}`:                      "upstream_error",
		`{"raw": "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"secret\"}}"}`: "overloaded",
		`{"raw": "{\"input_tokens\":7,\"x\":\"` + strings.Repeat("x", countBytesMax) + `\"}"}`:             "upstream_error",
		`{"status": 429, "retry_after": 3}`:                  "rate_limited",
		`{"status": 400, "code": "context_length_exceeded"}`: "context_length",
		`{"status": 404}`:                                        "model_missing",
		`{"break": "before_header"}`:                             "connection",
		`{"break": "after_opening"}`:                             "stream_broken",
		`{"raw": "<html>", "content_type": "text/html"}`:         "upstream_error",
		`{"raw": "{\"input_tokens\":\"7\"}"}`:                    "upstream_error",
		`{"raw": "{\"input_tokens\":7,\"model\":\"scripted\"}"}`: `{"input_tokens":7,"model":"scripted"}`,
	} {
		steps, err := fake.ParseScript([]byte(script))
		if err != nil {
			t.Fatal(err)
		}
		server.SetScript("scripted", steps)
		got, err := p.CountTokens(t.Context(), adapters.Request{
			Body: []byte(`{"model":"pub","messages":[{"role":"user","content":"x"}]}`), Model: "scripted", PublicModel: "pub", Stream: true,
		})
		failure, _ := err.(*adapters.Failure)
		if err == nil && string(got) != want || err != nil && (failure == nil || string(failure.Reason) != want || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%.80s: got %s, %v, want %s", script, got, err, want)
		}
		if n := server.Seen("scripted").Requests; n != 1 {
			t.Errorf("%.80s: %d requests", script, n)
		}
	}
}

// TestSearchesAreBounded where a tool for them leaves them open; no other tool is changed.
func TestSearchesAreBounded(t *testing.T) {
	for given, want := range map[string]string{
		`[{"type":"web_search_20250305","name":"web_search"}]`:  `[{"type":"web_search_20250305","name":"web_search","max_uses":8}]`,
		`[ {"name":"f"} , { "type" : "web_search_20260318" } ]`: `[ {"name":"f"} , { "type" : "web_search_20260318" ,"max_uses":8} ]`,
		`[{"max_uses":null,"type":"web_search_20250305"}]`:      `[{"max_uses":8,"type":"web_search_20250305"}]`,
		`[{"type":"web_search_20250305","max_uses":3}]`:         `[{"type":"web_search_20250305","max_uses":3}]`,
		`[{"type":"web_fetch_20250910"},{"type":"custom"}]`:     `[{"type":"web_fetch_20250910"},{"type":"custom"}]`,
	} {
		baseURL, got := listen(t)
		for searches, wanted := range map[int64]string{8: want, 0: given} {
			request := adapters.Request{Body: []byte(`{"model":"up","tools":` + given + `}`), Model: "up", Searches: searches}
			if _, err := newClient(t, Config{BaseURL: baseURL}).Send(t.Context(), request); err == nil || got.body != `{"model":"up","tools":`+wanted+`}` {
				t.Errorf("%s, %d searches: sent %s, %v", given, searches, got.body, err)
			}
		}
	}
}
