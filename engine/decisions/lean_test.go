//go:build !race

// The race detector makes pools forget at random, so that more is allocated.

package decisions_test

import "testing"

// Every call's decision is encoded: what that allocates is bounded, since times are of the machine.
func TestEncodeIsLean(t *testing.T) {
	event := walked()
	got := testing.AllocsPerRun(1000, func() {
		if _, err := event.Encode(); err != nil {
			t.Fatal(err)
		}
	})
	if got > 1 {
		t.Errorf("an event takes %.0f allocations, more than one", got)
	}
}
