package workshop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"regent/engine/decisions"
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
		{"what comes after a miss", event(t, "1", "[]", [2]string{"a", "denied"}, [2]string{"b", "miss"}, [2]string{"c", "selected"}), []string{"c"}, 0},
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

// ranked is a record whose candidates were given in one order and tried in another one, as those of a policy with a selection are.
func ranked(t testing.TB, id string, given []string, attempts string, fared ...[2]string) string {
	t.Helper()
	f := facts("")
	var candidates []string
	for i, source := range given {
		f.Candidate.Source, f.Candidate.InputPrice = source, new(int64(i))
		candidates = append(candidates, textOf(t, f.Candidate))
	}
	tried := event(t, id, attempts, fared...)
	from, to := strings.Index(tried, `"candidates":[`), strings.Index(tried, `],"attempts"`)
	return tried[:from] + `"candidates":[` + strings.Join(candidates, ",") + tried[to:]
}

func TestACandidateIsPairedWithItsSourceWhateverTheOrder(t *testing.T) {
	activation, err := bench(t).Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	given := []string{"a", "b", "c", "d"}
	for _, test := range []struct {
		name  string
		fared [][2]string
		want  string // each source with the price that tells which of the given candidates it was taken for
	}{
		{"the order of the result", [][2]string{{"d", "denied"}, {"b", "denied"}, {"a", "selected"}, {"c", "not_reached"}}, "d3 b1 a0"},
		{"a failover", [][2]string{{"d", "denied"}, {"b", "failed"}, {"a", "denied"}, {"c", "selected"}}, "a0 c2"},
		{"a miss", [][2]string{{"c", "miss"}, {"b", "selected"}, {"a", "not_reached"}, {"d", "not_reached"}}, "b1"},
		{"what the cap of attempts cut off is absent", [][2]string{{"c", "denied"}, {"a", "denied"}}, "c2 a0"},
		{"nothing was tried", nil, ""},
	} {
		inputs, err := InputsOf([]byte(ranked(t, "1", given, "[]", test.fared...)), "log")
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		var got []string
		for _, input := range inputs {
			answer, _, err := activation.Evaluate(context.Background(), "[input.candidate.source, input.candidate.input_price]", input.Document)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, strings.Trim(strings.ReplaceAll(fmt.Sprint(answer), " ", ""), "[]"))
			if input.Recorded.Source != input.Candidate {
				t.Errorf("%s: %s is recorded as %s", test.name, input.Candidate, input.Recorded.Source)
			}
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: got %v, want %s", test.name, got, test.want)
		}
	}
}

// A host may give one source twice: they are told of in their order.
func TestCandidatesOfOneSourceArePairedInTheirOrder(t *testing.T) {
	inputs, err := InputsOf([]byte(ranked(t, "1", []string{"a", "a"}, "[]", [2]string{"a", "denied"}, [2]string{"a", "selected"})), "log")
	if err != nil || len(inputs) != 2 || inputs[0].Recorded.Outcome != "denied" || reflect.DeepEqual(inputs[0].Document, inputs[1].Document) {
		t.Errorf("got %+v, %v", inputs, err)
	}
}

func TestADocumentThatCannotBeReadStopsNoOther(t *testing.T) {
	good := event(t, "1", "[]", [2]string{"a", "selected"}) + "\n"
	wrong := strings.Replace(good, `"source":"a"`, `"source":"b"`, 1)
	doc := textOf(t, facts("a"))
	huge := `{"path": "` + strings.Repeat("x", maxRecord+2*readAhead) + "\"}\n"
	for _, test := range []struct {
		name, file, text string
		inputs, unread   int
		recorded         bool
		first            string
	}{
		{"none", "x.jsonl", good + good, 2, 0, false, ""},
		{"a record that contradicts itself", "x.json", good + wrong + good + wrong, 2, 2, true, "document 2: decision 1: the result tells of the candidate a"},
		{"a line that breaks off", "x.jsonl", good + good[:100] + "\n" + good + good, 3, 1, true, "document 2: invalid character"},
		{"the last line breaks off", "x.jsonl", good + good[:100], 1, 1, true, "document 2: unexpected EOF"},
		{"lines that are no JSON", "x.jsonl", "what\n\n" + good + "ever\n" + good + "{\n{{\n" + good, 3, 4, true, "document 1: invalid character 'w'"},
		{"a log by what was read of it", "x.json", good + good[:100] + "\n" + good, 2, 1, true, "document 2: invalid character"},
		{"more than is held", "x.jsonl", good + huge + good, 2, 1, true, "document 2: it has more than"},
		{"an author's document", "x.json", doc[:100] + "\n" + good, 1, 1, false, "document 1: invalid character"},
		{"an author's field", "x.jsonl", wrong + strings.Replace(doc, `"now"`, `"new"`, 1), 0, 2, false, "document 1: decision 1"},
	} {
		counts, err := ReadInputs([]string{write(t, t.TempDir(), test.file, test.text)}, func(Input) error { return nil })
		var unread *InputError
		if !errors.As(err, &unread) {
			unread = &InputError{}
		}
		if counts.Inputs != test.inputs || unread.Count != test.unread || unread.Recorded != test.recorded || (err == nil) != (test.unread == 0) {
			t.Errorf("%s: got %+v, %+v", test.name, counts, unread)
		}
		if err != nil && !strings.Contains(err.Error(), test.first) {
			t.Errorf("%s: got %v, want %s", test.name, err, test.first)
		}
	}
}

