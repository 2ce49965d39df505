package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"regent/ledger"
)

func noEnv(string) (string, bool) { return "", false }

const token = "gwi_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

const good = `inference: {enabled: true}
connections:
  - {id: one, provider: p, adapter: openai, base_url: "https://example.com/v1", credential: "env:KEY"}
models:
  - id: m
    modalities: {image: 1000}
    access: {users: [alice]}
    sources: [{id: s, connection: one, model: up, residency: eu, price: {input: "1", output: "2"}}]
groups:
  - {id: g, features: ["feat:ai:use"]}
users:
  - {id: alice, groups: [g], tokens: [{name: t, token: HASH}], limits: {tokens: {max: "100", window: 1h}}}
  - {id: bob, disabled: true, tokens: [{name: t, token: "0000000000000000000000000000000000000000000000000000000000000000"}]}
limits:
  user: {tokens: {max: "1000"}, usd: {max: "1"}}
`

func hashed(text string) string {
	hash := sha256.Sum256([]byte(token))
	return strings.Replace(text, "HASH", hex.EncodeToString(hash[:]), 1)
}

func TestParse(t *testing.T) {
	c, err := Parse("c.yaml", []byte(hashed(good)), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	found := c.Authenticate(token)
	if found == nil || found.User.ID != "alice" || found.Name != "t" {
		t.Fatalf("authenticated %+v", found)
	}
	if c.Authenticate(token[:len(token)-1]+"0") != nil || c.Authenticate("") != nil {
		t.Error("another token is somebody's")
	}
	if c.Connections["one"].State != Pending {
		t.Error("a connection without its credential is authorised")
	}
	tokens := found.User.Limits[ledger.Tokens]
	if len(tokens) != 2 || tokens[0].Max != 1000 || tokens[1] != (ledger.Limit{Window: ledger.Fixed{Length: time.Hour}, Max: 100}) {
		t.Errorf("limits: %+v", tokens)
	}
	if _, open := found.User.Limits[ledger.USD]; open {
		t.Error("a unit that the user's own limits leave out is open")
	}
	candidates := c.Models["m"].Candidates(&Cooling{}, true, "")
	if len(candidates) != 1 || !candidates[0].Priced || *candidates[0].Residency != "eu" || candidates[0].OpenRouterRouting ||
		len(candidates[0].Modalities) != 1 || candidates[0].Price.Output != 2_000_000 || !candidates[0].CacheWrites {
		t.Errorf("candidates: %+v", candidates)
	}
	if access := c.Settings.Access.Models["m"]; access.Everyone || len(access.Users) != 1 {
		t.Errorf("access: %+v", access)
	}
}

// TestWhatIsFreeMayBeUnmetered: however it is written that nothing costs anything.
func TestWhatIsFreeMayBeUnmetered(t *testing.T) {
	for _, more := range []string{"", `, tiers: {flex: {input: "0", output: "0"}}`, `, unit_charges: {web_search: "0"}`, `, long_context: {threshold: 10, input: "0", output: "0"}`} {
		text := strings.Replace(good, `price: {input: "1", output: "2"}`, `accounting: unmetered, price: {input: "0", output: "0"`+more+"}", 1)
		if _, err := Parse("c.yaml", []byte(hashed(text)), noEnv); err != nil {
			t.Errorf("%s: %v", more, err)
		}
	}
}

// TestAUsersOwnLimitWidensNothing: neither the limit nor what calls may spend of it.
func TestAUsersOwnLimitWidensNothing(t *testing.T) {
	day := ledger.Fixed{Length: 24 * time.Hour}
	for own, want := range map[string]ledger.Limit{
		`{max: "2000"}`:               {Window: day, Max: 1000, Spendable: 100, Final: 200},
		`{max: "999"}`:                {Window: day, Max: 999, Spendable: 100, Final: 200},
		`{max: "150"}`:                {Window: day, Max: 150, Spendable: 100, Final: 150},
		`{max: "50"}`:                 {Window: day, Max: 50, Spendable: 50, Final: 50},
		`{max: "1000", spendable: 5}`: {Window: day, Max: 1000, Spendable: 50, Final: 50},
		`{max: "1000", spendable: 50, final: 100}`: {Window: day, Max: 1000, Spendable: 100, Final: 200},
		`{max: "0"}`: {Window: day},
	} {
		text := strings.Replace(good, `{max: "1000"}`, `{max: "1000", spendable: 10, final: 20}`, 1)
		c, err := Parse("c.yaml", []byte(hashed(strings.Replace(text, `tokens: {max: "100", window: 1h}`, "tokens: "+own, 1))), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Users["alice"].Limits[ledger.Tokens]; len(got) != 1 || got[0] != want {
			t.Errorf("%s: got %+v, want %+v", own, got, want)
		}
	}
	zones := strings.Replace(good, `{max: "1000"}`, `{max: "1000", window: month/Asia/Tokyo}`, 1)
	zones = strings.Replace(zones, "window: 1h", "window: month/Europe/Berlin", 1)
	if _, err := Parse("c.yaml", []byte(hashed(zones)), noEnv); err == nil || !strings.Contains(err.Error(), "the default counts the months of another time zone") {
		t.Errorf("months of two zones: %v", err)
	}
}

// TestParseRefuses changes one thing in a good file: each is refused, with the line and the words that help.
func TestParseRefuses(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"an unknown key":              {"models:", "model:", "c.yaml:4: unknown key model"},
		"an unknown key deep inside":  {"residency: eu", "residence: eu", "c.yaml:8: unknown key residence"},
		"a key twice":                 {"limits:\n", "groups: []\nlimits:\n", "already"},
		"a wrong type":                {"{enabled: true}", "{enabled: perhaps}", `c.yaml:1: enabled: want true or false, not the text "perhaps"`},
		"two documents":               {"limits:\n", "---\nlimits:\n", "one YAML document"},
		"an unknown adapter":          {"adapter: openai", "adapter: soap", "c.yaml:3: connection \"one\": unknown adapter \"soap\""},
		"a secret":                    {"\"env:KEY\"", "sk-123", "c.yaml:3: connection \"one\": a credential must be env:NAME"},
		"a URL with a user":           {"https://example.com/v1", "https://me:pw@example.com/v1", "c.yaml:3: "},
		"a file as URL":               {"https://example.com/v1", "file:///etc/passwd", "c.yaml:3: "},
		"no access":                   {"    access: {users: [alice]}\n", "", "c.yaml:5: model \"m\": access must be written"},
		"access of nobody known":      {"users: [alice]", "users: [eve]", "c.yaml:7: model \"m\": unknown user \"eve\""},
		"an upper-case model":         {"id: m\n", "id: M\n", "c.yaml:5: model id \"M\""},
		"half a price":                {", output: \"2\"", "", "c.yaml:8: source \"s\": price: not a price: input and output"},
		"a negative price":            {"input: \"1\"", "input: \"-1\"", "c.yaml:8: "},
		"an unknown connection":       {"connection: one", "connection: two", "c.yaml:8: source \"s\": unknown connection"},
		"an unknown group":            {"groups: [g]", "groups: [h]", "c.yaml:12: user \"alice\": unknown group"},
		"an unknown feature":          {"feat:ai:use", "feat:everything", "c.yaml:10: unknown feature"},
		"a token in clear":            {"HASH", token, "c.yaml:12: user \"alice\": a token is given by its SHA-256"},
		"a limit that is no number":   {"max: \"1000\"", "max: \"NaN\"", "c.yaml:15: a limit in tokens"},
		"a negative limit":            {"usd: {max: \"1\"}", "usd: {max: \"-1\"}", "c.yaml:15: a limit in usd"},
		"a window of 0":               {"window: 1h", "window: 0s", "c.yaml:12: a limit in tokens: window"},
		"a window beyond a month":     {"window: 1h", "window: 800h", "c.yaml:12: a limit in tokens: window"},
		"an unknown key in a limit":   {"window: 1h", "windows: 1h", "c.yaml:12: unknown key windows"},
		"an unknown key in a list":    {"{max: \"1000\"}", "[{max: \"1000\"}, {most: \"1\"}]", "c.yaml:15: unknown key most"},
		"an unknown zone":             {"window: 1h", "window: month/Atlantis", "c.yaml:12: a limit in tokens: window: not a window: \"Atlantis\" is no time zone"},
		"an unknown kind of window":   {"window: 1h", "window: sliding/5h", "c.yaml:12: a limit in tokens: window"},
		"a text that is no window":    {"window: 1h", "window: soon", "c.yaml:12: a limit in tokens: window: not a window: \"soon\" must be a length such as 5h or 7d, rolling/LENGTH, fixed/LENGTH or month/ZONE"},
		"a user's limit at once":      {"window: 1h", "window: at-once", "c.yaml:12: a limit in tokens: window: at-once is for the concurrency of tokens alone"},
		"all users' limit at once":    {"{max: \"1000\"}", "{max: \"1000\", window: at-once}", "c.yaml:15: a limit in tokens: window: at-once is"},
		"a task's limit at once":      {"user: {tokens", "task: {usd: {max: \"1\", window: at-once}}\n  user: {tokens", "c.yaml:15: a limit in usd: window: at-once is"},
		"a tenant's limit at once":    {"user: {tokens", "tenants: [{id: t, limits: {usd: {max: \"1\", window: at-once}}}]\n  user: {tokens", "c.yaml:15: a limit in usd: window: at-once is"},
		"a group's limit at once":     {"{id: g,", "{id: g, limits: {credits: {max: \"1\", window: at-once}},", "c.yaml:10: a limit in credits: window: at-once is"},
		"a source's limit at once":    {"{id: s,", "{id: s, limits: {tokens: [{max: \"1\"}, {max: \"1\", window: at-once}]},", "c.yaml:8: a limit in tokens: window: at-once is"},
		"a connection at once":        {"{id: one,", "{id: one, limits: {tokens: {max: \"1\", window: at-once}},", "c.yaml:3: a limit in tokens: window: at-once is"},
		"a rolling window of 0":       {"window: 1h", "window: rolling/0s", "c.yaml:12: a limit in tokens: window"},
		"months of two time zones":    {"{max: \"1000\"}", "[{max: \"1000\", window: month/Asia/Tokyo}, {max: \"1\", window: month}]", "c.yaml:15: a limit in tokens: an account counts the months of one time zone"},
		"a share of nothing":          {"{max: \"1000\"}", "{max: \"9\", spendable: 10}", "c.yaml:15: a limit in tokens: spendable: 10 % of 9 is less than what can be counted"},
		"two limits for a window":     {"{max: \"1000\"}", "[{max: \"1000\"}, {max: \"1\", window: 24h}]", "c.yaml:15: a limit in tokens: there are two for the window fixed/24h"},
		"more than all spendable":     {"{max: \"1000\"}", "{max: \"1000\", spendable: 101}", "c.yaml:15: a limit in tokens: spendable"},
		"final below spendable":       {"{max: \"1000\"}", "{max: \"1000\", spendable: 95, final: 90}", "c.yaml:15: a limit in tokens: final"},
		"an unknown accounting":       {"connection: one,", "connection: one, accounting: barter,", "c.yaml:8: source \"s\": unknown accounting \"barter\""},
		"a subscription with a price": {"connection: one,", "connection: one, accounting: subscription,", "c.yaml:8: source \"s\": a subscription is paid by credits"},
		"unmetered at a price":        {"connection: one,", "connection: one, accounting: unmetered,", "c.yaml:8: source \"s\": what is unmetered needs a price of 0"},
		"a tier of 0, metered":        {"{input: \"1\", output: \"2\"}", "{input: \"0\", output: \"0\", tiers: {flex: {input: \"0\", output: \"0\"}}}", "c.yaml:8: source \"s\": a price of 0 is accounting: unmetered"},
		"free but for a tier":         {"{input: \"1\", output: \"2\"}", "{input: \"0\", output: \"0\", tiers: {flex: {input: \"1\", output: \"1\"}}}", "c.yaml:8: source \"s\": a price of 0 is accounting: unmetered"},
		"unmetered but for a tier":    {"price: {input: \"1\", output: \"2\"}", "accounting: unmetered, price: {input: \"0\", output: \"0\", tiers: {flex: {input: \"1\", output: \"1\"}}}", "c.yaml:8: source \"s\": what is unmetered needs a price of 0"},
		"unmetered but for a unit":    {"price: {input: \"1\", output: \"2\"}", "accounting: unmetered, price: {input: \"0\", output: \"0\", unit_charges: {web_search: \"1\"}}", "c.yaml:8: source \"s\": what is unmetered needs a price of 0"},
		"unmetered but for the long":  {"price: {input: \"1\", output: \"2\"}", "accounting: unmetered, price: {input: \"0\", output: \"0\", long_context: {threshold: 10, input: \"1\", output: \"0\"}}", "c.yaml:8: source \"s\": what is unmetered needs a price of 0"},
		"a rate of 0":                 {"name: t, token: HASH", "name: t, rate: {calls: 0}, token: HASH", "c.yaml:12: a rate: calls: 0 must be a whole number of at least 1"},
		"a rate of nothing":           {"user: {tokens", "token: {rate: {window: 1m}}\n  user: {tokens", "c.yaml:15: a rate: calls must be written"},
		"a rate in a rolling window":  {"name: t, token: HASH", "name: t, rate: {calls: 1, window: rolling/1m}, token: HASH", "c.yaml:12: a rate: window: \"rolling/1m\" must be a length such as 30s"},
		"half a call":                 {"name: t, token: HASH", "name: t, rate: {calls: 1.5}, token: HASH", "c.yaml:12: a rate: calls: 1.5 must be a whole number of at least 1"},
		"an unknown key in a rate":    {"name: t, token: HASH", "name: t, rate: {call: 1}, token: HASH", "c.yaml:12: unknown key call"},
		"no calls at once":            {"name: t, token: HASH", "name: t, concurrency: 0, token: HASH", "c.yaml:12: concurrency: 0 must be a whole number of at least 1"},
		"no calls at once, of any":    {"user: {tokens", "token: {concurrency: -1}\n  user: {tokens", "c.yaml:15: concurrency: -1 must be a whole number"},
		"no threshold of all":         {"residency: eu", "circuit: {threshold: 1e16}", "c.yaml:8: source \"s\": threshold: 10000000000000000 must be a whole number of at least 1 and at most 2^53 - 1: so many"},
		"a number in quotes":          {"name: t, token: HASH", "name: t, rate: {calls: \"6\"}, token: HASH", `c.yaml:12: calls: want a number, not the text "6"`},
		"a list of numbers":           {"name: t, token: HASH", "name: t, concurrency: [2], token: HASH", "c.yaml:12: concurrency: want a number, not a list"},
		"a number, and no rate":       {"user: {tokens", "token: {rate: 60}\n  user: {tokens", "c.yaml:15: rate: want a mapping with calls and window, not 60"},
		"a circuit that is a word":    {"residency: eu", "circuit: false", "c.yaml:8: circuit: want a mapping with threshold, cool_down or enabled, not false"},
		"a circuit that is a list":    {"residency: eu", "circuit: [3]", "c.yaml:8: circuit: want a mapping with threshold, cool_down or enabled, not a list"},
		"a text, and no groups":       {"groups: [g]", "groups: g", `c.yaml:12: groups: want a list, not the text "g"`},
		"a mapping in a list":         {"groups: [g]", "groups: [{id: g}]", "c.yaml:12: groups: want a text, not a mapping"},
		"a long text, and no number":  {"image: 1000", "image: a thousand tokens", `c.yaml:6: image: want a number, not the text "a thous..."`},
		"a user without a key":        {"  - {id: bob, ", "  - 7\n  - {id: bob, ", "c.yaml:13: users: want a mapping, not 7"},
		"a document that is a list":   {good, "[1]", "c.yaml:1: want a mapping, not a list"},
		"calls without end":           {"name: t, token: HASH", "name: t, rate: {calls: 99999999999999999999}, token: HASH", "c.yaml:12: a rate: calls: 100000000000000000000 must be a whole number of at least 1 and at most 2^53 - 1"},
		"an empty rate":               {"name: t, token: HASH", "name: t, rate: , token: HASH", "c.yaml:12: a rate: calls must be written"},
		"an empty rate of all":        {"user: {tokens", "token:\n    rate:\n  user: {tokens", "c.yaml:16: a rate: calls must be written"},
		"empty calls":                 {"name: t, token: HASH", "name: t, rate: {calls: }, token: HASH", "c.yaml:12: a rate: calls must be written"},
		"an empty concurrency":        {"name: t, token: HASH", "name: t, concurrency: ~, token: HASH", "c.yaml:12: concurrency: a number must be written"},
		"a threshold of 0":            {"residency: eu", "circuit: {threshold: 0}", "c.yaml:8: source \"s\": threshold: 0 must be a whole number of at least 1"},
		"a cool-down of 0":            {"residency: eu", "circuit: {cool_down: 0s}", "c.yaml:8: source \"s\": cool_down: \"0s\" must be a length"},
		"an unknown key in a circuit": {"residency: eu", "circuit: {cooldown: 1s}", "c.yaml:8: unknown key cooldown"},
		"a share of 0":                {"{max: \"1000\"}", "{max: \"1000\", spendable: 0}", "c.yaml:15: a limit in tokens: spendable: 0 must be a whole percentage"},
		"a fraction of a percent":     {"{max: \"1000\"}", "{max: \"1000\", spendable: 50.5}", "c.yaml:15: a limit in tokens: spendable: 50.5 must be a whole percentage"},
		"final alone":                 {"{max: \"1000\"}", "{max: \"1000\", final: 50}", "c.yaml:15: a limit in tokens: final: 50 % must not be less than what is spendable"},
		"final below the default":     {"usd: {max: \"1\"}", "credits: {max: \"1\", final: 50}", "c.yaml:15: a limit in credits: final: 50 % must not be less than what is spendable"},
		"a price of 0, metered":       {"{input: \"1\", output: \"2\"}", "{input: \"0\", output: \"0\"}", "c.yaml:8: source \"s\": a price of 0 is accounting: unmetered"},
		"a multiplier of money":       {"connection: one,", "connection: one, multiplier: \"2\",", "c.yaml:8: source \"s\": only a subscription has a multiplier"},
		"a multiplier of 0":           {"    access: {users", "    multiplier: \"0\"\n    access: {users", "c.yaml:7: model \"m\": not a multiplier"},
		"a tenant that is no id":      {"id: bob", "tenant: \"a/b\", id: bob", "c.yaml:13: user \"bob\": a tenant must match"},
		"a modality that is none":     {"image: 1000", "smell: 1000", "c.yaml:6: model \"m\": modalities"},
		"the same user twice":         {"id: bob", "id: alice", "c.yaml:13: user \"alice\" is defined twice"},
		"the same token for two":      {"\"0000000000000000000000000000000000000000000000000000000000000000\"", "HASH2", "the token is user \"alice\"'s already"},
		"an id that no URL can hold":  {"id: g,", "id: \"a b\",", "c.yaml:10: group id"},
		"settlement that is no words": {"limits:\n", "policy: {settings: {settlement: {interrupted: free}}}\nlimits:\n", "settlement.interrupted must be"},
		"a sink without a name":       {"limits:\n", "decisions: {sinks: [{stdout: true}]}\nlimits:\n", "a sink needs a name"},
	} {
		if !strings.Contains(good, test.from) {
			t.Fatalf("%s: %q is not in the good file", name, test.from)
		}
		text := hashed(strings.Replace(good, test.from, test.to, 1))
		hash := sha256.Sum256([]byte(token))
		text = strings.Replace(text, "HASH2", hex.EncodeToString(hash[:]), 1)
		_, err := Parse("c.yaml", []byte(text), noEnv)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "pw@") || err != nil && strings.Contains(err.Error(), "catalog.") {
			t.Errorf("%s: the message tells too much: %v", name, err)
		}
	}
}

