package ledger

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Kind is what a record of the journal says.
type Kind string

const (
	// DecisionRecord says what policy and limits decided of every candidate of a call; its body is the caller's.
	DecisionRecord Kind = "decision"
	// ChargeRecord says what was charged, and to which accounts, or taken back: a [ChargeBody].
	ChargeRecord Kind = "charge"
	// OutcomeRecord says how an attempt, and with the last one its call, ended: an [OutcomeBody].
	OutcomeRecord Kind = "outcome"
)

// Record is one entry of the journal, the append-only truth. It is written in the transaction of what it records and never
// changed. Each process writes a stream of its own, numbered from 1 without gaps, so that replicas never wait for each
// other's numbers.
type Record struct {
	// Writer is the stream, Number the record's place in it.
	Writer uuid.UUID
	Number int64
	At     time.Time
	Kind   Kind
	// Call is the zero UUID for what belongs to no call.
	Call uuid.UUID
	// Body is one JSON object without secrets, prompts or fencing tokens.
	Body json.RawMessage
}

// ChargeBody is the body of a charge record: all that is needed to compute the charge again by hand.
type ChargeBody struct {
	Hold     uuid.UUID `json:"hold,omitzero"`
	Source   string    `json:"source,omitempty"`
	Provider string    `json:"provider,omitempty"`
	// Usage is null where it is not known and what was held was charged.
	Usage *Usage `json:"usage"`
	// Price is in pico-USD per token; null where the candidate had none.
	Price *Price `json:"price"`
	// CreditRate is null where the candidate takes no credits.
	CreditRate *CreditRate `json:"credit_rate"`
	// Tokens, NanoUSD and NanoCredits are the charge.
	Tokens      int64 `json:"tokens"`
	NanoUSD     int64 `json:"nano_usd"`
	NanoCredits int64 `json:"nano_credits"`
	// Accounts holds what each account was charged, in its own unit; negative for a refund.
	Accounts     map[Account]int64 `json:"accounts"`
	Estimated    bool              `json:"estimated"`
	UnknownUsage bool              `json:"unknown_usage"`
	Overage      bool              `json:"overage"`
	// Refund says that an expired hold's charge was lowered to what was really used.
	Refund bool `json:"refund,omitempty"`
}

// OutcomeBody is the body of an outcome record.
type OutcomeBody struct {
	Hold     uuid.UUID `json:"hold"`
	Source   string    `json:"source"`
	Provider string    `json:"provider"`
	Result   string    `json:"result"`
	Reason   string    `json:"reason,omitempty"`
	Status   int       `json:"status,omitempty"`
	// State is the call's terminal state; empty if the call goes on with another source.
	State        State  `json:"state,omitempty"`
	Usage        *Usage `json:"usage"`
	Tokens       int64  `json:"tokens"`
	USD          string `json:"usd"`
	Credits      string `json:"credits"`
	Estimated    bool   `json:"estimated"`
	UnknownUsage bool   `json:"unknown_usage"`
	Overage      bool   `json:"overage"`
	// AdmittedAt and EndedAt are microseconds since 1970 UTC, by the store's clock.
	AdmittedAt int64 `json:"admitted_at"`
	EndedAt    int64 `json:"ended_at"`
}

// Stream is one writer's part of the journal.
type Stream struct {
	Writer uuid.UUID
	// Last is the number of its newest record.
	Last int64
}
