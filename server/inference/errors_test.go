package inference

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"regent/adapters"
	"regent/engine"
	"regent/ledger"
)

// answers is the table of failures as clients see them: by OpenAI's type and code, Anthropic's type, and, inside a stream of Responses, the
// code that Codex knows; then the Retry-After header in seconds, and whether the vendors' SDKs are told not to try again.
const answers = `
failure                     | status type                  code                        | Anthropic's type      | in a Responses stream   | after again
no token                    | 401    invalid_request_error invalid_api_key             | authentication_error  | invalid_prompt          | -     -
two tokens                  | 401    invalid_request_error invalid_api_key             | authentication_error  | invalid_prompt          | -     -
inference is switched off   | 503    server_error          inference_disabled          | overloaded_error      | server_error            | -     never
no such path                | 404    invalid_request_error not_found                   | not_found_error       | invalid_prompt          | -     -
no such method              | 405    invalid_request_error method_not_allowed          | invalid_request_error | invalid_prompt          | -     -
no request                  | 400    invalid_request_error invalid_request             | invalid_request_error | invalid_prompt          | -     -
an unknown encoding         | 415    invalid_request_error unsupported_encoding        | invalid_request_error | invalid_prompt          | -     -
too large a body            | 413    invalid_request_error request_too_large           | request_too_large     | invalid_prompt          | -     -
too slow a body             | 408    invalid_request_error request_timeout             | timeout_error         | invalid_prompt          | -     -
too many bodies             | 503    server_error          overloaded                  | overloaded_error      | server_error            | 1     -
a continuation              | 404    invalid_request_error previous_response_not_found | not_found_error       | invalid_prompt          | -     never
stopping                    | 503    server_error          draining                    | overloaded_error      | server_error            | 1     -
the ledger is closed        | 503    server_error          ledger_unavailable          | overloaded_error      | server_error            | 1     -
anything else               | 500    server_error          internal_error              | api_error             | server_error            | -     -

a rule refuses              | 403    invalid_request_error R                           | permission_error      | invalid_prompt          | -     never
too long, says policy       | 400    invalid_request_error context_length_exceeded     | invalid_request_error | context_length_exceeded | -     never
the model is hidden         | 404    invalid_request_error model_not_found             | not_found_error       | invalid_prompt          | -     never
the model is switched off   | 404    invalid_request_error model_not_found             | not_found_error       | invalid_prompt          | -     never
the caller's limit          | 429    insufficient_quota    insufficient_quota          | rate_limit_error      | insufficient_quota      | 2     never
a limit that never fits     | 429    insufficient_quota    insufficient_quota          | rate_limit_error      | insufficient_quota      | -     never
too fast                    | 429    rate_limit_error      rate_limit_exceeded         | rate_limit_error      | rate_limit_exceeded     | 2     -
too fast for long           | 429    rate_limit_error      rate_limit_exceeded         | rate_limit_error      | rate_limit_exceeded     | 61    never
no call at all              | 429    rate_limit_error      rate_limit_exceeded         | rate_limit_error      | rate_limit_exceeded     | -     never
too many at once            | 429    rate_limit_error      rate_limit_exceeded         | rate_limit_error      | rate_limit_exceeded     | 5     -
no capacity                 | 503    server_error          capacity_unavailable        | overloaded_error      | rate_limit_exceeded     | 2     -
no capacity, no time        | 503    server_error          capacity_unavailable        | overloaded_error      | rate_limit_exceeded     | 5     -
no capacity for a minute    | 503    server_error          capacity_unavailable        | overloaded_error      | rate_limit_exceeded     | 60    -
no capacity for longer      | 503    server_error          capacity_unavailable        | overloaded_error      | server_is_overloaded    | 61    never
the ledger is away          | 503    server_error          R                           | overloaded_error      | server_error            | 1     -
an amount out of range      | 400    invalid_request_error R                           | invalid_request_error | invalid_prompt          | -     -
the key is taken            | 409    invalid_request_error duplicate_request           | conflict_error        | invalid_prompt          | -     never

the provider: invalid       | 422    invalid_request_error invalid_request             | invalid_request_error | invalid_prompt          | -     -
the provider: a parameter   | 400    invalid_request_error unsupported_parameter       | invalid_request_error | invalid_prompt          | -     -
the provider: too long      | 400    invalid_request_error context_length_exceeded     | invalid_request_error | context_length_exceeded | -     -
the provider: content       | 400    invalid_request_error content_policy_violation    | invalid_request_error | invalid_prompt          | -     -
the provider: rate          | 503    server_error          capacity_unavailable        | overloaded_error      | rate_limit_exceeded     | 30    -
the provider: a long rest   | 503    server_error          capacity_unavailable        | overloaded_error      | server_is_overloaded    | 3600  never
the provider: overloaded    | 503    server_error          capacity_unavailable        | overloaded_error      | rate_limit_exceeded     | 5     -
the provider: our key       | 502    server_error          upstream_error              | api_error             | server_error            | -     never
the provider: no such model | 502    server_error          upstream_error              | api_error             | server_error            | -     never
the provider: too slow      | 504    server_error          upstream_timeout            | timeout_error         | server_error            | -     -
the provider: broken        | 502    server_error          upstream_error              | api_error             | server_error            | -     -
`

