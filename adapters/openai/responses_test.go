package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/adaptertest"
	"regent/adapters/sse"
	"regent/ledger"
)

func TestResponsesConformance(t *testing.T) {
	adaptertest.Run(t, adaptertest.Dialect{
		Protocol: adapters.OpenAIResponses,
		Prompt:   `"max_output_tokens":64,"input":%s`,
		Content:  `data: {"type":"response.output_text.delta","delta":"x"}` + "\n\n",
		Error:    `data: {"type":"error","code":"server_error","message":"x"}` + "\n\n",
		Done:     "event: response.completed\n" + `data: {"type":"response.completed","response":{}}` + "\n\n",
		Untrue:   []string{`{"input_tokens":-1,"output_tokens":1}`, `{"input_tokens":1e300,"output_tokens":1}`, `{}`},
	}, newProvider)
}

// streamed reads a stream of Responses.
func streamed(t testing.TB, stream io.Reader) outcome {
	t.Helper()
	return read(t, "", stream, adapters.Request{Protocol: adapters.OpenAIResponses, Stream: true})
}

// events makes a stream of documents, each under the name of its type.
func events(documents ...string) string {
	var stream strings.Builder
	for _, document := range documents {
		fmt.Fprintf(&stream, "event: %s\ndata: %s\n\n", gjson.Get(document, "type").Str, document)
	}
	return stream.String()
}

const (
	created   = `{"type":"response.created","response":{"id":"resp_1","status":"in_progress","model":"up","output":[],"error":null}}`
	shown     = `{"type":"response.created","response":{"id":"resp_1","status":"in_progress","model":"pub","output":[],"error":null}}`
	added     = `{"type":"response.output_item.added","output_index":0,"item":{"type":"message","status":"in_progress","content":[]}}`
	delta     = `{"type":"response.output_text.delta","output_index":0,"delta":"x"}`
	completed = `{"type":"response.completed","response":{"status":"completed","usage":{"input_tokens":3,"output_tokens":1}}}`
)

func record(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../testdata/record/openai-responses", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// kinds reads a word with a letter for each event: o for an opening, c for content, t for a tool call, z for what closes, d for the end.
func kinds(word string) []adapters.Kind {
	var all []adapters.Kind
	for _, letter := range word {
		all = append(all, adapters.Kind(strings.IndexRune("octzd", letter)))
	}
	return all
}

// recorded are the streams that were recorded, and what is to be read in them.
var recorded = map[string]struct {
	kinds string
	bytes int
	usage *ledger.Usage
	err   adapters.Reason
}{
	"text.sse": {"ooooo" + "cccc" + "zzz" + "d", len("Grüße aus \"Köln\".\n"), &ledger.Usage{
		UncachedInput: 76, CachedInput: 1024, CacheWrite5m: 100, Output: 12, Tier: "default", Units: map[string]int64{"web_search": 1}}, ""},
	"tool.sse": {"oooo" + "cczzc" + "ttttt" + "tttzz" + "d",
		len("**Looking up** the weather." + "gAAAAABpMzajQ0JUa3pWbE9IRTFiR1Z6ZEE9PQ==" + "get_weather" + `{"location":"San Francisco, CA"}`),
		&ledger.Usage{UncachedInput: 472, Output: 94, Reasoning: 64, Tier: "priority"}, ""},
	"incomplete.sse": {"ooo" + "cc" + "zzz" + "d", len("Once upon"), &ledger.Usage{UncachedInput: 37, Output: 2, Reasoning: 14, Tier: "default"}, ""},
	"failed.sse":     {"oooo" + "c", len("abc"), nil, adapters.Overloaded},
}

const recordedModel = `"model":"gpt-5.4-2026-03-05"`

// TestRecordedResponses replays what was recorded. All of it is relayed as it came, but for the model's name and a failure.
func TestRecordedResponses(t *testing.T) {
	for name, want := range recorded {
		stream := string(record(t, name))
		got := streamed(t, strings.NewReader(stream))
		relayed, _, _ := strings.Cut(strings.ReplaceAll(stream, recordedModel, `"model":"pub"`), "event: response.failed")
		if got.text != relayed {
			t.Errorf("%s: relayed\n%s", name, got.text)
		}
		if !reflect.DeepEqual(got.kinds, kinds(want.kinds)) || got.bytes != want.bytes || !reflect.DeepEqual(got.usage, want.usage) {
			t.Errorf("%s: kinds %v, %d bytes of output, usage %+v", name, got.kinds, got.bytes, got.usage)
		}
		failure, _ := got.err.(*adapters.Failure)
		if want.err == "" && got.err != nil || want.err != "" && (failure == nil || failure.Reason != want.err || strings.Contains(failure.Error(), "canary")) {
			t.Errorf("%s: got %v", name, got.err)
		}
	}
}

// TestRecordedResponsesSplitAnywhere: how the bytes arrive changes nothing, nor how the lines end.
func TestRecordedResponsesSplitAnywhere(t *testing.T) {
	for name := range recorded {
		stream := string(record(t, name))
		want := streamed(t, strings.NewReader(stream))
		for i := 1; i < len(stream); i++ {
			if got := streamed(t, io.MultiReader(strings.NewReader(stream[:i]), strings.NewReader(stream[i:]))); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s, split at %d: got %+v", name, i, got)
			}
		}
		for _, end := range []string{"\n", "\r\n", "\r"} {
			want.text = strings.ReplaceAll(streamed(t, strings.NewReader(stream)).text, "\n", end)
			for _, mark := range []string{"", "\xef\xbb\xbf"} {
				got := streamed(t, iotest.OneByteReader(strings.NewReader(mark+strings.ReplaceAll(stream, "\n", end))))
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s, %q, byte by byte: got %+v", name, end, got)
				}
			}
		}
	}
}

