package policy

import (
	"context"
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
)

// Unfounded finds references to data that is nowhere: neither data nor a rule of any bundle. What reads it is always undefined, and so
// denies nothing; it may be misspelt. Data that may be absent on purpose is better there and empty. Below data whose schema is named the
// compiler has looked already; and of rules there may be none.
func (a *Activation) Unfounded() (problems []Problem) {
	told := make(map[string]bool)
	var known []ast.Ref
	for _, expected := range expectations(a.bundles) {
		known = append(known, expected.Path)
	}
	for _, u := range a.bundles {
		for _, file := range u.parsed.Modules {
			module := a.compiler.Modules[file.Path]
			if module == nil {
				continue
			}
			ast.WalkRefs(module, func(ref ast.Ref) bool {
				if !ref[0].Equal(ast.DefaultRootDocument) || len(ref) < 2 {
					return false
				}
				prefix := ref.GroundPrefix()
				if slices.ContainsFunc(known, prefix.HasPrefix) || prefix.Equal(regentRef.Append(rulesTerm)) || prefix.Equal(orgRef.Append(rulesTerm)) {
					return false
				}
				problem := problemAt(ref[0].Loc(), fmt.Sprintf("%s is nowhere: is it misspelt? What may be absent should be there and empty", prefix))
				if !told[problem.String()] && !a.isFounded(prefix) {
					told[problem.String()] = true
					problems = append(problems, problem)
				}
				return false
			})
		}
	}
	return problems
}

// isFounded says whether rules or data are at a path, rules below it, or a rule above it, whose value it is part of.
func (a *Activation) isFounded(path ast.Ref) bool {
	if len(a.compiler.GetRulesWithPrefix(path)) > 0 {
		return true
	}
	for length := 2; length < len(path); length++ {
		if len(a.compiler.GetRulesExact(path[:length])) > 0 {
			return true
		}
	}
	_, err := a.store.Read(context.Background(), a.txn, storage.Path(names(path))) // in memory
	return err == nil
}
