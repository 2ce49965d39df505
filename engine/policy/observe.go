package policy

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// A decision may be remembered for facts that differ, as long as they do not differ in anything that its rules can observe. What they
// can observe is read off the modules: the value of a field, or only whether it is null, or only how it compares with another field or
// with a number. So a rule that wants `input.call.input_tokens <= input.candidate.context_tokens` has two outcomes to remember, not one
// for every size of a prompt.

// observation is something that a rule can learn of the facts. Decisions that observe the same are the same.
type observation struct {
	kind observationKind
	// field and other are places in the list of fields.
	field, other int
	number       int64
}

type observationKind byte

const (
	ofValue  observationKind = iota // the field's value
	ofNull                          // whether the field is null
	ofFields                        // how the field compares with the other one
	ofNumber                        // how the field compares with the number
)

// The built-ins that observe less of their operands than the values.
var (
	typeChecks  = []string{"is_array", "is_boolean", "is_null", "is_number", "is_object", "is_set", "is_string", "type_name"}
	comparisons = []string{"lt", "lte", "gt", "gte", "equal", "neq"}
)

// volatile says whether what is observed differs from call to call, so that remembering it would be of no use.
func (o observation) volatile() bool { return o.kind == ofValue && fields[o.field].volatile }

// ofCandidate says whether it is to be observed for each candidate; otherwise once for the call.
func (o observation) ofCandidate() bool {
	return fields[o.field].ofCandidate || o.kind == ofFields && fields[o.other].ofCandidate
}

// write appends what is observed. What it appends for one observation begins with its own length or has a fixed one, so that no two
// rows of observations are written alike.
func (o observation) write(key []byte, f *Facts) []byte {
	switch o.kind {
	case ofNull:
		_, known := fields[o.field].number(f)
		return appendBool(key, known)
	case ofFields:
		return append(key, byte(compareNumbers(fields[o.field].number, fields[o.other].number, f)))
	case ofNumber:
		return append(key, byte(compareNumbers(fields[o.field].number, func(*Facts) (int64, bool) { return o.number, true }, f)))
	}
	return fields[o.field].write(key, f)
}

