package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// operation is one thing that waits for the writer. decide may run more than once, each time on a fresh batch, and leaves
// its answer in the operation; an error that it returns is the operation's own and changes nothing in the batch.
type operation interface {
	// keys names what decide will read, at about a time, so that it is read in one round trip. Where that is not known, or the guess
	// is wrong, decide reads more.
	keys(keys *Keys, about time.Time)
	decide(context.Context, *batch) error
}

// batch is one transaction in the making: the rows that were read, and what has changed in them.
type batch struct {
	tx      Tx
	rows    *Rows
	changes Changes
	writer  uuid.UUID
	// unsure are holds whose newest token may be another than their owner's; nil outside of a ledger.
	unsure unsure
	// proves says that transactions have failed, so that a sweep writes to find out whether that works again.
	proves bool
	// suspendedUntil is the end of a suspension of expiry; zero if there is none.
	suspendedUntil time.Time
	lateRefund     time.Duration
	expiries       []Expiry
}

func newBatch(tx Tx, rows *Rows) *batch {
	return &batch{tx: tx, rows: rows, changes: Changes{
		Accounts: map[Account]AccountRow{}, Holds: map[uuid.UUID]HoldRow{}, Calls: map[uuid.UUID]Call{},
		Prices: map[[32]byte]Price{}, Refunds: map[Mark]int64{}, Amendments: map[uuid.UUID]AmendmentRow{},
	}}
}

// pending are the charges of an account that this batch has made.
func (b *batch) pending(account Account) (charges []ChargeRow) {
	for _, charge := range b.changes.Charges {
		if charge.Account == account {
			charges = append(charges, charge)
		}
	}
	return charges
}

// charge finds a charge by its total, with what was taken back of it so far.
func (b *batch) charge(ctx context.Context, mark Mark) (ChargeRow, bool, error) {
	rows, err := b.tx.Load(ctx, Keys{Marks: []Mark{mark}})
	if err != nil {
		return ChargeRow{}, false, err
	}
	charge, found := rows.Marks[mark]
	for _, pending := range b.pending(mark.Account) {
		if !found && pending.Total >= mark.Total {
			charge, found = pending, true
		}
	}
	charge.Refunded += b.changes.Refunds[mark]
	return charge, found && charge.Total == mark.Total, nil
}

// loadAccounts reads further accounts into the batch, without losing what it has changed.
func (b *batch) loadAccounts(ctx context.Context, accounts []Account) error {
	var keys Keys
	for _, account := range accounts {
		if _, known := b.rows.Accounts[account]; !known {
			keys.Accounts = append(keys.Accounts, account)
		}
	}
	if len(keys.Accounts) == 0 {
		return nil
	}
	rows, err := b.tx.Load(ctx, keys)
	if err == nil {
		maps.Copy(b.rows.Accounts, rows.Accounts)
	}
	return err
}

func (b *batch) setAccount(account Account, row AccountRow) {
	b.rows.Accounts[account] = row
	b.changes.Accounts[account] = row
}

func (b *batch) setHold(row HoldRow) {
	b.rows.Holds[row.ID] = row
	b.changes.Holds[row.ID] = row
}

func (b *batch) setCall(row Call) {
	b.rows.Calls[row.ID] = row
	b.changes.Calls[row.ID] = row
	if row.IdempotencyKey == "" {
		return
	}
	key := IdempotencyKey{row.Owner, row.IdempotencyKey}
	if row.State == Held || row.State == Completed {
		b.rows.Idempotency[key] = row.ID
	} else if b.rows.Idempotency[key] == row.ID {
		delete(b.rows.Idempotency, key)
	}
}

// record appends to the journal. The body is marshalled here unless it is the caller's own JSON.
func (b *batch) record(kind Kind, call uuid.UUID, at time.Time, body any) error {
	raw, ok := body.([]byte)
	if !ok {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return fmt.Errorf("ledger: %s record: %w", kind, err)
		}
	}
	b.rows.Last++
	b.changes.Records = append(b.changes.Records, Record{
		Writer: b.writer, Number: b.rows.Last, At: at, Kind: kind, Call: call, Body: raw,
	})
	return nil
}

