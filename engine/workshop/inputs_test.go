package workshop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"regent/engine/policy"
)

// facts are allowed by the shipped bundle. It is a Wednesday.
func facts(source string) policy.Facts {
	return policy.Facts{
		Now: policy.Nanos(time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)),
		Call: policy.Call{Model: "acme/large", Protocol: "openai.chat", Kind: "generation", InputTokens: new(int64(1000)), OutputTokensMax: new(int64(500)),
			TokensBounded: true, CostBounded: true},
		Identity: policy.Identity{User: new("ada"), Groups: []string{"staff"}},
		Candidate: policy.Candidate{
			Source: source, Provider: "openai", Model: "gpt-large", Enabled: true, Connection: "authorised", Protocols: []string{"openai.chat"},
			ContextTokens: new(int64(100_000)), OutputTokensMax: new(int64(4000)), Priced: true, Accounting: policy.ByAPIKey,
		},
	}
}

func onSaturday(f policy.Facts) policy.Facts {
	f.Now = policy.Nanos(time.Date(2026, 3, 7, 12, 0, 0, 0, time.UTC))
	return f
}

func textOf(t testing.TB, document any) string {
	t.Helper()
	text, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// event is a decision record of some candidates and how each fared.
func event(t testing.TB, id string, attempts string, fared ...[2]string) string {
	t.Helper()
	f := facts("")
	var candidates, results []string
	for _, one := range fared {
		f.Candidate.Source = one[0]
		candidates = append(candidates, textOf(t, f.Candidate))
		results = append(results, fmt.Sprintf(`{"source":%q,"provider":"openai","outcome":%q}`, one[0], one[1]))
	}
	return fmt.Sprintf(`{"labels":{},"decision_id":%q,"path":"regent/main/decision","input":{"now":%d,"call":%s,"identity":%s,"candidates":[%s],"attempts":%s},`+
		`"result":{"allow":true,"candidates":[%s]},"timestamp":"2026-03-04T12:00:00Z","custom":{"activation":"aa"}}`,
		id, f.Now, textOf(t, f.Call), textOf(t, f.Identity), strings.Join(candidates, ","), attempts, strings.Join(results, ","))
}

const oneAttempt = `[{"source":"a","provider":"openai","reason":"timeout","accounting":"api_key"}]`

// judged are the candidates that are read of some text, in order.
func judged(t *testing.T, text string) (names []string, counts Counts) {
	t.Helper()
	counts, err := ReadInputs([]string{write(t, t.TempDir(), "x.jsonl", text)}, func(input Input) error {
		names = append(names, input.Candidate)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names, counts
}

func TestEachJudgementOfALogIsReadOnce(t *testing.T) {
	outcome := `{"labels":{},"decision_id":"1","path":"regent/outcome","result":{"state":"completed"},"timestamp":"2026-03-04T12:00:00Z"}`
	shown := fmt.Sprintf("{\n  \"kind\": \"decision\",\n  \"body\": %s\n}\n{\"kind\": \"charge\", \"body\": {\"source\": \"a\"}}", event(t, "2", "[]", [2]string{"d", "selected"}))
	for _, test := range []struct {
		name, text string
		want       []string
		others     int
	}{
		{"an input document", textOf(t, facts("a")), []string{"a"}, 0},
		{"a first decision", event(t, "1", "[]", [2]string{"a", "denied"}, [2]string{"b", "selected"}, [2]string{"c", "not_reached"}), []string{"a", "b"}, 0},
		{"the failover after it", event(t, "1", oneAttempt, [2]string{"a", "denied"}, [2]string{"b", "failed"}, [2]string{"c", "denied"}, [2]string{"d", "selected"}),
			[]string{"c", "d"}, 0},
		{"none", event(t, "1", "[]"), nil, 1},
		{"an outcome", outcome, nil, 1},
		{"what decisions show prints", shown, []string{"d"}, 1},
		{"lines", event(t, "1", "[]", [2]string{"a", "selected"}) + "\n" + outcome + "\n\n" + event(t, "2", "[]", [2]string{"b", "selected"}) + "\n", []string{"a", "b"}, 1},
	} {
		got, counts := judged(t, test.text)
		if !slices.Equal(got, test.want) || counts != (Counts{Inputs: len(test.want), Others: test.others}) {
			t.Errorf("%s: got %v, %+v", test.name, got, counts)
		}
	}
}

// A record whose lists are null, as Go writes those that are nil, is judged as it was.
func TestARecordIsJudgedAsItWas(t *testing.T) {
	activation, err := bench(t).Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	line := event(t, "1", "null", [2]string{"a", "selected"})
	if !strings.Contains(line, `"modalities":null`) {
		t.Fatal("no list is null")
	}
	inputs, err := InputsOf([]byte(line), "log")
	if err != nil || len(inputs) != 1 {
		t.Fatalf("got %v, %v", inputs, err)
	}
	if verdict, err := VerdictOn(context.Background(), activation, inputs[0].Document); err != nil || !verdict.Allow {
		t.Errorf("got %+v, %v", verdict, err)
	}
	if inputs[0].Where != "log 1" || inputs[0].Activation != "aa" || inputs[0].Recorded.Outcome != "selected" {
		t.Errorf("got %+v", inputs[0])
	}
	// A field that the record lacks is not made up.
	inputs, err = InputsOf([]byte(strings.ReplaceAll(line, `"accounting":"api_key"`, `"extra":1`)), "log")
	if err != nil {
		t.Fatal(err)
	}
	if verdict, err := VerdictOn(context.Background(), activation, inputs[0].Document); err != nil || !slices.Equal(verdict.Denials, []string{"main INCOMPLETE_INPUT (terminal)"}) {
		t.Errorf("got %+v, %v", verdict, err)
	}
}

func TestWhatIsNoInputIsTold(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"{", "x.json: document 1: unexpected EOF"},
		{`{"now": 1}`, "document 1: it is neither an input document"},
		{`[]`, "document 1: json: cannot unmarshal array"},
		{textOf(t, facts("a")) + ` {"now": 1}`, "document 2: it is neither"},
		{strings.Replace(event(t, "1", "[]", [2]string{"a", "selected"}), `"candidates":[{"source":"a"`, `"candidates":[{"source":"b"`, 1), "the candidate b is told of as a"},
		{`{"path":"regent/main/decision","input":{"candidates":[{}]},"result":{}}`, "it has 1 candidates, and tells how 0 fared"},
		{`{"candidate":{}, "candidate": {}}`, `the key "candidate" is there twice`},
		{`{"x": "` + strings.Repeat("x", maxRecord+2*readAhead) + `"}`, fmt.Sprintf("more than %d bytes", maxRecord)},
	} {
		_, err := ReadInputs([]string{write(t, t.TempDir(), "x.json", test.text)}, func(Input) error { return nil })
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.60s: got %v, want %q", test.text, err, test.want)
		}
	}
}