func TestDemo(t *testing.T) {
	c, err := Parse("demo.yaml", demo, func(name string) (string, bool) { return token, name == "REGENT_DEMO_TOKEN" })
	if err != nil {
		t.Fatal(err)
	}
	if !c.InferenceEnabled || c.Authenticate(token) == nil || len(c.Models["demo/failover"].Sources) != 2 || len(c.RequiredRules) != 8 {
		t.Errorf("%+v", c)
	}
}

func TestLiveKeepsTheLastGoodFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(hashed(good))
	changes := 0
	live, err := Open(path, noEnv, func(*Catalogue) { changes++ })
	if err != nil {
		t.Fatal(err)
	}
	first := live.Current()
	live.look()
	write("nonsense: 1")
	live.look()
	if live.Current() != first || live.Err() == nil || changes != 1 {
		t.Errorf("changes %d, err %v", changes, live.Err())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	live.look()
	if live.Current() != first || live.Err() == nil {
		t.Error("a missing file replaced the catalogue")
	}
	write(hashed(good))
	live.look()
	if live.Current() == first || live.Err() != nil || changes != 2 {
		t.Errorf("changes %d, err %v", changes, live.Err())
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add(demo)
	f.Add([]byte("users: [{id: a, tokens: [{name: t, token: env:X}]}]"))
	for _, hostile := range []string{
		"", "---\n", "a: 1\n---\nb: 2\n", "\x00", "\xff", "\ufeffinference: {}", "inference: {enabled: yes please}", "users: {}", "users: [null]",
		"models: [{id: m, sources: [{}]}]", "connections: &a [*a]", "users: [&a {id: x}, *a]", "users: [{<<: {id: x}}]", "? [a]\n: b",
		"limits: {user: {tokens: [{max: \"1\"}, [], null, *x]}}", "limits: {user: {tokens: {<<: {max: \"1\"}}}}", "limits: {tenants: [{id: a}, {id: a}]}",
		"limits: {user: {tokens: {max: \"-1\"}, usd: {max: \"1e300\", window: 9999999h}}}", "limits: {user: {tokens: {max: NaN, window: 0s}}}",
		"inference: {enabled: true, enabled: false}", strings.Repeat("[", 1000), strings.Repeat("{a: ", 1000), strings.Repeat("- ", 1000),
		"policy: {settings: {settlement: {drain_millis: -1}}, bundles: [{name: regent, folder: /}], required_rules: [\"..\"]}",
		"decisions: {sinks: [{name: a, file: ../x, stdout: true}]}", "users: !!binary aGVsbG8=", "inference: !!set {enabled}",
		"a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nusers: [*c, *c]\n",
	} {
		f.Add([]byte(hostile))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("c.yaml", text, func(string) (string, bool) { return token, true })
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("an error without a place: %v", err)
		}
		if err == nil && c == nil {
			t.Fatal("neither a catalogue nor an error")
		}
	})
}
