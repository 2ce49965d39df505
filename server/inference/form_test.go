package inference

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// TestAStreamThatBreaks: each protocol's last event is one that its clients take for a failure.
func TestAStreamThatBreaks(t *testing.T) {
	a := answer{status: 503, kind: "server_error", code: "capacity_unavailable", message: "Come later.", details: map[string]any{"reason": "overloaded"}}
	for _, test := range []struct {
		form *form
		name string
		want map[string]string
	}{
		{openAIForm, "", map[string]string{
			"error.type": "server_error", "error.code": "capacity_unavailable", "error.message": "Come later.", "error.request_id": "7", "error.reason": "overloaded",
		}},
		{anthropicForm, "error", map[string]string{
			"type": "error", "request_id": "7", "error.type": "overloaded_error", "error.code": "capacity_unavailable", "error.message": "Come later.",
		}},
		{responsesForm, "response.failed", map[string]string{ // Codex reads the response, the SDKs what is beside it
			"type": "response.failed", "response.status": "failed", "response.error.code": "rate_limit_exceeded", "response.error.message": "Come later.",
			"error.type": "server_error", "error.code": "capacity_unavailable", "error.message": "Come later.", "error.request_id": "7",
		}},
	} {
		name, data, ok := strings.Cut(string(test.form.event(a, "7")), "data: ")
		if !ok || !strings.HasSuffix(data, "}\n\n") || test.name == "" && name != "" || test.name != "" && name != "event: "+test.name+"\n" {
			t.Errorf("got %q, %q", name, data)
		}
		for path, want := range test.want {
			if got := gjson.Get(data, path).String(); got != want {
				t.Errorf("%s: %s is %q, want %q", test.name, path, got, want)
			}
		}
	}
}
