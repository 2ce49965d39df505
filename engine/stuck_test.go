//go:build !race

// The race detector makes the rule take a minute; the desk's own tests run under it.

package engine

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"regent/engine/policy"
	"regent/policies"
)

// A rule that runs away in one step, which nothing interrupts, refuses its own calls and stops nobody else.
func TestARuleThatRunsAwayStopsNobodyElse(t *testing.T) {
	b := newBench(t, nil)
	activation, err := policy.Load(ctx, policy.Source{
		Bundles: []policy.Bundle{
			{Name: "regent", FS: policies.Files(), Tested: true},
			{Name: "org", FS: fstest.MapFS{
				".manifest":     {Data: []byte(`{"roots": ["org"], "rego_version": 1}`)},
				"org/data.json": {Data: []byte(`{"a": "` + strings.Repeat("a", 4<<10) + `"}`)},
				"org/rules/away/away.rego": {Data: []byte(`package org.rules.away

import data.regent.lib

# METADATA
# title: Away
# custom:
#   code: AWAY
#   remedy: None.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	input.call.model == "away"
	text := concat("", [data.org.a, data.org.a, data.org.a, data.org.a])
	count(regex.find_n("[^b]*b|a", text, -1)) == 1 # quadratic: some seconds
}
`)},
			}},
		},
		Settings: b.router.Policy.Current().Settings(), TimeLimit: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.router.Policy.Activate(activation)
	away, ordinary := hosted("one"), hosted("one")
	away.Facts.Model = "away"
	var runaways sync.WaitGroup
	for range runtime.GOMAXPROCS(0) + 1 {
		runaways.Go(func() {
			refusal := b.refused(away, CodePolicy, ReasonPolicyFailed)
			if refusal.Details.Class != ClassCapacity {
				t.Errorf("the class is %v", refusal.Details.Class)
			}
		})
	}
	runaways.Wait()
	if b.router.Stuck() == 0 {
		t.Error("nothing is stuck: the rule is too quick for this test")
	}
	if _, err := b.router.Resolve(ctx, ordinary); err != nil {
		t.Errorf("another call meanwhile: %v", err)
	}
	for deadline := time.Now().Add(time.Minute); b.router.Stuck() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the evaluations do not end")
		}
	}
}
