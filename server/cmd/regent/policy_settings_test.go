package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"regent/engine/policy"
	"regent/policies"
)

// An empty list denies everything, where its absence would leave the bundles' own in force: it must not get lost on the way.
func TestPolicySettingsAreReadBackAsTheyWere(t *testing.T) {
	for name, host := range map[string]policy.Settings{
		"none":           {},
		"nothing listed": {Providers: []string{}, AllowList: &policy.AllowList{Models: &[]string{}}, AllowedResidencies: &[]string{}},
		"some":           {Providers: []string{"acme"}, Strict: new(false), Access: &policy.Access{Users: map[string][]string{"ada": {"feat:ai:use"}}}},
	} {
		of := func(settings policy.Settings) *policy.Activation {
			activation, err := policy.Load(context.Background(), policy.Source{
				Bundles: []policy.Bundle{{Name: "regent", FS: policies.Files(), Tested: true}}, Settings: settings,
			})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			return activation
		}
		decided := of(host)
		text, err := json.Marshal(settingsDocumentOf(decided.Settings()))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "settings.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := readSettings(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := of(again).Digest(); got != decided.Digest() {
			t.Errorf("%s: the policy is another one under %s", name, text)
		}
	}
}