func TestAWholeResponse(t *testing.T) {
	document := record(t, "whole.json")
	got := read(t, "", bytes.NewReader(document), adapters.Request{Protocol: adapters.OpenAIResponses})
	want := outcome{
		text:  strings.Replace(string(document), `"gpt-5.4-2026-03-05"`, `"pub"`, 1),
		kinds: kinds("d"),
		bytes: len("gAAAAABpMzaj" + "Short. " + "No." + "get_weather" + `{"a": 1}` + "run" + "ls -l"),
		usage: &ledger.Usage{UncachedInput: 13, CachedInput: 7, CacheWrite5m: 2, Output: 16, Reasoning: 4, Tier: "default"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	for status, used := range map[string]bool{"incomplete": true, "queued": false} {
		usage := `null`
		if used {
			usage = `{"input_tokens":1,"output_tokens":1}`
		}
		body := fmt.Sprintf(`{"status":%q,"output":[],"error":null,"usage":%s}`, status, usage)
		got := read(t, "", strings.NewReader(body), adapters.Request{Protocol: adapters.OpenAIResponses})
		if got.err != nil || got.text != body || (got.usage != nil) != used {
			t.Errorf("%s: got %+v", status, got)
		}
	}
}

func TestWholeResponsesThatAreNone(t *testing.T) {
	for body, want := range map[string]adapters.Reason{
		``: adapters.UpstreamError, `[]`: adapters.UpstreamError, `{}`: adapters.UpstreamError, `{"output":"x"}`: adapters.UpstreamError,
		`{"output":[]}x`: adapters.UpstreamError, `{"choices":[]}`: adapters.UpstreamError,
		`{"status":"failed","output":[],"error":null}`:                                                                       adapters.UpstreamError,
		`{"status":"cancelled","output":[]}`:                                                                                 adapters.UpstreamError,
		`{"status":"failed","output":[],"error":{"code":"server_error","message":"secret"}}`:                                 adapters.UpstreamError,
		`{"status":"failed","output":[],"error":{"code":"rate_limit_exceeded","message":"secret"}}`:                          adapters.RateLimited,
		`{"error":{"code":"context_length_exceeded"}}`:                                                                       adapters.ContextLength,
		`{"output":` + strings.Repeat("[", adapters.DepthMax) + strings.Repeat("]", adapters.DepthMax) + `}`:                 adapters.UpstreamError,
		`{"object":"error","message":"secret","type":"BadRequestError","code":400}`:                                          adapters.InvalidRequest,
		`{"status":"completed","output":[],"error":{"code":"image_content_policy_violation","message":"secret"},"usage":{}}`: adapters.ContentPolicy,
	} {
		for _, protocol := range []adapters.Protocol{adapters.OpenAIResponses, adapters.OpenAICompact} {
			got := read(t, "", strings.NewReader(body), adapters.Request{Protocol: protocol})
			failure, _ := got.err.(*adapters.Failure)
			if failure == nil || failure.Reason != want || failure.Status != 200 || !failure.Accepted || strings.Contains(failure.Error()+failure.Code, "secret") {
				t.Errorf("%s, %.80s: got %v, want %s", protocol, body, got.err, want)
			}
		}
	}
}

// TestResponses are complete streams, ordinary or not: what is relayed, and what kind each event is of.
func TestResponses(t *testing.T) {
	item := func(what, item string) string {
		return `{"type":"response.output_item.` + what + `","output_index":0,"item":` + item + `}`
	}
	for name, test := range map[string]struct{ stream, want, kinds string }{
		"nothing but its frame":   {events(created, completed), events(shown, completed), "od"},
		"a text":                  {events(created, added, delta, item("done", `{"type":"message","content":[{"type":"output_text","text":"x"}]}`), completed), "", "ooczd"},
		"no names of events":      {"data: " + created + "\n\ndata: " + delta + "\n\ndata: " + completed + "\n\n", "data: " + shown + "\n\ndata: " + delta + "\n\ndata: " + completed + "\n\n", "ocd"},
		"only names of events":    {"event: response.created\ndata: {\"response\":{\"model\":\"up\"}}\n\nevent: response.completed\ndata: {}\n\n", "event: response.created\ndata: {\"response\":{\"model\":\"pub\"}}\n\nevent: response.completed\ndata: {}\n\n", "od"},
		"a name that is wrong":    {"event: response.created\ndata: " + delta + "\n\n" + events(completed), "", "cd"},
		"unknown events":          {events(created, `{"type":"response.new","a":[1.0]}`, delta, `{"type":"keepalive"}`, completed), events(shown, `{"type":"response.new","a":[1.0]}`, delta, `{"type":"keepalive"}`, completed), "ooczd"},
		"an unknown delta":        {events(`{"type":"response.new.delta","delta":{"a":1}}`, completed), "", "cd"},
		"an empty delta":          {events(`{"type":"response.output_text.delta","delta":""}`, completed), "", "od"},
		"out of order":            {events(delta, completed), "", "cd"},
		"created last":            {events(delta, created, completed), events(delta, shown, completed), "czd"},
		"a second end":            {events(created, completed, delta, completed), events(shown, completed), "od"},
		"incomplete":              {events(`{"type":"response.incomplete","response":{"model":"up","status":"incomplete"}}`), events(`{"type":"response.incomplete","response":{"model":"pub","status":"incomplete"}}`), "d"},
		"the end shows the model": {events(`{"type":"response.completed","response":{"output":[{"model":"up"}] , "model" : "up"}}`), events(`{"type":"response.completed","response":{"output":[{"model":"pub"}] , "model" : "pub"}}`), "d"},
		"no model":                {events(`{"type":"response.created","response":{"model":null}}`, completed), "", "od"},
		"two responses":           {events(`{"type":"response.created","response":{"model":"a"},"response":{"mod\u0065l":{},"model":"b"},"model":"up"}`, completed), events(`{"type":"response.created","response":{"model":"pub"},"response":{"mod\u0065l":"pub","model":"pub"},"model":"pub"}`, completed), "od"},
		"an error that is null":   {events(`{"type":"response.created","error":null,"response":{"error":null}}`, completed), "", "od"},
		"comments":                {": hello\n\n: more\n" + events(created, completed), ": more\n" + events(shown, completed), "od"},
		"data over two lines":     {"data: {\"type\":\"response.created\",\ndata: \"response\":{\"model\":\"up\"}}\n\n" + events(completed), "data: {\"type\":\"response.created\",\ndata: \"response\":{\"model\":\"pub\"}}\n\n" + events(completed), "od"},
		"no blank line at last":   {events(created) + "data: " + completed, events(shown) + "data: " + completed + "\n\n", "od"},
		"another protocol's end":  {events(created, completed) + "data: [DONE]\n\n", events(shown, completed), "od"},
		"a refusal":               {events(`{"type":"response.content_part.added","part":{"type":"refusal","refusal":""}}`, `{"type":"response.refusal.delta","delta":"no"}`, `{"type":"response.refusal.done","refusal":"no"}`, completed), "", "oczd"},
		"reasoning":               {events(item("added", `{"type":"reasoning","summary":[]}`), `{"type":"response.reasoning_text.delta","delta":"x"}`, completed), "", "ocd"},
		"encrypted reasoning":     {events(item("added", `{"type":"reasoning","summary":[],"encrypted_content":"x"}`), completed), "", "cd"},
		"no delta, but a text":    {events(`{"type":"response.output_text.done","text":"x"}`, completed), "", "cd"},
		"no delta, but a part":    {events(`{"type":"response.content_part.done","part":{"type":"output_text","text":"x"}}`, completed), "", "cd"},
		"no delta, but an item":   {events(item("done", `{"type":"message","content":[{"type":"output_text","text":"x"}]}`), completed), "", "cd"},
		"a function's call":       {events(item("added", `{"type":"function_call","name":"f","arguments":""}`), `{"type":"response.function_call_arguments.delta","delta":""}`, completed), "", "ttd"},
		"a custom tool's call":    {events(`{"type":"response.custom_tool_call_input.delta","delta":"x"}`, `{"type":"response.custom_tool_call_input.done","input":"x"}`, completed), "", "tzd"},
		"a hosted tool's call":    {events(item("added", `{"type":"web_search_call","status":"in_progress"}`), `{"type":"response.web_search_call.searching"}`, `{"type":"response.image_generation_call.partial_image","partial_image_b64":"AA"}`, completed), "", "tttd"},
		"an unknown item":         {events(item("added", `{"type":"compaction"}`), completed), "", "cd"},
	} {
		if test.want == "" {
			test.want = strings.ReplaceAll(test.stream, `"up"`, `"pub"`)
		}
		got := streamed(t, strings.NewReader(test.stream))
		if got.err != nil || got.text != test.want || !reflect.DeepEqual(got.kinds, kinds(test.kinds)) {
			t.Errorf("%s: kinds %v, %v\ngot  %q\nwant %q", name, got.kinds, got.err, got.text, test.want)
		}
	}
}

// TestOutputIsCountedOnce: what ends a part, an item or all repeats what the deltas brought, if they did.
func TestOutputIsCountedOnce(t *testing.T) {
	text := func(text string) string {
		return `{"type":"message","content":[{"type":"output_text","text":"` + text + `"}]}`
	}
	one, two := `{"type":"response.output_text.delta","delta":"ab"}`, `{"type":"response.output_text.delta","delta":"cdef"}`
	partDone := `{"type":"response.output_text.done","text":"abcdef"}`
	itemDone := `{"type":"response.output_item.done","item":` + text("abcdef") + `}`
	other := `{"type":"response.output_item.done","item":` + text("ghi") + `}`
	end := func(items ...string) string {
		return `{"type":"response.completed","response":{"output":[` + strings.Join(items, ",") + `]}}`
	}
	call := `{"type":"function_call","name":"run","arguments":"{}"}`
	for name, test := range map[string]struct {
		events []string
		want   int
	}{
		"deltas and all that repeat them": {[]string{one, two, partDone, itemDone, end(text("abcdef"))}, 6},
		"a stream that is cut":            {[]string{one, two}, 6},
		"no deltas":                       {[]string{partDone, itemDone, end(text("abcdef"))}, 6},
		"nothing but an item":             {[]string{itemDone, end(text("abcdef"))}, 6},
		"nothing but the end":             {[]string{end(text("abcdef"), text("ghi"))}, 9},
		"two items":                       {[]string{one, two, itemDone, other, end(text("abcdef"), text("ghi"))}, 9},
		"two items at once":               {[]string{one, `{"type":"response.output_text.delta","delta":"ghi"}`, two, other, itemDone, end(text("abcdef"), text("ghi"))}, 9},
		"a delta is missing":              {[]string{two, itemDone, end(text("abcdef"))}, 6},
		"an end that forgets":             {[]string{one, two, itemDone, end()}, 6},
		"a call": {[]string{
			`{"type":"response.output_item.added","item":{"type":"function_call","name":"run","arguments":""}}`,
			`{"type":"response.function_call_arguments.delta","delta":"{"}`, `{"type":"response.function_call_arguments.delta","delta":"}"}`,
			`{"type":"response.function_call_arguments.done","arguments":"{}"}`, `{"type":"response.output_item.done","item":` + call + `}`, end(call)}, 5},
		"no image is text": {[]string{end(`{"type":"image_generation_call","result":"AAAA"}`)}, 0},
	} {
		if got := streamed(t, strings.NewReader(events(test.events...))); got.bytes != test.want {
			t.Errorf("%s: %d bytes, %v, want %d", name, got.bytes, got.err, test.want)
		}
	}
}

// TestItems: what is not known to begin empty is output, whatever its type.
func TestItems(t *testing.T) {
	for item, want := range map[string]output{
		`{"type":"message","role":"assistant","content":[]}`:                                                      {},
		`{"type":"message","content":[{"type":"output_text","text":"","annotations":[],"logprobs":[]}]}`:          {},
		`{"type":"message","content":[{"type":"output_text","text":"\u00e9"},{"type":"refusal","refusal":"no"}]}`: {bytes: 4, some: true},
		`{"type":"message","content":[{"type":"new"}]}`:                                                           {some: true},
		`{"type":"reasoning","summary":[],"content":null,"encrypted_content":null}`:                               {},
		`{"type":"reasoning","summary":[{"type":"summary_text","text":"ab"}]}`:                                    {bytes: 2, some: true},
		`{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"ab"}]}`:                     {bytes: 2, some: true},
		`{"type":"reasoning","summary":[],"encrypted_content":"abc"}`:                                             {bytes: 3, some: true},
		`{"type":"function_call","name":"f","arguments":""}`:                                                      {bytes: 1, some: true, toolCall: true},
		`{"type":"custom_tool_call","name":"f","input":"abc"}`:                                                    {bytes: 4, some: true, toolCall: true},
		`{"type":"mcp_call","name":"f","arguments":"{}","output":"xxxx"}`:                                         {bytes: 3, some: true, toolCall: true},
		`{"type":"web_search_call","status":"in_progress"}`:                                                       {some: true, toolCall: true},
		`{"type":"code_interpreter_call","code":"1+1"}`:                                                           {bytes: 3, some: true, toolCall: true},
		`{"type":"mcp_list_tools","tools":[]}`:                                                                    {some: true},
		`{"type":"compaction","encrypted_content":"abcd"}`:                                                        {bytes: 4, some: true},
		`{"type":"output_text","text":"","annotations":[{}]}`:                                                     {some: true},
		`{"type":"summary_text","text":""}`:                                                                       {},
		`{"type":"output_audio","data":""}`:                                                                       {some: true},
		`{}`:                                                                                                      {}, `null`: {}, `"x"`: {}, `[{"text":"x"}]`: {},
	} {
		if got := readItem(gjson.Parse(item)); got != want {
			t.Errorf("%s: got %+v, want %+v", item, got, want)
		}
	}
}

// TestFailedResponses: the code says why, if it is a known one, and nothing of the text is kept.
func TestFailedResponses(t *testing.T) {
	for code, want := range map[string]struct {
		reason adapters.Reason
		told   bool
	}{
		`"context_length_exceeded"`:       {adapters.ContextLength, true},
		`"insufficient_quota"`:            {adapters.RateLimited, true},
		`"rate_limit_exceeded"`:           {adapters.RateLimited, true},
		`"server_is_overloaded"`:          {adapters.Overloaded, true},
		`"invalid_prompt"`:                {adapters.InvalidRequest, true},
		`"previous_response_not_found"`:   {adapters.InvalidRequest, true},
		`"invalid_encrypted_content"`:     {adapters.InvalidRequest, true},
		`"invalid_image_url"`:             {adapters.InvalidRequest, true},
		`"bio_policy"`:                    {adapters.ContentPolicy, true},
		`"misalignment_policy_violation"`: {adapters.ContentPolicy, true},
		`"usage_not_included"`:            {adapters.Credential, true},
		`"model_not_found"`:               {adapters.ModelMissing, true},
		`"server_error"`:                  {adapters.StreamBroken, true},
		`"vector_store_timeout"`:          {adapters.StreamBroken, true},
		`"secret"`:                        {adapters.StreamBroken, false},
		`null`:                            {adapters.StreamBroken, false},
		`429`:                             {adapters.RateLimited, false},
		`502`:                             {adapters.StreamBroken, false},
		`[]`:                              {adapters.StreamBroken, false},
	} {
		for _, last := range []string{
			`{"type":"response.failed","response":{"status":"failed","error":{"code":` + code + `,"message":"secret"}}}`,
			`{"type":"response.completed","response":{"status":"failed","error":{"code":` + code + `,"message":"secret"},"usage":{"input_tokens":1,"output_tokens":1}}}`,
			`{"type":"error","code":` + code + `,"message":"secret","param":null,"sequence_number":3}`,
			`{"type":"error","error":{"type":"secret","code":` + code + `,"message":"secret"}}`,
		} {
			got := streamed(t, strings.NewReader(events(created, delta, last, completed)))
			failure, _ := got.err.(*adapters.Failure)
			if usage := strings.Contains(last, `"usage"`); failure == nil || (failure.Usage != nil) != usage || failure.Reason != want.reason || (failure.Code != "") != want.told || failure.Status != 200 || !failure.Accepted {
				t.Errorf("%s: got %v, %+v, want %+v", last, got.err, failure, want)
			}
			if strings.Contains(fmt.Sprint(got.err), "secret") || got.text != events(shown, delta) {
				t.Errorf("%s: %v after %q", last, got.err, got.text)
			}
		}
	}
}

// noResponses are streams that do not end as an answer does.
func noResponses() map[string]string {
	return map[string]string{
		"nothing":                 "",
		"no terminal event":       events(created, delta),
		"another protocol's end":  events(created) + "data: [DONE]\n\n",
		"no JSON":                 "data: <html>\n\n",
		"a list":                  "data: []\n\n" + events(completed),
		"JSON and more":           "data: {}x\n\n" + events(completed),
		"half of the last":        events(created) + "data: {\"type\":\"response.compl",
		"a name alone":            events(created) + "event: response.completed\n\n",
		"a failure without words": events(created, `{"type":"response.failed"}`),
		"cancelled":               events(created, `{"type":"response.cancelled","response":{"status":"cancelled"}}`),
		"an event of error":       "event: error\ndata: {\"type\":\"response.completed\"}\n\n" + events(completed),
		"too deep":                "data: {\"type\":\"x\",\"a\":" + strings.Repeat("[", adapters.DepthMax) + strings.Repeat("]", adapters.DepthMax) + "}\n\n" + events(completed),
		"an event without end":    "data: " + strings.Repeat("x", sse.FrameMax+1),
	}
}

func TestStreamsThatAreNoResponses(t *testing.T) {
	for name, stream := range noResponses() {
		got := streamed(t, strings.NewReader(stream))
		var failure *adapters.Failure
		if !errors.As(got.err, &failure) || failure.Reason != adapters.StreamBroken || !failure.Accepted || failure.Status != 200 {
			t.Errorf("%s: got %v", name, got.err)
		}
	}
}

// FuzzResponse reads streams of anything. What is relayed of them is events, of which none lacks its end, and no response names the
// provider's model.
func FuzzResponse(f *testing.F) {
	for name := range recorded {
		f.Add(record(f, name))
	}
	for name, stream := range noResponses() {
		if name != "an event without end" { // which no fuzzer gets to in a reasonable time
			f.Add([]byte(stream))
		}
	}
	f.Add([]byte(events(created, added, delta, completed)))
	f.Add([]byte("\xef\xbb\xbfdata: {\"type\":\"response.created\",\r\ndata: \"response\":{\"mod\\u0065l\":{\"a\":[]},\"model\":\"up\"}}\r\n\r\nevent:response.completed\rdata:{}\r\r"))
	f.Add([]byte(events(`{"type":"response.output_item.done","item":{"content":{"a":[{"text":"x"}]},"summary":"x"}}`, completed)))
	f.Fuzz(func(t *testing.T, stream []byte) {
		got := streamed(t, bytes.NewReader(stream))
		if got.usage != nil {
			if _, err := got.usage.Tokens(); err != nil {
				t.Fatalf("%q: usage %+v", stream, got.usage)
			}
		}
		if got.bytes < 0 || got.bytes > len(stream) {
			t.Fatalf("%q: %d bytes of output", stream, got.bytes)
		}
		reader := sse.NewReader(strings.NewReader(got.text))
		for {
			event, err := reader.Next()
			if err == io.EOF {
				return
			}
			if err != nil || event.Partial {
				t.Fatalf("%q is relayed as %q: %v", stream, got.text, err)
			}
			if len(bytes.TrimSpace(event.Data)) == 0 {
				continue
			}
			root := gjson.ParseBytes(event.Data)
			if !json.Valid(event.Data) || root.Get("response.model").Str == "up" || root.Get("model").Str == "up" {
				t.Fatalf("%q is relayed as %q", stream, event.Data)
			}
		}
	})
}

func BenchmarkResponse(b *testing.B) {
	event := events(`{"type":"response.output_text.delta","sequence_number":7,"item_id":"msg_67c9fdcf37fc8190ba82116e33fb28c5","output_index":0,"content_index":0,"delta":"word","logprobs":[],"obfuscation":"q8LZ"}`)
	answer, err := ask(b, "", strings.NewReader(strings.Repeat(event, b.N)), adapters.Request{Protocol: adapters.OpenAIResponses, Stream: true})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = answer.Close() }()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := answer.Next(); err != nil {
			b.Fatal(err)
		}
	}
}

