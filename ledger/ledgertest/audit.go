package ledgertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/google/uuid"

	"regent/ledger"
)

// Audit checks the books of a ledger at rest: nothing runs on the store, and every hold has ended. What it reads is the journal;
// everything else has to agree with it:
//
//   - the numbers of each stream go up from 1 without a gap,
//   - each hold has ended once: settled and charged, released and not charged, or expired and charged, each charge the one that
//     its usage and price make, or what was held, with at most one refund after an expiry,
//   - each call has a decision for each of its attempts and one terminal state, which its last outcome gave it,
//   - each account has used the sum of its charges and refunds, and nothing is held of it.
//
// Calls of the owners that the journal does not know are found too, and so is what is held of further accounts.
// All that is wrong is in the error, joined.
func Audit(ctx context.Context, store ledger.Store, owners []string, accounts ...ledger.Account) error {
	a := &audit{
		ctx: ctx, store: store, calls: map[uuid.UUID]*bookedCall{}, holds: map[uuid.UUID]*bookedHold{},
		sums: map[ledger.Account]int64{},
	}
	for _, account := range accounts {
		a.sums[account] = 0
	}
	for _, step := range []func() error{
		a.readJournal, func() error { return a.findCalls(owners) }, a.checkCalls, a.checkHolds, a.checkAccounts,
	} {
		if err := step(); err != nil { // the store cannot be read: what follows would find nothing but that
			return errors.Join(append(a.found, err)...)
		}
	}
	return errors.Join(a.found...)
}

// audit is what the journal says, and what was found wrong so far.
type audit struct {
	ctx   context.Context
	store ledger.Store
	calls map[uuid.UUID]*bookedCall
	holds map[uuid.UUID]*bookedHold
	sums  map[ledger.Account]int64
	found []error
}

// bookedCall is a call as its records have it.
type bookedCall struct {
	decisions int
	// states are the terminal states that its outcomes gave it.
	states []ledger.State
}

// bookedHold is a hold as its records have it.
type bookedHold struct {
	call              uuid.UUID
	charges, outcomes int
	refunds           []ledger.ChargeBody
	charge            ledger.ChargeBody
	outcome           ledger.OutcomeBody
}

func (a *audit) fault(format string, args ...any) {
	a.found = append(a.found, fmt.Errorf(format, args...))
}

func (a *audit) call(id uuid.UUID) *bookedCall {
	if a.calls[id] == nil {
		a.calls[id] = &bookedCall{}
	}
	return a.calls[id]
}

func (a *audit) hold(id, call uuid.UUID) *bookedHold {
	if a.holds[id] == nil {
		a.holds[id] = &bookedHold{call: call}
	}
	if a.holds[id].call != call {
		a.fault("hold %s has records of calls %s and %s", id, a.holds[id].call, call)
	}
	return a.holds[id]
}

// auditPage is how many records are read at a time.
const auditPage = 1000

// readJournal reads every stream from its beginning.
func (a *audit) readJournal() error {
	streams, err := a.store.Streams(a.ctx)
	if err != nil {
		return err
	}
	for _, stream := range streams {
		at := int64(0)
		for at < stream.Last {
			records, err := a.store.Records(a.ctx, stream.Writer, at, auditPage)
			if err != nil {
				return err
			}
			if len(records) == 0 {
				break
			}
			for _, record := range records {
				if record.Number != at+1 {
					a.fault("stream %s: record %d follows %d", stream.Writer, record.Number, at)
				}
				at = record.Number
				if err := a.read(record); err != nil {
					return fmt.Errorf("stream %s, record %d: %w", stream.Writer, record.Number, err)
				}
			}
		}
		if at != stream.Last {
			a.fault("stream %s ends at record %d, want %d", stream.Writer, at, stream.Last)
		}
	}
	return nil
}

