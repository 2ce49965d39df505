package openai

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/adaptertest"
	"regent/adapters/sse"
	"regent/adapters/upstream"
	"regent/ledger"
)

func TestConformance(t *testing.T) { adaptertest.Run(t, newProvider) }

func newProvider(t *testing.T, baseURL, key string) adapters.Provider {
	t.Helper()
	provider, err := New(Config{BaseURL: baseURL, APIKey: key, Client: upstream.New(upstream.Config{AllowPrivate: true})})
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

// TestEditChangesNothingElse: every byte that is not named stays, spaces, key order, big numbers and escapes included.
func TestEditChangesNothingElse(t *testing.T) {
	for _, test := range []struct{ body, want string }{
		{`{ "big":12345678901234567890.10 ,"model" : "pub", "x":"\u00e9\/" }`, `{ "big":12345678901234567890.10 ,"model" : "up", "x":"\u00e9\/" }`},
		{`{"model":"pub","stream":true}`, `{"model":"up","stream":true,"stream_options":{"include_usage":true}}`},
		{`{"stream":true,"stream_options":null,"model":"pub"}`, `{"stream":true,"stream_options":{"include_usage":true},"model":"up"}`},
		{`{"stream":true,"stream_options":{"include_usage":false,"z":1},"model":"pub"}`, `{"stream":true,"stream_options":{"include_usage":true,"z":1},"model":"up"}`},
		{`{"api_base":"http://x","model":"pub","API_KEY":"k","messages":[{"api_key":"kept"}]}`, `{"model":"up","messages":[{"api_key":"kept"}]}`},
		{`{"model":"pub","provider":{"order":["x"]},"messages":[]}`, `{"model":"up","messages":[]}`},
		{"\t{ \"stream\" : true , \"model\":\"pub\" \n}\r\n ", "\t{ \"stream\" : true , \"model\":\"up\" \n,\"stream_options\":{\"include_usage\":true}}\r\n "},
		{`{"stream":true,"stream_options":{ },"model":"pub"}`, `{"stream":true,"stream_options":{ "include_usage":true},"model":"up"}`},
		{`{"stream":true,"stream_options":{"z":{"include_usage":1} },"model":"pub"}`, `{"stream":true,"stream_options":{"z":{"include_usage":1} ,"include_usage":true},"model":"up"}`},
		{`{"stream":true,"stream_options":{"include_usage":true,"include_\u0075sage":false},"model":"pub"}`, `{"stream":true,"stream_options":{"include_usage":true,"include_\u0075sage":true},"model":"up"}`},
		{`{"stream":false,"stream_options":null,"model":"pub"}`, `{"stream":false,"stream_options":null,"model":"up"}`},
		{`{"x":{"model":"pub"},"mod\u0065l":"pub","y":["model"]}`, `{"x":{"model":"pub"},"mod\u0065l":"up","y":["model"]}`},
		{`{"x":"\"model\":\"pub\"}","model":"pub"}`, `{"x":"\"model\":\"pub\"}","model":"up"}`},
		{`{"messages":[]}`, `{"messages":[],"model":"up"}`},
		{`{ }`, `{ "model":"up"}`},
		{`{"route":1,"models":[],"model":"pub"}`, `{"model":"up"}`},
		{`{ "route" : 1 , "a" : 2 , "prov\u0069der" : "," , "model":"pub" , "preset":"}" }`, `{  "a" : 2  , "model":"up"  }`},
		{`{"a":{"provider":1},"plugins":"x"}`, `{"a":{"provider":1},"model":"up"}`},
	} {
		request := adapters.Request{
			Body: []byte(test.body), Model: "up", Stream: gjson.Get(test.body, "stream").Bool(), Strip: []string{"provider", "models", "route", "transforms", "plugins", "preset"},
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

func TestEditStripsWholeMembers(t *testing.T) {
	for _, test := range []struct{ body, strip, want string }{
		{`{"a.b":1,"a":{"b":2},"model":"pub"}`, "a.b", `{"a":{"b":2},"model":"up"}`},
		{`{"*":1,"a":2,"-1":3,"model":"pub"}`, "*", `{"a":2,"-1":3,"model":"up"}`},
		{`{"a":[1],"-1":3,"model":"pub"}`, "-1", `{"a":[1],"model":"up"}`},
		{`{"model":"pub","stream":true,"stream_options":{}}`, "stream_options", `{"model":"up","stream":true}`},
		{`{"model":"pub","stream":true}`, "stream_options", `{"model":"up","stream":true}`},
	} {
		got, err := edit(adapters.Request{Body: []byte(test.body), Model: "up", Stream: strings.Contains(test.body, "true"), Strip: []string{test.strip}})
		if err != nil || string(got) != test.want {
			t.Errorf("%s without %s: got %s, %v, want %s", test.body, test.strip, got, err, test.want)
		}
	}
}

func TestEditRefusesWhatItCannotEdit(t *testing.T) {
	for _, body := range []string{``, `null`, `[]`, `"x"`, `{`, `{"a":"}`, `{"model":"pub"}x`, `{"stream_options":"x"}`, `{"stream_options":[true]}`} {
		if got, err := edit(adapters.Request{Body: []byte(body), Model: "up", Stream: true}); err == nil {
			t.Errorf("%s became %s", body, got)
		}
	}
}

// FuzzEdit compares an edit with the same change made on the decoded document.
func FuzzEdit(f *testing.F) {
	f.Add([]byte(`{"model":"pub","provider":{"a":[1,"}"]},"stream_options":{"x":1}}`), "provider")
	f.Add([]byte(` { "\u006dodel" : null , "b" : 1e400 } `), "b")
	f.Add([]byte(`{"a":1,"a":2,"":{},"stream_options":null}`), "a")
	f.Add([]byte(`{"model":"pub","api_key":"k","Base_URL":"x","messages":[{"role":"user","content":"\u00e9\n"}],"n":1}`), "messages")
	f.Add([]byte(`{"stream_options":{"include_usage":false,"include_usage":null},"model":"a"}`), "model")
	f.Add([]byte(`{"api_key":1}`), "")
	f.Add([]byte("\t{\r\n\"api_base\" :\t[ ] ,\"model\": {\"a\":[{}]}\n}\n"), "stream_options")
	f.Add([]byte(`{"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"fallbacks":[],"preset":"x"}`), "preset")
	f.Fuzz(func(t *testing.T, body []byte, strip string) {
		request := adapters.Request{Body: body, Model: "u<\u00e9\"p", Stream: true, Strip: []string{strip}}
		got, err := edit(request)
		var want, have map[string]json.RawMessage
		if err != nil || json.Unmarshal(body, &want) != nil || !utf8.Valid(body) {
			return // bytes that are no text have no name to compare
		}
		if err := json.Unmarshal(got, &have); err != nil {
			t.Fatalf("%q became %q: %v", body, got, err)
		}
		if strip != "model" && gjson.ParseBytes(have["model"]).String() != request.Model {
			t.Fatalf("%q became %q", body, got)
		}
		if strip != "stream_options" && !gjson.GetBytes(have["stream_options"], "include_usage").Bool() {
			t.Fatalf("%q became %q", body, got)
		}
		for _, changed := range []string{"model", "stream_options", strip} {
			delete(want, changed)
			delete(have, changed)
		}
		maps.DeleteFunc(want, func(name string, _ json.RawMessage) bool {
			return slices.Contains(foreignFields, strings.ToLower(name))
		})
		if !reflect.DeepEqual(want, have) {
			t.Fatalf("%q became %q", body, got)
		}
	})
}

// TestWhatIsSent: the header is an allow-list, and the body the client's own but for the edits.
func TestWhatIsSent(t *testing.T) {
	var header http.Header
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		header = r.Header.Clone()
		body, _ = io.ReadAll(r.Body)
	}))
	defer server.Close()
	provider := newProvider(t, server.URL+"/", "key")
	_, err := provider.Send(t.Context(), adapters.Request{Body: []byte(`{"a": 1,"model":"pub"}`), Model: "up", Stream: true})
	if err == nil || string(body) != `{"a": 1,"model":"up","stream_options":{"include_usage":true}}` {
		t.Errorf("sent %s, %v", body, err)
	}
	want := http.Header{
		"Accept": {"text/event-stream"}, "Authorization": {"Bearer key"}, "Content-Type": {"application/json"}, "User-Agent": {"regent"},
		"Content-Length": {fmt.Sprint(len(body))},
	}
	if !reflect.DeepEqual(header, want) {
		t.Errorf("header %v", header)
	}
}

// TestAConnectionThatWasClosedMeanwhile: a kept connection may be gone when it is used again. The request may then be lost, but
// it must not arrive twice.
func TestAConnectionThatWasClosedMeanwhile(t *testing.T) {
	const calls = 200
	var arrived [calls]atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if call := gjson.GetBytes(body, "seed"); call.Exists() { // else the request was cut off
			arrived[call.Int()].Add(1)
		}
		_, _ = io.WriteString(w, `{"choices":[]}`)
	}))
	provider := newProvider(t, server.URL, "")
	failed := make([]error, calls)
	for i := range calls {
		var answer adapters.Answer
		answer, failed[i] = provider.Send(t.Context(), adapters.Request{Body: fmt.Appendf(nil, `{"model":"pub","seed":%d}`, i), Model: "up"})
		if failed[i] == nil {
			_ = answer.Close()
		}
		go server.CloseClientConnections() // sooner or later than the next call
	}
	server.Close() // which waits for the last request
	for i := range calls {
		if n := arrived[i].Load(); n > 1 || failed[i] == nil && n != 1 {
			t.Errorf("call %d arrived %d times, %v", i, n, failed[i])
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
		if event.Usage != nil || event.Kind == adapters.Done {
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
		"usage null, odd spaces":      {"data: { \"a\" : 1\t,  \"usage\"\t:  null }\n\n" + done, "data: { \"a\" : 1\t }\n\n" + done, false},
		"usage null, a strange name":  {"data: {\"x\":{\"usage\":null},\"us\\u0061ge\":null,\"y\":\",\"}\n\n" + done, "data: {\"x\":{\"usage\":null},\"y\":\",\"}\n\n" + done, false},
		"usage null, twice":           {"data: {\"usage\":null,\"usage\":null,\"a\":1}\n\n" + done, "data: {\"a\":1}\n\n" + done, false},
		"usage and model":             {"data: {\"usage\":null,\"model\":\"up\"}\n\n" + done, "data: {\"model\":\"pub\"}\n\n" + done, false},
		"the model, twice":            {"data: {\"model\":\"pub\",\"model\":\"up\"}\n\n" + done, "data: {\"model\":\"pub\",\"model\":\"pub\"}\n\n" + done, false},
		"the model, a strange name":   {"data: {\"\\u006dodel\":\"up\"}\n\n" + done, "data: {\"\\u006dodel\":\"pub\"}\n\n" + done, false},
		"the model, an object":        {"data: {\"model\":{\"id\":\"up\"},\"a\":1}\n\n" + done, "data: {\"model\":\"pub\",\"a\":1}\n\n" + done, false},
		"no model":                    {"data: {\"model\":null}\n\n" + done, "data: {\"model\":null}\n\n" + done, false},
		"a usage chunk of nonsense":   {"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":-1}}\n\n" + done, done, false},
		"Azure's first chunk":         {"data: {\"choices\":[],\"model\":\"\",\"prompt_filter_results\":[{}],\"usage\":null}\n\n" + done, "data: {\"choices\":[],\"model\":\"pub\",\"prompt_filter_results\":[{}]}\n\n" + done, false},
		"a mark":                      {"\xef\xbb\xbfdata: {\"a\":1}\n\n" + done, "data: {\"a\":1}\n\n" + done, false},
		"a mark and an edit":          {"\xef\xbb\xbfdata: {\"model\":\"up\"}\n\n" + done, "data: {\"model\":\"pub\"}\n\n" + done, false},
		"a mark and two lines":        {"\xef\xbb\xbfdata: {\"model\":\ndata: \"up\"}\n\n" + done, "data: {\"model\":\ndata: \"pub\"}\n\n" + done, false},
		"empty data":                  {"event: ping\ndata:\n\ndata: {\"a\":1}\n\n" + done, "data: {\"a\":1}\n\n" + done, false},
		"a terminal event in spaces":  {"data: {\"a\":1}\n\ndata:  [DONE] \n\n", "data: {\"a\":1}\n\ndata:  [DONE] \n\n", false},
		"CR LF and an edit":           {"data:{\"model\":\"up\"}\r\n\r\n" + done, "data:{\"model\":\"pub\"}\r\n\r\n" + done, false},
		"CR and an edit":              {"data: {\"model\":\"up\"}\r\rdata: [DONE]\r\r", "data: {\"model\":\"pub\"}\r\rdata: [DONE]\r\r", false},
		"nothing after the end":       {done + "data: {\"a\":1}\n\n", done, false},
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
	if usage == nil || !reflect.DeepEqual(*usage, ledger.Usage{UncachedInput: 3, Output: 1}) {
		t.Errorf("usage: %+v", usage)
	}
}

// TestOutput: what is not empty is output, whatever a vendor calls it; only then is it safe to say that another source may try.
func TestOutput(t *testing.T) {
	for delta, want := range map[string]output{
		`{}`:                                {},
		`null`:                              {},
		`{"role":"assistant"}`:              {},
		`{"content":null,"tool_calls":[]}`:  {},
		`{"content":[],"function_call":{}}`: {},
		`{"content":"é"}`:                   {bytes: 2, some: true},
		`{"content":"\u00e9"}`:              {bytes: 2, some: true},
		`{"refusal":"no"}`:                  {bytes: 2, some: true},
		`{"reasoning":"a","content":"b"}`:   {bytes: 2, some: true},
		`{"content":[{"type":"text","text":"abc"}]}`:                                     {bytes: 3, some: true},
		`{"content":[{"type":"thinking","thinking":[{"text":"abc"}]}]}`:                  {some: true},
		`{"content":"","reasoning_details":[{"type":"reasoning.encrypted"}]}`:            {some: true},
		`{"audio":{"data":"AAAA","transcript":"ab"}}`:                                    {bytes: 6, some: true},
		`{"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}`:                    {bytes: 3, some: true, toolCall: true},
		`{"tool_calls":[{"id":"x"}]}`:                                                    {some: true, toolCall: true},
		`{"tool_calls":[{"type":"custom","custom":{"name":"f","input":"abc"}}]}`:         {bytes: 4, some: true, toolCall: true},
		`{"function_call":{"name":"f","arguments":"{}"}}`:                                {bytes: 3, some: true, toolCall: true},
		`{"tool_calls":[{"function":{"arguments":"a"}},{"function":{"arguments":"b"}}]}`: {bytes: 2, some: true, toolCall: true},
	} {
		if got := readOutput(gjson.Parse(delta)); got != want {
			t.Errorf("%s: got %+v, want %+v", delta, got, want)
		}
	}
}

// TestCountsOfACallUnderWay: what some servers send with every chunk is true only with the last one.
func TestCountsOfACallUnderWay(t *testing.T) {
	chunk := func(choices string, completion int) string {
		return fmt.Sprintf("data: {\"choices\":%s,\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%d}}\n\n", choices, completion)
	}
	opening, content := chunk(`[{"delta":{"role":"assistant"}}]`, 0), chunk(`[{"delta":{"content":"x"}}]`, 1)
	const done, finish = "data: [DONE]\n\n", `[{"delta":{},"finish_reason":"stop"}]`
	for name, test := range map[string]struct {
		stream string
		want   int64 // -1 for none
	}{
		"broken after the opening":      {opening, -1},
		"a chunk of usage comes first":  {chunk(`[]`, 0), -1},
		"broken after content":          {opening + content, -1},
		"broken after the finish":       {opening + content + chunk(finish, 2), 2},
		"broken after the usage":        {opening + content + chunk(`[]`, 3), 3},
		"complete, with a finish":       {opening + content + chunk(finish, 2) + done, 2},
		"complete, without a finish":    {opening + content + content + done, 1},
		"two-stage":                     {content + chunk(finish, 2) + chunk(`[]`, 3) + done, 3},
		"nothing but an opening":        {opening + done, 0},
		"finish and content in one":     {chunk(`[{"delta":{"content":"x"},"finish_reason":"length"}]`, 7) + done, 7},
		"finish is not a finish reason": {chunk(`[{"delta":{"content":"x"},"finish_reason":null}]`, 7), -1},
	} {
		_, _, usage, _ := relayed(t, test.stream, false)
		if got := int64(-1); usage != nil && usage.Output != test.want || usage == nil && test.want != got {
			t.Errorf("%s: got %+v, want %d", name, usage, test.want)
		}
	}
}

// noAnswers are streams that do not end as an answer does.
func noAnswers() map[string]string {
	return map[string]string{
		"nothing":              "",
		"no terminal event":    "data: {\"choices\":[]}\n\n",
		"an error":             "data: {\"choices\":[]}\n\ndata: {\"error\":{\"message\":\"secret\"}}\n\ndata: [DONE]\n\n",
		"no JSON":              "data: <html>\n\n",
		"an event of error":    "event: error\ndata: {\"message\":\"secret\"}\n\ndata: [DONE]\n\n",
		"a list":               "data: []\n\ndata: [DONE]\n\n",
		"JSON and more":        "data: {}x\n\ndata: [DONE]\n\n",
		"half an event":        "data: {\"choices\":[",
		"an event without end": "data: " + strings.Repeat("x", sse.FrameMax+1),
	}
}

func TestStreamsThatAreNoAnswers(t *testing.T) {
	for name, stream := range noAnswers() {
		_, _, _, err := relayed(t, stream, false)
		var failure *adapters.Failure
		if !errors.As(err, &failure) || failure.Reason != adapters.StreamBroken || !failure.Accepted || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestAnEndThatDoesNotEnd: a provider that leaves its body open after the terminal event costs a tenth of a second at most.
func TestAnEndThatDoesNotEnd(t *testing.T) {
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	defer server.Close()
	answer, err := newProvider(t, server.URL, "").Send(t.Context(), adapters.Request{Body: []byte(`{}`), Stream: true})
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	if event, err := answer.Next(); err != nil || event.Kind != adapters.Done || time.Since(started) > drainTime {
		t.Errorf("got %+v, %v after %v", event, err, time.Since(started))
	}
	if _, err := answer.Next(); err != io.EOF || time.Since(started) > 20*drainTime {
		t.Errorf("got %v after %v", err, time.Since(started))
	}
	<-gone
	_ = answer.Close()
}

// TestUsage reads the cases whose classes were computed independently: reports of whole answers, and streams of chunks.
func TestUsage(t *testing.T) {
	text, err := os.ReadFile("testdata/usage.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name   string
		Usage  json.RawMessage
		Stream []json.RawMessage
		Want   ledger.Usage
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, test := range cases {
		usage := parseUsage(gjson.ParseBytes(test.Usage))
		if test.Stream != nil {
			var stream strings.Builder
			for _, chunk := range test.Stream {
				fmt.Fprintf(&stream, "data: %s\n\n", chunk)
			}
			if _, _, usage, err = relayed(t, stream.String()+"data: [DONE]\n\n", false); err != nil {
				t.Errorf("%s: %v", test.Name, err)
			}
		}
		if usage == nil || !reflect.DeepEqual(*usage, test.Want) {
			t.Errorf("%s: got %+v, want %+v", test.Name, usage, test.Want)
		}
	}
	if len(cases) < 12 {
		t.Errorf("only %d cases", len(cases))
	}
}

// untrue are reports of usage that cannot be true.
func untrue() map[string]string {
	return map[string]string{
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
		"no token at all":         `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`,
		"more cached than prompt": `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":6}}`,
		"cached and written":      `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3,"cache_write_tokens":3}}`,
		"more reasoning":          `{"prompt_tokens":5,"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":2}}`,
		"cached that is a text":   `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":"3"}}`,
		"cached is true":          `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":true}}`,
		"a list of counts":        `{"prompt_tokens":[5],"completion_tokens":1}`,
		"a report in a list":      `[{"prompt_tokens":5,"completion_tokens":1}]`,
		"null completion":         `{"prompt_tokens":5,"completion_tokens":null}`,
		"minus nothing":           `{"prompt_tokens":-0,"completion_tokens":1}`,
		"an exponent":             `{"prompt_tokens":1e2,"completion_tokens":1}`,
		"beyond 64 bits":          `{"prompt_tokens":18446744073709551617,"completion_tokens":1}`,
		"negative reasoning":      `{"prompt_tokens":5,"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":-2}}`,
	}
}

func TestUsageThatCannotBeTrue(t *testing.T) {
	for name, report := range untrue() {
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
		{"Retry-After", "999999999", retryAfterMax}, {"Retry-After", "1e300", retryAfterMax}, {"Retry-After", "99999999999999999999", retryAfterMax},
		{"Retry-After", "0", 0}, {"Retry-After", "", 0}, {"Retry-After-Ms", "-1", 0}, {"Retry-After-Ms", "x", 0}, {"Retry-After-Ms", "1e300", retryAfterMax},
		{"Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT", retryAfterMax}, {"Retry-After", "Mon, 02 Jan 2006 15:04:05 GMT", 0},
	} {
		if got := retryAfter(http.Header{test.name: {test.value}}); got != test.want {
			t.Errorf("%s: %s: got %v, want %v", test.name, test.value, got, test.want)
		}
	}
}

func TestRetryAfterPrefersMilliseconds(t *testing.T) {
	for ms, want := range map[string]time.Duration{"20": 20 * time.Millisecond, "-20": 7 * time.Second, "soon": 7 * time.Second} {
		if got := retryAfter(http.Header{"Retry-After": {"7"}, "Retry-After-Ms": {ms}}); got != want {
			t.Errorf("%s: got %v, want %v", ms, got, want)
		}
	}
	in := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	if got := retryAfter(http.Header{"Retry-After": {in}}); got < 58*time.Second || got > time.Minute {
		t.Errorf("a date in a minute: got %v", got)
	}
}

// TestServedTier: the last one that is told counts, wherever it is told, and one that cannot be is not taken for the ordinary one.
func TestServedTier(t *testing.T) {
	const used = `"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}`
	for name, test := range map[string]struct {
		chunks []string
		want   string
	}{
		"not told":                 {[]string{`{` + used + `}`}, ""},
		"null":                     {[]string{`{"service_tier":null,` + used + `}`}, ""},
		"empty":                    {[]string{`{"service_tier":"",` + used + `}`}, ""},
		"with the usage":           {[]string{`{"service_tier":"priority",` + used + `}`}, "priority"},
		"before the usage":         {[]string{`{"service_tier":"flex","choices":[]}`, `{"service_tier":null,` + used + `}`}, "flex"},
		"after the usage":          {[]string{`{` + used + `}`, `{"service_tier":"flex","choices":[]}`}, "flex"},
		"the last one counts":      {[]string{`{"service_tier":"priority","choices":[]}`, `{"service_tier":"default",` + used + `}`}, "default"},
		"a number":                 {[]string{`{"service_tier":1,` + used + `}`}, ledger.UnknownTier},
		"words":                    {[]string{`{"service_tier":"very fast",` + used + `}`}, ledger.UnknownTier},
		"a name that is too long":  {[]string{`{"service_tier":"` + strings.Repeat("a", 65) + `",` + used + `}`}, ledger.UnknownTier},
		"an escaped name":          {[]string{`{"service_tier":"fl\u0065x",` + used + `}`}, "flex"},
		"an object":                {[]string{`{"service_tier":{},` + used + `}`}, ledger.UnknownTier},
		"the longest name":         {[]string{`{"service_tier":"` + strings.Repeat("a", 64) + `",` + used + `}`}, strings.Repeat("a", 64)},
		"false is no tier, either": {[]string{`{"service_tier":false,` + used + `}`}, ledger.UnknownTier},
	} {
		stream := "data: " + strings.Join(append(test.chunks, "[DONE]"), "\n\ndata: ") + "\n\n"
		_, _, usage, err := relayed(t, stream, true)
		if err != nil || usage == nil || usage.Tier != test.want {
			t.Errorf("%s, streamed: %+v, %v, want %q", name, usage, err, test.want)
		}
		if len(test.chunks) > 1 {
			continue
		}
		whole := &answer{whole: &upstream.Whole{Bytes: []byte(test.chunks[0])}, root: gjson.Parse(test.chunks[0])}
		if usage := whole.nextWhole().Usage; usage == nil || usage.Tier != test.want {
			t.Errorf("%s, whole: %+v, want %q", name, usage, test.want)
		}
	}
}

// TestAReportKeepsItsTier: what went out with an event does not change under its reader.
func TestAReportKeepsItsTier(t *testing.T) {
	a := &answer{usage: &ledger.Usage{Output: 1}, tier: "flex"}
	first := a.report()
	a.tier = "priority"
	if second := a.report(); first.Tier != "flex" || second.Tier != "priority" {
		t.Errorf("got %q, then %q", first.Tier, second.Tier)
	}
}

func FuzzUsage(f *testing.F) {
	f.Add([]byte(`{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}`))
	f.Add([]byte(`{"prompt_tokens":-1,"completion_tokens":1e9}`))
	for _, report := range untrue() {
		f.Add([]byte(report))
	}
	f.Add([]byte(`{"prompt_tokens":1000,"completion_tokens":200,"total_tokens":1200,"prompt_tokens_details":{"cached_tokens":800,"cache_write_tokens":7},"completion_tokens_details":{"reasoning_tokens":80}}`))
	f.Add([]byte(`{"prompt_tokens":1,"prompt_tokens":2,"completion_tokens":3,"prompt_tokens_details":null}`))
	f.Add([]byte(`{"prompt_tokens":007,"completion_tokens":+1,"prompt_tokens_details":{"cached_tokens":NaN}}`))
	f.Add([]byte(`{"prompt_tokens":1,"completion_tokens":1,"service_tier":"fl\u0065x"}`))
	f.Fuzz(func(t *testing.T, report []byte) {
		root := gjson.ParseBytes(report)
		usage := parseUsage(root)
		if usage == nil {
			return
		}
		usage.Tier = servedTier(root)
		if _, err := usage.Tokens(); err != nil {
			t.Fatalf("%s gave %+v: %v", report, *usage, err)
		}
	})
}

func FuzzChunk(f *testing.F) {
	f.Add([]byte(`{"model":"up","choices":[{"delta":{"content":"x"}}],"usage":null}`))
	f.Add([]byte(`{"usage":{"prompt_tokens":1,"completion_tokens":2},"choices":[]}`))
	f.Add([]byte(`{"\u0075sage":null,"a":{"usage":1}}`))
	f.Add([]byte("{\"model\":\"pub\",\"model\":\"up\"}\n\ndata: {\"mod\\u0065l\":\"up\"}"))
	f.Add([]byte("{\"model\":\r\ndata: \"up\" ,\r\ndata:\"choices\":[{\"delta\":{\"content\":[{\"text\":\"x\"}]}}]}"))
	for name, stream := range noAnswers() {
		if name != "an event without end" { // which no fuzzer gets to in a reasonable time
			f.Add([]byte(strings.TrimPrefix(stream, "data: ")))
		}
	}
	for _, delta := range []string{
		`{"role":"assistant","content":""}`, `{"reasoning":"a","content":"b"}`, `{"content":[{"type":"text","text":"abc"}]}`,
		`{"tool_calls":[{"index":0,"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":"}}]}`, `{"function_call":{"name":"f"}}`,
		`{"audio":{"data":"AAAA"}}`, `null`, `"x"`, `{"content":"\ud800\u0000"}`, `{"refusal":1e400}`,
	} {
		f.Add([]byte(`{"id":"c","object":"chat.completion.chunk","model":"up","choices":[{"index":0,"delta":` + delta + `,"finish_reason":null}],"usage":null}`))
	}
	for _, report := range untrue() {
		f.Add([]byte(`{"model":"up","choices":[],"usage":` + report + `}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text, _, _, _ := relayed(t, "data: "+string(data)+"\n\ndata: [DONE]\n\n", false)
		events := sse.NewReader(strings.NewReader(text))
		for {
			event, err := events.Next()
			if err == io.EOF {
				return
			}
			if err != nil || event.Partial {
				t.Fatalf("%q is relayed as %q: %v", data, text, err)
			}
			if len(bytes.TrimSpace(event.Data)) == 0 || string(bytes.TrimSpace(event.Data)) == "[DONE]" {
				continue
			}
			numbers := json.NewDecoder(bytes.NewReader(event.Data))
			numbers.UseNumber() // a number too large for any of Go's is JSON all the same
			var shown map[string]any
			if err := numbers.Decode(&shown); err != nil || shown["model"] == "up" {
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
