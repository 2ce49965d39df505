package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// rollingLengths are the lengths of windows whose balances are compared, whoever uses them.
var rollingLengths = []time.Duration{5 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour}

// checkAccounts compares each account with its records and holds.
func (v *verifier) checkAccounts() error {
	unseen := maps.Clone(v.books)
	for after := (Account{}); ; {
		page, err := v.view.Accounts(v.ctx, after, verifyPage)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for _, account := range page {
			delete(unseen, account)
			if err := v.checkAccount(account); err != nil {
				return err
			}
		}
		after = page[len(page)-1]
	}
	for _, account := range sortedAccounts(unseen) {
		if seen := unseen[account]; seen.Used > 0 || seen.live > 0 {
			v.fault(UsedAspect, account, seen.Used, "no account")
		}
	}
	return nil
}

func sortedAccounts[V any](accounts map[Account]V) []Account {
	return slices.SortedFunc(maps.Keys(accounts), func(a, b Account) int { return strings.Compare(a.String(), b.String()) })
}

func (v *verifier) checkAccount(account Account) error {
	v.report.Accounts++
	rows, err := v.view.Load(v.ctx, Keys{Accounts: []Account{account}, Standing: []Account{account}})
	if err != nil {
		return err
	}
	row, seen := rows.Accounts[account], v.account(account)
	differs(v, UsedAspect, account, seen.Used, row.Used)
	differs(v, RefundsAspect, account, seen.Refunds, row.Refunds)
	differs(v, RefundsAspect, "the highest charge with one, of "+account.String(), seen.Refunded, row.Refunded)
	differs(v, HeldAspect, account, seen.held, row.Held)
	differs(v, HeldAspect, "the live holds of "+account.String(), seen.live, len(rows.Standing[account]))
	differs(v, FloorAspect, account, seen.Floor, row.Floor)
	found := &postings{verifier: v, account: account, row: row, seen: seen, at: later(rows.Now, row.TouchedAt)}
	found.windows = found.windowsOf()
	if err := found.read(); err != nil {
		return err
	}
	return found.checkWindows()
}

// postings are the charges of an account, as its rows have them.
type postings struct {
	*verifier
	account Account
	row     AccountRow
	seen    *accountSeen
	at      time.Time
	windows []windowSum

	charges int64
	sum     uint64
	last    ChargeRow
}

// windowSum is a window, and the sum of the charges in it.
type windowSum struct {
	Window
	counts func(ChargeRow) bool
	sum    int64
}

// windowsOf are the windows that the account has used, and those of every length that credits know.
func (p *postings) windowsOf() (windows []windowSum) {
	for _, length := range rollingLengths {
		begins := p.at.Add(-length)
		windows = append(windows, windowSum{Window: Rolling{length}, counts: func(c ChargeRow) bool { return c.At.After(begins) }})
	}
	for _, length := range slices.Sorted(maps.Keys(p.row.Openings)) {
		opened := p.row.Openings[length]
		open := (Fixed{length}).isOpen(opened, p.at)
		windows = append(windows, windowSum{Window: Fixed{length}, counts: func(c ChargeRow) bool { return open && c.Total > opened.Total }})
	}
	month := Month{p.row.Month.Zone}
	begins, _ := month.counting(&p.row, p.at)
	return append(windows, windowSum{Window: month, counts: func(c ChargeRow) bool { return !c.At.Before(begins) }})
}

// read reads every charge of the account.
func (p *postings) read() error {
	for after := int64(0); ; {
		page, err := p.view.Charges(p.ctx, p.account, after, verifyPage)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for _, charge := range page {
			p.add(charge)
		}
		after = page[len(page)-1].Total
	}
	newest := "the newest of " + p.account.String()
	switch {
	case p.last.Total == p.row.Used:
		p.times(PostingAspect, newest, p.last.At, p.row.ChargedAt)
	case p.row.Used > p.seen.closed: // else it may be pruned
		p.fault(PostingAspect, newest, p.row.Used, p.last.Total)
	}
	if p.charges != p.seen.charges || p.sum != p.seen.sum {
		p.suspect[p.account] = true
	}
	if p.row.TouchedAt.Before(p.row.ChargedAt) {
		p.fault(PostingAspect, "the newest entry of "+p.account.String(), fmt.Sprint("none before ", p.row.ChargedAt), p.row.TouchedAt)
	}
	return nil
}

