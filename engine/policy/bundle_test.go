package policy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/format"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"

	"regent/engine/policy"
	"regent/policies"
)

// The embedded bundle, as its authors see it: tests included, with every built-in of OPA.

// opened reads the embedded bundle with its tests.
func opened(t *testing.T) (modules map[string]*ast.Module, data map[string]any) {
	t.Helper()
	loader, err := bundle.NewFSLoader(policies.Files())
	if err != nil {
		t.Fatal(err)
	}
	read, err := bundle.NewCustomReader(loader).WithProcessAnnotations(true).WithRegoVersion(ast.RegoV1).Read()
	if err != nil {
		t.Fatal(err)
	}
	return read.ParsedModules(""), read.Data
}

// strict is a compiler that checks what `opa check --strict --schema policies/schemas` does.
func strict(t *testing.T) *ast.Compiler {
	t.Helper()
	schemas := ast.NewSchemaSet()
	for name, ref := range map[string]string{
		"schemas/input/candidate.json": "schema.input.candidate",
		"schemas/input/selection.json": "schema.input.selection",
		"schemas/data/settings.json":   "schema.data.settings",
	} {
		schemas.Put(ast.MustParseRef(ref), treeOf(t, name))
	}
	return ast.NewCompiler().WithStrict(true).WithSchemas(schemas).WithUseTypeCheckAnnotations(true)
}

func treeOf(t *testing.T, name string) (tree any) {
	t.Helper()
	if err := json.Unmarshal(textOf(t, name), &tree); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return tree
}

func textOf(t *testing.T, name string) []byte {
	t.Helper()
	text, err := fs.ReadFile(policies.Files(), name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestRego(t *testing.T) {
	modules, data := opened(t)
	store := inmem.NewFromObject(data)
	txn, err := store.NewTransaction(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	coverage := cover.New()
	results, err := tester.NewRunner().
		SetCompiler(strict(t)).
		SetStore(store).
		SetModules(modules).
		SetCoverageQueryTracer(coverage).
		RaiseBuiltinErrors(true).
		RunTests(context.Background(), txn)
	if err != nil {
		t.Fatal(err)
	}
	for result := range results {
		t.Run(strings.TrimPrefix(result.Package, "data.regent.")+"/"+result.Name, func(t *testing.T) {
			if !result.Pass() {
				t.Errorf("%s: %v", result.Location, result)
			}
		})
	}
	for name, file := range coverage.Report(modules).Files {
		for _, lines := range file.NotCovered {
			t.Errorf("%s:%d: no test covers this line", name, lines.Start.Row)
		}
	}
}

func TestRegoIsFormattedAndChecked(t *testing.T) {
	modules, _ := opened(t)
	for name := range modules {
		name = strings.TrimPrefix(name, "/")
		text := textOf(t, name)
		formatted, err := format.SourceWithOpts(name, text, format.Opts{RegoVersion: ast.RegoV1})
		if err != nil || !bytes.Equal(text, formatted) {
			t.Errorf("%s is not as `opa fmt` writes it: %v", name, err)
		}
	}
	compiler := strict(t)
	if compiler.Compile(modules); compiler.Failed() {
		t.Error(compiler.Errors)
	}
}

func TestEveryRuleHasItsTest(t *testing.T) {
	folders, err := fs.ReadDir(policies.Files(), "regent/rules")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, folder := range folders {
		name := folder.Name()
		names = append(names, name)
		text := string(textOf(t, path.Join("regent/rules", name, name+"_test.rego")))
		for _, rule := range load(t, policy.Source{}).Rules() {
			if rule.Name == name && !strings.Contains(text, `"`+rule.Code+`"`) {
				t.Errorf("the test of %s does not mention %s", name, rule.Code)
			}
		}
	}
	// Loading fails for a rule that is absent, as it does for codes that are not unique.
	load(t, policy.Source{Required: names})
}

func TestRulesAreDescribed(t *testing.T) {
	rules := load(t, policy.Source{}).Rules()
	if !slices.IsSortedFunc(rules, func(a, b policy.Rule) int { return strings.Compare(a.Name+" "+a.Code, b.Name+" "+b.Code) }) {
		t.Error("rules are not in order")
	}
	for _, rule := range rules {
		if rule.Title == "" || rule.Description == "" || rule.Remedy == "" || rule.Bundle != "regent" || rule.Line == 0 {
			t.Errorf("%+v lacks something", rule)
		}
		if rule.Name != "main" && rule.File != path.Join("regent/rules", rule.Name, rule.Name+".rego") {
			t.Errorf("%s %s is in %s", rule.Name, rule.Code, rule.File)
		}
	}
}

// The schemas and the Go types say the same, field by field.
func TestSchemasAreTheTypes(t *testing.T) {
	for name, sample := range map[string]any{
		"schemas/input/candidate.json": policy.Facts{},
		"schemas/input/selection.json": ranking{},
		"schemas/data/settings.json":   policy.Settings{},
	} {
		var inSchema, inGo []string
		schemaFields(treeOf(t, name), "", &inSchema)
		typeFields(reflect.TypeOf(sample), "", &inGo)
		slices.Sort(inSchema)
		slices.Sort(inGo)
		if !slices.Equal(inSchema, inGo) {
			t.Errorf("%s has\n%s\nGo has\n%s", name, strings.Join(inSchema, "\n"), strings.Join(inGo, "\n"))
		}
	}
}

// ranking is what a selection sees.
type ranking struct {
	Now        int64              `json:"now"`
	Call       policy.Call        `json:"call"`
	Identity   policy.Identity    `json:"identity"`
	Candidates []policy.Candidate `json:"candidates"`
}

func schemaFields(schema any, at string, fields *[]string) {
	node, isObject := schema.(map[string]any)
	if !isObject {
		return
	}
	if properties, has := node["properties"].(map[string]any); has {
		for name, below := range properties {
			*fields = append(*fields, at+"/"+name)
			schemaFields(below, at+"/"+name, fields)
		}
		if node["additionalProperties"] != false {
			*fields = append(*fields, at+": allows additional properties")
		}
	}
	schemaFields(node["items"], at, fields)
	schemaFields(node["additionalProperties"], at, fields)
}

func typeFields(of reflect.Type, at string, fields *[]string) {
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		typeFields(of.Elem(), at, fields)
	case reflect.Struct:
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			*fields = append(*fields, at+"/"+name)
			typeFields(of.Field(i).Type, at+"/"+name, fields)
		}
	}
}

func jsonOf(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