// Each line that is skipped costs what it holds, not what lies behind it.
func TestALogOfNothingButBrokenLinesIsReadInTime(t *testing.T) {
	n := 100_000
	began := time.Now()
	_, err := ReadInputs([]string{write(t, t.TempDir(), "x.jsonl", strings.Repeat("{broken}\n", n))}, func(Input) error { return nil })
	var unread *InputError
	if !errors.As(err, &unread) || unread.Count != n {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 20*time.Second { // it takes some 100 ms
		t.Errorf("it took %v", took)
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
		{strings.Replace(event(t, "1", "[]", [2]string{"a", "selected"}), `"candidates":[{"source":"a"`, `"candidates":[{"source":"b"`, 1),
			"x.json: document 1: decision 1: the result tells of the candidate a, which is not in the input"},
		{strings.Replace(event(t, "1", "[]", [2]string{"a", "denied"}), `"result":{"allow":true,"candidates":[`, `"result":{"candidates":[{"source":"a"},`, 1),
			"the result tells of the candidate a, which is not in the input, or more often than it is"},
		{strings.Replace(textOf(t, facts("a")), `"stream"`, `"streem"`, 1), `unknown field "streem"`},
		{strings.Replace(textOf(t, facts("a")), `"stream":false,`, "", 1), "call.stream is missing"},
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

// compared has a policy compared with itself over a text.
func compared(t *testing.T, activation *policy.Activation, text string) (comparison Comparison, reported []Difference, err error) {
	t.Helper()
	comparison, err = Compare(context.Background(), activation, activation, []string{write(t, t.TempDir(), "x.jsonl", text)}, func(d Difference) error {
		reported = append(reported, d)
		return nil
	})
	return comparison, reported, err
}

func TestCompareTellsWhatOldDecidesOtherwiseThanTheRecord(t *testing.T) {
	activation, err := bench(t).Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	denied := `"outcome":"denied","denials":[{"rule":"access","code":"MODEL_NOT_ALLOWED","title":"t","remedy":"r","terminal":false}]`
	line := event(t, "1", "[]", [2]string{"a", "denied"})
	for _, test := range []struct {
		name, result string
		want         int
	}{
		{"denied by a limit", `"outcome":"denied","reason":"limit_reached"`, 0},
		{"denied by a rule", denied, 1},
		{"policy made no decision", `"outcome":"denied","reason":"policy_failed"`, 1},
	} {
		got, reported, err := compared(t, activation, strings.Replace(line, `"outcome":"denied"`, test.result, 1))
		want := Comparison{Inputs: 1, RecordedOtherwise: test.want}
		if test.want > 0 {
			want.Why = WhyOtherwise
		}
		if err != nil || got != want || len(reported) > 0 {
			t.Errorf("%s: got %+v, %v, %v", test.name, got, reported, err)
		}
	}
}

func TestCompareTellsWhatIsIncompleteAndWhatCannotBeRead(t *testing.T) {
	activation, err := bench(t).Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	good := event(t, "1", "[]", [2]string{"a", "selected"}) + "\n"
	old := strings.Replace(event(t, "2", "[]", [2]string{"a", "selected"}), `"accounting":"api_key"`, `"extra":1`, 1) + "\n"
	wrong := strings.Replace(good, `"source":"a"`, `"source":"b"`, 1)
	got, reported, err := compared(t, activation, good+wrong+old+wrong+good)
	first := got.FirstUnread
	got.FirstUnread = ""
	want := Comparison{Inputs: 3, Incomplete: 1, RecordedOtherwise: 1, Why: WhyOtherwise, Unread: 2}
	if got != want || !strings.Contains(first, "x.jsonl: document 2: decision 1: the result tells of") {
		t.Errorf("got %+v, %s", got, first)
	}
	if err == nil || !strings.HasPrefix(err.Error(), "2 documents cannot be read, the first is ") {
		t.Errorf("got %v", err)
	}
	if len(reported) != 1 || !reported[0].Incomplete || !reported[0].Was.equal(reported[0].WouldBe) {
		t.Errorf("got %+v", reported)
	}
}

func TestARecordWithoutADecisionIsOtherwiseThanOne(t *testing.T) {
	decided, undecided := Input{Recorded: &decisions.Candidate{Outcome: "selected"}}, Input{Recorded: &decisions.Candidate{Outcome: "denied", Reason: "policy_failed"}}
	for _, test := range []struct {
		input   Input
		verdict Verdict
		want    bool
	}{
		{decided, Verdict{Allow: true}, false},
		{decided, Verdict{Error: "late"}, true},
		{undecided, Verdict{Allow: true}, true},
		{undecided, Verdict{Error: "late"}, false},
		{Input{}, Verdict{Denials: []string{"a B"}}, false},
	} {
		if got := test.input.Otherwise(test.verdict); got != test.want {
			t.Errorf("%+v, %+v: got %v", test.input.Recorded, test.verdict, got)
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
