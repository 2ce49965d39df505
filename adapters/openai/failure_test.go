package openai

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"regent/adapters"
)

// TestRefusals: a 403 that is about the prompt is told from one that is about the credential, and what is no known status is the
// request's own fault.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		status    int
		body      string
		want      adapters.Reason
		elsewhere bool
	}{
		{403, `{"error":{"code":403,"message":"Input was Flagged: canary","metadata":{"reasons":["violence"],"flagged_input":"canary"}}}`, adapters.ContentPolicy, false},
		{403, `{"error":{"code":403,"message":"no","metadata":{"flagged_input":""}}}`, adapters.ContentPolicy, false},
		{403, `{"error":{"message":"the input requires moderation on x"}}`, adapters.ContentPolicy, false},
		{403, `{"error":{"type":"content_policy_violation","message":"no"}}`, adapters.ContentPolicy, false},
		{403, `{"error":{"code":"content-filter"}}`, adapters.ContentPolicy, false},
		{403, `{"error":{"code":"insufficient_permissions","message":"this key may not use the model"}}`, adapters.Credential, true},
		{403, `{"error":null}`, adapters.Credential, true},
		{403, `<html>`, adapters.Credential, true},
		{403, ``, adapters.Credential, true},
		{401, `{"error":{"message":"flagged"}}`, adapters.Credential, true},
		{404, `{"error":{"message":"flagged"}}`, adapters.ModelMissing, true},
		{404, `{"error":{"code":"previous_response_not_found"}}`, adapters.InvalidRequest, false},
		{404, `{"error":{"code":"model_not_found"}}`, adapters.ModelMissing, true},
		{400, `{"error":{"code":"invalid_encrypted_content"}}`, adapters.InvalidRequest, false},
		{400, `{"error":{"code":"model_not_found"}}`, adapters.ModelMissing, true},
		{429, `{"error":{"code":"insufficient_quota"}}`, adapters.RateLimited, true},
		{405, ``, adapters.InvalidRequest, false},
		{413, ``, adapters.InvalidRequest, false},
		{415, ``, adapters.InvalidRequest, false},
		{418, ``, adapters.InvalidRequest, false},
		{422, ``, adapters.InvalidRequest, false},
		{451, ``, adapters.InvalidRequest, false},
		{499, ``, adapters.InvalidRequest, false},
		{408, ``, adapters.Overloaded, true},
		{409, ``, adapters.Overloaded, true},
		{429, ``, adapters.RateLimited, true},
		{500, `{"error":{"message":"flagged"}}`, adapters.UpstreamError, true},
		{529, ``, adapters.Overloaded, true},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.body)
		}))
		_, err := newProvider(t, server.URL, "").Send(t.Context(), adapters.Request{Protocol: adapters.OpenAIChat, Body: []byte(`{}`)})
		server.Close()
		var failure *adapters.Failure
		if failure, _ = err.(*adapters.Failure); failure == nil || failure.Reason != test.want || failure.Elsewhere() != test.elsewhere || failure.Status != test.status {
			t.Errorf("%d %s: got %v, want %s", test.status, test.body, err, test.want)
		} else if strings.Contains(failure.Error()+failure.Code, "canary") {
			t.Errorf("%d %s: the prompt is told: %v", test.status, test.body, failure)
		}
	}
}

// TestErrorsInsideASuccess: a status that came too late says what it would have said before.
func TestErrorsInsideASuccess(t *testing.T) {
	for reported, want := range map[string]adapters.Reason{
		`{"error":{"code":403,"message":"flagged"}}`:                                          adapters.ContentPolicy,
		`{"error":{"code":403,"message":"no"}}`:                                               adapters.Credential,
		`{"error":{"code":400,"message":"m"}}`:                                                adapters.InvalidRequest,
		`{"error":{"code":429,"message":"m"}}`:                                                adapters.RateLimited,
		`{"error":{"code":502,"message":"m"}}`:                                                adapters.StreamBroken,
		`{"error":{"code":"context_length_exceeded"}}`:                                        adapters.ContextLength,
		`{"error":{"code":"server_error","message":"content flagged"}}`:                       adapters.StreamBroken,
		`{"error":{"code":"rate_limit_exceeded"}}`:                                            adapters.RateLimited,
		`{"error":{"code":"unknown"}}`:                                                        adapters.StreamBroken,
		`{"object":"error","code":400,"message":"m"}`:                                         adapters.InvalidRequest,
		`{"error":{"code":402},"choices":[{"delta":{"content":""},"finish_reason":"error"}]}`: adapters.Credential,
		`{"choices":[{"delta":{"content":"x"},"finish_reason":"error"}]}`:                     adapters.StreamBroken,
		`{"error":{"code":1e300}}`:                                                            adapters.StreamBroken,
	} {
		_, _, _, err := relayed(t, "data: "+reported+"\n\n", false)
		if failure, _ := err.(*adapters.Failure); failure == nil || failure.Reason != want || failure.Status != 200 || !failure.Accepted {
			t.Errorf("%s: got %v, want %s", reported, err, want)
		}
	}
}

// TestWholeAnswersThatEndInAnError: so it is where a choice says it.
func TestWholeAnswersThatEndInAnError(t *testing.T) {
	for body, want := range map[string]adapters.Reason{
		`{"choices":[{"message":{"content":"x"},"finish_reason":"error"}]}`:                              adapters.UpstreamError,
		`{"choices":[{"finish_reason":"stop"},{"finish_reason":"error"}],"error":{"code":429}}`:          adapters.RateLimited,
		`{"choices":[],"error":{"code":"server_error"}}`:                                                 adapters.UpstreamError,
		`{"object":"error","message":"This model's maximum context length is", "code":400,"choices":[]}`: adapters.InvalidRequest,
	} {
		got := read(t, "", strings.NewReader(body), adapters.Request{Protocol: adapters.OpenAIChat})
		if failure, _ := got.err.(*adapters.Failure); failure == nil || failure.Reason != want || failure.Status != 200 || !failure.Accepted {
			t.Errorf("%s: got %v, want %s", body, got.err, want)
		}
	}
}
