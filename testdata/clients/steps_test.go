package clients

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"
)

// speaker is an SDK that speaks one of the gateway's protocols. All but its transport is its default, retries included.
type speaker interface {
	ask(ctx context.Context, q question) (reply, error)
	// fault reads the SDK's own error; ok is false for any other.
	fault(err error) (f fault, ok bool)
	models(ctx context.Context) (ids []string, err error)
	model(ctx context.Context, id string) (string, error)
}

// question is what an SDK is to ask.
type question struct {
	model   string
	streams bool
	tool    bool // it offers the tool "run"
	// before is the answer that the question goes on from: its tool call has brought "hello".
	before *reply
	// heard is told of each text of a stream as it comes.
	heard func(text string)
}

// reply is what an SDK has made of an answer.
type reply struct {
	model, text, finish string
	texts               []string // as a stream brought them
	input, output       int64
	tool                toolCall
	message             any            // in the SDK's own type, as it sends it back
	response            *http.Response // of which the header is known before the stream's end
}

type toolCall struct{ id, name, arguments string }

// fault is what an SDK tells of an error.
type fault struct {
	status                         int
	kind, code, message, requestID string
	header                         http.Header // nil in a stream
}

// dialect is an SDK's way to one of the protocols, and what is its own in the answers.
type dialect struct {
	name string
	dial func(g *gateway, token string, client *http.Client) speaker
	// stop and toolUse are how an answer ends, with a text and with a tool's call.
	stop, toolUse string
	// input is how many tokens the provider counts in the question as the SDK writes it.
	input int64
	// kinds are the types of errors, by their codes.
	kinds map[string]string
	// argumentsAt and resultAt are where the provider is shown the tool's call and its result.
	argumentsAt, resultAt string
}

var dialects = []dialect{
	{
		name: "openai chat", dial: dialChat, stop: "stop", toolUse: "tool_calls", input: 2, kinds: openAIKinds,
		argumentsAt: "messages.1.tool_calls.0.function.arguments", resultAt: "messages.2.content",
	},
	{
		name: "openai responses", dial: dialResponses, stop: "completed", toolUse: "completed", input: 9, kinds: openAIKinds,
		argumentsAt: "input.1.arguments", resultAt: "input.2.output",
	},
	{
		name: "anthropic v2", dial: dialMessages, stop: "end_turn", toolUse: "tool_use", input: 8, kinds: anthropicKinds,
		argumentsAt: "messages.1.content.0.input", resultAt: "messages.2.content.0.content.0.text",
	},
	{
		name: "anthropic v1 beta", dial: dialBeta, stop: "end_turn", toolUse: "tool_use", input: 8, kinds: anthropicKinds,
		argumentsAt: "messages.1.content.0.input", resultAt: "messages.2.content.0.content.0.text",
	},
}

var (
	openAIKinds = map[string]string{
		"model_not_found": "invalid_request_error", "RESIDENCY_MISMATCH": "invalid_request_error", "invalid_api_key": "invalid_request_error",
		"insufficient_quota": "insufficient_quota", "capacity_unavailable": "server_error", "upstream_error": "server_error",
	}
	anthropicKinds = map[string]string{
		"model_not_found": "not_found_error", "RESIDENCY_MISMATCH": "permission_error", "invalid_api_key": "authentication_error",
		"insufficient_quota": "rate_limit_error", "capacity_unavailable": "overloaded_error", "upstream_error": "api_error",
	}
)

// TestGo has each SDK for Go take the same steps, each on a gateway of its own.
func TestGo(t *testing.T) {
	for _, d := range dialects {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			g := start(t)
			for _, step := range []struct {
				name string
				run  func(*sdk)
			}{
				{"a turn", turn}, {"a stream", stream}, {"a tool call", toolTurns}, {"models", models}, {"denied models", deniedModels},
				{"a refusal by policy", refusedByPolicy}, {"a wrong token", wrongToken}, {"an exhausted budget", exhaustedBudget},
				{"a failure of capacity", capacity}, {"a long wait", longWait}, {"an error in mid-stream", midStream}, {"an aborted stream", aborted},
			} {
				t.Run(step.name, func(t *testing.T) { step.run(d.as(t, g, richToken)) })
			}
		})
	}
}

