package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// operation is one thing that waits for the writer. decide may run more than once, each time on a fresh batch, and leaves
// its answer in the operation; an error that it returns is the operation's own and changes nothing in the batch.
type operation interface {
	keys(*Keys)
	decide(context.Context, *batch) error
}

// batch is one transaction in the making: the rows that were read, and what has changed in them.
type batch struct {
	tx      Tx
	rows    *Rows
	changes Changes
	writer  uuid.UUID
	// suspendedUntil is the end of a suspension of expiry; zero if there is none.
	suspendedUntil time.Time
	lateRefund     time.Duration
	expiries       []Expiry
}

func newBatch(tx Tx, rows *Rows) *batch {
	return &batch{tx: tx, rows: rows, changes: Changes{
		Accounts: map[Account]AccountRow{}, Holds: map[uuid.UUID]HoldRow{}, Calls: map[uuid.UUID]Call{},
		Prices: map[[32]byte]Price{},
	}}
}

// load reads further rows into the batch, without losing what it has changed.
func (b *batch) load(ctx context.Context, keys Keys) error {
	rows, err := b.tx.Load(ctx, keys)
	if err != nil {
		return err
	}
	for account, row := range rows.Accounts {
		if _, changed := b.changes.Accounts[account]; !changed {
			b.rows.Accounts[account] = row
		}
	}
	for id, row := range rows.Holds {
		if _, changed := b.changes.Holds[id]; !changed {
			b.rows.Holds[id] = row
		}
	}
	for id, row := range rows.Calls {
		if _, changed := b.changes.Calls[id]; !changed {
			b.rows.Calls[id] = row
		}
	}
	if b.rows.Standing == nil {
		b.rows.Standing = rows.Standing
	} else {
		maps.Copy(b.rows.Standing, rows.Standing)
	}
	return nil
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
func (b *batch) expireDue(ctx context.Context) error {
	if len(b.rows.Due) == 0 || b.rows.Now.Before(b.suspendedUntil) {
		return nil
	}
	var keys Keys
	for _, id := range b.rows.Due {
		hold := b.rows.Holds[id]
		keys.Accounts = append(keys.Accounts, hold.Accounts...)
		if hold.Call != uuid.Nil {
			keys.Calls = append(keys.Calls, hold.Call)
		}
	}
	if err := b.load(ctx, keys); err != nil {
		return err
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
	for _, account := range hold.Accounts {
		row := b.rows.Accounts[account]
		if !hasRoom(row.Used, hold.heldByOthers(account, row), amounts[account]) {
			return Charge{}, ErrOverflow
		}
	}
	for _, account := range hold.Accounts {
		row := b.rows.Accounts[account]
		row.Held = hold.heldByOthers(account, row)
		row.post(amounts[account], at)
		b.setAccount(account, row)
	}
	hold.State, hold.EndedAt, hold.Outcome, hold.Charge, hold.Digest = state, at, ending.Outcome, charge, digest
	if consumption != nil {
		hold.Usage = consumption.Usage
	}
	b.setHold(hold)
	b.endCall(hold.Call, ending.State, at)
	if ending.Decision != nil {
		if err := b.record(DecisionRecord, hold.Call, at, ending.Decision); err != nil {
			return Charge{}, err
		}
	}
	if consumption != nil {
		if err := b.record(ChargeRecord, hold.Call, at, hold.chargeBody(amounts)); err != nil {
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
	if reserved := h.Reserve.of(account.Unit); reserved != nil && slices.Contains(h.Accounts, account) {
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
	used, err := h.consumed(consumption.Usage)
	if err != nil {
		return nil, Charge{}, err
	}
	for _, unit := range []Unit{Tokens, USD} {
		amount, reserved := *used.of(unit), h.Reserve.of(unit)
		if reserved != nil && amount > *reserved {
			if charge.Estimated {
				amount = *reserved
			} else {
				charge.Overage = true
			}
		}
		if unit == USD {
			charge.NanoUSD = amount
		} else {
			charge.Tokens = amount
		}
	}
	for _, account := range h.Accounts {
		if account.Unit == USD {
			amounts[account] = charge.NanoUSD
		} else {
			amounts[account] = charge.Tokens
		}
	}
	return amounts, charge, nil
}

// consumed is usage in both units; unknown usage is what was held.
func (h *HoldRow) consumed(usage *Usage) (Reserve, error) {
	var tokens, nano int64
	if usage == nil {
		if h.Reserve.Tokens != nil {
			tokens = *h.Reserve.Tokens
		}
		if h.Reserve.NanoUSD != nil {
			nano = *h.Reserve.NanoUSD
		}
		return Reserve{&tokens, &nano}, nil
	}
	tokens, err := usage.Tokens()
	if err != nil {
		return Reserve{}, err
	}
	if h.Price != nil {
		if nano, err = h.Price.Cost(*usage); err != nil {
			return Reserve{}, err
		}
	}
	return Reserve{&tokens, &nano}, nil
}

func (h *HoldRow) chargeBody(amounts map[Account]int64) ChargeBody {
	return ChargeBody{
		Hold: h.ID, Source: h.Source, Provider: h.Provider, Usage: h.Usage, Price: h.Price,
		Tokens: h.Charge.Tokens, NanoUSD: h.Charge.NanoUSD, Accounts: amounts,
		Estimated: h.Charge.Estimated, UnknownUsage: h.Charge.UnknownUsage, Overage: h.Charge.Overage,
	}
}

func (h *HoldRow) outcomeBody(state State) OutcomeBody {
	return OutcomeBody{
		Hold: h.ID, Source: h.Source, Provider: h.Provider,
		Result: h.Outcome.Result, Reason: h.Outcome.Reason, Status: h.Outcome.Status, State: state,
		Usage: h.Usage, Tokens: h.Charge.Tokens, USD: FormatUSD(h.Charge.NanoUSD),
		Estimated: h.Charge.Estimated, UnknownUsage: h.Charge.UnknownUsage, Overage: h.Charge.Overage,
		AdmittedAt: h.AdmittedAt.UnixMicro(), EndedAt: h.EndedAt.UnixMicro(),
	}
}

// post adds a charge to the account at a time that never lies before its newest entry, and opens every known window that
// has closed by then.
func (r *AccountRow) post(amount int64, at time.Time) {
	at = later(at, r.TouchedAt)
	r.TouchedAt = at
	if amount == 0 {
		return
	}
	r.Openings = maps.Clone(r.Openings)
	for length, opened := range r.Openings {
		if !(Fixed{length}).isOpen(opening(opened.state()), at) {
			r.Openings[length] = OpeningRow{At: at, Total: r.Used}
		}
	}
	r.Used += amount
}

func (o OpeningRow) state() opening { return opening{at: o.At, total: o.Total} }

// usedIn is what was charged in a window that is open at a time.
func (r *AccountRow) usedIn(window Fixed, at time.Time) int64 {
	opened := r.Openings[window.Length]
	if !window.isOpen(opened.state(), at) {
		return 0
	}
	return r.Used - opened.Total
}

// admit is the operation behind [Ledger.Admit].
type admit struct {
	Admission
	hold Hold
}

func (op *admit) keys(keys *Keys) {
	keys.Holds = append(keys.Holds, op.Hold)
	for _, claim := range op.Claims {
		keys.Accounts = append(keys.Accounts, claim.Account)
	}
	if op.Call != nil {
		keys.Calls = append(keys.Calls, op.Call.ID)
		if op.Call.IdempotencyKey != "" {
			keys.Idempotency = append(keys.Idempotency, IdempotencyKey{op.Call.Owner, op.Call.IdempotencyKey})
		}
	}
	if op.Replaces != nil {
		keys.Holds = append(keys.Holds, op.Replaces.Hold)
	}
}

func (op *admit) decide(ctx context.Context, b *batch) error {
	op.hold = Hold{}
	if row, ok := b.rows.Holds[op.Hold]; ok {
		return op.again(b, row)
	}
	if err := op.checkCall(b); err != nil {
		return err
	}
	replaced, err := op.checkReplaced(ctx, b)
	if err != nil {
		return err
	}
	at := b.rows.Now
	for _, claim := range op.Claims {
		at = later(at, b.rows.Accounts[claim.Account].TouchedAt)
	}
	if err := op.checkLimits(ctx, b, at, replaced); err != nil {
		return err
	}
	if replaced != nil {
		state := HoldSettled
		if op.Replaces.Consumption == nil {
			state = HoldReleased
		}
		digest := op.Replaces.digest(op.Replaces.Consumption)
		if _, err := b.finish(*replaced, op.Replaces.Ending, state, op.Replaces.Consumption, b.rows.Now, digest); err != nil {
			return err
		}
	}
	return op.apply(b, at)
}

// answer is what the caller is told of its hold.
func (op *admit) answer(b *batch, row HoldRow) {
	op.hold = Hold{ID: row.ID, Token: row.Token, Deadline: row.Deadline}
	if op.Replaces != nil {
		op.hold.Replaced = b.rows.Holds[op.Replaces.Hold].Charge
	}
}

// again answers an admission whose hold exists already.
func (op *admit) again(b *batch, row HoldRow) error {
	if op.Call != nil && row.Call != op.Call.ID || row.State != HoldLive {
		return ErrState
	}
	op.answer(b, row)
	return nil
}

// checkCall sees that the call is new, or runs and its last attempt is being replaced.
func (op *admit) checkCall(b *batch) error {
	if op.Call == nil {
		return nil
	}
	call, exists := b.rows.Calls[op.Call.ID]
	if exists != (op.Replaces != nil) || exists && call.State != Held {
		return ErrState
	}
	if op.Call.IdempotencyKey == "" {
		return nil
	}
	if id, taken := b.rows.Idempotency[IdempotencyKey{op.Call.Owner, op.Call.IdempotencyKey}]; taken && id != op.Call.ID {
		return &DuplicateError{Call: id, State: b.rows.Calls[id].State}
	}
	return nil
}

// checkReplaced finds the hold that this admission replaces. Its accounts are loaded: it may stand on others.
func (op *admit) checkReplaced(ctx context.Context, b *batch) (*HoldRow, error) {
	if op.Replaces == nil {
		return nil, nil
	}
	hold, ok := b.rows.Holds[op.Replaces.Hold]
	if !ok || hold.State != HoldLive || hold.Token != op.Replaces.Token {
		return nil, ErrState
	}
	var missing []Account
	for _, account := range hold.Accounts {
		if _, ok := b.rows.Accounts[account]; !ok {
			missing = append(missing, account)
		}
	}
	if missing != nil {
		if err := b.load(ctx, Keys{Accounts: missing}); err != nil {
			return nil, err
		}
	}
	return &hold, nil
}

// checkLimits returns the denial that takes longest to pass, a structural one before all others.
func (op *admit) checkLimits(ctx context.Context, b *batch, at time.Time, replaced *HoldRow) error {
	var charged map[Account]int64 // by the end of the hold that this one replaces
	if replaced != nil {
		var err error
		if charged, _, err = replaced.amounts(op.Replaces.Consumption); err != nil {
			return err
		}
	}
	var worst *LimitError
	for _, claim := range op.Claims {
		row := b.rows.Accounts[claim.Account]
		held := row.Held
		if replaced != nil {
			held = replaced.heldByOthers(claim.Account, row)
		}
		asked := op.Reserve.of(claim.Account.Unit)
		amount := int64(1) // an unbounded call needs room for one at least
		if asked != nil {
			amount = *asked
		}
		if !hasRoom(row.Used, held, amount, charged[claim.Account]) {
			return ErrOverflow
		}
		for _, limit := range claim.Limits {
			used := row.usedIn(limit.Window, at) + charged[claim.Account]
			if fits(amount, limit.Max, used, held) {
				continue
			}
			denial := &LimitError{Account: claim.Account, Window: limit.Window, Limit: limit.Max, Used: used, Held: held, Amount: asked}
			if err := denial.findRecovery(ctx, b, at, amount, replaced); err != nil {
				return err
			}
			if worst == nil || !worst.Structural && (denial.Structural || denial.RetryAfter > worst.RetryAfter) {
				worst = denial
			}
		}
	}
	if worst != nil {
		return worst
	}
	return nil
}

// findRecovery fills in when the denial ends. It needs the live holds of the account, which only a denial reads.
func (e *LimitError) findRecovery(ctx context.Context, b *batch, at time.Time, amount int64, replaced *HoldRow) error {
	if amount > e.Limit || e.Limit == 0 {
		e.Structural = true
		return nil
	}
	holds, err := b.standing(ctx, e.Account, replaced)
	if err != nil {
		return err
	}
	opened := b.rows.Accounts[e.Account].Openings[e.Window.Length]
	recovers, ok := e.Window.recovery(at, opened.state(), e.Used, e.Held, holds, amount, e.Limit)
	if !ok {
		e.Structural = true
		return nil
	}
	e.RetryAfter = recovers.Sub(b.rows.Now)
	return nil
}

// standing lists what the live holds of an account will post, by deadline. One that holds nothing posts nothing.
func (b *batch) standing(ctx context.Context, account Account, except *HoldRow) ([]due, error) {
	if _, loaded := b.rows.Standing[account]; !loaded {
		if err := b.load(ctx, Keys{Standing: []Account{account}}); err != nil {
			return nil, err
		}
	}
	ids := slices.Clone(b.rows.Standing[account])
	for id := range b.changes.Holds {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	var holds []due
	for _, id := range slices.Compact(ids) {
		hold := b.rows.Holds[id]
		reserved := hold.Reserve.of(account.Unit)
		if hold.State != HoldLive || reserved == nil || *reserved == 0 || !slices.Contains(hold.Accounts, account) || except != nil && id == except.ID {
			continue
		}
		holds = append(holds, due{at: hold.Deadline, amount: *reserved})
	}
	slices.SortFunc(holds, func(a, b due) int { return a.at.Compare(b.at) })
	return holds, nil
}

// apply writes the admission: accounts, windows, hold, call, decision record.
func (op *admit) apply(b *batch, at time.Time) error {
	if op.Decision != nil {
		call := uuid.Nil
		if op.Call != nil {
			call = op.Call.ID
		}
		if err := b.record(DecisionRecord, call, at, op.Decision); err != nil {
			return err
		}
	}
	hold := HoldRow{
		ID: op.Hold, Source: op.Source, Provider: op.Provider, State: HoldLive, Token: 1, Reserve: op.Reserve,
		Price: op.Price, AdmittedAt: at, Deadline: b.rows.Now.Add(op.TTL),
	}
	for _, claim := range op.Claims {
		row := b.rows.Accounts[claim.Account]
		if reserved := op.Reserve.of(claim.Account.Unit); reserved != nil {
			row.Held += *reserved
		}
		row.open(claim.Limits, at)
		row.TouchedAt = at
		b.setAccount(claim.Account, row)
		hold.Accounts = append(hold.Accounts, claim.Account)
	}
	if op.Unheld {
		return nil
	}
	if op.Call != nil {
		hold.Call = op.Call.ID
		if op.Replaces == nil {
			call := *op.Call
			call.State, call.CreatedAt, call.EndedAt = Held, b.rows.Now, time.Time{}
			b.setCall(call)
		}
	}
	if op.Price != nil {
		b.changes.Prices[op.Price.ID()] = *op.Price
	}
	b.setHold(hold)
	op.answer(b, hold)
	return nil
}

// open opens the windows of limits that are closed.
func (r *AccountRow) open(limits []Limit, at time.Time) {
	for _, limit := range limits {
		if !limit.Window.isOpen(r.Openings[limit.Window.Length].state(), at) {
			r.Openings = maps.Clone(r.Openings)
			if r.Openings == nil {
				r.Openings = map[time.Duration]OpeningRow{}
			}
			r.Openings[limit.Window.Length] = OpeningRow{At: at, Total: r.Used}
		}
	}
}

// renew is the operation behind [Ledger.Renew].
type renew struct {
	id    uuid.UUID
	token int64
	ttl   time.Duration
	hold  Hold
}

func (op *renew) keys(keys *Keys) { keys.Holds = append(keys.Holds, op.id) }

func (op *renew) decide(_ context.Context, b *batch) error {
	hold, ok := b.rows.Holds[op.id]
	switch {
	case ok && hold.State == HoldExpired:
		return ErrExpired
	case !ok || hold.State != HoldLive || hold.Token != op.token:
		return ErrState
	}
	hold.Deadline = later(hold.Deadline, b.rows.Now.Add(op.ttl))
	hold.Token++
	b.setHold(hold)
	op.hold = Hold{ID: hold.ID, Token: hold.Token, Deadline: hold.Deadline}
	return nil
}

// end is the operation behind [Ledger.Settle] and [Ledger.Release]; a release has no consumption.
type end struct {
	Ending
	consumption *Consumption
	charge      Charge
}

func (op *end) keys(keys *Keys) { keys.Holds = append(keys.Holds, op.Hold) }

func (op *end) decide(ctx context.Context, b *batch) error {
	op.charge = Charge{}
	hold, ok := b.rows.Holds[op.Hold]
	if !ok {
		return ErrState
	}
	digest := op.digest(op.consumption)
	switch {
	case hold.State == HoldExpired:
		return op.late(ctx, b, hold)
	case hold.State != HoldLive && hold.Digest == digest:
		op.charge = hold.Charge
		return nil
	case hold.State != HoldLive || hold.Token != op.Token:
		return ErrState
	}
	if err := b.load(ctx, holdKeys(hold)); err != nil {
		return err
	}
	state := HoldSettled
	if op.consumption == nil {
		state = HoldReleased
	}
	at := b.rows.Now
	for _, account := range hold.Accounts {
		at = later(at, b.rows.Accounts[account].TouchedAt)
	}
	charge, err := b.finish(hold, op.Ending, state, op.consumption, at, digest)
	op.charge = charge
	return err
}

// holdKeys names the rows that ending a hold changes.
func holdKeys(hold HoldRow) Keys {
	keys := Keys{Accounts: hold.Accounts}
	if hold.Call != uuid.Nil {
		keys.Calls = []uuid.UUID{hold.Call}
	}
	return keys
}

// late answers a settlement of a hold that has expired and was charged. A known usage lowers the charge once, if the ledger
// allows it and it is not too late; the refund leaves the windows together with its charge.
func (op *end) late(ctx context.Context, b *batch, hold HoldRow) error {
	if op.consumption == nil || hold.Token != op.Token {
		return ErrExpired
	}
	op.charge = hold.Charge
	usage := op.consumption.Usage
	if usage == nil || op.consumption.Estimated || hold.Refunded || b.rows.Now.Sub(hold.EndedAt) > b.lateRefund || b.lateRefund == 0 {
		return nil
	}
	used, err := hold.consumed(usage)
	if err != nil {
		return err
	}
	if err := b.load(ctx, Keys{Accounts: hold.Accounts}); err != nil {
		return err
	}
	refunds := make(map[Account]int64, len(hold.Accounts))
	for _, account := range hold.Accounts {
		reserved := hold.Reserve.of(account.Unit)
		if reserved == nil {
			continue
		}
		if refund := *reserved - *used.of(account.Unit); refund > 0 {
			row := b.rows.Accounts[account]
			row.refund(refund, hold.EndedAt)
			b.setAccount(account, row)
			refunds[account] = -refund
		}
	}
	hold.Usage, hold.Refunded = usage, true
	hold.Charge.Tokens = min(hold.Charge.Tokens, *used.Tokens)
	hold.Charge.NanoUSD = min(hold.Charge.NanoUSD, *used.NanoUSD)
	b.setHold(hold)
	body := hold.chargeBody(refunds)
	body.Refund = true
	op.charge = hold.Charge
	return b.record(ChargeRecord, hold.Call, b.rows.Now, body)
}

// refund takes back a part of a charge that was posted at a time. Windows that opened after it never counted it.
func (r *AccountRow) refund(amount int64, postedAt time.Time) {
	r.Openings = maps.Clone(r.Openings)
	r.Used -= amount
	for length, opened := range r.Openings {
		if opened.At.After(postedAt) {
			opened.Total -= amount
			r.Openings[length] = opened
		}
	}
}

// digest identifies what a settlement says, so that a repeated one is told from another.
func (e *Ending) digest(consumption *Consumption) [32]byte {
	text, _ := json.Marshal(struct { // plain numbers and strings always marshal
		Outcome     Outcome
		State       State
		Consumption *Consumption
	}{e.Outcome, e.State, consumption})
	return sha256.Sum256(text)
}

// post is the operation behind [Ledger.Post].
type post struct{ Posting }

func (op *post) keys(keys *Keys) { keys.Accounts = append(keys.Accounts, op.Accounts...) }

func (op *post) decide(_ context.Context, b *batch) error {
	tokens, err := op.Usage.Tokens()
	if err != nil {
		return err
	}
	for _, account := range op.Accounts {
		if row := b.rows.Accounts[account]; !hasRoom(row.Used, row.Held, max(tokens, op.NanoUSD)) {
			return ErrOverflow
		}
	}
	at := b.rows.Now
	body := ChargeBody{Source: op.Source, Provider: op.Provider, Usage: &op.Usage, Tokens: tokens, NanoUSD: op.NanoUSD,
		Accounts: make(map[Account]int64, len(op.Accounts))}
	for _, account := range op.Accounts {
		row := b.rows.Accounts[account]
		amount := tokens
		if account.Unit == USD {
			amount = op.NanoUSD
		}
		row.post(amount, at)
		b.setAccount(account, row)
		body.Accounts[account] = amount
	}
	return b.record(ChargeRecord, uuid.Nil, at, body)
}

// refuse is the operation behind [Ledger.Refuse].
type refuse struct {
	call     *Call
	decision []byte
}

func (op *refuse) keys(keys *Keys) {
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
