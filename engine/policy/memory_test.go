//go:build !race

// One goroutine compares decisions by the thousand here, which the race detector makes ten times as slow; TestDecideInParallel runs under it.

package policy

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"pgregory.net/rapid"

	"regent/policies"
)

// bodies are what rules of an organisation may ask in, with the ways in which a fact can hide in a module.
var bodies = []string{
	`input.call.model == "a"`,
	`input.call.kind == "tool"`,
	`input.call.stream`,
	`input.call.residency == "eu"`,
	`is_null(input.call.residency)`,
	`input.call.input_tokens > 500`,
	`500 <= input.call.input_tokens`,
	`input.call.input_tokens <= input.candidate.context_tokens`,
	`input.candidate.output_tokens_max < input.call.output_tokens_max`,
	`input.call.output_tokens_max == null`,
	`type_name(input.call.output_tokens_max) == "number"`,
	`input.call.output_tokens_max == 5.5`,
	`input.candidate.input_price > 250`,
	`input.candidate.cooling_until > input.now`,
	`input.now >= 2000`,
	`"x" in input.identity.groups`,
	"some group in input.identity.groups\n\tgroup == \"y\"",
	`count({group | some group in input.identity.groups}) > 1`,
	`input.identity.tenant != null`,
	`input.identity.user in {"ada", "bob"}`,
	"candidate := input.candidate\n\tcandidate.provider == \"b\"",
	`some key, value in input.candidate; key == "model"; value == "a"`,
	`some part in [input.identity]; part.user == "ada"`,
	`object.get(input.identity, "user", "") == "ada"`,
	`input.candidate[data.org.field] == "a"`,
	`_helper`,
	`_otherwise == "second"`,
	`data.org.shared.is_first`,
	`not _helper`,
	`count(input.attempts) > 0`,
	"every attempt in input.attempts {\n\t\tattempt.reason == \"timeout\"\n\t}",
	`_helper with input.call.model as input.candidate.model`,
	`input.call.output_tokens_max > 600 with input.call.output_tokens_max as input.candidate.context_tokens`,
	`startswith(concat("/", [input.candidate.provider, input.candidate.model]), "b/")`,
	`_of_candidate(input.candidate)`,
	`[input.call.kind][0] == "tool"`,
	`{"a": input.call.kind}.a == "tool"`,
	`[kind | kind := input.call.kind][_] == "tool"`,
	`_object_of(input.call.kind).a == "tool"`,
	`$"{[input.call.kind][0]}" == "tool"`,
	`split(input.identity.user, "d")[0] == "a"`,
	`_table.a["tool"]["p"]`,
	`_sets.a["tool"]`,
	// What follows differs with every call, so that its rule is asked each time.
	`time.weekday(input.now) == "Thursday"`,
	`input.call.input_tokens % 2 == 1`,
	`_of_call(input.call)`,
	`object.get(input.call, "protocol", "") == "p"`,
	"tokens := input.call.input_tokens\n\ttokens > 700",
	`walk(input, [_, "b"])`,
	`input.call.input_tokens == input.attempts[0].reason`,
	`min([input.now, input.candidate.cooling_until]) == input.now`,
	`some part in input; part.model == "a"`,
	`time.clock([input.now, "UTC"])[0] >= 18`,
	`[0, input.call.input_tokens][1] > 600`,
}

const helpers = `
_helper if input.call.model == "a"

_otherwise := "first" if {
	input.candidate.model == "a"
} else := "second" if {
	input.candidate.stale
}

_of_call(call) if call.protocol == "p"

_object_of(kind) := {"a": kind}

_table.a[input.call.kind][input.call.protocol] := true

_sets.a contains input.call.kind if input.call.stream

_of_candidate(candidate) if candidate.provider == "b"
`

// firstVolatile is the first of the bodies that are asked each time.
var firstVolatile = slices.Index(bodies, `time.weekday(input.now) == "Thursday"`)

