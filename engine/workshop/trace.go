package workshop

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"

	"regent/engine/policy"
)

// trace is an evaluation, taken apart into the evaluations of rules.
type trace struct {
	ctx        context.Context
	activation *policy.Activation
	input      policy.Document
	frames     []*frame            // of rules, in the order in which they began
	parents    map[uint64]uint64   // of every query, the one that asked it
	values     map[string]string   // of references that were looked up already
	byName     map[string][]*frame // of rules
}

// frame is one evaluation of one rule.
type frame struct {
	query  uint64
	rule   *ast.Rule
	exit   *topdown.Event         // when its body held first; nil if it never did
	failed map[int]*topdown.Event // by the expression's position in the body: when it failed last
}

func (f *frame) held() bool { return f.exit != nil }

// name is the rule's whole path.
func (f *frame) name() string { return f.rule.Ref().GroundPrefix().String() }

func readTrace(ctx context.Context, activation *policy.Activation, input policy.Document, events []*topdown.Event) *trace {
	t := &trace{
		ctx: ctx, activation: activation, input: input,
		parents: map[uint64]uint64{}, values: map[string]string{}, byName: map[string][]*frame{},
	}
	open := map[uint64]*frame{}
	for _, event := range events {
		switch event.Op {
		case topdown.EnterOp:
			t.parents[event.QueryID] = event.ParentID
			if rule, isRule := event.Node.(*ast.Rule); isRule && rule.Module != nil {
				entered := &frame{query: event.QueryID, rule: rule, failed: map[int]*topdown.Event{}}
				open[event.QueryID] = entered
				t.frames = append(t.frames, entered)
				name := entered.rule.Module.Package.Path.String() + "." + string(rule.Head.Name)
				t.byName[name] = append(t.byName[name], entered)
			}
		case topdown.ExitOp:
			if entered := open[event.QueryID]; entered != nil && entered.exit == nil {
				entered.exit = event
			}
		case topdown.FailOp:
			if expr, isExpr := event.Node.(*ast.Expr); isExpr && open[event.QueryID] != nil {
				open[event.QueryID].failed[expr.Index] = event
			}
		}
	}
	return t
}

// answers are the evaluations of a rule that an evaluation asked for; or, since OPA remembers what a rule without arguments says, those
// that others asked for before.
func (t *trace) answers(asking *frame, name string) []*frame {
	own := slices.DeleteFunc(slices.Clone(t.byName[name]), func(f *frame) bool { return !t.isBelow(f.query, asking.query) })
	if len(own) > 0 {
		return own
	}
	return slices.DeleteFunc(slices.Clone(t.byName[name]), func(f *frame) bool { return len(f.rule.Head.Args) > 0 })
}

func (t *trace) isBelow(query, ancestor uint64) bool {
	for query != ancestor {
		parent, known := t.parents[query]
		if !known || parent == query {
			return false
		}
		query = parent
	}
	return true
}

// part is what an author wrote as one expression; the compiler makes several of it.
type part struct {
	line  int
	text  string
	exprs []*ast.Expr
}

// parts are the expressions of a rule's body as they are written. What the compiler took out of the rule's head is none of them.
func (f *frame) parts() (parts []part) {
	exprs := slices.Clone(f.rule.Body)
	exprs = slices.DeleteFunc(exprs, func(expr *ast.Expr) bool { return expr.Location == nil || within(expr.Location, f.rule.Head.Location) })
	slices.SortStableFunc(exprs, func(a, b *ast.Expr) int {
		return cmp.Or(cmp.Compare(a.Location.Offset, b.Location.Offset), cmp.Compare(len(b.Location.Text), len(a.Location.Text)))
	})
	var whole *ast.Location
	for _, expr := range exprs {
		if whole == nil || !within(expr.Location, whole) {
			whole = expr.Location
			parts = append(parts, part{line: whole.Row, text: string(whole.Text)})
		}
		parts[len(parts)-1].exprs = append(parts[len(parts)-1].exprs, expr)
	}
	return parts
}

// within says whether what is at one place is part of what is at another.
func within(inner, outer *ast.Location) bool {
	return outer != nil && inner.File == outer.File && inner.Offset >= outer.Offset && inner.Offset < outer.Offset+max(len(outer.Text), 1)
}

// rules are the paths below data that the part mentions, called or read.
func (p part) rules() (names []string) {
	for _, expr := range p.exprs {
		ast.WalkRefs(expr, func(ref ast.Ref) bool {
			if name := ref.GroundPrefix().String(); ref.HasPrefix(ast.DefaultRootRef) && !slices.Contains(names, name) {
				names = append(names, name)
			}
			return false
		})
	}
	return names
}

// reads are the values of the references and variables that an expression reads, when an event happened. Names of functions are none.
func (t *trace) reads(f *frame, expr *ast.Expr, at *topdown.Event) (reads []Read) {
	var visitor *ast.GenericVisitor
	visitor = ast.NewGenericVisitor(func(node any) bool {
		switch node := node.(type) {
		case *ast.Expr:
			if terms, isCall := node.Terms.([]*ast.Term); isCall {
				for _, operand := range terms[1:] {
					visitor.Walk(operand)
				}
				for _, with := range node.With {
					visitor.Walk(with)
				}
				return true
			}
		case ast.Call:
			for _, operand := range node[1:] {
				visitor.Walk(operand)
			}
			return true
		case ast.Ref:
			if read, isRead := t.readRef(f, node, at); isRead {
				reads = append(reads, read)
				return true
			}
		case ast.Var:
			if read, isRead := readVar(node, at); isRead {
				reads = append(reads, read)
			}
		}
		return false
	})
	visitor.Walk(expr)
	return reads
}

// readRef looks up a reference into the input or data, as far as it is known which.
func (t *trace) readRef(f *frame, ref ast.Ref, at *topdown.Event) (Read, bool) {
	if !ref.HasPrefix(ast.InputRootRef) && !ref.HasPrefix(ast.DefaultRootRef) {
		return Read{}, false
	}
	plugged := ref.Copy()
	for i, step := range plugged {
		if variable, isVar := step.Value.(ast.Var); i > 0 && isVar && at.Locals != nil {
			if value := at.Locals.Get(variable); value != nil {
				plugged[i] = ast.NewTerm(value)
			}
		}
	}
	if plugged = plugged.GroundPrefix(); len(plugged) < 2 { // all of the input or of data is no answer
		return Read{}, false
	}
	name := plugged.String()
	return Read{Name: shortName(name, f.rule), Value: t.value(name)}, true
}

// value is what a reference has for a value, as JSON.
func (t *trace) value(ref string) string {
	if known, exists := t.values[ref]; exists {
		return known
	}
	value := "undefined"
	if answer, defined, err := t.activation.Evaluate(t.ctx, ref, t.input); err != nil {
		value = "unknown"
	} else if defined {
		if text, err := json.Marshal(answer); err == nil {
			value = cut(string(text))
		}
	}
	t.values[ref] = value
	return value
}

// readVar is the value of a variable that the author named.
func readVar(variable ast.Var, at *topdown.Event) (Read, bool) {
	named, exists := at.LocalMetadata[variable]
	if !exists || at.Locals == nil || strings.HasPrefix(string(named.Name), ast.LocalVarPrefix) || named.Name.IsWildcard() {
		return Read{}, false
	}
	value := at.Locals.Get(variable)
	if value == nil {
		return Read{}, false
	}
	return Read{Name: string(named.Name), Value: cut(value.String())}, true
}
