package ledger

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestFits(t *testing.T) {
	for _, test := range []struct {
		amount, max, used, held int64
		want                    bool
	}{
		{0, 0, 0, 0, true},   // an amount of 0 asks nothing
		{0, 10, 20, 0, true}, // not even of a limit that was lowered below what is used
		{1, 0, 0, 0, false},  // a limit of 0 admits nothing
		{4, 10, 3, 3, true},  // exactly at the limit
		{5, 10, 3, 3, false}, // one above it
		{1, 10, 20, 0, false},
		{NanoUSDMax, NanoUSDMax, 0, 0, true},
		{1, NanoUSDMax, NanoUSDMax, NanoUSDMax, false}, // the difference does not wrap
	} {
		if got := fits(test.amount, test.max, test.used, test.held); got != test.want {
			t.Errorf("%d within %d, used %d, held %d: got %v", test.amount, test.max, test.used, test.held, got)
		}
	}
}

func TestIsOpen(t *testing.T) {
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	hour := Fixed{time.Hour}
	for name, test := range map[string]struct {
		opened time.Time
		want   bool
	}{
		"never used":            {time.Time{}, false},
		"opened now":            {now, true},
		"in its last moment":    {now.Add(-time.Hour + time.Microsecond), true},
		"exactly its length on": {now.Add(-time.Hour), false},
		"opened in the future":  {now.Add(time.Minute), true}, // an account's time never runs backwards
	} {
		if got := hour.isOpen(OpeningRow{At: test.opened}, now); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestRecovery(t *testing.T) {
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) OpeningRow { return OpeningRow{At: now.Add(-d)} }
	in := func(d time.Duration, amount int64) due { return due{now.Add(d), amount} }
	const max = 10
	for _, test := range []struct {
		name       string
		opened     OpeningRow
		used, held int64
		holds      []due
		amount     int64
		want       time.Duration // negative: never
	}{
		{"it fits", ago(time.Minute), 5, 0, nil, 5, 0},
		{"it never fits", ago(time.Minute), 5, 0, nil, 11, -1},
		{"the window's end frees it", ago(time.Minute), 10, 0, nil, 1, 59 * time.Minute},
		{"a hold that ends within the window changes nothing before its end", ago(time.Minute), 5, 5, []due{in(time.Minute, 5)}, 1, 59 * time.Minute},
		{"a hold that ends with the window is charged into the next", ago(0), 5, 5, []due{in(time.Hour, 5)}, 6, 2 * time.Hour},
		{"a hold that outlives the window leaves room beside it", ago(0), 5, 5, []due{in(2*time.Hour, 5)}, 5, time.Hour},
		{"a hold that outlives the window opens the next one", ago(0), 5, 5, []due{in(2*time.Hour, 5)}, 6, 3 * time.Hour},
		{"two holds that end apart share the window that the first one opens", OpeningRow{}, 0, 10, []due{in(time.Minute, 5), in(30*time.Minute, 5)}, 6, 61 * time.Minute},
		{"two holds further apart than a window have one each", OpeningRow{}, 0, 10, []due{in(time.Minute, 5), in(2*time.Hour, 5)}, 5, 61 * time.Minute},
		{"and both have to be forgotten for more", OpeningRow{}, 0, 10, []due{in(time.Minute, 5), in(2*time.Hour, 5)}, 6, 3 * time.Hour},
		{"a hold that is due already, for a suspension of expiry, counts from now", OpeningRow{}, 0, 5, []due{in(-time.Minute, 5)}, 6, time.Hour},
	} {
		account := &past{row: AccountRow{Openings: map[time.Duration]OpeningRow{time.Hour: test.opened}}}
		at, ok, err := Fixed{time.Hour}.recovery(account, now, need{test.amount, max, test.used, test.held, test.holds})
		if err != nil {
			t.Fatal(err)
		}
		if ok != (test.want >= 0) || ok && at.Sub(now) != test.want {
			t.Errorf("%s: got %v, %v, want %v", test.name, at.Sub(now), ok, test.want)
		}
	}
}

// A window that nobody was admitted under does not open by charges: a hold that runs out makes room at once.
func TestRecoveryOfAWindowThatIsNew(t *testing.T) {
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	holds := []due{{now.Add(time.Minute), 5}, {now.Add(time.Hour), 8}}
	for amount, want := range map[int64]time.Duration{1: time.Minute, 2: time.Minute, 3: time.Hour, 10: time.Hour} {
		at, ok, err := Fixed{time.Hour}.recovery(&past{}, now, need{amount, 10, 0, 13, holds})
		if err != nil || !ok || at.Sub(now) != want {
			t.Errorf("%d: got %v, %v, %v, want %v", amount, at.Sub(now), ok, err, want)
		}
	}
}

// Months end where their zone's do, whatever its clocks do meanwhile.
func TestMonth(t *testing.T) {
	for _, test := range []struct{ zone, at, begins, ends string }{
		{"", "2026-01-31T23:59:59.999999Z", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"},
		{"", "2026-02-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"},
		{"", "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"", "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"Europe/Berlin", "2026-03-31T21:59:59.999999Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"}, // winter to summer
		{"America/Asuncion", "2023-10-01T12:00:00Z", "2023-10-01T04:00:00Z", "2023-11-01T03:00:00Z"},     // midnight is skipped
		{"America/Asuncion", "2023-09-30T12:00:00Z", "2023-09-01T04:00:00Z", "2023-10-01T04:00:00Z"},
		{"Europe/Berlin", "2026-03-31T22:00:00Z", "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z"},
		{"Europe/Berlin", "2026-10-25T00:30:00Z", "2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z"}, // the hour that comes twice
		{"America/Los_Angeles", "2026-11-01T06:59:59Z", "2026-10-01T07:00:00Z", "2026-11-01T07:00:00Z"},
		{"America/Los_Angeles", "2026-11-01T07:00:00Z", "2026-11-01T07:00:00Z", "2026-12-01T08:00:00Z"},
		{"Pacific/Auckland", "2026-01-31T11:00:00Z", "2026-01-31T11:00:00Z", "2026-02-28T11:00:00Z"}, // 13 hours ahead
		{"Asia/Beirut", "2026-03-31T21:00:00Z", "2026-03-31T21:00:00Z", "2026-04-30T21:00:00Z"},
		{"America/Havana", "2026-10-31T12:00:00Z", "2026-10-01T04:00:00Z", "2026-11-01T04:00:00Z"}, // whose midnight comes twice
		{"Asia/Kolkata", "2026-06-30T18:29:59Z", "2026-05-31T18:30:00Z", "2026-06-30T18:30:00Z"},
	} {
		at, err := time.Parse(time.RFC3339Nano, test.at)
		if err != nil {
			t.Fatal(err)
		}
		month := Month{test.zone}
		if got := month.begins(at).Format(time.RFC3339Nano); got != test.begins {
			t.Errorf("%s at %s begins %s, want %s", month, test.at, got, test.begins)
		}
		if got := month.ends(at).Format(time.RFC3339Nano); got != test.ends {
			t.Errorf("%s at %s ends %s, want %s", month, test.at, got, test.ends)
		}
	}
}

// Every moment is in exactly one month, and the months follow each other without a gap.
func TestMonthsFollowEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		month := Month{rapid.SampledFrom([]string{"", "Europe/Berlin", "America/Los_Angeles", "Pacific/Apia", "Asia/Kolkata", "America/Havana"}).Draw(t, "zone")}
		at := time.UnixMicro(rapid.Int64Range(0, 4_000_000_000_000_000).Draw(t, "at")).UTC()
		begins, ends := month.begins(at), month.ends(at)
		if at.Before(begins) || !at.Before(ends) || !month.begins(ends).Equal(ends) || !month.begins(ends.Add(-time.Microsecond)).Equal(begins) {
			t.Fatalf("%s: %v is in the month from %v to %v", month, at, begins, ends)
		}
	})
}

