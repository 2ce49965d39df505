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
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/adaptertest"
	"regent/adapters/exchange"
	"regent/adapters/sse"
	"regent/adapters/upstream"
	"regent/ledger"
)

func TestConformance(t *testing.T) {
	adaptertest.Run(t, adaptertest.Dialect{
		Protocol: adapters.OpenAIChat,
		Content:  "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n", Error: "data: {\"error\":{}}\n\n", Done: "data: [DONE]\n\n",
		Untrue: []string{`{"prompt_tokens":-1,"completion_tokens":1}`, `{"prompt_tokens":1e300,"completion_tokens":1}`},
	}, newProvider)
}

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
		got, err := editChat(request, dialects["openai"])
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
		got, err := editChat(adapters.Request{Body: []byte(test.body), Model: "up", Stream: strings.Contains(test.body, "true"), Strip: []string{test.strip}}, dialects["openai"])
		if err != nil || string(got) != test.want {
			t.Errorf("%s without %s: got %s, %v, want %s", test.body, test.strip, got, err, test.want)
		}
	}
}

func TestEditRefusesWhatItCannotEdit(t *testing.T) {
	for _, body := range []string{``, `null`, `[]`, `"x"`, `{`, `{"a":"}`, `{"model":"pub"}x`, `{"stream_options":"x"}`, `{"stream_options":[true]}`} {
		if got, err := editChat(adapters.Request{Body: []byte(body), Model: "up", Stream: true}, dialects["openai"]); err == nil {
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
		got, err := editChat(request, dialects["openai"])
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
			return exchange.IsForeign(name)
		})
		if !reflect.DeepEqual(want, have) {
			t.Fatalf("%q became %q", body, got)
		}
	})
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

// TestWhatIsSent: the header is an allow-list, and the body the client's own but for the edits. Only chat completions are asked for usage.
func TestWhatIsSent(t *testing.T) {
	baseURL, got := listen(t)
	provider := newProvider(t, baseURL+"/v1/", "key")
	client := http.Header{"Authorization": {"Bearer canary"}, "Cookie": {"canary"}, "Openai-Beta": {"canary"}, "Session-Id": {"canary"}}
	const before, after = `{ "input":"\u00e9\/", "store":false,"n":12345678901234567890.10 ,`, `,"include":["reasoning.encrypted_content"],"stream":true }`
	for protocol, want := range map[adapters.Protocol]struct{ target, accept, added string }{
		adapters.OpenAIChat:       {"/v1/chat/completions", "text/event-stream", `,"stream_options":{"include_usage":true}`},
		adapters.OpenAIResponses:  {"/v1/responses", "text/event-stream", ""},
		adapters.OpenAICompact:    {"/v1/responses/compact", "application/json", ""},
		adapters.OpenAIEmbeddings: {"/v1/embeddings", "application/json", ""},
	} {
		_, err := provider.Send(t.Context(), adapters.Request{
			Protocol: protocol, Body: []byte(before + `"model" : "pub" , "provider":{}` + after), Model: "up", Stream: true, Strip: []string{"provider"},
			Header: client, Query: "api-version=canary",
		})
		if body := before + `"model" : "up" ` + strings.TrimSuffix(after, "}") + want.added + "}"; err == nil || got.body != body {
			t.Errorf("%s: sent %s, %v", protocol, got.body, err)
		}
		header := http.Header{
			"Accept": {want.accept}, "Authorization": {"Bearer key"}, "Content-Type": {"application/json"}, "User-Agent": {"regent"},
			"Content-Length": {fmt.Sprint(len(got.body))},
		}
		if got.target != want.target || !reflect.DeepEqual(got.header, header) {
			t.Errorf("%s: %s, header %v", protocol, got.target, got.header)
		}
	}
}

