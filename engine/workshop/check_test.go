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