// failures are the errors of the table's rows.
func failures() map[string]answer {
	wait, longest, tooLong := int64(1500), int64(60_000), int64(60_001)
	refusal := func(class engine.Class, reason string, retryAfterMs *int64) answer {
		return describe(&engine.Error{Code: engine.CodePolicy, Message: "m", Details: engine.Details{Class: class, Reason: reason, RetryAfterMs: retryAfterMs}}, false)
	}
	failure := func(reason adapters.Reason, status int) answer {
		return describe(&adapters.Failure{Reason: reason, Status: status, Cause: errors.New("the provider's own words")}, false)
	}
	return map[string]answer{
		"no token": unauthenticated, "two tokens": twoTokens, "inference is switched off": switchedOff, "no such path": pathNotFound,
		"no such method": methodNotAllowed, "no request": invalid("m"), "an unknown encoding": unsupportedEncoding, "too large a body": tooLarge,
		"too slow a body": tooSlow, "too many bodies": overloaded, "a continuation": describe(answerError(continuationNotFound), false),
		"stopping": describe(errStopped, false), "the ledger is closed": describe(ledger.ErrClosed, false), "anything else": describe(errors.New("a secret"), false),

		"a rule refuses":            refusal(engine.ClassPolicy, "R", nil),
		"too long, says policy":     refusal(engine.ClassPolicy, "CONTEXT_EXCEEDED", nil),
		"the model is hidden":       refusal(engine.ClassAccess, "R", nil),
		"the model is switched off": describe(&engine.Error{Details: engine.Details{Class: engine.ClassCapacity}}, true),
		"the caller's limit":        refusal(engine.ClassCallerLimit, "R", &wait),
		"a limit that never fits":   refusal(engine.ClassCallerLimit, "R", nil),
		"too fast":                  refusal(engine.ClassRate, "R", &wait),
		"too fast for long":         refusal(engine.ClassRate, "R", &tooLong),
		"no call at all":            refusal(engine.ClassRate, "R", nil),
		"too many at once":          refusal(engine.ClassRate, engine.ReasonConcurrency, &tooLong),
		"no capacity":               refusal(engine.ClassCapacity, "R", &wait),
		"no capacity, no time":      refusal(engine.ClassCapacity, "R", nil),
		"no capacity for a minute":  refusal(engine.ClassCapacity, "R", &longest),
		"no capacity for longer":    refusal(engine.ClassCapacity, "R", &tooLong),
		"the ledger is away":        refusal(engine.ClassUnavailable, "R", nil),
		"an amount out of range":    refusal(engine.ClassInvalid, "R", nil),
		"the key is taken":          refusal(engine.ClassDuplicate, "R", nil),

		"the provider: invalid":       failure(adapters.InvalidRequest, 422),
		"the provider: a parameter":   describe(&adapters.Failure{Reason: adapters.InvalidRequest, Status: 400, Code: "unsupported_parameter"}, false),
		"the provider: too long":      failure(adapters.ContextLength, 400),
		"the provider: content":       failure(adapters.ContentPolicy, 400),
		"the provider: rate":          failure(adapters.RateLimited, 429),
		"the provider: a long rest":   describe(&adapters.Failure{Reason: adapters.RateLimited, Status: 429, RetryAfter: time.Hour}, false),
		"the provider: overloaded":    failure(adapters.Overloaded, 529),
		"the provider: our key":       failure(adapters.Credential, 401),
		"the provider: no such model": failure(adapters.ModelMissing, 404),
		"the provider: too slow":      failure(adapters.Timeout, 0),
		"the provider: broken":        failure(adapters.StreamBroken, 200),
	}
}

