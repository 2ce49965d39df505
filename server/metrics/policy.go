package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// revisionMax bounds a revision as a label: a bundle's author may write anything there.
const revisionMax = 128

// Policy is what is told of the policy in force and of its bundles' sources.
type Policy struct {
	// Digest of the policy in force; empty if none is.
	Digest string
	// Revisions of its bundles, by name.
	Revisions map[string]string
	// Activated and Refused count the policies that were put in force, and those that did not load.
	Activated, Refused int64
	// Sources are those of the catalogue that counts.
	Sources []BundleSource
}

// BundleSource is where a bundle comes from.
type BundleSource struct {
	Bundle string
	// Errors counts the looks that have failed.
	Errors int64
	// Fetched is when it was last found to hold what is known; zero if it never was.
	Fetched time.Time
}

// policyCollector reads everything when it is asked, so that what has gone leaves no series behind.
type policyCollector struct{ read func() Policy }

var (
	policyInfo        = prometheus.NewDesc("regent_policy_info", "The policy in force, by its digest.", []string{"digest"}, nil)
	policyActivations = prometheus.NewDesc("regent_policy_activations_total", "Policies that were put in force, and that did not load.", []string{"outcome"}, nil)
	bundleInfo        = prometheus.NewDesc("regent_bundle_info", "The bundles of the policy in force.", []string{"bundle", "revision"}, nil)
	bundleErrors      = prometheus.NewDesc("regent_bundle_fetch_errors_total", "Looks at a bundle's source that failed.", []string{"bundle"}, nil)
	bundleFetched     = prometheus.NewDesc("regent_bundle_fetched_timestamp_seconds", "When a bundle's source was last found to hold what is known of it.", []string{"bundle"}, nil)
)

// CountPolicy adds what happened to the policy and its bundles.
func (m *Metrics) CountPolicy(read func() Policy) { m.registry.MustRegister(policyCollector{read}) }

// Describe implements [prometheus.Collector].
func (policyCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{policyInfo, policyActivations, bundleInfo, bundleErrors, bundleFetched} {
		descriptions <- description
	}
}

// Collect implements [prometheus.Collector].
func (c policyCollector) Collect(collected chan<- prometheus.Metric) {
	tell := func(description *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		collected <- prometheus.MustNewConstMetric(description, kind, value, labels...)
	}
	now := c.read()
	if now.Digest != "" {
		tell(policyInfo, prometheus.GaugeValue, 1, now.Digest)
	}
	tell(policyActivations, prometheus.CounterValue, float64(now.Activated), "activated")
	tell(policyActivations, prometheus.CounterValue, float64(now.Refused), "refused")
	for bundle, revision := range now.Revisions {
		tell(bundleInfo, prometheus.GaugeValue, 1, bundle, cut(revision))
	}
	for _, source := range now.Sources {
		tell(bundleErrors, prometheus.CounterValue, float64(source.Errors), source.Bundle)
		if !source.Fetched.IsZero() {
			tell(bundleFetched, prometheus.GaugeValue, float64(source.Fetched.UnixMilli())/1000, source.Bundle)
		}
	}
}

// cut is a text as a label may be.
func cut(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), revisionMax)], "")
}
