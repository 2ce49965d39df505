package ledger

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
)

// checkDirect computes a charge without a hold again.
func (v *verifier) checkDirect(e *entry) {
	where := fmt.Sprintf("record %d of stream %s", e.Number, e.Writer)
	if e.correction != nil {
		v.checkAmounts(where, e.correction.charge(), e.correction.Accounts)
	}
	if e.charge == nil || e.charge.Usage == nil {
		return
	}
	tokens, err := e.charge.Usage.Tokens()
	if err != nil {
		v.fault(ChargeAspect, where, "a usage that can be charged", err)
		return
	}
	differs(v, ChargeAspect, where, tokens, e.charge.Tokens)
	v.checkAmounts(where, Charge{Tokens: tokens, NanoUSD: e.charge.NanoUSD, NanoCredits: e.charge.NanoCredits}, e.charge.Accounts)
}

// checkAmounts compares what accounts were charged with the charge in their unit.
func (v *verifier) checkAmounts(where string, charge Charge, accounts map[Account]int64) {
	for account, amount := range accounts {
		differs(v, ChargeAspect, fmt.Sprintf("%s in %s", where, account), charge.Of(account.Unit), amount)
	}
}

// checkCharge computes the charge of a hold again: its usage at its price, at most what was held if it was estimated; what was held if
// the usage is not known.
func (v *verifier) checkCharge(e *entry, row HoldRow) {
	where := "hold " + row.ID.String()
	differs(v, ChargeAspect, "the price of "+where, priceID(row.Price), priceID(e.charge.Price))
	differs(v, ChargeAspect, "the credit rate of "+where, rateText(row.CreditRate), rateText(e.charge.CreditRate))
	amounts, want, err := row.amounts(&Consumption{Usage: e.charge.Usage, Estimated: e.charge.Estimated})
	if err != nil {
		v.fault(ChargeAspect, where, "a usage that can be charged", err)
		return
	}
	got := e.charge.charge()
	differs(v, ChargeAspect, where, want, got)
	for account, amount := range amounts {
		differs(v, ChargeAspect, fmt.Sprintf("%s in %s", where, account), amount, e.charge.Accounts[account])
	}
	if len(e.charge.Accounts) != len(amounts) {
		v.fault(ChargeAspect, "the accounts of "+where, len(amounts), len(e.charge.Accounts))
	}
	if !maps.Equal(e.charge.Totals, row.Totals) && len(e.charge.Totals) > 0 {
		v.fault(ChargeAspect, "the charges of "+where, e.charge.Totals, row.Totals)
	}
	v.times(ChargeAspect, "the time of "+where, e.At, row.EndedAt)
	if row.Refunded {
		v.lower(row.ID).charged = &got
	} else {
		differs(v, ChargeAspect, "the row of "+where, got, row.Charge)
	}
}

func priceID(price *Price) string {
	if price == nil {
		return "none"
	}
	return fmt.Sprintf("%x", price.ID())
}

func rateText(rate *CreditRate) string {
	if rate == nil {
		return "none"
	}
	return fmt.Sprintf("%+v", *rate) // maps are printed in the order of their keys
}

func (b *ChargeBody) charge() Charge {
	return Charge{Tokens: b.Tokens, NanoUSD: b.NanoUSD, NanoCredits: b.NanoCredits, Estimated: b.Estimated, UnknownUsage: b.UnknownUsage, Overage: b.Overage}
}

func (v *verifier) checkOutcome(e *entry, row HoldRow) {
	where := "the outcome of hold " + row.ID.String()
	differs(v, HoldAspect, where, Outcome{e.outcome.Result, e.outcome.Reason, e.outcome.Status}, row.Outcome)
	v.times(HoldAspect, "the time of "+where, e.At, row.EndedAt)
}

func (v *verifier) lower(hold uuid.UUID) *loweredSeen {
	if v.lowered[hold] == nil {
		v.lowered[hold] = &loweredSeen{totals: map[Account]int64{}}
	}
	return v.lowered[hold]
}

// seeLowered remembers what an entry took back of a charge.
func (v *verifier) seeLowered(e *entry, row HoldRow) {
	seen := v.lower(e.lowered())
	_, totals := e.amounts()
	maps.Copy(seen.totals, totals)
	if e.correction != nil {
		for _, unit := range Units {
			*seen.corrected.in(unit) += e.correction.charge().Of(unit)
		}
		v.checkAmounts("what a correction took back of hold "+e.lowered().String(), e.correction.charge(), e.correction.Accounts)
		return
	}
	left := e.charge.charge()
	seen.refund = &left
	seen.refunds++
	if row.ID == uuid.Nil || e.charge.Usage == nil {
		return
	}
	used, err := row.consumed(e.charge.Usage)
	if err != nil {
		v.fault(ChargeAspect, "hold "+row.ID.String(), "a usage that can be charged", err)
		return
	}
	held, _ := row.consumed(nil) // what was held is always in range
	for account := range row.Totals {
		want := min(0, used.Of(account.Unit)-held.Of(account.Unit))
		differs(v, ChargeAspect, fmt.Sprintf("the refund of hold %s in %s", row.ID, account), want, e.charge.Accounts[account])
	}
}

// checkLowered compares what is left of charges that were lowered.
func (v *verifier) checkLowered() error {
	for page := range slices.Chunk(slices.Collect(maps.Keys(v.lowered)), verifyPage) {
		rows, err := v.view.Load(v.ctx, Keys{Holds: page})
		if err != nil {
			return err
		}
		for _, id := range page {
			row, known := rows.Holds[id]
			if !known {
				v.checkGone(id, v.lowered[id])
				continue
			}
			v.checkLeft(&row, v.lowered[id])
		}
	}
	return nil
}

// checkGone sees that a charge that was lowered and has no row was pruned.
func (v *verifier) checkGone(id uuid.UUID, seen *loweredSeen) {
	for account, total := range seen.totals {
		if total > v.account(account).closed {
			v.fault(HoldAspect, "hold "+id.String(), "the row of a hold whose charge was lowered", "none")
			return
		}
	}
}

func (v *verifier) checkLeft(row *HoldRow, seen *loweredSeen) {
	where := "hold " + row.ID.String() + ", " + string(row.State)
	if seen.refunds > 1 || seen.refunds == 1 && row.State != HoldExpired {
		v.fault(HoldAspect, "the refunds of "+where, "at most one, after an expiry", seen.refunds)
	}
	if seen.charged == nil {
		return // its charge is missing, or its row does not know that it was lowered, which was said
	}
	left := *seen.charged
	if seen.refund != nil {
		left.Tokens, left.NanoUSD, left.NanoCredits = seen.refund.Tokens, seen.refund.NanoUSD, seen.refund.NanoCredits
	}
	for _, unit := range Units {
		*left.in(unit) += seen.corrected.Of(unit)
	}
	differs(v, ChargeAspect, "what is left of "+where, left, row.Charge)
}