// composed is the shipped bundle with rules of an organisation that ask in these ways, one a folder.
func composed(t rapid.TB, remembered int, ways []int) *Activation {
	tree := fstest.MapFS{
		".manifest":                   {Data: []byte(`{"roots": ["org"], "rego_version": 1}`)},
		"org/data.json":               {Data: []byte(`{"field": "model"}`)},
		"org/shared/shared.rego":      {Data: []byte("package org.shared\n\nis_first if input.candidate.source == \"first\"\n")},
		"org/shared/shared_test.rego": {Data: []byte("package org.shared_test\n")},
	}
	for _, way := range ways {
		name := fmt.Sprintf("rule%d", way)
		module := "package org.rules." + name + "\n\nimport data.regent.lib\n\n# METADATA\n# title: T\n# custom:\n#   code: R" + fmt.Sprint(way) +
			"\n#   remedy: R\n#   terminal: false\ndeny contains lib.denial(rego.metadata.rule()) if {\n\t" + bodies[way] + "\n}\n"
		if strings.Contains(bodies[way], "_") {
			module += helpers
		}
		tree["org/rules/"+name+"/"+name+".rego"] = &fstest.MapFile{Data: []byte(module)}
	}
	activation, err := Load(context.Background(), Source{
		Bundles:    []Bundle{{Name: "regent", FS: policies.Files(), Tested: true}, {Name: "org", FS: tree}},
		Settings:   Settings{AllowedResidencies: &[]string{"eu"}, OpenRouterRouting: "refuse"},
		TimeLimit:  time.Minute,
		Remembered: remembered,
	})
	if err != nil {
		t.Fatal(err)
	}
	return activation
}

// someFacts are facts of few values, so that equal ones come again.
func someFacts(random *rand.Rand) Facts {
	return Facts{
		Now: pick[int64](random, 1000, 2000, 3000, 5000, 68_400_000_000_000, 86_400_000_000_000),
		Call: Call{
			Model: pick(random, "a", "b"), Protocol: pick(random, "p", "q"), Kind: pick(random, "generation", "tool"), Stream: pick(random, true, false),
			Residency: pick(random, nil, new("eu")), Modalities: pick(random, nil, []string{"image"}),
			InputTokens: pick(random, nil, new(int64(100)), new(int64(601)), new(int64(900))), OutputTokensMax: pick(random, nil, new(int64(5)), new(int64(50))),
			TokensBounded: pick(random, true, false), CostBounded: pick(random, true, false),
		},
		Identity: Identity{
			User: pick(random, nil, new("ada")), Groups: pick(random, nil, []string{"x"}, []string{"x", "y"}), Tenant: pick(random, nil, new("acme")),
		},
		Candidate: Candidate{
			Source: pick(random, "first", "second"), Provider: pick(random, "a", "b"), Model: pick(random, "a", "b"), Residency: pick(random, nil, new("eu")),
			Enabled: pick(random, true, false), Connection: pick(random, "authorised", "pending"), Stale: pick(random, true, false), CoolingUntil: pick[int64](random, 0, 1500, 4000),
			Protocols: pick(random, []string{"p"}, []string{"p", "q"}), Modalities: pick(random, nil, []string{"image"}),
			ContextTokens: pick(random, nil, new(int64(500)), new(int64(1000))), OutputTokensMax: pick(random, nil, new(int64(20))),
			Priced: pick(random, true, false), InputPrice: pick(random, nil, new(int64(200)), new(int64(300))), OutputPrice: pick(random, nil, new(int64(9))),
			OpenRouterRouting: pick(random, true, false), Accounting: pick(random, ByAPIKey, BySubscription),
		},
		Attempts: pick(random, nil, nil, []Attempt{{"second", "b", "timeout", ByAPIKey}}, []Attempt{{"third", "a", "rate_limited", BySubscription}}),
	}
}

func pick[T any](random *rand.Rand, of ...T) T { return of[random.IntN(len(of))] }

// neighbour differs from facts in one of the fields at most.
func neighbour(random *rand.Rand, of Facts, among []factField) Facts {
	other, field := someFacts(random), pick(random, among...)
	to, from := reflect.ValueOf(&of).Elem(), reflect.ValueOf(&other).Elem()
	for _, step := range field.way {
		to, from = to.FieldByIndex(fieldNamed(to.Type(), step)), from.FieldByIndex(fieldNamed(from.Type(), step))
	}
	to.Set(from)
	return of
}

