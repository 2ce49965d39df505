package policy_test

import (
	"context"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"

	"regent/engine/policy"
)

// BenchmarkTrivial is the yardstick of the others: the least that a query of OPA costs.
func BenchmarkTrivial(b *testing.B) {
	query, err := rego.New(rego.Module("trivial.rego", "package trivial\n\nallow := true\n"), rego.Query("data.trivial.allow")).
		PrepareForEval(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	input := ast.NewObject()
	b.ReportAllocs()
	for b.Loop() {
		if results, err := query.Eval(context.Background(), rego.EvalParsedInput(input)); err != nil || len(results) != 1 {
			b.Fatal(results, err)
		}
	}
}

// BenchmarkDecide reports what one decision costs, afresh and remembered. Allocations are exact; times are of the machine.
func BenchmarkDecide(b *testing.B) {
	full := settings()
	for _, variant := range []struct {
		name       string
		settings   policy.Settings
		remembered int
		change     func(*policy.Facts)
	}{
		{"defaults", policy.Settings{}, -1, func(*policy.Facts) {}},
		{"every rule in force", full, -1, func(*policy.Facts) {}},
		{"second attempt", full, -1, func(f *policy.Facts) {
			f.Attempts = []policy.Attempt{{Source: "other", Provider: "openai", Reason: "timeout", Accounting: policy.ByAPIKey}}
		}},
		{"refused", full, -1, func(f *policy.Facts) { f.Candidate.Enabled = false }},
		{"remembered", full, 0, func(*policy.Facts) {}},
	} {
		b.Run(variant.name, func(b *testing.B) {
			activation := load(b, policy.Source{Settings: variant.settings, Remembered: variant.remembered})
			facts := facts()
			variant.change(&facts)
			b.ReportAllocs()
			for b.Loop() {
				judge := activation.Judge(time.UnixMicro(facts.Now/1000), facts.Call, facts.Identity)
				if _, err := judge.Decide(context.Background(), facts.Candidate, facts.Attempts); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
