package policy_test

import (
	"cmp"
	"context"
	"os"
	"testing"
	"time"

	"regent/engine/policy"
	"regent/policies"
)

// load loads the embedded bundle first, then the bundles of the source.
func load(t testing.TB, source policy.Source) *policy.Activation {
	t.Helper()
	source.Bundles = append([]policy.Bundle{ours()}, source.Bundles...)
	source.TimeLimit = cmp.Or(source.TimeLimit, time.Minute) // a busy machine must not fail a test of something else
	activation, err := policy.Load(context.Background(), source)
	if err != nil {
		t.Fatal(err)
	}
	return activation
}

// ours is the embedded bundle. TestRego runs its tests.
func ours() policy.Bundle { return policy.Bundle{Name: "regent", FS: policies.Files(), Tested: true} }

// facts are allowed by the settings below and by the default ones.
func facts() policy.Facts {
	return policy.Facts{
		Now: 1_700_000_000_000_000_000,
		Call: policy.Call{
			Model:           "acme/large",
			Protocol:        "openai.chat",
			Kind:            "generation",
			Stream:          true,
			Residency:       new("eu"),
			InputTokens:     new(int64(1000)),
			OutputTokensMax: new(int64(500)),
			TokensBounded:   true,
			CostBounded:     true,
		},
		Identity: policy.Identity{User: new("ada"), Groups: []string{"staff", "research", "board"}, Tenant: new("acme")},
		Candidate: policy.Candidate{
			Source:          "source-1",
			Provider:        "openai",
			Model:           "gpt-large",
			Residency:       new("eu"),
			Enabled:         true,
			Connection:      "authorised",
			Protocols:       []string{"openai.chat", "openai.responses"},
			Modalities:      []string{"image"},
			ContextTokens:   new(int64(100_000)),
			OutputTokensMax: new(int64(4000)),
			Priced:          true,
			Accounting:      policy.ByAPIKey,
		},
	}
}

// settings put every rule in force.
func settings() policy.Settings {
	return policy.Settings{
		AllowList:          &policy.AllowList{Providers: &[]string{"openai"}, Models: &[]string{"openai/gpt-large"}},
		Providers:          []string{"openai", "anthropic", "openrouter"},
		AllowedResidencies: &[]string{"eu", "ch"},
		Access: &policy.Access{
			Users:  map[string][]string{"bob": {"feat:ai:use"}},
			Groups: map[string][]string{"staff": {"feat:ai:use"}},
			Models: map[string]policy.ModelAccess{"acme/large": {Groups: []string{"research"}}},
		},
	}
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
