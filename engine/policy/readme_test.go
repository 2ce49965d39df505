package policy_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"regent/engine/policy"
)

// The rule that README shows loads, and denies at weekends only.
func TestTheExampleOfTheReadmeWorks(t *testing.T) {
	readme, err := os.ReadFile("../../policies/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(readme), "```rego\n")
	rule, _, _ := strings.Cut(after, "```")
	activation := load(t, policy.Source{
		Bundles:  []policy.Bundle{org(map[string]string{"org/rules/weekdays/weekdays.rego": rule})},
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
