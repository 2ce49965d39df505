package ledger

import (
	"time"

	"github.com/google/uuid"
)

// State is where a call is. It is denied, or held and then exactly one of the other three, for ever.
//
//	          ┌──────────── denied
//	admission ┤
//	          └─ held ─┬─── completed
//	                   ├─── failed      (also if its hold expires)
//	                   └─── cancelled
type State string

// The states of a call.
const (
	Denied    State = "denied"
	Held      State = "held"
	Completed State = "completed"
	Failed    State = "failed"
	Cancelled State = "cancelled"
)

// Call is one request of a client. Its id is also its decision id.
type Call struct {
	ID uuid.UUID
	// Owner is the user whose call it is.
	Owner string
	// ClientRequestID is the client's own id of the request, empty if it gave none.
	ClientRequestID string
	// IdempotencyKey makes the call unique among its owner's running and completed ones; empty if the client gave none.
	IdempotencyKey string
	Model          string
	Protocol       string
	Stream         bool

	// The ledger sets the rest.
	State     State
	CreatedAt time.Time
	// EndedAt is zero while the call is held.
	EndedAt time.Time
}

// Attempt is one candidate contacted for a call, with the hold under which it was.
type Attempt struct {
	Hold             uuid.UUID
	Source, Provider string
	Outcome          Outcome
	StartedAt        time.Time
	// EndedAt is zero while the attempt runs.
	EndedAt time.Time
	// Usage is nil if it is not known.
	Usage  *Usage
	Charge Charge
}

// Outcome is how an attempt ended.
type Outcome struct {
	// Result is "success", "error", "abort" (the caller went away), "early_close" (it closed the answer before its end) or "expired";
	// empty while the attempt runs.
	Result string
	// Reason says more where Result is not "success".
	Reason string
	// Status is the provider's HTTP status, 0 if there was none.
	Status int
}

// The results of an attempt.
const (
	Success     = "success"
	Errored     = "error"
	Aborted     = "abort"
	EarlyClosed = "early_close"
	Expired     = "expired"
)

// Charge is what a hold became.
type Charge struct {
	Tokens      int64
	NanoUSD     int64
	NanoCredits int64
	// Estimated says that the usage was counted by us, because the provider's never arrived.
	Estimated bool
	// UnknownUsage says that what was held was charged.
	UnknownUsage bool
	// Overage says that more was used than was held.
	Overage bool
}

// Of is the charge in a unit.
func (c Charge) Of(unit Unit) int64 {
	if unit == Calls { // they are held only
		return 0
	}
	return *c.in(unit)
}

func (c *Charge) in(unit Unit) *int64 {
	switch unit {
	case USD:
		return &c.NanoUSD
	case Credits:
		return &c.NanoCredits
	}
	return &c.Tokens
}

// CallReport is a call with its attempts, in order.
type CallReport struct {
	Call
	Attempts []Attempt
}

// CallQuery selects calls of one owner, newest first.
type CallQuery struct {
	Owner string
	// ClientRequestID selects by the client's own id or idempotency key, if not empty.
	ClientRequestID string
	// Limit bounds the number of calls.
	Limit int
}