// TestSearchesAreBounded where the request leaves them open and the server makes some; elsewhere nothing changes.
func TestSearchesAreBounded(t *testing.T) {
	for given, want := range map[string]string{
		`{"model":"up","tools":[]}`:                       `{"model":"up","tools":[],"max_tool_calls":8}`,
		`{"model":"up","max_tool_calls":null,"tools":[]}`: `{"model":"up","max_tool_calls":8,"tools":[]}`,
		`{"model":"up","max_tool_calls":8}`:               `{"model":"up","max_tool_calls":8}`,
	} {
		for name, d := range dialects {
			wanted := given
			if d.searches {
				wanted = want
			}
			got, err := editResponse(adapters.Request{Body: []byte(given), Model: "up", Searches: 8}, d)
			if err != nil || string(got) != wanted {
				t.Errorf("%s: %s: got %s, %v, want %s", name, given, got, err, wanted)
			}
			if got, err := editResponse(adapters.Request{Body: []byte(given), Model: "up"}, d); err != nil || string(got) != given {
				t.Errorf("%s: without searches: %s: got %s, %v", name, given, got, err)
			}
		}
	}
	for _, name := range []string{"openai", "azure", "openrouter"} {
		if !dialects[name].searches {
			t.Errorf("%s makes searches", name)
		}
	}
}