// sdk is an SDK as a user of a gateway.
type sdk struct {
	speaker
	*gateway
	dialect
	*testing.T
	token string
	// tries counts the HTTP requests that have left the SDK.
	tries atomic.Int64
}

// RoundTrip counts a request on its way.
func (s *sdk) RoundTrip(r *http.Request) (*http.Response, error) {
	s.tries.Add(1)
	return http.DefaultTransport.RoundTrip(r)
}

func (d dialect) as(t *testing.T, g *gateway, token string) *sdk {
	s := &sdk{gateway: g, dialect: d, T: t, token: token}
	s.speaker = d.dial(g, token, &http.Client{Transport: s})
	return s
}

// behave scripts a model of the provider and forgets what was counted.
func (s *sdk) behave(model, script string) {
	s.Helper()
	if err := s.script(model, []byte(script)); err != nil {
		s.Fatal(err)
	}
	s.tries.Store(0)
}

// counted asserts how many requests have left the SDK, and how many calls the provider has seen.
func (s *sdk) counted(model string, tries int64, calls int) {
	s.Helper()
	if got, seen := s.tries.Load(), s.upstream.Seen(model).Requests; got != tries || seen != calls {
		s.Errorf("%d requests left the SDK and the provider saw %d calls, want %d and %d", got, seen, tries, calls)
	}
}

const requestID = "X-Regent-Request-Id"

// ended asserts how a call is recorded.
func (s *sdk) ended(id, state string) gjson.Result {
	s.Helper()
	call := s.settled(s.T, s.token, id)
	if call.Get("id").Str != id || call.Get("state").Str != state {
		s.Errorf("the call is %s", call)
	}
	return call
}

// answer asks and has to be answered.
func (s *sdk) answer(q question) reply {
	s.Helper()
	answer, err := s.ask(s.Context(), q)
	if err != nil {
		s.Fatal(err)
	}
	return answer
}

