package policy_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"regent/engine/policy"
)

func TestDecideAllows(t *testing.T) {
	decision, err := decide(load(t, policy.Source{Settings: settings()}), facts())
	if err != nil || !decision.Allow || decision.Denials == nil || len(decision.Denials) != 0 || decision.HonourRouting {
		t.Errorf("got %+v, %v", decision, err)
	}
}

func TestDecideRefusesWithEveryDenialInOrder(t *testing.T) {
	f := facts()
	f.Candidate.Enabled, f.Candidate.Priced, f.Candidate.Residency = false, false, new("us")
	f.Attempts = []policy.Attempt{{Source: f.Candidate.Source, Provider: "openai", Reason: "invalid_request"}}
	activation := load(t, policy.Source{Settings: settings()})
	decision, err := decide(activation, f)
	want := "FALLBACK_NOT_ALLOWED SOURCE_ATTEMPTED RESIDENCY_MISMATCH SOURCE_UNPRICED"
	if want = "SOURCE_DISABLED " + want; err != nil || decision.Allow || codesOf(decision) != want {
		t.Errorf("got %s, %v, want %s", codesOf(decision), err, want)
	}
	for _, denial := range decision.Denials {
		if !slices.ContainsFunc(activation.Rules(), func(rule policy.Rule) bool {
			return rule.Name == denial.Rule && rule.Code == denial.Code && rule.Title == denial.Title &&
				rule.Remedy == denial.Remedy && rule.Terminal == denial.Terminal
		}) {
			t.Errorf("%+v is no rule of the activation", denial)
		}
	}
}

func TestDecideHonoursRouting(t *testing.T) {
	decision, err := decide(load(t, policy.Source{Settings: policy.Settings{OpenRouterRouting: "honour"}}), facts())
	if err != nil || !decision.Allow || !decision.HonourRouting {
		t.Errorf("got %+v, %v", decision, err)
	}
}

// asked is a bundle that refuses an empty input as it should, and answers any other by the text given.
func asked(t *testing.T, answer string) *policy.Activation {
	t.Helper()
	return asking(t, answer, 0)
}

