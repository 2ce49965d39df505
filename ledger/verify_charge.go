package ledger

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// checkDirect computes a charge without a hold again. The row of one that bears an id says what was posted.
func (v *verifier) checkDirect(e *entry, rows *Rows) {
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
	if id := e.charge.Posting; id != uuid.Nil {
		want, _ := amendmentOf(e.charge.posting()) // what was read can be written
		differs(v, ChargeAspect, fmt.Sprintf("posting %s, %s", id, where), hex.EncodeToString(want.Digest[:]), rowText(rows, id))
	}
	v.checkAmounts(where, Charge{Tokens: tokens, NanoUSD: e.charge.NanoUSD, NanoCredits: e.charge.NanoCredits}, e.charge.Accounts)
}

// rowText is the digest of what was made under an id.
func rowText(rows *Rows, id uuid.UUID) string {
	row, made := rows.Amendments[id]
	if !made {
		return "none"
	}
	return hex.EncodeToString(row.Digest[:])
}

// posting is what was posted, as it was asked for.
func (b *ChargeBody) posting() Posting {
	return Posting{
		ID: b.Posting, Accounts: sortedAccounts(b.Accounts), Usage: *b.Usage, NanoUSD: b.NanoUSD, NanoCredits: b.NanoCredits,
		Source: b.Source, Provider: b.Provider,
	}
}

// checkAmounts compares what accounts were charged with the charge in their unit.
func (v *verifier) checkAmounts(where string, charge Charge, accounts map[Account]int64) {
	for account, amount := range accounts {
		differs(v, ChargeAspect, fmt.Sprintf("%s in %s", where, account), charge.Of(account.Unit), amount)
	}
}

// checkCharge computes the charge of a hold again: its usage at its price, or at the cost that was told where it has none, at most what
// was held if it was estimated; what was held if the usage is not known.
func (v *verifier) checkCharge(e *entry, row HoldRow) {
	where := "hold " + row.ID.String()
	v.checkTerms("its charge tells", e.charge, row)
	amounts, want, err := row.amounts(&Consumption{Usage: e.charge.Usage, Estimated: e.charge.Estimated, NanoUSD: e.charge.ToldNanoUSD})
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
	v.times(ChargeAspect, "the time of "+where, e.At, row.EndedAt)
	if row.Refunded {
		v.lower(row.ID).charged = &got
	} else {
		differs(v, ChargeAspect, "the row of "+where, got, row.Charge)
	}
}

