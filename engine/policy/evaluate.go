package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/util"
)

// What is here is for people and tools that look at a decision before or after it counts. Nothing of it is remembered.

// Document is an input document, as a file or a record holds it.
type Document struct {
	value ast.Value
}

// maxDocument bounds an input document: some times what facts of the largest size come to.
const maxDocument = 4 << 20

// ParseDocument reads an input document: one JSON object, with every digit of its numbers. It does not ask for the fields of [Facts], so
// that records of former versions can be read: the entry point refuses what is incomplete by its own activation.
func ParseDocument(text []byte) (Document, error) {
	switch {
	case len(text) > maxDocument:
		return Document{}, fmt.Errorf("%w: %d bytes, more than %d", ErrTooLarge, len(text), maxDocument)
	case !utf8.Valid(text):
		return Document{}, ErrNotText
	}
	if err := refuseRepeated(text); err != nil {
		return Document{}, fmt.Errorf("policy: the input document: %w", err)
	}
	var tree map[string]any
	if err := util.UnmarshalJSON(text, &tree); err != nil {
		return Document{}, fmt.Errorf("policy: the input document: %w", err)
	}
	if tree == nil {
		return Document{}, errors.New("policy: the input document is null, not an object")
	}
	value, err := ast.InterfaceToValue(tree)
	if err != nil {
		return Document{}, fmt.Errorf("policy: the input document: %w", err)
	}
	return Document{value: value}, nil
}

// refuseRepeated refuses an object with a key twice, of which JSON's readers each take another one, and what is nested too deep.
func refuseRepeated(text []byte) error {
	type level struct {
		keys  map[string]bool // nil in an array
		isKey bool            // the next text is a key
	}
	var levels []level
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var top *level
		if len(levels) > 0 {
			top = &levels[len(levels)-1]
		}
		switch delimiter, isDelimiter := token.(json.Delim); {
		case isDelimiter && (delimiter == '}' || delimiter == ']'):
			levels = levels[:len(levels)-1]
			continue
		case top != nil && top.keys != nil && top.isKey:
			key := token.(string) // or the decoder would have failed
			if top.keys[key] {
				return fmt.Errorf("the key %q is there twice", key)
			}
			top.keys[key], top.isKey = true, false
			continue
		case top != nil:
			top.isKey = true
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{keys: map[string]bool{}, isKey: true})
		case json.Delim('['):
			levels = append(levels, level{})
		}
		if len(levels) > maxDepth {
			return fmt.Errorf("it is nested more than %d deep", maxDepth)
		}
	}
}

// maxDepth bounds how deep an input document is nested: facts are three deep.
const maxDepth = 64

// ParseFacts reads an input document strictly: every field of [Facts] has to be there, in its type, and no other one.
func ParseFacts(text []byte) (Facts, error) {
	var facts Facts
	document, err := ParseDocument(text)
	if err != nil {
		return facts, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&facts); err != nil {
		return facts, fmt.Errorf("policy: the input document: %w", err)
	}
	if err := complete("", document.value, reflect.TypeFor[Facts]()); err != nil {
		return facts, fmt.Errorf("policy: the input document: %w", err)
	}
	return facts, facts.check()
}

// complete says which field of a type a value lacks: encoding/json takes what is absent for zero, and null for anything, and finds a
// field under a name in other capitals.
func complete(way string, value ast.Value, of reflect.Type) error {
	name := strings.TrimPrefix(way, ".")
	_, isNull := value.(ast.Null)
	if isNull && of.Kind() != reflect.Pointer {
		return fmt.Errorf("%s is null", name)
	}
	switch of.Kind() {
	case reflect.Slice:
		array := value.(*ast.Array)
		for i := range array.Len() {
			if err := complete(fmt.Sprintf("%s[%d]", way, i), array.Elem(i).Value, of.Elem()); err != nil {
				return err
			}
		}
	case reflect.Struct:
		object := value.(ast.Object)
		for i := range of.NumField() {
			key, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			field := object.Get(ast.StringTerm(key))
			if field == nil {
				return fmt.Errorf("%s is missing", strings.TrimPrefix(way+"."+key, "."))
			}
			if err := complete(way+"."+key, field.Value, of.Field(i).Type); err != nil {
				return err
			}
		}
		if object.Len() != of.NumField() {
			return fmt.Errorf("%s has fields of other names", name)
		}
	}
	return nil
}

// Document is the input document of the facts.
func (f Facts) Document() Document { return Document{value: f.document()} }

func (f Facts) document() ast.Object {
	return documentOf(wholeTerm(f.Now), callTerm(f.Call), identityTerm(f.Identity), candidateTerm(f.Candidate), attemptsTerm(f.Attempts))
}

// Decide decides upon an input document afresh. It fails as [Judge.Decide] does.
func (a *Activation) Decide(ctx context.Context, input Document) (Decision, error) {
	object, isObject := input.value.(ast.Object)
	if !isObject {
		return Decision{}, errors.New("policy: there is no input document")
	}
	return a.decide(ctx, &a.decision, object)
}

// Evaluate answers a query of Rego, such as data.regent.rules.access, on an input document. Tracers are told of every step; they and
// their caller's context bound it, not the time limit of decisions. The answer is in the form of JSON, undefined if nothing answers the
// query.
func (a *Activation) Evaluate(ctx context.Context, query string, input Document, tracers ...topdown.QueryTracer) (answer any, defined bool, err error) {
	body, err := ast.ParseBodyWithOpts(query, ast.ParserOptions{RegoVersion: ast.RegoV1})
	if err != nil {
		return nil, false, fmt.Errorf("policy: the query: %w", err)
	}
	prepared, err := rego.New(
		rego.ParsedQuery(body),
		rego.Compiler(a.compiler),
		rego.Store(a.store),
		rego.Transaction(a.txn),
		rego.StrictBuiltinErrors(true),
	).PrepareForEval(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("policy: the query: %w", err)
	}
	options := []rego.EvalOption{rego.EvalTransaction(a.txn), rego.EvalMetrics(metrics.NoOp())}
	if input.value != nil {
		options = append(options, rego.EvalParsedInput(input.value))
	}
	for _, tracer := range tracers {
		options = append(options, rego.EvalQueryTracer(tracer))
	}
	results, err := prepared.Eval(ctx, options...)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, false, evaluationError(err)
	}
	if len(results) == 0 || len(results[0].Expressions) == 0 {
		return nil, false, nil
	}
	return results[0].Expressions[0].Value, true, nil
}
