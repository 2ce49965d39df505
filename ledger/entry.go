package ledger

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// entry is a record with its body read: one of the pointers is set, none for a decision, whose body is the caller's.
type entry struct {
	Record
	charge     *ChargeBody
	outcome    *OutcomeBody
	correction *CorrectionBody
	reset      *ResetBody
	closing    *ClosingBody
}

func readEntry(record Record) (entry, error) {
	e := entry{Record: record}
	var body any
	switch record.Kind {
	case DecisionRecord:
		return e, nil
	case ChargeRecord:
		e.charge = &ChargeBody{}
		body = e.charge
	case OutcomeRecord:
		e.outcome = &OutcomeBody{}
		body = e.outcome
	case CorrectionRecord:
		e.correction = &CorrectionBody{}
		body = e.correction
	case ResetRecord:
		e.reset = &ResetBody{}
		body = e.reset
	case ClosingRecord:
		e.closing = &ClosingBody{}
		body = e.closing
	default:
		return e, fmt.Errorf("ledger: record %d of stream %s is of an unknown kind, %q", record.Number, record.Writer, record.Kind)
	}
	if err := json.Unmarshal(record.Body, body); err != nil {
		return e, fmt.Errorf("ledger: record %d of stream %s: %w", record.Number, record.Writer, err)
	}
	return e, nil
}

// ended is the hold that the entry ended, by charging it or by its outcome; zero if it ended none.
func (e *entry) ended() uuid.UUID {
	switch {
	case e.charge != nil && !e.charge.Refund:
		return e.charge.Hold
	case e.outcome != nil:
		return e.outcome.Hold
	}
	return uuid.Nil
}

// lowered is the hold whose charge the entry lowered; zero if it lowered none.
func (e *entry) lowered() uuid.UUID {
	switch {
	case e.charge != nil && e.charge.Refund:
		return e.charge.Hold
	case e.correction != nil:
		return e.correction.Hold
	}
	return uuid.Nil
}

// made is the id of what is done once: what a person did, or a posting that bears one; zero for anything else.
func (e *entry) made() uuid.UUID {
	switch {
	case e.charge != nil:
		return e.charge.Posting
	case e.correction != nil:
		return e.correction.ID
	case e.reset != nil:
		return e.reset.ID
	case e.closing != nil:
		return e.closing.ID
	}
	return uuid.Nil
}

// amounts are what the entry charged to accounts, below 0 what it took back, and the totals that name the charges.
func (e *entry) amounts() (amounts, totals map[Account]int64) {
	switch {
	case e.charge != nil:
		return e.charge.Accounts, e.charge.Totals
	case e.correction != nil:
		return e.correction.Accounts, e.correction.Totals
	}
	return nil, nil
}

// charges are the rows of the charges that the entry made.
func (e *entry) charges() (rows []ChargeRow) {
	amounts, totals := e.amounts()
	for account, amount := range amounts {
		if total := totals[account]; amount > 0 && total > 0 {
			rows = append(rows, ChargeRow{Account: account, Total: total, At: e.At, Amount: amount})
		}
	}
	return rows
}

// sums are what the entry comes to for each account.
func (e *entry) sums() map[Account]Closed {
	if e.closing != nil {
		return e.closing.Accounts
	}
	amounts, totals := e.amounts()
	sums := make(map[Account]Closed, len(amounts))
	for account, amount := range amounts {
		sum := Closed{Used: amount}
		switch {
		case amount < 0 && totals[account] > 0:
			sum = Closed{Refunds: -amount, Refunded: totals[account]}
		case totals[account] == 0:
			sum.Unnamed = amount
		}
		sums[account] = sum
	}
	if e.reset != nil {
		for account, total := range e.reset.Accounts {
			sums[account] = Closed{Floor: total}
		}
	}
	return sums
}