// compareNumbers orders as Rego does: null comes before every number.
func compareNumbers(a, b func(*Facts) (int64, bool), f *Facts) int {
	x, xKnown := a(f)
	y, yKnown := b(f)
	if !xKnown || !yKnown {
		return cmp.Compare(btoi(xKnown), btoi(yKnown))
	}
	return cmp.Compare(x, y)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// factField is a field of the facts, as deep as rules can tell it from others.
type factField struct {
	way []string // from the input document
	// write appends the value, preceded by its length where it can have any.
	write func(key []byte, f *Facts) []byte
	// number is the value of a number, and whether it is known; of a text that may be null, only whether it is. nil for others.
	number  func(f *Facts) (n int64, known bool)
	isText  bool // number only tells whether it is null
	mayNull bool
	// volatile fields have another value in nearly every call.
	volatile    bool
	ofCandidate bool
}

// fields are all fields of the facts. A test holds them to the type.
var fields = []factField{
	volatile(whole(func(f *Facts) *int64 { return &f.Now }, "now")),
	text(func(f *Facts) *string { return &f.Call.Model }, "call", "model"),
	text(func(f *Facts) *string { return &f.Call.Protocol }, "call", "protocol"),
	text(func(f *Facts) *string { return &f.Call.Kind }, "call", "kind"),
	flag(func(f *Facts) bool { return f.Call.Stream }, "call", "stream"),
	optional(func(f *Facts) *string { return f.Call.Residency }, "call", "residency"),
	list(func(f *Facts) []string { return f.Call.Modalities }, "call", "modalities"),
	volatile(number(func(f *Facts) *int64 { return f.Call.InputTokens }, "call", "input_tokens")),
	number(func(f *Facts) *int64 { return f.Call.OutputTokensMax }, "call", "output_tokens_max"),
	flag(func(f *Facts) bool { return f.Call.TokensBounded }, "call", "tokens_bounded"),
	flag(func(f *Facts) bool { return f.Call.CostBounded }, "call", "cost_bounded"),
	optional(func(f *Facts) *string { return f.Identity.User }, "identity", "user"),
	list(func(f *Facts) []string { return f.Identity.Groups }, "identity", "groups"),
	optional(func(f *Facts) *string { return f.Identity.Tenant }, "identity", "tenant"),
	optional(func(f *Facts) *string { return f.Identity.Principal }, "identity", "principal"),
	optional(func(f *Facts) *string { return f.Identity.PrincipalKind }, "identity", "principal_kind"),
	text(func(f *Facts) *string { return &f.Candidate.Source }, "candidate", "source"),
	text(func(f *Facts) *string { return &f.Candidate.Provider }, "candidate", "provider"),
	text(func(f *Facts) *string { return &f.Candidate.Model }, "candidate", "model"),
	optional(func(f *Facts) *string { return f.Candidate.Residency }, "candidate", "residency"),
	flag(func(f *Facts) bool { return f.Candidate.Enabled }, "candidate", "enabled"),
	text(func(f *Facts) *string { return &f.Candidate.Connection }, "candidate", "connection"),
	flag(func(f *Facts) bool { return f.Candidate.Stale }, "candidate", "stale"),
	whole(func(f *Facts) *int64 { return &f.Candidate.CoolingUntil }, "candidate", "cooling_until"),
	list(func(f *Facts) []string { return f.Candidate.Protocols }, "candidate", "protocols"),
	list(func(f *Facts) []string { return f.Candidate.Modalities }, "candidate", "modalities"),
	number(func(f *Facts) *int64 { return f.Candidate.ContextTokens }, "candidate", "context_tokens"),
	number(func(f *Facts) *int64 { return f.Candidate.OutputTokensMax }, "candidate", "output_tokens_max"),
	flag(func(f *Facts) bool { return f.Candidate.Priced }, "candidate", "priced"),
	number(func(f *Facts) *int64 { return f.Candidate.InputPrice }, "candidate", "input_price"),
	number(func(f *Facts) *int64 { return f.Candidate.OutputPrice }, "candidate", "output_price"),
	flag(func(f *Facts) bool { return f.Candidate.OpenRouterRouting }, "candidate", "openrouter_routing"),
	text(func(f *Facts) *string { return &f.Candidate.Accounting }, "candidate", "accounting"),
	{way: []string{"attempts"}, ofCandidate: true, write: writeAttempts},
}

func fieldAt(way []string) factField {
	return factField{way: way, ofCandidate: way[0] == "candidate" || way[0] == "attempts"}
}

func text(of func(*Facts) *string, way ...string) factField {
	field := fieldAt(way)
	field.write = func(key []byte, f *Facts) []byte { return appendText(key, *of(f)) }
	return field
}

func optional(of func(*Facts) *string, way ...string) factField {
	field := fieldAt(way)
	field.isText, field.mayNull = true, true
	field.number = func(f *Facts) (int64, bool) { return 0, of(f) != nil }
	field.write = func(key []byte, f *Facts) []byte {
		value := of(f)
		if key = appendBool(key, value != nil); value != nil {
			key = appendText(key, *value)
		}
		return key
	}
	return field
}

func flag(of func(*Facts) bool, way ...string) factField {
	field := fieldAt(way)
	field.write = func(key []byte, f *Facts) []byte { return appendBool(key, of(f)) }
	return field
}

func list(of func(*Facts) []string, way ...string) factField {
	field := fieldAt(way)
	field.write = func(key []byte, f *Facts) []byte {
		texts := of(f)
		key = binary.AppendUvarint(key, uint64(len(texts)))
		for _, text := range texts {
			key = appendText(key, text)
		}
		return key
	}
	return field
}

func number(of func(*Facts) *int64, way ...string) factField {
	field := fieldAt(way)
	field.mayNull = true
	field.number = func(f *Facts) (int64, bool) {
		value := of(f)
		if value == nil {
			return 0, false
		}
		return *value, true
	}
	field.write = func(key []byte, f *Facts) []byte {
		value := of(f)
		if key = appendBool(key, value != nil); value != nil {
			key = binary.AppendVarint(key, *value)
		}
		return key
	}
	return field
}

func whole(of func(*Facts) *int64, way ...string) factField {
	field := number(of, way...)
	field.mayNull = false
	return field
}

func volatile(field factField) factField {
	field.volatile = true
	return field
}

func writeAttempts(key []byte, f *Facts) []byte {
	key = binary.AppendUvarint(key, uint64(len(f.Attempts)))
	for _, attempt := range f.Attempts {
		key = appendText(appendText(appendText(appendText(key, attempt.Source), attempt.Provider), attempt.Reason), attempt.Accounting)
	}
	return key
}

func appendText(key []byte, text string) []byte {
	return append(binary.AppendUvarint(key, uint64(len(text))), text...)
}

func appendBool(key []byte, b bool) []byte { return append(key, byte(btoi(b))) }

// observations are what a set of rules can observe.
type observations map[observation]bool

// volatile says whether anything among them differs from call to call.
func (o observations) volatile() bool {
	for observed := range o {
		if observed.volatile() {
			return true
		}
	}
	return false
}

// imply says whether the values that are observed tell something anyway.
func (o observations) imply(observed observation) bool {
	hasValue := func(field int) bool { return o[observation{kind: ofValue, field: field}] }
	switch observed.kind {
	case ofNull, ofNumber:
		return hasValue(observed.field)
	case ofFields:
		return hasValue(observed.field) && hasValue(observed.other)
	}
	return false
}

// observed is what a rule can observe by itself, without the rules that it refers to. It wants a rule whose names are resolved and whose
// calls are still as they were written.
func observed(rule *ast.Rule) observations {
	o := make(observations)
	o.visit(rule)
	for _, step := range rule.Head.Reference { // which OPA's visitor passes over
		o.visit(step)
	}
	return o
}

func (o observations) visit(node any) {
	ast.NewGenericVisitor(func(x any) bool {
		switch x := x.(type) {
		case *ast.Expr:
			terms, isCall := x.Terms.([]*ast.Term)
			return isCall && len(x.With) == 0 && o.call(terms[0], terms[1:])
		case ast.Call:
			return o.call(x[0], x[1:])
		case ast.Ref:
			steps := x // each of which may refer to the input, also the first one: [input.call.kind][0]
			if x[0].Equal(ast.InputRootDocument) {
				o.reference(x)
				steps = x[1:]
			}
			for _, step := range steps {
				o.visit(step)
			}
			return true
		case ast.Var:
			if x.Equal(ast.InputRootDocument.Value) {
				o.below(nil)
			}
		}
		return false
	}).Walk(node)
}

// call notes what a call can observe, if that is less than the values of its operands.
func (o observations) call(operator *ast.Term, operands []*ast.Term) (noted bool) {
	switch name := operator.String(); {
	case len(operands) == 1 && slices.Contains(typeChecks, name):
		return o.typeOf(operands[0])
	case len(operands) == 2 && slices.Contains(comparisons, name):
		return o.comparison(operands[0], operands[1])
	}
	return false
}

// typeOf notes that a field's type is observed, which facts leave open only where it may be null.
func (o observations) typeOf(operand *ast.Term) bool {
	field, isField := fieldOf(operand)
	if !isField {
		return false
	}
	if fields[field].mayNull {
		o[observation{kind: ofNull, field: field}] = true
	}
	return true
}

// comparison notes that two fields, or a field and a number, are compared.
func (o observations) comparison(a, b *ast.Term) bool {
	field, isField := numberOf(a)
	if !isField {
		if field, isField = numberOf(b); !isField {
			return false
		}
		a, b = b, a
	}
	if other, isField := numberOf(b); isField {
		o[observation{kind: ofFields, field: min(field, other), other: max(field, other)}] = true
		return true
	}
	switch constant := b.Value.(type) {
	case ast.Null: // less than every number
		o[observation{kind: ofNull, field: field}] = true
		return true
	case ast.Number:
		n, isWhole := constant.Int64()
		if isWhole {
			o[observation{kind: ofNumber, field: field, number: n}] = true
		}
		return isWhole
	}
	return false
}

// numberOf is the field that a term refers to, if it is one of numbers.
func numberOf(term *ast.Term) (int, bool) {
	field, isField := fieldOf(term)
	return field, isField && fields[field].number != nil && !fields[field].isText
}

// fieldOf is the field that a term refers to, neither more nor less.
func fieldOf(term *ast.Term) (int, bool) {
	ref, isRef := term.Value.(ast.Ref)
	if !isRef || !ref[0].Equal(ast.InputRootDocument) {
		return 0, false
	}
	way := names(ref)
	if len(way) != len(ref)-1 {
		return 0, false
	}
	at := slices.IndexFunc(fields, func(f factField) bool { return slices.Equal(f.way, way) })
	return at, at >= 0
}

// names are the steps of a reference that are written as names, up to the first that is not.
func names(ref ast.Ref) (way []string) {
	for _, step := range ref[1:] {
		name, isName := step.Value.(ast.String)
		if !isName {
			break
		}
		way = append(way, string(name))
	}
	return way
}

// reference notes the values that a reference can reach.
func (o observations) reference(ref ast.Ref) {
	way := names(ref)
	for at, field := range fields {
		if n := len(field.way); n <= len(way) && slices.Equal(field.way, way[:n]) { // within the field
			o[observation{kind: ofValue, field: at}] = true
			return
		}
	}
	o.below(way)
}

// below notes the values of all fields below a way; of a way that leads to none, those of all there are.
func (o observations) below(way []string) {
	found := false
	for at, field := range fields {
		if len(field.way) > len(way) && slices.Equal(field.way[:len(way)], way) {
			o[observation{kind: ofValue, field: at}], found = true, true
		}
	}
	if !found {
		o.below(nil)
	}
}