// read books one record.
func (a *audit) read(record ledger.Record) error {
	switch record.Kind {
	case ledger.DecisionRecord:
		if record.Call != uuid.Nil {
			a.call(record.Call).decisions++
		}
	case ledger.ChargeRecord:
		var body ledger.ChargeBody
		if err := json.Unmarshal(record.Body, &body); err != nil {
			return err
		}
		for account, amount := range body.Accounts {
			a.sums[account] += amount
		}
		if body.Hold != uuid.Nil { // else a charge without a hold
			a.hold(body.Hold, record.Call).book(body)
		}
	case ledger.OutcomeRecord:
		var body ledger.OutcomeBody
		if err := json.Unmarshal(record.Body, &body); err != nil {
			return err
		}
		hold := a.hold(body.Hold, record.Call)
		hold.outcomes++
		hold.outcome = body
		if call := a.call(record.Call); body.State != "" {
			call.states = append(call.states, body.State)
		}
	}
	return nil
}

func (h *bookedHold) book(body ledger.ChargeBody) {
	if body.Refund {
		h.refunds = append(h.refunds, body)
		return
	}
	h.charges++
	h.charge = body
}

// findCalls adds the calls that have rows and no records.
func (a *audit) findCalls(owners []string) error {
	for _, owner := range owners {
		reports, err := a.store.Calls(a.ctx, ledger.CallQuery{Owner: owner, Limit: math.MaxInt32})
		if err != nil {
			return err
		}
		for _, report := range reports {
			a.call(report.ID)
		}
	}
	return nil
}

// checkCalls compares each call's row with its records. Holds that no record names are found by their calls.
func (a *audit) checkCalls() error {
	delete(a.calls, uuid.Nil)
	for id, booked := range a.calls {
		report, err := a.store.Call(a.ctx, id)
		if errors.Is(err, ledger.ErrNotFound) {
			a.fault("call %s is in the journal and has no row", id)
			continue
		}
		if err != nil {
			return err
		}
		for _, attempt := range report.Attempts {
			a.hold(attempt.Hold, id)
		}
		a.checkCall(report, booked)
	}
	return nil
}

func (a *audit) checkCall(report ledger.CallReport, booked *bookedCall) {
	if booked.decisions < max(1, len(report.Attempts)) {
		a.fault("call %s has %d decisions for %d attempts", report.ID, booked.decisions, len(report.Attempts))
	}
	if report.EndedAt.IsZero() || report.State == ledger.Held {
		a.fault("call %s has not ended: %s", report.ID, report.State)
	}
	want := []ledger.State{report.State}
	if report.State == ledger.Denied {
		want = nil // a denial has no outcome
		if len(report.Attempts) > 0 {
			a.fault("call %s is denied and has %d attempts", report.ID, len(report.Attempts))
		}
	}
	if !slices.Equal(booked.states, want) {
		a.fault("call %s is %s; its outcomes gave it %q", report.ID, report.State, booked.states)
	}
}

// checkHolds compares each hold's row with its records.
func (a *audit) checkHolds() error {
	ids := slices.Collect(maps.Keys(a.holds))
	for page := range slices.Chunk(ids, auditPage) {
		rows, err := a.store.Load(a.ctx, ledger.Keys{Holds: page})
		if err != nil {
			return err
		}
		for _, id := range page {
			row, ok := rows.Holds[id]
			if !ok {
				a.fault("hold %s is in the journal and has no row", id)
				continue
			}
			a.checkHold(row, a.holds[id])
		}
	}
	return nil
}

