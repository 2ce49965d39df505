package inference

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"regent/adapters"
	"regent/engine"
	"regent/ledger"
)

// answer is how a failure is told to a client.
type answer struct {
	status  int
	kind    string // "type" in OpenAI's error body
	code    string
	message string
	// retryAfter is the Retry-After header; 0 sends none.
	retryAfter time.Duration
	// noRetry sends x-should-retry: false, which the vendors' SDKs obey. So does a retryAfter beyond patience.
	noRetry bool
	// details are further members of the error, for people and tools that know Regent.
	details map[string]any
}

// The classes of failure that the edge itself finds. This table and the functions below it are the only place where a failure
// becomes a status and a code.
var (
	unauthenticated = answer{status: http.StatusUnauthorized, kind: "invalid_request_error", code: "invalid_api_key",
		message: "The token is missing, unknown or revoked. Send an inference token (gwi_...) as Authorization: Bearer or as x-api-key."}
	twoTokens = answer{status: http.StatusUnauthorized, kind: "invalid_request_error", code: "invalid_api_key",
		message: "The request carries more than one token. Send one."}
	switchedOff = answer{status: http.StatusServiceUnavailable, kind: "server_error", code: "inference_disabled",
		message: "Inference is switched off. An administrator can switch it on.", noRetry: true}
	draining = answer{status: http.StatusServiceUnavailable, kind: "server_error", code: "draining",
		message: "This replica is stopping. Try again.", retryAfter: time.Second}
	modelNotFound = answer{status: http.StatusNotFound, kind: "invalid_request_error", code: "model_not_found",
		message: "The model does not exist, or you may not use it.", noRetry: true}
	requestNotFound = answer{status: http.StatusNotFound, kind: "invalid_request_error", code: "request_not_found",
		message: "No request of yours has this id."}
	pathNotFound = answer{status: http.StatusNotFound, kind: "invalid_request_error", code: "not_found",
		message: "There is nothing at this path."}
	methodNotAllowed = answer{status: http.StatusMethodNotAllowed, kind: "invalid_request_error", code: "method_not_allowed",
		message: "The path does not take this method; the Allow header lists those that it takes."}
	unsupportedEncoding = answer{status: http.StatusUnsupportedMediaType, kind: "invalid_request_error", code: "unsupported_encoding",
		message: "The body's Content-Encoding is none of gzip, zstd and identity."}
	tooLarge = answer{status: http.StatusRequestEntityTooLarge, kind: "invalid_request_error", code: "request_too_large",
		message: "The request's body is too large."}
	tooSlow = answer{status: http.StatusRequestTimeout, kind: "invalid_request_error", code: "request_timeout",
		message: "The request's body did not arrive in time."}
	overloaded = answer{status: http.StatusServiceUnavailable, kind: "server_error", code: "overloaded",
		message: "Too much is being sent at once. Try again.", retryAfter: time.Second}
	internal = answer{status: http.StatusInternalServerError, kind: "server_error", code: "internal_error",
		message: "Something went wrong here. The operator finds it by the request's id."}
	storeDown = answer{status: http.StatusServiceUnavailable, kind: "server_error", code: "ledger_unavailable",
		message: "The ledger cannot answer, so nothing can be admitted.", retryAfter: time.Second}
)

// contextExceeded is the code of a request that is too long for its model, whoever has found that: policy, by its rule's own code
// contextRule, or the provider.
const (
	contextExceeded = "context_length_exceeded"
	contextRule     = "CONTEXT_EXCEEDED"
)

// withSizes has the answer to a request that is too long say by how much: by the estimate, in words by which Claude Code knows that it has to
// make the conversation shorter.
func (a answer) withSizes(tokens int64, most *int64) answer {
	if a.code == contextExceeded && most != nil {
		a.message = fmt.Sprintf("prompt is too long: %d tokens > %d maximum", max(tokens, *most+1), *most) // where the provider counted more
	}
	return a
}

// invalid is a request that is no call.
func invalid(message string) answer {
	return answer{status: http.StatusBadRequest, kind: "invalid_request_error", code: "invalid_request", message: message}
}

// describe is the answer to any error of a call. modelOff says that the model is switched off as a whole.
func describe(err error, modelOff bool) answer {
	var refusal *engine.Error
	var failure *adapters.Failure
	var edge answerError
	switch {
	case errors.As(err, &edge):
		return answer(edge)
	case errors.As(err, &refusal):
		return describeRefusal(refusal, modelOff)
	case errors.As(err, &failure):
		return describeFailure(failure)
	case errors.Is(err, errStopped):
		return draining
	case errors.Is(err, ledger.ErrNotFound):
		return requestNotFound
	case errors.Is(err, ledger.ErrUnavailable), errors.Is(err, ledger.ErrBusy), errors.Is(err, ledger.ErrClosed):
		return storeDown
	}
	return internal
}

// Code is the code that a client is told for an error of its call. A client that has gone is told none: its calls count as such.
func Code(err error) string {
	if errors.Is(err, engine.ErrAborted) {
		return "client_gone"
	}
	return describe(err, false).code
}

