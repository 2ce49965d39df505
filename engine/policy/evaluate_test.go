package policy_test

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"regent/engine/policy"
)

func TestParseFactsIsStrict(t *testing.T) {
	good := jsonOf(t, facts())
	parsed, err := policy.ParseFacts([]byte(good))
	if err != nil || jsonOf(t, parsed) != good {
		t.Fatalf("got %s, %v", jsonOf(t, parsed), err)
	}
	for name, test := range map[string]struct{ old, new, want string }{
		"a misspelt field":        {`"stream":`, `"steam":`, `unknown field "steam"`},
		"another case":            {`"stream":`, `"Stream":`, "call.stream is missing"},
		"a missing field":         {`"kind":"generation",`, ``, "call.kind is missing"},
		"a missing part":          {`"attempts":[]`, `"other":[]`, `unknown field "other"`},
		"null":                    {`"stream":true`, `"stream":null`, "call.stream is null"},
		"a null list":             {`"modalities":[],`, `"modalities":null,`, "call.modalities is null"},
		"a null in a list":        {`"groups":["staff",`, `"groups":[null,`, "identity.groups[0] is null"},
		"a wrong type":            {`"stream":true`, `"stream":"true"`, "cannot unmarshal"},
		"a fraction":              {`"input_tokens":1000`, `"input_tokens":1000.5`, "cannot unmarshal"},
		"a key twice":             {`"stream":true`, `"stream":false,"stream":true`, `the key "stream" is there twice`},
		"a key twice, escaped":    {`"stream":true`, `"stream":false,"\u0073tream":true`, `the key "stream" is there twice`},
		"no object":               {good, `[]`, "cannot unmarshal"},
		"null alone":              {good, `null`, "is null, not an object"},
		"nothing":                 {good, ``, "the input document"},
		"two documents":           {good, good + "{}", "the input document"},
		"no text":                 {`"ada"`, "\"\xff\"", "not valid UTF-8"},
		"too deep":                {`"ada"`, strings.Repeat("[", 100) + strings.Repeat("]", 100), "nested more than 64 deep"},
		"a text that is too long": {`"ada"`, `"` + strings.Repeat("x", 2000) + `"`, "identity.user has 2000 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(good, test.old, test.new, 1)
			if text == good {
				t.Fatalf("the document holds no %s", test.old)
			}
			if _, err := policy.ParseFacts([]byte(text)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	if _, err := policy.ParseDocument([]byte(`{"x":"` + strings.Repeat("x", 4<<20) + `"}`)); !errors.Is(err, policy.ErrTooLarge) {
		t.Errorf("got %v, want %v", err, policy.ErrTooLarge)
	}
}

// FuzzFacts: what is taken is the facts that are written back, and is decided upon as they are.
func FuzzFacts(f *testing.F) {
	text, err := json.Marshal(facts())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"now": 1}`))
	f.Add([]byte(strings.Replace(string(text), "1000", "9007199254740993", 1)))
	activation := load(f, policy.Source{Settings: settings()})
	f.Fuzz(func(t *testing.T, text []byte) {
		document, documentErr := policy.ParseDocument(text)
		facts, err := policy.ParseFacts(text)
		if err != nil {
			return
		}
		if documentErr != nil {
			t.Fatalf("facts are no document: %v", documentErr)
		}
		again, err := policy.ParseFacts([]byte(jsonOf(t, facts)))
		if err != nil || !reflect.DeepEqual(facts, again) {
			t.Fatalf("%+v is read back as %+v, %v", facts, again, err)
		}
		byText, textErr := activation.Decide(context.Background(), document)
		byFacts, factsErr := activation.Decide(context.Background(), facts.Document())
		if !reflect.DeepEqual(byText, byFacts) || (textErr == nil) != (factsErr == nil) {
			t.Errorf("%s decides %+v, %v; its facts %+v, %v", text, byText, textErr, byFacts, factsErr)
		}
	})
}

func TestEvaluateAnswersAnyQuery(t *testing.T) {
	activation := load(t, policy.Source{Settings: settings()})
	f := facts()
	for query, want := range map[string]any{
		"data.regent.main.decision.allow":       true,
		"count(data.regent.rules.access.deny)":  json.Number("0"),
		"input.call.model":                      "acme/large",
		"data.regent.settings.providers[0]":     "openai",
		"[x | some x in input.identity.groups]": []any{"staff", "research", "board"},
	} {
		answer, defined, err := activation.Evaluate(context.Background(), query, f.Document())
		if err != nil || !defined || !reflect.DeepEqual(answer, want) {
			t.Errorf("%s: got %#v, %t, %v", query, answer, defined, err)
		}
	}
	if _, defined, err := activation.Evaluate(context.Background(), "data.nowhere", f.Document()); err != nil || defined {
		t.Errorf("nothing is defined: %t, %v", defined, err)
	}
	for query, want := range map[string]string{
		"data.": "policy: the query: ", "time.now_ns()": "undefined function time.now_ns", `http.send({"url": "x"})`: "undefined function http.send",
		"1/0": "policy: evaluation failed",
	} {
		if _, _, err := activation.Evaluate(context.Background(), query, f.Document()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", query, err, want)
		}
	}
}
