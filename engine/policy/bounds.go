package policy

import (
	"fmt"
	"regexp/syntax"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"
)

// Bounds of what is written in a bundle. The time limit of a decision interrupts between expressions, so that what one built-in works on
// has to be small: these, and the bounds of the facts.
const (
	maxWritten = 64 << 10 // bytes of one text in a module or in data: a built-in takes less than 1 ms for most work on it
	maxPattern = 10_000   // instructions of a regular expression: some 400 kB, compiled in some ms
)

// oversized finds what is too large to be worked on in time.
func oversized(bundles []*unpacked) (problems []Problem) {
	for _, u := range bundles {
		for _, file := range u.parsed.Modules {
			problems = append(problems, oversizedModule(file.Parsed)...)
		}
		if way, length := longest(u.parsed.Data); length > maxWritten {
			problems = append(problems, Problem{Bundle: u.name, Text: fmt.Sprintf(
				"the text at data%s has %d bytes, more than %d: policy would take too long over it", way, length, maxWritten)})
		}
	}
	return problems
}

func oversizedModule(module *ast.Module) (problems []Problem) {
	ast.WalkTerms(module, func(term *ast.Term) bool {
		if text, isText := term.Value.(ast.String); isText && len(text) > maxWritten {
			problems = append(problems, problemAt(term.Loc(), fmt.Sprintf(
				"this text has %d bytes, more than %d: policy would take too long over it", len(text), maxWritten)))
		}
		return false
	})
	walkCalls(module, func(operator *ast.Term, operands []*ast.Term) {
		at := patternOperand(operator.String())
		if at < 0 || at >= len(operands) {
			return
		}
		if text, isText := operands[at].Value.(ast.String); isText {
			if err := checkPattern(string(text)); err != nil {
				problems = append(problems, problemAt(operands[at].Loc(), err.Error()))
			}
		}
	})
	return problems
}

// patternOperand is which operand of a built-in is a regular expression; -1 if none is.
func patternOperand(builtin string) int {
	switch {
	case builtin == ast.RegexReplace.Name:
		return 1
	case builtin == ast.RegexTemplateMatch.Name, builtin == ast.RegexIsValid.Name, !strings.HasPrefix(builtin, "regex."):
		return -1
	}
	return 0
}

// checkPattern refuses a regular expression that is none, or that is huge.
func checkPattern(pattern string) error {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return fmt.Errorf("this is no regular expression: %w", err)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return fmt.Errorf("this is no regular expression: %w", err)
	}
	if len(program.Inst) > maxPattern {
		return fmt.Errorf("this regular expression has %d instructions, more than %d: use shorter repetitions, or a set of texts",
			len(program.Inst), maxPattern)
	}
	return nil
}

// longest finds the longest text below a value, keys included, and the way to it.
func longest(value any) (way string, length int) {
	switch value := value.(type) {
	case string:
		return "", len(value)
	case map[string]any:
		for _, key := range util.KeysSorted(value) {
			if len(key) > length {
				way, length = "", len(key)
			}
			if below, n := longest(value[key]); n > length {
				way, length = "."+key+below, n
			}
		}
	case []any:
		for i, element := range value {
			if below, n := longest(element); n > length {
				way, length = fmt.Sprintf("[%d]%s", i, below), n
			}
		}
	}
	return way, length
}

// walkCalls visits every call of a module.
func walkCalls(module *ast.Module, visit func(operator *ast.Term, operands []*ast.Term)) {
	ast.WalkExprs(module, func(expr *ast.Expr) bool {
		if terms, isCall := expr.Terms.([]*ast.Term); isCall {
			visit(terms[0], terms[1:])
		}
		return false
	})
	ast.WalkTerms(module, func(term *ast.Term) bool {
		if terms, isCall := term.Value.(ast.Call); isCall {
			visit(terms[0], terms[1:])
		}
		return false
	})
}
