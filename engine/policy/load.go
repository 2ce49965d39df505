package policy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
)

// Source is what an activation is built from.
type Source struct {
	// Bundles in any order; their roots must not overlap. One of them defines data.regent.main.decision. Required.
	Bundles []Bundle
	// Settings replace those of the bundles, key by key at the top level.
	Settings Settings
	// Required rules, by name ("allow_list", "org/weekdays"): without them nothing is loaded. A rule that is merely absent
	// denies nothing, so name every rule that must not go missing.
	Required []string
	// TimeLimit bounds each decision. Defaults to DefaultTimeLimit.
	TimeLimit time.Duration
	// Remembered bounds the decisions that are kept for facts that are observed to be equal. Defaults to DefaultRemembered; below 0
	// none is kept, and every decision is made afresh.
	Remembered int
	// Forbidden built-ins, by name, are refused besides those that no policy may use. Optional.
	Forbidden []string

	// restored says that the source was an activation before, perhaps of another version of the program.
	restored bool
}

// DefaultTimeLimit bounds a decision: some 500 times what one takes, and still far less than a caller notices.
const DefaultTimeLimit = 50 * time.Millisecond

// entryPoint decides upon any document. judgement does so upon documents that are known to be complete, where the entry point is the one
// that is shipped, of which it is known that nothing but the completeness of the input stands between the two.
const (
	entryPoint = "data.regent.main.decision"
	judgement  = "data.regent.main.judgement"
)

// maxLoad bounds loading: some thousand times what it takes, tests included.
const maxLoad = time.Minute

// Load builds an activation aside: whatever is wrong is an error, and what is in force stays so. The error is a *LoadError
// that names file and line where there is one, or the context's.
func Load(ctx context.Context, source Source) (*Activation, error) {
	return guarded(ctx, func(ctx context.Context) (*Activation, error) {
		bundles, problems := unpackAll(source.Bundles, capabilities(source.Forbidden))
		if len(problems) > 0 {
			return nil, loadError(problems)
		}
		return load(ctx, source, bundles)
	})
}

// guarded does something with bundles that nobody has looked at yet. OPA can be interrupted between steps only, and may panic over
// what it does not foresee. What does not end in time is left behind, and is no activation whatever becomes of it.
func guarded[T any](ctx context.Context, do func(context.Context) (T, error)) (result T, err error) {
	type outcome struct {
		result T
		err    error
	}
	limited, cancel := context.WithTimeout(ctx, maxLoad)
	defer cancel() // not before the outcome is read: what has ended is not late
	ended := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if recover() != nil {
				o = outcome{err: loadError([]Problem{{Text: "OPA has failed over the bundles, which hold something that it did not foresee: look at what was changed last"}})}
			}
			ended <- o
		}()
		o.result, o.err = do(limited)
	}()
	select {
	case o := <-ended:
		return o.result, o.err
	case <-limited.Done():
	}
	if err := ctx.Err(); err != nil {
		return result, fmt.Errorf("policy: load: %w", err)
	}
	return result, loadError([]Problem{{Text: fmt.Sprintf("loading the bundles takes longer than %v: make them smaller, and nest less", maxLoad)}})
}

// load makes an activation of bundles that are parsed.
func load(ctx context.Context, source Source, bundles []*unpacked) (*Activation, error) {
	data := dataOf(bundles)
	settings, canonical, problems := overlay(data, bundles, source.Settings)
	rules, more := collectRules(bundles, source.Required)
	problems = append(append(problems, more...), oversized(bundles)...)
	if len(problems) == 0 { // data is held to schemas that were looked at
		problems = wrongData(ctx, bundles, data)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("policy: load: %w", err)
	}
	if len(problems) > 0 {
		return nil, loadError(problems)
	}
	a := &Activation{
		digest:    digestOf(canonical, bundles...),
		revisions: make(map[string]string),
		settings:  settings,
		rules:     rules,
		bundles:   bundles,
		canonical: canonical,
		timeLimit: cmp.Or(source.TimeLimit, DefaultTimeLimit),
	}
	for _, u := range bundles {
		a.revisions[u.name] = u.revision()
	}
	if err := a.prepare(ctx, source, data); err != nil {
		return nil, err
	}
	if err := a.probe(ctx, source.restored); err != nil {
		return nil, err
	}
	if err := a.test(ctx, capabilities(source.Forbidden)); err != nil {
		return nil, err
	}
	return a, nil
}

// dataOf is the data of all bundles, a copy whose objects may be changed.
func dataOf(bundles []*unpacked) map[string]any {
	data := make(map[string]any)
	for _, u := range bundles {
		merge(data, u.parsed.Data)
	}
	return data
}