// TestAnswers: each failure, in each form, as a whole answer and inside a stream.
func TestAnswers(t *testing.T) {
	all := failures()
	for _, row := range strings.Split(strings.TrimSpace(answers), "\n")[1:] {
		if row == "" {
			continue
		}
		cells := strings.Split(row, "|")
		name, told := strings.TrimSpace(cells[0]), strings.Fields(strings.Join(cells[1:], " "))
		a, known := all[name]
		if !known || len(told) != 7 {
			t.Fatalf("%q is no row: %q", name, told)
		}
		delete(all, name)
		for form, want := range map[*form]string{openAIForm: told[1] + " " + told[2], responsesForm: told[1] + " " + told[2], anthropicForm: told[3] + " " + told[2]} {
			recorder := httptest.NewRecorder()
			a.write(recorder, form, "the-id")
			if got := fmt.Sprint(recorder.Code); got != told[0] {
				t.Errorf("%s: the status is %s, want %s", name, got, told[0])
			}
			if got := wholeError(t, form, recorder.Body.Bytes()); got != want {
				t.Errorf("%s: got %s, want %s", name, got, want)
			}
			if after := cmp.Or(recorder.Header().Get("Retry-After"), "-"); after != told[5] {
				t.Errorf("%s: Retry-After is %s, want %s", name, after, told[5])
			}
			if got := recorder.Header().Get("X-Should-Retry"); (got == "false") != (told[6] == "never") || got != "" && got != "false" {
				t.Errorf("%s: X-Should-Retry is %q, want it %s", name, got, told[6])
			}
			if text := recorder.Body.String(); strings.Contains(text, "own words") || strings.Contains(text, "a secret") {
				t.Errorf("%s: the answer tells what it must not: %s", name, text)
			}
		}
		for form, want := range map[*form]string{openAIForm: told[1] + " " + told[2], responsesForm: told[4], anthropicForm: told[3] + " " + told[2]} {
			if got := streamedError(t, form, string(form.event(a, "the-id"))); got != want {
				t.Errorf("%s: in a stream, got %s, want %s", name, got, want)
			}
		}
	}
	if len(all) > 0 {
		t.Errorf("the table lacks %v", slices.Collect(maps.Keys(all)))
	}
}

// wholeError reads an error as the clients of a form do: its type and its code.
func wholeError(t *testing.T, form *form, body []byte) string {
	t.Helper()
	var document struct {
		Type      string
		RequestID string `json:"request_id"`
		Error     struct {
			Message, Type, Code string
			RequestID           string `json:"request_id"`
		}
	}
	if err := json.Unmarshal(body, &document); err != nil || document.Error.Message == "" {
		t.Errorf("%s: %v", body, err)
	}
	if form == anthropicForm && (document.Type != "error" || document.RequestID != "the-id") || form != anthropicForm && document.Error.RequestID != "the-id" {
		t.Errorf("the wrong shape: %s", body)
	}
	return document.Error.Type + " " + document.Error.Code
}

// streamedError reads the event that ends a stream: its type and its code, or the code alone of a response that has failed.
func streamedError(t *testing.T, in *form, event string) string {
	t.Helper()
	name, data, named := strings.Cut(strings.TrimPrefix(event, "event: "), "\ndata: ")
	if !named {
		data = strings.TrimPrefix(event, "data: ")
	}
	data, ended := strings.CutSuffix(data, "\n\n")
	if want := map[*form]string{responsesForm: "response.failed", anthropicForm: "error"}[in]; named != (want != "") || named && name != want || !ended {
		t.Errorf("the wrong event: %q", event)
	}
	if in != responsesForm {
		return wholeError(t, in, []byte(data))
	}
	var failed struct {
		Type     string
		Response struct {
			ID, Status string
			Output     []any
			Error      struct{ Code, Message string }
		}
	}
	if err := json.Unmarshal([]byte(data), &failed); err != nil || failed.Type != name || failed.Response.Status != "failed" ||
		failed.Response.ID == "" || failed.Response.Output == nil || failed.Response.Error.Message == "" {
		t.Errorf("%s: %v", data, err)
	}
	return failed.Response.Error.Code
}

