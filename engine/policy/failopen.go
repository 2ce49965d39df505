package policy

import (
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// failingOpen finds what makes a `deny` undefined where its author means it to deny, and denials that nobody asks for. It wants modules
// whose names are resolved, where the name of a rule is a reference too.
//
// A denial that is put together by hand is undefined if one of its parts is. One that is made elsewhere than in the `deny` of a rule's
// package is asked for by nobody.
//
// A negation is evaluated in two steps: the operands of a call, the references within a reference, and what a `with` puts in place are
// looked up before the `not`, so that a missing one leaves the whole body undefined. Safe are a lone reference, its comparison by == with
// another or with a constant, and operands that cannot be missing: fields of the input, since the entry point asks no rule about an input
// that lacks one, and local variables.
func failingOpen(modules map[string]*ast.Module) (problems []Problem) {
	for _, module := range modules {
		_, depth := ruleOf(module.Package.Path)
		for _, rule := range module.Rules {
			if depth == 1 && rule.Head.Name == "deny" && rule.Head.Key != nil {
				if rule.Head.Key.String() != theDenial {
					problems = append(problems, problemAt(rule.Loc(), "a denial is made from its METADATA, so that it cannot be undefined: "+
						"import data.regent.lib and write `deny contains lib.denial(rego.metadata.rule()) if { … }`"))
				}
				continue
			}
			problems = append(problems, unasked(rule)...)
		}
		problems = append(problems, unsafeNegations(module)...)
		problems = append(problems, mocks(module)...)
	}
	return problems
}

// unasked finds a denial that is made where nobody asks for it.
func unasked(rule *ast.Rule) (problems []Problem) {
	ast.WalkRefs(rule, func(ref ast.Ref) bool {
		if ref.Equal(denialRef) {
			problems = append(problems, problemAt(rule.Loc(), fmt.Sprintf("nobody asks for the denials of %s: a rule is a package directly under "+
				"org.rules, and what it denies is its `deny`", rule.Ref().GroundPrefix())))
		}
		return true
	})
	return problems[:min(len(problems), 1)]
}

var denialRef = ast.MustParseRef("data.regent.lib.denial")

// unsafeNegations finds negations anywhere: also what a `deny` asks another rule for, of whatever package, denies nothing if it is undefined.
func unsafeNegations(module *ast.Module) (problems []Problem) {
	ast.WalkExprs(module, func(expr *ast.Expr) bool {
		if expr.Negated && !isSafelyNegated(expr) {
			problems = append(problems, problemAt(expr.Loc(), "this negation is undefined, and denies nothing, "+
				"if one of its operands is missing: put what follows `not` into a rule of its own, and negate that"))
		}
		return false
	})
	return problems
}

// mocks finds built-ins that a `with` replaces, which is for tests: what a rule observes of its input is read off the built-ins' names.
func mocks(module *ast.Module) (problems []Problem) {
	ast.WalkWiths(module, func(with *ast.With) bool {
		if ref, isRef := with.Target.Value.(ast.Ref); !isRef || !ref.HasPrefix(ast.InputRootRef) && !ref.HasPrefix(ast.DefaultRootRef) {
			problems = append(problems, problemAt(with.Loc(), fmt.Sprintf("%s may not be replaced in policy, in tests alone", with.Target)))
		}
		return false
	})
	return problems
}

// disguised finds built-ins that a `with` puts in the place of something else, under whose name nobody looks at what they are given.
func disguised(module *ast.Module) (problems []Problem) {
	ast.WalkWiths(module, func(with *ast.With) bool {
		if ast.BuiltinMap[with.Value.String()] != nil {
			problems = append(problems, problemAt(with.Loc(), fmt.Sprintf("the built-in %s may not stand for something else", with.Value)))
		}
		return false
	})
	return problems
}

// theDenial is what every `deny` contains.
const theDenial = "data.regent.lib.denial(rego.metadata.rule())"

func isSafelyNegated(expr *ast.Expr) bool {
	if slices.ContainsFunc(expr.With, func(with *ast.With) bool { return !isPresent(with.Value) }) {
		return false
	}
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
	if !isRef {
		return false
	}
	_, isName := ref[0].Value.(ast.Var) // not what is made on the spot: [data.org.models][0]
	return isName && !slices.ContainsFunc(ref[1:], func(step *ast.Term) bool { return !isPresent(step) })
}

// isPresent says whether nothing within the term can be missing. A built-in that cannot work on its operands is an error, never
// undefined.
func isPresent(term *ast.Term) bool {
	switch value := term.Value.(type) {
	case ast.Call:
		return ast.BuiltinMap[value[0].String()] != nil && arePresent(value[1:])
	case ast.Ref:
		return isInputField(value)
	case *ast.Array:
		return !value.Until(func(element *ast.Term) bool { return !isPresent(element) })
	case ast.Set:
		return arePresent(value.Slice())
	case ast.Object:
		return !value.Until(func(key, element *ast.Term) bool { return !isPresent(key) || !isPresent(element) })
	case ast.Var, ast.String, ast.Number, ast.Boolean, ast.Null, *ast.ArrayComprehension, *ast.SetComprehension, *ast.ObjectComprehension:
		return true
	}
	return false
}

func arePresent(terms []*ast.Term) bool {
	return !slices.ContainsFunc(terms, func(term *ast.Term) bool { return !isPresent(term) })
}

func isInputField(ref ast.Ref) bool {
	return ref.HasPrefix(ast.InputRootRef) && !slices.ContainsFunc(ref[1:], func(step *ast.Term) bool {
		_, isName := step.Value.(ast.String)
		return !isName
	})
}
