package policy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"
)

// Bounds of what is written in a bundle. The time limit of a decision interrupts between expressions, so that what one built-in works on
// has to be small: these, and the bounds of the facts.
const (
	maxWritten = 4 << 10 // bytes of one text in a module or in data: what is quadratic in it, such as some regular expressions, takes 0.1 s
	maxPattern = 10_000  // instructions of a regular expression: some 400 kB, compiled in some ms
	maxBody    = 1_000   // expressions of one body: OPA's time to order them is quadratic
	maxNesting = 8       // comprehensions within comprehensions: OPA's time to compile them doubles with each
	maxTerms   = 64      // calls and collections within each other, likewise
)

// oversized finds what is too large to be worked on in time.
func oversized(bundles []*unpacked) (problems []Problem) {
	for _, u := range bundles {
		for _, file := range u.parsed.Modules {
			problems = append(problems, unbounded(file.Parsed)...)
		}
		for key, schema := range u.schemas {
			if err := checkSchema(schema); err != nil {
				problems = append(problems, Problem{Bundle: u.name, File: "schemas/" + key + ".json", Text: err.Error()})
			}
		}
		if err := wrongNumber(u.parsed.Data); err != nil {
			problems = append(problems, Problem{Bundle: u.name, Text: err.Error()})
		}
		if way, length := longest(u.parsed.Data); length > maxWritten {
			problems = append(problems, Problem{Bundle: u.name, Text: fmt.Sprintf(
				"the text at data%s has %d bytes, more than %d: policy would take too long over it", way, length, maxWritten)})
		}
	}
	return problems
}

// unbounded finds what in a module OPA could lose itself in. It is asked before OPA compiles it.
func unbounded(module *ast.Module) (problems []Problem) {
	if problems = tooDeep(module); len(problems) > 0 {
		return problems
	}
	for _, annotations := range module.Annotations {
		for _, schema := range annotations.Schemas {
			if schema.Definition == nil {
				continue
			}
			if err := checkSchema(*schema.Definition); err != nil {
				problems = append(problems, problemAt(annotations.Loc(), fmt.Sprintf("the schema of %s: %v", schema.Path, err)))
			}
		}
	}
	return append(append(problems, disguised(module)...), oversizedModule(module)...)
}

func oversizedModule(module *ast.Module) (problems []Problem) {
	refuse := func(at *ast.Location, format string, args ...any) {
		problems = append(problems, problemAt(at, fmt.Sprintf(format, args...)))
	}
	ast.WalkTerms(module, func(term *ast.Term) bool {
		switch value := term.Value.(type) {
		case ast.String:
			if len(value) > maxWritten {
				refuse(term.Loc(), "this text has %d bytes, more than %d: policy would take too long over it", len(value), maxWritten)
			}
		case ast.Number:
			if err := checkNumber(string(value)); err != nil {
				refuse(term.Loc(), "%v", err)
			}
		}
		return false
	})
	ast.WalkBodies(module, func(body ast.Body) bool {
		if len(body) > maxBody {
			refuse(body.Loc(), "this body has %d expressions, more than %d: make rules of its parts", len(body), maxBody)
		}
		return false
	})
	walkCalls(module, func(operator *ast.Term, operands []*ast.Term) {
		if err := checkBuiltin(operator.String(), operands); err != nil {
			refuse(operator.Loc(), "%v", err)
		}
	})
	return problems
}

// tooDeep finds what is nested so deep that compiling it would take too long. It is asked before anything else walks the module.
func tooDeep(module *ast.Module) (problems []Problem) {
	comprehensions, terms := 0, 0
	count := func(x any, by int) {
		switch x.(type) {
		case *ast.ArrayComprehension, *ast.SetComprehension, *ast.ObjectComprehension, *ast.Every:
			comprehensions += by
		case ast.Call, *ast.Array, ast.Set, ast.Object:
			terms += by
		}
	}
	ast.NewBeforeAfterVisitor(func(x any) bool {
		count(x, 1)
		if comprehensions > maxNesting || terms > maxTerms {
			problems = []Problem{problemAt(module.Package.Loc(), fmt.Sprintf(
				"the module nests more than %d comprehensions or %d calls and collections: make rules of the inner ones", maxNesting, maxTerms))}
		}
		return len(problems) > 0
	}, func(x any) { count(x, -1) }).Walk(module)
	return problems
}

// checkBuiltin refuses a call that may make very much of little, or take very long, in one step: a pattern that is not written out, so that
// nobody knows how large it gets, and a format that fills up.
func checkBuiltin(builtin string, operands []*ast.Term) error {
	literal := func(at int) (string, bool) {
		if at >= len(operands) {
			return "", true // the compiler says it
		}
		text, isText := operands[at].Value.(ast.String)
		return string(text), isText
	}
	switch {
	case builtin == ast.Sprintf.Name:
		format, isWritten := literal(0)
		if !isWritten || filling.MatchString(format) {
			return errors.New("a format has to be written out, and to name no width or precision: concatenate texts instead")
		}
	case builtin == ast.RegexReplace.Name:
		return checkWritten(literal(1))
	case strings.HasPrefix(builtin, "regex.") && builtin != ast.RegexIsValid.Name:
		return checkWritten(literal(0))
	}
	return nil
}

// filling is a verb of a format with a width or a precision.
var filling = regexp.MustCompile(`%[-+# 0]*[\[\]1-9.*]`)

func checkWritten(pattern string, isWritten bool) error {
	if !isWritten {
		return errors.New("a regular expression has to be written out: compare with data by `in`, startswith, endswith or contains")
	}
	return checkPattern(pattern)
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

// checkNumber refuses a number of absurd size: OPA writes 1e30000000 out.
func checkNumber(text string) error {
	const most = 400 // digits, or ten's power: more than a float64 has
	number, exponent, _ := strings.Cut(strings.ToLower(text), "e")
	power, err := strconv.Atoi(cmp.Or(exponent, "0"))
	if len(number) > most || err != nil || power > most || power < -most {
		return fmt.Errorf("the number %.20s has more than %d digits", text, most)
	}
	return nil
}

// wrongNumber finds a number below a value that checkNumber refuses.
func wrongNumber(value any) error {
	switch value := value.(type) {
	case json.Number:
		return checkNumber(value.String())
	case map[string]any:
		for _, key := range util.KeysSorted(value) {
			if err := wrongNumber(value[key]); err != nil {
				return err
			}
		}
	case []any:
		for _, element := range value {
			if err := wrongNumber(element); err != nil {
				return err
			}
		}
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
