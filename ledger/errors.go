package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

var (
	// ErrState is returned for what the state of a hold or a call forbids: an outdated token, a hold that has ended
	// otherwise, a call that is over.
	ErrState = errors.New("the hold or the call is not in a state that allows this")
	// ErrExpired is the [ErrState] of a hold whose deadline has passed: it was charged at what it held.
	ErrExpired = fmt.Errorf("%w: the hold has expired", ErrState)
	// ErrBusy is returned when more waits than can be worked off: try again later. Nothing was done.
	ErrBusy = errors.New("the ledger is busy")
	// ErrCircuits is the [ErrBusy] of an admission under a circuit that could not be remembered: as many as the store keeps are open.
	ErrCircuits = fmt.Errorf("%w: no further circuit can be remembered", ErrBusy)
	// ErrUnavailable is returned when the store cannot answer. An operation that is repeated under the same id is done once.
	ErrUnavailable = errors.New("the ledger's store cannot answer")
	// ErrUnknown is the [ErrUnavailable] of an operation of which it is not known whether it was done. With any other, it was not.
	ErrUnknown = fmt.Errorf("%w: nobody knows whether it was done", ErrUnavailable)
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the ledger is closed")
	// ErrInvalid is returned for an operation whose own fields are wrong; nothing was done.
	ErrInvalid = errors.New("invalid ledger operation")
	// ErrNotFound is returned by reads.
	ErrNotFound = errors.New("not found")
)

// LimitError is the denial of an admission by a limit.
type LimitError struct {
	Account Account
	Window  Window
	// Limit, Used and Held are in the account's unit, as the admitting transaction saw them; Spendable is the part of the limit
	// that the call could have taken.
	Limit, Spendable, Used, Held int64
	// Amount is what was asked for; nil if the call does not bound this unit.
	Amount *int64
	// RetryAfter is the least time after which the amount would be admitted if nothing else happened and every live hold
	// ran out unsettled. It has no meaning if Structural.
	RetryAfter time.Duration
	// Structural says that waiting does not help: the amount is more than the whole limit.
	Structural bool
}

// Shortfall is how much more the limit would have to allow.
func (e *LimitError) Shortfall() int64 {
	need := int64(1)
	if e.Amount != nil {
		need = *e.Amount
	}
	return need - (e.Spendable - e.Used - e.Held)
}

func (e *LimitError) Error() string {
	asked := "an unbounded amount"
	if e.Amount != nil {
		asked = FormatAmount(e.Account.Unit, *e.Amount)
	}
	return fmt.Sprintf("limit of %s reached: asked for %s, limit %s, used %s, held %s", e.Account, asked,
		FormatAmount(e.Account.Unit, e.Limit), FormatAmount(e.Account.Unit, e.Used), FormatAmount(e.Account.Unit, e.Held))
}

// RateError is the denial of an admission by a rate.
type RateError struct {
	Rate
	// RetryAfter is the time after which the rate's window closes. It has no meaning if Structural.
	RetryAfter time.Duration
	// Structural says that waiting does not help: nothing may ever begin.
	Structural bool
}

func (e *RateError) Error() string {
	return fmt.Sprintf("rate of %q reached: %d within %v", e.Key, e.Max, e.Window)
}

// CircuitError is the denial of an admission by an open circuit.
type CircuitError struct {
	Key string
	// RetryAfter is the least time after which an admission would pass if nothing else happened: a probe that is out is not heard of.
	RetryAfter time.Duration
}

func (e *CircuitError) Error() string { return fmt.Sprintf("the circuit of %q is open", e.Key) }

// DuplicateError is returned for a call whose idempotency key belongs to another call of the same owner that runs or has
// succeeded.
type DuplicateError struct {
	Call  uuid.UUID
	State State
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("the idempotency key belongs to call %s, which is %s", e.Call, e.State)
}
