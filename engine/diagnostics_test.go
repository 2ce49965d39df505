package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

func TestDiagnosticsFitWhateverTheyHold(t *testing.T) {
	b := newBench(t, nil)
	request := hosted("one")
	request.Identity.Principal = text(strings.Repeat("x", 1<<20))
	refusal := b.refused(request, CodePolicy, ReasonPolicyFailed)
	for _, d := range []Diagnostics{refusal.Diagnostics, b.diagnostics[0]} {
		encoded, err := json.Marshal(d)
		if err != nil || len(encoded) > b.router.DiagnosticsBytes || !d.Truncated || d.Outcome != "deny" {
			t.Errorf("%d bytes, %v", len(encoded), err)
		}
	}
}

func TestRoutingIsHonouredOnlyIfAllowed(t *testing.T) {
	for setting, want := range map[string]bool{"strip": false, "honour": true} {
		b := newBench(t, func(_ *Config, s *policy.Settings) { s.OpenRouterRouting = setting })
		for _, carries := range []bool{false, true} {
			request := hosted("auto")
			request.Candidates[0].OpenRouterRouting = carries
			resolution, err := b.router.Resolve(ctx, request)
			if err != nil || resolution.HonourRouting != want || resolution.Diagnostics.OpenRouterRoutingHonored != (want && carries) {
				t.Errorf("%s, carries %v: %+v, %v", setting, carries, resolution, err)
			}
		}
	}
}

func TestIdentityRefs(t *testing.T) {
	for _, test := range []struct {
		identity policy.Identity
		want     IdentityRefs
	}{
		{policy.Identity{}, IdentityRefs{}},
		{policy.Identity{User: text("alice")}, IdentityRefs{PrincipalID: "alice", PrincipalKind: "user"}},
		{policy.Identity{Tenant: text("acme"), User: text("alice"), Principal: text("bot"), PrincipalKind: text("agent")}, IdentityRefs{"acme", "bot", "agent"}},
	} {
		if got := identityRefs(test.identity); got != test.want {
			t.Errorf("got %+v, want %+v", got, test.want)
		}
	}
}

// secretive is a call whose every free field holds a canary: what nobody may read begins with "secret", an id with "id".
func secretive() Request {
	request := called(1000, "id-one", "id-two", "id-three")
	request.Token, request.TaskID = "secret-token", "id-task"
	request.Call.Owner, request.Call.ClientRequestID, request.Call.IdempotencyKey = "secret-owner", "secret-client-request", "secret-key"
	request.Identity = policy.Identity{User: text("id-user"), Tenant: text("id-tenant"), Principal: text("id-principal"), PrincipalKind: text("id-kind"), Groups: []string{"id-group"}}
	return request
}

// TestNothingSecretIsRecorded: neither the journal nor diagnostics hold a credential, a fencing token, an error's text or a
// key of the client, whether calls are served, fail or are refused.
func TestNothingSecretIsRecorded(t *testing.T) {
	b := newBench(t, nil)
	b.unknown["id-two"] = true
	secret := errors.New("secret: the provider repeats the prompt")
	broken := Outcome{Err: &adapters.Failure{Reason: adapters.Connection, Code: "secret-code", Cause: secret}}
	run := func(request Request, outcome Outcome) {
		err := b.router.Serve(ctx, request, func(_ context.Context, grant *Grant) Outcome {
			if grant.Candidate.Source == "id-one" {
				return broken // and the second is a miss
			}
			return outcome
		})
		b.flush()
		if outcome.Err != nil && err == nil {
			t.Error("a failure is no success")
		}
	}
	run(secretive(), served)
	run(secretive(), broken)
	again := secretive()
	again.Call.IdempotencyKey = "secret-other"
	run(again, Outcome{Err: secret, Output: true})
	refused := secretive()
	refused.Call.IdempotencyKey = ""
	refused.Scopes[0].Limits[ledger.Tokens][0].Max = 1
	run(refused, broken)

	records, err := b.ledger.Store().Tail(ctx, 1000)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[ledger.Kind]int{}
	for _, record := range records {
		kinds[record.Kind]++
		inspect(t, record.Body)
	}
	if kinds[ledger.DecisionRecord] < 4 || kinds[ledger.OutcomeRecord] < 3 || kinds[ledger.ChargeRecord] < 1 {
		t.Errorf("records: %v", kinds)
	}
	for _, d := range b.diagnostics {
		encoded, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		inspect(t, encoded)
		if strings.Contains(string(encoded), "hold") {
			t.Errorf("diagnostics tell of a hold: %s", encoded)
		}
	}
}

// counts are the fields that are named after tokens and hold a number of them.
var counts = map[string]bool{"tokens": true, "input_tokens": true, "output_tokens_max": true, "context_tokens": true, "tokens_bounded": true}

// inspect walks a JSON text, looking for canaries and for fields that would hold what nobody may read.
func inspect(t *testing.T, body []byte) {
	t.Helper()
	var root any
	if err := json.Unmarshal(body, &root); err != nil {
		t.Fatal(err)
	}
	var walk func(path string, value any)
	walk = func(path string, value any) {
		switch value := value.(type) {
		case map[string]any:
			for name, field := range value {
				lower := strings.ToLower(name)
				if !counts[lower] && (strings.Contains(lower, "token") && !strings.Contains(lower, "/tokens") || strings.Contains(lower, "body") || strings.Contains(lower, "prompt")) {
					t.Errorf("%s.%s may not be recorded: %s", path, name, body)
				}
				walk(path+"."+name, name)
				walk(path+"."+name, field)
			}
		case []any:
			for i, element := range value {
				walk(fmt.Sprintf("%s[%d]", path, i), element)
			}
		case string:
			if strings.Contains(value, "secret") {
				t.Errorf("%s is %q", path, value)
			}
		}
	}
	walk("", root)
}

// TestDecisionsTellTheFacts: who asked, what of, and every candidate, by one id.
func TestDecisionsTellTheFacts(t *testing.T) {
	b := newBench(t, func(c *Config, _ *policy.Settings) { c.Labels = map[string]string{"id": "process-1"} })
	request := secretive()
	if _, err := b.serve(request, map[string]Outcome{"id-one": served}); err != nil {
		t.Fatal(err)
	}
	records, err := b.ledger.Store().CallRecords(ctx, request.ID)
	if err != nil || len(records) != 3 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	var event struct {
		Labels     map[string]string
		DecisionID uuid.UUID `json:"decision_id"`
		Bundles    map[string]struct{ Revision string }
		Input      struct {
			Now        int64
			Identity   policy.Identity
			Candidates []policy.Candidate
		}
		Result struct{ Selected string }
		Custom struct{ Activation string }
	}
	if err := json.Unmarshal(records[0].Body, &event); err != nil {
		t.Fatal(err)
	}
	if event.Labels["id"] != "process-1" || event.DecisionID != request.ID || event.Result.Selected != "id-one" ||
		event.Input.Now != policy.Nanos(b.Now()) || *event.Input.Identity.User != "id-user" || len(event.Input.Candidates) != 3 ||
		event.Custom.Activation != b.router.Policy.Current().Digest() || event.Bundles["regent"].Revision == "" {
		t.Errorf("got %+v", event)
	}
}
