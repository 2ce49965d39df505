package engine

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"regent/ledger"
)

// UsageReport is what a host says that a call used.
type UsageReport struct {
	// Budget is what the call was resolved for: of whom, by which provider's model, for which task and kind of work.
	Budget
	// Reservation is the call's hold; nil charges the budget directly.
	Reservation *Reservation
	// Attempt names the attempt that a direct charge is for. If it holds money, that hold is settled; and it is charged once, however
	// often it is reported.
	Attempt uuid.UUID
	// Scopes are further accounts of a direct charge: those of the request and of its candidate.
	Scopes []Scope
	Usage  ledger.Usage
	// NanoUSD is what the call cost, if the host knows that. nil leaves it to the price that is frozen with the hold; a direct charge and
	// a hold without a price cost nothing then.
	NanoUSD *int64
}

// RecordUsage charges what was used and gives the rest of the hold back; without a hold it charges the budget directly. It
// returns an [*Error].
func (r *Router) RecordUsage(ctx context.Context, report UsageReport) (ledger.Charge, error) {
	kind, err := kindOf(report.Kind)
	if err != nil {
		return ledger.Charge{}, err
	}
	report.Kind = kind
	if err := r.checkIdentity(report.Identity, report.Verified); err != nil {
		return ledger.Charge{}, err
	}
	if report.Reservation != nil {
		return r.settle(ctx, *report.Reservation, &report)
	}
	if report.Attempt != uuid.Nil {
		if charge, held, err := r.settleAttempt(ctx, &report); held || err != nil {
			return charge, err
		}
	}
	return r.post(ctx, &report)
}

// post charges a budget directly.
func (r *Router) post(ctx context.Context, report *UsageReport) (ledger.Charge, error) {
	if !isName(report.Provider) || !isName(report.Model) {
		return ledger.Charge{}, invalid("a direct charge names the provider and the model that served")
	}
	candidate := report.candidate()
	request := Request{Identity: report.Identity, TaskID: report.TaskID, Scopes: report.Scopes}
	request.Facts.Kind = report.Kind
	posting := ledger.Posting{
		ID: report.Attempt, Usage: report.Usage, NanoUSD: value(report.NanoUSD), Source: candidate.Source, Provider: candidate.Provider,
	}
	posting.Accounts, posting.Limits = charged(r.scopes(&request, candidate))
	tokens, err := report.Usage.Tokens()
	if err == nil {
		err = r.Ledger.Post(ctx, posting)
	}
	if err != nil {
		return ledger.Charge{}, storeError(err)
	}
	return ledger.Charge{Tokens: tokens, NanoUSD: value(report.NanoUSD)}, nil
}

// settle ends a reservation with a usage.
func (r *Router) settle(ctx context.Context, reservation Reservation, report *UsageReport) (ledger.Charge, error) {
	ending, err := r.ending(&report.Budget, reservation)
	if err != nil {
		return ledger.Charge{}, storeError(err)
	}
	ending.State, ending.Outcome = ledger.Completed, ledger.Outcome{Result: ledger.Success}
	charge, err := r.Ledger.Settle(ctx, ending, ledger.Consumption{Usage: &report.Usage, NanoUSD: report.NanoUSD})
	if err != nil {
		return ledger.Charge{}, storeError(err)
	}
	return charge, nil
}

// settleAttempt ends the hold that an attempt has, whatever its newest token is. held is false if it has none. One that has ended answers
// as it does to its own reservation: the same report again gets the same charge, and any other is STATE.
func (r *Router) settleAttempt(ctx context.Context, report *UsageReport) (charge ledger.Charge, held bool, err error) {
	for {
		rows, err := r.Ledger.Store().Load(ctx, ledger.Keys{Holds: []uuid.UUID{report.Attempt}})
		if err != nil {
			return ledger.Charge{}, false, storeError(err)
		}
		row, known := rows.Holds[report.Attempt]
		switch {
		case !known:
			return ledger.Charge{}, false, nil
		case !r.isOf(&row, &report.Budget):
			return ledger.Charge{}, false, storeError(ledger.ErrState)
		}
		charge, err := r.settle(ctx, Reservation{ID: report.Attempt, Token: row.Token}, report)
		if err == nil || row.State != ledger.HoldLive || !errors.Is(err, ledger.ErrState) || errors.Is(err, ledger.ErrExpired) {
			return charge, true, err
		}
		// it was renewed or ended meanwhile
	}
}
