package engine

import (
	"errors"
	"testing"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

// TestSettle is the whole rule of what an attempt is charged, a line each.
func TestSettle(t *testing.T) {
	input := int64(100)
	reported := &ledger.Usage{UncachedInput: 90, Output: 7}
	broken := &adapters.Failure{Reason: adapters.StreamBroken, Status: 200, Accepted: true}
	refused := &adapters.Failure{Reason: adapters.Overloaded, Status: 503}
	const (
		nothing   = "nothing"
		actual    = "90+7"
		estimated = "~100+12" // the counted input and the relayed output
		inputOnly = "~100+0"
		held      = "held"
	)
	for _, line := range []struct {
		what                  string
		outcome               Outcome
		estimate, hold        string // by settings.settlement.interrupted
		acceptedWithoutOutput string // by settings.settlement.accepted_without_output = estimate
		result                string
		state                 ledger.State
	}{
		{"complete, usage reported", Outcome{Output: true, Accepted: true, Usage: reported}, actual, actual, actual, "success", ledger.Completed},
		{"complete, no usage", Outcome{Output: true, Accepted: true, OutputTokens: 12}, estimated, held, estimated, "success", ledger.Completed},
		{"complete, no output, no usage", Outcome{Accepted: true}, inputOnly, held, inputOnly, "success", ledger.Completed},
		{"refused", Outcome{Err: refused}, nothing, nothing, nothing, "error", ledger.Failed},
		{"broken before output", Outcome{Err: broken, Accepted: true}, nothing, nothing, inputOnly, "error", ledger.Failed},
		{"broken after output", Outcome{Err: broken, Accepted: true, Output: true, OutputTokens: 12}, estimated, held, estimated, "error", ledger.Failed},
		{"broken after usage", Outcome{Err: broken, Accepted: true, Output: true, Usage: reported}, actual, actual, actual, "error", ledger.Failed},
		{"complete, usage before the last output", Outcome{Output: true, Accepted: true, Usage: reported, outdated: true, OutputTokens: 12}, actual, actual, actual, "success", ledger.Completed},
		{"broken after usage and more output", Outcome{Err: broken, Accepted: true, Output: true, Usage: reported, outdated: true, OutputTokens: 12}, "~90+12", held, "~90+12", "error", ledger.Failed},
		{"broken after usage and a little output", Outcome{Err: broken, Accepted: true, Output: true, Usage: reported, outdated: true, OutputTokens: 2}, "~90+7", held, "~90+7", "error", ledger.Failed},
		{"left before the provider answered", Outcome{Err: ErrAborted}, nothing, nothing, nothing, "abort", ledger.Cancelled},
		{"left before output", Outcome{Err: ErrAborted, Accepted: true}, nothing, nothing, inputOnly, "abort", ledger.Cancelled},
		{"left after output", Outcome{Err: ErrAborted, Accepted: true, Output: true, OutputTokens: 12}, estimated, held, estimated, "abort", ledger.Cancelled},
		{"left after output, usage learnt", Outcome{Err: ErrAborted, Accepted: true, Output: true, Usage: reported}, actual, actual, actual, "abort", ledger.Cancelled},
		{"a fault of our own", Outcome{Err: errors.New("x")}, nothing, nothing, nothing, "error", ledger.Failed},
	} {
		for setting, want := range map[policy.Settlement]string{
			{Interrupted: "estimate", AcceptedWithoutOutput: "release"}:  line.estimate,
			{Interrupted: "held", AcceptedWithoutOutput: "release"}:      line.hold,
			{Interrupted: "estimate", AcceptedWithoutOutput: "estimate"}: line.acceptedWithoutOutput,
		} {
			if got := describe(settle(line.outcome, setting, &input)); got != want {
				t.Errorf("%s with %+v: got %s, want %s", line.what, setting, got, want)
			}
		}
		recorded, state := ended(line.outcome)
		if recorded.Result != line.result || state != line.state {
			t.Errorf("%s: got %s and %s, want %s and %s", line.what, recorded.Result, state, line.result, line.state)
		}
	}
	// A router that does not see the prompt cannot estimate: what was held is charged.
	if got := describe(settle(Outcome{Output: true}, policy.Settlement{Interrupted: "estimate"}, nil)); got != held {
		t.Errorf("without an estimate of the input: got %s, want %s", got, held)
	}
}

// TestAReportIsTheLastWord only until more output comes.
func TestAReportIsTheLastWord(t *testing.T) {
	report := adapters.Event{Kind: adapters.Closing, Usage: &ledger.Usage{Output: 7}}
	content := adapters.Event{Kind: adapters.Content, OutputBytes: 4}
	for name, test := range map[string]struct {
		events []adapters.Event
		want   bool
	}{
		"output, then a report":         {[]adapters.Event{content, report}, false},
		"a report, then output":         {[]adapters.Event{report, content}, true},
		"reports around output":         {[]adapters.Event{report, content, report}, false},
		"a report, then an empty event": {[]adapters.Event{content, report, {Kind: adapters.Closing}}, false},
	} {
		var o Outcome
		for _, event := range test.events {
			o.Count(&event)
		}
		if o.outdated != test.want || o.Usage == nil {
			t.Errorf("%s: outdated %v, %+v", name, o.outdated, o.Usage)
		}
	}
}

func describe(c *ledger.Consumption) string {
	switch {
	case c == nil:
		return "nothing"
	case c.Usage == nil:
		return "held"
	}
	text := ledger.FormatAmount(ledger.Tokens, c.Usage.UncachedInput) + "+" + ledger.FormatAmount(ledger.Tokens, c.Usage.Output)
	if c.Estimated {
		return "~" + text
	}
	return text
}
