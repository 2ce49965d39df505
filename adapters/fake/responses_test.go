package fake_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"regent/adapters/fake"
)

const (
	responsesStream = `{"model":"scripted","stream":true,"input":"12345678"}`
	responsesWhole  = `{"model":"scripted","input":"12345678"}`
	responsesTools  = `{"model":"scripted","stream":true,"input":"x","tools":[{"type":"web_search"},{"type":"function","name":"run","parameters":{"properties":{"n":{"type":"integer"}}}}]}`
	responsesResult = `{"model":"scripted","input":[{"type":"function_call_output","call_id":"1","output":"x"}],"tools":[{"type":"function","name":"run"}]}`
)

// TestResponses: each word of a script means the same in all protocols.
func TestResponses(t *testing.T) {
	server := start(t, `{}`)
	const used = `"usage":{"input_tokens":3,"input_tokens_details":{"cached_tokens":0},"output_tokens":2,`
	for _, test := range []struct {
		script, body string
		contains     []string
		lacks        []string
		broken       bool
	}{
		{`{"text": ["a", "b"]}`, responsesStream, []string{"event: response.created\n", "event: response.output_item.added\n", `"delta":"a"`, `"delta":"b"`, `"text":"ab"`, "event: response.output_item.done\n", used, "event: response.completed\n"}, nil, false},
		{`{"text": ["a", "b"]}`, responsesWhole, []string{`"text":"ab"`, used, `"status":"completed"`}, []string{"event:"}, false},
		{`{"text": ["a"], "split": 3}`, responsesStream, []string{`"delta":"a"`, "event: response.completed\n"}, nil, false},
		{`{"omit_usage": true}`, responsesStream, []string{"response.completed"}, []string{"input_tokens"}, false},
		{`{"omit_usage": true}`, responsesWhole, []string{"output"}, []string{"usage"}, false},
		{`{"omit_done": true}`, responsesStream, []string{"response.output_item.done"}, []string{"response.completed"}, false},
		{`{"usage": {"odd":true}}`, responsesStream, []string{`"usage":{"odd":true}`}, nil, false},
		{`{"service_tier": "flex"}`, responsesWhole, []string{`"service_tier":"flex"`}, nil, false},
		{`{"text": ["a", "b"], "error_after": 1}`, responsesStream, []string{`"delta":"a"`, "event: response.failed\n", `"server_error"`}, []string{`"delta":"b"`, "response.completed"}, true},
		{`{"break": "before_header"}`, responsesStream, nil, nil, true},
		{`{"break": "before_first_byte"}`, responsesStream, nil, []string{"data"}, true},
		{`{"break": "after_opening"}`, responsesStream, []string{"response.in_progress"}, []string{"output_item"}, true},
		{`{"break": "after_first_delta"}`, responsesStream, []string{`"delta":"This"`}, []string{`"delta":" is"`}, true},
		{`{"break": "after_usage"}`, responsesStream, []string{"response.completed", "input_tokens"}, nil, true},
		{`{"break": "before_first_byte"}`, responsesWhole, nil, []string{"{"}, true},
		{`{"break": "after_opening"}`, responsesWhole, []string{"{"}, []string{"}\n"}, true},
		{`{"break": "after_first_delta"}`, responsesTools, []string{`"name":"run"`}, []string{"function_call_arguments"}, true},
		{`{"status": 418, "code": "tea"}`, responsesStream, []string{`"code":"tea"`}, []string{"12345678"}, false},
		{`{"status": 400, "echo": true}`, responsesStream, []string{"12345678"}, nil, false},
		{`{}`, responsesTools, []string{`"type":"function_call"`, `"name":"run"`, `"delta":"{\"n\""`, `"delta":":1}"`, `"arguments":"{\"n\":1}"`}, []string{"output_text"}, false},
		{`{}`, strings.Replace(responsesTools, `"stream":true,`, "", 1), []string{`"arguments":"{\"n\":1}"`, `"call_id"`}, nil, false},
		{`{}`, responsesResult, []string{`"type":"message"`}, []string{"function_call"}, false},
		{`{"tool_call": true}`, responsesResult, []string{`"name":"run"`}, []string{`"type":"message"`}, false},
		{`{"tool_call": true}`, responsesStream, []string{`"name":"tool"`, `"arguments":"{}"`, "response.completed"}, []string{"built-in"}, false},
	} {
		set(t, server, test.script)
		text, _, err := askMessages(server, "/responses", test.body)
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
	}
}

