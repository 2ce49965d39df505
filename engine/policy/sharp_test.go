package policy_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/compile"
	"github.com/open-policy-agent/opa/v1/util"

	"regent/engine/policy"
	"regent/policies"
)

// Each sharp edge of OPA that would be a hole, with what keeps from it.

const closedFile = "org/rules/closed/closed.rego"

// loads loads an organisation's bundle beside the shipped one.
func loads(files map[string]string) error {
	_, err := policy.Load(context.Background(), policy.Source{Bundles: []policy.Bundle{ours(), org(files)}, TimeLimit: time.Second})
	return err
}

// A built-in is not interrupted, so that what it works on has to be small.
func TestNothingLargeIsWorkedOn(t *testing.T) {
	large := strings.Repeat("x", 4<<10+1)
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a text in a module": {map[string]string{closedFile: ruleNamed("closed", "CLOSED", `startswith("`+large+`", input.call.model)`)},
			"bundle org: org/rules/closed/closed.rego:12: this text has 4097 bytes, more than 4096"},
		"a text in data": {map[string]string{closedFile: closed, "org/lists/data.json": `{"words": ["a", "` + large + `"]}`},
			"bundle org: the text at data.org.lists.words[1] has 4097 bytes, more than 4096"},
		"a key in data": {map[string]string{closedFile: closed, "org/data.json": `{"` + large + `": 1}`},
			"bundle org: the text at data.org has 4097 bytes"},
		"a huge regular expression": {map[string]string{closedFile: ruleNamed("closed", "CLOSED", "regex.match(`"+strings.Repeat("a{1000}", 20)+"`, input.call.model)")},
			"org/rules/closed/closed.rego:12: this regular expression has 20"},
		"one that replaces": {map[string]string{closedFile: ruleNamed("closed", "CLOSED", "regex.replace(input.call.model, `"+strings.Repeat("a{1000}", 20)+"`, \"\") == \"\"")},
			"this regular expression has 20"},
		"no regular expression": {map[string]string{closedFile: ruleNamed("closed", "CLOSED", "regex.match(`(`, input.call.model)")},
			"org/rules/closed/closed.rego:12: this is no regular expression"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, loads(test.files), test.want) })
	}
	long := map[string]string{closedFile: ruleNamed("closed", "CLOSED", `startswith("`+large[1:]+`", input.call.model)`)}
	if err := loads(long); err != nil {
		t.Errorf("a text of just the size is refused: %v", err)
	}
}

// A rule that takes too long for an ordinary call never counts, and the author is told which line it is.
func TestARuleOverAMillionEntriesIsRefused(t *testing.T) {
	entries := "[" + strings.Repeat("1,", 999_999) + "1]"
	err := func() error {
		_, err := policy.Load(context.Background(), policy.Source{TimeLimit: 50 * time.Millisecond, Bundles: []policy.Bundle{ours(), org(map[string]string{
			closedFile:      ruleNamed("closed", "CLOSED", "count([entry | some entry in data.org.entries; entry > 1]) > 5"),
			"org/data.json": `{"entries": ` + entries + `}`,
		})}})
		return err
	}()
	refused(t, err, "a decision on an ordinary call takes longer than 50ms: most of it here: bundle org: org/rules/closed/closed.rego:12: look entries up by key")
}

func TestRecursionIsRefused(t *testing.T) {
	refused(t, loads(map[string]string{closedFile: ruleNamed("closed", "CLOSED", "_a") + "\n_a if _b\n\n_b if _a\n"}), "closed.rego:14: rule data.org.rules.closed._a is recursive")
}

