package policy

import (
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The built-ins that policy may use. They are named one by one, since a list of forbidden ones lets in whatever the next
// version of OPA adds: each is a function of its arguments alone, so that equal facts are decided equally, on every replica
// and in a replay. What is absent reads a clock, the network, the process or chance (time.now_ns, http.send, opa.runtime,
// rand.intn, uuid.rfc4122, certificates that are verified against the clock), writes (print, trace), reads the machine's time zone (time.parse_ns),
// makes much of little, in one step that nothing interrupts (net.cidr_expand, bits.lsh, graph.reachable_paths, json.patch, units.parse,
// templates), handles keys (io.jwt, hmac, providers.aws), or is deprecated.
var pureBuiltins = [][]string{
	// operators
	{"assign", "eq", "equal", "neq", "gt", "gte", "lt", "lte", "plus", "minus", "mul", "div", "rem", "and", "or"},
	{"internal.member_2", "internal.member_3", "internal.template_string"},
	// annotations of the calling rule: constants by the time of evaluation
	{"rego.metadata.chain", "rego.metadata.rule"},
	// numbers
	{"abs", "ceil", "floor", "round", "numbers.range", "numbers.range_step", "format_int", "to_number"},
	{"bits.and", "bits.negate", "bits.or", "bits.rsh", "bits.xor"},
	// collections
	{"count", "sum", "product", "max", "min", "sort", "walk", "union", "intersection"},
	{"array.concat", "array.flatten", "array.reverse", "array.slice"},
	{"object.filter", "object.get", "object.keys", "object.remove", "object.subset", "object.union", "object.union_n"},
	{"graph.reachable"},
	// types
	{"is_array", "is_boolean", "is_null", "is_number", "is_object", "is_set", "is_string", "type_name"},
	// text
	{"concat", "contains", "endswith", "indexof", "indexof_n", "lower", "replace", "split", "sprintf", "startswith"},
	{"strings.any_prefix_match", "strings.any_suffix_match", "strings.count", "strings.replace_n", "strings.reverse"},
	{"strings.split_n", "substring", "trim", "trim_left", "trim_prefix", "trim_right", "trim_space", "trim_suffix", "upper"},
	{"regex.find_all_string_submatch_n", "regex.find_n", "regex.is_valid", "regex.match"},
	{"regex.replace", "regex.split", "glob.match", "glob.quote_meta"},
	{"semver.compare", "semver.is_valid"},
	// encodings
	{"base64.decode", "base64.encode", "base64.is_valid"},
	{"base64url.decode", "base64url.encode", "base64url.encode_no_pad", "hex.decode", "hex.encode"},
	{"json.filter", "json.is_valid", "json.marshal", "json.remove", "json.unmarshal"},
	{"yaml.is_valid", "yaml.marshal", "yaml.unmarshal"},
	{"uri.is_valid", "uri.parse", "urlquery.decode", "urlquery.decode_object", "urlquery.encode", "urlquery.encode_object"},
	{"crypto.md5", "crypto.sha1", "crypto.sha256", "uuid.parse"},
	// networks, without resolving names
	{"net.cidr_contains", "net.cidr_intersects", "net.cidr_is_valid", "net.cidr_merge"},
	// times that are given
	{"time.add_date", "time.clock", "time.date", "time.diff", "time.format"},
	{"time.parse_duration_ns", "time.parse_rfc3339_ns", "time.weekday"},
}

// capabilities returns what policy may be written with: the pure built-ins without those that a host forbids, Rego v1, and no host to
// fetch schemas from.
func capabilities(forbidden []string) *ast.Capabilities {
	pure := make(map[string]bool)
	for _, names := range pureBuiltins {
		for _, name := range names {
			pure[name] = true
		}
	}
	all := ast.CapabilitiesForThisVersion()
	reduced := &ast.Capabilities{
		FutureKeywords: all.FutureKeywords,
		// Not Rego v2: its negated bodies would pass the check for denials that fail open.
		Features: []string{ast.FeatureRegoV1, ast.FeatureRegoV1Import, ast.FeatureKeywordsInRefs, ast.FeatureTemplateStrings},
		AllowNet: []string{},
	}
	for _, builtin := range all.Builtins {
		if pure[builtin.Name] && !slices.Contains(forbidden, builtin.Name) {
			reduced.Builtins = append(reduced.Builtins, builtin)
		}
	}
	return reduced
}

// testBuiltins are those that tests may use besides: on what they have made themselves.
var testBuiltins = []string{"print", "internal.print", "json.patch"}

// testCapabilities are what tests may be written with.
func testCapabilities(reduced *ast.Capabilities) *ast.Capabilities {
	capable := *reduced
	capable.Builtins = slices.Clone(reduced.Builtins)
	for _, name := range testBuiltins {
		capable.Builtins = append(capable.Builtins, ast.BuiltinMap[name])
	}
	return &capable
}
