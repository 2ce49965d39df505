package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// renew is the operation behind [Ledger.Renew].
type renew struct {
	id    uuid.UUID
	token int64
	ttl   time.Duration
	hold  Hold
}

func (op *renew) keys(keys *Keys, _ time.Time) { keys.Holds = append(keys.Holds, op.id) }

func (op *renew) decide(_ context.Context, b *batch) error {
	hold, ok := b.rows.Holds[op.id]
	switch {
	case ok && hold.State == HoldExpired:
		return ErrExpired
	case !ok || hold.State != HoldLive || !b.isNewest(hold, op.token):
		return ErrState
	}
	hold.Deadline = later(hold.Deadline, b.rows.Now.Add(op.ttl))
	hold.Token++
	b.setHold(hold)
	op.hold = Hold{ID: hold.ID, Token: hold.Token, Deadline: hold.Deadline, AdmittedAt: hold.AdmittedAt}
	return nil
}

// end is the operation behind [Ledger.Settle] and [Ledger.Release]; a release has no consumption.
type end struct {
	Ending
	consumption *Consumption
	charge      Charge
}

func (op *end) keys(keys *Keys, _ time.Time) { op.Ending.keys(keys) }

// keys names the hold that ends.
func (e *Ending) keys(keys *Keys) {
	keys.Ends = append(keys.Ends, e.Hold)
	if e.Health == Failing {
		keys.Failing = append(keys.Failing, e.Hold)
	}
}

func (op *end) decide(_ context.Context, b *batch) error {
	op.charge = Charge{}
	hold, ok := b.rows.Holds[op.Hold]
	if !ok || !op.isOf(&hold) {
		return ErrState
	}
	if err := hold.checkCost(op.consumption); err != nil {
		return err
	}
	digest := op.digest(op.consumption)
	switch {
	case hold.State == HoldExpired:
		return op.late(b, hold)
	case hold.State != HoldLive && hold.Digest == digest:
		op.charge = hold.Charge
		return nil
	case hold.State != HoldLive || !b.isNewest(hold, op.Token):
		return ErrState
	}
	state := HoldSettled
	if op.consumption == nil {
		state = HoldReleased
	}
	charge, err := b.finish(hold, op.Ending, state, op.consumption, b.rows.Now, digest)
	op.charge = charge
	return err
}

// isOf says whether the hold is its caller's, as far as that is asked.
func (e *Ending) isOf(hold *HoldRow) bool {
	return (e.Account == Account{} || slices.Contains(hold.Accounts, e.Account)) && (e.Provider == "" || e.Provider == hold.Provider)
}

// late answers a settlement of a hold that has expired and was charged. A known usage lowers the charge once, if the ledger
// allows it and it is not too late; the refund leaves the windows together with its charge.
func (op *end) late(b *batch, hold HoldRow) error {
	if op.consumption == nil || !b.isNewest(hold, op.Token) {
		return ErrExpired
	}
	op.charge = hold.Charge
	usage := op.consumption.Usage
	if usage == nil || op.consumption.Estimated || hold.Refunded || b.rows.Now.Sub(hold.EndedAt) > b.lateRefund || b.lateRefund == 0 {
		return nil
	}
	used, err := hold.consumed(op.consumption)
	if err != nil { // what cannot be priced lowers nothing, either
		return nil
	}
	refunds := make(map[Account]int64, len(hold.Accounts))
	for account, total := range hold.Totals {
		if refund := *hold.Reserve.Of(account.Unit) - used.Of(account.Unit); refund > 0 {
			b.refund(Mark{account, total}, refund)
			refunds[account] = -refund
		}
	}
	hold.Usage, hold.Refunded = usage, true
	for _, unit := range Units {
		*hold.Charge.in(unit) = min(hold.Charge.Of(unit), used.Of(unit))
	}
	b.setHold(hold)
	body := hold.chargeBody(refunds)
	body.Refund, body.ToldNanoUSD = true, op.consumption.NanoUSD
	op.charge = hold.Charge
	return b.record(ChargeRecord, hold.Call, b.rows.Now, body)
}

