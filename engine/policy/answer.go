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
	if term == nil {
		return nil, malformed("it has no denials")
	}
	var elements []*ast.Term
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
	denials := make([]Denial, len(elements))
	for i, element := range elements {
		denial, err := decodeDenial(element)
		if err != nil {
			return nil, err
		}
		denials[i] = denial
	}
	sortDenials(denials)
	return denials, nil
}

func decodeDenial(term *ast.Term) (Denial, error) {
	object, isObject := term.Value.(ast.Object)
	if !isObject || object.Len() != 5 {
		return Denial{}, malformed("a denial is not an object of rule, code, title, remedy and terminal")
	}
	var denial Denial
	for _, text := range []struct {
		key   *ast.Term
		value *string
	}{
		{answerRule, &denial.Rule},
		{answerCode, &denial.Code},
		{answerTitle, &denial.Title},
		{answerRemedy, &denial.Remedy},
	} {
		found := object.Get(text.key)
		if found == nil {
			return Denial{}, malformed("a denial has no %s", text.key)
		}
		value, isString := found.Value.(ast.String)
		if !isString || value == "" {
			return Denial{}, malformed("the %s of a denial is no text", text.key)
		}
		*text.value = string(value)
	}
	terminal, isBoolean := booleanAt(object, answerTerminal)
	if !isBoolean {
		return Denial{}, malformed("terminal of a denial is no boolean")
	}
	denial.Terminal = terminal
	return denial, nil
}

func booleanAt(object ast.Object, key *ast.Term) (value, isBoolean bool) {
	term := object.Get(key)
	if term == nil {
		return false, false
	}
	boolean, isBoolean := term.Value.(ast.Boolean)
	return bool(boolean), isBoolean
}