// Two rules that contradict each other are an error for the facts that both match, and a denial.
func TestAConflictIsNoDecision(t *testing.T) {
	activation := load(t, policy.Source{Bundles: []policy.Bundle{org(map[string]string{
		closedFile: ruleNamed("closed", "CLOSED", `_tier == "none"`) + "\n_tier := \"a\" if input.call.stream\n\n_tier := \"b\" if input.call.kind == \"generation\"\n",
	})}})
	f := facts()
	if decision, err := decide(activation, f); !errors.Is(err, policy.ErrConflict) || decision.Allow {
		t.Errorf("got %+v, %v", decision, err)
	}
	f.Call.Stream = false
	if decision, err := decide(activation, f); err != nil || !decision.Allow {
		t.Errorf("got %+v, %v", decision, err)
	}
}

// Rego has "5" > 100 true. A number that is a text is refused by its schema before a rule can read it.
func TestDataIsHeldToItsSchema(t *testing.T) {
	files := func(limit string) map[string]string {
		return map[string]string{
			"schemas/org/limits.json": `{"type": "object", "additionalProperties": false, "properties": {"tokens": {"type": "integer"}}}`,
			"org/limits/data.json":    `{"tokens": ` + limit + `}`,
			closedFile: strings.Replace(ruleNamed("closed", "CLOSED", "input.call.input_tokens > data.org.limits.tokens"), "package", `# METADATA
# schemas:
#   - input: schema.input.candidate
#   - data.org.limits: schema.org.limits
package`, 1),
		}
	}
	if err := loads(files("100")); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[string]string{
		`"100"`: "data.org.limits is not as its schema says: tokens: Invalid type. Expected: integer, given: string",
		`null`:  "data.org.limits is not as its schema says: tokens: Invalid type. Expected: integer, given: null",
		`10.5`:  "data.org.limits is not as its schema says: tokens: Invalid type. Expected: integer, given: number",
	} {
		refused(t, loads(files(limit)), want)
	}
	refused(t, loads(files(`"100"`)), "bundle org: org/limits/data.json: data.org.limits is not")
	absent := files("100")
	delete(absent, "org/limits/data.json")
	refused(t, loads(absent), "bundle org: org/rules/closed/closed.rego:1: data.org.limits is not there, and its schema is named: put it into org/limits/data.json")
	absent["org/limits.rego"] = "package org\n\nlimits := {\"tokens\": 5}\n"
	if err := loads(absent); err != nil {
		t.Errorf("limits that a rule defines: %v", err)
	}
	scalar := files("100")
	scalar["org/limits/data.json"] = `"{\"tokens\": 1}"`
	if err := loads(scalar); err == nil {
		t.Error("a text is taken for the object that it holds")
	}
	remote := files("100")
	remote["schemas/org/limits.json"] = `{"$ref": "http://127.0.0.1:1/x.json"}`
	if err := loads(remote); err == nil || strings.Contains(err.Error(), "connection refused") {
		t.Errorf("a schema is fetched: %v", err)
	}
}

// What a rule reads and is nowhere is undefined for ever: loading lets it pass, as it may be meant so, and tells authors.
func TestReferencesToNothingAreFound(t *testing.T) {
	activation := load(t, policy.Source{Bundles: []policy.Bundle{org(map[string]string{
		closedFile: ruleNamed("closed", "CLOSED", "{\n\tinput.call.model in data.org.modles\n\tinput.call.model in data.org.models.all\n\t_a\n\tdata.org.shared.b\n}") +
			"\n_a if data.org.rules.closed._other.x\n\n_other := {\"x\": true}\n",
		"org/data.json":          `{"models": {"all": []}}`,
		"org/shared/shared.rego": "package org.shared\n\nb if data.org.models.none[input.call.model]\n",
	})}})
	var got []string
	for _, problem := range activation.Unfounded() {
		if problem.Bundle == "org" {
			got = append(got, problem.String())
		}
	}
	want := []string{
		"bundle org: org/rules/closed/closed.rego:13: data.org.modles is nowhere: is it misspelt? What may be absent should be there and empty",
		"bundle org: org/shared/shared.rego:3: data.org.models.none is nowhere: is it misspelt? What may be absent should be there and empty",
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %s", strings.Join(got, "\n"))
	}
}

