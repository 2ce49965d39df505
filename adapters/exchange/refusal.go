package exchange

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

// refused turns a response that is no success into a failure.
func refused(response *http.Response, reader Reader) *adapters.Failure {
	late := time.AfterFunc(errorTimeMax, func() { _ = response.Body.Close() })
	body, _ := io.ReadAll(io.LimitReader(response.Body, errorBytesMax)) // what was read is enough
	late.Stop()
	reason, code := reader.Refused(response.StatusCode, gjson.ParseBytes(body))
	return &adapters.Failure{Reason: reason, Status: response.StatusCode, RetryAfter: retryAfter(response.Header), Code: code}
}

// ReasonOf is the reason that a status gives by itself.
func ReasonOf(status int) adapters.Reason {
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

// Moderated says whether the error of a 403 is about the prompt. OpenRouter, for one, has no code for that but words, and repeats the
// prompt's flagged part. They are looked at and not kept.
func Moderated(document gjson.Result) bool {
	if document.Get("error.metadata.flagged_input").Exists() {
		return true
	}
	for _, path := range []string{"error.code", "error.type", "error.message"} {
		text := moderationSpaces.Replace(strings.ToLower(document.Get(path).String()))
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
