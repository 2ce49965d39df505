package openai

import (
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/exchange"
)

// reasons are the error codes that a client may be shown, as anything else could hold a provider's own text, and what each of them says;
// nothing where it says no more than that something failed.
var reasons = map[string]adapters.Reason{
	"context_length_exceeded": adapters.ContextLength,

	"content_policy_violation": adapters.ContentPolicy, "content_filter": adapters.ContentPolicy, "bio_policy": adapters.ContentPolicy,
	"misalignment_policy_violation": adapters.ContentPolicy, "image_content_policy_violation": adapters.ContentPolicy,

	"unsupported_parameter": adapters.InvalidRequest, "unsupported_value": adapters.InvalidRequest, "invalid_value": adapters.InvalidRequest,
	"missing_required_parameter": adapters.InvalidRequest, "unknown_parameter": adapters.InvalidRequest,
	"invalid_type": adapters.InvalidRequest, "string_above_max_length": adapters.InvalidRequest,
	"integer_above_max_value": adapters.InvalidRequest, "array_above_max_length": adapters.InvalidRequest,
	"invalid_json": adapters.InvalidRequest, "invalid_prompt": adapters.InvalidRequest,
	"previous_response_not_found": adapters.InvalidRequest, "invalid_encrypted_content": adapters.InvalidRequest,
	"invalid_image": adapters.InvalidRequest, "invalid_image_url": adapters.InvalidRequest, "invalid_image_format": adapters.InvalidRequest,
	"invalid_image_mode": adapters.InvalidRequest, "invalid_base64_image": adapters.InvalidRequest,
	"unsupported_image_media_type": adapters.InvalidRequest, "image_parse_error": adapters.InvalidRequest,
	"image_too_large": adapters.InvalidRequest, "image_too_small": adapters.InvalidRequest, "image_file_too_large": adapters.InvalidRequest,
	"empty_image_file": adapters.InvalidRequest, "image_file_not_found": adapters.InvalidRequest,
	"failed_to_download_image": adapters.InvalidRequest,

	"rate_limit_exceeded": adapters.RateLimited, "insufficient_quota": adapters.RateLimited, // which both come with 429
	"server_is_overloaded": adapters.Overloaded, "usage_not_included": adapters.Credential, "model_not_found": adapters.ModelMissing,

	"invalid_request_error": "", "server_error": "", "vector_store_timeout": "", "data_residency_mismatch": "",
}

// refusal reads the error of a response that is no success: its code, and none of its text. The status counts first; a 400 is where also
// errors are found that are no fault of the request, and a 404 where something else is missing than the model.
func refusal(status int, document gjson.Result) (reason adapters.Reason, code string) {
	reason, code = exchange.ReasonOf(status), errorCode(document)
	switch {
	case reason == adapters.InvalidRequest, reason == adapters.ModelMissing:
		reason = reasonOfCode(code, reason)
	case status == http.StatusForbidden && exchange.Moderated(document):
		reason = adapters.ContentPolicy
	}
	return reason, code
}

// isError says whether a document reports an error.
func isError(root gjson.Result) bool { return exchange.Any(root, tellsError) }

// tellsError says whether a member of a document reports an error: as OpenAI does, or, as older vLLM servers do, by being one.
func tellsError(name string, value gjson.Result) bool {
	return name == "error" && value.Type != gjson.Null || name == "object" && value.Str == "error"
}

// reported is the failure that a success reports in its body.
func reported(document gjson.Result, otherwise adapters.Reason) *adapters.Failure {
	return &adapters.Failure{Reason: reasonInside(document, otherwise), Code: errorCode(document)}
}

// reasonInside is the reason of an error that came inside a success, whose code may be the status that could not be sent any more:
// what a request brought upon itself is then no fault of the provider's.
func reasonInside(document gjson.Result, otherwise adapters.Reason) adapters.Reason {
	status := codeOf(document)
	if status.Type != gjson.Number || status.Num < 400 || status.Num > 499 {
		return reasonOfCode(errorCode(document), otherwise)
	}
	if status.Num == http.StatusForbidden && exchange.Moderated(document) {
		return adapters.ContentPolicy
	}
	return exchange.ReasonOf(int(status.Num))
}

// codeOf is the code of the error that a document reports or is.
func codeOf(document gjson.Result) gjson.Result {
	if code := document.Get("error.code"); code.Exists() {
		return code
	}
	return document.Get("code")
}

// errorCode is that code, if a client may be shown it.
func errorCode(document gjson.Result) string {
	code := codeOf(document)
	if _, known := reasons[code.Str]; !known {
		return ""
	}
	return strings.Clone(code.Str) // the rest of the document is not kept for it
}

// reasonOfCode is the reason that a code gives away, or else the given one.
func reasonOfCode(code string, otherwise adapters.Reason) adapters.Reason {
	if reason := reasons[code]; reason != "" {
		return reason
	}
	return otherwise
}