// Money and sizes keep every digit, from the record's text to the comparison; division by zero is an error, not undefined.
func TestNumbersAreExact(t *testing.T) {
	activation := load(t, policy.Source{Bundles: []policy.Bundle{org(map[string]string{
		closedFile: ruleNamed("closed", "CLOSED", "input.call.input_tokens == 9007199254740993") +
			"\n# METADATA\n# title: T\n# custom:\n#   code: ZERO\n#   remedy: R\n#   terminal: true\ndeny contains lib.denial(rego.metadata.rule()) if 1 / input.call.output_tokens_max > 5\n",
	})}})
	f := facts()
	f.Candidate.ContextTokens = nil
	for tokens, allowed := range map[int64]bool{9007199254740992: true, 9007199254740993: false, 9007199254740994: true} {
		f.Call.InputTokens = new(tokens)
		decision, err := decide(activation, f)
		if err != nil || decision.Allow != allowed {
			t.Errorf("%d: got %+v, %v", tokens, decision, err)
		}
		document, err := policy.ParseDocument([]byte(jsonOf(t, f)))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := activation.Decide(context.Background(), document); err != nil || again.Allow != allowed {
			t.Errorf("%d from its record: got %+v, %v", tokens, again, err)
		}
	}
	f.Call.OutputTokensMax = new(int64(0))
	if decision, err := decide(activation, f); !errors.Is(err, policy.ErrFailed) || decision.Allow {
		t.Errorf("divided by zero: got %+v, %v", decision, err)
	}
}

// A bundle that OPA has optimised is another policy than the one that was tested: it has lost the METADATA of its rules, and is refused.
func TestAnOptimisedBundleIsRefused(t *testing.T) {
	files := map[string]string{closedFile: ruleNamed("closed", "CLOSED", "input.call.model in data.org.models"), "org/data.json": `{"models": ["a"]}`,
		".manifest": manifest}
	built := &bundle.Bundle{Manifest: bundle.Manifest{Roots: &[]string{"org", "regent"}}, Data: map[string]any{"org": map[string]any{"models": []any{"a"}}}}
	lib, err := policies.Files().Open("regent/lib/lib.rego")
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if _, err := text.ReadFrom(lib); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{closedFile: files[closedFile], "regent/lib/lib.rego": text.String()} {
		built.Modules = append(built.Modules, bundle.ModuleFile{URL: name, Path: name, Raw: []byte(content), Parsed: ast.MustParseModuleWithOpts(content, ast.ParserOptions{ProcessAnnotation: true})})
	}
	compiler := compile.New().WithBundle(built).WithOptimizationLevel(1).WithEntrypoints("org/rules/closed/deny")
	if err := compiler.Build(context.Background()); err != nil {
		t.Fatal(err)
	}
	optimised := map[string]string{".manifest": manifest, "org/data.json": files["org/data.json"]}
	for _, module := range compiler.Bundle().Modules {
		if strings.HasPrefix(module.Parsed.Package.Path.String(), "data.org") {
			optimised[strings.TrimPrefix(module.Path, "/")] = string(module.Raw)
		}
	}
	if len(optimised) < 3 {
		t.Fatalf("nothing was built: %v", optimised)
	}
	refused(t, loads(optimised), "bundle org: ")
	if err := loads(files); err != nil {
		t.Errorf("as it was written it is refused: %v", err)
	}
}