// A log may be larger than what is held of it.
func TestALogIsReadDocumentByDocument(t *testing.T) {
	line := event(t, "1", "[]", [2]string{"a", "selected"}) + "\n"
	n := maxRecord/len(line) + 1000
	if _, counts := judged(t, strings.Repeat(line, n)); counts.Inputs != n {
		t.Errorf("got %d of %d", counts.Inputs, n)
	}
}

func TestCompareTellsWhatDiffers(t *testing.T) {
	folder := started(t)
	old, err := bench(t).Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	changed, err := bench(t, folder).Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	inputs := t.TempDir()
	off := onSaturday(facts("off"))
	off.Candidate.Enabled = false
	write(t, inputs, "a/wednesday.json", textOf(t, facts("a")))
	write(t, inputs, "b/saturday.json", textOf(t, onSaturday(facts("b"))))
	write(t, inputs, "c.jsonl", textOf(t, off)+"\n"+event(t, "1", "[]", [2]string{"d", "selected"}))
	write(t, inputs, "README.md", "no input")
	for _, turned := range []bool{false, true} {
		one, other, want := old, changed, Comparison{Inputs: 4, Differ: 2, NowDenied: 1}
		lines := []string{
			"a b/saturday.json b: allowed -> denied org/weekdays WEEKDAYS (terminal)",
			"a c.jsonl off: denied availability SOURCE_DISABLED -> denied availability SOURCE_DISABLED, org/weekdays WEEKDAYS (terminal)",
		}
		if turned {
			one, other, want = changed, old, Comparison{Inputs: 4, Differ: 2, NowAllowed: 1}
			lines = []string{
				"a b/saturday.json b: denied org/weekdays WEEKDAYS (terminal) -> allowed",
				"a c.jsonl off: denied availability SOURCE_DISABLED, org/weekdays WEEKDAYS (terminal) -> denied availability SOURCE_DISABLED",
			}
		}
		var got []string
		comparison, err := Compare(context.Background(), one, other, []string{inputs}, func(d Difference) error {
			where, err := filepath.Rel(inputs, d.Where)
			got = append(got, fmt.Sprintf("a %s %s: %s -> %s", where, d.Candidate, d.Was, d.WouldBe))
			return err
		})
		if err != nil || comparison != want || !slices.Equal(got, lines) {
			t.Errorf("got %+v, %v\n%s", comparison, err, strings.Join(got, "\n"))
		}
	}
}

// The order in which rules refuse is none of a decision's, and its texts are none either.
func TestOrderAndTextsMakeNoDifference(t *testing.T) {
	one := verdictOf(policy.Decision{Denials: []policy.Denial{{Rule: "b", Code: "X", Title: "old"}, {Rule: "a", Code: "Y"}}}, nil)
	other := verdictOf(policy.Decision{Denials: []policy.Denial{{Rule: "a", Code: "Y", Remedy: "new"}, {Rule: "b", Code: "X"}}}, nil)
	if !one.equal(other) {
		t.Errorf("%v differs from %v", one, other)
	}
	other = verdictOf(policy.Decision{Denials: []policy.Denial{{Rule: "a", Code: "Y", Terminal: true}, {Rule: "b", Code: "X"}}}, nil)
	if one.equal(other) {
		t.Error("terminal makes no difference")
	}
	if one.equal(verdictOf(policy.Decision{}, errors.New("failed"))) {
		t.Error("an error makes no difference")
	}
}

func FuzzInputs(f *testing.F) {
	f.Add([]byte(textOf(f, facts("a"))))
	f.Add([]byte(event(f, "1", oneAttempt, [2]string{"a", "failed"}, [2]string{"b", "denied"})))
	f.Add([]byte(`{"kind":"decision","body":{"kind":"decision","body":null}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		inputs, err := InputsOf(text, "fuzz")
		for _, input := range inputs {
			if err == nil && input.Candidate == "" {
				t.Errorf("a candidate without a name in %s", text)
			}
		}
	})
}
