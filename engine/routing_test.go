package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/engine/policy"
)

// routed is a model of OpenRouter's that brings routing metadata.
func routed(id string) Model {
	return Model{
		Provider: "openrouter", ID: id, Cost: perMillion(1, 2),
		Compat: Compat{Residency: "eu", OpenRouterRouting: json.RawMessage(`{"only":["x"]}`)},
	}
}

// seeing is a resolver that keeps what it is asked for.
type seeing struct{ candidates []Candidate }

func (s *seeing) Resolve(candidate Candidate) (adapters.Provider, error) {
	s.candidates = append(s.candidates, candidate)
	return noProvider, nil
}

func openRouter(setting string, resolver Resolver) func(*Config, *policy.Settings) {
	return func(c *Config, s *policy.Settings) { c.Resolver, s.OpenRouterRouting = resolver, setting }
}

// TestAModelsRoutingIsStripped: unless policy honours it, which the diagnostics say; where policy refuses it, nobody is asked.
func TestAModelsRoutingIsStripped(t *testing.T) {
	for _, test := range []struct {
		setting, id string
		model       string // that the resolver sees; empty if it is not asked
		routing     string
		priced      bool
	}{
		{"", "a/b", "a/b", "", true},
		{"strip", "a/b", "a/b", "", true},
		{"strip", "a/b:nitro", "a/b", "", true},
		{"strip", "a/b:free", "a/b", "", false},
		{"strip", "a/b:FREE:online", "a/b", "", false},
		{"strip", "a/b:free@preset/mine", "a/b", "", false},
		{"honour", "a/b", "a/b", `{"only":["x"]}`, true},
		{"honour", "a/b:free", "a/b:free", `{"only":["x"]}`, true},
		{"refuse", "a/b", "", "", false},
		{"refuse", "a/b:free", "", "", false},
	} {
		t.Run(test.setting+" "+test.id, func(t *testing.T) {
			resolver := &seeing{}
			b := newBench(t, openRouter(test.setting, resolver))
			model := routed(test.id)
			request := hosted()
			request.MaxTokens, request.Candidates = number(5), []Candidate{model.Candidate()}
			resolution, err := b.router.Resolve(ctx, request)
			if test.model == "" {
				wantRefusal(t, err, CodePolicy, ClassPolicy, "OPENROUTER_ROUTING_REFUSED", 0)
				if len(resolver.candidates) > 0 {
					t.Errorf("the resolver was asked for %+v", resolver.candidates)
				}
				return
			}
			if err != nil || len(resolver.candidates) != 1 {
				t.Fatalf("asked for %d candidates, %v", len(resolver.candidates), err)
			}
			honoured := test.routing != ""
			seen := resolver.candidates[0]
			if seen.Model != test.model || string(seen.Routing) != test.routing || (seen.Price != nil) != test.priced || seen.Priced != test.priced || (seen.UnitPrice != nil) != test.priced {
				t.Errorf("the resolver saw %s, %s, price %v", seen.Model, seen.Routing, seen.Price)
			}
			d := resolution.Diagnostics
			if d.OpenRouterRoutingHonored != honoured || d.SelectedModel != test.model || resolution.HonourRouting != honoured {
				t.Errorf("diagnostics: %+v", d)
			}
			text, err := json.Marshal(d)
			if err != nil || !strings.Contains(string(text), fmt.Sprintf(`"openRouterRoutingHonored":%v`, honoured)) {
				t.Errorf("diagnostics: %s, %v", text, err)
			}
			given := adapters.Request{Body: []byte(`{"model":"x","provider":{}}`), Model: "a/b:nitro"}
			sent, err := resolution.RequestPolicy()(given)
			if unchanged := reflect.DeepEqual(sent, given); err != nil || unchanged != honoured {
				t.Errorf("sent %+v, %v", sent, err)
			}
			if string(model.Compat.OpenRouterRouting) != `{"only":["x"]}` || request.Candidates[0].Model != test.id || string(request.Candidates[0].Routing) != `{"only":["x"]}` {
				t.Error("the request was changed")
			}
		})
	}
}

