package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // months are the same on a machine without a time zone database
)

// LengthMax is the longest window that has a length: the longest month. Charges are kept for longer.
const LengthMax = 31 * 24 * time.Hour

// ErrWindow is returned for a window that cannot be.
var ErrWindow = errors.New("not a window")

// Window is the span in which a [Limit] counts charges: [Fixed], [Rolling], [Month], or none, which is [AtOnce]. A hold stands in no window: it counts
// against every window of its account until it ends, and its charge is posted then.
type Window interface {
	// String names the window, for example "rolling/5h".
	fmt.Stringer
	// Validate returns [ErrWindow] for a window that cannot be.
	Validate() error
	// since is what the account had used in all when the window began that is open at a time.
	since(past *past, at time.Time) (int64, error)
	// recovery is the earliest time at which a need is met; ok is false if it never is.
	recovery(past *past, at time.Time, need need) (t time.Time, ok bool, err error)
	// recovers is when all that is used in the window at a time has left it.
	recovers(past *past, at time.Time) time.Time
}

// Limit is the most that may be used and held in a window of an account. It travels with each admission; no row holds it.
type Limit struct {
	Window Window
	// Max is in the account's unit. 0 admits nothing.
	Max int64
	// Spendable is the part of Max that a call may take, and Final the larger part that one further call may take if less than
	// Spendable is used and held in every window of the call's. 0 is all of Max.
	Spendable, Final int64
}

// OneMonth returns [ErrInvalid] for limits with months of more than one zone: an account counts one month at a time.
func OneMonth(limits []Limit) error {
	var month Window
	for _, limit := range limits {
		if _, isMonth := limit.Window.(Month); !isMonth {
			continue
		}
		if month != nil && month.String() != limit.Window.String() {
			return fmt.Errorf("%w: an account counts %s or %s, not both", ErrInvalid, month, limit.Window)
		}
		month = limit.Window
	}
	return nil
}

// Fixed is a window that opens at its account's first use and closes a fixed span later; what was used in it is then
// forgotten, and the next use opens it again.
type Fixed struct {
	// Length is more than 0, at most [LengthMax], and in whole microseconds.
	Length time.Duration
}

// Rolling is a window that ends now: a charge leaves it exactly its length after it was posted.
type Rolling struct {
	// Length is more than 0, at most [LengthMax], and in whole microseconds.
	Length time.Duration
}

// Month is the calendar month of a time zone. An account counts a month to its end in the zone in which it began to: another zone
// counts from the next month on.
type Month struct {
	// Zone is a name of the time zone database; empty is UTC.
	Zone string
}

// AtOnce counts nothing that was used: the limit is for what is held at one time.
type AtOnce struct{}

func (f Fixed) String() string { return "fixed/" + FormatLength(f.Length) }

func (r Rolling) String() string { return "rolling/" + FormatLength(r.Length) }

func (m Month) String() string { return "month/" + m.zone() }

func (AtOnce) String() string { return "at-once" }

func (m Month) zone() string {
	if m.Zone == "" {
		return "UTC"
	}
	return m.Zone
}

// FormatLength writes a length as windows are written: "1m", "5h".
func FormatLength(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// ParseWindow reads a window as String writes it: "fixed/24h", "rolling/5h", "month/Europe/Berlin", "at-once". A length may be in days, "7d"; a
// length alone is a fixed window's; "month" alone is UTC's. It returns [ErrWindow].
func ParseWindow(text string) (Window, error) {
	kind, rest, _ := strings.Cut(text, "/")
	var window Window
	var length time.Duration
	var err error
	switch kind {
	case "month":
		window = Month{Zone: rest}
	case "at-once":
		if rest != "" {
			err = fmt.Errorf("%w: at-once has no length: %q", ErrWindow, text)
		}
		window = AtOnce{}
	case "rolling":
		length, err = parseLength(rest)
		window = Rolling{length}
	case "fixed":
		length, err = parseLength(rest)
		window = Fixed{length}
	default:
		length, err = parseLength(text)
		window = Fixed{length}
	}
	if err != nil {
		return nil, err
	}
	return window, window.Validate()
}

func parseLength(text string) (time.Duration, error) {
	if days, inDays := strings.CutSuffix(text, "d"); inDays {
		n, err := strconv.ParseUint(days, 10, 8)
		if err != nil {
			return 0, fmt.Errorf("%w: %q is no number of days", ErrWindow, text)
		}
		return time.Duration(n) * 24 * time.Hour, nil
	}
	length, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%w: %q must be a length such as 5h or 7d, rolling/LENGTH, fixed/LENGTH or month/ZONE", ErrWindow, text)
	}
	return length, nil
}

// Validate returns [ErrWindow] unless the length is in its range.
func (f Fixed) Validate() error { return validateLength(f.Length) }