// expireDue ends every hold whose deadline has passed: its reserve is charged, dated at the deadline or at the end of a
// suspension if that is later, and its call fails.
func (b *batch) expireDue() error {
	if b.rows.Now.Before(b.suspendedUntil) {
		return nil
	}
	for _, id := range b.rows.Due {
		hold := b.rows.Holds[id]
		charge, err := b.finish(hold, Ending{Hold: id, Outcome: Outcome{Result: Expired, Reason: "deadline"}, State: Failed},
			HoldExpired, &Consumption{}, later(hold.Deadline, b.suspendedUntil), [32]byte{})
		if err != nil {
			return err
		}
		b.expiries = append(b.expiries, Expiry{Hold: id, Call: hold.Call, Source: hold.Source, Provider: hold.Provider, Charge: charge})
	}
	return nil
}

// finish ends a live hold in every row that knows of it. A nil consumption charges nothing.
func (b *batch) finish(hold HoldRow, ending Ending, state HoldState, consumption *Consumption, at time.Time, digest [32]byte) (Charge, error) {
	amounts, charge, err := hold.amounts(consumption)
	if err != nil {
		return Charge{}, err
	}
	at = b.dated(at, hold.Accounts)
	for _, account := range hold.Accounts {
		row := b.rows.Accounts[account]
		if !hasRoom(row.Used, hold.heldByOthers(account, row), amounts[account]) {
			return Charge{}, ErrOverflow
		}
	}
	hold.Totals = map[Account]int64{}
	for _, account := range hold.Accounts {
		row := b.rows.Accounts[account]
		row.Held = hold.heldByOthers(account, row)
		b.setAccount(account, row)
		if total := b.post(account, amounts[account], at); total > 0 {
			hold.Totals[account] = total
		}
	}
	hold.State, hold.EndedAt, hold.Outcome, hold.Charge, hold.Digest = state, at, ending.Outcome, charge, digest
	if consumption != nil {
		hold.Usage = consumption.Usage
	}
	b.setHold(hold)
	b.tellGates(&hold, &ending)
	b.endCall(hold.Call, ending.State, at)
	if ending.Decision != nil {
		if err := b.record(DecisionRecord, hold.Call, at, ending.Decision); err != nil {
			return Charge{}, err
		}
	}
	if consumption != nil {
		body := hold.chargeBody(amounts)
		body.ToldNanoUSD = consumption.NanoUSD
		if err := b.record(ChargeRecord, hold.Call, at, body); err != nil {
			return Charge{}, err
		}
	}
	return charge, b.record(OutcomeRecord, hold.Call, at, hold.outcomeBody(ending.State))
}

// endCall moves a held call to its terminal state. An empty state leaves it held: another attempt follows. A call that is
// not held keeps its state, which is terminal.
func (b *batch) endCall(id uuid.UUID, state State, at time.Time) {
	call, ok := b.rows.Calls[id]
	if !ok || state == "" || call.State != Held {
		return
	}
	call.State, call.EndedAt = state, at
	b.setCall(call)
}

// heldByOthers is what is held of an account without this hold.
func (h *HoldRow) heldByOthers(account Account, row AccountRow) int64 {
	if reserved := h.Reserve.Of(account.Unit); reserved != nil && slices.Contains(h.Accounts, account) {
		return row.Held - *reserved
	}
	return row.Held
}

// hasRoom says whether an account can take further amounts. What is used and held stays within [NanoUSDMax] together, so that a
// hold can always be charged at what it held: an expiry never fails.
func hasRoom(used, held int64, amounts ...int64) bool {
	room := int64(NanoUSDMax) - used - held
	for _, amount := range amounts {
		room -= amount
	}
	return room >= 0
}

// amounts computes what a consumption charges to each account, and in sum.
func (h *HoldRow) amounts(consumption *Consumption) (map[Account]int64, Charge, error) {
	amounts := make(map[Account]int64, len(h.Accounts))
	if consumption == nil {
		return amounts, Charge{}, nil
	}
	charge := Charge{Estimated: consumption.Estimated && consumption.Usage != nil, UnknownUsage: consumption.Usage == nil}
	used, err := h.consumed(consumption)
	switch {
	case errors.Is(err, ErrUnpriced): // what is known of the cost, but never less than what was held for it
		charge.UnknownUsage = true
		if held := h.Reserve.NanoUSD; held != nil {
			used.NanoUSD = max(used.NanoUSD, *held)
		}
	case err != nil:
		return nil, Charge{}, err
	}
	for _, unit := range Units {
		amount, reserved := used.Of(unit), h.Reserve.Of(unit)
		if reserved != nil && amount > *reserved {
			if charge.Estimated {
				amount = *reserved
			} else {
				charge.Overage = true
			}
		}
		*charge.in(unit) = amount
	}
	for _, account := range h.Accounts {
		amounts[account] = charge.Of(account.Unit)
	}
	return amounts, charge, nil
}

