package anthropic

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"regent/adapters"
)

func problem(kind, message string) string {
	return fmt.Sprintf(`{"type":"error","error":{"type":%q,"message":%q},"request_id":"req_1"}`, kind, message)
}

// TestRefusals: the status counts first; a 400 and a 403 are looked into, as they may be about the account or the content.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		status    int
		body      string
		want      adapters.Reason
		elsewhere bool
	}{
		{400, problem("invalid_request_error", "messages: canary"), adapters.InvalidRequest, false},
		{400, problem("invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum canary"), adapters.ContextLength, false},
		{400, problem("invalid_request_error", "Prompt is too long"), adapters.ContextLength, false},
		{400, problem("invalid_request_error", "input length and `max_tokens` exceed context limit: 198000 + 8192 > 200000"), adapters.ContextLength, false},
		{400, problem("invalid_request_error", "Output blocked by content filtering policy"), adapters.ContentPolicy, false},
		{400, problem("invalid_request_error", "Your credit balance is too low to access the API. canary"), adapters.Credential, true},
		{400, problem("invalid_request_error", "You have reached your specified API usage limits."), adapters.Credential, true},
		{400, problem("invalid_request_error", "tools.0.name: 'your credit balance is too low' is no name"), adapters.InvalidRequest, false},
		{400, problem("billing_error", "canary"), adapters.Credential, true},
		{400, problem("not_found_error", "model: canary"), adapters.ModelMissing, true},
		{400, `{"error":{"message":"prompt is too long"}}`, adapters.ContextLength, false},
		{400, `<html>canary`, adapters.InvalidRequest, false},
		{400, ``, adapters.InvalidRequest, false},
		{401, problem("authentication_error", "invalid x-api-key: flagged"), adapters.Credential, true},
		{402, problem("billing_error", "canary"), adapters.Credential, true},
		{403, problem("permission_error", "canary"), adapters.Credential, true},
		{403, problem("permission_error", "the prompt was flagged: canary"), adapters.ContentPolicy, false},
		{404, problem("not_found_error", "model: canary"), adapters.ModelMissing, true},
		{408, problem("timeout_error", ""), adapters.Overloaded, true},
		{409, problem("conflict_error", ""), adapters.Overloaded, true},
		{413, problem("request_too_large", "Request exceeds the maximum size"), adapters.InvalidRequest, false},
		{422, ``, adapters.InvalidRequest, false},
		{429, problem("rate_limit_error", "canary"), adapters.RateLimited, true},
		{500, problem("api_error", "canary"), adapters.UpstreamError, true},
		{500, problem("invalid_request_error", "prompt is too long"), adapters.UpstreamError, true},
		{503, ``, adapters.Overloaded, true},
		{504, problem("timeout_error", ""), adapters.UpstreamError, true},
		{529, problem("overloaded_error", "Overloaded"), adapters.Overloaded, true},
		{302, ``, adapters.UpstreamError, true},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.body)
		}))
		_, err := newProvider(t, server.URL, "").Send(t.Context(), adapters.Request{Body: []byte(`{}`)})
		server.Close()
		failure, _ := err.(*adapters.Failure)
		if failure == nil || failure.Reason != test.want || failure.Elsewhere() != test.elsewhere || failure.Status != test.status || failure.RetryAfter != 3*time.Second {
			t.Errorf("%d %s: got %+v, want %s", test.status, test.body, err, test.want)
		} else if strings.Contains(failure.Error()+failure.Code, "canary") {
			t.Errorf("%d %s: the prompt is told: %v", test.status, test.body, failure)
		}
	}
}

// TestErrorsInsideASuccess: what comes too late for a status says what it would have said, and the rest is a broken stream.
func TestErrorsInsideASuccess(t *testing.T) {
	for event, want := range map[string]struct {
		reason adapters.Reason
		code   string
	}{
		"event: error\ndata: " + problem("overloaded_error", "secret"):                  {adapters.Overloaded, "overloaded_error"},
		"data: " + problem("rate_limit_error", "secret"):                                {adapters.RateLimited, "rate_limit_error"},
		"data: " + problem("invalid_request_error", "prompt is too long: secret"):       {adapters.ContextLength, "invalid_request_error"},
		"data: " + problem("invalid_request_error", "secret"):                           {adapters.InvalidRequest, "invalid_request_error"},
		"data: " + problem("authentication_error", "secret"):                            {adapters.Credential, "authentication_error"},
		"data: " + problem("permission_error", "secret"):                                {adapters.Credential, "permission_error"},
		"data: " + problem("permission_error", "flagged: secret"):                       {adapters.ContentPolicy, "permission_error"},
		"data: " + problem("not_found_error", "secret"):                                 {adapters.ModelMissing, "not_found_error"},
		"data: " + problem("api_error", "secret"):                                       {adapters.StreamBroken, "api_error"},
		"data: " + problem("timeout_error", "secret"):                                   {adapters.StreamBroken, "timeout_error"},
		"data: " + problem("secret", "secret"):                                          {adapters.StreamBroken, ""},
		`data: {"error":{"message":"secret"}}`:                                          {adapters.StreamBroken, ""},
		`data: {"error":"secret"}`:                                                      {adapters.StreamBroken, ""},
		`data: {"type":"error"}`:                                                        {adapters.StreamBroken, ""},
		"event: error\ndata: {\"message\":\"secret\"}":                                  {adapters.StreamBroken, ""},
		"event: error\ndata: secret":                                                    {adapters.StreamBroken, ""},
		"event: message_stop\ndata: {\"type\":\"message_stop\",\"error\":{\"type\":1}}": {adapters.StreamBroken, ""},
	} {
		got := relayed(t, strings.NewReader(event+"\n\ndata: {\"type\":\"message_stop\"}\n\n"))
		failure, _ := got.err.(*adapters.Failure)
		if failure == nil || failure.Reason != want.reason || failure.Code != want.code || failure.Status != 200 || !failure.Accepted {
			t.Errorf("%s: got %+v, want %+v", event, got.err, want)
		} else if strings.Contains(failure.Error()+failure.Code+got.text, "secret") {
			t.Errorf("%s: its text is told: %v, %q", event, failure, got.text)
		}
	}
}
