package inference

import (
	"context"
	"net/http/httptest"
	"testing"

	"regent/adapters"
)

// TestAWholeAnswerThatNobodyTakes was made all the same: without a report, it is no call that brought nothing.
func TestAWholeAnswerThatNobodyTakes(t *testing.T) {
	client := httptest.NewRecorder()
	gone, leave := context.WithCancel(t.Context())
	leave()
	a := &attempt{relay: &relay{x: &exchange{w: client}}, client: gone, lose: leave}
	a.take(adapters.Event{Kind: adapters.Done, Relay: []byte("{}"), OutputBytes: 8})
	if !a.outcome.Output || a.outcome.OutputTokens != 2 || a.delivered || client.Body.Len() > 0 {
		t.Errorf("output %v of %d tokens, delivered %v, written %q", a.outcome.Output, a.outcome.OutputTokens, a.delivered, client.Body)
	}
}
