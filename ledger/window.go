package ledger

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// FixedLengthMax is the longest fixed window: the longest month.
const FixedLengthMax = 31 * 24 * time.Hour

// ErrWindow is returned for a window that cannot be.
var ErrWindow = errors.New("not a window")

// Fixed is a window that opens at its account's first use and closes a fixed span later; what was used in it is then
// forgotten, and the next use opens it again.
type Fixed struct {
	// Length is more than 0, at most [FixedLengthMax], and in whole microseconds.
	Length time.Duration
}

// Window is the span in which a [Limit] counts usage. A hold stands in no window: it counts against every window of its
// account until it ends.
type Window = Fixed

// String names the window, for example "fixed/24h".
func (f Fixed) String() string {
	text := f.Length.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return "fixed/" + text
}

// Validate returns [ErrWindow] unless the length is in its range.
func (f Fixed) Validate() error {
	if f.Length <= 0 || f.Length > FixedLengthMax || f.Length%time.Microsecond != 0 {
		return fmt.Errorf("%w: the length must be more than 0 and at most %v, in whole microseconds", ErrWindow, FixedLengthMax)
	}
	return nil
}

// Limit is the most that may be used and held in a window of an account. It travels with each admission; no row holds it.
type Limit struct {
	Window Window
	// Max is in the account's unit. 0 admits nothing.
	Max int64
}

// opening is the state of a fixed window: when it last opened, and its account's total at that moment.
type opening struct {
	at    time.Time
	total int64
}

// isOpen says whether a charge at time t still falls into the window.
func (f Fixed) isOpen(o opening, t time.Time) bool {
	return !o.at.IsZero() && t.Before(o.at.Add(f.Length))
}

// due is an amount that a live hold will post at its deadline if nobody settles it.
type due struct {
	at     time.Time
	amount int64
}

// recovery finds the earliest time at which an amount fits under max if nothing else happens and every live hold runs out
// unsettled, which is the worst case. It steps through all that can change by itself: the window's end and the holds'
// deadlines. ok is false if the amount never fits.
//
// holds are the live ones of the account, by deadline; used and held are their sums now.
func (f Fixed) recovery(now time.Time, o opening, used, held int64, holds []due, amount, max int64) (at time.Time, ok bool) {
	end := o.at.Add(f.Length)
	open := f.isOpen(o, now)
	if !open && used > 0 { // a charge that is about to be posted opens it
		open, end = true, now.Add(f.Length)
	}
	for t := now; ; {
		if fits(amount, max, used, held) {
			return t, true
		}
		switch {
		case open && (len(holds) == 0 || !holds[0].at.Before(end)):
			t, open, used = end, false, 0
		case len(holds) > 0:
			hold := holds[0]
			holds = holds[1:]
			t = later(t, hold.at)
			if !open {
				open, end, used = true, t.Add(f.Length), 0
			}
			held -= hold.amount
			used += hold.amount
		default:
			return time.Time{}, false
		}
	}
}

// fits is the rule of every admission: a limit of 0 admits nothing; an amount of 0 asks nothing of any limit. The
// difference cannot wrap, since all terms are within 0 and [NanoUSDMax].
func fits(amount, max, used, held int64) bool {
	return amount == 0 || max > 0 && amount <= max-used-held
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
