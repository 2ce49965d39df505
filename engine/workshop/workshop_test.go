package workshop

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"regent/engine/policy"
	"regent/policies"
)

// weekend is the rule of a new bundle.
const weekend = "org/rules/weekdays/weekdays.rego"

// started is the folder of a new bundle.
func started(t *testing.T) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "org")
	if _, err := Init(context.Background(), policies.Files(), folder, "weekdays"); err != nil {
		t.Fatal(err)
	}
	return folder
}

// write replaces a file below a folder.
func write(t *testing.T, folder, name, content string) string {
	t.Helper()
	path := filepath.Join(folder, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// change replaces a text in a file below a folder.
func change(t *testing.T, folder, name, old, replacement string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(content), old) {
		t.Fatalf("%s does not contain %q", name, old)
	}
	write(t, folder, name, strings.ReplaceAll(string(content), old, replacement))
}

func bench(t *testing.T, paths ...string) *Bench {
	t.Helper()
	bench, err := Gather(policies.Files(), paths...)
	if err != nil {
		t.Fatal(err)
	}
	return bench
}

// told are the problems of a check, as they are printed, without the folder.
func told(t *testing.T, folder string) (lines []string, loads bool) {
	t.Helper()
	b := bench(t, folder)
	checked, err := b.Check(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range checked.Problems {
		lines = append(lines, strings.TrimPrefix(b.Tell(problem), folder+"/"))
	}
	return lines, checked.Loads
}

func TestABundleIsNamedAfterItsPath(t *testing.T) {
	for path, want := range map[string]string{
		"org": "org", "/x/Our Rules.tar.gz": "our-rules", "a/org.tgz": "org", "/": "bundle", "/x/.hidden": "hidden",
		"/" + strings.Repeat("long", 20): strings.Repeat("long", 12),
	} {
		if got := nameOf(path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

func TestBundlesOfOneNameAreToldApart(t *testing.T) {
	one, two := started(t), started(t)
	b := bench(t, one, two)
	if names := []string{b.Given[0].Name, b.Given[1].Name}; !slices.Equal(names, []string{"org", "org-2"}) {
		t.Errorf("got %v", names)
	}
	_, err := b.Load(context.Background(), policy.Settings{})
	var refused *policy.LoadError
	if !errors.As(err, &refused) || !strings.Contains(b.Tell(refused.Problems[0]), two+"/.manifest: the root \"org\" overlaps") {
		t.Errorf("got %v", err)
	}
}

func TestTheShippedBundleLiesBeneath(t *testing.T) {
	b := bench(t, started(t))
	activation, err := b.Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(activation.Bundles())); !slices.Equal(got, []string{"org", "regent"}) {
		t.Errorf("got %v", got)
	}
	b = bench(t, "../../policies")
	if activation, err = b.Load(context.Background(), policy.Settings{}); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(activation.Bundles())); !slices.Equal(got, []string{"policies"}) {
		t.Errorf("a bundle with its root has not taken its place: %v", got)
	}
}

func TestAPathThatIsNoBundleIsAnError(t *testing.T) {
	folder := t.TempDir()
	file := write(t, folder, "x.rego", "package x")
	for _, path := range []string{filepath.Join(folder, "nowhere"), file} {
		_, err := Gather(policies.Files(), path)
		if err == nil || !strings.Contains(err.Error(), path) || errors.As(err, new(*policy.LoadError)) {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

func TestWhatCannotBeReadAsABundleDoesNotLoad(t *testing.T) {
	deep, large, broken := t.TempDir(), t.TempDir(), write(t, t.TempDir(), "x.tar.gz", "none")
	write(t, deep, strings.Repeat("x/", policy.MaxBundleDepth+1)+"x.rego", "package x")
	write(t, large, "org/data.json", `{"x": "`+strings.Repeat("x", policy.MaxBundleBytes)+`"}`)
	for path, want := range map[string]string{deep: "below more than 32 folders", large: "more than 33554432 bytes", broken: "gzip"} {
		_, err := Gather(policies.Files(), path)
		var refused *policy.LoadError
		if !errors.As(err, &refused) || refused.Tests || refused.Problems[0].File != path || !strings.Contains(refused.Problems[0].Text, want) {
			t.Errorf("%s: got %v", path, err)
		}
	}
}

func TestNothingOutsideOfAFolderIsRead(t *testing.T) {
	folder := started(t)
	secret := write(t, t.TempDir(), "secret.rego", "package org.secret")
	if err := os.Symlink(secret, filepath.Join(folder, "org", "secret.rego")); err != nil {
		t.Fatal(err)
	}
	if _, err := Gather(policies.Files(), folder); !errors.As(err, new(*policy.LoadError)) {
		t.Errorf("a link that leads out of the folder: got %v", err)
	}
}

// What was read is not read again: what is built is what was checked.
func TestABundleIsReadOnce(t *testing.T) {
	folder := started(t)
	b := bench(t, folder)
	write(t, folder, weekend, "package broken")
	if _, err := b.Load(context.Background(), policy.Settings{}); err != nil {
		t.Error(err)
	}
}

func TestTheCoverageIsThatOfTheGivenBundles(t *testing.T) {
	folder := started(t)
	write(t, folder, weekend, `# METADATA
# title: Closed
package org.rules.weekdays

import data.regent.lib

# METADATA
# title: Closed
# description: Closed.
# custom:
#   code: WEEKDAYS
#   remedy: Wait.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	time.weekday([input.now, "Europe/Zurich"]) in {"Saturday", "Sunday"}
}

_never_asked := 1
`)
	report, err := bench(t, folder).Test(context.Background(), policy.TestRun{Coverage: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Tests) != 3 || len(report.Failed()) != 0 || len(report.Coverage) != 1 {
		t.Fatalf("got %+v", report)
	}
	if file := report.Coverage[0]; file.File != weekend || !slices.Equal(file.Uncovered, []int{18}) || file.Covered != 2 || file.Lines != 3 {
		t.Errorf("got %+v", file)
	}
}

// A bundle without a test of its own is not one whose tests pass, whatever lies beneath it.
func TestOnlyTestsOfTheGivenBundlesCount(t *testing.T) {
	test := strings.TrimSuffix(weekend, ".rego") + "_test.rego"
	tested, untested, helped := started(t), started(t), started(t)
	if err := os.Remove(filepath.Join(untested, test)); err != nil {
		t.Fatal(err)
	}
	write(t, helped, test, "package org.rules.weekdays_test\n\n_x := 1\n")
	for _, tc := range []struct {
		name    string
		paths   []string
		want    int
		covered int
	}{
		{"tests", []string{tested}, 3, 1},
		{"no module of tests", []string{untested}, 0, 0},
		{"no test in it", []string{helped}, 0, 0},
		{"the shipped bundle alone", nil, 0, 0},
		{"the shipped bundle's folder", []string{"../../policies"}, 1, 0},
	} {
		report, err := bench(t, tc.paths...).Test(context.Background(), policy.TestRun{Coverage: len(tc.paths) > 0})
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if got := len(report.Tests); got != tc.want && (tc.want != 1 || got < 50) {
			t.Errorf("%s: got %d tests", tc.name, got)
		}
		if strings.HasPrefix(tc.name, "no ") && report.Coverage != nil && report.Covered() != 0 {
			t.Errorf("%s: something else has covered %v %%", tc.name, report.Covered())
		}
	}
}

// What is told to a person names no part of the program.
func TestNoErrorNamesTheWorkshop(t *testing.T) {
	folder := started(t)
	_, occupied := Init(context.Background(), policies.Files(), folder, "weekdays")
	_, misnamed := Init(context.Background(), policies.Files(), folder, "Week-Days")
	_, nowhere := Gather(policies.Files(), "nowhere")
	_, unread := ReadInputs([]string{"nowhere"}, func(Input) error { return nil })
	_, noDocument := ReadInputs([]string{write(t, folder, "x.json", "{}")}, func(Input) error { return nil })
	_, noKey := NewSigner("", "RS256", "k", "")
	_, noModule := FormatAt("nowhere", false)
	for _, err := range []error{occupied, misnamed, nowhere, unread, noDocument, noKey, noModule, WriteFile("nowhere/x", nil)} {
		if err == nil || strings.Contains(err.Error(), "workshop") {
			t.Errorf("got %v", err)
		}
	}
}
