package openai

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/tidwall/gjson"

	"regent/adapters"
)

const (
	errorBytesMax = 64 << 10       // an error's code is near its beginning; what follows is text that nobody reads
	retryAfterMax = 24 * time.Hour // a provider that asks for longer is asked again after a day
)

// knownCodes are the error codes of OpenAI that a client may be shown. Anything else could hold a provider's own text.
var knownCodes = map[string]bool{
	"context_length_exceeded": true, "unsupported_parameter": true, "unsupported_value": true, "invalid_value": true,
	"missing_required_parameter": true, "unknown_parameter": true, "invalid_type": true, "string_above_max_length": true,
	"content_policy_violation": true, "content_filter": true, "invalid_image": true, "invalid_image_url": true,
	"image_too_large": true, "model_not_found": true, "rate_limit_exceeded": true, "insufficient_quota": true,
	"invalid_request_error": true, "integer_above_max_value": true, "array_above_max_length": true, "invalid_json": true,
}

// refused turns a response that is no success into a failure. It reads the error's code and none of its text.
func refused(response *http.Response) *adapters.Failure {
	body, _ := io.ReadAll(io.LimitReader(response.Body, errorBytesMax)) // what was read is enough
	failure := &adapters.Failure{
		Reason: reasonOf(response.StatusCode), Status: response.StatusCode, RetryAfter: retryAfter(response.Header),
		Code: errorCode(body),
	}
	switch {
	case failure.Reason != adapters.InvalidRequest:
	case failure.Code == "context_length_exceeded":
		failure.Reason = adapters.ContextLength
	case failure.Code == "content_policy_violation", failure.Code == "content_filter":
		failure.Reason = adapters.ContentPolicy
	}
	return failure
}

func errorCode(body []byte) string {
	if code := gjson.GetBytes(body, "error.code"); code.Type == gjson.String && knownCodes[code.String()] {
		return code.String()
	}
	return ""
}

func reasonOf(status int) adapters.Reason {
	switch status {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden:
		return adapters.Credential
	case http.StatusNotFound:
		return adapters.ModelMissing
	case http.StatusTooManyRequests:
		return adapters.RateLimited
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusServiceUnavailable, 529:
		return adapters.Overloaded
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return adapters.InvalidRequest
	}
	return adapters.UpstreamError
}

// retryAfter reads how long a provider asks to be left alone: milliseconds, seconds, or a date. What cannot be is 0.
func retryAfter(header http.Header) time.Duration {
	var wait time.Duration
	if ms, err := strconv.ParseFloat(header.Get("Retry-After-Ms"), 64); err == nil && ms > 0 && ms < 1e12 {
		wait = time.Duration(ms * float64(time.Millisecond))
	} else if seconds, err := strconv.ParseFloat(header.Get("Retry-After"), 64); err == nil && seconds > 0 && seconds < 1e9 {
		wait = time.Duration(seconds * float64(time.Second))
	} else if date, err := http.ParseTime(header.Get("Retry-After")); err == nil {
		wait = time.Until(date)
	}
	return min(max(wait, 0), retryAfterMax)
}