// refusal asks and has to be refused, with an error of the SDK's own.
func (s *sdk) refusal(q question, status int, code string) fault {
	s.Helper()
	_, err := s.ask(s.Context(), q)
	got, ok := s.fault(err)
	if !ok {
		s.Fatalf("got the error %v, want the SDK's own", err)
	}
	if got.status != status || got.code != code || got.kind != s.kinds[code] {
		s.Errorf("got %d %s %s, want %d %s %s", got.status, got.kind, got.code, status, s.kinds[code], code)
	}
	if got.requestID != got.header.Get(requestID) || !uuid.MatchString(got.requestID) {
		s.Errorf("the refusal has the id %q, its header %v", got.requestID, got.header)
	}
	return got
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// cost is what so many tokens cost: a dollar a million.
func cost(tokens int64) string { return strings.TrimRight(fmt.Sprintf("0.%06d", tokens), "0") }

func turn(s *sdk) {
	s.behave("scripted", `{"text": ["Good", " day"]}`)
	got := s.answer(question{model: "open/scripted"})
	if got.model != "open/scripted" || got.text != "Good day" || got.finish != s.stop || got.input != s.input || got.output != 2 {
		s.Errorf("got %+v", got)
	}
	s.counted("scripted", 1, 1)
	call := s.ended(got.response.Header.Get(requestID), "completed")
	if call.Get("charge.usd").Str != cost(s.input+2) || call.Get("stream").Bool() {
		s.Errorf("the call is %s", call)
	}
}

func stream(s *sdk) {
	s.behave("scripted", `{"text": ["Good", " day", "!"], "split": 7}`)
	got := s.answer(question{model: "open/scripted", streams: true})
	if got.model != "open/scripted" || !slices.Equal(got.texts, []string{"Good", " day", "!"}) || got.text != "Good day!" || got.finish != s.stop {
		s.Errorf("got %+v", got)
	}
	if got.input != s.input || got.output != 3 {
		s.Errorf("used %d and %d", got.input, got.output)
	}
	s.counted("scripted", 1, 1)
	call := s.ended(got.response.Header.Get(requestID), "completed")
	if call.Get("charge.usd").Str != cost(s.input+3) || !call.Get("stream").Bool() {
		s.Errorf("the call is %s", call)
	}
}

// toolTurns hold a conversation of two turns: the provider calls a tool, is shown its result, and answers.
func toolTurns(s *sdk) {
	for _, streams := range []bool{false, true} {
		s.behave("scripted", `{"text": ["It", " is", " hello"]}`)
		first := s.answer(question{model: "open/scripted", streams: streams, tool: true})
		if first.finish != s.toolUse || first.text != "" || first.tool.name != "run" || first.tool.arguments != `{"command":"echo hello"}` || first.tool.id == "" {
			s.Fatalf("streams %v: got %+v", streams, first)
		}
		second := s.answer(question{model: "open/scripted", streams: streams, tool: true, before: &first})
		if second.finish != s.stop || second.text != "It is hello" || second.tool != (toolCall{}) {
			s.Errorf("streams %v: got %+v", streams, second)
		}
		shown := s.upstream.Seen("scripted").Body
		if gjson.GetBytes(shown, s.argumentsAt).String() != `{"command":"echo hello"}` || gjson.GetBytes(shown, s.resultAt).Str != "hello" {
			s.Errorf("streams %v: the provider was shown %s", streams, shown)
		}
		s.counted("scripted", 2, 2)
	}
}

func models(s *sdk) {
	ids, err := s.models(s.Context())
	if want := []string{"open/scripted", "open/busy", "open/abroad"}; err != nil || !slices.Equal(ids, want) {
		s.Errorf("got %q, %v, want %q", ids, err, want)
	}
	if id, err := s.model(s.Context(), "open/scripted"); err != nil || id != "open/scripted" {
		s.Errorf("got %q, %v", id, err)
	}
	for _, id := range []string{"closed/scripted", "open/unknown"} {
		_, err := s.model(s.Context(), id)
		if got, ok := s.fault(err); !ok || got.status != http.StatusNotFound || got.code != "model_not_found" || got.kind != s.kinds[got.code] {
			s.Errorf("%s: got %+v, %v", id, got, err)
		}
	}
}

// deniedModels: one that is not there and one that the caller may not use look the same.
func deniedModels(s *sdk) {
	var told []string
	for _, model := range []string{"closed/scripted", "open/unknown"} {
		for _, streams := range []bool{false, true} {
			s.behave("scripted", `{}`)
			told = append(told, s.refusal(question{model: model, streams: streams}, http.StatusNotFound, "model_not_found").message)
			s.counted("scripted", 1, 0)
		}
	}
	if told = slices.Compact(told); len(told) != 1 {
		s.Errorf("the refusals differ: %q", told)
	}
}

func refusedByPolicy(s *sdk) {
	for _, streams := range []bool{false, true} {
		s.behave("scripted", `{}`)
		got := s.refusal(question{model: "open/abroad", streams: streams}, http.StatusForbidden, "RESIDENCY_MISMATCH")
		if want := "Choose a model that is served in the residency you ask for."; !strings.HasSuffix(got.message, want) {
			s.Errorf("the refusal says %q", got.message)
		}
		s.counted("scripted", 1, 0)
		s.ended(got.requestID, "denied")
	}
}

func wrongToken(s *sdk) {
	for _, token := range []string{"gwi_" + strings.Repeat("3", 64), "sk-of-another-vendor"} {
		for _, streams := range []bool{false, true} {
			s := s.as(s.T, s.gateway, token)
			s.behave("scripted", `{}`)
			got := s.refusal(question{model: "open/scripted", streams: streams}, http.StatusUnauthorized, "invalid_api_key")
			if strings.Contains(got.message, token) {
				s.Errorf("the refusal repeats the token: %s", got.message)
			}
			s.counted("scripted", 1, 0)
		}
	}
}

var exhausted = regexp.MustCompile(`^the limit of 110 tokens for user/poor/tokens is reached: used (\d+), held by running calls 0; ` +
	`there is room again within (1h0m0s|59m\d+s)$`)

func exhaustedBudget(s *sdk) {
	s = s.as(s.T, s.gateway, poorToken)
	s.behave("scripted", `{}`)
	s.ended(s.answer(question{model: "open/scripted"}).response.Header.Get(requestID), "completed")
	for _, streams := range []bool{false, true} {
		s.behave("scripted", `{}`)
		got := s.refusal(question{model: "open/scripted", streams: streams}, http.StatusTooManyRequests, "insufficient_quota")
		if said := exhausted.FindStringSubmatch(got.message); said == nil || said[1] != fmt.Sprint(s.input+5) {
			s.Errorf("the refusal says %q", got.message)
		}
		wait, err := strconv.Atoi(got.header.Get("Retry-After"))
		if err != nil || wait < 3500 || wait > 3600 || got.header.Get("X-Should-Retry") != "false" {
			s.Errorf("the refusal's header is %v", got.header)
		}
		s.counted("scripted", 1, 0)
	}
}

// capacity: the SDK waits as long as it is told to, tries again, and gets its answer.
func capacity(s *sdk) {
	for i, status := range []int{429, 503, 529} {
		s.behave("scripted", fmt.Sprintf(`[{"status": %d, "retry_after": 1}, {"text": ["again"]}]`, status))
		if got := s.answer(question{model: "open/scripted", streams: i == 1}); got.text != "again" {
			s.Errorf("%d: got %+v", status, got)
		}
		s.counted("scripted", 2, 2)
	}
}

// longWait: a provider that wants to be left alone for an hour does not make the SDK wait for an hour.
func longWait(s *sdk) {
	s.behave("busy", `{"status": 429, "retry_after": 3600}`)
	for range 2 { // the second time the source is not even asked
		s.refusal(question{model: "open/busy"}, http.StatusServiceUnavailable, "capacity_unavailable")
	}
	s.counted("busy", 2, 1)
}

// midStream: what came before the error was delivered, and the error is not the stream's end.
func midStream(s *sdk) {
	for _, script := range []string{
		`{"text": ["a", "b", "c"], "error_after": 2}`, `{"text": ["a", "b"], "omit_done": true}`, `{"text": ["a", "b", "c"], "chunk_ms": 5, "break": "after_first_delta"}`,
	} {
		s.behave("scripted", script)
		answer, err := s.ask(s.Context(), question{model: "open/scripted", streams: true})
		want := []string{"a", "b"}
		if strings.Contains(script, "break") {
			want = want[:1]
		}
		if !slices.Equal(answer.texts, want) {
			s.Errorf("%s: got %q", script, answer.texts)
		}
		got, ok := s.fault(err)
		if !ok {
			s.Fatalf("%s: got the error %v, want the SDK's own", script, err)
		}
		id := answer.response.Header.Get(requestID)
		if got.code != "upstream_error" || got.kind != s.kinds[got.code] || got.message != "The provider's answer broke off." || got.requestID != id {
			s.Errorf("%s: got %+v", script, got)
		}
		s.counted("scripted", 1, 1)
		s.ended(id, "failed")
	}
}

func aborted(s *sdk) {
	s.behave("scripted", `{"text": ["a", "b"], "hold_after_delta": true}`)
	ctx, abort := context.WithCancel(s.Context())
	defer abort()
	answer, err := s.ask(ctx, question{model: "open/scripted", streams: true, heard: func(string) { abort() }})
	if !slices.Equal(answer.texts, []string{"a"}) || !errors.Is(err, context.Canceled) {
		s.Errorf("an aborted stream brings %q and ends with %v", answer.texts, err)
	}
	s.counted("scripted", 1, 1)
	if call := s.ended(answer.response.Header.Get(requestID), "cancelled"); call.Get("attempts.0.reason").Str != "client_gone" {
		s.Errorf("the call is %s", call)
	}
	eventually(s.T, "the provider's call is ended", func() bool { return s.upstream.Seen("scripted").Open == 0 })
}