// TestAStreamTellsCodexWhenToComeBack: it has no header left, and Codex reads the words.
func TestAStreamTellsCodexWhenToComeBack(t *testing.T) {
	for name, want := range map[string]bool{"too fast": true, "no call at all": false, "no capacity": true, "no capacity for longer": false} {
		event := string(responsesForm.event(failures()[name], "id"))
		if strings.Contains(event, "Please try again in 2s.") != want {
			t.Errorf("%s: %s", name, event)
		}
	}
}

// TestAPromptThatIsTooLongSaysByHowMuch: in the words that Claude Code knows, whoever has found it too long.
func TestAPromptThatIsTooLongSaysByHowMuch(t *testing.T) {
	most := int64(200_000)
	for _, test := range []struct {
		failure string
		tokens  int64
		most    *int64
		want    string
	}{
		{"too long, says policy", 200_001, &most, "prompt is too long: 200001 tokens > 200000 maximum"},
		{"the provider: too long", 250_000, &most, "prompt is too long: 250000 tokens > 200000 maximum"},
		{"the provider: too long", 150_000, &most, "prompt is too long: 200001 tokens > 200000 maximum"}, // it has counted more than the estimate
		{"the provider: too long", 150_000, nil, "The prompt is too long for the model's context."},
		{"a rule refuses", 250_000, &most, "m"},
	} {
		if got := failures()[test.failure].withSizes(test.tokens, test.most).message; got != test.want {
			t.Errorf("%s: got %q, want %q", test.failure, got, test.want)
		}
	}
}

// flushRecorder is a client whose writes can be made to block.
type flushRecorder struct {
	*httptest.ResponseRecorder
	gate chan struct{}
}

func (f *flushRecorder) Write(p []byte) (int, error) {
	if f.gate != nil {
		<-f.gate
	}
	return f.ResponseRecorder.Write(p)
}

func TestStreamKeepsSilentClientsOnly(t *testing.T) {
	client := &flushRecorder{ResponseRecorder: httptest.NewRecorder()}
	s := newStream(client, writeStall)
	defer s.close()
	if client.Body.Len() > 0 {
		t.Fatal("committed before anything happened")
	}
	s.tick() // as the timer does after a second
	s.tick() // and after a silence
	if err := s.write([]byte("data: 1\n\n"), false); err != nil {
		t.Fatal(err)
	}
	want := ": keepalive\n\n: keepalive\n\ndata: 1\n\n"
	if got := client.Body.String(); got != want || client.Code != http.StatusOK {
		t.Errorf("got %d %q, want %q", client.Code, got, want)
	}
	// A client that takes nothing gets no comment in the middle of an event.
	client.gate = make(chan struct{})
	written := make(chan error)
	go func() { written <- s.write([]byte("data: 2\n\n"), false) }()
	for s.mu.TryLock() {
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	s.tick()
	close(client.gate)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if got := client.Body.String(); got != want+"data: 2\n\n" {
		t.Errorf("got %q", got)
	}
}

// flushes notes what a client has by each flush.
type flushes struct {
	*httptest.ResponseRecorder
	seen []string
}

func (f *flushes) Flush() {
	f.seen = append(f.seen, f.Body.String())
	f.Body.Reset()
}

func TestAStreamWritesTogetherWhatComesTogether(t *testing.T) {
	client := &flushes{ResponseRecorder: httptest.NewRecorder()}
	s := newStream(client, writeStall)
	defer s.close()
	for _, event := range []struct {
		text string
		more bool
	}{{"1", true}, {"2", true}, {"", true}, {"3", false}, {"", false}, {"4", false}, {"5", true}, {"", false}} {
		if err := s.write([]byte(event.text), event.more); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.write([]byte("6"), true); err != nil {
		t.Fatal(err)
	}
	s.tick() // nothing waits for an event that does not come
	if want := []string{string(keepalive) + "123", "4", "5", "6" + string(keepalive)}; !slices.Equal(client.seen, want) {
		t.Errorf("got %q, want %q", client.seen, want)
	}
}

func TestStreamKeepsItsStatusUntilItIsCommitted(t *testing.T) {
	client := httptest.NewRecorder()
	s := newStream(client, writeStall)
	if !s.abandon() {
		t.Fatal("an uncommitted stream could not be abandoned")
	}
	s.tick()
	if client.Body.Len() > 0 {
		t.Errorf("an abandoned stream wrote %q", client.Body)
	}
	s = newStream(client, writeStall)
	if err := s.begin(); err != nil {
		t.Fatal(err)
	}
	if s.abandon() {
		t.Error("a committed stream was abandoned")
	}
}
