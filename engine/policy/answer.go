package policy

import (
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
)

// decodeDecision reads the answer of the entry point. It knows every field, wants all of them in their types, and refuses
// an answer that allows what it denies, or refuses without a denial.
func decodeDecision(answer *ast.Term) (Decision, error) {
	object, isObject := answer.Value.(ast.Object)
	if !isObject || object.Len() != 3 {
		return Decision{}, malformed("it is not an object of allow, denials and honour_routing")
	}
	allow, hasAllow := booleanAt(object, answerAllow)
	honour, hasHonour := booleanAt(object, answerHonourRouting)
	if !hasAllow || !hasHonour {
		return Decision{}, malformed("allow and honour_routing are not both booleans")
	}
	denials, err := decodeDenials(object.Get(answerDenials))
	if err != nil {
		return Decision{}, err
	}
	if allow != (len(denials) == 0) {
		return Decision{}, malformed("allow is %t with %d denials", allow, len(denials))
	}
	return Decision{Allow: allow, Denials: denials, HonourRouting: honour}, nil
}

var (
	answerAllow         = ast.StringTerm("allow")
	answerDenials       = ast.StringTerm("denials")
	answerHonourRouting = ast.StringTerm("honour_routing")
	answerRule          = ast.StringTerm("rule")
	answerCode          = ast.StringTerm("code")
	answerTitle         = ast.StringTerm("title")
	answerRemedy        = ast.StringTerm("remedy")
	answerTerminal      = ast.StringTerm("terminal")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)
}

func decodeDenials(term *ast.Term) ([]Denial, error) {
	elements, err := elementsOf(term)
	if err != nil {
		return nil, err
	}
	denials := make([]Denial, len(elements))
	for i, element := range elements {
		object, isObject := element.Value.(ast.Object)
		if !isObject || object.Len() != 5 {
			return nil, malformed("a denial is not an object of rule, code, title, remedy and terminal")
		}
		rule, err := textAt(object, answerRule)
		if err != nil {
			return nil, err
		}
		if denials[i], err = decodeDenial(rule, object); err != nil {
			return nil, err
		}
	}
	sortDenials(denials)
	return denials, nil
}

// decodeDenialsByRule reads an object of denials by the names of their rules.
func decodeDenialsByRule(answer *ast.Term) (denials []Denial, err error) {
	byRule, isObject := answer.Value.(ast.Object)
	if !isObject {
		return nil, malformed("it is not an object of denials by rule")
	}
	err = byRule.Iter(func(rule, set *ast.Term) error {
		elements, err := elementsOf(set)
		if err != nil {
			return err
		}
		for _, element := range elements {
			object, isObject := element.Value.(ast.Object)
			if !isObject || object.Len() != 4 {
				return malformed("a denial is not an object of code, title, remedy and terminal")
			}
			denial, err := decodeDenial(string(rule.Value.(ast.String)), object) // the query's own text
			if err != nil {
				return err
			}
			denials = append(denials, denial)
		}
		return nil
	})
	return denials, err
}

// maxDenials bounds an answer: there is one for each ground on which policy refuses, and no bundle has so many.
const maxDenials = 4096

func elementsOf(term *ast.Term) (elements []*ast.Term, err error) {
	if term == nil {
		return nil, malformed("it has no denials")
	}
	switch list := term.Value.(type) {
	case ast.Set:
		elements = list.Slice()
	case *ast.Array:
		for i := range list.Len() {
			elements = append(elements, list.Elem(i))
		}
	default:
		return nil, malformed("denials is no list")
	}
	if len(elements) > maxDenials {
		return nil, malformed("it has %d denials, more than %d", len(elements), maxDenials)
	}
	return elements, nil
}

// decodeDenial reads a denial but for its rule.
func decodeDenial(rule string, object ast.Object) (denial Denial, err error) {
	denial.Rule = rule
	for _, text := range []struct {
		key   *ast.Term
		value *string
	}{
		{answerCode, &denial.Code},
		{answerTitle, &denial.Title},
		{answerRemedy, &denial.Remedy},
	} {
		if *text.value, err = textAt(object, text.key); err != nil {
			return Denial{}, err
		}
	}
	terminal, isBoolean := booleanAt(object, answerTerminal)
	if !isBoolean {
		return Denial{}, malformed("terminal of a denial is no boolean")
	}
	denial.Terminal = terminal
	return denial, nil
}

func textAt(object ast.Object, key *ast.Term) (string, error) {
	found := object.Get(key)
	if found == nil {
		return "", malformed("a denial has no %s", key)
	}
	value, isString := found.Value.(ast.String)
	if !isString || value == "" {
		return "", malformed("the %s of a denial is no text", key)
	}
	return string(value), nil
}

func booleanAt(object ast.Object, key *ast.Term) (value, isBoolean bool) {
	term := object.Get(key)
	if term == nil {
		return false, false
	}
	boolean, isBoolean := term.Value.(ast.Boolean)
	return bool(boolean), isBoolean
}