func loadError(problems []Problem) error {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Bundle, b.Bundle), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return &LoadError{Problems: problems}
}

func unpackAll(sources []Bundle, reduced *ast.Capabilities) (bundles []*unpacked, problems []Problem) {
	for _, source := range sources {
		u, more := unpack(source, reduced)
		if len(more) > 0 {
			problems = append(problems, more...)
			continue
		}
		for _, other := range bundles {
			problems = append(problems, overlaps(u, other)...)
		}
		bundles = append(bundles, u)
	}
	return bundles, problems
}

func overlaps(u, other *unpacked) (problems []Problem) {
	if u.name == other.name {
		problems = append(problems, Problem{Bundle: u.name, Text: "there are two bundles of this name"})
	}
	for _, root := range u.roots() {
		for _, owned := range other.roots() {
			if bundle.RootPathsOverlap(root, owned) {
				problems = append(problems, Problem{Bundle: u.name, File: bundle.ManifestExt,
					Text: fmt.Sprintf("the root %q overlaps with %q, which bundle %s owns", root, owned, other.name)})
			}
		}
	}
	for key := range u.schemas {
		if _, exists := other.schemas[key]; exists {
			problems = append(problems, Problem{Bundle: u.name, File: "schemas/" + key + ".json",
				Text: fmt.Sprintf("bundle %s holds a schema of this name: name it otherwise", other.name)})
		}
	}
	return problems
}

// merge adds what a bundle holds to what others hold. Roots do not overlap, so that only objects meet.
func merge(into, from map[string]any) {
	for key, value := range from {
		below, isObject := value.(map[string]any)
		existing, exists := into[key].(map[string]any)
		switch {
		case isObject && exists:
			merge(existing, below)
		case isObject:
			into[key] = maps.Clone(below)
			merge(into[key].(map[string]any), below)
		default:
			into[key] = value
		}
	}
}

// prepare compiles the modules over the data, prepares the queries, and sees what can be remembered.
func (a *Activation) prepare(ctx context.Context, source Source, data map[string]any) error {
	fails := func(err error) error { return loadError([]Problem{{Text: err.Error()}}) }
	a.store = inmem.NewFromObjectWithOpts(data, inmem.OptRoundTripOnWrite(false), inmem.OptReturnASTValuesOnRead(true))
	var err error
	// Nothing is ever written to the store, so that one read transaction serves all decisions for as long as the activation lives.
	if a.txn, err = a.store.NewTransaction(ctx); err != nil {
		return fails(err)
	}
	compiler, observed, problems := compile(ctx, a.bundles, capabilities(source.Forbidden), a.store, a.txn)
	if len(problems) > 0 {
		return loadError(problems)
	}
	a.compiler = compiler
	if a.decision, err = a.prepared(ctx, entryPoint); err != nil {
		return fails(err)
	}
	a.judgementAt, a.judgement = entryPoint, a.decision
	if hasKnownMain(a.bundles) {
		a.judgementAt = judgement
		if a.judgement, err = a.prepared(ctx, judgement); err != nil {
			return fails(err)
		}
	}
	if problems := a.prepareSelection(ctx); len(problems) > 0 {
		return loadError(problems)
	}
	if size := cmp.Or(source.Remembered, DefaultRemembered); size > 0 {
		if err := a.remember(ctx, observed, size); err != nil {
			return fails(err)
		}
	}
	return nil
}

// knownMain is the digest of the modules of package regent.main as they are shipped. A test tells when they have changed: look whether
// a complete input still is all that `decision` asks for besides `judgement`, and write the new one.
const knownMain = "6319f79b12648c2dfbebc39dbd3ac7052c042a2ca86879687636ac67622892fd"

func hasKnownMain(bundles []*unpacked) bool {
	modules := make(map[string][]byte)
	for _, u := range bundles {
		for _, file := range u.parsed.Modules {
			if file.Parsed.Package.Path.String() == "data.regent.main" {
				modules[file.Path[len(u.name):]] = file.Raw
			}
		}
	}
	return digestOf(nil, &unpacked{files: modules}) == knownMain
}

// prepared is a query that answers with terms.
func (a *Activation) prepared(ctx context.Context, query string) (rego.PreparedEvalQuery, error) {
	return rego.New(
		rego.Query(query),
		rego.Compiler(a.compiler),
		rego.Store(a.store),
		rego.Transaction(a.txn),
		rego.StrictBuiltinErrors(true), // else a built-in that fails is undefined, and undefined denies nothing
		rego.GenerateJSON(func(term *ast.Term, _ *rego.EvalContext) (any, error) { return term, nil }),
	).PrepareForEval(ctx)
}