// TestAServerWithoutAnEndIsToldOneInResponses, too.
func TestAServerWithoutAnEndIsToldOneInResponses(t *testing.T) {
	for given, want := range map[string]string{
		`{"model":"up"}`: `{"model":"up","max_output_tokens":9}`,
		`{"max_output_tokens":null,"model":"up"}`: `{"max_output_tokens":9,"model":"up"}`,
		`{"model":"up","max_output_tokens":7}`:    `{"model":"up","max_output_tokens":7}`,
	} {
		for name, d := range dialects {
			wanted := given
			if d.endless {
				wanted = want
			}
			got, err := editResponse(adapters.Request{Body: []byte(given), Model: "up", OutputTokensMax: 9}, d)
			if err != nil || string(got) != wanted {
				t.Errorf("%s: %s: got %s, %v, want %s", name, given, got, err, wanted)
			}
		}
	}
}

// TestWhatIsSaidToToolsIsNobodysModel: the provider's name is replaced where the provider tells it, and nowhere else.
func TestWhatIsSaidToToolsIsNobodysModel(t *testing.T) {
	const said = `{"type":"response.output_item.done","item":{"type":"tool_search_call","arguments":{"model":"up"},"action":{"env":{"model":"up"}}}}`
	const echoed = `{"type":"response.in_progress","response":{"model":"pub","metadata":{"model":"up"},"tools":[{"parameters":{"model":"up"}}],"x":{"model":"upper"}}}`
	for given, want := range map[string]string{
		said: said, echoed: echoed,
		`{"type":"x","x":[{"model":"up-2"},{"model":"a/up:free"},{"model":"soup"}]}`: `{"type":"x","x":[{"model":"pub"},{"model":"pub"},{"model":"soup"}]}`,
	} {
		if got := streamed(t, strings.NewReader(events(given, completed))).text; !strings.HasPrefix(got, events(want)) {
			t.Errorf("%s: got %s", given, got)
		}
	}
}