// Validate returns [ErrWindow] unless the length is in its range.
func (r Rolling) Validate() error { return validateLength(r.Length) }

// Validate returns [ErrWindow] unless the zone is known.
func (m Month) Validate() error {
	if m.Zone == "Local" { // which is another one on each machine
		return fmt.Errorf("%w: name the time zone, for example Europe/Berlin", ErrWindow)
	}
	if _, err := location(m.Zone); err != nil {
		return fmt.Errorf("%w: %q is no time zone", ErrWindow, m.Zone)
	}
	return nil
}

// locations are the zones that were asked for, by name: loading one reads a file. There are some 600.
var locations sync.Map

func location(name string) (*time.Location, error) {
	if zone, known := locations.Load(name); known {
		return zone.(*time.Location), nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, err
	}
	locations.Store(name, zone)
	return zone, nil
}

// Validate returns nil: there is nothing that could be wrong.
func (AtOnce) Validate() error { return nil }

func validateLength(length time.Duration) error {
	if length <= 0 || length > LengthMax || length%time.Microsecond != 0 {
		return fmt.Errorf("%w: the length must be more than 0 and at most %v, in whole microseconds", ErrWindow, LengthMax)
	}
	return nil
}

// need is an amount that has to fit under a ceiling.
type need struct {
	amount, ceiling int64
	// used and held are what the window and the account have now.
	used, held int64
	// holds are the live holds of the account, by deadline; their sum is held.
	holds []due
}

// due is an amount that a live hold will post at its deadline if nobody settles it.
type due struct {
	at     time.Time
	amount int64
}

func (n need) fits() bool { return fits(n.amount, n.ceiling, n.used, n.held) }

// never says that no waiting helps.
func (n need) never() bool { return n.amount > n.ceiling || n.ceiling <= 0 }

// fits is the rule of every admission: a ceiling of 0 admits nothing; an amount of 0 asks nothing of any limit. The
// difference cannot wrap, since all terms are within 0 and [NanoUSDMax].
func fits(amount, ceiling, used, held int64) bool {
	return amount == 0 || ceiling > 0 && amount <= ceiling-used-held
}

// isOpen says whether a charge at time t still falls into the window.
func (f Fixed) isOpen(opened OpeningRow, t time.Time) bool {
	return !opened.At.IsZero() && t.Before(opened.At.Add(f.Length))
}

func (f Fixed) since(past *past, at time.Time) (int64, error) {
	opened := past.row.Openings[f.Length]
	if !f.isOpen(opened, at) {
		return past.row.Used, nil
	}
	return opened.Total, nil
}

func (f Fixed) recovers(past *past, _ time.Time) time.Time {
	return past.row.Openings[f.Length].At.Add(f.Length)
}

// recovery steps through all that can change by itself: the window's end and the holds' deadlines.
func (f Fixed) recovery(past *past, now time.Time, n need) (time.Time, bool, error) {
	opened, known := past.row.Openings[f.Length]
	if !known { // nobody was ever admitted under it: no charge opens it
		at, ok := n.outlive(now)
		return at, ok, nil
	}
	at, ok := n.step(now, opened.At.Add(f.Length), f.isOpen(opened, now), func(opens time.Time) time.Time { return opens.Add(f.Length) })
	return at, ok, nil
}

// step plays the worst case forward: nothing happens, and every live hold runs out unsettled. Where the window is open it ends at
// end, and all that was used is forgotten; a hold is charged at its deadline, into a window that it opens if none is.
func (n need) step(now, end time.Time, open bool, endOf func(time.Time) time.Time) (at time.Time, ok bool) {
	for t := now; ; {
		switch {
		case n.fits():
			return t, true
		case open && (len(n.holds) == 0 || !n.holds[0].at.Before(end)):
			t, open, n.used = end, false, 0
		case len(n.holds) > 0:
			hold := n.holds[0]
			n.holds = n.holds[1:]
			t = later(t, hold.at)
			if !open {
				open, end, n.used = true, endOf(t), 0
			}
			n.held -= hold.amount
			n.used += hold.amount
		default:
			return time.Time{}, false
		}
	}
}

// outlive is when enough of the live holds has run out, where their charges do not count.
func (n need) outlive(t time.Time) (time.Time, bool) {
	for _, hold := range n.holds {
		t = later(t, hold.at)
		if n.held -= hold.amount; n.fits() {
			return t, true
		}
	}
	return time.Time{}, false
}

func (r Rolling) since(past *past, at time.Time) (int64, error) {
	return past.totalAt(at.Add(-r.Length))
}

// recovers is when the newest charge leaves.
func (r Rolling) recovers(past *past, _ time.Time) time.Time { return past.row.ChargedAt.Add(r.Length) }

