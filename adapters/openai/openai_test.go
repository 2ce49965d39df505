package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/adaptertest"
	"regent/adapters/sse"
	"regent/adapters/upstream"
	"regent/ledger"
)

func TestConformance(t *testing.T) {
	adaptertest.Run(t, func(t *testing.T, baseURL, key string) adapters.Provider {
		provider, err := New(Config{BaseURL: baseURL, APIKey: key, Client: upstream.New(upstream.Config{AllowPrivate: true})})
		if err != nil {
			t.Fatal(err)
		}
		return provider
	})
}

// TestEditChangesNothingElse: every byte that is not named stays, spaces, key order, big numbers and escapes included.
func TestEditChangesNothingElse(t *testing.T) {
	for _, test := range []struct{ body, want string }{
		{`{ "big":12345678901234567890.10 ,"model" : "pub", "x":"\u00e9\/" }`, `{ "big":12345678901234567890.10 ,"model" : "up", "x":"\u00e9\/" }`},
		{`{"model":"pub","stream":true}`, `{"model":"up","stream":true,"stream_options":{"include_usage":true}}`},
		{`{"stream":true,"stream_options":null,"model":"pub"}`, `{"stream":true,"stream_options":{"include_usage":true},"model":"up"}`},
		{`{"stream":true,"stream_options":{"include_usage":false,"z":1},"model":"pub"}`, `{"stream":true,"stream_options":{"include_usage":true,"z":1},"model":"up"}`},
		{`{"model":"pub","provider":{"order":["x"]},"messages":[]}`, `{"model":"up","messages":[]}`},
	} {
		request := adapters.Request{
			Body: []byte(test.body), Model: "up", Stream: gjson.Get(test.body, "stream").Bool(), Strip: RoutingFields([]byte(test.body)),
		}
		got, err := edit(request)
		if err != nil || string(got) != test.want {
			t.Errorf("%s\ngot  %s, %v\nwant %s", test.body, got, err, test.want)
		}
		if string(request.Body) != test.body {
			t.Errorf("the client's own body was changed")
		}
	}
}

// relayed reads a stream through an answer and returns what is relayed and the kinds of its events.
func relayed(t *testing.T, stream string, usageWanted bool) (text string, kinds []adapters.Kind, usage *ledger.Usage, err error) {
	t.Helper()
	ctx, end := context.WithCancelCause(context.Background())
	a := &answer{
		request: adapters.Request{PublicModel: "pub", Stream: true, UsageWanted: usageWanted}, status: 200, ctx: ctx, end: end,
		events: sse.NewReader(strings.NewReader(stream)), body: upstream.NewBody(io.NopCloser(strings.NewReader("")), end),
	}
	defer func() { _ = a.Close() }()
	for {
		event, err := a.Next()
		if err == io.EOF {
			return text, kinds, usage, nil
		}
		if err != nil {
			return text, kinds, usage, err
		}
		text += string(event.Relay)
		kinds = append(kinds, event.Kind)
		if event.Usage != nil {
			usage = event.Usage
		}
	}
}

