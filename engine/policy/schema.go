package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/util"
)

// OPA checks modules by the schemas that their METADATA names, and never the data itself. Rego compares values of any types ("5" > 100
// is true), so that a limit written as a text would be no limit. Here the data is held to its schemas, too.

// wrongData finds data that is not as the schemas say that modules expect of it, and data that is expected and not there: a rule that
// reads it would be undefined, and deny nothing.
func wrongData(ctx context.Context, bundles []*unpacked, data map[string]any) (problems []Problem) {
	schemas := make(map[string]any)
	for _, u := range bundles {
		for key, schema := range u.schemas {
			schemas[schemaRef(key).String()] = schema
		}
	}
	checked := make(map[string]bool)
	for _, expected := range expectations(bundles) {
		at, schema := expected.Path.String(), expected.Definition
		if named, exists := schemas[expected.Schema.String()]; schema == nil && exists {
			schema = &named
		}
		key := at + " " + expected.Schema.String()
		if expected.Definition != nil {
			key = fmt.Sprintf("%s %v", at, *expected.Definition)
		}
		if schema == nil || checked[key] || !expected.Path[0].Equal(ast.DefaultRootDocument) { // the compiler says what is not a schema
			continue
		}
		checked[key] = true
		value, exists := valueAt(data, expected.Path)
		if !exists {
			if !isDefined(bundles, expected.Path) {
				problems = append(problems, problemAt(expected.at, fmt.Sprintf("%s is not there, and its schema is named: put it into %s/data.json",
					at, strings.ReplaceAll(strings.TrimPrefix(at, "data."), ".", "/"))))
			}
			continue
		}
		if err := matchSchema(ctx, value, *schema); err != nil {
			problem := Problem{Text: fmt.Sprintf("%s is not as its schema says: %v", at, err)}
			problem.Bundle, problem.File = dataFile(bundles, names(expected.Path))
			problems = append(problems, problem)
		}
	}
	return problems
}

// expectation is a schema that a module names for data.
type expectation struct {
	*ast.SchemaAnnotation
	at *ast.Location
}

func expectations(bundles []*unpacked) (all []expectation) {
	for _, u := range bundles {
		for _, file := range u.parsed.Modules {
			for _, annotations := range file.Parsed.Annotations {
				for _, schema := range annotations.Schemas {
					all = append(all, expectation{schema, annotations.Loc()})
				}
			}
		}
	}
	return all
}

// isDefined says whether rules define what is at a path, or something below it.
func isDefined(bundles []*unpacked, path ast.Ref) bool {
	for _, u := range bundles {
		for _, file := range u.parsed.Modules {
			for _, rule := range file.Parsed.Rules {
				if ref := rule.Ref().GroundPrefix(); ref.HasPrefix(path) || path.HasPrefix(ref) {
					return true
				}
			}
		}
	}
	return false
}

// valueAt is the data at a path below data.
func valueAt(data map[string]any, path ast.Ref) (value any, exists bool) {
	if !path[0].Equal(ast.DefaultRootDocument) {
		return nil, false
	}
	value = data
	for _, step := range path[1:] {
		name, isName := step.Value.(ast.String)
		object, isObject := value.(map[string]any)
		if !isName || !isObject {
			return nil, false
		}
		if value, exists = object[string(name)]; !exists {
			return nil, false
		}
	}
	return value, true
}

// matchSchema says what of a value is not as a JSON schema says. It is OPA's own, which here may fetch nothing.
func matchSchema(ctx context.Context, value, schema any) error {
	switch value.(type) {
	case map[string]any, []any:
	default: // OPA takes a text for JSON
		value, schema = map[string]any{"value": value}, map[string]any{"properties": map[string]any{"value": schema}}
	}
	all := ast.CapabilitiesForThisVersion()
	all.AllowNet = []string{}
	results, err := rego.New(
		rego.Query("json.match_schema(input.value, input.schema)"),
		rego.Capabilities(all),
		rego.StrictBuiltinErrors(true),
		rego.Input(map[string]any{"value": value, "schema": schema}),
	).Eval(ctx)
	if err != nil {
		return err
	}
	if len(results) != 1 {
		return ErrUndefined
	}
	answer := results[0].Expressions[0].Value.([]any) // as the built-in's type says
	if answer[0] == true {
		return nil
	}
	var wrong []string
	for _, found := range answer[1].([]any) {
		wrong = append(wrong, fmt.Sprint(found.(map[string]any)["error"]))
	}
	return errors.New(strings.Join(wrong[:min(len(wrong), maxWrong)], "; "))
}

// maxWrong bounds the faults of one document that are told: an author mends them one after the other.
const maxWrong = 10

// Bounds of a schema, with all that it refers to: those who read it go down into every reference.
const (
	maxSchemaDepth = 64     // levels: real ones have ten
	maxSchemaSize  = 10_000 // nodes that are visited: real ones have some hundreds
)

// checkSchema refuses a schema that refers to anything but a part of itself, which would be fetched from the host's files, and one whose
// references lead round in a circle or to ever more parts, in which OPA loses itself.
func checkSchema(schema any) error {
	visited := 0
	var visit func(node any, depth int) error
	visit = func(node any, depth int) error {
		if visited++; visited > maxSchemaSize || depth > maxSchemaDepth {
			return fmt.Errorf("with what it refers to, it has more than %d levels or %d parts, or refers to itself", maxSchemaDepth, maxSchemaSize)
		}
		switch node := node.(type) {
		case []any:
			for _, element := range node {
				if err := visit(element, depth+1); err != nil {
					return err
				}
			}
		case map[string]any:
			for _, key := range util.KeysSorted(node) {
				text, isText := node[key].(string)
				switch {
				case slices.Contains([]string{"default", "const", "enum", "examples"}, key): // values, in which nothing refers to anything
				case isText && (key == "id" || key == "$id"):
					return fmt.Errorf("it has the %s %q: a schema refers to its own parts alone, and needs no name", key, text)
				case isText && key == "$ref":
					target, err := partOf(schema, text)
					if err == nil {
						err = visit(target, depth+1)
					}
					if err != nil {
						return err
					}
				default:
					if err := visit(node[key], depth+1); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	return visit(schema, 0)
}

// unescaped reads a step of a JSON pointer (RFC 6901).
var unescaped = strings.NewReplacer("~1", "/", "~0", "~")

// partOf is the part of a schema that a reference names, as in #/definitions/name.
func partOf(schema any, ref string) (any, error) {
	way, isPart := strings.CutPrefix(ref, "#")
	if !isPart {
		return nil, fmt.Errorf("it refers to %q: a schema refers to its own parts alone, as in #/definitions/name", ref)
	}
	part := schema
	if way == "" || way == "/" {
		return part, nil
	}
	for _, step := range strings.Split(strings.TrimPrefix(way, "/"), "/") {
		var below any
		switch at := part.(type) {
		case map[string]any:
			below = at[unescaped.Replace(step)]
		case []any:
			if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(at) {
				below = at[i]
			}
		}
		if below == nil {
			return nil, fmt.Errorf("it refers to %q, which is not there", ref)
		}
		part = below
	}
	return part, nil
}
