package ledger_test

import (
	"strings"
	"testing"

	"regent/ledger"
)

// TestWhatARecordNames: a decision's body is its caller's, and may name no activation or say something else in that place.
func TestWhatARecordNames(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	for _, test := range []struct {
		kind  ledger.Kind
		body  string
		names bool
	}{
		{ledger.DecisionRecord, `{"custom":{"activation":"` + digest + `","more":[1]},"result":{}}`, true},
		{ledger.OutcomeRecord, `{"custom":{"activation":"` + digest + `"}}`, false},
		{ledger.DecisionRecord, `{"activation":"` + digest + `"}`, false},
		{ledger.DecisionRecord, `{"custom":{"activation":"` + digest + `00"}}`, false},
		{ledger.DecisionRecord, `{"custom":{"activation":"` + digest[2:] + `"}}`, false},
		{ledger.DecisionRecord, `{"custom":{"activation":"` + digest[1:] + `x"}}`, false},
		{ledger.DecisionRecord, `{"custom":{"activation":7}}`, false},
		{ledger.DecisionRecord, `{"custom":"mine"}`, false},
		{ledger.DecisionRecord, `{}`, false},
	} {
		got, names := ledger.ActivationOf(ledger.Record{Kind: test.kind, Body: []byte(test.body)})
		if names != test.names || names && got[0] != 0xab {
			t.Errorf("%s %s: %v, %x", test.kind, test.body, names, got)
		}
	}
}