func TestRelayEditsOnlyWhatIsNamed(t *testing.T) {
	const done = "data: [DONE]\n\n"
	for name, test := range map[string]struct {
		stream, want string
		usageWanted  bool
	}{
		"nothing to edit":             {"data: {\"model\":\"pub\", \"x\":1}\r\n\r\n" + done, "data: {\"model\":\"pub\", \"x\":1}\r\n\r\n" + done, false},
		"the model":                   {"data:{\"id\":1 ,\"model\" : \"up\",\"choices\":[{\"delta\":{\"model\":\"up\"}}]}\n\n" + done, "data:{\"id\":1 ,\"model\" : \"pub\",\"choices\":[{\"delta\":{\"model\":\"up\"}}]}\n\n" + done, false},
		"usage null, last":            {"data: {\"a\":1, \"usage\":null}\n\n" + done, "data: {\"a\":1}\n\n" + done, false},
		"usage null, first":           {"data: {\"usage\" : null , \"a\":1}\n\n" + done, "data: { \"a\":1}\n\n" + done, false},
		"usage null, between":         {"data: {\"a\":1,\"usage\":null,\"b\":{\"usage\":2}}\n\n" + done, "data: {\"a\":1,\"b\":{\"usage\":2}}\n\n" + done, false},
		"usage null, alone":           {"data: {\"usage\":null}\n\n" + done, "data: {}\n\n" + done, false},
		"usage stays where asked for": {"data: {\"a\":1,\"usage\":null}\n\n" + done, "data: {\"a\":1,\"usage\":null}\n\n" + done, true},
		"the usage chunk goes":        {"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n" + done, done, false},
		"the usage chunk stays":       {"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n" + done, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n" + done, true},
		"comments go":                 {": PROCESSING\n\ndata: {\"a\":1}\n\n" + done, "data: {\"a\":1}\n\n" + done, false},
		"no blank line at the end":    {"data: {\"a\":1}\n\ndata: [DONE]", "data: {\"a\":1}\n\n" + done, false},
		"data over two lines":         {"data: {\"model\":\ndata: \"up\"}\n\n" + done, "data: {\"model\":\ndata: \"pub\"}\n\n" + done, false},
	} {
		got, _, _, err := relayed(t, test.stream, test.usageWanted)
		if err != nil || got != test.want {
			t.Errorf("%s:\ngot  %q, %v\nwant %q", name, got, err, test.want)
		}
	}
}

func TestKinds(t *testing.T) {
	delta := func(text string) string {
		return fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":%s,\"finish_reason\":null}]}\n\n", text)
	}
	stream := "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n" + delta(`{"role":"assistant","content":""}`) + delta(`{"content":"x"}`) +
		delta(`{"reasoning_content":"y"}`) + delta(`{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}`) + delta(`{}`) +
		"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n"
	_, kinds, usage, err := relayed(t, stream, false)
	want := []adapters.Kind{
		adapters.Opening, adapters.Opening, adapters.Content, adapters.Content, adapters.ToolCall, adapters.Closing, adapters.Closing,
		adapters.Closing, adapters.Done,
	}
	if err != nil || fmt.Sprint(kinds) != fmt.Sprint(want) {
		t.Errorf("got %v, %v, want %v", kinds, err, want)
	}
	if usage == nil || *usage != (ledger.Usage{UncachedInput: 3, Output: 1}) {
		t.Errorf("usage: %+v", usage)
	}
}

