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
}

// Check loads the bundles and looks at what loading does not ask for: a test for each code, a title of each package, and the format.
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
	checked := &Checked{Loads: true}
	for _, bundle := range b.Given {
		rules := slices.DeleteFunc(activation.Rules(), func(rule policy.Rule) bool { return rule.Bundle != bundle.Name })
		checked.Problems = append(checked.Problems, bundle.lint(rules)...)
		checked.Bundles = append(checked.Bundles, bundle.summary(rules, activation.Bundles()[bundle.Name]))
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

// lint finds what loads and is not finished.
func (b *Bundle) lint(rules []policy.Rule) []policy.Problem {
	return slices.Concat(b.untested(rules), b.untitled(), b.unformatted())
}

// untested finds rules without a test beside them, and codes that no such test mentions.
func (b *Bundle) untested(rules []policy.Rule) (problems []policy.Problem) {
	told := map[string]bool{}
	for _, rule := range rules {
		folder := path.Dir(rule.File)
		mentioned, exists := b.mentioned(folder)
		switch {
		case exists && !mentioned[rule.Code]:
			problems = append(problems, b.problem(rule.File, rule.Line, "no test in %s mentions the code %s: test what is refused by it", folder, rule.Code))
		case !exists && !told[rule.Name]:
			told[rule.Name] = true
			problems = append(problems, b.problem(rule.File, rule.Line, "the rule %s has no test: write %s beside it",
				rule.Name, strings.TrimSuffix(rule.File, moduleEnding)+testEnding))
		}
	}
	return problems
}

// mentioned are the texts in the tests of a folder; exists is false if it has none.
func (b *Bundle) mentioned(folder string) (texts map[string]bool, exists bool) {
	texts = map[string]bool{}
	for name := range b.Files {
		if path.Dir(name) != folder || !strings.HasSuffix(name, testEnding) {
			continue
		}
		exists = true
		module, err := b.parse(name)
		if err != nil || module == nil { // it was compiled, or is nothing but comments
			continue
		}
		ast.WalkTerms(module, func(term *ast.Term) bool {
			if text, isText := term.Value.(ast.String); isText {
				texts[string(text)] = true
			}
			return false
		})
	}
	return texts, exists
}

// untitled finds packages without a title, each told where its first file begins.
func (b *Bundle) untitled() (problems []policy.Problem) {
	first, titled := map[string]*ast.Module{}, map[string]bool{}
	for _, name := range util.KeysSorted(b.Files) {
		if !strings.HasSuffix(name, moduleEnding) || strings.HasSuffix(name, testEnding) {
			continue
		}
		module, err := b.parse(name)
		if err != nil || module == nil {
			continue
		}
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

func (b *Bundle) parse(name string) (*ast.Module, error) {
	return ast.ParseModuleWithOpts(name, string(b.Files[name]), ast.ParserOptions{ProcessAnnotation: true, RegoVersion: ast.RegoV1})
}

func (b *Bundle) problem(file string, line int, format string, args ...any) policy.Problem {
	return policy.Problem{Bundle: b.Name, File: file, Line: line, Text: fmt.Sprintf(format, args...)}
}
