package workshop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"

	"regent/engine/policy"
)

const (
	manifestFile = ".manifest"
	moduleEnding = ".rego"
	testEnding   = "_test.rego"
)

// Checked is what a check has found.
type Checked struct {
	// Loads says that the gateway would load the bundles, apart from what their tests say.
	Loads bool
	// Problems are why they do not load; or, if they do, what an author would do better.
	Problems []policy.Problem
	// Bundles are the given ones; empty unless they load.
	Bundles []Summary
}

// Summary is a bundle in one line.
type Summary struct {
	Path     string `json:"path"`
	Name     string `json:"name"`
	Revision string `json:"revision"`
	// Rules are folders, Codes the grounds on which they refuse.
	Rules int `json:"rules"`
	Codes int `json:"codes"`
	// Selection is the one that ranks candidates, if it is this bundle's; else empty.
	Selection string `json:"selection,omitempty"`
}

// Check loads the bundles and looks at what loading does not ask for: a test for each code and for a selection, a title of each package,
// the format, data that is nowhere, and that there is anything at all.
func (b *Bench) Check(ctx context.Context) (*Checked, error) {
	activation, err := b.Load(ctx, policy.Settings{})
	if err == nil { // the tests have to compile; none has this name
		_, err = policy.Test(ctx, b.source(false), policy.TestRun{Filter: "^$"})
	}
	var refused *policy.LoadError
	switch {
	case errors.As(err, &refused):
		return &Checked{Problems: refused.Problems}, nil
	case err != nil:
		return nil, err
	}
	checked := &Checked{Loads: true, Problems: b.unfounded(activation)}
	for _, bundle := range b.Given {
		rules := slices.DeleteFunc(activation.Rules(), func(rule policy.Rule) bool { return rule.Bundle != bundle.Name })
		ranking := bundle.ranking(activation.Selection())
		checked.Problems = append(checked.Problems, bundle.lint(rules, ranking)...)
		summary := bundle.summary(rules, activation.Bundles()[bundle.Name])
		if ranking != nil {
			summary.Selection = activation.Selection()
		}
		checked.Bundles = append(checked.Bundles, summary)
	}
	slices.SortStableFunc(checked.Problems, func(a, b policy.Problem) int {
		return cmp.Or(cmp.Compare(a.Bundle, b.Bundle), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return checked, nil
}

func (b *Bundle) summary(rules []policy.Rule, revision string) Summary {
	folders := map[string]bool{}
	for _, rule := range rules {
		folders[rule.Name] = true
	}
	return Summary{Path: b.Path, Name: b.Name, Revision: revision, Rules: len(folders), Codes: len(rules)}
}

// unfounded are the references of the given bundles to data that is nowhere.
func (b *Bench) unfounded(activation *policy.Activation) []policy.Problem {
	return slices.DeleteFunc(activation.Unfounded(), func(problem policy.Problem) bool { return !b.gave(problem.Bundle) })
}

// ranking is the module of this bundle that has the activation's selection rank; nil if the bundle has none.
func (b *Bundle) ranking(selection string) *ast.Module {
	for _, module := range b.modules() {
		isRank := func(rule *ast.Rule) bool { return rule.Head.Ref().String() == "rank" }
		if module.Package.Path.String() == "data."+selection && slices.ContainsFunc(module.Rules, isRank) {
			return module
		}
	}
	return nil
}

// lint finds what loads and is not finished.
func (b *Bundle) lint(rules []policy.Rule, ranking *ast.Module) []policy.Problem {
	problems := slices.Concat(b.untested(rules), b.untitled(), b.unformatted())
	if ranking != nil {
		problems = append(problems, b.untestedSelection(ranking)...)
	}
	if len(rules) == 0 && ranking == nil && !b.hasData() {
		problems = append(problems, b.problem(manifestFile, 0,
			"the bundle holds neither a rule nor a selection nor data, and changes nothing: a rule is a package org.rules.NAME with a `deny`, a selection the package org.selection"))
	}
	return problems
}

// untested finds rules without a test beside them, and codes that no such test mentions.
func (b *Bundle) untested(rules []policy.Rule) (problems []policy.Problem) {
	told := map[string]bool{}
	for _, rule := range rules {
		folder := path.Dir(rule.File)
		tests := b.testsIn(folder)
		switch {
		case tests.tested && !tests.mentioned[rule.Code]:
			problems = append(problems, b.problem(rule.File, rule.Line, "no test in %s mentions the code %s: test what is refused by it", folder, rule.Code))
		case !tests.tested && !told[rule.Name]:
			told[rule.Name] = true
			problems = append(problems, b.problem(rule.File, rule.Line, "the rule %s has no test: %s", rule.Name, tests.wanted(rule.File)))
		}
	}
	return problems
}

// untestedSelection finds a selection without a test beside it.
func (b *Bundle) untestedSelection(ranking *ast.Module) []policy.Problem {
	at := ranking.Package.Loc()
	tests := b.testsIn(path.Dir(at.File))
	if tests.tested {
		return nil
	}
	return []policy.Problem{b.problem(at.File, at.Row, "the selection %s has no test: %s", strings.TrimPrefix(ranking.Package.Path.String(), "data."), tests.wanted(at.File))}
}

// tests are what the modules of tests in a folder come to.
type tests struct {
	// module is the first of them, empty if there is none; tested says that one of them holds a test that is run.
	module string
	tested bool
	// mentioned are the texts in them, but for those in tests that are skipped.
	mentioned map[string]bool
}

// wanted says what is to be written for a module that has no test.
func (t tests) wanted(module string) string {
	if t.module != "" {
		return fmt.Sprintf("nothing in %s is called %s…", t.module, testPrefix)
	}
	return fmt.Sprintf("write %s beside it", strings.TrimSuffix(module, moduleEnding)+testEnding)
}

// How the names of rules begin that are tests, and that are tests which are skipped.
const (
	testPrefix    = "test_"
	skippedPrefix = "todo_test_"
)

func (b *Bundle) testsIn(folder string) tests {
	found := tests{mentioned: map[string]bool{}}
	for _, name := range util.KeysSorted(b.Files) {
		if path.Dir(name) != folder || !strings.HasSuffix(name, testEnding) {
			continue
		}
		found.module = cmp.Or(found.module, name)
		module, err := b.parse(name)
		if err != nil || module == nil { // it was compiled, or is nothing but comments
			continue
		}
		for _, rule := range module.Rules {
			found.add(rule)
		}
	}
	return found
}

func (t *tests) add(rule *ast.Rule) {
	kind := testKind(rule)
	if kind == skippedPrefix {
		return
	}
	t.tested = t.tested || kind == testPrefix
	ast.WalkTerms(rule, func(term *ast.Term) bool {
		if text, isText := term.Value.(ast.String); isText {
			t.mentioned[string(text)] = true
		}
		return false
	})
}

// testKind is how the part of a rule's name begins that makes it a test for those who run it; empty if it is none.
func testKind(rule *ast.Rule) string {
	for _, part := range rule.Head.Ref().GroundPrefix() {
		name := strings.Trim(part.Value.String(), `"`)
		for _, prefix := range []string{skippedPrefix, testPrefix} {
			if strings.HasPrefix(name, prefix) {
				return prefix
			}
		}
	}
	return ""
}

// hasData says whether there is anything in the bundle's data.
func (b *Bundle) hasData() bool {
	for name, content := range b.Files {
		if !slices.Contains(dataFiles, path.Base(name)) {
			continue
		}
		var data map[string]any
		if util.Unmarshal(content, &data) == nil && len(data) > 0 {
			return true
		}
	}
	return false
}

// dataFiles are what files of data are called, whatever folder they lie in.
var dataFiles = []string{"data.json", "data.yaml", "data.yml"}

// untitled finds packages without a title, each told where its first file begins.
func (b *Bundle) untitled() (problems []policy.Problem) {
	first, titled := map[string]*ast.Module{}, map[string]bool{}
	for _, module := range b.modules() {
		of := module.Package.Path.String()
		if first[of] == nil {
			first[of] = module
		}
		titled[of] = titled[of] || hasTitle(module)
	}
	for of, module := range first {
		if place := module.Package.Loc(); !titled[of] {
			problems = append(problems, b.problem(place.File, place.Row, "%s has no title: begin the file with `# METADATA` and `# title: …`", module.Package))
		}
	}
	return problems
}

func hasTitle(module *ast.Module) bool {
	return slices.ContainsFunc(module.Annotations, func(annotations *ast.Annotations) bool {
		return annotations.Title != "" && (annotations.Scope == "package" || annotations.Scope == "subpackages")
	})
}

func (b *Bundle) unformatted() (problems []policy.Problem) {
	for _, name := range util.KeysSorted(b.Files) {
		if !strings.HasSuffix(name, moduleEnding) {
			continue
		}
		formatted, err := Format(name, b.Files[name])
		if err == nil && string(formatted) != string(b.Files[name]) {
			problems = append(problems, b.problem(name, differsAt(b.Files[name], formatted), "it is not formatted from here on: `regent policy fmt --write` does it"))
		}
	}
	return problems
}

// modules are those that are no tests, in the order of their names.
func (b *Bundle) modules() (modules []*ast.Module) {
	for _, name := range util.KeysSorted(b.Files) {
		if !strings.HasSuffix(name, moduleEnding) || strings.HasSuffix(name, testEnding) {
			continue
		}
		if module, err := b.parse(name); err == nil && module != nil { // it was compiled, or is nothing but comments
			modules = append(modules, module)
		}
	}
	return modules
}

func (b *Bundle) parse(name string) (*ast.Module, error) {
	return ast.ParseModuleWithOpts(name, string(b.Files[name]), ast.ParserOptions{ProcessAnnotation: true, RegoVersion: ast.RegoV1})
}

func (b *Bundle) problem(file string, line int, format string, args ...any) policy.Problem {
	return policy.Problem{Bundle: b.Name, File: file, Line: line, Text: fmt.Sprintf(format, args...)}
}
