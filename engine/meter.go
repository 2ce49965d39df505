package engine

import (
	"time"

	"regent/engine/policy"
	"regent/ledger"
)

// Meter counts and times what calls do. Its methods are called on the path of a call, from many goroutines: they must not block.
type Meter interface {
	// Judged tells of one candidate's decision by policy.
	Judged(took time.Duration, decision policy.Decision, err error)
	// Admitted tells of one admission by the ledger. err is nil for a hold, and wraps a [*ledger.LimitError],
	// a [*ledger.RateError] or a [*ledger.CircuitError] if a limit, a rate or a circuit denied it.
	Admitted(took time.Duration, err error)
	// Contacted tells of one attempt's end.
	Contacted(took time.Duration, candidate *Candidate, outcome ledger.Outcome)
	// Renewed tells of a hold's renewal.
	Renewed(took time.Duration, err error)
	// Settled tells that a hold has ended: its end is written, or somebody else had written one before.
	Settled(took time.Duration)
	// Ended tells of a call's terminal state, with what the caller is told; nil if the call was completed.
	Ended(state ledger.State, err error)
}

// unmetered is the meter of a router that has none.
type unmetered struct{}

func (unmetered) Judged(time.Duration, policy.Decision, error)        {}
func (unmetered) Admitted(time.Duration, error)                       {}
func (unmetered) Contacted(time.Duration, *Candidate, ledger.Outcome) {}
func (unmetered) Renewed(time.Duration, error)                        {}
func (unmetered) Settled(time.Duration)                               {}
func (unmetered) Ended(ledger.State, error)                           {}
