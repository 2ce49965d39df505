package catalog

import (
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
