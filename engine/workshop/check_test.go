package workshop

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestCheckTellsWhatIsUnfinished(t *testing.T) {
	test := strings.TrimSuffix(weekend, ".rego") + "_test.rego"
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, folder string)
		want []string
	}{
		{"nothing", func(*testing.T, string) {}, nil},
		{"no test", func(t *testing.T, folder string) {
			if err := os.Remove(filepath.Join(folder, test)); err != nil {
				t.Fatal(err)
			}
		}, []string{weekend + ":15: the rule org/weekdays has no test: write " + test + " beside it"}},
		{"no rule that is a test", func(t *testing.T, folder string) {
			change(t, folder, test, "\ntest_", "\ntests_")
		}, []string{weekend + ":15: the rule org/weekdays has no test: nothing in " + test + " is called test_…"}},
		{"tests that are skipped", func(t *testing.T, folder string) {
			change(t, folder, test, "\ntest_", "\ntodo_test_")
		}, []string{weekend + ":15: the rule org/weekdays has no test: nothing in " + test + " is called test_…"}},
		{"a test within an object", func(t *testing.T, folder string) {
			change(t, folder, test, "\ntest_", "\nall.test_")
			if _, err := FormatAt(folder, true); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"a code that only a skipped test mentions", func(t *testing.T, folder string) {
			change(t, folder, test, "\ntest_denies", "\ntodo_test_denies")
		}, []string{weekend + ":15: no test in org/rules/weekdays mentions the code WEEKDAYS: test what is refused by it"}},
		{"a code that no test mentions", func(t *testing.T, folder string) {
			change(t, folder, test, `{"WEEKDAYS"}`, `{codes | some codes in rule.deny}`)
			change(t, folder, test, "package", "# WEEKDAYS\npackage")
		}, []string{weekend + ":15: no test in org/rules/weekdays mentions the code WEEKDAYS: test what is refused by it"}},
		{"no title", func(t *testing.T, folder string) {
			change(t, folder, weekend, "# METADATA\n# title: Closed at weekends\n# description: Calls", "# Calls")
		}, []string{weekend + ":2: package org.rules.weekdays has no title: begin the file with `# METADATA` and `# title: …`"}},
		{"format", func(t *testing.T, folder string) {
			change(t, folder, test, "fixture.is_refused_without(\"/now\")", "fixture.is_refused_without( \"/now\" )")
		}, []string{test + ":22: it is not formatted from here on: `regent policy fmt --write` does it"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			folder := started(t)
			tc.do(t, folder)
			got, loads := told(t, folder)
			if !loads || !slices.Equal(got, tc.want) {
				t.Errorf("loads %v, got\n%s\nwant\n%s", loads, strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

func TestCheckTellsWhatDoesNotLoad(t *testing.T) {
	test := strings.TrimSuffix(weekend, ".rego") + "_test.rego"
	for _, tc := range []struct{ file, old, replacement, want string }{
		{weekend, "input.now", "input.nwo", weekend + ":16: undefined ref: input.nwo"},
		{weekend, "package org", "package acme", "manifest roots [org] do not permit 'package acme.rules.weekdays' in module 'org/" + weekend},
		{test, "rule.deny with", "rule.deny wiht", test + ":7: "},
		{test, "package org", "package acme", test + ":1: the package data.acme.rules.weekdays_test lies outside of the roots"},
		{".manifest", `"org"`, "", ".manifest: it names no roots"},
	} {
		folder := started(t)
		change(t, folder, tc.file, tc.old, tc.replacement)
		got, loads := told(t, folder)
		if loads || len(got) == 0 || !strings.Contains(got[0], tc.want) {
			t.Errorf("%s without %q: loads %v, got %q, want %q", tc.file, tc.old, loads, got, tc.want)
		}
	}
}

const (
	orgManifest = `{"roots": ["org"], "rego_version": 1}`
	nothingHeld = ".manifest: the bundle holds neither a rule nor a selection nor data, and changes nothing: " +
		"a rule is a package org.rules.NAME with a `deny`, a selection the package org.selection"
	selectionFile = "org/selection/selection.rego"
	selectionText = `# METADATA
# title: In the order of the sources' ids
# schemas:
#   - input: schema.input.selection
package org.selection

rank := sort([candidate.source | some candidate in input.candidates])
`
	selectionTest = `package org.selection_test

import data.org.selection

test_ranks if {
	selection.rank == ["a", "b"] with input as {"candidates": [{"source": "b"}, {"source": "a"}]}
}
`
)

func TestCheckTellsABundleThatChangesNothing(t *testing.T) {
	library := "# METADATA\n# title: Helpers\npackage org.lib\n\nx := 1\n"
	for _, tc := range []struct {
		name  string
		files map[string]string
		want  []string
	}{
		{"a manifest alone", nil, []string{nothingHeld}},
		{"helpers alone", map[string]string{"org/lib/lib.rego": library}, []string{nothingHeld}},
		{"data that is empty", map[string]string{"org/data.json": "{}\n", "org/lists/data.yaml": "{}\n"}, []string{nothingHeld}},
		{"data", map[string]string{"org/data.json": `{"closed": true}`}, nil},
		{"a selection", map[string]string{selectionFile: selectionText, "org/selection/selection_test.rego": selectionTest}, nil},
	} {
		folder := t.TempDir()
		write(t, folder, ".manifest", orgManifest)
		for name, text := range tc.files {
			write(t, folder, name, text)
		}
		if got, loads := told(t, folder); !loads || !slices.Equal(got, tc.want) {
			t.Errorf("%s: loads %v, got %q", tc.name, loads, got)
		}
	}
}

func TestCheckAsksForATestOfTheSelection(t *testing.T) {
	const at = selectionFile + ":5: the selection org.selection has no test: "
	for _, tc := range []struct{ name, file, test, want string }{
		{"none", "", "", at + "write org/selection/selection_test.rego beside it"},
		{"one that is elsewhere", "org/tests/selection_test.rego", selectionTest, at + "write org/selection/selection_test.rego beside it"},
		{"one that is skipped", "org/selection/order_test.rego", strings.ReplaceAll(selectionTest, "test_ranks", "todo_test_ranks"),
			at + "nothing in org/selection/order_test.rego is called test_…"},
		{"one", "org/selection/order_test.rego", selectionTest, ""},
	} {
		folder := started(t)
		write(t, folder, selectionFile, selectionText)
		if tc.file != "" {
			write(t, folder, tc.file, tc.test)
		}
		if got, loads := told(t, folder); !loads || strings.Join(got, "\n") != tc.want {
			t.Errorf("%s: loads %v, got %q, want %q", tc.name, loads, got, tc.want)
		}
		checked, err := bench(t, folder, "../../policies").Check(context.Background())
		if err != nil || len(checked.Bundles) != 2 || checked.Bundles[0].Selection != "org.selection" || checked.Bundles[1].Selection != "" {
			t.Errorf("%s: the selection is not told of: %+v, %v", tc.name, checked, err)
		}
	}
}

func TestCheckCountsRulesAndCodes(t *testing.T) {
	checked, err := bench(t, "../../policies").Check(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(checked.Problems) > 0 {
		t.Errorf("the shipped bundle: %v", checked.Problems)
	}
	want := Summary{Path: "../../policies", Name: "policies", Revision: checked.Bundles[0].Revision, Rules: 9, Codes: 24}
	if !reflect.DeepEqual(checked.Bundles, []Summary{want}) || len(want.Revision) != 64 {
		t.Errorf("got %+v", checked.Bundles)
	}
}

func TestModulesAreFormatted(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, "b.rego", "package   b\n")
	write(t, folder, "a/good.rego", "package a\n")
	write(t, folder, ".git/c.rego", "package   c\n")
	write(t, folder, "d.txt", "package   d\n")
	bad := filepath.Join(folder, "b.rego")
	for _, write := range []bool{false, true} {
		if found, err := FormatAt(folder, write); err != nil || !slices.Equal(found.Changed, []string{bad}) {
			t.Errorf("write %v: got %v, %v", write, found, err)
		}
	}
	if content, err := os.ReadFile(bad); err != nil || string(content) != "package b\n" {
		t.Errorf("got %q, %v", content, err)
	}
	if found, err := FormatAt(bad, false); err != nil || len(found.Changed) > 0 {
		t.Errorf("got %v, %v", found, err)
	}
	write(t, folder, "b.rego", "package b\n\nx := {\n")
	write(t, folder, "c.rego", "package   c\n")
	found, err := FormatAt(folder, true)
	if err != nil || len(found.Broken) == 0 || !strings.HasPrefix(found.Broken[0], bad+":4: ") || !slices.Equal(found.Changed, []string{filepath.Join(folder, "c.rego")}) {
		t.Errorf("got %v, %v", found, err)
	}
}
