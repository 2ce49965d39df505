package policy_test

import (
	"bytes"
	"context"
	"maps"
	"strings"
	"testing"

	"regent/engine/policy"
	"regent/engine/tarball"
)

// What is restored decides as the activation did whose archive it is, under the same digest.
func TestAnArchiveRestoresTheActivation(t *testing.T) {
	files := map[string]string{
		"org/rules/closed/closed.rego":      ruleNamed("closed", "CLOSED", `input.candidate.provider in data.org.closed`),
		"org/rules/closed/closed_test.rego": "package org.rules.closed_test\n\ntest_x if 1 > 0\n",
		"org/data.json":                     `{"closed": ["anthropic"]}`,
	}
	files["org/"+strings.Repeat("a/", policy.MaxBundleDepth-1)+"data.json"] = "{}" // as deep as one may lie
	for name, source := range map[string]policy.Source{
		"the shipped one":      {},
		"with everything":      {Settings: settings(), Bundles: []policy.Bundle{org(files)}, Required: []string{"org/closed"}},
		"with empty providers": {Settings: policy.Settings{Providers: []string{}, AllowList: &policy.AllowList{Models: &[]string{}}}},
	} {
		t.Run(name, func(t *testing.T) {
			original := load(t, source)
			archive, err := original.Archive()
			if err != nil {
				t.Fatal(err)
			}
			if again, err := original.Archive(); err != nil || !bytes.Equal(archive, again) {
				t.Errorf("a second archive differs, %v", err)
			}
			restored, err := policy.Restore(context.Background(), archive)
			if err != nil {
				t.Fatal(err)
			}
			if restored.Digest() != original.Digest() || !maps.Equal(restored.Bundles(), original.Bundles()) || len(restored.Rules()) != len(original.Rules()) {
				t.Errorf("restored is %s with %v, not %s with %v", restored.Digest(), restored.Bundles(), original.Digest(), original.Bundles())
			}
			for _, provider := range []string{"openai", "anthropic"} {
				f := facts()
				f.Candidate.Provider = provider
				want, err := decide(original, f)
				if err != nil {
					t.Fatal(err)
				}
				got, err := restored.Decide(context.Background(), f.Document())
				if err != nil || codesOf(got) != codesOf(want) || got.Allow != want.Allow {
					t.Errorf("%s: restored decides %s, %v, not %s", provider, codesOf(got), err, codesOf(want))
				}
			}
			if bytes.Contains(archive, []byte("test_x")) || len(archive) > 64<<10 {
				t.Errorf("the archive has %d bytes, or holds tests", len(archive))
			}
		})
	}
}

func TestRestoreRefuses(t *testing.T) {
	archive, err := load(t, policy.Source{}).Archive()
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string][]byte{
		"nothing": nil, "garbage": []byte("garbage"), "half": archive[:len(archive)/2],
		"a flipped byte": append(append([]byte{}, archive[:200]...), append([]byte{archive[200] ^ 1}, archive[201:]...)...),
	} {
		if _, err := policy.Restore(context.Background(), damaged); err == nil {
			t.Errorf("%s is restored", name)
		} else if !strings.HasPrefix(err.Error(), "policy: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An archive holds settings and the files of bundles, and nothing beside.
func TestRestoreRefusesWhatDoesNotBelong(t *testing.T) {
	for _, name := range []string{"notes", "bundles/org", "settings.json/x"} {
		var archive bytes.Buffer
		if err := tarball.Write(&archive, map[string][]byte{name: nil}); err != nil {
			t.Fatal(err)
		}
		if _, err := policy.Restore(context.Background(), archive.Bytes()); err == nil || !strings.Contains(err.Error(), name+" does not belong in an archive") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzRestore: an archive from a database is refused or restored, and never more.
func FuzzRestore(f *testing.F) {
	archive, err := load(f, policy.Source{}).Archive()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(archive)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, archive []byte) {
		activation, err := policy.Restore(context.Background(), archive)
		if (err == nil) != (activation != nil) {
			t.Errorf("got %v, %v", activation, err)
		}
	})
}