// compile checks the modules as `opa check --strict` does, by the schemas, and for what fails open, and reads off them what each rule
// observes.
func compile(ctx context.Context, bundles []*unpacked, reduced *ast.Capabilities, store storage.Store, txn storage.Transaction) (compiler *ast.Compiler, observed map[*ast.Rule]observations, problems []Problem) {
	compiler = ast.NewCompiler().
		WithStageAfterID(ast.StageResolveRefs, ast.CompilerStageDefinition{
			Name:       "Read",
			MetricName: "read",
			Stage: func(c *ast.Compiler) *ast.Error {
				problems, observed = failingOpen(c.Modules), observedBy(c.Modules)
				return nil
			},
		}).
		WithCapabilities(reduced).
		WithStrict(true).
		WithSchemas(schemasOf(bundles)).
		WithUseTypeCheckAnnotations(true).
		WithPathConflictsCheck(storage.NonEmpty(ctx, store, txn))
	if compiler.Compile(modulesOf(bundles)); compiler.Failed() {
		problems = append(problems, problemsOf(compiler.Errors, "")...)
	}
	return compiler, observed, problems
}

func schemasOf(bundles []*unpacked) *ast.SchemaSet {
	set := ast.NewSchemaSet()
	for _, u := range bundles {
		for key, schema := range u.schemas {
			set.Put(schemaRef(key), schema)
		}
	}
	return set
}

// schemaRef is the name by which annotations know a schema: schemas/input/candidate.json is schema.input.candidate.
func schemaRef(key string) ast.Ref {
	ref := ast.Ref{ast.SchemaRootDocument}
	for _, step := range strings.Split(key, "/") {
		ref = append(ref, ast.StringTerm(step))
	}
	return ref
}

// modulesOf returns all modules by their names. Packages under org inherit the schemas of data.regent, unless they name
// some themselves, so that a misspelt field is found in an organisation's rules too.
func modulesOf(bundles []*unpacked) map[string]*ast.Module {
	modules := make(map[string]*ast.Module)
	var ours []*ast.SchemaAnnotation
	var theirs []*ast.Module // of package org, with schemas for its subpackages
	hasOrg := false
	for _, u := range bundles {
		for _, file := range u.parsed.Modules {
			modules[file.Path] = file.Parsed
			schemas := subpackageSchemas(file.Parsed)
			switch path := file.Parsed.Package.Path; {
			case path.Equal(regentRef):
				ours = append(ours, schemas...)
			case path.HasPrefix(orgRef):
				hasOrg = true
				if path.Equal(orgRef) && len(schemas) > 0 {
					theirs = append(theirs, file.Parsed)
				}
			}
		}
	}
	if hasOrg && len(theirs) == 0 && len(ours) > 0 {
		modules["org"] = inheriting(ours)
	}
	for _, module := range theirs {
		completed(module, ours)
	}
	return modules
}

// completed adds to the schemas of a module's subpackages those of paths that it names none for.
func completed(module *ast.Module, ours []*ast.SchemaAnnotation) {
	for _, annotations := range module.Annotations {
		if annotations.Scope != "subpackages" || len(annotations.Schemas) == 0 {
			continue
		}
		for _, schema := range ours {
			if !slices.ContainsFunc(annotations.Schemas, func(theirs *ast.SchemaAnnotation) bool { return theirs.Path.Equal(schema.Path) }) {
				annotations.Schemas = append(annotations.Schemas, schema)
			}
		}
	}
}

var (
	regentRef = ast.MustParseRef("data.regent")
	orgRef    = ast.MustParseRef("data.org")
)

func subpackageSchemas(module *ast.Module) (schemas []*ast.SchemaAnnotation) {
	for _, annotations := range module.Annotations {
		if annotations.Scope == "subpackages" {
			schemas = append(schemas, annotations.Schemas...)
		}
	}
	return schemas
}

// inheriting is a module that says no more than: these are the schemas of everything under org.
func inheriting(schemas []*ast.SchemaAnnotation) *ast.Module {
	text := "# METADATA\n# scope: subpackages\n# schemas:\n"
	for _, schema := range schemas {
		if schema.Schema != nil {
			text += fmt.Sprintf("#   - %s: %s\n", schema.Path, schema.Schema)
		}
	}
	return ast.MustParseModuleWithOpts(text+"package org\n", ast.ParserOptions{ProcessAnnotation: true, RegoVersion: ast.RegoV1})
}
