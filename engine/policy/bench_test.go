package policy_test

import (
	"context"
	"testing"
	"time"

	"regent/engine/policy"
)

// BenchmarkDecide reports what one decision costs, cold. Allocations are exact; times are of the machine.
func BenchmarkDecide(b *testing.B) {
	full := settings()
	for _, variant := range []struct {
		name     string
		settings policy.Settings
		change   func(*policy.Facts)
	}{
		{"defaults", policy.Settings{}, func(*policy.Facts) {}},
		{"every rule in force", full, func(*policy.Facts) {}},
		{"second attempt", full, func(f *policy.Facts) {
			f.Attempts = []policy.Attempt{{Source: "other", Provider: "openai", Reason: "timeout"}}
		}},
		{"refused", full, func(f *policy.Facts) { f.Candidate.Enabled = false }},
	} {
		b.Run(variant.name, func(b *testing.B) {
			activation := load(b, policy.Source{Settings: variant.settings})
			facts := facts()
			variant.change(&facts)
			judge := activation.Judge(time.UnixMicro(facts.Now/1000), facts.Call, facts.Identity)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := judge.Decide(context.Background(), facts.Candidate, facts.Attempts); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
