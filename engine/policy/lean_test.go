//go:build !race

// The race detector makes pools forget at random, so that more is allocated.

package policy_test

import (
	"context"
	"testing"
	"time"

	"regent/engine/policy"
)

// A decision is made for every candidate of every call: what it allocates is bounded, since times are of the machine.
func TestDecideIsLean(t *testing.T) {
	for _, test := range []struct {
		name     string
		settings policy.Settings
		most     float64
	}{
		{"defaults", policy.Settings{}, 550},
		{"every rule in force", settings(), 680},
	} {
		activation := load(t, policy.Source{Settings: test.settings})
		f := facts()
		judge := activation.Judge(time.UnixMicro(f.Now/1000), f.Call, f.Identity)
		got := testing.AllocsPerRun(100, func() {
			if _, err := judge.Decide(context.Background(), f.Candidate, f.Attempts); err != nil {
				t.Fatal(err)
			}
		})
		if got > test.most {
			t.Errorf("%s: a decision allocates %.0f times, more than %.0f", test.name, got, test.most)
		}
	}
}