// describeRefusal is the answer to a refusal by the router.
func describeRefusal(e *engine.Error, modelOff bool) answer {
	if modelOff && e.Details.Class != engine.ClassUnavailable { // whatever else is said of it would tell that it exists
		return modelNotFound
	}
	a := answer{message: e.Message, details: map[string]any{"reason": e.Details.Reason}}
	if e.Details.Remedy != "" {
		a.message += ". " + e.Details.Remedy
	}
	if e.Details.RetryAfterMs != nil {
		a.retryAfter = time.Duration(*e.Details.RetryAfterMs) * time.Millisecond
	}
	if e.Details.Rate != nil && e.Details.Class == engine.ClassRate {
		a.details["rate"] = e.Details.Rate
	}
	if e.Details.Limit != nil && e.Details.Class.OfCaller() { // what others use of a source is not the caller's business
		a.details["limit"] = e.Details.Limit
	}
	switch e.Details.Class {
	case engine.ClassAccess:
		return modelNotFound
	case engine.ClassCallerLimit:
		a.status, a.kind, a.code, a.noRetry = http.StatusTooManyRequests, "insufficient_quota", "insufficient_quota", true
	case engine.ClassRate:
		a.status, a.kind, a.code = http.StatusTooManyRequests, "rate_limit_error", "rate_limit_exceeded"
		if e.Details.Reason == engine.ReasonConcurrency { // calls end long before their holds run out
			a.retryAfter = min(a.retryAfter, capacityRetry)
		}
		if a.noRetry = e.Details.RetryAfterMs == nil; !a.noRetry {
			a.retryAfter = max(a.retryAfter, time.Second) // there may be room by now
		}
	case engine.ClassCapacity:
		a.status, a.kind, a.code = http.StatusServiceUnavailable, "server_error", "capacity_unavailable"
		if a.retryAfter == 0 {
			a.retryAfter = capacityRetry
		}
	case engine.ClassUnavailable:
		a.status, a.kind, a.code, a.retryAfter = http.StatusServiceUnavailable, "server_error", e.Details.Reason, time.Second
	case engine.ClassInvalid:
		a.status, a.kind, a.code = http.StatusBadRequest, "invalid_request_error", e.Details.Reason
	case engine.ClassDuplicate:
		a.status, a.kind, a.code, a.noRetry = http.StatusConflict, "invalid_request_error", "duplicate_request", true
		var duplicate *ledger.DuplicateError
		if errors.As(e, &duplicate) {
			a.details["duplicate_of"], a.details["state"] = duplicate.Call.String(), duplicate.State
		}
	default:
		a.status, a.kind, a.code, a.noRetry = http.StatusForbidden, "invalid_request_error", e.Details.Reason, true
		if a.code == contextRule {
			a.status, a.code = http.StatusBadRequest, contextExceeded
		}
	}
	return a
}

// capacityRetry is when to try again where nothing says: about the time in which a provider recovers from an overload.
const capacityRetry = 5 * time.Second

// patience is how long a client may be made to wait within one call: the vendors' SDKs sleep as long as Retry-After says, be it
// hours, and tell nobody.
const patience = time.Minute

// describeFailure is the answer to a provider's failure. Nothing of the provider's own text is in it.
func describeFailure(f *adapters.Failure) answer {
	a := answer{status: http.StatusBadGateway, kind: "server_error", code: "upstream_error", details: map[string]any{"reason": f.Reason}}
	switch f.Reason {
	case adapters.InvalidRequest:
		a.status, a.kind, a.code = http.StatusBadRequest, "invalid_request_error", "invalid_request"
		if f.Status == http.StatusRequestEntityTooLarge || f.Status == http.StatusUnprocessableEntity {
			a.status = f.Status
		}
		if f.Code != "" {
			a.code = f.Code
		}
		a.message = "The provider refused the request as invalid."
	case adapters.ContextLength:
		a.status, a.kind, a.code = http.StatusBadRequest, "invalid_request_error", contextExceeded
		a.message = "The prompt is too long for the model's context."
	case adapters.ContentPolicy:
		a.status, a.kind, a.code = http.StatusBadRequest, "invalid_request_error", "content_policy_violation"
		a.message = "The provider refused the request's content."
	case adapters.RateLimited, adapters.Overloaded:
		a.status, a.code = http.StatusServiceUnavailable, "capacity_unavailable"
		a.message = "No source of the model can take the call now."
		a.retryAfter = f.RetryAfter
		switch {
		case a.retryAfter > 0:
		case f.Reason == adapters.RateLimited:
			a.retryAfter = coolFor
		default:
			a.retryAfter = capacityRetry
		}
	case adapters.Timeout:
		a.status, a.code, a.message = http.StatusGatewayTimeout, "upstream_timeout", "The provider did not answer in time."
	case adapters.StreamBroken:
		a.message = "The provider's answer broke off."
	case adapters.Credential, adapters.ModelMissing: // which no client can mend, and nobody by waiting
		a.message, a.noRetry = "The provider failed.", true
	default:
		a.message = "The provider failed."
	}
	return a
}

// answerError lets an answer travel as an error.
type answerError answer

func (e answerError) Error() string { return e.message }

func (a answer) retryAfterSeconds() int { return int(math.Ceil(a.retryAfter.Seconds())) }

// write sends the answer as a whole response, in the client's form.
func (a answer) write(w http.ResponseWriter, form *form, requestID string) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	if a.retryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(a.retryAfterSeconds()))
	}
	if a.noRetry || a.retryAfter > patience {
		header.Set("X-Should-Retry", "false")
	}
	if a.status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(append(form.body(a, requestID), '\n')) // a client that has gone needs no answer
}