// add looks at one charge. Below where pruning has been, others may be missing; what was charged before records named totals was
// posted as one.
func (p *postings) add(charge ChargeRow) {
	where := fmt.Sprintf("%s at %d", p.account, charge.Total)
	if charge.Total > p.seen.closed {
		differs(p.verifier, PostingAspect, "the beginning of "+where, max(p.last.Total, p.seen.closed), charge.Total-charge.Amount)
	}
	if charge.At.Before(p.last.At) {
		p.fault(PostingAspect, "the time of "+where, fmt.Sprint("not before ", p.last.At), charge.At)
	}
	p.last = charge
	if charge.Total > p.seen.Unnamed {
		p.charges++
		p.report.Charges++
		p.sum += charge.hash()
	}
	mark := Mark{p.account, charge.Total}
	differs(p.verifier, PostingAspect, "what was taken back of "+where, p.verifier.refunds[mark], charge.Refunded)
	for i := range p.windows {
		if w := &p.windows[i]; charge.Total > p.row.Floor && w.counts(charge) {
			w.sum += charge.Amount - charge.Refunded
		}
	}
}

// checkWindows compares what each window counts with the sum of its charges.
func (p *postings) checkWindows() error {
	rows := &Rows{Accounts: map[Account]AccountRow{p.account: p.row}}
	past := newBatch(reader{p.view}, rows).pastOf(p.ctx, p.account, 0, time.Time{})
	for _, window := range p.windows {
		used, err := past.usedIn(window, p.at)
		if err != nil {
			return err
		}
		differs(p.verifier, WindowAspect, fmt.Sprintf("%s in %s", p.account, window), window.sum, used)
	}
	return nil
}

// findCharges names the charges of suspect accounts that are not what the journal says, or not there at all. It remembers all charges
// of these accounts.
func (v *verifier) findCharges() error {
	if len(v.suspect) == 0 {
		return nil
	}
	named := map[Mark]ChargeRow{}
	for _, stream := range v.streams {
		err := eachPage(v.ctx, v.view, stream.Writer, func(page []Record) error {
			for _, record := range page {
				if err := v.nameCharges(record, named); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, account := range sortedAccounts(v.suspect) {
		if err := v.findPostings(account, named); err != nil {
			return err
		}
	}
	for mark, charge := range named {
		v.fault(PostingAspect, fmt.Sprintf("%s at %d", mark.Account, mark.Total), describe(charge), "none")
	}
	return nil
}

// nameCharges collects the charges of suspect accounts that a record names.
func (v *verifier) nameCharges(record Record, named map[Mark]ChargeRow) error {
	e, err := readEntry(record)
	if err != nil {
		return err
	}
	for _, charge := range e.charges() {
		mark := Mark{charge.Account, charge.Total}
		if !v.suspect[charge.Account] {
			continue
		}
		if before, twice := named[mark]; twice {
			v.fault(PostingAspect, fmt.Sprintf("%s at %d", mark.Account, mark.Total), "one record", "a second one of "+describe(before))
		}
		named[mark] = charge
	}
	return nil
}

// findPostings compares an account's charges with those that records name, and crosses these out.
func (v *verifier) findPostings(account Account, named map[Mark]ChargeRow) error {
	for after := int64(0); ; {
		page, err := v.view.Charges(v.ctx, account, after, verifyPage)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, charge := range page {
			mark := Mark{account, charge.Total}
			want, found := named[mark]
			delete(named, mark)
			where := fmt.Sprintf("%s at %d", account, charge.Total)
			switch {
			case charge.Total <= v.account(account).Unnamed:
			case !found:
				v.fault(PostingAspect, where, "none", describe(charge))
			default:
				differs(v, PostingAspect, where, describe(want), describe(charge))
			}
		}
		after = page[len(page)-1].Total
	}
}

func describe(charge ChargeRow) string {
	return fmt.Sprintf("%d charged at %s", charge.Amount, charge.At.UTC().Format(time.RFC3339Nano))
}