// recovery looks for the charge with which enough has left: its place in the account's total is known, so that it takes a seek, and
// one more for each refund on the way.
func (r Rolling) recovery(past *past, at time.Time, n need) (time.Time, bool, error) {
	short := n.used + n.held + n.amount - n.ceiling
	if short <= 0 {
		return at, true, nil
	}
	since, err := past.windowSince(r, at)
	if err != nil {
		return time.Time{}, false, err
	}
	for wanted := short; ; {
		charge, found, err := past.chargeReaching(since + wanted)
		if err != nil {
			return time.Time{}, false, err
		}
		if !found {
			break
		}
		refunded, err := past.refunded(since, charge.Total)
		if err != nil {
			return time.Time{}, false, err
		}
		if short+refunded == wanted {
			return charge.At.Add(r.Length), true, nil
		}
		wanted = short + refunded // what was refunded of them leaves nothing behind
	}
	at, ok := n.outlast(short-n.used, at, r.Length)
	return at, ok, nil
}

// outlast is when enough of the live holds, charged at their deadlines, has left a rolling window, after all that is charged now.
func (n need) outlast(short int64, t time.Time, length time.Duration) (time.Time, bool) {
	for _, hold := range n.holds {
		t = later(t, hold.at)
		if short -= hold.amount; short <= 0 {
			return t.Add(length), true
		}
	}
	return time.Time{}, false
}

// begins is the month's first moment, of the month that holds a time.
func (m Month) begins(t time.Time) time.Time {
	zone, err := location(m.Zone)
	if err != nil { // admissions are validated, and rows were written by one
		zone = time.UTC
	}
	year, month, _ := t.In(zone).Date()
	begins := time.Date(year, month, 1, 0, 0, 0, 0, zone)
	if begins.Month() != month { // the clocks skip midnight
		begins = time.Date(year, month, 1, 1, 0, 0, 0, zone)
	}
	return begins.UTC()
}

// ends is the first moment of the next month.
func (m Month) ends(t time.Time) time.Time {
	return m.begins(m.begins(t).AddDate(0, 0, 40)) // in any zone, 40 days on is in the next month
}

// counting is the month that an account counts at a time: the one that it has begun to count, until it ends.
func (m Month) counting(row *AccountRow, at time.Time) (begins, ends time.Time) {
	if at.Before(row.Month.Ends) {
		begun := Month{row.Month.Zone}
		return begun.begins(row.Month.Ends.Add(-time.Microsecond)), row.Month.Ends
	}
	return m.begins(at), m.ends(at)
}

func (m Month) since(past *past, at time.Time) (int64, error) {
	begins, _ := m.counting(&past.row, at)
	return past.totalAt(justBefore(begins))
}

// before is the last moment before the month that holds a time.
func (m Month) before(t time.Time) time.Time { return justBefore(m.begins(t)) }

// justBefore is the last moment before a month: a charge at its first moment is in it.
func justBefore(begins time.Time) time.Time { return begins.Add(-time.Microsecond) }

func (m Month) recovers(past *past, at time.Time) time.Time {
	_, ends := m.counting(&past.row, at)
	return ends
}

func (m Month) recovery(past *past, now time.Time, n need) (time.Time, bool, error) {
	_, end := m.counting(&past.row, now)
	begins := m.begins(end)
	if !begins.Before(end) {
		t, ok := n.step(now, end, true, m.ends)
		return t, ok, nil
	}
	// The month that ends is that of a zone further east: by then this zone's runs already, and a part of what is used stands in it.
	since, err := past.windowSince(m, now)
	if err != nil {
		return time.Time{}, false, err
	}
	before, err := past.totalAt(justBefore(begins))
	if err != nil {
		return time.Time{}, false, err
	}
	refunded, err := past.refunded(since, before)
	if err != nil {
		return time.Time{}, false, err
	}
	t, fits := n.run(now, end)
	if !fits {
		n.used -= max(before-since, 0) - refunded
		t, fits = n.step(end, m.ends(end), true, m.ends)
	}
	return t, fits, nil
}

// run plays the worst case forward to the end of an open window. It takes the holds that are charged by then.
func (n *need) run(now, end time.Time) (at time.Time, fits bool) {
	for at = now; !n.fits() && len(n.holds) > 0 && n.holds[0].at.Before(end); n.holds = n.holds[1:] {
		at = later(at, n.holds[0].at)
		n.held -= n.holds[0].amount
		n.used += n.holds[0].amount
	}
	return at, n.fits()
}

func (AtOnce) since(past *past, _ time.Time) (int64, error) { return past.row.Used, nil }

func (AtOnce) recovers(_ *past, at time.Time) time.Time { return at }

// recovery is when enough holds have run out: what they are charged is not counted.
func (AtOnce) recovery(_ *past, now time.Time, n need) (time.Time, bool, error) {
	at, ok := n.outlive(now)
	return at, ok, nil
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