func TestStreamsThatAreNoAnswers(t *testing.T) {
	for name, stream := range map[string]string{
		"nothing":              "",
		"no terminal event":    "data: {\"choices\":[]}\n\n",
		"an error":             "data: {\"choices\":[]}\n\ndata: {\"error\":{\"message\":\"secret\"}}\n\ndata: [DONE]\n\n",
		"no JSON":              "data: <html>\n\n",
		"half an event":        "data: {\"choices\":[",
		"an event without end": "data: " + strings.Repeat("x", sse.FrameMax+1),
	} {
		_, _, _, err := relayed(t, stream, false)
		var failure *adapters.Failure
		if !errors.As(err, &failure) || failure.Reason != adapters.StreamBroken || !failure.Accepted || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestUsage reads the cases whose classes were computed independently.
func TestUsage(t *testing.T) {
	text, err := os.ReadFile("testdata/usage.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name    string
		Reports []json.RawMessage
		Want    ledger.Usage
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, test := range cases {
		var last *ledger.Usage
		for _, report := range test.Reports {
			if usage := parseUsage(gjson.ParseBytes(report)); usage != nil {
				last = usage
			}
		}
		if last == nil || *last != test.Want {
			t.Errorf("%s: got %+v, want %+v", test.Name, last, test.Want)
		}
	}
	if len(cases) < 4 {
		t.Errorf("only %d cases", len(cases))
	}
}

func TestUsageThatCannotBeTrue(t *testing.T) {
	for name, report := range map[string]string{
		"nothing":                 ``,
		"null":                    `null`,
		"a list":                  `[]`,
		"negative":                `{"prompt_tokens":-1,"completion_tokens":1}`,
		"huge":                    `{"prompt_tokens":1e300,"completion_tokens":1}`,
		"a text":                  `{"prompt_tokens":"12","completion_tokens":1}`,
		"a fraction":              `{"prompt_tokens":1.5,"completion_tokens":1}`,
		"2^53":                    `{"prompt_tokens":9007199254740992,"completion_tokens":1}`,
		"a sum beyond 2^53":       `{"prompt_tokens":9007199254740991,"completion_tokens":1}`,
		"no completion":           `{"prompt_tokens":1}`,
		"no prompt":               `{"completion_tokens":1}`,
		"more cached than prompt": `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":6}}`,
		"cached and written":      `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3,"cache_write_tokens":3}}`,
		"more reasoning":          `{"prompt_tokens":5,"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":2}}`,
		"negative reasoning":      `{"prompt_tokens":5,"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":-2}}`,
	} {
		if usage := parseUsage(gjson.Parse(report)); usage != nil {
			t.Errorf("%s: got %+v, want none", name, *usage)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for _, test := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "7", 7 * time.Second}, {"Retry-After", "1.5", 1500 * time.Millisecond}, {"Retry-After-Ms", "250", 250 * time.Millisecond},
		{"Retry-After", "-3", 0}, {"Retry-After", "soon", 0}, {"Retry-After", "NaN", 0}, {"Retry-After", "Inf", 0},
		{"Retry-After", "999999999", retryAfterMax}, {"Retry-After", "Mon, 02 Jan 2006 15:04:05 GMT", 0},
	} {
		if got := retryAfter(http.Header{test.name: {test.value}}); got != test.want {
			t.Errorf("%s: %s: got %v, want %v", test.name, test.value, got, test.want)
		}
	}
}

func FuzzUsage(f *testing.F) {
	f.Add([]byte(`{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}`))
	f.Add([]byte(`{"prompt_tokens":-1,"completion_tokens":1e9}`))
	f.Fuzz(func(t *testing.T, report []byte) {
		usage := parseUsage(gjson.ParseBytes(report))
		if usage == nil {
			return
		}
		if _, err := usage.Tokens(); err != nil {
			t.Fatalf("%s gave %+v: %v", report, *usage, err)
		}
	})
}

func FuzzChunk(f *testing.F) {
	f.Add([]byte(`{"model":"up","choices":[{"delta":{"content":"x"}}],"usage":null}`))
	f.Add([]byte(`{"usage":{"prompt_tokens":1,"completion_tokens":2},"choices":[]}`))
	f.Add([]byte(`{"\u0075sage":null,"a":{"usage":1}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.ContainsAny(data, "\r\n") {
			return
		}
		text, _, _, err := relayed(t, "data: "+string(data)+"\n\ndata: [DONE]\n\n", false)
		if err != nil {
			return
		}
		events := sse.NewReader(strings.NewReader(text))
		for {
			event, err := events.Next()
			if err == io.EOF {
				return
			}
			if err != nil || event.Partial {
				t.Fatalf("%q is relayed as %q: %v", data, text, err)
			}
			if string(event.Data) == "[DONE]" {
				continue
			}
			root := gjson.ParseBytes(event.Data)
			if !json.Valid(event.Data) || root.Get("model").String() == "up" {
				t.Fatalf("%q is relayed as %q", data, event.Data)
			}
		}
	})
}

func BenchmarkChunk(b *testing.B) {
	chunk := "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"up\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word\"},\"finish_reason\":null}],\"usage\":null}\n\n"
	ctx, end := context.WithCancelCause(context.Background())
	defer end(nil)
	b.ReportAllocs()
	a := &answer{
		request: adapters.Request{PublicModel: "pub", Stream: true}, ctx: ctx, end: end,
		events: sse.NewReader(strings.NewReader(strings.Repeat(chunk, b.N))),
	}
	for range b.N {
		if _, err := a.Next(); err != nil {
			b.Fatal(err)
		}
	}
}