func TestNoOtherProtocolIsSpoken(t *testing.T) {
	baseURL, got := listen(t)
	for _, protocol := range []adapters.Protocol{"", adapters.AnthropicMessages, "openai"} {
		_, err := newProvider(t, baseURL, "").Send(t.Context(), adapters.Request{Protocol: protocol, Body: []byte(`{}`)})
		if failure, _ := err.(*adapters.Failure); failure == nil || failure.Reason != adapters.InvalidRequest || failure.Accepted || got.target != "" {
			t.Errorf("%q: got %v, sent to %s", protocol, err, got.target)
		}
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
		answer, failed[i] = provider.Send(t.Context(), adapters.Request{Protocol: adapters.OpenAIChat, Body: fmt.Appendf(nil, `{"model":"pub","seed":%d}`, i), Model: "up"})
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

// outcome is what came of an answer.
type outcome struct {
	text  string // what was relayed
	kinds []adapters.Kind
	bytes int // of output
	usage *ledger.Usage
	err   error // nil if the answer is complete
}

// ask sends a request to a provider that speaks a dialect and answers with the body.
func ask(t testing.TB, dialect string, body io.Reader, request adapters.Request) (adapters.Answer, error) {
	t.Helper()
	media := "application/json"
	if request.Stream {
		media = "text/event-stream"
	}
	provider, err := New(Config{BaseURL: "http://canned", Dialect: dialect, Client: adaptertest.Canned(media, body)})
	if err != nil {
		t.Fatal(err)
	}
	request.Body, request.Model, request.PublicModel = []byte(`{}`), "up", "pub"
	return provider.Send(context.Background(), request)
}

// read asks and reads the answer to its end.
func read(t testing.TB, dialect string, body io.Reader, request adapters.Request) (got outcome) {
	t.Helper()
	answer, err := ask(t, dialect, body, request)
	if err != nil {
		return outcome{err: err}
	}
	defer func() { _ = answer.Close() }()
	for {
		event, err := answer.Next()
		if err == io.EOF {
			return got
		}
		if err != nil {
			got.err = err
			return got
		}
		got.text += string(event.Relay)
		got.kinds = append(got.kinds, event.Kind)
		got.bytes += event.OutputBytes
		if event.Usage != nil || event.Kind == adapters.Done {
			got.usage = event.Usage
		}
	}
}

// relayed reads a stream of chat completions and returns what is relayed and the kinds of its events.
func relayed(t *testing.T, stream string, usageWanted bool) (text string, kinds []adapters.Kind, usage *ledger.Usage, err error) {
	t.Helper()
	got := read(t, "", strings.NewReader(stream), adapters.Request{Protocol: adapters.OpenAIChat, Stream: true, UsageWanted: usageWanted})
	return got.text, got.kinds, got.usage, got.err
}

func TestRelayEditsOnlyWhatIsNamed(t *testing.T) {
	const done = "data: [DONE]\n\n"
	for name, test := range map[string]struct {
		stream, want string
		usageWanted  bool
	}{
		"nothing to edit":             {"data: {\"model\":\"pub\", \"x\":1}\r\n\r\n" + done, "data: {\"model\":\"pub\", \"x\":1}\r\n\r\n" + done, false},
		"the model":                   {"data:{\"id\":1 ,\"model\" : \"up\",\"choices\":[{\"delta\":{\"model\":\"up\"}}]}\n\n" + done, "data:{\"id\":1 ,\"model\" : \"pub\",\"choices\":[{\"delta\":{\"model\":\"pub\"}}]}\n\n" + done, false},
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
		if got := readMessage(gjson.Parse(delta)); got != want {
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
	const bare = "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n"
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
		"nothing after the opening's":   {opening + bare + bare + done, -1},
		"output after the last report":  {opening + content + bare + done, -1},
		"another choice goes on":        {content + chunk(finish, 2) + bare + done, -1},
		"and is told of in the end":     {content + chunk(finish, 2) + bare + chunk(`[]`, 3) + done, 3},
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

// TestWhatAFailureReports: what an error, or a choice that failed, says was used all the same. Counts of a call under way say nothing.
func TestWhatAFailureReports(t *testing.T) {
	const usage, failing = `"usage":{"prompt_tokens":9,"completion_tokens":4}`, `"choices":[{"delta":{},"finish_reason":"error"}]`
	for stream, want := range map[string]bool{
		"data: {" + failing + "," + usage + "}\n\n":                           true,
		"data: {\"error\":{\"code\":502}," + usage + "}\n\n":                  true,
		"data: {\"choices\":[]," + usage + "}\n\ndata: {" + failing + "}\n\n": false,
		"data: {\"error\":{},\"usage\":{\"prompt_tokens\":-1}}\n\n":           false,
		"data: {\"choices\":[]," + usage + "}\n\ndata: {\"error\":{}}\n\n":    false,
		"data: {\"choices\":[]," + usage + "}\n\n":                            false,
	} {
		_, _, _, err := relayed(t, stream, false)
		failure, _ := err.(*adapters.Failure)
		if failure == nil || (failure.Usage != nil) != want || want && (failure.Usage.Output != 4 || failure.Usage.UncachedInput != 9) {
			t.Errorf("%s: got %+v", stream, failure)
		}
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
		event, failure := newChat(adapters.Request{}, dialects["openai"]).Whole([]byte(test.chunks[0]))
		if failure != nil || event.Usage == nil || event.Usage.Tier != test.want {
			t.Errorf("%s, whole: %+v, %v, want %q", name, event.Usage, failure, test.want)
		}
	}
}

// TestAReportKeepsItsTier: what went out with an event does not change under its reader.
func TestAReportKeepsItsTier(t *testing.T) {
	a := &chat{usage: &ledger.Usage{Output: 1}, tier: "flex"}
	first := a.report()
	a.tier = "priority"
	if second := a.report(); first.Tier != "flex" || second.Tier != "priority" {
		t.Errorf("got %q, then %q", first.Tier, second.Tier)
	}
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
	a, err := ask(b, "", strings.NewReader(strings.Repeat(chunk, b.N)), adapters.Request{Protocol: adapters.OpenAIChat, Stream: true})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := a.Next(); err != nil {
			b.Fatal(err)
		}
	}
}
