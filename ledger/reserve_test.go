package ledger

import "testing"

// TestACallIsOne, whatever is reserved, and whatever a caller did to the last answer.
func TestACallIsOne(t *testing.T) {
	*Reserve{}.Of(Calls) = 2
	for _, r := range []Reserve{{}, {Tokens: new(int64(7))}} {
		if got := r.Of(Calls); *got != 1 {
			t.Errorf("%+v: got %d calls, want 1", r, *got)
		}
	}
}