// What one engine forbids is another's own matter: nothing of it is the process's.
func TestTwoEnginesOfDifferentCapabilities(t *testing.T) {
	bundles := []policy.Bundle{ours(), org(map[string]string{closedFile: ruleNamed("closed", "CLOSED", `regex.match("^x", input.call.model)`)})}
	for range 2 {
		_, err := policy.Load(context.Background(), policy.Source{Bundles: bundles, Forbidden: []string{"regex.match"}, TimeLimit: time.Minute})
		refused(t, err, "closed.rego:12: regex.match may not be used in policy")
		if _, err := policy.Load(context.Background(), policy.Source{Bundles: bundles, TimeLimit: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
}

// A test of a bundle that comes from elsewhere does not reach out either, may print, and is told where it fails.
func TestABundlesOwnTestsCount(t *testing.T) {
	t.Parallel() // it waits for a test that does not end
	files := map[string]string{closedFile: ruleNamed("closed", "CLOSED", `input.call.kind == "tool"`)}
	withTest := func(body string) error {
		all := maps.Clone(files)
		all["org/rules/closed/closed_test.rego"] = `package org.rules.closed_test

import data.org.rules.closed
import data.regent.fixture_test as fixture

test_closed if {
	print("seen")
	` + body + `
}
`
		return loads(all)
	}
	if err := withTest(`count(closed.deny) == 1 with input as fixture.with_field("/call/kind", "tool")`); err != nil {
		t.Errorf("a test that passes: %v", err)
	}
	refused(t, withTest(`count(closed.deny) == 1 with input as fixture.with_field("/call/kind", "generation")`),
		"bundle org: org/rules/closed/closed_test.rego:6: the test data.org.rules.closed_test.test_closed fails: line 8 is not true: count(closed.deny) == 1")
	refused(t, withTest(`http.send({"url": "http://127.0.0.1", "method": "get"}).status_code == 200`), "http.send may not be used in policy")
	refused(t, withTest(`count(numbers.range(1, 1000000000)) > 0`), "takes longer than")
	outside := maps.Clone(files)
	outside["other/other_test.rego"] = "package other_test\n\ntest_x if 1 > 0\n"
	refused(t, loads(outside), "bundle org: other/other_test.rego:1: the package data.other_test lies outside of the roots of the bundle")
	var problems *policy.LoadError
	if err := withTest("1 > 2"); !errors.As(err, &problems) || !problems.Tests {
		t.Errorf("got %v, want tests that fail", err)
	}
}

// signedBy is a bundle with its signature by a key that it returns the public part of.
func signedBy(t *testing.T, files map[string]string, scope string) (map[string]string, policy.Key) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	privateBytes, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	publicBytes, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	hasher, err := bundle.NewSignatureHasher(bundle.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	signed := maps.Clone(files)
	var infos []bundle.FileInfo
	for _, name := range util.KeysSorted(files) {
		var content any = []byte(files[name])
		if bundle.IsStructuredDoc(name) {
			if err := util.Unmarshal([]byte(files[name]), &content); err != nil {
				t.Fatal(err)
			}
		}
		hash, err := hasher.HashFile(content)
		if err != nil {
			t.Fatal(err)
		}
		infos = append(infos, bundle.NewFile(name, hex.EncodeToString(hash), "SHA-256"))
	}
	claims := t.TempDir() + "/claims.json"
	writeFile(t, claims, fmt.Sprintf(`{"scope": %q, "keyid": "release"}`, scope))
	config := bundle.NewSigningConfig(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: privateBytes})), "ES256", claims)
	token, err := bundle.GenerateSignedToken(infos, config, "release")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"signatures": []string{token}})
	if err != nil {
		t.Fatal(err)
	}
	signed[".signatures.json"] = string(text)
	return signed, policy.Key{Algorithm: "ES256", Key: string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicBytes}))}
}

