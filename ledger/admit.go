package ledger

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
)

// admit is the operation behind [Ledger.Admit].
type admit struct {
	Admission
	hold Hold
	// explaining says that a denial is to say when it ends, which takes further reads.
	explaining bool
}

func (op *admit) keys(keys *Keys, about time.Time) {
	keys.Holds = append(keys.Holds, op.Hold)
	for _, claim := range op.Claims {
		claim.keys(keys, about)
	}
	if op.Call != nil {
		keys.Calls = append(keys.Calls, op.Call.ID)
		if op.Call.IdempotencyKey != "" {
			keys.Idempotency = append(keys.Idempotency, IdempotencyKey{op.Call.Owner, op.Call.IdempotencyKey})
		}
	}
	if op.Replaces != nil {
		op.Replaces.keys(keys)
	}
	op.gateKeys(keys)
}

// keys names what the windows of a claim's limits will ask about a time.
func (c *Claim) keys(keys *Keys, about time.Time) {
	keys.Accounts = append(keys.Accounts, c.Account)
	if len(c.Limits) > 0 {
		keys.Refunded = append(keys.Refunded, c.Account)
	}
	for _, limit := range c.Limits {
		switch window := limit.Window.(type) {
		case Rolling:
			keys.Edges = append(keys.Edges, Edge{c.Account, window.Length})
		case Month:
			keys.Totals = append(keys.Totals, Moment{c.Account, window.before(about)})
		}
	}
}