// refund takes back a part of a charge, and leaves every window together with it: a charge of its own, below 0, would stay for
// longer than what it takes back, and let more be used meanwhile than the limit.
func (b *batch) refund(charge Mark, amount int64) {
	row := b.rows.Accounts[charge.Account]
	row.Refunds += amount
	row.Refunded = max(row.Refunded, charge.Total)
	b.setAccount(charge.Account, row)
	b.changes.Refunds[charge] += amount
}

// digest identifies what a settlement says, so that a repeated one is told from another.
func (e *Ending) digest(consumption *Consumption) [32]byte {
	text, _ := json.Marshal(struct { // plain numbers and strings always marshal
		Outcome     Outcome
		State       State
		Consumption *Consumption
		Health      Health `json:",omitempty"` // as if there were none, as in digests that were stored when there was none
		Unused      bool   `json:",omitempty"`
	}{e.Outcome, e.State, consumption, e.Health, e.Unused})
	return sha256.Sum256(text)
}

// post is the operation behind [Ledger.Post].
type post struct{ Posting }

func (op *post) keys(keys *Keys, _ time.Time) {
	keys.Accounts = append(keys.Accounts, op.Accounts...)
	if op.ID != uuid.Nil {
		keys.Amendments = append(keys.Amendments, op.ID)
		keys.Holds = append(keys.Holds, op.ID)
	}
}

func (op *post) decide(_ context.Context, b *batch) error {
	if op.ID != uuid.Nil {
		if _, held := b.rows.Holds[op.ID]; held {
			return fmt.Errorf("%w: %s is the id of a hold", ErrState, op.ID)
		}
		if made, err := b.isMade(op.ID, op.Posting); made || err != nil {
			return err
		}
	}
	tokens, err := op.Usage.Tokens()
	if err != nil {
		return err
	}
	for _, account := range op.Accounts {
		if row := b.rows.Accounts[account]; !hasRoom(row.Used, row.Held, max(tokens, op.NanoUSD, op.NanoCredits)) {
			return ErrOverflow
		}
	}
	at := b.dated(b.rows.Now, op.Accounts)
	for _, account := range op.Accounts {
		row := b.rows.Accounts[account]
		row.open(op.Limits[account], at)
		b.setAccount(account, row)
	}
	charge := Charge{Tokens: tokens, NanoUSD: op.NanoUSD, NanoCredits: op.NanoCredits}
	body := ChargeBody{
		Posting: op.ID, Source: op.Source, Provider: op.Provider, Usage: &op.Usage,
		Tokens: tokens, NanoUSD: op.NanoUSD, NanoCredits: op.NanoCredits,
	}
	body.Accounts, body.Totals = b.postAll(op.Accounts, charge, at)
	if op.ID != uuid.Nil {
		b.setMade(op.ID, op.Posting)
	}
	return b.record(ChargeRecord, uuid.Nil, at, body)
}

// postAll charges accounts, each in its unit, and names the charges.
func (b *batch) postAll(accounts []Account, charge Charge, at time.Time) (amounts, totals map[Account]int64) {
	amounts, totals = make(map[Account]int64, len(accounts)), make(map[Account]int64, len(accounts))
	for _, account := range accounts {
		amounts[account] = charge.Of(account.Unit)
		if total := b.post(account, amounts[account], at); total > 0 {
			totals[account] = total
		}
	}
	return amounts, totals
}

// refuse is the operation behind [Ledger.Refuse].
type refuse struct {
	call     *Call
	decision []byte
}

func (op *refuse) keys(keys *Keys, _ time.Time) {
	if op.call != nil {
		keys.Calls = append(keys.Calls, op.call.ID)
	}
}

func (op *refuse) decide(_ context.Context, b *batch) error {
	id := uuid.Nil
	if op.call != nil {
		call, exists := b.rows.Calls[op.call.ID]
		if exists && call.State == Denied {
			return nil
		}
		if exists {
			return ErrState
		}
		call = *op.call
		call.State, call.CreatedAt, call.EndedAt = Denied, b.rows.Now, b.rows.Now
		b.setCall(call)
		id = call.ID
	}
	return b.record(DecisionRecord, id, b.rows.Now, op.decision)
}
