package openai

import (
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"regent/adapters"
)

const (
	errorTimeMax  = 2 * time.Second // the status says most, and another source is waiting to be tried
	errorBytesMax = 64 << 10        // an error's code is near its beginning; what follows is text that nobody reads
	retryAfterMax = 24 * time.Hour  // a provider that asks for longer is asked again after a day
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
	late := time.AfterFunc(errorTimeMax, func() { _ = response.Body.Close() })
	body, _ := io.ReadAll(io.LimitReader(response.Body, errorBytesMax)) // what was read is enough
	late.Stop()
	root := gjson.ParseBytes(body)
	code := errorCode(root)
	failure := &adapters.Failure{
		Reason: reasonOf(response.StatusCode), Status: response.StatusCode, RetryAfter: retryAfter(response.Header), Code: code,
	}
	switch {
	case failure.Reason == adapters.InvalidRequest:
		failure.Reason = reasonOfCode(code, failure.Reason)
	case response.StatusCode == http.StatusForbidden && moderated(root):
		failure.Reason = adapters.ContentPolicy
	}
	return failure
}

// moderated says whether the error of a 403 is about the prompt. OpenRouter, for one, has no code for that but words, and repeats the
// prompt's flagged part. They are looked at and not kept.
func moderated(root gjson.Result) bool {
	if root.Get("error.metadata.flagged_input").Exists() {
		return true
	}
	for _, path := range []string{"error.code", "error.type", "error.message"} {
		text := moderationSpaces.Replace(strings.ToLower(root.Get(path).String()))
		for _, word := range []string{"moderation", "flagged", "content policy", "content filter"} {
			if strings.Contains(text, word) {
				return true
			}
		}
	}
	return false
}

// moderationSpaces has codes and sentences say the same.
var moderationSpaces = strings.NewReplacer("_", " ", "-", " ")

// reasonInside is the reason of an error that came inside a success, whose code may be the status that could not be sent any more:
// what a request brought upon itself is then no fault of the provider's.
func reasonInside(root gjson.Result, otherwise adapters.Reason) adapters.Reason {
	status := root.Get("error.code")
	if status.Type != gjson.Number || status.Num < 400 || status.Num > 499 {
		return reasonOfCode(errorCode(root), otherwise)
	}
	if status.Num == http.StatusForbidden && moderated(root) {
		return adapters.ContentPolicy
	}
	return reasonOf(int(status.Num))
}

// errorCode is the code of the error that a document reports, if a client may be shown it.
func errorCode(root gjson.Result) string {
	if code := root.Get("error.code"); code.Type == gjson.String && knownCodes[code.String()] {
		return code.String()
	}
	return ""
}

// reasonOfCode is the reason that a code gives away, or else the given one.
func reasonOfCode(code string, otherwise adapters.Reason) adapters.Reason {
	switch code {
	case "context_length_exceeded":
		return adapters.ContextLength
	case "content_policy_violation", "content_filter":
		return adapters.ContentPolicy
	}
	return otherwise
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
	}
	if status >= 400 && status <= 499 { // whatever it is, the request that got it would get it again
		return adapters.InvalidRequest
	}
	return adapters.UpstreamError
}

// retryAfter reads how long a provider asks to be left alone: milliseconds, seconds, or a date. What cannot be is 0.
func retryAfter(header http.Header) time.Duration {
	if wait := waitOf(header.Get("Retry-After-Ms"), time.Millisecond); wait > 0 {
		return wait
	}
	text := header.Get("Retry-After")
	if date, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(date), 0), retryAfterMax)
	}
	return waitOf(text, time.Second)
}

// waitOf reads a number of units. It is compared as a number, as it may be too large for a duration.
func waitOf(text string, unit time.Duration) time.Duration {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0) || math.IsInf(n, 0) {
		return 0
	}
	if n >= float64(retryAfterMax/unit) {
		return retryAfterMax
	}
	return time.Duration(n * float64(unit))
}