// compare decides both ways upon facts and their neighbours by some fields, and tells how many decisions were remembered, and the first
// facts upon which the two differ.
func compare(t rapid.TB, a *Activation, random *rand.Rand, times int, among ...factField) (remembered int, differs *Facts) {
	var origin Facts
	for i := range times {
		if i%16 == 0 {
			origin = someFacts(random)
		}
		f := neighbour(random, origin, among)
		want, wantErr := a.Decide(context.Background(), f.Document())
		got, gotErr := a.Judge(timeOf(f), f.Call, f.Identity).Decide(context.Background(), f.Candidate, f.Attempts)
		if got.Remembered {
			remembered++
		}
		got.Remembered = false
		if !reflect.DeepEqual(got, want) || (gotErr == nil) != (wantErr == nil) {
			t.Logf("%+v: remembered %+v, %v; afresh %+v, %v", f, got, gotErr, want, wantErr)
			return remembered, &f
		}
	}
	return remembered, nil
}

// What is remembered is what would be decided afresh, whatever the rules ask for.
func TestRememberedDecisionsAreThoseMadeAfresh(t *testing.T) {
	remembered := 0
	rapid.Check(t, func(t *rapid.T) {
		ways := rapid.SliceOfNDistinct(rapid.IntRange(0, len(bodies)-1), 1, 4, rapid.ID).Draw(t, "ways")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		n, differs := compare(t, composed(t, pick(random, 8, 0), ways), random, 64, fields...)
		if differs != nil {
			t.Errorf("the two differ upon %+v", *differs)
		}
		remembered += n
	})
	if remembered == 0 {
		t.Error("nothing was ever remembered")
	}
}

// needless is what the rules above observe only because they go over the whole of something, and make nothing of.
var needless = []string{"identity.principal", "identity.principal_kind", "candidate.output_price", "candidate.cooling_until"}

// Take anything out of what is observed, and the comparison above finds it.
func TestAnythingThatIsNotObservedIsMissed(t *testing.T) {
	var all []int
	for way := range bodies {
		all = append(all, way)
	}
	complete := composed(t, 0, all)
	if got, want := len(complete.memory.volatile), len(bodies)-firstVolatile; got != want {
		t.Errorf("%d rules are asked each time, want the last %d: %v", got, want, complete.memory.volatile)
	}
	for i, observed := range slices.Concat(complete.memory.ofCall, complete.memory.ofCandidate) {
		a := composed(t, 0, all[:firstVolatile])
		a.memory.ofCall, a.memory.ofCandidate = slices.Clone(complete.memory.ofCall), slices.Clone(complete.memory.ofCandidate)
		if i < len(a.memory.ofCall) {
			a.memory.ofCall = slices.Delete(a.memory.ofCall, i, i+1)
		} else {
			a.memory.ofCandidate = slices.Delete(a.memory.ofCandidate, i-len(a.memory.ofCall), i-len(a.memory.ofCall)+1)
		}
		random := rand.New(rand.NewPCG(1, 2))
		_, differs := compare(quiet{t}, a, random, 500, fields[observed.field], fields[observed.other])
		if name := strings.Join(fields[observed.field].way, "."); differs == nil && !slices.Contains(needless, name) {
			t.Errorf("nothing differs without the observation %+v of %v", observed, fields[observed.field].way)
		}
	}
}

// quiet does not log what is expected.
type quiet struct{ *testing.T }

func (quiet) Logf(string, ...any) {}

// Rules that observe the time are asked each time; those that observe it only as one side of a comparison are remembered by its outcome.
func TestWhatIsAskedEachTime(t *testing.T) {
	at := func(body string) int { return slices.Index(bodies, body) }
	a := composed(t, 0, []int{at(`time.weekday(input.now) == "Thursday"`), at(`input.candidate.cooling_until > input.now`), at(`input.call.model == "a"`)})
	want := map[string]bool{fmt.Sprintf("org/rule%d", at(`time.weekday(input.now) == "Thursday"`)): true}
	if !reflect.DeepEqual(a.memory.volatile, want) {
		t.Errorf("asked each time are %v, want %v", a.memory.volatile, want)
	}
}

