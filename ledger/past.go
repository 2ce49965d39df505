package ledger

import (
	"context"
	"time"
)

// past is what an account was charged, as one decision sees it: the store's rows, then the charges of the batch itself, and at last
// one that the decision is about to post.
//
// An account's charges are numbered by what the account had used in all after each: the total only rises, and the times never fall
// with it. So what a window holds is a difference of two totals, whatever its length and however many charges lie in it.
type past struct {
	ctx     context.Context
	batch   *batch
	account Account
	row     AccountRow
	// posting is a charge that is about to be posted; zero if there is none.
	posting ChargeRow
}

// pastOf is an account's past, with an amount that is about to be charged at a time.
func (b *batch) pastOf(ctx context.Context, account Account, amount int64, at time.Time) *past {
	p := &past{ctx: ctx, batch: b, account: account, row: b.rows.Accounts[account]}
	if amount > 0 {
		p.row = p.row.charged(amount, later(at, p.row.ChargedAt))
		p.posting = ChargeRow{Account: account, Total: p.row.Used, At: p.row.ChargedAt, Amount: amount}
	}
	return p
}

// usedIn is what was charged in a window, less refunds.
func (p *past) usedIn(window Window, at time.Time) (int64, error) {
	since, err := p.windowSince(window, at)
	if err != nil {
		return 0, err
	}
	refunded, err := p.refunded(since, p.row.Used)
	if err != nil {
		return 0, err
	}
	return p.row.Used - since - refunded, nil
}

// windowSince is the total from which a window counts: a reset forgets all before it, and what was pruned is in no window any more.
func (p *past) windowSince(window Window, at time.Time) (int64, error) {
	since, err := window.since(p, at)
	return max(since, p.row.Floor), err
}

// totalAt is what the account had used in all at a time, charges at that very moment included.
func (p *past) totalAt(at time.Time) (int64, error) {
	if p.posting.Total > 0 && !p.posting.At.After(at) {
		return p.posting.Total, nil
	}
	pending := p.batch.pending(p.account)
	for i := len(pending) - 1; i >= 0; i-- {
		if !pending[i].At.After(at) {
			return pending[i].Total, nil
		}
	}
	if p.row.ChargedAt.IsZero() {
		return 0, nil
	}
	moment := Moment{p.account, at}
	if total, known := p.batch.rows.Totals[moment]; known {
		return total, nil
	}
	rows, err := p.batch.tx.Load(p.ctx, Keys{Totals: []Moment{moment}})
	if err != nil {
		return 0, err
	}
	if p.batch.rows.Totals == nil {
		p.batch.rows.Totals = map[Moment]int64{}
	}
	p.batch.rows.Totals[moment] = rows.Totals[moment] // 0 if nothing had been charged by then
	return rows.Totals[moment], nil
}

// chargeReaching is the first charge with which the account's total reached an amount.
func (p *past) chargeReaching(total int64) (ChargeRow, bool, error) {
	mark := Mark{p.account, total}
	rows, err := p.batch.tx.Load(p.ctx, Keys{Marks: []Mark{mark}})
	if err != nil {
		return ChargeRow{}, false, err
	}
	if charge, found := rows.Marks[mark]; found {
		return charge, true, nil
	}
	for _, charge := range p.batch.pending(p.account) {
		if charge.Total >= total {
			return charge, true, nil
		}
	}
	return p.posting, p.posting.Total > 0 && p.posting.Total >= total, nil
}

// refunded is what was refunded of the charges above one total and up to another.
func (p *past) refunded(above, upTo int64) (int64, error) {
	if p.row.Refunded <= above {
		return 0, nil
	}
	refunded, err := p.refundedBefore(above, upTo)
	if err != nil {
		return 0, err
	}
	for mark, amount := range p.batch.changes.Refunds {
		if mark.Account == p.account && mark.Total > above && mark.Total <= upTo {
			refunded += amount
		}
	}
	return refunded, nil
}

// refundedBefore is what was refunded before this transaction. Of the charges that a window can reach it has mostly been read already.
func (p *past) refundedBefore(above, upTo int64) (refunded int64, err error) {
	if charges, read := p.batch.rows.Refunded[p.account]; read {
		for _, charge := range charges {
			if charge.Total > above && charge.Total <= upTo {
				refunded += charge.Refunded
			}
		}
		return refunded, nil
	}
	span := Span{p.account, above, upTo}
	rows, err := p.batch.tx.Load(p.ctx, Keys{Refunds: []Span{span}})
	if err != nil {
		return 0, err
	}
	return rows.Refunds[span], nil
}
