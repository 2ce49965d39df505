package policy_test

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"regent/engine/policy"
	"regent/policies"
)

const manifest = `{"roots": ["org"], "rego_version": 1}`

// closed is an organisation's rule that denies everything.
const closed = `package org.rules.closed

import data.regent.lib

# METADATA
# title: Closed
# description: Nobody may call.
# custom:
#   code: CLOSED
#   remedy: Come back later.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if input.now > 0
`

// org is a bundle of an organisation, as files by path. A manifest is there unless the files hold one.
func org(files map[string]string) policy.Bundle {
	tree := fstest.MapFS{".manifest": {Data: []byte(manifest)}}
	for name, content := range files {
		tree[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return policy.Bundle{Name: "org", FS: tree}
}

// ruleNamed returns the rule above under another folder and code, with a body and with lines before its METADATA.
func ruleNamed(name, code, body string) string {
	text := strings.ReplaceAll(closed, "org.rules.closed", "org.rules."+name)
	text = strings.ReplaceAll(text, "CLOSED", code)
	return strings.ReplaceAll(text, "input.now > 0", body)
}

// copied returns the embedded bundle as a tree that a test may change.
func copied(t testing.TB) fstest.MapFS {
	t.Helper()
	tree := fstest.MapFS{}
	err := fs.WalkDir(policies.Files(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(policies.Files(), name)
		tree[name] = &fstest.MapFile{Data: content}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestLoadRefusesAnOrganisationsBundle(t *testing.T) {
	const file = "org/rules/closed/closed.rego"
	for _, test := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"syntax", map[string]string{file: "package org.rules.closed\n\ndeny contains if {\n"},
			"bundle org: org/rules/closed/closed.rego:3: "},
		{"unknown function", map[string]string{file: ruleNamed("closed", "CLOSED", "nowhere(input.now)")},
			"bundle org: org/rules/closed/closed.rego:12: undefined function nowhere"},
		{"misspelt field", map[string]string{file: ruleNamed("closed", "CLOSED", `input.call.modle == "x"`)},
			"bundle org: org/rules/closed/closed.rego:12: undefined ref: input.call.modle"},
		{"misspelt setting", map[string]string{file: ruleNamed("closed", "CLOSED", `data.regent.settings.strickt == true`)},
			"bundle org: org/rules/closed/closed.rego:12: undefined ref: data.regent.settings.strickt"},
		{"unused variable", map[string]string{file: ruleNamed("closed", "CLOSED", "unused := input.now")},
			"bundle org: org/rules/closed/closed.rego:12: assigned var unused unused"},
		{"clock", map[string]string{file: ruleNamed("closed", "CLOSED", "time.now_ns() > input.now")},
			"bundle org: org/rules/closed/closed.rego:12: time.now_ns may not be used in policy"},
		{"network", map[string]string{file: ruleNamed("closed", "CLOSED", `http.send({"url": "http://127.0.0.1"}).status == 200`)},
			"closed.rego:12: http.send may not be used in policy"},
		{"process", map[string]string{file: ruleNamed("closed", "CLOSED", "opa.runtime().env.HOME")},
			"closed.rego:12: opa.runtime may not be used in policy"},
		{"chance", map[string]string{file: ruleNamed("closed", "CLOSED", `rand.intn("x", 2) == 1`)},
			"closed.rego:12: rand.intn may not be used in policy"},
		{"trace", map[string]string{file: ruleNamed("closed", "CLOSED", `trace("x")`)},
			"closed.rego:12: trace may not be used in policy"},
		{"expansion", map[string]string{file: ruleNamed("closed", "CLOSED", `count(net.cidr_expand("10.0.0.0/8")) > 1`)},
			"closed.rego:12: net.cidr_expand may not be used in policy"},
		{"print", map[string]string{file: ruleNamed("closed", "CLOSED", `print("x")`)},
			"closed.rego:12: print may not be used in policy"},
		{"local time", map[string]string{file: ruleNamed("closed", "CLOSED", `time.weekday([input.now, "Local"]) == "Sunday"`)},
			`closed.rego:12: the time zone "Local" is another one on every machine`},
		{"negated call", map[string]string{file: ruleNamed("closed", "CLOSED", `not input.call.model in data.org.models`)},
			"closed.rego:12: this negation is undefined, and denies nothing"},
		{"negated nested reference", map[string]string{file: ruleNamed("closed", "CLOSED", `not data.org.models[input.attempts[0].source]`)},
			"closed.rego:12: this negation is undefined, and denies nothing"},
		{"negated rule's argument", map[string]string{file: ruleNamed("closed", "CLOSED", `not is_string(_zone)`) + "\n_zone := data.org.zone\n"},
			"closed.rego:12: this negation is undefined, and denies nothing"},
		{"negated call of a rule's call", map[string]string{file: ruleNamed("closed", "CLOSED", `not startswith(_first(input.call.model), "a")`) + "\n_first(x) := x if x != \"b\"\n"},
			"closed.rego:12: this negation is undefined, and denies nothing"},
		{"negated under a with", map[string]string{file: ruleNamed("closed", "CLOSED", `not _listed with input.call.model as data.org.alias`) + "\n_listed if input.call.model == \"a\"\n"},
			"closed.rego:12: this negation is undefined, and denies nothing"},
		{"negated part of what is made", map[string]string{file: ruleNamed("closed", "CLOSED", `not [data.org.models][0]`)},
			"closed.rego:12: this negation is undefined, and denies nothing"},
		{"its comparison", map[string]string{file: ruleNamed("closed", "CLOSED", `not {"a": data.org.models}.a == "x"`)},
			"closed.rego:12: this negation is undefined, and denies nothing"},
		{"negated part of a call", map[string]string{file: ruleNamed("closed", "CLOSED", `not split(data.org.models, "/")[0] == "a"`)},
			"closed.rego:12: this negation is undefined, and denies nothing"},
		{"negated in a comprehension", map[string]string{file: ruleNamed("closed", "CLOSED", `count([1 | not input.call.model in data.org.models]) == 1`)},
			"closed.rego:12: this negation is undefined, and denies nothing"},
		{"negated in an every", map[string]string{file: ruleNamed("closed", "CLOSED", "every k in [1] {\n\tk == 1\n\tnot input.call.model in data.org.models\n}")},
			"closed.rego:14: this negation is undefined, and denies nothing"},
		{"negated where a rule asks", map[string]string{file: ruleNamed("closed", "CLOSED", `_unlisted`) + "\n_unlisted if not input.call.model in data.org.models\n"},
			"closed.rego:14: this negation is undefined, and denies nothing"},
		{"built-in that is replaced", map[string]string{file: ruleNamed("closed", "CLOSED", `_odd with is_number as _is_odd`) + "\n_odd if is_number(input.call.input_tokens)\n\n_is_odd(x) if x == 601\n"},
			"closed.rego:12: is_number may not be replaced in policy, in tests alone"},
		{"denial of another name", map[string]string{file: closed + strings.ReplaceAll(strings.ReplaceAll(closed[strings.Index(closed, "# METADATA"):], "deny contains", "denies contains"), "CLOSED", "OTHER")},
			"nobody asks for the denials of data.org.rules.closed.denies"},
		{"rule beside the rules", map[string]string{"org/rule/closed.rego": strings.Replace(closed, "org.rules", "org.rule", 1)},
			"org/rule/closed.rego:12: nobody asks"},
		{"rules in capitals", map[string]string{"org/closed.rego": strings.Replace(closed, "org.rules", "org.Rules", 1)},
			"org/closed.rego:12: nobody asks"},
		{"denial by hand", map[string]string{file: strings.ReplaceAll(closed, "lib.denial(rego.metadata.rule())", `object.union(lib.denial(rego.metadata.rule()), {"model": data.org.model})`)},
			"closed.rego:12: a denial is made from its METADATA"},
		{"denial that is text", map[string]string{file: strings.NewReplacer("lib.denial(rego.metadata.rule())", `"closed"`, "import data.regent.lib\n\n", "").Replace(closed)},
			"closed.rego:10: a denial is made from its METADATA"},
		{"misspelt deny", map[string]string{file: strings.ReplaceAll(closed, "deny", "denny")},
			"bundle org: org/rules/closed/closed.rego:1: the rule org/closed never denies: its package defines no `deny`"},
		{"deny is no set", map[string]string{file: "package org.rules.closed\n\ndeny := true\n"},
			"closed.rego:3: `deny` of org/closed is not a set"},
		{"deny is a map", map[string]string{file: "package org.rules.closed\n\ndeny[\"x\"] := true\n"},
			"closed.rego:3: `deny` of org/closed is not a set"},
		{"deny is deeper", map[string]string{file: "package org.rules.closed\n\ndeny.often contains \"x\"\n"},
			"closed.rego:3: `deny` of org/closed is not a set"},
		{"no METADATA", map[string]string{file: "package org.rules.closed\n\ndeny contains \"x\" if input.now > 0\n"},
			"closed.rego:3: the METADATA of this `deny` lacks title, custom.code as a text in capitals, custom.remedy, custom.terminal"},
		{"no title", map[string]string{file: strings.ReplaceAll(closed, "# title: Closed\n", "")}, "lacks title"},
		{"no code", map[string]string{file: strings.ReplaceAll(closed, "#   code: CLOSED\n", "")}, "lacks custom.code"},
		{"code in lower case", map[string]string{file: strings.ReplaceAll(closed, "CLOSED", "closed")}, "lacks custom.code"},
		{"no remedy", map[string]string{file: strings.ReplaceAll(closed, "#   remedy: Come back later.\n", "")}, "lacks custom.remedy"},
		{"no terminal", map[string]string{file: strings.ReplaceAll(closed, "#   terminal: true\n", "")}, "lacks custom.terminal"},
		{"terminal is text", map[string]string{file: strings.ReplaceAll(closed, "terminal: true", `terminal: "true"`)}, "lacks custom.terminal"},
		{"code of another rule", map[string]string{file: closed, "org/rules/again/again.rego": ruleNamed("again", "CLOSED", "input.now > 1")},
			"bundle org: org/rules/closed/closed.rego:12: the code CLOSED is that of the `deny` at org/rules/again/again.rego:12 of bundle org already"},
		{"code of a rule of ours", map[string]string{file: strings.ReplaceAll(closed, "CLOSED", "SOURCE_STALE")},
			"closed.rego:12: the code SOURCE_STALE is that of"},
		{"code of the entry point", map[string]string{file: strings.ReplaceAll(closed, "CLOSED", "INCOMPLETE_INPUT")},
			"with the code INCOMPLETE_INPUT, not as main with a code of its own"},
		{"deeper package", map[string]string{"org/rules/a/b/b.rego": ruleNamed("a.b", "CLOSED", "input.now > 0")},
			"org/rules/a/b/b.rego:1: package data.org.rules.a.b is deeper than a rule's folder"},
		{"outside of a package", map[string]string{"org/org.rego": "package org\n\nrules.closed.deny contains \"x\" if input.now > 0\n"},
			"org/org.rego:3: data.org.rules.closed.deny is outside of the package of its rule"},
		{"deny that nobody asks", map[string]string{"org/closed.rego": strings.Replace(closed, "package org.rules.closed", "package org.closed", 1)},
			"org/closed.rego:12: nobody asks the `deny` of package data.org.closed: rules are the packages directly under org.rules"},
		{"unknown zone", map[string]string{file: ruleNamed("closed", "CLOSED", `time.weekday([input.now, "Mars"]) == "Sunday"`)},
			`closed.rego:12: there is no time zone "Mars"`},
		{"code that is a number", map[string]string{file: strings.ReplaceAll(closed, "code: CLOSED", "code: 404")}, "lacks custom.code as a text in capitals"},
		{"package of all rules", map[string]string{"org/org.rego": "package org.rules\n\nclosed.deny contains \"x\" if input.now > 0\n"},
			"org/org.rego:3: data.org.rules.closed.deny is outside of the package of its rule"},
		{"empty manifest", map[string]string{".manifest": "", file: closed}, "bundle org: .manifest: unexpected end"},
		{"no roots", map[string]string{".manifest": `{"rego_version": 1}`, file: closed}, "bundle org: .manifest: it names no roots"},
		{"root of everything", map[string]string{".manifest": `{"roots": [""]}`, file: closed}, "bundle org: .manifest: it names no roots"},
		{"overlapping roots", map[string]string{".manifest": `{"roots": ["org", "regent/lib"]}`, file: closed},
			`.manifest: the root "regent/lib" overlaps with "regent", which bundle regent owns`},
		{"old Rego", map[string]string{".manifest": `{"roots": ["org"], "rego_version": 0}`, file: closed}, "policy is written in Rego v1"},
		{"module outside of the roots", map[string]string{file: closed, "other/other.rego": "package other\n\nx := 1\n"},
			"manifest roots [org] do not permit 'package other'"},
		{"data outside of the roots", map[string]string{file: closed, "other/data.json": `{"x": 1}`}, "manifest roots [org] do not permit data"},
		{"data that is none", map[string]string{file: closed, "org/data.json": `{`}, "bundle org: org/data.json: it is neither JSON nor YAML"},
		{"data in place of a rule", map[string]string{file: closed, "org/rules/closed/data.json": `{"deny": []}`}, "conflict"},
		{"schema of the same name", map[string]string{file: closed, "schemas/input/candidate.json": `{}`},
			"bundle org: schemas/input/candidate.json: bundle regent holds a schema of this name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := maps.Clone(test.files)
			_, err := policy.Load(context.Background(), policy.Source{Bundles: []policy.Bundle{
				ours(), org(files)}})
			refused(t, err, test.want)
		})
	}
}

func refused(t *testing.T, err error, want string) {
	t.Helper()
	var problem *policy.LoadError
	if !errors.As(err, &problem) || len(problem.Problems) == 0 {
		t.Fatalf("got %v, want a LoadError", err)
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("got %v\nwant it to contain %s", err, want)
	}
}

func TestLoadRefusesASource(t *testing.T) {
	change := func(name, old, new string) func(*testing.T) policy.Source {
		return func(t *testing.T) policy.Source {
			tree := copied(t)
			changed := strings.ReplaceAll(string(tree[name].Data), old, new)
			if changed == string(tree[name].Data) {
				t.Fatalf("%s holds no %q", name, old)
			}
			tree[name] = &fstest.MapFile{Data: []byte(changed)}
			return policy.Source{Bundles: []policy.Bundle{{Name: "regent", FS: tree, Tested: true}}}
		}
	}
	for _, test := range []struct {
		name   string
		source func(*testing.T) policy.Source
		want   string
	}{
		{"no bundle", func(*testing.T) policy.Source { return policy.Source{} }, "data.regent.main.decision is not defined"},
		{"no entry point", func(*testing.T) policy.Source {
			return policy.Source{Bundles: []policy.Bundle{org(map[string]string{"org/x.rego": "package org\n\nx := 1\n"})}}
		}, "data.regent.main.decision is not defined"},
		{"no name", func(*testing.T) policy.Source { return policy.Source{Bundles: []policy.Bundle{{FS: ours().FS}}} }, `the name "" is not`},
		{"no files", func(*testing.T) policy.Source { return policy.Source{Bundles: []policy.Bundle{{Name: "regent"}}} }, "FS is nil"},
		{"the same twice", func(*testing.T) policy.Source { return policy.Source{Bundles: []policy.Bundle{ours(), ours()}} },
			"bundle regent: there are two bundles of this name"},
		{"required rule", func(*testing.T) policy.Source {
			return policy.Source{Bundles: []policy.Bundle{ours()}, Required: []string{"allow_list", "org/weekdays"}}
		}, "the required rule org/weekdays is absent"},
		{"allows an empty input", change("regent/main/main.rego", `default decision := {`,
			`decision := {"allow": true, "denials": [], "honour_routing": false} if not input.now

default _unasked := {`), "data.regent.main.decision allows an empty input"},
		{"settings that are null", change("regent/settings/data.json", `"strict": true`, `"strict": null`),
			"bundle regent: regent/settings/data.json: data.regent.settings: strict is null"},
		{"misspelt settings", change("regent/settings/data.json", `"strict": true`, `"strickt": true`), `unknown field "strickt"`},
		{"misspelt settings below", change("regent/settings/data.json", `"on": [`, `"onn": [`), `unknown field "onn"`},
		{"settings of a wrong type", change("regent/settings/data.json", `"strict": true`, `"strict": "true"`), "strict"},
		{"unknown settlement", change("regent/settings/data.json", `"interrupted": "estimate"`, `"interrupted": "guess"`),
			`settlement.interrupted is "guess"`},
		{"unknown settlement without output", change("regent/settings/data.json", `"release"`, `"guess"`),
			`settlement.accepted_without_output is "guess"`},
		{"negative drain", change("regent/settings/data.json", `10000`, `-1`), `settlement.drain_millis is -1`},
		{"host's settings", func(*testing.T) policy.Source {
			return policy.Source{Bundles: []policy.Bundle{ours()}, Settings: policy.Settings{OpenRouterRouting: "honor"}}
		}, `the host's settings: openrouter_routing is "honor"`},
		{"no manifest", func(*testing.T) policy.Source {
			return policy.Source{Bundles: []policy.Bundle{{Name: "org", FS: fstest.MapFS{"org/x.rego": {Data: []byte("package org\n")}}}}}
		}, "bundle org: .manifest: it is missing"},
		{"too large", func(*testing.T) policy.Source {
			return policy.Source{Bundles: []policy.Bundle{org(map[string]string{"org/data.json": strings.Repeat(" ", 32<<20)})}}
		}, "bundle org: it holds more than 33554432 bytes"},
		{"too deep", func(*testing.T) policy.Source {
			return policy.Source{Bundles: []policy.Bundle{org(map[string]string{strings.Repeat("a/", policy.MaxBundleDepth+1) + "data.json": "{}"})}}
		}, "a/data.json lies below more than 32 folders"},
		{"misspelt field of ours", change("regent/rules/residency/residency.rego", "input.call.residency", "input.call.region"),
			"bundle regent: regent/rules/residency/residency.rego:19: undefined ref: input.call.region"},
		{"schema that is none", change("schemas/input/candidate.json", `"$schema"`, `{$schema`), "schemas/input/candidate.json: it is neither JSON nor YAML"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := policy.Load(context.Background(), test.source(t))
			refused(t, err, test.want)
		})
	}
}

// What a denial may negate, since it cannot be undefined.
func TestLoadTakesSafeNegations(t *testing.T) {
	for _, body := range []string{
		`not input.candidate.stale`,
		`not startswith(lower(input.call.model), "a")`,
		`not concat("/", [input.candidate.provider, input.candidate.model]) in {"a/b"}`,
		`not count([1 | some group in input.identity.groups; group == "a"]) > 0`,
		`not input.candidate.stale == false`,
		`not input.call.model in {"a", input.candidate.model}`,
		`not input.call.input_tokens <= input.candidate.context_tokens`,
		`not data.org.open`,
		`not data.org.state == "open"`,
		`not data.org.state == data.regent.settings.strict`,
		`not _is_listed`,
		"{\n\tmodels := data.org.models\n\tnot input.call.model in models\n}",
	} {
		rule := ruleNamed("closed", "CLOSED", body) + "\n_is_listed if input.call.model in data.org.models\n"
		load(t, policy.Source{Bundles: []policy.Bundle{org(map[string]string{"org/rules/closed/closed.rego": rule})}})
	}
}

func TestLoadNamesEveryProblem(t *testing.T) {
	_, err := policy.Load(context.Background(), policy.Source{Bundles: []policy.Bundle{
		ours(),
		org(map[string]string{
			"org/rules/b/b.rego": ruleNamed("b", "B2", "nowhere(input.now)"),
			"org/rules/a/a.rego": ruleNamed("a", "A1", "not input.call.model in data.org.models"),
		}),
	}})
	var problems *policy.LoadError
	if !errors.As(err, &problems) || len(problems.Problems) != 2 {
		t.Fatalf("got %v, want two problems", err)
	}
	for i, want := range []policy.Problem{
		{Bundle: "org", File: "org/rules/a/a.rego", Line: 12},
		{Bundle: "org", File: "org/rules/b/b.rego", Line: 12},
	} {
		got := problems.Problems[i]
		if got.Bundle != want.Bundle || got.File != want.File || got.Line != want.Line {
			t.Errorf("problem %d is at %s %s:%d, want %s %s:%d", i, got.Bundle, got.File, got.Line, want.Bundle, want.File, want.Line)
		}
	}
}

func TestLoadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := policy.Load(ctx, policy.Source{Bundles: []policy.Bundle{ours()}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

// A new folder is a new rule: nothing else is edited, neither beside our rules nor in an organisation's bundle.
func TestANewFolderIsANewRule(t *testing.T) {
	tree := copied(t)
	tree["regent/rules/closed/closed.rego"] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(closed, "org.rules", "regent.rules"))}
	for name, source := range map[string]policy.Source{
		"closed":     {Bundles: []policy.Bundle{{Name: "regent", FS: tree, Tested: true}}, Required: []string{"closed"}},
		"org/closed": {Bundles: []policy.Bundle{ours(), org(map[string]string{"org/rules/closed/closed.rego": closed})}, Required: []string{"org/closed"}},
	} {
		activation, err := policy.Load(context.Background(), source)
		if err != nil {
			t.Fatal(err)
		}
		want := policy.Denial{Rule: name, Code: "CLOSED", Title: "Closed", Remedy: "Come back later.", Terminal: true}
		got, err := decide(activation, facts())
		if err != nil || got.Allow || len(got.Denials) != 1 || got.Denials[0] != want {
			t.Errorf("got %+v, %v, want the denial %+v", got, err, want)
		}
	}
}

func TestTestsAreNoPartOfAnActivation(t *testing.T) {
	files := map[string]string{"org/rules/closed/closed.rego": closed}
	before := load(t, policy.Source{Bundles: []policy.Bundle{org(files)}})
	files["org/rules/closed/closed_test.rego"] = "package org.rules.closed_test\n\ntest_x if 1 > 0\n"
	files["org/README.md"] = "Ours."
	after := load(t, policy.Source{Bundles: []policy.Bundle{org(files)}})
	if before.Digest() != after.Digest() {
		t.Errorf("a test changed the digest from %s to %s", before.Digest(), after.Digest())
	}
}

func TestDigestIsOfNamesContentsAndSettings(t *testing.T) {
	files := map[string]string{"org/rules/closed/closed.rego": closed}
	base := load(t, policy.Source{Bundles: []policy.Bundle{org(files)}})
	if again := load(t, policy.Source{Bundles: []policy.Bundle{org(files)}}); again.Digest() != base.Digest() {
		t.Errorf("the same source has the digests %s and %s", base.Digest(), again.Digest())
	}
	reversed, err := policy.Load(context.Background(), policy.Source{Bundles: []policy.Bundle{org(files), ours()}})
	if err != nil || reversed.Digest() != base.Digest() {
		t.Errorf("the order of bundles changed the digest, %v", err)
	}
	strict := true // what the bundle says already
	same := load(t, policy.Source{Bundles: []policy.Bundle{org(files)}, Settings: policy.Settings{Strict: &strict}})
	if same.Digest() != base.Digest() {
		t.Error("settings that change nothing changed the digest")
	}
	renamed := org(files)
	renamed.Name = "acme"
	lenient := false
	for name, source := range map[string]policy.Source{
		"name":     {Bundles: []policy.Bundle{renamed}},
		"content":  {Bundles: []policy.Bundle{org(map[string]string{"org/rules/closed/closed.rego": closed + "\n# changed\n"})}},
		"path":     {Bundles: []policy.Bundle{org(map[string]string{"org/rules/closed/other.rego": closed})}},
		"data":     {Bundles: []policy.Bundle{org(map[string]string{"org/rules/closed/closed.rego": closed, "org/data.json": `{"x": 1}`})}},
		"settings": {Bundles: []policy.Bundle{org(files)}, Settings: policy.Settings{Strict: &lenient}},
	} {
		if load(t, source).Digest() == base.Digest() {
			t.Errorf("another %s has the same digest", name)
		}
	}
}

func TestBundlesHaveARevision(t *testing.T) {
	files := map[string]string{"org/rules/closed/closed.rego": closed, ".manifest": `{"roots": ["org"], "revision": "2024-05"}`}
	revisions := load(t, policy.Source{Bundles: []policy.Bundle{org(files)}}).Bundles()
	if revisions["org"] != "2024-05" || len(revisions["regent"]) != 64 || len(revisions) != 2 {
		t.Errorf("got %v", revisions)
	}
}

func TestSettingsOverlayTheBundles(t *testing.T) {
	defaults := load(t, policy.Source{}).Settings()
	if defaults.Strict == nil || !*defaults.Strict || defaults.OpenRouterRouting != "strip" || len(defaults.Fallback.On) != 8 ||
		defaults.Settlement.DrainMillis != 10_000 || defaults.AllowList != nil || defaults.AllowedResidencies != nil || defaults.Access != nil {
		t.Errorf("the defaults are %+v", defaults)
	}
	var none []string // empty, not absent
	overlaid := load(t, policy.Source{Settings: policy.Settings{
		AllowedResidencies: &none,
		AllowList:          &policy.AllowList{Models: &none},
		Fallback:           &policy.Fallback{},
		Access:             &policy.Access{Models: map[string]policy.ModelAccess{"m": {}}},
	}})
	got := overlaid.Settings()
	if got.AllowedResidencies == nil || got.AllowList.Models == nil || got.AllowList.Providers != nil || len(got.Fallback.On) != 0 ||
		got.Settlement == nil {
		t.Errorf("the settings in force are %+v", got)
	}
	decision, err := decide(overlaid, facts())
	if err != nil || codesOf(decision) != "INFERENCE_NOT_GRANTED MODEL_NOT_GRANTED MODEL_NOT_ALLOWED RESIDENCY_NOT_ALLOWED" {
		t.Errorf("got %s, %v", codesOf(decision), err)
	}
}

func TestEngineSwapsActivations(t *testing.T) {
	var engine policy.Engine
	if engine.Current() != nil {
		t.Error("an engine begins with an activation")
	}
	first, second := load(t, policy.Source{}), load(t, policy.Source{})
	if replaced := engine.Activate(first); replaced != nil || engine.Current() != first {
		t.Error("the first activation is not in force")
	}
	if replaced := engine.Activate(second); replaced != first || engine.Current() != second {
		t.Error("the second activation did not replace the first")
	}
}

func decide(activation *policy.Activation, f policy.Facts) (policy.Decision, error) {
	judge := activation.Judge(time.UnixMicro(f.Now/1000), f.Call, f.Identity)
	return judge.Decide(context.Background(), f.Candidate, f.Attempts)
}

func codesOf(decision policy.Decision) string {
	var codes []string
	for _, denial := range decision.Denials {
		codes = append(codes, denial.Code)
	}
	return strings.Join(codes, " ")
}

// An empty list of providers is a list: entries of the allow-list's models then mean names of models alone.
func TestModelsAreAllowedAloneWithoutProviders(t *testing.T) {
	for _, providers := range [][]string{nil, {}} {
		activation := load(t, policy.Source{Settings: policy.Settings{
			Providers: providers, AllowList: &policy.AllowList{Models: &[]string{"gpt-large"}},
		}})
		allowed := facts()
		allowed.Candidate.Model = "gpt-large"
		if decision, err := decide(activation, allowed); err != nil || !decision.Allow {
			t.Errorf("providers %v: %+v, %v", providers, decision, err)
		}
		allowed.Candidate.Model = "gpt-small"
		if decision, err := decide(activation, allowed); err != nil || decision.Allow {
			t.Errorf("providers %v: a model that is not listed: %+v, %v", providers, decision, err)
		}
	}
}