// TestResponsesAreNumbered: each event has the number after the one before.
func TestResponsesAreNumbered(t *testing.T) {
	server := start(t, `{}`)
	text, _, err := askMessages(server, "/responses", responsesStream)
	if err != nil {
		t.Fatal(err)
	}
	events := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
	if len(events) < 10 {
		t.Fatalf("only %d events", len(events))
	}
	for i, event := range events {
		name, data, _ := strings.Cut(event, "\n")
		var document struct {
			Type   string
			Number int `json:"sequence_number"`
		}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(data, "data: ")), &document); err != nil || document.Number != i || name != "event: "+document.Type {
			t.Errorf("%q, %v, want number %d", event, err, i)
		}
	}
}

// TestWholeProtocols are those whose answers are no streams, whatever is asked for.
func TestWholeProtocols(t *testing.T) {
	server := start(t, `{}`)
	for _, test := range []struct{ script, endpoint, body, want string }{
		{`{"text": ["a", "b"]}`, "/responses/compact", responsesStream, `"output":[{"encrypted_content":"ab","id":"cmp_fake","type":"compaction"}]`},
		{`{}`, "/responses/compact", responsesWhole, `"usage":{"input_tokens":3,`},
		{`{}`, "/embeddings", `{"model":"scripted","input":"12345678"}`, `"data":[{"embedding":[0.25,-0.5,1],"index":0,"object":"embedding"}],"model":"scripted","object":"list","usage":{"prompt_tokens":3,"total_tokens":3}`},
		{`{}`, "/embeddings", `{"model":"scripted","input":["1","2"],"encoding_format":"base64"}`, `"data":[{"embedding":"AACAPgAAAL8AAIA/","index":0,"object":"embedding"},{"embedding":"AACAPgAAAL8AAIA/","index":1,"object":"embedding"}]`},
		{`{}`, "/embeddings", `{"model":"scripted","input":[1,2,3]}`, `"data":[{"embedding":[0.25,-0.5,1],"index":0,"object":"embedding"}],`},
		{`{}`, "/embeddings", `{"model":"scripted","input":[[1,2],[3]]}`, `"index":1`},
		{`{"omit_usage": true}`, "/embeddings", `{"model":"scripted","input":"x"}`, `"model":"scripted","object":"list"}`},
		{`{"usage": 7}`, "/embeddings", `{"model":"scripted","input":"x"}`, `"usage":7`},
		{`{"status": 400, "code": "tea"}`, "/embeddings", `{"model":"scripted","input":"x"}`, `"code":"tea"`},
		{`{"status": 400, "code": "tea"}`, "/responses/compact", responsesWhole, `"code":"tea"`},
	} {
		set(t, server, test.script)
		if text, _, err := askMessages(server, test.endpoint, test.body); err != nil || !strings.Contains(text, test.want) {
			t.Errorf("%s, %s: got %s, %v", test.script, test.endpoint, text, err)
		}
	}
	server.SetScript(model, fake.Script{})
	for _, endpoint := range []string{"/responses", "/responses/compact", "/embeddings"} {
		if _, response, err := askMessages(server, endpoint, responsesWhole); err != nil || response.StatusCode != http.StatusNotFound {
			t.Errorf("%s without a script: %v, %v", endpoint, response, err)
		}
	}
}
