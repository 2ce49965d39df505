package policy_test

import (
	"context"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"regent/engine/policy"
)

// blocks are the README's examples in a language, in order.
func blocks(t *testing.T, language string) (found []string) {
	t.Helper()
	for _, block := range strings.Split(readme(t), "```"+language+"\n")[1:] {
		text, _, _ := strings.Cut(block, "```")
		found = append(found, text)
	}
	return found
}

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../policies/README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The rule that README shows loads, and denies at weekends only.
func TestTheExampleOfTheReadmeWorks(t *testing.T) {
	activation := load(t, policy.Source{
		Bundles:  []policy.Bundle{org(map[string]string{"org/rules/weekdays/weekdays.rego": blocks(t, "rego")[0]})},
		Required: []string{"org/weekdays"},
	})
	for day, allowed := range map[int]bool{3: true, 4: false, 5: false, 6: true} { // 3 May 2024 is a Friday
		f := facts()
		f.Now = policy.Nanos(time.Date(2024, 5, day, 12, 0, 0, 0, time.UTC))
		decision, err := decide(activation, f)
		if err != nil || decision.Allow != allowed {
			t.Errorf("on day %d: got %+v, %v", day, decision, err)
		}
	}
}

// The selection that README shows ranks by price, the unpriced last, and equal prices in their order.
func TestTheSelectionOfTheReadmeWorks(t *testing.T) {
	activation := load(t, policy.Source{Bundles: []policy.Bundle{org(map[string]string{
		"org/selection/selection.rego": blocks(t, "rego")[2], "org/selection/selection_test.rego": blocks(t, "rego")[3],
	})}})
	f := facts()
	var candidates []policy.Candidate
	for source, price := range map[string]*int64{"a": new(int64(5)), "b": nil, "c": new(int64(3)), "d": new(int64(5))} {
		candidate := f.Candidate
		candidate.Source, candidate.InputPrice, candidate.OutputPrice = source, price, price
		candidates = append(candidates, candidate)
	}
	slices.SortFunc(candidates, func(a, b policy.Candidate) int { return strings.Compare(a.Source, b.Source) })
	ranked, err := activation.Judge(time.UnixMicro(f.Now/1000), f.Call, f.Identity).Rank(context.Background(), candidates)
	if err != nil || !slices.Equal(ranked, []string{"c", "a", "d", "b"}) {
		t.Errorf("got %v, %v", ranked, err)
	}
}

// The document that README shows is complete, and allowed.
func TestTheDocumentOfTheReadmeIsAllowed(t *testing.T) {
	f, err := policy.ParseFacts([]byte(blocks(t, "json")[0]))
	if err != nil {
		t.Fatal(err)
	}
	if decision, err := decide(load(t, policy.Source{}), f); err != nil || !decision.Allow {
		t.Errorf("got %+v, %v", decision, err)
	}
}

// The README lists every field of the input, and every rule that is shipped, and no other.
func TestTheReadmeListsEverything(t *testing.T) {
	var fields, rules, want []string
	for _, line := range strings.Split(readme(t), "\n") {
		name, isRow := strings.CutPrefix(line, "| `")
		name, _, _ = strings.Cut(name, "`")
		switch columns := strings.Count(line, " | "); {
		case isRow && columns == 2:
			fields = append(fields, name)
		case isRow && columns == 1:
			rules = append(rules, name)
		}
	}
	paths(reflect.TypeFor[policy.Facts](), "", &want)
	slices.Sort(fields)
	slices.Sort(want)
	if !slices.Equal(fields, want) {
		t.Errorf("the README lists\n%s\nfacts have\n%s", strings.Join(fields, "\n"), strings.Join(want, "\n"))
	}
	want = nil
	for _, rule := range load(t, policy.Source{}).Rules() {
		if rule.Name != "main" && !slices.Contains(want, rule.Name) {
			want = append(want, rule.Name)
		}
	}
	if !slices.Equal(rules, want) {
		t.Errorf("the README lists the rules %v, want %v", rules, want)
	}
}

func paths(of reflect.Type, way string, into *[]string) {
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if of.Field(i).Type.Kind() == reflect.Struct {
			paths(of.Field(i).Type, way+name+".", into)
			continue
		}
		*into = append(*into, way+name)
	}
}
