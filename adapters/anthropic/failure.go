package anthropic

import (
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/exchange"
)

// reasons are those of the known types of errors; none where the type says no more than that something failed at the provider.
var reasons = map[string]adapters.Reason{
	"invalid_request_error": adapters.InvalidRequest, "request_too_large": adapters.InvalidRequest,
	"authentication_error": adapters.Credential, "billing_error": adapters.Credential, "permission_error": adapters.Credential,
	"not_found_error": adapters.ModelMissing, "rate_limit_error": adapters.RateLimited,
	"overloaded_error": adapters.Overloaded, "conflict_error": adapters.Overloaded,
	"api_error": "", "timeout_error": "",
}

// wordings are what tells errors apart that have one type, by how their messages begin: what follows may be the client's own words,
// which must not decide anything. They are looked at and not kept.
var wordings = []struct {
	begin  string
	reason adapters.Reason
}{
	{"prompt is too long", adapters.ContextLength},
	{"input is too long", adapters.ContextLength},
	{"input length and `max_tokens` exceed context limit", adapters.ContextLength},
	{"this model's maximum context length", adapters.ContextLength}, // vLLM
	{"output blocked by content filtering policy", adapters.ContentPolicy},
	{"your credit balance is too low", adapters.Credential},
	{"you have reached your specified api usage limits", adapters.Credential},
}

// Refused reads the error of a response that is no success: its type, and none of its text. The status counts first; a 400 is where also
// errors are found that are no fault of the request.
func (a *answer) Refused(status int, root gjson.Result) (reason adapters.Reason, code string) {
	reason = exchange.ReasonOf(status)
	switch {
	case status == http.StatusBadRequest:
		reason = reasonInside(root, reason)
	case status == http.StatusForbidden && exchange.Moderated(root):
		reason = adapters.ContentPolicy
	}
	return reason, errorCode(root)
}

// reported is the failure that a success reports in its body.
func reported(root gjson.Result, otherwise adapters.Reason) *adapters.Failure {
	return &adapters.Failure{Reason: reasonInside(root, otherwise), Code: errorCode(root)}
}

// errorCode is the type of the error that a document reports, if it is one of the known ones, which a client may be shown.
func errorCode(root gjson.Result) string {
	kind := root.Get("error.type").String()
	if _, known := reasons[kind]; !known {
		return ""
	}
	return strings.Clone(kind) // the rest of the document is not kept for it
}

// reasonInside is the reason that an error's type gives, or how its message begins, or else the given one.
func reasonInside(root gjson.Result, otherwise adapters.Reason) adapters.Reason {
	kind := root.Get("error.type").String()
	reason := reasons[kind]
	switch {
	case reason == "":
		reason = otherwise
	case kind == "permission_error" && exchange.Moderated(root):
		return adapters.ContentPolicy
	}
	if reason != adapters.InvalidRequest {
		return reason
	}
	message := strings.ToLower(root.Get("error.message").String())
	for _, wording := range wordings {
		if strings.HasPrefix(message, wording.begin) {
			return wording.reason
		}
	}
	return reason
}