// The shipped bundle alone asks nothing each time.
func TestTheShippedRulesAreRememberedWhole(t *testing.T) {
	a := composed(t, 0, nil)
	if a.memory == nil || a.memory.ask != nil || len(a.memory.volatile) > 0 {
		t.Fatalf("the memory is %+v", a.memory)
	}
	for _, observed := range slices.Concat(a.memory.ofCall, a.memory.ofCandidate) {
		if observed.volatile() {
			t.Errorf("%v is observed, which differs from call to call", fields[observed.field].way)
		}
	}
}

// An entry point that does more with denials than to collect them keeps nothing, if some rules would have to be asked apart.
func TestAnEntryPointThatIsNoUnionRemembersNothing(t *testing.T) {
	at := slices.Index(bodies, `time.weekday(input.now) == "Thursday"`)
	a := composed(t, 0, []int{at})
	if a.memory == nil {
		t.Fatal("the shipped entry point remembers nothing")
	}
	for _, u := range a.bundles {
		for _, file := range u.parsed.Modules {
			for _, rule := range file.Parsed.Rules {
				for _, annotations := range rule.Annotations {
					delete(annotations.Custom, "composition")
				}
			}
		}
	}
	a.memory = nil
	if err := a.remember(context.Background(), observedBy(a.compiler.Modules), 8); err != nil || a.memory != nil {
		t.Errorf("it remembers: %+v, %v", a.memory, err)
	}
}

// The list of fields is the type's, field by field, and each tells its own values apart.
func TestFieldsAreThoseOfTheFacts(t *testing.T) {
	var want, got []string
	leaves(reflect.TypeFor[Facts](), "", &want)
	for _, field := range fields {
		got = append(got, strings.Join(field.way, "."))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("the list has\n%s\nfacts have\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, field := range fields {
		var zero, changed Facts
		value := reflect.ValueOf(&changed).Elem()
		for _, step := range field.way {
			value = value.FieldByIndex(fieldNamed(value.Type(), step))
		}
		change(value)
		for _, other := range fields {
			differs := !bytes.Equal(other.write(nil, &zero), other.write(nil, &changed))
			if same := slices.Equal(other.way, field.way); differs != same {
				t.Errorf("%v changed, and %v is written differently: %t", field.way, other.way, differs)
			}
		}
	}
}

func leaves(of reflect.Type, way string, into *[]string) {
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if of.Field(i).Type.Kind() == reflect.Struct {
			leaves(of.Field(i).Type, way+name+".", into)
			continue
		}
		*into = append(*into, way+name)
	}
}

func fieldNamed(of reflect.Type, json string) []int {
	for i := range of.NumField() {
		if name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ","); name == json {
			return []int{i}
		}
	}
	return nil
}

func change(value reflect.Value) {
	switch value.Kind() {
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
	case reflect.Bool:
		value.SetBool(true)
	case reflect.Int64:
		value.SetInt(1)
	case reflect.String:
		value.SetString("x")
	}
}

// Errors are not kept: what failed once is asked again.
func TestErrorsAreNotRemembered(t *testing.T) {
	a := composed(t, 0, nil)
	f := someFacts(rand.New(rand.NewPCG(1, 1)))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	judge := a.Judge(timeOf(f), f.Call, f.Identity)
	if _, err := judge.Decide(ended, f.Candidate, f.Attempts); err == nil {
		t.Fatal("an ended context decides")
	}
	if n := a.memory.decisions.Len(); n != 0 {
		t.Errorf("%d decisions are kept", n)
	}
	if _, known := judge.Recall(f.Candidate, f.Attempts); known {
		t.Error("what failed is recalled")
	}
	if decision, err := judge.Decide(context.Background(), f.Candidate, f.Attempts); err != nil || decision.Remembered {
		t.Errorf("got %+v, %v", decision, err)
	}
	if decision, known := judge.Recall(f.Candidate, f.Attempts); !known || !decision.Remembered {
		t.Errorf("got %+v, %t", decision, known)
	}
}