// checkTerms compares what a hold was charged for, and at what, with what a record of its charge tells.
func (v *verifier) checkTerms(told string, body *ChargeBody, row HoldRow) {
	hold := "hold " + row.ID.String() + ", as " + told
	v.checkCandidate(told, body.Source, body.Provider, row)
	differs(v, ChargeAspect, "the price of "+hold, priceID(row.Price), priceID(body.Price))
	differs(v, ChargeAspect, "the credit rate of "+hold, rateText(row.CreditRate), rateText(body.CreditRate))
	if told := body.ToldNanoUSD; told != nil && row.Price != nil {
		v.fault(ChargeAspect, "a cost beside the price of "+hold, "none", *told)
	}
	if !maps.Equal(body.Totals, row.Totals) && len(body.Totals) > 0 {
		v.fault(ChargeAspect, "the charges of "+hold, body.Totals, row.Totals)
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

// checkOutcome compares the row of a hold with the record of its end.
func (v *verifier) checkOutcome(e *entry, row HoldRow, charged bool) {
	hold := "hold " + row.ID.String()
	where := "the outcome of " + hold
	differs(v, HoldAspect, where, Outcome{e.outcome.Result, e.outcome.Reason, e.outcome.Status}, row.Outcome)
	v.times(HoldAspect, "the time of "+where, e.At, row.EndedAt)
	v.times(HoldAspect, "the end of "+hold, time.UnixMicro(e.outcome.EndedAt), row.EndedAt)
	v.times(HoldAspect, "the admission of "+hold, time.UnixMicro(e.outcome.AdmittedAt), row.AdmittedAt)
	differs(v, HoldAspect, "the state of "+hold, endedAs(e.outcome, row, charged), row.State)
	v.checkCandidate("its outcome tells", e.outcome.Source, e.outcome.Provider, row)
	if row.State != HoldExpired || !row.Refunded { // else the late settlement tells of it
		v.usages(HoldAspect, "the usage of "+hold, e.outcome.Usage, row.Usage)
	}
}

// checkTold compares an outcome with the charge that it tells of: none after a release. A late settlement lowers the charge after
// the outcome of its expiry, which tells what was charged then.
func (v *verifier) checkTold(seen *holdSeen, told *OutcomeBody) {
	charge := seen.charge
	seen.charge = nil
	if charge == nil {
		if seen.charges > 0 { // a second outcome, which is said
			return
		}
		charge = &ChargeBody{Source: told.Source, Provider: told.Provider}
	}
	where := " of the outcome of hold " + told.Hold.String()
	differs(v, ChargeAspect, "the source"+where, strconv.Quote(charge.Source), strconv.Quote(told.Source))
	differs(v, ChargeAspect, "the provider"+where, strconv.Quote(charge.Provider), strconv.Quote(told.Provider))
	v.usages(ChargeAspect, "the usage"+where, charge.Usage, told.Usage)
	differs(v, ChargeAspect, "the tokens"+where, charge.Tokens, told.Tokens)
	differs(v, ChargeAspect, "the USD"+where, FormatUSD(charge.NanoUSD), told.USD)
	if charge.NanoCredits != 0 || told.Credits != "" { // an outcome from before there were credits tells of none
		differs(v, ChargeAspect, "the credits"+where, FormatCredits(charge.NanoCredits), told.Credits)
	}
	differs(v, ChargeAspect, "that it is estimated,"+where, charge.Estimated, told.Estimated)
	differs(v, ChargeAspect, "that the usage is unknown,"+where, charge.UnknownUsage, told.UnknownUsage)
	differs(v, ChargeAspect, "the overage"+where, charge.Overage, told.Overage)
}

// endedAs is the state in which the records of a hold leave it. One that has expired was ended by nobody, and so has no digest.
func endedAs(outcome *OutcomeBody, row HoldRow, charged bool) HoldState {
	switch {
	case !charged:
		return HoldReleased
	case outcome.Result == Expired && row.Digest == [32]byte{}:
		return HoldExpired
	}
	return HoldSettled
}

// checkCandidate compares the source and the provider of a hold with those that one of its records names.
func (v *verifier) checkCandidate(told, source, provider string, row HoldRow) {
	differs(v, HoldAspect, "the source of hold "+row.ID.String()+", as "+told, strconv.Quote(source), strconv.Quote(row.Source))
	differs(v, HoldAspect, "the provider of hold "+row.ID.String()+", as "+told, strconv.Quote(provider), strconv.Quote(row.Provider))
}

// usages adds a difference if two usages are not the same.
func (v *verifier) usages(aspect Aspect, where string, want, got *Usage) {
	if !sameUsage(want, got) {
		v.fault(aspect, where, usageText(want), usageText(got))
	}
}

func sameUsage(a, b *Usage) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.classes() == b.classes() && a.Tier == b.Tier && maps.Equal(a.Units, b.Units)
}

func usageText(usage *Usage) string {
	if usage == nil {
		return "unknown"
	}
	text, _ := json.Marshal(usage) // numbers and strings always marshal
	return string(text)
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
		seen.corrections++
		for _, unit := range Units {
			*seen.corrected.in(unit) += e.correction.charge().Of(unit)
		}
		v.checkAmounts("what a correction took back of hold "+e.lowered().String(), e.correction.charge(), e.correction.Accounts)
		return
	}
	left := e.charge.charge()
	seen.refund, seen.usage = &left, e.charge.Usage
	seen.refunds++
	if row.ID == uuid.Nil {
		return
	}
	v.checkTerms("its refund tells", e.charge, row)
	if e.charge.Usage == nil {
		return
	}
	used, err := row.consumed(&Consumption{Usage: e.charge.Usage, NanoUSD: e.charge.ToldNanoUSD})
	if err != nil {
		v.fault(ChargeAspect, "hold "+row.ID.String(), "a usage that can be charged", err)
		return
	}
	held, _ := row.consumed(&Consumption{}) // what was held is always in range
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
	differs(v, HoldAspect, "that something was taken back of "+where, seen.refunds+seen.corrections > 0, row.Refunded)
	if row.State == HoldExpired && row.Refunded {
		v.usages(HoldAspect, "the usage of "+where, seen.usage, row.Usage)
	}
	if seen.charged == nil {
		return // its charge is missing, or its row does not know that it was lowered, which was said
	}
	left := *seen.charged
	if seen.refund != nil {
		left = *seen.refund
	}
	for _, unit := range Units {
		*left.in(unit) += seen.corrected.Of(unit)
	}
	differs(v, ChargeAspect, "what is left of "+where, left, row.Charge)
}