func (a *audit) checkHold(row ledger.HoldRow, booked *bookedHold) {
	if row.Call != booked.call {
		a.fault("hold %s is of call %s, its records of %s", row.ID, row.Call, booked.call)
	}
	if booked.outcomes != 1 {
		a.fault("hold %s (%s) has %d outcomes, want 1", row.ID, row.State, booked.outcomes)
	} else if booked.outcome.Result != row.Outcome.Result || booked.outcome.Reason != row.Outcome.Reason {
		a.fault("hold %s ended %+v, by its record %s %s", row.ID, row.Outcome, booked.outcome.Result, booked.outcome.Reason)
	}
	charges := 1
	switch row.State {
	case ledger.HoldReleased:
		charges = 0
	case ledger.HoldSettled, ledger.HoldExpired:
	default:
		a.fault("hold %s has not ended: %s until %v", row.ID, row.State, row.Deadline)
		return
	}
	if booked.charges != charges {
		a.fault("hold %s (%s) has %d charges, want %d", row.ID, row.State, booked.charges, charges)
		return
	}
	switch {
	case len(booked.refunds) > 1, len(booked.refunds) == 1 && row.State != ledger.HoldExpired:
		a.fault("hold %s (%s) has %d refunds", row.ID, row.State, len(booked.refunds))
	case charges == 1:
		a.checkCharge(row, booked)
	case row.Charge != ledger.Charge{}:
		a.fault("hold %s was released and charged %+v", row.ID, row.Charge)
	}
}

// checkCharge computes the charge of a hold again, and what became of it.
func (a *audit) checkCharge(row ledger.HoldRow, booked *bookedHold) {
	charge := booked.charge
	want, err := computed(row, charge)
	if err != nil {
		a.fault("hold %s: its charge cannot be computed: %w", row.ID, err)
		return
	}
	if got := (amounts{charge.Tokens, charge.NanoUSD}); got != want {
		a.fault("hold %s was charged %+v, want %+v", row.ID, got, want)
	}
	last := charge
	for _, refund := range booked.refunds {
		last = refund
	}
	if row.Charge.Tokens != last.Tokens || row.Charge.NanoUSD != last.NanoUSD {
		a.fault("hold %s has the charge %+v, its last record %+v", row.ID, row.Charge, amounts{last.Tokens, last.NanoUSD})
	}
	for _, account := range row.Accounts {
		sum := charge.Accounts[account]
		for _, refund := range booked.refunds {
			sum += refund.Accounts[account]
		}
		if end := (amounts{last.Tokens, last.NanoUSD}); sum != end.of(account.Unit) {
			a.fault("hold %s: %s was charged %d in the end, want %d", row.ID, account, sum, end.of(account.Unit))
		}
	}
}

type amounts struct{ tokens, nanoUSD int64 }

func (a amounts) of(unit ledger.Unit) int64 {
	if unit == ledger.USD {
		return a.nanoUSD
	}
	return a.tokens
}

// computed is what a charge's own facts come to: its usage at its price, at most what was held if it was estimated; what was held
// if the usage is not known.
func computed(row ledger.HoldRow, charge ledger.ChargeBody) (amounts, error) {
	if charge.Usage == nil {
		return amounts{orZero(row.Reserve.Tokens), orZero(row.Reserve.NanoUSD)}, nil
	}
	var want amounts
	var err error
	if want.tokens, err = charge.Usage.Tokens(); err != nil {
		return want, err
	}
	if charge.Price != nil {
		if want.nanoUSD, err = charge.Price.Cost(*charge.Usage); err != nil {
			return want, err
		}
	}
	if charge.Estimated && row.Reserve.Tokens != nil {
		want.tokens = min(want.tokens, *row.Reserve.Tokens)
	}
	if charge.Estimated && row.Reserve.NanoUSD != nil {
		want.nanoUSD = min(want.nanoUSD, *row.Reserve.NanoUSD)
	}
	return want, nil
}

func orZero(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// checkAccounts compares what each account has used with its charges.
func (a *audit) checkAccounts() error {
	rows, err := a.store.Load(a.ctx, ledger.Keys{
		Accounts: slices.Collect(maps.Keys(a.sums)), Standing: slices.Collect(maps.Keys(a.sums)),
	})
	if err != nil {
		return err
	}
	for account, sum := range a.sums {
		row := rows.Accounts[account]
		if row.Used-row.Refunds != sum {
			a.fault("%s has used %d; its charges and refunds come to %d", account, row.Used-row.Refunds, sum)
		}
		if live := len(rows.Standing[account]); row.Held != 0 || live != 0 {
			a.fault("%s: %d is held, %d holds live; want nothing", account, row.Held, live)
		}
	}
	return nil
}