// TestThePlainNameIsJudged: what an allow-list says of a model holds whatever routing its name carries, and no suffix makes another one of it.
func TestThePlainNameIsJudged(t *testing.T) {
	for _, test := range []struct {
		setting, id string
		allowed     bool
	}{
		{"strip", "a/b", true}, {"strip", "a/b:nitro", true}, {"strip", "a/b@preset/x", true}, {"strip", "a/c:free", false}, {"strip", "a/b:other", false},
		{"honour", "a/b:nitro", false}, // it is sent as it is, so that it is judged as it is
	} {
		b := newBench(t, func(_ *Config, s *policy.Settings) {
			s.OpenRouterRouting, s.AllowList = test.setting, &policy.AllowList{Models: &[]string{"a/b"}}
		})
		request := hosted()
		request.Candidates = []Candidate{{Candidate: routed(test.id).Candidate().Candidate, named: true}}
		if _, err := b.router.Resolve(ctx, request); (err == nil) != test.allowed {
			t.Errorf("%s %s: %v", test.setting, test.id, err)
		}
		_, err := b.router.ProviderSource(routed(test.id))
		if test.allowed && err != nil || !test.allowed && !isCode(err, CodeAllowList) {
			t.Errorf("the facade: %s %s: %v", test.setting, test.id, err)
		}
	}
}

func isCode(err error, code Code) bool {
	var refusal *Error
	return errors.As(err, &refusal) && refusal.Code == code
}

func TestWithoutSuffixes(t *testing.T) {
	for model, want := range map[string]string{
		"a/b": "a/b", "a/b:free": "a/b", "a/b:Nitro": "a/b", "a/b:floor:online": "a/b", "a/b:EXACTO": "a/b", "a/b@preset/p": "a/b",
		"a/b:free@preset/p:nitro": "a/b", "a/b@preset/p@preset/q": "a/b", "a/b:thinking": "a/b:thinking", "a/b:free:thinking": "a/b:free:thinking",
		"a/b:online:thinking:free": "a/b:online:thinking", "": "", ":free": ":free", "@preset/p": "@preset/p", "freedom": "freedom", "a:freeb": "a:freeb",
		"é:free": "é", "a@preset": "a@preset",
	} {
		if got := withoutSuffixes(model); got != want || withoutSuffixes(got) != got {
			t.Errorf("%q: got %q, want %q", model, got, want)
		}
	}
}

// bodies are bodies, and what is left of them.
var bodies = []struct{ what, body, want string }{
	{"nothing to take away", `{ "model" : "a/b", "messages":[ {"role":"user"} ] }`, `{ "model" : "a/b", "messages":[ {"role":"user"} ] }`},
	{"each field", `{"provider":{"only":["x"]},"models":["a"],"route":"fallback","transforms":[],"plugins":[{}],"preset":"p","model":"a"}`, `{"model":"a"}`},
	{"any case", `{"Provider":1,"MODELS":2,"rOUTE":3,"n":1}`, `{"n":1}`},
	{"letters that fold", "{\"model\u017f\":1,\"tran\u017fforms\":2,\"plugin\u017f\":3,\"n\":1}", `{"n":1}`},
	{"escaped", `{"\u0070rovider":1,"model\u0073":[],"pre\u0053et":0,"n":1}`, `{"n":1}`},
	{"repeated", `{"provider":1,"n":1,"provider":2,"n":2}`, `{"n":1,"n":2}`},
	{"alone", `{"route":1}`, `{}`},
	{"nested ones are somebody else's", `{"provider":1,"metadata":{"provider":1,"models":[{"route":2}]}}`, `{"metadata":{"provider":1,"models":[{"route":2}]}}`},
	{"values as they are", "{\"provider\":1 , \"n\": 1.0e+05,\n\"s\":\"\\u00e9\\/ \u2028<\", \"o\":{ \"a\" : [ 1 , 2 ] }}", "{\"n\":1.0e+05,\"s\":\"\\u00e9\\/ \u2028<\",\"o\":{ \"a\" : [ 1 , 2 ] }}"},
	{"the suffix", `{"n":1,"model":"a/b:free","m":2}`, `{"n":1,"model":"a/b","m":2}`},
	{"an escaped suffix", `{"model":"a\/b\u003afree"}`, `{"model":"a/b"}`},
	{"a preset", `{"model":"a/b@preset/mine"}`, `{"model":"a/b"}`},
	{"the suffix of each", `{"model":"a:nitro","model":"b:floor"}`, `{"model":"a","model":"b"}`},
	{"whatever the case of its field", `{"Model":"a:ONLINE","\u006dodel":"b:exacto"}`, `{"Model":"a","\u006dodel":"b"}`},
	{"half a surrogate pair hides nothing", `{"model":"a\ud800\u003afree"}`, "{\"model\":\"a\ufffd\"}"},
	{"what is no suffix", `{"model":"a:thinking", "n":1}`, `{"model":"a:thinking", "n":1}`},
	{"what is no name", `{"model":["a:free"], "n":1}`, `{"model":["a:free"], "n":1}`},
	{"no object", `["provider"]`, `["provider"]`},
	{"no JSON", `{"provider":1`, `{"provider":1`},
	{"nothing", ``, ``},
}