func TestABundleIsWhatWasSigned(t *testing.T) {
	files := map[string]string{".manifest": manifest, closedFile: closed, "org/data.json": `{"a": 1, "b": 2}`, "README.md": "Ours."}
	signed, key := signedBy(t, files, "write")
	_, other := signedBy(t, files, "write")
	signing := policy.Signing{Keys: map[string]policy.Key{"release": key, "other": other}, KeyID: "release", Scope: "write"}
	with := func(files map[string]string, signing policy.Signing) error {
		tree := fstest.MapFS{}
		for name, content := range files {
			tree[name] = &fstest.MapFile{Data: []byte(content)}
		}
		_, err := policy.Load(context.Background(), policy.Source{
			Bundles: []policy.Bundle{ours(), {Name: "org", FS: tree, Signing: &signing}}, TimeLimit: time.Minute,
		})
		return err
	}
	changed := func(change func(map[string]string)) map[string]string {
		files := maps.Clone(signed)
		change(files)
		return files
	}
	if err := with(signed, signing); err != nil {
		t.Fatal(err)
	}
	reordered := changed(func(f map[string]string) { f["org/data.json"] = `{"b": 2,    "a": 1}` })
	if err := with(reordered, signing); err != nil {
		t.Errorf("the same data, written otherwise: %v", err)
	}
	byToken, unscoped := signing, signing
	byToken.KeyID, unscoped.Scope = "", ""
	if err := with(signed, byToken); err != nil {
		t.Errorf("by the key that the signature names: %v", err)
	}
	confused, foreign, unknown, empty := signing, signing, signing, signing
	confused.Keys = map[string]policy.Key{"release": {Algorithm: "HS256", Key: key.Key}} // the public key as a shared secret
	privately, otherwise, noPEM := signing, signing, signing
	privately.Keys = map[string]policy.Key{"release": {Algorithm: "ES256", Key: strings.ReplaceAll(key.Key, "PUBLIC", "PRIVATE")}}
	otherwise.Keys = map[string]policy.Key{"release": {Algorithm: "RS256", Key: key.Key}}
	noPEM.Keys = map[string]policy.Key{"release": {Algorithm: "ES256", Key: "secret"}}
	foreign.KeyID, unknown.KeyID, empty.Keys = "other", "nobody", nil
	for name, test := range map[string]struct {
		files   map[string]string
		signing policy.Signing
		want    string
	}{
		"unsigned":               {files, signing, ".signatures.json: it is missing: the bundle has to be signed"},
		"another byte":           {changed(func(f map[string]string) { f[closedFile] += "\n" }), signing, "org/rules/closed/closed.rego: digest mismatch"},
		"other data":             {changed(func(f map[string]string) { f["org/data.json"] = `{"a": 1, "b": 3}` }), signing, "org/data.json: digest mismatch"},
		"one file more":          {changed(func(f map[string]string) { f["org/more.rego"] = "package org\n" }), signing, "file org/more.rego not included in bundle signature"},
		"one file less":          {changed(func(f map[string]string) { delete(f, "org/data.json") }), signing, "signed, but not there: org/data.json"},
		"no signature within":    {changed(func(f map[string]string) { f[".signatures.json"] = `{"signatures": []}` }), signing, "missing JWT"},
		"garbage":                {changed(func(f map[string]string) { f[".signatures.json"] = `{"signatures": ["x"]}` }), signing, "the signature is not good"},
		"a plugin of its own":    {changed(func(f map[string]string) { f[".signatures.json"] = `{"signatures": ["x.y.z"], "plugin": "none"}` }), signing, "the signature is not good"},
		"another key":            {signed, foreign, "the signature is not good"},
		"an unknown key":         {signed, unknown, "the key nobody is not among the trusted ones"},
		"no key":                 {signed, empty, "no key is trusted"},
		"another algorithm":      {signed, confused, "the signature is not good"},
		"a scope that is wanted": {func() map[string]string { s, _ := signedBy(t, files, "read"); return s }(), signing, "the signature is not good"},
		"a scope that is not":    {signed, unscoped, `it was made for another scope than ""`},
		"a private key":          {signed, privately, `the key "release": it is a private key: a gateway verifies, and gets the public key alone`},
		"a key of another kind":  {signed, otherwise, `the key "release": it is a *ecdsa.PublicKey, which does not fit the algorithm RS256`},
		"a key that is no PEM":   {signed, noPEM, `the key "release": it is no PEM`},
	} {
		t.Run(name, func(t *testing.T) { refused(t, with(test.files, test.signing), test.want) })
	}
}
