package engine

import (
	"errors"

	"regent/engine/decisions"
	"regent/engine/policy"
	"regent/ledger"
)

// Code is a router's error code. The codes are a contract with hosts.
type Code string

const codePrefix = "ERR_PRISM_MODEL_ROUTER_"

// The codes that the router gives.
const (
	CodeAllowList       Code = codePrefix + "ALLOW_LIST"
	CodeResidency       Code = codePrefix + "RESIDENCY"
	CodeBudget          Code = codePrefix + "BUDGET"
	CodeRateLimit       Code = codePrefix + "RATE_LIMIT"
	CodeCircuit         Code = codePrefix + "CIRCUIT"
	CodeIdentity        Code = codePrefix + "IDENTITY"
	CodeState           Code = codePrefix + "STATE"
	CodeAsyncState      Code = codePrefix + "ASYNC_STATE"
	CodeAsyncRequired   Code = codePrefix + "ASYNC_REQUIRED"
	CodePolicy          Code = codePrefix + "POLICY"
	CodeValidation      Code = codePrefix + "VALIDATION"
	CodeLimits          Code = codePrefix + "LIMITS"
	CodeAttempts        Code = codePrefix + "ATTEMPTS"
	CodeUnknownProvider Code = codePrefix + "UNKNOWN_PROVIDER"
)