func (op *admit) decide(ctx context.Context, b *batch) error {
	op.hold = Hold{}
	if row, ok := b.rows.Holds[op.Hold]; ok {
		return op.again(b, row)
	}
	if admittedAt := op.probeOut(b); op.Unheld && !admittedAt.IsZero() {
		op.hold = Hold{Probe: true, AdmittedAt: admittedAt}
		return nil
	}
	if err := op.checkCall(b); err != nil {
		return err
	}
	replaced, err := op.checkReplaced(b)
	if err != nil {
		return err
	}
	at := op.at(b, replaced)
	if err := op.checkLimits(ctx, b, at, replaced); err != nil {
		return err
	}
	if err := op.checkGates(b, replaced); err != nil {
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

// at is the admission's time: no account's runs backwards, those of a hold that ends with it among them.
func (op *admit) at(b *batch, replaced *HoldRow) time.Time {
	at := b.dated(b.rows.Now, op.accounts())
	if replaced != nil {
		at = b.dated(at, replaced.Accounts)
	}
	return at
}

// explain finds the denial that the admission would get of these rows, and when it ends; nil if there is none any more.
func (op *admit) explain(ctx context.Context, b *batch) (*LimitError, error) {
	replaced, err := op.checkReplaced(b)
	if err != nil {
		return nil, err
	}
	err = op.checkLimits(ctx, b, op.at(b, replaced), replaced)
	var denial *LimitError
	if errors.As(err, &denial) {
		return denial, nil
	}
	return nil, err
}

// answer is what the caller is told of its hold.
func (op *admit) answer(b *batch, row HoldRow) {
	op.hold = Hold{ID: row.ID, Token: row.Token, Deadline: row.Deadline, AdmittedAt: row.AdmittedAt, Probe: !op.probeOut(b).IsZero()}
	if op.Replaces != nil {
		op.hold.Replaced = b.rows.Holds[op.Replaces.Hold].Charge
	}
}

// again answers an admission whose hold exists already.
func (op *admit) again(b *batch, row HoldRow) error {
	if row.State != HoldLive || !op.isFor(row) {
		return ErrState
	}
	op.answer(b, row)
	return nil
}

// isFor says whether a hold was made by this very admission.
func (op *admit) isFor(row HoldRow) bool {
	if op.Call != nil && row.Call != op.Call.ID || row.Source != op.Source || row.Provider != op.Provider || !row.Reserve.equals(op.Reserve) {
		return false
	}
	for _, claim := range op.Claims {
		if !slices.Contains(row.Accounts, claim.Account) {
			return false
		}
	}
	return len(row.Accounts) == len(op.Claims)
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

// checkReplaced finds the hold that this admission replaces.
func (op *admit) checkReplaced(b *batch) (*HoldRow, error) {
	if op.Replaces == nil {
		return nil, nil
	}
	hold, ok := b.rows.Holds[op.Replaces.Hold]
	if !ok || hold.State != HoldLive || !b.isNewest(hold, op.Replaces.Token) {
		return nil, ErrState
	}
	if err := hold.checkCost(op.Replaces.Consumption); err != nil {
		return nil, err
	}
	return &hold, nil
}

// way is a part of its limits that a call may take: what calls may spend, or, for one further call, a little more.
type way struct {
	ceiling func(Limit) int64
	// below says that less than what calls may spend must be used and held already, in every window.
	below bool
}

var ways = []way{
	{ceiling: Limit.spendable},
	{ceiling: Limit.final, below: true},
}

func (l Limit) spendable() int64 {
	if l.Spendable == 0 {
		return l.Max
	}
	return l.Spendable
}

func (l Limit) final() int64 { return max(l.Final, l.spendable()) }

// Least is what two limits of one window both allow, share by share.
func (l Limit) Least(other Limit) Limit {
	return Limit{
		Window: l.Window, Max: min(l.Max, other.Max), Spendable: min(l.spendable(), other.spendable()), Final: min(l.final(), other.final()),
	}
}

// checkLimits returns nil if the reserve fits under every limit in one of the ways, and else a denial. One that is explained is of the
// way that opens first, and of its limits the one that takes longest to pass, a structural one before all others.
func (op *admit) checkLimits(ctx context.Context, b *batch, at time.Time, replaced *HoldRow) error {
	var charged map[Account]int64 // by the end of the hold that this one replaces
	if replaced != nil {
		var err error
		if charged, _, err = replaced.amounts(op.Replaces.Consumption); err != nil {
			return err
		}
	}
	var denial *LimitError
	for _, way := range op.ways() {
		worst, err := op.checkWay(ctx, b, at, replaced, charged, way)
		if err != nil || worst == nil {
			return err
		}
		if denial == nil || passesBefore(worst, denial) {
			denial = worst
		}
	}
	return denial
}

// ways are one, if calls may spend all of every limit.
func (op *admit) ways() []way {
	for _, claim := range op.Claims {
		for _, limit := range claim.Limits {
			if limit.final() > limit.spendable() {
				return ways
			}
		}
	}
	return ways[:1]
}

// passesBefore says whether waiting for one denial to pass takes less than for another.
func passesBefore(a, b *LimitError) bool {
	return !a.Structural && (b.Structural || a.RetryAfter < b.RetryAfter)
}

// checkWay finds the denial that takes longest to pass; nil if there is none.
func (op *admit) checkWay(ctx context.Context, b *batch, at time.Time, replaced *HoldRow, charged map[Account]int64, way way) (*LimitError, error) {
	var worst *LimitError
	for _, claim := range op.Claims {
		past := b.pastOf(ctx, claim.Account, charged[claim.Account], at)
		n := need{amount: 1, held: past.row.Held} // an unbounded call needs room for one at least
		if replaced != nil {
			n.held = replaced.heldByOthers(claim.Account, past.row)
		}
		asked := op.Reserve.Of(claim.Account.Unit)
		if asked != nil {
			n.amount = *asked
		}
		if !hasRoom(past.row.Used, n.held, n.amount) {
			return nil, ErrOverflow
		}
		for _, limit := range claim.Limits {
			denial, err := op.check(past, limit, way, n, at, replaced)
			if err != nil {
				return nil, err
			}
			if denial != nil && (worst == nil || passesBefore(worst, denial)) {
				denial.Amount = asked
				worst = denial
			}
			if worst != nil && !op.explaining {
				return worst, nil
			}
		}
	}
	return worst, nil
}

// check finds out whether a need fits under a limit, and if not, when it will.
func (op *admit) check(p *past, limit Limit, way way, n need, at time.Time, replaced *HoldRow) (_ *LimitError, err error) {
	if n.used, err = p.usedIn(limit.Window, at); err != nil {
		return nil, err
	}
	n.ceiling = way.ceiling(limit)
	needs := []need{n}
	if way.below && n.amount > 0 { // which is to say that one more would fit under what calls may spend
		ordinary := n
		ordinary.amount, ordinary.ceiling = 1, limit.spendable()
		needs = append(needs, ordinary)
	}
	var denial *LimitError
	for _, n := range needs {
		if n.fits() {
			continue
		}
		worse := &LimitError{Account: p.account, Window: limit.Window, Limit: limit.Max, Spendable: n.ceiling, Used: n.used, Held: n.held}
		if !op.explaining {
			return worse, nil
		}
		if err := worse.findRecovery(p, n, at, replaced); err != nil {
			return nil, err
		}
		if denial == nil || passesBefore(denial, worse) {
			denial = worse
		}
	}
	return denial, nil
}

// findRecovery fills in when the denial ends. It needs the live holds of the account, which only an explanation reads.
func (e *LimitError) findRecovery(p *past, n need, at time.Time, replaced *HoldRow) error {
	if n.never() {
		e.Structural = true
		return nil
	}
	n.holds = p.batch.standing(p.account, replaced)
	recovers, ok, err := e.Window.recovery(p, at, n)
	if err != nil {
		return err
	}
	if !ok {
		e.Structural = true
		return nil
	}
	e.RetryAfter = recovers.Sub(p.batch.rows.Now)
	return nil
}

// standing lists what the live holds of an account will post, by deadline. One that holds nothing posts nothing.
func (b *batch) standing(account Account, except *HoldRow) (holds []due) {
	ids := slices.Clone(b.rows.Standing[account])
	for id := range b.changes.Holds {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	for _, id := range slices.Compact(ids) {
		hold := b.rows.Holds[id]
		reserved := hold.Reserve.Of(account.Unit)
		if hold.State != HoldLive || reserved == nil || *reserved == 0 || !slices.Contains(hold.Accounts, account) || except != nil && id == except.ID {
			continue
		}
		holds = append(holds, due{at: hold.Deadline, amount: *reserved})
	}
	slices.SortFunc(holds, func(a, b due) int { return a.at.Compare(b.at) })
	return holds
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
		Price: op.Price, CreditRate: op.CreditRate, AdmittedAt: at, Deadline: b.rows.Now.Add(op.TTL),
	}
	for _, claim := range op.Claims {
		row := b.rows.Accounts[claim.Account]
		if reserved := op.Reserve.Of(claim.Account.Unit); reserved != nil && !op.Unheld {
			row.Held += *reserved
		}
		row.open(claim.Limits, at)
		row.TouchedAt = at
		b.setAccount(claim.Account, row)
		hold.Accounts = append(hold.Accounts, claim.Account)
	}
	probe := op.pass(b, &hold)
	if op.Unheld {
		op.hold = Hold{AdmittedAt: b.rows.Now, Probe: probe}
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
		switch window := limit.Window.(type) {
		case Fixed:
			if window.isOpen(r.Openings[window.Length], at) {
				continue
			}
			r.Openings = maps.Clone(r.Openings)
			if r.Openings == nil {
				r.Openings = map[time.Duration]OpeningRow{}
			}
			r.Openings[window.Length] = OpeningRow{At: at, Total: r.Used}
		case Month:
			if !at.Before(r.Month.Ends) {
				r.Month = MonthRow{Zone: window.zone(), Ends: window.ends(at)}
			}
		}
	}
}