func asking(t *testing.T, answer string, limit time.Duration) *policy.Activation {
	t.Helper()
	activation, err := policy.Load(context.Background(), policy.Source{TimeLimit: limit, Bundles: []policy.Bundle{{Name: "regent", FS: fstest.MapFS{
		".manifest": {Data: []byte(`{"roots": ["regent"]}`)},
		"regent/main/main.rego": {Data: []byte(`package regent.main

decision := {"allow": false, "denials": [main], "honour_routing": false} if not input.call

main := {"rule": "main", "code": "EMPTY", "title": "Empty", "remedy": "Ask.", "terminal": true}

` + answer)},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	return activation
}

func TestDecideNeverTakesAnythingElseForAnAnswer(t *testing.T) {
	given := func(decision string) string { return "decision := " + decision + " if input.call" }
	for _, test := range []struct {
		name   string
		answer string
		want   error
	}{
		{"undefined", "", policy.ErrUndefined},
		{"conflicting", given("{}") + "\n\ndecision := true if input.now", policy.ErrConflict},
		{"failing built-in", given(`{"allow": to_number(input.call.model) > 0, "denials": [], "honour_routing": false}`), policy.ErrFailed},
		{"a boolean", given("true"), policy.ErrMalformed},
		{"empty", given("{}"), policy.ErrMalformed},
		{"without allow", given(`{"allowed": true, "denials": [], "honour_routing": false}`), policy.ErrMalformed},
		{"allow is text", given(`{"allow": "true", "denials": [], "honour_routing": false}`), policy.ErrMalformed},
		{"allow is null", given(`{"allow": null, "denials": [], "honour_routing": false}`), policy.ErrMalformed},
		{"without denials", given(`{"allow": true, "denial": [], "honour_routing": false}`), policy.ErrMalformed},
		{"denials is null", given(`{"allow": true, "denials": null, "honour_routing": false}`), policy.ErrMalformed},
		{"denials is an object", given(`{"allow": true, "denials": {}, "honour_routing": false}`), policy.ErrMalformed},
		{"without honour_routing", given(`{"allow": true, "denials": []}`), policy.ErrMalformed},
		{"honour_routing is a number", given(`{"allow": true, "denials": [], "honour_routing": 1}`), policy.ErrMalformed},
		{"unknown field", given(`{"allow": true, "denials": [], "honour_routing": false, "unless": 1}`), policy.ErrMalformed},
		{"allows what it denies", given(`{"allow": true, "denials": [main], "honour_routing": false}`), policy.ErrMalformed},
		{"refuses for nothing", given(`{"allow": false, "denials": [], "honour_routing": false}`), policy.ErrMalformed},
		{"denial is text", given(`{"allow": false, "denials": ["EMPTY"], "honour_routing": false}`), policy.ErrMalformed},
		{"denial lacks its remedy", given(`{"allow": false, "denials": [object.remove(main, ["remedy"])], "honour_routing": false}`), policy.ErrMalformed},
		{"denial has more", given(`{"allow": false, "denials": [object.union(main, {"why": 1})], "honour_routing": false}`), policy.ErrMalformed},
		{"denial has another field", given(`{"allow": false, "denials": [object.union(object.remove(main, ["code"]), {"kode": "X"})], "honour_routing": false}`), policy.ErrMalformed},
		{"title is a number", given(`{"allow": false, "denials": [object.union(main, {"title": 1})], "honour_routing": false}`), policy.ErrMalformed},
		{"title is empty", given(`{"allow": false, "denials": [object.union(main, {"title": ""})], "honour_routing": false}`), policy.ErrMalformed},
		{"terminal is text", given(`{"allow": false, "denials": [object.union(main, {"terminal": "true"})], "honour_routing": false}`), policy.ErrMalformed},
		{"undeclared code", given(`{"allow": false, "denials": [object.union(main, {"code": "OTHER"})], "honour_routing": false}`), policy.ErrMalformed},
	} {
		t.Run(test.name, func(t *testing.T) {
			decision, err := decide(asked(t, test.answer), facts())
			if !errors.Is(err, test.want) || decision.Allow {
				t.Errorf("got %+v, %v, want %v", decision, err, test.want)
			}
		})
	}
}

// A built-in that fails would be undefined, and so deny nothing, if OPA were left to its default.
func TestDecideRefusesByARuleThatFails(t *testing.T) {
	activation := load(t, policy.Source{Bundles: []policy.Bundle{org(map[string]string{
		"org/rules/closed/closed.rego": ruleNamed("closed", "CLOSED", "to_number(input.call.model) > 0"),
	})}})
	decision, err := decide(activation, facts())
	if !errors.Is(err, policy.ErrFailed) || decision.Allow {
		t.Errorf("got %+v, %v, want %v", decision, err, policy.ErrFailed)
	}
}

// endless takes minutes for the facts of these tests, in steps between which it can be interrupted.
const endless = `decision := {"allow": count(pairs) < 0, "denials": [], "honour_routing": false} if input.call.model == "acme/large"

decision := {"allow": true, "denials": [], "honour_routing": false} if input.call.model == "ordinary"

pairs contains [a, b] if {
	some a in numbers.range(1, 100000)
	some b in numbers.range(1, 100000)
}`

func TestDecideEndsInTime(t *testing.T) {
	began := time.Now()
	_, err := decide(asking(t, endless, 20*time.Millisecond), facts())
	if took := time.Since(began); !errors.Is(err, policy.ErrLate) || took > 5*time.Second {
		t.Errorf("got %v after %v, want %v", err, took, policy.ErrLate)
	}
}

func TestDecideEndsWithItsContext(t *testing.T) {
	activation := asking(t, endless, time.Hour)
	f := facts()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	judge := activation.Judge(time.Now(), f.Call, f.Identity)
	if _, err := judge.Decide(ctx, f.Candidate, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
	}
}

// OPA alone answers under a context that has ended, if the evaluation is short.
func TestDecideAnswersNothingUnderAnEndedContext(t *testing.T) {
	f := facts()
	judge := load(t, policy.Source{}).Judge(time.Now(), f.Call, f.Identity)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 100 {
		if _, err := judge.Decide(ctx, f.Candidate, nil); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want %v", err, context.Canceled)
		}
	}
}

func TestDecideBoundsTheFacts(t *testing.T) {
	long := strings.Repeat("x", 1025)
	activation := load(t, policy.Source{})
	for name, change := range map[string]func(*policy.Facts){
		"model":              func(f *policy.Facts) { f.Call.Model = long },
		"protocol":           func(f *policy.Facts) { f.Call.Protocol = long },
		"kind":               func(f *policy.Facts) { f.Call.Kind = long },
		"residency":          func(f *policy.Facts) { f.Call.Residency = &long },
		"modalities":         func(f *policy.Facts) { f.Call.Modalities = make([]string, 33) },
		"user":               func(f *policy.Facts) { f.Identity.User = &long },
		"groups":             func(f *policy.Facts) { f.Identity.Groups = make([]string, 513) },
		"group":              func(f *policy.Facts) { f.Identity.Groups = []string{long} },
		"tenant":             func(f *policy.Facts) { f.Identity.Tenant = &long },
		"principal":          func(f *policy.Facts) { f.Identity.Principal = &long },
		"principal kind":     func(f *policy.Facts) { f.Identity.PrincipalKind = &long },
		"source":             func(f *policy.Facts) { f.Candidate.Source = long },
		"provider":           func(f *policy.Facts) { f.Candidate.Provider = long },
		"candidate's model":  func(f *policy.Facts) { f.Candidate.Model = long },
		"its residency":      func(f *policy.Facts) { f.Candidate.Residency = &long },
		"connection":         func(f *policy.Facts) { f.Candidate.Connection = long },
		"protocols":          func(f *policy.Facts) { f.Candidate.Protocols = make([]string, 33) },
		"its modalities":     func(f *policy.Facts) { f.Candidate.Modalities = make([]string, 33) },
		"attempts":           func(f *policy.Facts) { f.Attempts = make([]policy.Attempt, 65) },
		"attempt's source":   func(f *policy.Facts) { f.Attempts = []policy.Attempt{{Source: long}} },
		"attempt's provider": func(f *policy.Facts) { f.Attempts = []policy.Attempt{{Provider: long}} },
		"attempt's reason":   func(f *policy.Facts) { f.Attempts = []policy.Attempt{{Reason: long}} },
	} {
		f := facts()
		change(&f)
		if decision, err := decide(activation, f); !errors.Is(err, policy.ErrTooLarge) || decision.Allow {
			t.Errorf("%s: got %+v, %v, want %v", name, decision, err, policy.ErrTooLarge)
		}
	}
}

func TestDecideTakesTextOnly(t *testing.T) {
	f := facts()
	f.Candidate.Model = "gpt-\xff"
	if decision, err := decide(load(t, policy.Source{}), f); !errors.Is(err, policy.ErrNotText) || decision.Allow {
		t.Errorf("got %+v, %v, want %v", decision, err, policy.ErrNotText)
	}
}

func TestFactsAreWhatIsDecidedUpon(t *testing.T) {
	f := facts()
	f.Attempts = []policy.Attempt{{Source: "other", Provider: "openai", Reason: "timeout"}}
	judge := load(t, policy.Source{}).Judge(time.UnixMicro(f.Now/1000), f.Call, f.Identity)
	got := judge.Facts(f.Candidate, f.Attempts)
	if want, have := jsonOf(t, f), jsonOf(t, got); want != have {
		t.Errorf("got %s, want %s", have, want)
	}
}

// One activation serves all calls at once.
func TestDecideInParallel(t *testing.T) {
	activation := load(t, policy.Source{Settings: settings()})
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			f := facts()
			f.Candidate.Enabled = worker%2 == 0
			judge := activation.Judge(time.UnixMicro(f.Now/1000), f.Call, f.Identity)
			for range 50 {
				decision, err := judge.Decide(context.Background(), f.Candidate, nil)
				if err != nil || decision.Allow != f.Candidate.Enabled {
					t.Errorf("got %+v, %v", decision, err)
					return
				}
			}
		})
	}
	group.Wait()
}