func TestWithoutRouting(t *testing.T) {
	for _, test := range bodies {
		given := []byte(test.body)
		got := withoutRouting(given)
		if string(got) != test.want || string(given) != test.body {
			t.Errorf("%s: got %s, want %s", test.what, got, test.want)
		}
		if again := withoutRouting(got); string(again) != test.want {
			t.Errorf("%s: and again %s", test.what, again)
		}
		if json.Valid(got) && hasRouting(gjson.ParseBytes(got)) {
			t.Errorf("%s: routing is left", test.what)
		}
	}
	for name, want := range map[string]bool{"provider": true, "MODELS": true, "plugin\u017f": true, "provider_": false, "model": false, "": false} {
		if got := IsRoutingField(name); got != want {
			t.Errorf("%q: got %v", name, got)
		}
	}
}

// member is a field of an object as any reader sees it.
type member struct{ name, value string }

// membersOf reads the fields of an object with another reader than the program's, repeated ones too. ok is false if it is none.
func membersOf(body []byte) (members []member, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') || !json.Valid(body) {
		return nil, false
	}
	for decoder.More() {
		name, err := decoder.Token()
		var value json.RawMessage
		if err != nil || decoder.Decode(&value) != nil {
			return nil, false
		}
		members = append(members, member{name.(string), string(value)})
	}
	return members, true
}

