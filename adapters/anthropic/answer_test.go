package anthropic

import (
	"bytes"
	"context"
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

// outcome is what came of an answer.
type outcome struct {
	text  string // what was relayed
	kinds []adapters.Kind
	bytes int // of output
	usage *ledger.Usage
	err   error // nil if the answer is complete
}

// ask sends a request to a provider that answers with the body.
func ask(t testing.TB, body io.Reader, stream bool) (adapters.Answer, error) {
	t.Helper()
	media := "application/json"
	if stream {
		media = "text/event-stream"
	}
	provider, err := New(Config{BaseURL: "http://canned", Client: adaptertest.Canned(media, body)})
	if err != nil {
		t.Fatal(err)
	}
	return provider.Send(context.Background(), adapters.Request{Body: []byte(`{}`), Model: "up", PublicModel: "pub", Stream: stream})
}

// relayed reads a stream to its end.
func relayed(t testing.TB, stream io.Reader) (got outcome) {
	t.Helper()
	answer, err := ask(t, stream, true)
	if err != nil {
		t.Fatal(err)
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

// events makes a stream of documents, each under the name of its type.
func events(documents ...string) string {
	var stream strings.Builder
	for _, document := range documents {
		var named struct{ Type string }
		_ = json.Unmarshal([]byte(document), &named) // what is none has no name
		fmt.Fprintf(&stream, "event: %s\ndata: %s\n\n", named.Type, document)
	}
	return stream.String()
}

const (
	opened  = `{"type":"message_start","message":{"id":"msg_1","model":"up","content":[],"usage":{"input_tokens":9,"output_tokens":1}}}`
	ended   = `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}`
	stopped = `{"type":"message_stop"}`
	pinged  = `{"type": "ping"}`
)

func record(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../testdata/record/anthropic", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// kinds reads a word with a letter for each event.
func kinds(word string) []adapters.Kind {
	var all []adapters.Kind
	for _, letter := range word {
		all = append(all, adapters.Kind(strings.IndexRune("octzd", letter)))
	}
	return all
}

// recorded are the streams that were recorded, and what is to be read in them: for each event a letter, o for an opening, c for content,
// t for a tool call, z for what closes, d for the end.
var recorded = map[string]struct {
	kinds string
	bytes int
	usage *ledger.Usage
	err   adapters.Reason
}{
	"text.sse": {"ooocczzd", len("Grüße aus \"Köln\".\n"), &ledger.Usage{
		UncachedInput: 21, CachedInput: 1024, CacheWrite5m: 100, CacheWrite1h: 20, Output: 12, Tier: "standard"}, ""},
	"tool.sse": {"ooccc" + "z" + "cz" + "zzcz" + "tzttt" + "zzd",
		len("The user asks for the weather." + "EmwKAhgBEgy3va3pzix" + "Let me look." + "get_weather" + `{"location": "San Francisco, CA"}`),
		&ledger.Usage{UncachedInput: 472, Output: 58, Reasoning: 31, Tier: "priority"}, ""},
	"search.sse": {"oocz" + "z" + "tzttz" + "cz" + "zccz" + "zd",
		len("I'll check." + "web_search" + `{"query": "weather NYC today"}` + "It is sunny, 21°C."),
		&ledger.Usage{UncachedInput: 10682, Output: 510, Tier: "standard", Units: map[string]int64{"web_search": 1}}, ""},
	"overloaded.sse": {"ooc", 3, nil, adapters.Overloaded},
}

// TestRecords replays what was recorded. All of it is relayed as it came, but for the model's name and an error.
func TestRecords(t *testing.T) {
	for name, want := range recorded {
		stream := record(t, name)
		got := relayed(t, bytes.NewReader(stream))
		shown, _, _ := strings.Cut(strings.Replace(string(stream), `"claude-sonnet-4-5-20250929"`, `"pub"`, 1), "event: error")
		if got.text != shown {
			t.Errorf("%s: relayed\n%s", name, got.text)
		}
		if !reflect.DeepEqual(got.kinds, kinds(want.kinds)) || got.bytes != want.bytes || !reflect.DeepEqual(got.usage, want.usage) {
			t.Errorf("%s: kinds %v, %d bytes of output, usage %+v", name, got.kinds, got.bytes, got.usage)
		}
		failure, _ := got.err.(*adapters.Failure)
		if want.err == "" && got.err != nil || want.err != "" && (failure == nil || failure.Reason != want.err) {
			t.Errorf("%s: got %v", name, got.err)
		}
	}
}

// TestRecordsSplitAnywhere: how the bytes arrive changes nothing, nor how the lines end.
func TestRecordsSplitAnywhere(t *testing.T) {
	for name := range recorded {
		for _, end := range []string{"\n", "\r\n", "\r"} {
			for _, mark := range []string{"", "\xef\xbb\xbf"} {
				stream := mark + strings.ReplaceAll(string(record(t, name)), "\n", end)
				want := relayed(t, strings.NewReader(stream))
				if want.err != nil && name != "overloaded.sse" {
					t.Fatalf("%s: %v", name, want.err)
				}
				if got := relayed(t, iotest.OneByteReader(strings.NewReader(stream))); !reflect.DeepEqual(got, want) {
					t.Errorf("%s, %q, byte by byte: got %+v", name, end, got)
				}
				for i := 1; i < len(stream); i++ {
					if got := relayed(t, io.MultiReader(strings.NewReader(stream[:i]), strings.NewReader(stream[i:]))); !reflect.DeepEqual(got, want) {
						t.Fatalf("%s, %q, split at %d: got %+v", name, end, i, got)
					}
				}
			}
		}
	}
}

func TestAWholeAnswer(t *testing.T) {
	document := record(t, "whole.json")
	answer, err := ask(t, bytes.NewReader(document), false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Close() }()
	event, err := answer.Next()
	want := strings.Replace(string(document), `"claude-sonnet-4-5-20250929"`, `"pub"`, 1)
	if err != nil || event.Kind != adapters.Done || string(event.Relay) != want || event.OutputBytes != len("Short."+"Hi!"+"f"+`{"a": 1}`) {
		t.Errorf("got %q, %+v, %v", event.Relay, event, err)
	}
	usage := &ledger.Usage{UncachedInput: 10, CachedInput: 7, CacheWrite5m: 2, CacheWrite1h: 3, Output: 16, Reasoning: 4, Tier: "standard"}
	if !reflect.DeepEqual(event.Usage, usage) {
		t.Errorf("usage %+v", event.Usage)
	}
	if _, err := answer.Next(); err != io.EOF {
		t.Errorf("then %v", err)
	}
}

func TestWholeAnswersThatAreNone(t *testing.T) {
	for body, want := range map[string]adapters.Reason{
		``: adapters.UpstreamError, `[]`: adapters.UpstreamError, `{}`: adapters.UpstreamError, `{"content":"x"}`: adapters.UpstreamError,
		`{"content":[]}x`: adapters.UpstreamError, `{"content":[],"error":{"type":"api_error"}}`: adapters.UpstreamError,
		`{"choices":[]}`: adapters.UpstreamError, problem("overloaded_error", "secret"): adapters.Overloaded,
		`{"content":` + strings.Repeat("[", adapters.DepthMax) + strings.Repeat("]", adapters.DepthMax) + `}`: adapters.UpstreamError,
	} {
		_, err := ask(t, strings.NewReader(body), false)
		if failure, _ := err.(*adapters.Failure); failure == nil || failure.Reason != want || failure.Status != 200 || !failure.Accepted {
			t.Errorf("%.60s: got %v, want %s", body, err, want)
		}
	}
}

// TestStreams are complete ones, ordinary or not: what is relayed, and what kind each event is of.
func TestStreams(t *testing.T) {
	const shown = `{"type":"message_start","message":{"id":"msg_1","model":"pub","content":[],"usage":{"input_tokens":9,"output_tokens":1}}}`
	const delta = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}`
	for name, test := range map[string]struct{ stream, want, kinds string }{
		"nothing but its frame": {events(opened, ended, stopped), events(shown, ended, stopped), "ozd"},
		"a ping after output":   {events(opened, pinged, delta, pinged, ended, stopped), events(shown, pinged, delta, pinged, ended, stopped), "ooczzd"},
		"no names of events":    {"data: " + opened + "\n\ndata: " + delta + "\n\ndata: " + stopped + "\n\n", "data: " + shown + "\n\ndata: " + delta + "\n\ndata: " + stopped + "\n\n", "ocd"},
		"only names of events":  {"event: message_start\ndata: {\"message\":{\"model\":\"up\"}}\n\nevent: message_stop\ndata: {}\n\n", "event: message_start\ndata: {\"message\":{\"model\":\"pub\"}}\n\nevent: message_stop\ndata: {}\n\n", "od"},
		"a name that is wrong":  {"event: ping\ndata: " + delta + "\n\n" + events(stopped), "event: ping\ndata: " + delta + "\n\n" + events(stopped), "cd"},
		"unknown events":        {events(opened, `{"type":"new","a":[1.0]}`, delta, `{"type":"new"}`, stopped), events(shown, `{"type":"new","a":[1.0]}`, delta, `{"type":"new"}`, stopped), "ooczd"},
		"out of order":          {events(delta, ended, opened, stopped), events(delta, ended, shown, stopped), "czzd"},
		"a second end":          {events(opened, stopped, delta, stopped), events(shown, stopped), "od"},
		"the model as it is":    {events(shown, stopped), events(shown, stopped), "od"},
		"no model":              {events(`{"type":"message_start","message":{"model":null}}`, stopped), events(`{"type":"message_start","message":{"model":null}}`, stopped), "od"},
		"another model":         {events(`{"type":"message_start","model":"up","message":{"x":{"model":"up"} , "mod\u0065l" : 7}}`, stopped), events(`{"type":"message_start","model":"up","message":{"x":{"model":"pub"} , "mod\u0065l" : "pub"}}`, stopped), "od"},
		"the model further inside": {
			events(`{"type":"message_start","message":{"usage":{"iterations":[{"model":"up-2"},{"model":"other"},{"input":{"model":"up"}}]}}}`, stopped),
			events(`{"type":"message_start","message":{"usage":{"iterations":[{"model":"pub"},{"model":"other"},{"input":{"model":"up"}}]}}}`, stopped), "od",
		},
		"a fallback's models": {
			events(`{"type":"content_block_start","content_block":{"type":"fallback","from":{"model":"up"},"to":{"model":"up-2"}}}`, stopped),
			events(`{"type":"content_block_start","content_block":{"type":"fallback","from":{"model":"pub"},"to":{"model":"pub"}}}`, stopped), "cd",
		},
		"two models":             {events(`{"type":"message_start","message":{"model":"pub"},"message":{"model":"a","model":"b"}}`, stopped), events(`{"type":"message_start","message":{"model":"pub"},"message":{"model":"pub","model":"pub"}}`, stopped), "od"},
		"comments":               {": hello\n\n: more\nevent: ping\n: inside\ndata: {}\n\n" + events(stopped), ": more\nevent: ping\n: inside\ndata: {}\n\n" + events(stopped), "od"},
		"an event without data":  {"event: ping\n\nevent: ping\ndata:\n\n" + events(stopped), events(stopped), "d"},
		"no space, and two":      {"data:" + delta + "\n\ndata:  " + stopped + "\n\n", "data:" + delta + "\n\ndata:  " + stopped + "\n\n", "cd"},
		"data over two lines":    {"data: {\"type\":\"message_start\",\ndata: \"message\":{\"model\":\"up\"}}\n\n" + events(stopped), "data: {\"type\":\"message_start\",\ndata: \"message\":{\"model\":\"pub\"}}\n\n" + events(stopped), "od"},
		"no blank line at last":  {events(opened) + "data: " + stopped, events(shown) + "data: " + stopped + "\n\n", "od"},
		"ids and retries":        {"id: 7\nretry: 1\ndata: " + opened + "\n\n" + events(stopped), "id: 7\nretry: 1\ndata: " + shown + "\n\n" + events(stopped), "od"},
		"all at once":            {events(`{"type":"message_start","message":{"model":"pub","content":[{"type":"text","text":"abc"}]}}`, stopped), events(`{"type":"message_start","message":{"model":"pub","content":[{"type":"text","text":"abc"}]}}`, stopped), "cd"},
		"a reason before output": {events(opened, ended, pinged, stopped), events(shown, ended, pinged, stopped), "ozzd"},
	} {
		got := relayed(t, strings.NewReader(test.stream))
		if got.err != nil || got.text != test.want || !reflect.DeepEqual(got.kinds, kinds(test.kinds)) {
			t.Errorf("%s: kinds %v, %v\ngot  %q\nwant %q", name, got.kinds, got.err, got.text, test.want)
		}
	}
}

// TestParts: what is not known to begin empty is output, whatever its type.
func TestParts(t *testing.T) {
	for part, want := range map[string]output{
		`{"type":"text","text":""}`:                                          {},
		`{"type":"text","text":"","citations":null}`:                         {},
		`{"type":"text","text":"é","citations":[]}`:                          {bytes: 2, some: true},
		`{"type":"text","text":"","citations":[{}]}`:                         {some: true},
		`{"type":"thinking","thinking":"","signature":""}`:                   {},
		`{"type":"thinking","thinking":"","signature":"s"}`:                  {some: true},
		`{"type":"redacted_thinking","data":"abc"}`:                          {bytes: 3, some: true},
		`{"type":"tool_use","id":"1","name":"f","input":{}}`:                 {bytes: 1, some: true, toolCall: true},
		`{"type":"tool_use","id":"1","name":"f","input":{"a":1}}`:            {bytes: 8, some: true, toolCall: true},
		`{"type":"server_tool_use","id":"1","name":"web_search","input":{}}`: {bytes: 10, some: true, toolCall: true},
		`{"type":"mcp_tool_use","name":"f","server_name":"s"}`:               {bytes: 1, some: true, toolCall: true},
		`{"type":"web_search_tool_result","content":[]}`:                     {some: true},
		`{"type":"compaction","content":null}`:                               {some: true},
		`{"type":"new"}`:                                                     {some: true},
		`{"type":"text_delta","text":"ab"}`:                                  {bytes: 2, some: true},
		`{"type":"text_delta","text":""}`:                                    {},
		`{"type":"thinking_delta","thinking":"ab"}`:                          {bytes: 2, some: true},
		`{"type":"thinking_delta","thinking":"","estimated_tokens":50}`:      {},
		`{"type":"signature_delta","signature":"ab"}`:                        {some: true},
		`{"type":"citations_delta","citation":{}}`:                           {some: true},
		`{"type":"input_json_delta","partial_json":""}`:                      {toolCall: true},
		`{"type":"input_json_delta","partial_json":"{"}`:                     {bytes: 1, some: true, toolCall: true},
		`{"type":"new_delta","count":1}`:                                     {some: true},
		`{"text":"ab"}`:                                                      {bytes: 2, some: true}, `"x"`: {some: true}, `{}`: {}, `null`: {}, ``: {},
	} {
		if got := readPart(gjson.Parse(part)); got != want {
			t.Errorf("%s: got %+v, want %+v", part, got, want)
		}
	}
}

// noAnswers are streams that do not end as an answer does.
func noAnswers() map[string]string {
	return map[string]string{
		"nothing":              "",
		"no terminal event":    events(opened, ended),
		"another's end":        events(opened) + "data: [DONE]\n\n",
		"no JSON":              "data: <html>\n\n",
		"a list":               "data: []\n\n" + events(stopped),
		"JSON and more":        "data: {}x\n\n" + events(stopped),
		"half an event":        "data: {\"type\":\"message_st",
		"half of the last":     events(opened) + "event: message_stop\ndata: {\"type\":\"message_stop\"",
		"a name alone":         events(opened) + "event: message_stop\n\n",
		"too deep":             "data: {\"type\":\"ping\",\"a\":" + strings.Repeat("[", adapters.DepthMax) + strings.Repeat("]", adapters.DepthMax) + "}\n\n" + events(stopped),
		"an event without end": "data: " + strings.Repeat("x", sse.FrameMax+1),
	}
}

func TestStreamsThatAreNoAnswers(t *testing.T) {
	for name, stream := range noAnswers() {
		got := relayed(t, strings.NewReader(stream))
		var failure *adapters.Failure
		if !errors.As(got.err, &failure) || failure.Reason != adapters.StreamBroken || !failure.Accepted || failure.Status != 200 {
			t.Errorf("%s: got %v", name, got.err)
		}
	}
}

// FuzzAnswer reads streams of anything. What is relayed of them is events, of which none lacks its end, and no message names the
// provider's model.
func FuzzAnswer(f *testing.F) {
	for name := range recorded {
		f.Add(record(f, name))
	}
	for name, stream := range noAnswers() {
		if name != "an event without end" { // which no fuzzer gets to in a reasonable time
			f.Add([]byte(stream))
		}
	}
	f.Add([]byte(events(opened, ended, stopped)))
	f.Add([]byte("\xef\xbb\xbfdata: {\"type\":\"message_start\",\r\ndata: \"message\":{\"mod\\u0065l\":{\"a\":[]},\"content\":[{\"type\":\"tool_use\",\"input\":{}}]}}\r\n\r\nevent:message_stop\rdata:{}\r\r"))
	f.Add([]byte(events(opened, `{"type":"message_delta","delta":{"stop_reason":"x"},"usage":{"iterations":[{"type":"compaction","input_tokens":1,"output_tokens":1}],"speed":"fast"}}`, stopped)))
	f.Add([]byte(events(problem("invalid_request_error", "prompt is too long"))))
	f.Fuzz(func(t *testing.T, stream []byte) {
		got := relayed(t, bytes.NewReader(stream))
		if got.usage != nil {
			if _, err := got.usage.Tokens(); err != nil {
				t.Fatalf("%q: usage %+v", stream, got.usage)
			}
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
			name := root.Get("type").Str
			if name == "" {
				name = string(event.Name)
			}
			if !json.Valid(event.Data) || name == "message_start" && root.Get("message.model").Str == "up" {
				t.Fatalf("%q is relayed as %q", stream, event.Data)
			}
		}
	})
}

func BenchmarkEvent(b *testing.B) {
	event := events(`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"word"}}`)
	answer, err := ask(b, strings.NewReader(strings.Repeat(event, b.N)), true)
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
