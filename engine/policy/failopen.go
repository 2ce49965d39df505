package policy

import (
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// failingOpen finds what makes a `deny` undefined where its author means it to deny. It wants modules whose names are resolved,
// where the name of a rule is a reference too.
//
// A denial that is put together by hand is undefined if one of its parts is.
//
// A negation is evaluated in two steps: the operands of a call, and the references within a reference, are looked up before
// the `not`, so that a missing one leaves the whole body undefined. Safe are a lone reference, its comparison by == with
// another or with a constant, and operands that cannot be missing: fields of the input, since the entry point asks no rule
// about an input that lacks one, and local variables.
func failingOpen(modules map[string]*ast.Module) (problems []Problem) {
	for _, module := range modules {
		if _, depth := ruleOf(module.Package.Path); depth != 1 {
			continue
		}
		for _, rule := range module.Rules {
			if rule.Head.Name != "deny" || rule.Head.Key == nil {
				continue
			}
			if rule.Head.Key.String() != theDenial {
				problems = append(problems, problemAt(rule.Loc(), "a denial is made from its METADATA, so that it cannot be undefined: "+
					"import data.regent.lib and write `deny contains lib.denial(rego.metadata.rule()) if { … }`"))
			}
			for _, expr := range rule.Body {
				if expr.Negated && !isSafelyNegated(expr) {
					problems = append(problems, problemAt(expr.Loc(), "this negation is undefined, and denies nothing, "+
						"if one of its operands is missing: put what follows `not` into a rule of its own, and negate that"))
				}
			}
		}
	}
	return problems
}

// theDenial is what every `deny` contains.
const theDenial = "data.regent.lib.denial(rego.metadata.rule())"

func isSafelyNegated(expr *ast.Expr) bool {
	switch terms := expr.Terms.(type) {
	case *ast.Term:
		return isLoneReference(terms) || isPresent(terms)
	case []*ast.Term:
		operator, operands := terms[0], terms[1:]
		isEquality := expr.IsEquality() || operator.Value.Compare(ast.Equal.Ref()) == 0
		return !slices.ContainsFunc(operands, func(operand *ast.Term) bool {
			return !isPresent(operand) && !(isEquality && isLoneReference(operand))
		})
	}
	return false
}

func isLoneReference(term *ast.Term) bool {
	ref, isRef := term.Value.(ast.Ref)
	return isRef && !slices.ContainsFunc(ref[1:], func(step *ast.Term) bool { return !isPresent(step) })
}

// isPresent says whether nothing within the term can be missing.
func isPresent(term *ast.Term) bool {
	present := true
	ast.WalkTerms(term, func(t *ast.Term) bool {
		switch value := t.Value.(type) {
		case ast.Call:
			present = false
		case ast.Ref:
			present = present && isInputField(value)
			return true
		}
		return !present
	})
	return present
}

func isInputField(ref ast.Ref) bool {
	return ref.HasPrefix(ast.InputRootRef) && !slices.ContainsFunc(ref[1:], func(step *ast.Term) bool {
		_, isName := step.Value.(ast.String)
		return !isName
	})
}
