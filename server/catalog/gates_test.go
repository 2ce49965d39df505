package catalog

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"regent/ledger"
)

// TestATokensOwnLimitsNarrowTheDefault: of two windows both count.
func TestATokensOwnLimitsNarrowTheDefault(t *testing.T) {
	minute := func(max int64) ledger.Rate {
		return ledger.Rate{Key: "token/alice%2Ft/1m", Max: max, Window: time.Minute}
	}
	second := ledger.Rate{Key: "token/alice%2Ft/1s", Max: 2, Window: time.Second}
	for _, test := range []struct {
		byDefault, own string
		rates          []ledger.Rate
		concurrency    int64
	}{
		{"", "", nil, 0},
		{"", "rate: {calls: 60}, concurrency: 4, ", []ledger.Rate{minute(60)}, 4},
		{"{rate: {calls: 60, window: 1m}, concurrency: 4}", "", []ledger.Rate{minute(60)}, 4},
		{"{rate: {calls: 60}, concurrency: 4}", "rate: {calls: 30}, concurrency: 2, ", []ledger.Rate{minute(30)}, 2},
		{"{rate: {calls: 60}, concurrency: 4}", "rate: {calls: 90, window: 60s}, concurrency: 8, ", []ledger.Rate{minute(60)}, 4},
		{"{rate: {calls: 60}}", "rate: {calls: 2, window: 1s}, ", []ledger.Rate{minute(60), second}, 0},
	} {
		text := strings.Replace(good, "{name: t, token: HASH", "{name: t, "+test.own+"token: HASH", 1)
		if test.byDefault != "" {
			text += "  token: " + test.byDefault + "\n"
		}
		c, err := Parse("c.yaml", []byte(hashed(text)), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		found := c.Authenticate(token)
		if found.ID() != "alice/t" || !reflect.DeepEqual(found.Rates, test.rates) || found.Concurrency != test.concurrency {
			t.Errorf("%q and %q: got %+v", test.byDefault, test.own, found)
		}
		limits := c.Limits(ledger.Account{Scope: ledger.ScopeToken, ID: "alice/t", Unit: ledger.Calls})
		scopes := found.Scopes()
		if test.concurrency == 0 {
			if limits != nil || scopes != nil {
				t.Errorf("%q and %q: the account has limits %+v, the call %+v", test.byDefault, test.own, limits, scopes)
			}
			continue
		}
		want := []ledger.Limit{{Window: ledger.AtOnce{}, Max: test.concurrency}}
		if !reflect.DeepEqual(limits, want) || len(scopes) != 1 || !reflect.DeepEqual(scopes[0].Claims(), []ledger.Claim{
			{Account: ledger.Account{Scope: ledger.ScopeToken, ID: "alice/t", Unit: ledger.Calls}, Limits: want},
		}) {
			t.Errorf("%q and %q: the account has limits %+v, the call %+v", test.byDefault, test.own, limits, scopes)
		}
	}
}

// TestTokensOfOneNameHaveTheLeastConcurrency, whichever of them is asked about.
func TestTokensOfOneNameHaveTheLeastConcurrency(t *testing.T) {
	for written, want := range map[string][]ledger.Limit{
		"4 7":     {{Window: ledger.AtOnce{}, Max: 4}},
		"7 4":     {{Window: ledger.AtOnce{}, Max: 4}},
		"4 4":     {{Window: ledger.AtOnce{}, Max: 4}},
		"4 any":   {{Window: ledger.AtOnce{}, Max: 4}},
		"any 4":   {{Window: ledger.AtOnce{}, Max: 4}},
		"any any": nil,
	} {
		entries := []string{}
		for i, concurrency := range strings.Fields(written) {
			entry := fmt.Sprintf("{name: t, token: %q, concurrency: %s}", strings.Repeat(fmt.Sprint(i+1), 64), concurrency)
			entries = append(entries, strings.Replace(entry, ", concurrency: any", "", 1))
		}
		text := strings.Replace(good, "{name: t, token: HASH}", strings.Join(entries, ", ")+", {name: u, token: HASH, concurrency: 1}", 1)
		c, err := Parse("c.yaml", []byte(hashed(text)), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 { // a map is walked anyhow
			got := c.Limits(ledger.Account{Scope: ledger.ScopeToken, ID: "alice/t", Unit: ledger.Calls})
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: got %+v, want %+v", written, got, want)
			}
		}
	}
}

// TestASourceHasACircuit, unless it is switched off.
func TestASourceHasACircuit(t *testing.T) {
	for written, want := range map[string]*ledger.Circuit{
		"residency: eu":                           {Key: "source/s", Threshold: 3, CoolDown: 30 * time.Second},
		"circuit: {threshold: 5}":                 {Key: "source/s", Threshold: 5, CoolDown: 30 * time.Second},
		"circuit: {cool_down: 2m}":                {Key: "source/s", Threshold: 3, CoolDown: 2 * time.Minute},
		"circuit: {enabled: true}":                {Key: "source/s", Threshold: 3, CoolDown: 30 * time.Second},
		"circuit: {enabled: false}":               nil,
		"circuit: {enabled: false, threshold: 9}": nil,
	} {
		c, err := Parse("c.yaml", []byte(hashed(strings.Replace(good, "residency: eu", written, 1))), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Models["m"].Candidates(&Cooling{}, false, "")[0].Circuit; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v", written, got)
		}
	}
}
