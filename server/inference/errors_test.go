package inference

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"regent/adapters"
	"regent/engine"
)

// TestAnswers is the table of failures as a client sees them.
func TestAnswers(t *testing.T) {
	wait, longest, tooLong := int64(1500), int64(60_000), int64(60_001)
	refusal := func(class engine.Class, retryAfterMs *int64) error {
		return &engine.Error{Code: engine.CodePolicy, Message: "m", Details: engine.Details{Class: class, Reason: "R", RetryAfterMs: retryAfterMs}}
	}
	failure := func(reason adapters.Reason, status int) error {
		return &adapters.Failure{Reason: reason, Status: status, Cause: errors.New("the provider's own words")}
	}
	crowded := &engine.Error{Message: "m", Details: engine.Details{Class: engine.ClassRate, Reason: engine.ReasonConcurrency, RetryAfterMs: &tooLong}}
	resting := &adapters.Failure{Reason: adapters.RateLimited, Status: http.StatusTooManyRequests, RetryAfter: time.Hour}
	for name, test := range map[string]struct {
		err        error
		modelOff   bool
		status     int
		code       string
		retryAfter string
		noRetry    bool
	}{
		"a rule refuses":              {err: refusal(engine.ClassPolicy, nil), status: 403, code: "R", noRetry: true},
		"the model is hidden":         {err: refusal(engine.ClassAccess, nil), status: 404, code: "model_not_found", noRetry: true},
		"the caller's limit":          {err: refusal(engine.ClassCallerLimit, &wait), status: 429, code: "insufficient_quota", retryAfter: "2", noRetry: true},
		"a limit that never fits":     {err: refusal(engine.ClassCallerLimit, nil), status: 429, code: "insufficient_quota", noRetry: true},
		"too fast":                    {err: refusal(engine.ClassRate, &wait), status: 429, code: "rate_limit_exceeded", retryAfter: "2"},
		"too fast for long":           {err: refusal(engine.ClassRate, &tooLong), status: 429, code: "rate_limit_exceeded", retryAfter: "61", noRetry: true},
		"no call at all":              {err: refusal(engine.ClassRate, nil), status: 429, code: "rate_limit_exceeded", noRetry: true},
		"too many at once":            {err: crowded, status: 429, code: "rate_limit_exceeded", retryAfter: "5"},
		"no capacity":                 {err: refusal(engine.ClassCapacity, &wait), status: 503, code: "capacity_unavailable", retryAfter: "2"},
		"no capacity, no time":        {err: refusal(engine.ClassCapacity, nil), status: 503, code: "capacity_unavailable", retryAfter: "5"},
		"no capacity for a minute":    {err: refusal(engine.ClassCapacity, &longest), status: 503, code: "capacity_unavailable", retryAfter: "60"},
		"no capacity for longer":      {err: refusal(engine.ClassCapacity, &tooLong), status: 503, code: "capacity_unavailable", retryAfter: "61", noRetry: true},
		"the model is switched off":   {err: refusal(engine.ClassCapacity, nil), modelOff: true, status: 404, code: "model_not_found", noRetry: true},
		"the ledger is away":          {err: refusal(engine.ClassUnavailable, nil), status: 503, code: "R", retryAfter: "1"},
		"an amount out of range":      {err: refusal(engine.ClassInvalid, nil), status: 400, code: "R"},
		"the key is taken":            {err: refusal(engine.ClassDuplicate, nil), status: 409, code: "duplicate_request", noRetry: true},
		"the provider: invalid":       {err: failure(adapters.InvalidRequest, 422), status: 422, code: "invalid_request"},
		"the provider: too long":      {err: failure(adapters.ContextLength, 400), status: 400, code: "context_length_exceeded"},
		"the provider: content":       {err: failure(adapters.ContentPolicy, 400), status: 400, code: "content_policy_violation"},
		"the provider: rate":          {err: failure(adapters.RateLimited, 429), status: 503, code: "capacity_unavailable", retryAfter: "30"},
		"the provider: a long rest":   {err: resting, status: 503, code: "capacity_unavailable", retryAfter: "3600", noRetry: true},
		"the provider: overloaded":    {err: failure(adapters.Overloaded, 529), status: 503, code: "capacity_unavailable", retryAfter: "5"},
		"the provider: our key":       {err: failure(adapters.Credential, 401), status: 502, code: "upstream_error"},
		"the provider: no such model": {err: failure(adapters.ModelMissing, 404), status: 502, code: "upstream_error"},
		"the provider: too slow":      {err: failure(adapters.Timeout, 0), status: 504, code: "upstream_timeout"},
		"the provider: broken":        {err: failure(adapters.StreamBroken, 200), status: 502, code: "upstream_error"},
		"stopping":                    {err: errStopped, status: 503, code: "draining", retryAfter: "1"},
		"anything else":               {err: errors.New("a secret"), status: 500, code: "internal_error"},
	} {
		recorder := httptest.NewRecorder()
		describe(test.err, test.modelOff).write(recorder, "id")
		var body struct {
			Error struct{ Message, Type, Code string }
		}
		if err := json.Unmarshal(recorder.Body.Bytes(), &body); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if recorder.Code != test.status || body.Error.Code != test.code || body.Error.Message == "" || body.Error.Type == "" {
			t.Errorf("%s: got %d %+v, want %d %s", name, recorder.Code, body.Error, test.status, test.code)
		}
		if got := recorder.Header().Get("Retry-After"); got != test.retryAfter {
			t.Errorf("%s: Retry-After %q, want %q", name, got, test.retryAfter)
		}
		if got := recorder.Header().Get("X-Should-Retry") == "false"; got != test.noRetry {
			t.Errorf("%s: X-Should-Retry: false is %v, want %v", name, got, test.noRetry)
		}
		if text := recorder.Body.String(); strings.Contains(text, "own words") || strings.Contains(text, "a secret") {
			t.Errorf("%s: the answer tells what it must not: %s", name, text)
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
	if err := s.write([]byte("data: 1\n\n")); err != nil {
		t.Fatal(err)
	}
	want := ": keepalive\n\n: keepalive\n\ndata: 1\n\n"
	if got := client.Body.String(); got != want || client.Code != http.StatusOK {
		t.Errorf("got %d %q, want %q", client.Code, got, want)
	}
	// A client that takes nothing gets no comment in the middle of an event.
	client.gate = make(chan struct{})
	written := make(chan error)
	go func() { written <- s.write([]byte("data: 2\n\n")) }()
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
