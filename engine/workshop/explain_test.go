package workshop

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	"regent/engine/policy"
)

func explained(t *testing.T, f policy.Facts, all bool, paths ...string) *Explanation {
	t.Helper()
	activation, err := bench(t, paths...).Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	explanation, err := Explain(context.Background(), activation, f.Document(), all)
	if err != nil {
		t.Fatal(err)
	}
	return explanation
}

// ground of a code, among denials or what has passed.
func ground(t *testing.T, grounds []Ground, code string) Ground {
	t.Helper()
	at := slices.IndexFunc(grounds, func(g Ground) bool { return g.Code == code })
	if at < 0 {
		t.Fatalf("%s is not there", code)
	}
	return grounds[at]
}

func TestADenialLeadsToItsLines(t *testing.T) {
	f := facts("a")
	f.Candidate.Enabled = false
	explanation := explained(t, f, false)
	want := []Ground{{
		Rule: "availability", Code: "SOURCE_DISABLED", Title: "The source is switched off",
		Remedy: "Choose another model, or ask an administrator to switch this one on.",
		Bundle: "regent", File: "regent/rules/availability/availability.rego", Line: 15,
		Steps: []Step{{
			Line: 15, Text: "not input.candidate.enabled == true", Held: true,
			Reads: []Read{{Name: "input.candidate.enabled", Value: "false"}},
		}},
	}}
	if !reflect.DeepEqual(explanation.Denials, want) || len(explanation.Passed) > 0 || explanation.Trace != "" {
		t.Errorf("got %+v", explanation)
	}
}

func TestADenialLeadsThroughTheRulesThatItAsks(t *testing.T) {
	f := facts("a")
	f.Attempts = []policy.Attempt{{Source: "a", Provider: "openai", Reason: "content_policy", Accounting: policy.ByAPIKey}}
	explanation := explained(t, f, false)
	steps := ground(t, explanation.Denials, "FALLBACK_NOT_ALLOWED").Steps
	if len(steps) != 2 || steps[0].Text != "not input.attempts == []" || steps[1].Text != "not _reason_allows" {
		t.Fatalf("got %+v", steps)
	}
	asked := steps[1].Asked
	if len(asked) != 1 || asked[0].Name != "_reason_allows" || asked[0].Held || asked[0].Line != 39 || asked[0].Failed == nil {
		t.Fatalf("got %+v", asked)
	}
	failed := asked[0].Failed
	if failed.Line != 40 || failed.Held || !slices.Contains(failed.Reads, Read{Name: "input.attempts[0].reason", Value: `"content_policy"`}) {
		t.Errorf("got %+v", failed)
	}
}

func TestWhatPassedSaysWhere(t *testing.T) {
	explanation := explained(t, facts("a"), true, started(t))
	if !explanation.Verdict.Allow || len(explanation.Denials) > 0 || len(explanation.Passed) != 25 {
		t.Fatalf("got %+v", explanation)
	}
	for _, passed := range explanation.Passed {
		if len(passed.Steps) != 1 && passed.Code != "INCOMPLETE_INPUT" {
			t.Errorf("%s says nothing", passed.Code)
		}
	}
	want := []Step{{
		Line: 16, Text: `time.weekday([input.now, "Europe/Zurich"]) in {"Saturday", "Sunday"}`,
		Reads: []Read{{Name: "input.now", Value: "1772625600000000000"}},
	}}
	if got := ground(t, explanation.Passed, "WEEKDAYS"); !reflect.DeepEqual(got.Steps, want) || got.Bundle != "org" || got.Line != 15 {
		t.Errorf("got %+v", got)
	}
	if !strings.Contains(explanation.Trace, "org/org/rules/weekdays/weekdays.rego:16") {
		t.Errorf("the trace has no line of the rule:\n%s", explanation.Trace)
	}
}

// An input that no rule is asked about: what is wrong with it.
func TestAnIncompleteInputLeadsToTheField(t *testing.T) {
	activation, err := bench(t).Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	input, err := policy.ParseDocument([]byte(strings.Replace(textOf(t, facts("a")), `"kind":"generation"`, `"kind":7`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	explanation, err := Explain(context.Background(), activation, input, true)
	if err != nil {
		t.Fatal(err)
	}
	steps := ground(t, explanation.Denials, "INCOMPLETE_INPUT").Steps
	if len(steps) != 1 || len(steps[0].Asked) != 1 || steps[0].Asked[0].Failed == nil {
		t.Fatalf("got %+v", steps)
	}
	if failed := steps[0].Asked[0].Failed; failed.Text != "is_string(input.call.kind)" || !slices.Contains(failed.Reads, Read{Name: "input.call.kind", Value: "7"}) {
		t.Errorf("got %+v", failed)
	}
	for _, passed := range explanation.Passed {
		if len(passed.Steps) > 0 {
			t.Errorf("%s was asked: %+v", passed.Code, passed.Steps)
		}
	}
}

// Of several tries the furthest is shown, and the variables as the author named them.
func TestVariablesHaveTheirNames(t *testing.T) {
	folder := started(t)
	change(t, folder, weekend, `	time.weekday([input.now, "Europe/Zurich"]) in {"Saturday", "Sunday"}
`, `	some group in input.identity.groups
	startswith(group, "st")
	limit := count(input.identity.groups) + 1
	limit > 5
`)
	f := facts("a")
	f.Identity.Groups = []string{"art", "staff", "zoo"}
	got := ground(t, explained(t, f, true, folder).Passed, "WEEKDAYS")
	want := []Step{{Line: 19, Text: "limit > 5", Reads: []Read{{Name: "limit", Value: "4"}}}}
	if !reflect.DeepEqual(got.Steps, want) {
		t.Errorf("got %+v", got.Steps)
	}
	f.Identity.Groups = []string{"a", "b", "c", "d", "staff"}
	denied := ground(t, explained(t, f, false, folder).Denials, "WEEKDAYS")
	if len(denied.Steps) != 4 || !slices.Contains(denied.Steps[1].Reads, Read{Name: "group", Value: `"staff"`}) {
		t.Errorf("got %+v", denied.Steps)
	}
}
