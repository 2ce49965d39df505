package inference

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"regent/adapters"
	"regent/engine"
)

// spoken are all protocols.
var spoken = map[string]*protocol{
	"chat": chatProtocol, "responses": responsesProtocol, "compact": compactProtocol, "embeddings": embeddingsProtocol,
	"messages": messagesProtocol, "count": countProtocol,
}

// least is the smallest request of each.
var least = map[string]string{
	"chat": `{"model":"m",` + messages + `}`, "responses": `{"model":"m","input":"x"}`, "compact": `{"model":"m","input":"x"}`,
	"embeddings": `{"model":"m","input":"x"}`, "messages": `{"model":"m","max_tokens":9,` + messages + `}`, "count": `{"model":"m",` + messages + `}`,
}

// with is the smallest request of a protocol with more members.
func with(name, members string) string {
	return strings.TrimSuffix(least[name], "}") + "," + members + "}"
}

// TestProtocolsRead is what a request says to the gateway, in each protocol: the texts that are counted, the tokens that the format adds, and
// the parts that are no text.
func TestProtocolsRead(t *testing.T) {
	const image = `{"type":"image","source":{"type":"base64","data":"AAAA"}}`
	for name, test := range map[string]struct {
		in, body string
		texts    []string
		format   int64
		parts    map[string]int64
	}{
		"messages: a text":         {in: "messages", body: least["messages"], texts: []string{"x"}, format: 4},
		"messages: a system text":  {in: "messages", body: with("messages", `"system":"be kind"`), texts: []string{"x", "be kind"}, format: 4},
		"messages: system blocks":  {in: "messages", body: with("messages", `"system":[{"type":"text","text":"be"},{"type":"text","text":"kind","cache_control":{"type":"ephemeral"}}]`), texts: []string{"x", "be", "kind"}, format: 4},
		"messages: a system turn":  {in: "messages", body: turns(`"be kind"`, `[{"type":"text","text":"x"}]`), texts: []string{"be kind", "x"}, format: 8},
		"messages: tools":          {in: "messages", body: with("messages", `"tools":[{"name":"f"}]`), texts: []string{"x", `[{"name":"f"}]`}, format: 4},
		"messages: no content":     {in: "messages", body: turns(`null`, `[]`, `""`), format: 12},
		"messages: thinking":       {in: "messages", body: turns(`[{"type":"thinking","thinking":"hm","signature":"AAAA"}]`), texts: []string{"hm"}, format: 4},
		"messages: a tool's call":  {in: "messages", body: turns(`[{"type":"tool_use","id":"1","name":"f","input":{"a":1}}]`), texts: []string{`{"type":"tool_use","id":"1","name":"f","input":{"a":1}}`}, format: 4},
		"messages: a result":       {in: "messages", body: turns(`[{"type":"tool_result","tool_use_id":"1","content":"ok"}]`), texts: []string{"ok"}, format: 4},
		"messages: nested results": {in: "messages", body: turns(`[{"type":"tool_result","content":[{"type":"text","text":"a"},` + image + `,{"type":"tool_reference","tool_name":"f"}]}]`), texts: []string{"a", `{"type":"tool_reference","tool_name":"f"}`}, format: 4, parts: map[string]int64{"image": 1}},
		"messages: an odd nesting": {in: "messages", body: turns(`[{"type":"tool_result","content":{"type":"tool_result","content":` + image + `}}]`), format: 4, parts: map[string]int64{"image": 1}},
		"messages: one block":      {in: "messages", body: turns(image), format: 4, parts: map[string]int64{"image": 1}},
		"messages: other kinds":    {in: "messages", body: turns(`[` + image + `,{"type":"document"},{"type":"novelty"},{"type":7},{},"x",null,[]]`), texts: []string{"type document", "type novelty", "type 7", "x", "null"}, format: 4, parts: map[string]int64{"image": 1, "file": 7}},

		"messages: a form":        {in: "messages", body: with("messages", `"output_config":{"format":{"schema":{}}},"mcp_servers":[],"container":null,"speed":"standard"`), texts: []string{"x", `{"format":{"schema":{}}}`}, format: 4},
		"messages: tools of ours": {in: "messages", body: with("messages", `"tools":[{"type":"web_search_20250305","name":"web_search"},{"type":"bash_20250124"}]`), texts: []string{"x", `[{"type":"web_search_20250305","name":"web_search"},{"type":"bash_20250124"}]`}, format: 4},

		"messages: a text document":      {in: "messages", body: turns(`[{"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"a long story"}}]`), texts: []string{"type document title T source type text media_type text/plain data a long story"}, format: 4, parts: map[string]int64{"file": 1}},
		"messages: a document of blocks": {in: "messages", body: turns(`[{"type":"document","title":"T","context":"C","source":{"type":"content","content":[{"type":"text","text":"a"},` + image + `,` + image + `]}}]`), texts: []string{"T", "C", "a"}, format: 4, parts: map[string]int64{"file": 1, "image": 2}},
		"messages: a PDF":                {in: "messages", body: turns(`[{"type":"document","source":{"type":"base64","media_type":"application/pdf","data":"JVBERv//"}}]`), texts: []string{"type document source type base64 media_type application/pdf data"}, format: 4, parts: map[string]int64{"file": 1}},
		"messages: what may be a prompt": {in: "messages", body: with("messages", `"context_management":{"edits":[{"instructions":"x"}]},"novelty":7,"thinking":null`), texts: []string{"x", `{"edits":[{"instructions":"x"}]}`}, format: 4},
		"chat: a text file":              {in: "chat", body: `{"model":"m","messages":[{"content":[{"type":"file","file":{"filename":"a.txt","file_data":"data:text/plain;base64,YSBsb25nIHN0b3J5"}}]}]}`, texts: []string{"type file file filename a.txt file_data a long story"}, format: 4, parts: map[string]int64{"file": 1}},
		"chat: what may be a prompt":     {in: "chat", body: with("chat", `"chat_template_kwargs":{"a":"b"},"novelty":["c"],"metadata":{"d":"e"}`), texts: []string{"user", "x", `{"a":"b"}`, `["c"]`}, format: 4},
		"responses: a shell's output":    {in: "responses", body: items(`{"type":"shell_call_output","call_id":"c","output":[{"stdout":"ok"}]}`), texts: []string{"c", `[{"stdout":"ok"}]`}, format: 4},
		"responses: a file":              {in: "responses", body: items(`{"role":"user","content":[{"type":"input_file","file_data":"YSBsb25nIHN0b3J5"},{"type":"input_file","file_data":"not base64!"}]}`), texts: []string{"type input_file file_data a long story", "type input_file file_data not base64!"}, format: 4, parts: map[string]int64{"file": 2}},

		"messages: a fetched PDF":   {in: "messages", body: turns(`[{"type":"web_fetch_tool_result","content":{"type":"document","source":{"type":"base64","data":"JVBERv//"}}}]`), texts: []string{"type web_fetch_tool_result content type document source type base64 data"}, format: 4, parts: map[string]int64{"file": 1}},
		"messages: an unpadded PDF": {in: "messages", body: turns(`[{"type":"document","source":{"type":"base64","data":"JVBERv__8A"}}]`), texts: []string{"type document source type base64 data"}, format: 4, parts: map[string]int64{"file": 1}},
		"messages: what was found":  {in: "messages", body: turns(`[{"type":"web_search_tool_result","content":[{"title":"T","encrypted_content":"AAAAAAAAA"}]},{"type":"redacted_thinking","data":"AAAA"}]`), texts: []string{"type web_search_tool_result content title T encrypted_content", "type redacted_thinking data"}, format: 8},
		"messages: long names":      {in: "messages", body: turns(`[{"type":"novelty","a long name":{"another":1,"type":"a long kind"}}]`), texts: []string{"type novelty a long name another 1 type a long kind"}, format: 4, parts: map[string]int64{"file": 1}},
		"messages: an added tool":   {in: "messages", body: turns(`[{"type":"tool_addition","tool":{"definition":{"name":"f"}}}]`), texts: []string{`{"type":"tool_addition","tool":{"definition":{"name":"f"}}}`}, format: 4},
		"messages: endless results": {in: "messages", body: turns(strings.Repeat(`[{"type":"tool_result","content":`, 9) + `"x"` + strings.Repeat(`}]`, 9)), texts: []string{`[{"type":"tool_result","content":"x"}]`}, format: 4},

		"count: without a bound": {in: "count", body: least["count"], texts: []string{"x"}, format: 4},

		"responses: a text":           {in: "responses", body: least["responses"], texts: []string{"x"}},
		"responses: no input":         {in: "responses", body: `{"model":"m","instructions":"be kind"}`, texts: []string{"be kind"}},
		"responses: instructions":     {in: "responses", body: with("responses", `"instructions":"be kind","tools":[{"type":"namespace"}],"text":{"format":{}}`), texts: []string{"x", "be kind", `[{"type":"namespace"}]`, `{"format":{}}`}},
		"responses: nothing written":  {in: "responses", body: with("responses", `"instructions":null,"conversation":null,"previous_response_id":null,"prompt":null,"background":null`), texts: []string{"x"}},
		"responses: background false": {in: "responses", body: with("responses", `"background":false`), texts: []string{"x"}},
		"responses: messages":         {in: "responses", body: items(`{"role":"user","content":"x"}`, `{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"y"},{"type":"refusal","refusal":"no"}]}`), texts: []string{"x", "y", "no"}, format: 8},
		"responses: a tool's call":    {in: "responses", body: items(`{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}`, `{"type":"function_call_output","call_id":"c","output":"ok"}`), texts: []string{"c", "f", "{}", "c", "ok"}, format: 8},
		"responses: a result's parts": {in: "responses", body: items(`{"type":"function_call_output","output":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"data:"}]}`), texts: []string{"a"}, format: 4, parts: map[string]int64{"image": 1}},
		"responses: one part":         {in: "responses", body: items(`{"role":"user","content":{"type":"input_image"}}`), format: 4, parts: map[string]int64{"image": 1}},
		"responses: a screenshot":     {in: "responses", body: items(`{"type":"computer_call_output","output":{"type":"computer_screenshot","image_url":"data:"}}`), format: 4, parts: map[string]int64{"image": 1}},
		"responses: a made image":     {in: "responses", body: items(`{"type":"image_generation_call","id":"ig_1","result":"AAAA"}`, `{"type":"input_file"}`), texts: []string{"type input_file"}, parts: map[string]int64{"image": 1, "file": 1}},
		"responses: reasoning":        {in: "responses", body: items(`{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}],"content":null,"encrypted_content":"AAAA"}`), texts: []string{`[{"type":"summary_text","text":"hm"}]`}, format: 5},
		"responses: other kinds":      {in: "responses", body: items(`{"role":"user","content":[{"type":"input_image"},{"type":"input_audio"},{"type":"input_file"},{"type":"novelty"},{},7]}`), texts: []string{"type input_file", "type novelty", "7"}, format: 4, parts: map[string]int64{"image": 1, "audio": 1, "file": 4}},

		"compact: a conversation": {in: "compact", body: items(`{"role":"user","content":"x"}`), texts: []string{"x"}, format: 4},

		"embeddings: a text":         {in: "embeddings", body: least["embeddings"], texts: []string{"x"}},
		"embeddings: texts":          {in: "embeddings", body: `{"model":"m","input":["x","y"]}`, texts: []string{"x", "y"}},
		"embeddings: tokens":         {in: "embeddings", body: `{"model":"m","input":[1,2,3]}`, format: 3},
		"embeddings: lists of those": {in: "embeddings", body: `{"model":"m","input":[[1,2,3],[4]]}`, format: 4},

		"chat: a prediction": {in: "chat", body: with("chat", `"prediction":{"type":"content","content":"y"},"documents":[{"text":"z"}]`), texts: []string{"user", "x", `{"type":"content","content":"y"}`, `[{"text":"z"}]`}, format: 4},
		"chat: no tools":     {in: "chat", body: with("chat", `"tools":null,"response_format":null`), texts: []string{"user", "x"}, format: 4},

		"responses: tools of the client": {in: "responses", body: with("responses", `"tools":[{"type":"shell","environment":{"type":"local"}},{"type":"web_search"},{"type":"namespace","tools":[{"type":"function","name":"model"}]}]`), texts: []string{"x", `[{"type":"shell","environment":{"type":"local"}},{"type":"web_search"},{"type":"namespace","tools":[{"type":"function","name":"model"}]}]`}},
		"responses: what a tool cited":   {in: "responses", body: items(`{"role":"assistant","content":[{"type":"output_text","text":"y","annotations":[{"type":"file_citation","file_id":"file-1"}]}]}`), texts: []string{"y"}, format: 4},

		"chat: one part": {in: "chat", body: `{"model":"m","messages":[{"content":{"type":"image_url"}}]}`, format: 4, parts: map[string]int64{"image": 1}},
	} {
		e, err := readEnvelope(spoken[test.in], []byte(test.body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(e.texts, test.texts) || e.formatTokens != test.format || !maps.Equal(e.modalities, test.parts) {
			t.Errorf("%s: got %q, %d, %v; want %q, %d, %v", name, e.texts, e.formatTokens, e.modalities, test.texts, test.format, test.parts)
		}
	}
}

// turns are a request of Messages with turns of these contents.
func turns(contents ...string) string {
	return `{"model":"m","max_tokens":9,"messages":[{"content":` + strings.Join(contents, `},{"content":`) + `}]}`
}

// items are a request of Responses with these items.
func items(items ...string) string { return `{"model":"m","input":[` + strings.Join(items, ",") + `]}` }

// TestProtocolsAreWhatTheyAre: how policy is told of each, whether it streams, and how much output a request has.
func TestProtocolsAreWhatTheyAre(t *testing.T) {
	for name, test := range map[string]struct {
		name          adapters.Protocol
		kind          string
		streams       bool
		bound         string // the member, and the output that a request of it has
		output, other int64  // without it
	}{
		"chat":       {adapters.OpenAIChat, engine.Generation, true, `"max_completion_tokens":7`, 7, -1},
		"responses":  {adapters.OpenAIResponses, engine.Generation, true, `"max_output_tokens":7`, 7, -1},
		"compact":    {adapters.OpenAICompact, engine.Compaction, false, `"max_output_tokens":7`, -1, -1},
		"embeddings": {adapters.OpenAIEmbeddings, engine.Embedding, false, `"max_tokens":7`, 0, 0},
		"messages":   {adapters.AnthropicMessages, engine.Generation, true, `"service_tier":"auto"`, 9, 9},
		"count":      {adapters.AnthropicMessages, engine.Generation, false, `"max_tokens":7`, 7, -1},
	} {
		p := spoken[name]
		if p.name != test.name || p.kind != test.kind {
			t.Errorf("%s: it is %s, %s", name, p.name, p.kind)
		}
		_, err := readEnvelope(p, []byte(with(name, `"stream":true`)))
		if _, whole := readEnvelope(p, []byte(with(name, `"stream":false`))); (err == nil) != test.streams || whole != nil {
			t.Errorf("%s: asked for a stream: %v, for none: %v", name, err, whole)
		}
		for body, want := range map[string]int64{with(name, test.bound): test.output, least[name]: test.other} {
			e, err := readEnvelope(p, []byte(body))
			if err != nil {
				t.Errorf("%s: %s: %v", name, body, err)
				continue
			}
			got := int64(-1)
			if e.outputTokensMax != nil {
				got = *e.outputTokensMax
			}
			if got != want {
				t.Errorf("%s: %s: the output is bound to %d, want %d", name, body, got, want)
			}
		}
	}
}

// TestProtocolsRefuse: what is no request of a protocol, and which words tell why.
func TestProtocolsRefuse(t *testing.T) {
	type body struct{ in, body, says string }
	bodies := []body{
		{"messages", `{"model":"m",` + messages + `}`, "max_tokens is missing"},
		{"messages", `{"model":"m","max_tokens":null,` + messages + `}`, "max_tokens must be"},
		{"messages", `{"model":"m","max_tokens":9}`, "messages is missing"},
		{"messages", with("messages", `"max_completion_tokens":9,"temperature":"hot"`), "temperature must be"},
		{"count", `{"model":"m"}`, "messages is missing"},
		{"responses", `{"input":"x"}`, "model is missing"},
		{"responses", `{"model":"m","input":{"role":"user"}}`, "input must be"},
		{"responses", `{"model":"m","input":null}`, "input must be"},
		{"responses", items(`"x"`), "each item"},
		{"responses", items(`{"role":"user","content":"x"}`, `[]`), "each item"},
		{"responses", with("responses", `"prompt":{"id":"pmpt_1"}`), "prompt must be"},
		{"responses", with("responses", `"background":true`), "background must be"},
		{"responses", with("responses", `"background":"no"`), "background must be"},
		{"responses", with("responses", `"temperature":[]`), "temperature must be"},
		{"compact", `{"model":"m"}`, "input is missing"},
		{"embeddings", `{"model":"m"}`, "input is missing"},
	}
	for tool, says := range map[string]string{
		`{"type":"mcp","server_url":"https://x"}`: "servers of its own choice", `{"type":"mcp_toolset"}`: "servers of its own choice",
		`{"type":"image_generation"}`: "what it costs", `{"type":"code_interpreter","container":"cntr_1"}`: "what it costs",
		`{"type":"code_execution_20250825"}`: "what it costs", `{"type":"advisor_20260301","model":"x"}`: "policy has not judged",
		`{"type":"novelty"}`: "nothing says what they do", `{"type":"customs"}`: "nothing says what they do",
		`{"type":"programmatic_tool_calling"}`: "nothing says what they do", `{"type":"custom","model":"x"}`: "must not name a model",
	} {
		for _, name := range []string{"chat", "responses", "compact", "messages", "count"} {
			bodies = append(bodies, body{name, with(name, `"tools":[{"name":"f"},`+tool+`]`), says}, body{name, with(name, `"tools":`+tool), says})
		}
	}
	for tool, says := range map[string]string{
		`{"type":"namespace","tools":[{"type":"function"},{"type":"mcp"}]}`: "servers of its own choice",
		`{"type":"shell"}`: "local environment", `{"type":"shell","environment":{"type":"container_auto"}}`: "local environment",
	} {
		for _, name := range []string{"responses", "compact"} {
			bodies = append(bodies, body{name, with(name, `"tools":[`+tool+`]`), says})
		}
		for _, name := range []string{"chat", "messages"} {
			bodies = append(bodies, body{name, with(name, `"tools":[`+tool+`]`), "nothing says what they do"})
		}
	}
	for _, kind := range []string{"web_search", "openrouter:web_search", "builtin_function"} {
		bodies = append(bodies, body{"chat", with("chat", `"tools":[{"type":"`+kind+`"}]`), "tools of type " + kind + " are not served"})
	}
	bodies = append(bodies,
		body{"chat", with("chat", `"web_search_options":{}`), "web_search_options must be left out"},
		body{"responses", with("responses", `"max_tool_calls":1.5`), "max_tool_calls must be"},
		body{"responses", with("responses", `"max_tool_calls":"1"`), "max_tool_calls must be"},
		body{"responses", items(`{"type":"additional_tools","role":"developer","tools":[{"type":"code_interpreter"}]}`), "what it costs"},
		body{"compact", items(`{"type":"tool_search_output","tools":[{"type":"namespace","tools":[{"type":"mcp"}]}]}`), "servers of its own choice"},
		body{"messages", with("messages", `"tools":[{"type":"web_search_20250305","max_uses":-1}]`), "max_uses must be"},
		body{"messages", with("messages", `"tools":[{"type":"web_fetch_20250910"}]`), "needs max_uses and max_content_tokens"},
		body{"messages", with("messages", `"tools":[{"type":"web_fetch_20250910","max_content_tokens":9}]`), "needs max_uses and max_content_tokens"},
		body{"messages", with("messages", `"tools":[{"type":"web_fetch_20250910","max_uses":99999,"max_content_tokens":9999999}]`), "at most"},
		body{"messages", turns(`[{"type":"tool_addition","tool":{"type":"tool_definition","definition":{"type":"code_execution_20260521"}}}]`), "what it costs"},
		body{"messages", turns(`[{"type":"tool_addition","tool":{"definition":{"type":"web_search_20250305"}}}]`), "needs max_uses"},
		body{"messages", `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x","Content":"y"}]}`, "must be written"},
		body{"messages", turns(`[{"type":"text","text":"x","Text":"y"}]`), "must be written"},
		body{"responses", items(`{"role":"user","content":"x","CONTENT":"y"}`), "must be written"},
		body{"messages", turns(`[{"type":"compaction","tool_changes":[{"definition":{"type":"mcp"}}]}]`), "servers of its own choice"},
		body{"messages", with("messages", `"thread":{"type":"new"}`), "thread must be left out"},
		body{"messages", with("messages", `"inference_geo":"us"`), "inference_geo must be left out"},
		body{"messages", with("messages", `"fallbacks":[{"model":"x"}]`), "fallbacks must be left out"},
		body{"chat", with("chat", `"chat_template_kwargs":{"chat_template":"x"}`), "must not hold a chat_template"},
		body{"chat", with("chat", `"modalities":["text","audio"]`), "modalities must be"},
		body{"chat", with("chat", `"modalities":"audio"`), "modalities must be"},
		body{"chat", with("chat", `"stream_options":{"Include_Usage":false}`), "must be written"},
		body{"chat", `{"model":"m","messages":[{"role":"user","content":"x","Content":[{"type":"image_url"}]}]}`, "must be written"},
		body{"embeddings", with("embeddings", `"messages":[]`), "messages must be left out"},
	)
	for _, name := range []string{"messages", "count"} {
		bodies = append(bodies,
			body{name, with(name, `"mcp_servers":[{"url":"https://x"}]`), "mcp_servers must be empty"},
			body{name, with(name, `"mcp_servers":{"url":"https://x"}`), "mcp_servers must be empty"},
			body{name, with(name, `"speed":7`), "speed must be"},
		)
	}
	for _, input := range []string{`null`, `7`, `true`, `{}`, `[]`, `[{}]`, `["x",null]`, `[[]]`, `[[1],[true]]`} {
		bodies = append(bodies, body{"embeddings", `{"model":"m","input":` + input + `}`, "input must be"})
	}
	for name, bound := range map[string]string{"chat": "max_tokens", "responses": "max_output_tokens", "compact": "max_output_tokens", "count": "max_tokens"} {
		for _, value := range []string{map[bool]string{true: "-7", false: "0"}[name == "count"], "-1", "1.5", "1e3", `"9"`, "true", "[]", "2147483649", "9007199254740993"} {
			bodies = append(bodies, body{name, with(name, fmt.Sprintf("%q:%s", bound, value)), bound + " must be"})
		}
	}
	for _, value := range []string{"-1", "1.5", "1e3", `"9"`, "true", "[]", "2147483649"} {
		bodies = append(bodies, body{"messages", strings.Replace(least["messages"], ":9", ":"+value, 1), "max_tokens must be"})
	}
	for name := range spoken {
		content := map[bool]string{true: `"input":"x"`, false: messages}[strings.Contains(least[name], "input")]
		bodies = append(bodies,
			body{name, strings.Replace(least[name], `"m"`, "7", 1), "id of a published model"},
			body{name, with(name, `"stream":"yes"`), "stream must be"},
			body{name, with(name, `"service_tier":{}`), "service_tier must be"},
			body{name, with(name, content), "is given twice"},
			body{name, with(name, `"metadata":{"user_id":"a","user_id":"b"}`), "is given twice in one object"},
			body{name, with(name, `"MODEL":"n"`), "is given twice"},
			body{name, with(name, `"x":`+strings.Repeat("[", 1000)+strings.Repeat("]", 1000)), "nested more than"},
			body{name, with(name, `"x":`), "not valid JSON"},
		)
		if strings.Contains(least[name], "messages") {
			bodies = append(bodies, body{name, strings.Replace(least[name], messages, `"messages":[]`, 1), "messages must be"},
				body{name, strings.Replace(least[name], messages, `"messages":["x"]`, 1), "each message must be"})
		}
		for _, key := range []string{"Max_Output_Tokens", "Input", "Instructions", "SYSTEM", "Previous_Response_ID", "Conversation", "Prompt", "Background", "Response_Format"} {
			if !strings.Contains(least[name], strings.ToLower(key)) {
				bodies = append(bodies, body{name, with(name, fmt.Sprintf("%q:null", key)), "must be written"})
			}
		}
	}
	for _, test := range bodies {
		_, err := readEnvelope(spoken[test.in], []byte(test.body))
		var refusal answerError
		if !errors.As(err, &refusal) || refusal.status != http.StatusBadRequest || !strings.Contains(refusal.message, test.says) {
			t.Errorf("%s: %.100s: got %v, want a 400 that says %q", test.in, test.body, err, test.says)
		}
	}
}

// TestSearches: how many web searches a request allows its provider, which a hold covers and the provider is told.
func TestSearches(t *testing.T) {
	for body, want := range map[[2]string]int64{
		{"messages", `"tools":[{"name":"f"}]`}:                                                         0,
		{"messages", `"tools":[{"type":"web_search_20250305"}]`}:                                       searchesMax,
		{"messages", `"tools":[{"type":"web_search_20250305","max_uses":null}]`}:                       searchesMax,
		{"messages", `"tools":[{"max_uses":3,"type":"web_search_20250305"}]`}:                          3,
		{"messages", `"tools":[{"type":"web_search_20250305","max_uses":0},{"type":"bash_20250124"}]`}: 0,
		{"messages", `"tools":{"type":"web_search_20250305","max_uses":2}`}:                            2,
		{"messages", `"tools":[{"type":"web_search_20250305","max_uses":2},{"type":"web_search_x"}]`}:  2 + searchesMax,
		{"messages", `"tools":[{"type":"web_search_20250305"}],"max_tool_calls":1`}:                    searchesMax,
		{"responses", `"tools":[{"type":"function"}],"max_tool_calls":7`}:                              0,
		{"responses", `"tools":[{"type":"web_search"}]`}:                                               searchesMax,
		{"responses", `"tools":[{"type":"web_search","max_uses":0}]`}:                                  searchesMax,
		{"responses", `"tools":[{"type":"web_search_preview"}],"max_tool_calls":null`}:                 searchesMax,
		{"responses", `"max_tool_calls":40,"tools":[{"type":"web_search"}]`}:                           40,
		{"responses", `"max_tool_calls":0,"tools":[{"type":"web_search"}]`}:                            0,
		{"responses", `"tools":[{"type":"namespace","tools":[{"type":"web_search"}]}]`}:                searchesMax,
		{"responses", `"input":[{"type":"additional_tools","tools":[{"type":"web_search"}]}]`}:         searchesMax,
		{"chat", `"tools":[{"type":"function"},{"type":"custom"},{"name":"f"}]`}:                       0,
		{"chat", `"web_search_options":null`}:                                                          0,
	} {
		given := with(body[0], body[1])
		if strings.Contains(body[1], `"input"`) {
			given = `{"model":"m",` + body[1] + `}`
		}
		if e, err := readEnvelope(spoken[body[0]], []byte(given)); err != nil || e.searches != want {
			t.Errorf("%s: %s: got %+v, %v, want %d", body[0], body[1], e, err, want)
		}
	}
	// What a provider is told: of each tool, or of all, and nothing where the request says it.
	for body, want := range map[[2]string]int64{
		{"messages", `"tools":[{"type":"web_search_20250305"},{"type":"web_search_x","max_uses":100}]`}: searchesMax,
		{"messages", `"tools":[{"type":"web_search_20250305","max_uses":100}]`}:                         0,
		{"responses", `"tools":[{"type":"web_search"},{"type":"web_search_preview"}]`}:                  2 * searchesMax,
		{"responses", `"tools":[{"type":"web_search"}],"max_tool_calls":3`}:                             0,
		{"responses", `"tools":[{"type":"function"}]`}:                                                  0,
	} {
		if e, err := readEnvelope(spoken[body[0]], []byte(with(body[0], body[1]))); err != nil || e.searchesTold() != want {
			t.Errorf("%s: %s: %v, want %d told", body[0], body[1], err, want)
		}
	}
}

// TestWhatAProviderReadsBesides the prompt, of which a context of 100,000 tokens holds 60,000 here.
func TestWhatAProviderReadsBesides(t *testing.T) {
	most := int64(100_000)
	for members, want := range map[string]int64{
		`"tools":[{"name":"f"}]`:                                                                                              0,
		`"tools":[{"type":"web_search_20250305","max_uses":2}]`:                                                               2 * searchTokens,
		`"tools":[{"type":"web_search_20250305","max_uses":90}]`:                                                              40_000,
		`"tools":[{"type":"web_fetch_20250910","max_uses":3,"max_content_tokens":100}]`:                                       300,
		`"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]}`:                                                0,
		`"context_management":{"edits":[{"type":"compact_20260112"}]}`:                                                        60_000,
		`"compaction":{"instructions":"x"}`:                                                                                   60_000,
		`"compaction":{},"tools":[{"type":"web_fetch_20250910","max_uses":1,"max_content_tokens":9},{"type":"web_search_x"}]`: 100_000,
	} {
		e, err := readEnvelope(messagesProtocol, []byte(with("messages", members)))
		if err != nil {
			t.Errorf("%s: %v", members, err)
		} else if got := e.addedInput(60_000, &most); got != want {
			t.Errorf("%s: got %d, want %d", members, got, want)
		}
	}
}

// TestWhatAProviderKeepsIsNobodysHere: a response, a conversation and an item are kept for an account, which many users share.
func TestWhatAProviderKeepsIsNobodysHere(t *testing.T) {
	for _, body := range []string{
		with("responses", `"previous_response_id":"resp_1"`), with("responses", `"previous_response_id":7`),
		with("responses", `"conversation":"conv_1"`), with("responses", `"conversation":{"id":"conv_1"}`),
		items(`{"role":"user","content":"x"}`, `{"type":"item_reference","id":"msg_1"}`), items(`{"id":"msg_1"}`), items(`{"type":null,"id":"msg_1"}`),
		items(`{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"x"}]}`), items(`{"type":"image_generation_call","id":"ig_1","result":null}`),
		items(`{"type":"message","role":"assistant","id":"msg_1","status":"completed","content":null}`), items(`{"type":"compaction","id":"cmp_1"}`),
		items(`{"type":"web_search_call","id":"ws_1","status":"completed"}`),
	} {
		for _, name := range []string{"responses", "compact"} {
			_, err := readEnvelope(spoken[name], []byte(body))
			var refusal answerError
			if !errors.As(err, &refusal) || refusal.status != http.StatusNotFound || refusal.code != "previous_response_not_found" || !refusal.noRetry {
				t.Errorf("%s: %s: got %v", name, body, err)
			}
		}
	}
}

// TestWhatAnAccountKeepsIsNobodysHere: so is a file, a store and a container.
func TestWhatAnAccountKeepsIsNobodysHere(t *testing.T) {
	for body, in := range map[string]string{
		`{"model":"m","messages":[{"content":[{"type":"file","file":{"file_id":"file-1"}}]}]}`:                     "chat",
		items(`{"role":"user","content":[{"type":"input_file","file_id":"file-1"}]}`):                              "responses",
		items(`{"role":"user","content":{"type":"input_image","file_id":"file-1"}}`):                               "responses",
		items(`{"type":"input_image","file_id":"file-1"}`):                                                         "responses",
		items(`{"type":"computer_call_output","output":{"type":"computer_screenshot","file_id":"file-1"}}`):        "compact",
		items(`{"role":"user","content":[{"type":"novelty","file_id":"file-1"}]}`):                                 "responses",
		with("responses", `"tools":[{"type":"file_search","vector_store_ids":["vs_1"]}]`):                          "responses",
		with("responses", `"tools":[{"type":"custom","vector_store_ids":["vs_1"]}]`):                               "responses",
		`{"model":"m","messages":[{"role":"assistant","audio":{"id":"audio_1"}}]}`:                                 "chat",
		with("messages", `"container":"container_1"`):                                                              "messages",
		turns(`[{"type":"document","source":{"type":"file","file_id":"file_1"}}]`):                                 "messages",
		turns(`[{"type":"document","source":{"type":"content","content":[{"source":{"file_id":"file_1"}}]}}]`):     "messages",
		turns(`[{"type":"tool_result","content":[{"type":"image","source":{"type":"file","file_id":"file_1"}}]}]`): "count",
		turns(`[{"type":"container_upload","file_id":"file_1"}]`):                                                  "messages",
	} {
		_, err := readEnvelope(spoken[in], []byte(body))
		var refusal answerError
		if !errors.As(err, &refusal) || refusal.status != http.StatusNotFound || refusal.code != "file_not_found" || !refusal.noRetry {
			t.Errorf("%s: %s: got %v", in, body, err)
		}
	}
}

// TestSessions: who says to which conversation a request belongs, the surest first, and that no two users share one.
func TestSessions(t *testing.T) {
	for name, test := range map[string]struct {
		in, members string
		header      map[string]string
		want        string
	}{
		"nobody":                  {in: "chat"},
		"a cache's key":           {in: "chat", members: `"prompt_cache_key":"k"`, want: "k"},
		"a cache's key in others": {in: "responses", members: `"prompt_cache_key":"k"`, want: "k"},
		"a user's id":             {in: "messages", members: `"metadata":{"user_id":"u"}`, want: "u"},
		"no user's id":            {in: "messages", members: `"metadata":{"user_id":null}`},
		"no metadata":             {in: "messages", members: `"metadata":null`},
		"no text":                 {in: "responses", members: `"prompt_cache_key":7`},
		"metadata of others":      {in: "responses", members: `"metadata":{"user_id":"u"}`},
		"OpenCode":                {in: "chat", members: `"prompt_cache_key":"k"`, header: map[string]string{"x-session-affinity": "a", "x-session-id": "s"}, want: "a"},
		"OpenCode's other one":    {in: "chat", header: map[string]string{"x-session-id": "s"}, want: "s"},
		"Codex":                   {in: "responses", members: `"prompt_cache_key":"k"`, header: map[string]string{"session-id": "s"}, want: "s"},
		"Claude Code":             {in: "messages", members: `"metadata":{"user_id":"u"}`, header: map[string]string{"x-claude-code-session-id": "c"}, want: "c"},
	} {
		body := least[test.in]
		if test.members != "" {
			body = with(test.in, test.members)
		}
		e, err := readEnvelope(spoken[test.in], []byte(body))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		for header, value := range test.header {
			r.Header.Set(header, value)
		}
		alices, bobs := session(r, "alice", e), session(r, "bob", e)
		if (alices == "") != (test.want == "") || alices != "" && (alices == bobs || !strings.HasSuffix(alices, "\n"+test.want)) {
			t.Errorf("%s: got %q and %q, want %q", name, alices, bobs, test.want)
		}
	}
}
