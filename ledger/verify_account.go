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
	return slices.SortedFunc(maps.Keys(accounts), compareAccounts)
}

func compareAccounts(a, b Account) int { return strings.Compare(a.String(), b.String()) }

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
	found.windows, found.openings = found.windowsOf(), found.openingsOf()
	found.checkMonth()
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
	// openings are the fixed windows whose opening is compared.
	openings []*opening

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

// opening is the last opening of a fixed window, which stands between two charges of its account.
type opening struct {
	OpeningRow
	Fixed
	// before is the total of the last charge that is no more than the opening's.
	before int64
}

// openingsOf are the openings of the account's fixed windows. Where charges had no rows yet, as what was used before stands as one
// charge, later than it was, they cannot be told from charges.
func (p *postings) openingsOf() (openings []*opening) {
	if p.seen.Unnamed > 0 {
		return nil
	}
	for _, length := range slices.Sorted(maps.Keys(p.row.Openings)) {
		openings = append(openings, &opening{OpeningRow: p.row.Openings[length], Fixed: Fixed{length}})
	}
	return openings
}

// addOpening sees that a charge stands on the right side of an opening: before it and no more than its total, or in the window.
func (p *postings) addOpening(o *opening, charge ChargeRow) {
	where := fmt.Sprintf("the time of %s at %d", p.account, charge.Total)
	switch opened, closes := o.At, o.At.Add(o.Length); {
	case charge.Total <= o.Total:
		o.before = charge.Total
		if charge.At.After(opened) {
			p.fault(WindowAspect, where+", before "+o.String()+" opened", fmt.Sprint("not after ", timeText(opened)), timeText(charge.At))
		}
	case charge.At.Before(opened) || !charge.At.Before(closes):
		p.fault(WindowAspect, where+", in "+o.String(), fmt.Sprintf("from %s on, before %s", timeText(opened), timeText(closes)), timeText(charge.At))
	}
}

// checkOpenings sees that each fixed window opened at a total that the account had: that of a charge which it has, or which is pruned.
func (p *postings) checkOpenings() {
	for _, o := range p.openings {
		if o.Total > p.seen.closed {
			differs(p.verifier, WindowAspect, fmt.Sprintf("the total at which %s of %s opened", o, p.account), o.before, o.Total)
		}
		if o.At.After(p.row.TouchedAt) {
			p.fault(WindowAspect, fmt.Sprintf("the time at which %s of %s opened", o, p.account),
				fmt.Sprint("not after ", timeText(p.row.TouchedAt)), timeText(o.At))
		}
	}
}

// checkMonth sees that the month which the account counts is one of its zone, and has begun.
func (p *postings) checkMonth() {
	month := Month{p.row.Month.Zone}
	if p.row.Month.Ends.IsZero() {
		return
	}
	where := fmt.Sprintf("the end of %s of %s", month, p.account)
	if err := month.Validate(); err != nil {
		p.fault(WindowAspect, where, "that of a month in a time zone", err)
		return
	}
	within := p.row.Month.Ends.Add(-time.Microsecond)
	p.times(WindowAspect, where, month.ends(within), p.row.Month.Ends)
	if begins := month.begins(within); begins.After(p.row.TouchedAt) {
		p.fault(WindowAspect, "the beginning of"+where[len("the end of"):], fmt.Sprint("not after ", timeText(p.row.TouchedAt)), timeText(begins))
	}
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
		p.fault(PostingAspect, "the newest entry of "+p.account.String(), fmt.Sprint("none before ", timeText(p.row.ChargedAt)), timeText(p.row.TouchedAt))
	}
	p.checkOpenings()
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
		p.fault(PostingAspect, "the time of "+where, fmt.Sprint("not before ", timeText(p.last.At)), timeText(charge.At))
	}
	p.last = charge
	if charge.Total > p.seen.Unnamed {
		p.charges++
		p.report.Charges++
		p.sum += charge.hash()
	}
	mark := Mark{p.account, charge.Total}
	differs(p.verifier, PostingAspect, "what was taken back of "+where, p.verifier.refunds[mark], charge.Refunded)
	for _, opening := range p.openings {
		p.addOpening(opening, charge)
	}
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
	return fmt.Sprintf("%d charged at %s", charge.Amount, timeText(charge.At))
}