// FuzzWithoutRouting: whatever the body, it stays JSON, holds no routing, and keeps all else.
func FuzzWithoutRouting(f *testing.F) {
	for _, test := range bodies {
		f.Add([]byte(test.body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		given := bytes.Clone(body)
		got := withoutRouting(body)
		if !bytes.Equal(body, given) {
			t.Fatalf("%q became %q", given, body)
		}
		before, isObject := membersOf(body)
		if !isObject {
			if json.Valid(body) && !bytes.Equal(got, body) {
				t.Fatalf("%q is no object, and became %q", body, got)
			}
			return
		}
		after, isObject := membersOf(got)
		if !isObject {
			t.Fatalf("%q became %q", body, got)
		}
		var want []member
		for _, m := range before {
			var model string
			switch {
			case slices.ContainsFunc(routingFields, func(field string) bool { return strings.EqualFold(field, m.name) }):
				continue
			case strings.EqualFold(m.name, "model") && json.Unmarshal([]byte(m.value), &model) == nil && withoutSuffixes(model) != model:
				m.value = withoutSuffixes(model)
			}
			want = append(want, m)
		}
		if len(after) != len(want) {
			t.Fatalf("%q became %q", body, got)
		}
		for i, m := range after {
			var model string
			same := m == want[i] || m.name == want[i].name && json.Unmarshal([]byte(m.value), &model) == nil && model == want[i].value
			if !same {
				t.Fatalf("%q became %q: %q, want %q", body, got, m, want[i])
			}
		}
		if len(want) == len(before) && slices.Equal(want, before) && !bytes.Equal(got, body) {
			t.Fatalf("%q holds no routing, and became %q", body, got)
		}
	})
}

// everywhere is a request that hides routing wherever it can.
func everywhere() adapters.Request {
	return adapters.Request{
		Protocol: adapters.OpenAIChat, Body: []byte(`{"model":"a/b:free","provider":{"only":["x"]},"Route":1,"n": 1.0 }`),
		Model: "a/b:nitro@preset/p", PublicModel: "public:free", Stream: true, UsageWanted: true, Strip: make([]string, 1, 8),
		Header: http.Header{
			"Http-Referer": {"r"}, "HTTP-Referer": {"r"}, "X-Title": {"t"}, "x-title": {"t"}, "X-Openrouter-Title": {"t"}, "x-OpenRouter-Categories": {"c"},
			"X-Titled": {"kept"}, "Referer": {"kept"}, "X-Open": {"kept", "twice"},
		},
	}
}

// strips is the decision of a router that honours no routing.
var strips = (&Grant{Candidate: &Candidate{}}).RequestPolicy()

// TestARequestIsStrippedWhereverRoutingHides: and nothing of what was given is changed.
func TestARequestIsStrippedWhereverRoutingHides(t *testing.T) {
	given := everywhere()
	given.Strip[0] = "store"
	spare := given.Strip[:cap(given.Strip)]
	header := maps.Clone(given.Header)
	sent, err := strips(given)
	if err != nil {
		t.Fatal(err)
	}
	want := adapters.Request{
		Protocol: adapters.OpenAIChat, Body: []byte(`{"model":"a/b","n":1.0}`), Model: "a/b", PublicModel: "public:free", Stream: true, UsageWanted: true,
		Strip:  []string{"store", "provider", "models", "route", "transforms", "plugins", "preset"},
		Header: http.Header{"X-Titled": {"kept"}, "Referer": {"kept"}, "X-Open": {"kept", "twice"}},
	}
	if !reflect.DeepEqual(sent, want) {
		t.Errorf("sent %+v\nwant %+v\nbody %s", sent, want, sent.Body)
	}
	untouched := everywhere()
	untouched.Strip[0] = "store"
	if !reflect.DeepEqual(given, untouched) || !reflect.DeepEqual(given.Header, header) || spare[1] != "" {
		t.Errorf("what was given became %+v, %q", given, spare)
	}
	sent, err = strips(adapters.Request{Body: []byte(`{"model":"a"}`), Model: "a"})
	if err != nil || string(sent.Body) != `{"model":"a"}` || sent.Header != nil || sent.Model != "a" {
		t.Errorf("a plain one: %+v, %v", sent, err)
	}
	if sent, err := (&Grant{Candidate: &Candidate{}, HonourRouting: true}).RequestPolicy()(given); err != nil || !reflect.DeepEqual(sent, given) {
		t.Errorf("honoured: %+v, %v", sent, err)
	}
}

// received is what a provider makes of a request: it takes away the fields that it is told to.
func received(t *testing.T, request adapters.Request) (fields map[string]json.RawMessage, rest adapters.Request) {
	t.Helper()
	if err := json.Unmarshal(request.Body, &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range request.Strip {
		delete(fields, name)
	}
	request.Body, request.Strip = nil, nil
	return fields, request
}

// TestRequestPoliciesCompose: in either order a provider receives the same, also where another one adds routing.
func TestRequestPoliciesCompose(t *testing.T) {
	for name, other := range map[string]RequestPolicy{
		"another field": func(r adapters.Request) (adapters.Request, error) {
			r.Body = append([]byte(`{"temperature":0,`), r.Body[1:]...)
			return r, nil
		},
		"routing": func(r adapters.Request) (adapters.Request, error) {
			r.Body = append([]byte(`{"provider":{"order":["y"]},"models":["z"],`), r.Body[1:]...)
			return r, nil
		},
		"a header": func(r adapters.Request) (adapters.Request, error) {
			r.Header = maps.Clone(r.Header)
			r.Header.Set("X-Request", "1")
			return r, nil
		},
		"fields to take away": func(r adapters.Request) (adapters.Request, error) {
			r.Strip = append(slices.Clip(r.Strip), "n")
			return r, nil
		},
		"the router's own": strips,
		"nothing":          RequestPolicies(),
	} {
		before, err := RequestPolicies(other, strips)(everywhere())
		if err != nil {
			t.Fatal(err)
		}
		after, err := RequestPolicies(strips, other)(everywhere())
		if err != nil {
			t.Fatal(err)
		}
		fields, rest := received(t, before)
		otherFields, otherRest := received(t, after)
		if !reflect.DeepEqual(fields, otherFields) || !reflect.DeepEqual(rest, otherRest) {
			t.Errorf("%s: before %s %+v, after %s %+v", name, fields, rest, otherFields, otherRest)
		}
		if rest.Model != "a/b" || string(fields["model"]) != `"a/b"` || fields["provider"] != nil || len(rest.Header["X-Title"]) > 0 {
			t.Errorf("%s: routing is left: %s %+v", name, fields, rest)
		}
	}
	failed := errors.New("not this one")
	refuses := func(adapters.Request) (adapters.Request, error) { return adapters.Request{Model: "half done"}, failed }
	never := func(adapters.Request) (adapters.Request, error) {
		t.Error("asked after a refusal")
		return adapters.Request{}, nil
	}
	if got, err := RequestPolicies(strips, refuses, never)(everywhere()); !errors.Is(err, failed) || !reflect.DeepEqual(got, adapters.Request{}) {
		t.Errorf("a refusal: %+v, %v", got, err)
	}
}