// checkCost returns [ErrInvalid] for a cost that is told of a hold whose price says it.
func (h *HoldRow) checkCost(consumption *Consumption) error {
	if consumption != nil && consumption.NanoUSD != nil && h.Price != nil {
		return fmt.Errorf("%w: the cost of what has a price is computed, and not told", ErrInvalid)
	}
	return nil
}

// consumed is what was used in every unit; unknown usage is what was held. It returns [ErrUnpriced] with what is known of the cost.
func (h *HoldRow) consumed(consumption *Consumption) (used Charge, err error) {
	usage := consumption.Usage
	if usage == nil {
		for _, unit := range Units {
			if held := h.Reserve.Of(unit); held != nil {
				*used.in(unit) = *held
			}
		}
		return used, nil
	}
	if used.Tokens, err = usage.Tokens(); err != nil {
		return used, err
	}
	if h.CreditRate != nil {
		if used.NanoCredits, err = h.CreditRate.Credits(*usage); err != nil {
			return used, err
		}
	}
	switch {
	case h.Price != nil:
		used.NanoUSD, err = h.Price.Cost(*usage)
	case consumption.NanoUSD != nil:
		used.NanoUSD = *consumption.NanoUSD
	}
	return used, err
}

func (h *HoldRow) chargeBody(amounts map[Account]int64) ChargeBody {
	return ChargeBody{
		Hold: h.ID, Source: h.Source, Provider: h.Provider, Usage: h.Usage, Price: h.Price, CreditRate: h.CreditRate,
		Tokens: h.Charge.Tokens, NanoUSD: h.Charge.NanoUSD, NanoCredits: h.Charge.NanoCredits, Accounts: amounts, Totals: h.Totals,
		Estimated: h.Charge.Estimated, UnknownUsage: h.Charge.UnknownUsage, Overage: h.Charge.Overage,
	}
}

func (h *HoldRow) outcomeBody(state State) OutcomeBody {
	return OutcomeBody{
		Hold: h.ID, Source: h.Source, Provider: h.Provider,
		Result: h.Outcome.Result, Reason: h.Outcome.Reason, Status: h.Outcome.Status, State: state,
		Usage: h.Usage, Tokens: h.Charge.Tokens, USD: FormatUSD(h.Charge.NanoUSD), Credits: FormatCredits(h.Charge.NanoCredits),
		Estimated: h.Charge.Estimated, UnknownUsage: h.Charge.UnknownUsage, Overage: h.Charge.Overage,
		AdmittedAt: h.AdmittedAt.UnixMicro(), EndedAt: h.EndedAt.UnixMicro(),
	}
}

// dated is the time of what happens to several accounts at once: never before the newest entry of one of them.
func (b *batch) dated(at time.Time, accounts []Account) time.Time {
	for _, account := range accounts {
		at = later(at, b.rows.Accounts[account].TouchedAt)
	}
	return at
}

// post charges an account at a time that is dated, and opens every known fixed window that has closed by then. It returns the total
// that names the charge; 0 if there is none.
func (b *batch) post(account Account, amount int64, at time.Time) int64 {
	row := b.rows.Accounts[account]
	row.TouchedAt = at
	if amount == 0 {
		b.setAccount(account, row)
		return 0
	}
	row = row.charged(amount, at)
	b.setAccount(account, row)
	b.changes.Charges = append(b.changes.Charges, ChargeRow{Account: account, Total: row.Used, At: at, Amount: amount})
	return row.Used
}

// charged is the row after a charge, which opens each fixed window that is closed and stands in it.
func (r AccountRow) charged(amount int64, at time.Time) AccountRow {
	r.Openings = maps.Clone(r.Openings)
	for length, opened := range r.Openings {
		if !(Fixed{length}).isOpen(opened, at) {
			r.Openings[length] = OpeningRow{At: at, Total: r.Used}
		}
	}
	r.Used += amount
	r.ChargedAt = at
	return r
}