// Another zone counts from the next month on, and never forgets what was used too early.
func TestAnotherZoneCountsFromTheNextMonth(t *testing.T) {
	at := time.Date(2026, 5, 20, 12, 0, 0, 0, time.UTC)
	row := &AccountRow{}
	row.open([]Limit{{Window: Month{"Europe/Berlin"}}}, at)
	berlin := row.Month
	if want := time.Date(2026, 5, 31, 22, 0, 0, 0, time.UTC); berlin.Zone != "Europe/Berlin" || !berlin.Ends.Equal(want) {
		t.Fatalf("got %+v", berlin)
	}
	auckland := Month{"Pacific/Auckland"}
	row.open([]Limit{{Window: auckland}}, at.AddDate(0, 0, 11)) // where it is June already
	if row.Month != berlin {
		t.Fatalf("the month was changed to %+v before its end", row.Month)
	}
	if begins, ends := auckland.counting(row, at); !begins.Equal(time.Date(2026, 4, 30, 22, 0, 0, 0, time.UTC)) || !ends.Equal(berlin.Ends) {
		t.Fatalf("it counts from %v to %v", begins, ends)
	}
	row.open([]Limit{{Window: auckland}}, berlin.Ends)
	if want := time.Date(2026, 6, 30, 12, 0, 0, 0, time.UTC); row.Month.Zone != "Pacific/Auckland" || !row.Month.Ends.Equal(want) {
		t.Fatalf("got %+v", row.Month)
	}
}

func TestWindowsThatCannotBe(t *testing.T) {
	for name, window := range map[string]Window{
		"rolling over nothing": Rolling{}, "rolling backwards": Rolling{-time.Second}, "rolling for longer than charges are kept": Rolling{LengthMax + time.Hour},
		"rolling by nanoseconds": Rolling{time.Nanosecond}, "fixed to nothing": Fixed{}, "fixed to less": Fixed{-time.Second},
		"a month nowhere": Month{"Atlantis/Capital"}, "a month wherever this runs": Month{"Local"}, "a month of a path": Month{"../../etc/passwd"},
	} {
		if err := window.Validate(); !errors.Is(err, ErrWindow) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for window, want := range map[Window]string{
		Rolling{5 * time.Hour}: "rolling/5h", Rolling{7 * 24 * time.Hour}: "rolling/168h", Month{}: "month/UTC", Month{"Europe/Berlin"}: "month/Europe/Berlin",
	} {
		if err := window.Validate(); err != nil || window.String() != want {
			t.Errorf("%s: %v, want %s", window, err, want)
		}
	}
}

func FuzzParseWindow(f *testing.F) {
	for _, text := range []string{"24h", "fixed/24h", "rolling/5h", "rolling/7d", "month", "month/Europe/Berlin", "31d", "rolling/1h0m1s", "month/", "5", "at-once", "at-once/5h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		window, err := ParseWindow(text)
		if err != nil {
			if !errors.Is(err, ErrWindow) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		again, err := ParseWindow(window.String())
		if err != nil || again.String() != window.String() || window.Validate() != nil {
			t.Fatalf("%q is %s, which is read as %v, %v", text, window, again, err)
		}
	})
}
