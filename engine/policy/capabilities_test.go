package policy

import (
	"slices"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
)

func TestCapabilitiesArePure(t *testing.T) {
	reduced := capabilities(nil)
	named := slices.Concat(pureBuiltins...)
	if len(reduced.Builtins) != len(named) {
		t.Errorf("%d built-ins are named, this version of OPA has %d of them", len(named), len(reduced.Builtins))
	}
	for _, builtin := range reduced.Builtins {
		if builtin.Nondeterministic {
			t.Errorf("%s is not deterministic", builtin.Name)
		}
		if ast.BuiltinMap[builtin.Name] == nil {
			t.Errorf("%s is no built-in", builtin.Name)
		}
	}
	for _, name := range []string{"print", "trace", "http.send", "opa.runtime", "time.now_ns", "rand.intn", "uuid.rfc4122",
		"net.lookup_ip_addr", "net.cidr_expand", "json.match_schema", "json.verify_schema", "io.jwt.decode_verify",
		"crypto.x509.parse_and_verify_certificates", "bits.lsh", "graph.reachable_paths", "net.cidr_contains_matches", "json.patch", "units.parse",
		"units.parse_bytes", "time.parse_ns", "regex.template_match"} {
		if slices.Contains(named, name) {
			t.Errorf("%s must not be used in policy", name)
		}
	}
}
