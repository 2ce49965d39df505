package ledger

import (
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
		if got := hour.isOpen(opening{at: test.opened}, now); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func TestRecovery(t *testing.T) {
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) opening { return opening{at: now.Add(-d)} }
	in := func(d time.Duration, amount int64) due { return due{now.Add(d), amount} }
	const max = 10
	for _, test := range []struct {
		name       string
		opened     opening
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
		{"two holds that end apart share the window that the first one opens", opening{}, 0, 10, []due{in(time.Minute, 5), in(30*time.Minute, 5)}, 6, 61 * time.Minute},
		{"two holds further apart than a window have one each", opening{}, 0, 10, []due{in(time.Minute, 5), in(2*time.Hour, 5)}, 5, 61 * time.Minute},
		{"and both have to be forgotten for more", opening{}, 0, 10, []due{in(time.Minute, 5), in(2*time.Hour, 5)}, 6, 3 * time.Hour},
		{"a hold that is due already, for a suspension of expiry, counts from now", opening{}, 0, 5, []due{in(-time.Minute, 5)}, 6, time.Hour},
		{"a charge about to be posted opens a closed window", ago(2 * time.Hour), 5, 0, nil, 6, time.Hour},
	} {
		at, ok := Fixed{time.Hour}.recovery(now, test.opened, test.used, test.held, test.holds, test.amount, max)
		if ok != (test.want >= 0) || ok && at.Sub(now) != test.want {
			t.Errorf("%s: got %v, %v, want %v", test.name, at.Sub(now), ok, test.want)
		}
	}
}

// TestRecoveryIsTheFirstMoment plays the worst case forward, a second at a time, by the rules of accounts alone.
func TestRecoveryIsTheFirstMoment(t *testing.T) {
	start := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		window := Fixed{time.Duration(rapid.IntRange(1, 20).Draw(t, "window")) * time.Second}
		max := rapid.Int64Range(1, 20).Draw(t, "max")
		amount := rapid.Int64Range(1, max).Draw(t, "amount")
		row := AccountRow{Used: rapid.Int64Range(0, 20).Draw(t, "used"), Openings: map[time.Duration]OpeningRow{}}
		row.Openings[window.Length] = OpeningRow{At: start.Add(-time.Duration(rapid.IntRange(0, 25).Draw(t, "age")) * time.Second)}
		var holds []due
		at := start
		for range rapid.IntRange(0, 4).Draw(t, "holds") {
			at = at.Add(time.Duration(rapid.IntRange(1, 15).Draw(t, "gap")) * time.Second)
			holds = append(holds, due{at, rapid.Int64Range(1, 10).Draw(t, "amount")})
			row.Held += holds[len(holds)-1].amount
		}
		got, ok := window.recovery(start, row.Openings[window.Length].state(), row.usedIn(window, start), row.Held, holds, amount, max)
		for now := start; now.Before(start.Add(2 * time.Minute)); now = now.Add(time.Second) {
			for len(holds) > 0 && !holds[0].at.After(now) {
				row.Held -= holds[0].amount
				row.post(holds[0].amount, holds[0].at)
				holds = holds[1:]
			}
			if fits(amount, max, row.usedIn(window, now), row.Held) {
				if !ok || !got.Equal(now) {
					t.Fatalf("got %v, %v, want %v", got, ok, now)
				}
				return
			}
		}
		t.Fatalf("got %v, %v, but it never fitted", got, ok)
	})
}