// Error is a refusal by the router, or a failure of its own.
type Error struct {
	Code Code
	// Message is safe to show to whoever made the call.
	Message     string
	Diagnostics Diagnostics
	Details     Details
	// cause is for errors.Is and for the program's own log: it never reaches a caller as text.
	cause error
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

func (e *Error) Unwrap() error { return e.cause }

var invalidDetails = Details{Class: ClassInvalid, Reason: ReasonInvalid}

// invalid is the refusal of what a host has given wrongly.
func invalid(message string) *Error {
	return &Error{Code: CodeValidation, Message: message, Details: invalidDetails}
}

// Details say more about a refusal.
type Details struct {
	// Class is what the refusal means to the caller, whatever rule it came from.
	Class Class `json:"-"`
	// Reason is the denying rule's own code, or one of the reasons below.
	Reason string `json:"reason,omitempty"`
	Title  string `json:"title,omitempty"`
	Remedy string `json:"remedy,omitempty"`
	// RetryAfterMs is the least time after which the call would be admitted if nothing else happened; absent where waiting
	// does not help.
	RetryAfterMs *int64 `json:"retryAfterMs,omitempty"`
	// Limit is the limit that denied, if one did.
	Limit *decisions.Limit `json:"limit,omitempty"`
	// Rate is the rate that denied, if one did.
	Rate *decisions.Rate `json:"rate,omitempty"`
}

// Reasons of refusals that no rule gives.
const (
	// ReasonLimitReached: a limit has no room now.
	ReasonLimitReached = "limit_reached"
	// ReasonNeverFits: the call asks for more than the whole limit.
	ReasonNeverFits = "never_fits"
	// ReasonRateLimited: a rate has no room before its window closes.
	ReasonRateLimited = "rate_limited"
	// ReasonConcurrency: as many calls run as may at once.
	ReasonConcurrency = "concurrency_limited"
	// ReasonCircuitOpen: the candidate has failed again and again, and is left alone for a while.
	ReasonCircuitOpen = "circuit_open"
	// ReasonNoLimit: nobody has said how much the caller may use, which is not the same as no limit.
	ReasonNoLimit = "no_limit_policy"
	// ReasonUnpriced: a limit in money stands, and the candidate has no price.
	ReasonUnpriced = "unpriced"
	// ReasonZeroCap: the call is capped at nothing.
	ReasonZeroCap = "zero_cap"
	// ReasonPolicyFailed: policy gave no well-formed answer in time, which is a denial.
	ReasonPolicyFailed = "policy_failed"
	// ReasonSelectionFailed: policy put the candidates into no order.
	ReasonSelectionFailed = "selection_failed"
	// ReasonMiss: the resolver does not know the candidate.
	ReasonMiss = "miss"
	// ReasonNoCandidates: the model has no sources.
	ReasonNoCandidates = "no_candidates"
	// ReasonBusy and ReasonUnavailable: the ledger cannot take the call now.
	ReasonBusy        = "ledger_busy"
	ReasonUnavailable = "ledger_unavailable"
	// ReasonState: the call is over, or its hold is.
	ReasonState = "state"
	// ReasonInvalid: the request itself is not valid.
	ReasonInvalid = "invalid_request"
	// ReasonDuplicate: the idempotency key is taken.
	ReasonDuplicate = "duplicate"
	// ReasonAttempts: no more candidates may be contacted for the call.
	ReasonAttempts = "attempts"
	// ReasonIdentity: state that outlives the process is kept for nobody whose identity is not verified.
	ReasonIdentity = "identity_unverified"
	// ReasonFacade: the synchronous facade does not enforce what the router is configured with.
	ReasonFacade = "facade"
)

// Class is what a refusal means to the caller.
type Class int

// The classes, in the order in which one decides the answer where candidates were refused for different reasons.
const (
	// ClassProtocol: the candidate does not speak the call's protocol. Whatever another candidate is refused for says more.
	ClassProtocol Class = iota - 1
	// ClassPolicy: a rule refuses the call.
	ClassPolicy
	// ClassAccess: the caller may not know the model.
	ClassAccess
	// ClassCapacity: nothing can serve the call now.
	ClassCapacity
	// ClassRate: the caller makes calls too fast, or too many at once. No other candidate helps, and a little waiting does.
	ClassRate
	// ClassCallerLimit: the caller's own limit, or their group's, tenant's or task's, is reached. No other candidate helps.
	ClassCallerLimit
	// ClassUnavailable: the ledger cannot take the call.
	ClassUnavailable
	// ClassInvalid: the request is not valid.
	ClassInvalid
	// ClassDuplicate: the idempotency key belongs to another call; the cause is a [*ledger.DuplicateError].
	ClassDuplicate
)

// OfCaller says whether the caller's own use is what refuses, whoever would serve.
func (c Class) OfCaller() bool { return c == ClassRate || c == ClassCallerLimit }

// capacityCodes are the denials of the availability rule that pass by themselves or by an administrator's hand, whatever
// the caller asks for.
var capacityCodes = map[string]bool{
	"SOURCE_DISABLED": true, "CONNECTION_NOT_AUTHORISED": true, "SOURCE_STALE": true, "SOURCE_COOLING": true,
}

// classify is the code and the class of a rule's denial.
func classify(denial policy.Denial) (Code, Class) {
	switch denial.Rule {
	case "allow_list":
		return CodeAllowList, ClassPolicy
	case "residency":
		return CodeResidency, ClassPolicy
	case "strict_budget":
		return CodeBudget, ClassPolicy
	case "access":
		return CodePolicy, ClassAccess
	case "availability":
		switch {
		case denial.Code == "PROTOCOL_NOT_SERVED":
			return CodePolicy, ClassProtocol
		case capacityCodes[denial.Code]:
			return CodePolicy, ClassCapacity
		}
	}
	return CodePolicy, ClassPolicy
}

// storeError turns an error of the ledger into one that may be shown: a store's own words never reach a caller.
func storeError(err error) *Error {
	e := &Error{Code: CodeState, cause: err, Details: Details{Class: ClassUnavailable}}
	var duplicate *ledger.DuplicateError
	switch {
	case errors.As(err, &duplicate):
		e.Message = duplicate.Error()
		e.Details = Details{Class: ClassDuplicate, Reason: ReasonDuplicate}
	case errors.Is(err, ledger.ErrBusy):
		e.Message, e.Details.Reason = "the ledger has too much to do; try again shortly", ReasonBusy
	case errors.Is(err, ledger.ErrState):
		e.Message, e.Details.Reason = "the call or its hold is in a state that does not allow this", ReasonState
	case errors.Is(err, ledger.ErrInvalid), errors.Is(err, ledger.ErrOverflow), errors.Is(err, ledger.ErrUsage), errors.Is(err, ledger.ErrPrice):
		e.Code, e.Message = CodeValidation, "an amount or a name of the call is out of range"
		e.Details = invalidDetails
	default:
		e.Message, e.Details.Reason = "the ledger cannot answer; try again shortly", ReasonUnavailable
	}
	return e
}
