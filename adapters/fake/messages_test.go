package fake_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"regent/adapters/fake"
)

// askMessages posts a request to an endpoint of Anthropic's protocol and returns all of the answer.
func askMessages(server *fake.Server, endpoint, body string) (text string, response *http.Response, err error) {
	response, err = http.Post(server.URL()+endpoint, "application/json", strings.NewReader(body))
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = response.Body.Close() }()
	all, err := io.ReadAll(response.Body)
	return string(all), response, err
}

const (
	messagesStream = `{"model":"scripted","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"12345678"}]}`
	messagesWhole  = `{"model":"scripted","max_tokens":9,"messages":[{"role":"user","content":"12345678"}]}`
	messagesTools  = `{"model":"scripted","stream":true,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"run","input_schema":{"properties":{"n":{"type":"integer"}}}}]}`
	messagesResult = `{"model":"scripted","messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"x"}]}],"tools":[{"name":"run"}]}`
)

// TestMessages: each word of a script means the same in both protocols.
func TestMessages(t *testing.T) {
	server := start(t, `{}`)
	const used = `"usage":{"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"input_tokens":3,"output_tokens":`
	for _, test := range []struct {
		script, body string
		contains     []string
		lacks        []string
		broken       bool
	}{
		{`{"text": ["a", "b"]}`, messagesStream, []string{"event: message_start\n", used + "1}", `"text":"a"`, "event: ping\n", `"text":"b"`, used + "2}", `"stop_reason":"end_turn"`, "event: message_stop\n"}, nil, false},
		{`{"text": ["a", "b"]}`, messagesWhole, []string{`"text":"ab"`, used + "2}", `"stop_reason":"end_turn"`}, []string{"event:"}, false},
		{`{"text": ["a"], "split": 3}`, messagesStream, []string{`"text":"a"`, "event: message_stop\n"}, nil, false},
		{`{"omit_usage": true}`, messagesStream, []string{"message_stop"}, []string{"usage"}, false},
		{`{"omit_usage": true}`, messagesWhole, []string{"content"}, []string{"usage"}, false},
		{`{"omit_done": true}`, messagesStream, []string{"message_delta"}, []string{"message_stop"}, false},
		{`{"usage": {"odd":true}}`, messagesStream, []string{`"usage":{"odd":true}`}, nil, false},
		{`{"service_tier": "batch"}`, messagesWhole, []string{`"service_tier":"batch"`}, nil, false},
		{`{"text": ["a", "b"], "error_after": 1}`, messagesStream, []string{`"text":"a"`, "event: error\n", `"api_error"`}, []string{`"text":"b"`, "message_stop"}, true},
		{`{"break": "before_header"}`, messagesStream, nil, nil, true},
		{`{"break": "before_first_byte"}`, messagesStream, nil, []string{"data"}, true},
		{`{"break": "after_opening"}`, messagesStream, []string{`message_start`}, []string{`content_block_start`}, true},
		{`{"break": "after_first_delta"}`, messagesStream, []string{`"text":"This"`}, []string{`"text":" is"`}, true},
		{`{"break": "before_first_byte"}`, messagesWhole, nil, []string{"{"}, true},
		{`{"break": "after_opening"}`, messagesWhole, []string{"{"}, []string{"}\n"}, true},
		{`{"break": "after_first_delta"}`, messagesTools, []string{`"name":"run"`}, []string{"partial_json"}, true},
		{`{"break": "after_usage"}`, messagesStream, []string{`message_delta`, used + "5}"}, []string{`message_stop`}, true},
		{`{"tool_call": true}`, messagesStream, []string{`"name":"tool"`, `"partial_json":"{}"`, `"stop_reason":"tool_use"`}, []string{"text_delta"}, false},
		{`{"tool_call": true}`, messagesResult, []string{`"name":"run"`, `"stop_reason":"tool_use"`}, nil, false},
		{`{"status": 418}`, messagesStream, []string{`"type":"error"`, `"type":"invalid_request_error"`}, []string{"12345678"}, false},
		{`{"status": 529}`, messagesStream, []string{`"type":"overloaded_error"`}, nil, false},
		{`{"status": 502}`, messagesStream, []string{`"type":"api_error"`}, nil, false},
		{`{"status": 400, "code": "billing_error"}`, messagesStream, []string{`"type":"billing_error"`}, nil, false},
		{`{"status": 400, "code": "context_length_exceeded", "echo": true}`, messagesStream, []string{`"message":"prompt is too long: 200001 tokens \u003e 200000 maximum; `, "12345678"}, nil, false},
		{`{}`, messagesTools, []string{`"type":"tool_use"`, `"name":"run"`, `"partial_json":"{\"n\""`, `"partial_json":":1}"`, `"stop_reason":"tool_use"`}, []string{"text_delta"}, false},
		{`{}`, strings.Replace(messagesTools, `"stream":true,`, "", 1), []string{`"input":{"n":1}`, `"stop_reason":"tool_use"`}, nil, false},
		{`{}`, messagesResult, []string{`"type":"text"`, `"stop_reason":"end_turn"`}, []string{"tool_use"}, false},
		{`{"tool_call": true}`, messagesResult, []string{`"type":"tool_use"`, `"name":"run"`}, []string{`"type":"text"`}, false},
		{`{"tool_call": true}`, messagesStream, []string{`"name":"tool"`, `"partial_json":"{}"`, used + "2}", `"stop_reason":"tool_use"`, "message_stop"}, []string{"built-in"}, false},
		{`{"break": "after_usage"}`, messagesStream, []string{`"stop_reason":"end_turn"`, used + "5}"}, []string{"message_stop"}, true},
	} {
		set(t, server, test.script)
		text, _, err := askMessages(server, "/messages", test.body)
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

// TestMessagesAreWellFormed: each event's data name their type as its event line does, and blocks begin and end.
func TestMessagesAreWellFormed(t *testing.T) {
	server := start(t, `{}`)
	for body, want := range map[string]string{
		messagesStream: "message_start content_block_start ping" + strings.Repeat(" content_block_delta", 5) + " content_block_stop message_delta message_stop",
		messagesTools:  "message_start ping content_block_start" + strings.Repeat(" content_block_delta", 2) + " content_block_stop message_delta message_stop",
	} {
		text, response, err := askMessages(server, "/messages", body)
		if err != nil || response.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%v, %v", response, err)
		}
		var names []string
		for event := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
			name, data, _ := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
			var document struct{ Type string }
			if err := json.Unmarshal([]byte(data), &document); err != nil || document.Type != name {
				t.Errorf("%q: %v", event, err)
			}
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestTokensAreCounted(t *testing.T) {
	server := start(t, `[{}, {"status": 529}]`)
	if text, _, err := askMessages(server, "/messages/count_tokens", messagesStream); err != nil || text != `{"input_tokens":3}` {
		t.Errorf("got %s, %v", text, err)
	}
	if text, response, err := askMessages(server, "/messages/count_tokens", messagesWhole); err != nil || response.StatusCode != 529 {
		t.Errorf("got %s, %v", text, err)
	}
	if text, response, err := askMessages(server, "/messages", `{"model":"other"}`); err != nil || response.StatusCode != 404 || !strings.Contains(text, "not_found_error") {
		t.Errorf("without a script: %s, %v", text, err)
	}
	if text, response, err := askMessages(server, "/messages", `{"model":`); err != nil || response.StatusCode != 400 || !strings.Contains(text, "invalid_request_error") {
		t.Errorf("half a body: %s, %v", text, err)
	}
}

// TestTheListOfModelsInMessages: whoever names a version of Anthropic's protocol gets its list.
func TestTheListOfModelsInMessages(t *testing.T) {
	server := start(t, `{}`)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL()+"/models", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Anthropic-Version", "2023-06-01")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var list struct {
		Data    []struct{ Type, ID string }
		HasMore *bool  `json:"has_more"`
		FirstID string `json:"first_id"`
		LastID  string `json:"last_id"`
	}
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil || len(list.Data) != 3 || list.HasMore == nil || list.Data[0].ID != list.FirstID || list.Data[2].ID != list.LastID {
		t.Errorf("got %+v, %v", list, err)
	}
}
