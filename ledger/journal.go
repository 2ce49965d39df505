package ledger

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Kind is what a record of the journal says.
type Kind string

const (
	// DecisionRecord says what policy and limits decided of every candidate of a call; its body is the caller's. The activation that
	// decided it names at custom.activation, by the digest's 64 hex digits.
	DecisionRecord Kind = "decision"
	// ChargeRecord says what was charged, and to which accounts, or taken back: a [ChargeBody].
	ChargeRecord Kind = "charge"
	// OutcomeRecord says how an attempt, and with the last one its call, ended: an [OutcomeBody].
	OutcomeRecord Kind = "outcome"
	// CorrectionRecord says what a person charged further, or took back of a charge: a [CorrectionBody].
	CorrectionRecord Kind = "correction"
	// ResetRecord says that a person had what was used so far leave every window: a [ResetBody].
	ResetRecord Kind = "reset"
	// ClosingRecord stands for records that are no longer in the journal: a [ClosingBody].
	ClosingRecord Kind = "closing"
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
	Hold uuid.UUID `json:"hold,omitzero"`
	// Posting is the id of a charge without a hold, if it has one.
	Posting  uuid.UUID `json:"posting,omitzero"`
	Source   string    `json:"source,omitempty"`
	Provider string    `json:"provider,omitempty"`
	// Usage is null where it is not known and what was held was charged.
	Usage *Usage `json:"usage"`
	// Price is in pico-USD per token; null where the candidate had none.
	Price *Price `json:"price"`
	// ToldNanoUSD is what the usage cost as its owner knew it; absent where nobody said, as wherever there is a price.
	ToldNanoUSD *int64 `json:"told_nano_usd,omitempty"`
	// CreditRate is null where the candidate takes no credits.
	CreditRate *CreditRate `json:"credit_rate"`
	// Tokens, NanoUSD and NanoCredits are the charge.
	Tokens      int64 `json:"tokens"`
	NanoUSD     int64 `json:"nano_usd"`
	NanoCredits int64 `json:"nano_credits"`
	// Accounts holds what each account was charged, in its own unit; negative for a refund.
	Accounts map[Account]int64 `json:"accounts"`
	// Totals is what each account had used in all with this charge, which names the charge, or the one of which something is taken back.
	Totals       map[Account]int64 `json:"totals,omitempty"`
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

// CorrectionBody is the body of a correction record.
type CorrectionBody struct {
	Amendment
	// Hold names the charge of which something was taken back; it is absent from a further charge.
	Hold uuid.UUID `json:"hold,omitzero"`
	// The amounts were charged further; below 0, they were taken back.
	Tokens      int64 `json:"tokens"`
	NanoUSD     int64 `json:"nano_usd"`
	NanoCredits int64 `json:"nano_credits"`
	// Accounts and Totals are as in a charge record.
	Accounts map[Account]int64 `json:"accounts"`
	Totals   map[Account]int64 `json:"totals,omitempty"`
}

func (b *CorrectionBody) charge() Charge {
	return Charge{Tokens: b.Tokens, NanoUSD: b.NanoUSD, NanoCredits: b.NanoCredits}
}

// ResetBody is the body of a reset record.
type ResetBody struct {
	Amendment
	// Accounts holds what each had used in all: every window counts what is used from there on.
	Accounts map[Account]int64 `json:"accounts"`
}

// ClosingBody is the body of a closing record. It stands in the books for the records that were pruned, closing records among them.
type ClosingBody struct {
	Amendment
	// Before is later than all that was pruned, in microseconds since 1970 UTC.
	Before int64 `json:"before"`
	// Streams holds the number of the last record that is missing at the beginning of each.
	Streams map[uuid.UUID]int64 `json:"streams"`
	Records int64               `json:"records"`
	// Accounts holds what those records came to.
	Accounts map[Account]Closed `json:"accounts"`
}

// Closed is what pruned records came to for an account.
type Closed struct {
	// Used was charged, Refunds taken back of charges, the one with the highest total being Refunded.
	Used     int64 `json:"used"`
	Refunds  int64 `json:"refunds,omitempty"`
	Refunded int64 `json:"refunded,omitempty"`
	// Floor is the highest total of a charge or a reset among them: windows count from there at the earliest.
	Floor int64 `json:"floor,omitempty"`
	// Unnamed is the part of Used that was charged before records named totals.
	Unnamed int64 `json:"unnamed,omitempty"`
}

// add sums up.
func (c *Closed) add(other Closed) {
	c.Used += other.Used
	c.Refunds += other.Refunds
	c.Refunded = max(c.Refunded, other.Refunded)
	c.Floor = max(c.Floor, other.Floor)
	c.Unnamed += other.Unnamed
}

// Stream is one writer's part of the journal.
type Stream struct {
	Writer uuid.UUID
	// Last is the number of its newest record.
	Last int64
}
