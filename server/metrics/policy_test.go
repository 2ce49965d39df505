package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"regent/ledger"
)

// The policy in force is one series, and what has gone leaves none behind.
func TestPolicy(t *testing.T) {
	m := New(func(err error) string { return err.Error() }, func() ledger.Status { return ledger.Status{} })
	now := Policy{Refused: 1}
	m.CountPolicy(func() Policy { return now })
	names := []string{
		"regent_policy_info", "regent_policy_activations_total", "regent_bundle_info", "regent_bundle_fetch_errors_total", "regent_bundle_fetched_timestamp_seconds",
	}
	want := func(text string) {
		t.Helper()
		if err := testutil.GatherAndCompare(m.registry, strings.NewReader(text), names...); err != nil {
			t.Error(err)
		}
	}
	activations := `
# HELP regent_policy_activations_total Policies that were put in force, and that did not load.
# TYPE regent_policy_activations_total counter
`
	want(activations + `regent_policy_activations_total{outcome="activated"} 0
regent_policy_activations_total{outcome="refused"} 1
`)
	now = Policy{
		Digest: "abc", Revisions: map[string]string{"org": strings.Repeat("v", 127) + "ü", "regent": "1"}, Activated: 2, Refused: 3,
		Sources: []BundleSource{{Bundle: "org", Errors: 4, Fetched: time.UnixMilli(1500)}, {Bundle: "other"}},
	}
	want(activations + `regent_policy_activations_total{outcome="activated"} 2
regent_policy_activations_total{outcome="refused"} 3
# HELP regent_policy_info The policy in force, by its digest.
# TYPE regent_policy_info gauge
regent_policy_info{digest="abc"} 1
# HELP regent_bundle_info The bundles of the policy in force.
# TYPE regent_bundle_info gauge
regent_bundle_info{bundle="org",revision="` + strings.Repeat("v", 127) + `"} 1
regent_bundle_info{bundle="regent",revision="1"} 1
# HELP regent_bundle_fetch_errors_total Looks at a bundle's source that failed.
# TYPE regent_bundle_fetch_errors_total counter
regent_bundle_fetch_errors_total{bundle="org"} 4
regent_bundle_fetch_errors_total{bundle="other"} 0
# HELP regent_bundle_fetched_timestamp_seconds When a bundle's source was last found to hold what is known of it.
# TYPE regent_bundle_fetched_timestamp_seconds gauge
regent_bundle_fetched_timestamp_seconds{bundle="org"} 1.5
`)
	now = Policy{Digest: "def", Revisions: map[string]string{"regent": "1"}, Activated: 3, Refused: 3}
	want(activations + `regent_policy_activations_total{outcome="activated"} 3
regent_policy_activations_total{outcome="refused"} 3
# HELP regent_policy_info The policy in force, by its digest.
# TYPE regent_policy_info gauge
regent_policy_info{digest="def"} 1
# HELP regent_bundle_info The bundles of the policy in force.
# TYPE regent_bundle_info gauge
regent_bundle_info{bundle="regent",revision="1"} 1
`)
}
