package exchange

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/sse"
	"regent/adapters/upstream"
)

// reader is a protocol in which an event is content, "end" the last one, and "fail" an error.
type reader struct{}

func (reader) Refused(status int, _ gjson.Result) (adapters.Reason, string) {
	return ReasonOf(status), "code"
}

func (reader) Event(raw sse.Event) (adapters.Event, *adapters.Failure) {
	switch string(raw.Data) {
	case "end":
		return adapters.Event{Kind: adapters.Done, Relay: raw.Raw}, nil
	case "fail":
		return adapters.Event{}, &adapters.Failure{Reason: adapters.Overloaded}
	}
	return adapters.Event{Kind: adapters.Content, Relay: raw.Raw}, nil
}

func (reader) Whole(document []byte) (adapters.Event, *adapters.Failure) {
	if _, ok := Object(document); !ok {
		return adapters.Event{}, &adapters.Failure{Reason: adapters.UpstreamError}
	}
	return adapters.Event{Relay: document}, nil
}

// serve starts a provider that reads a request and then does as it is told, and returns a call of it.
func serve(t *testing.T, handle http.HandlerFunc) Call {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		handle(w, r)
	}))
	t.Cleanup(server.Close)
	client := upstream.New(upstream.Config{AllowPrivate: true})
	t.Cleanup(client.CloseIdleConnections)
	return Call{Client: client, Memory: &upstream.Memory{}, URL: server.URL, Body: []byte(`{}`)}
}

// streams sends a stream and leaves it open until the client goes.
func streams(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// TestAnEndThatDoesNotEnd: a provider that leaves its body open after the terminal event costs a tenth of a second at most.
func TestAnEndThatDoesNotEnd(t *testing.T) {
	gone := make(chan struct{})
	call := serve(t, func(w http.ResponseWriter, r *http.Request) {
		streams("data: end\n\n")(w, r)
		close(gone)
	})
	call.Stream = true
	answer, err := call.Send(t.Context(), reader{})
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	if event, err := answer.Next(); err != nil || event.Kind != adapters.Done || time.Since(started) > drainTime {
		t.Errorf("got %+v, %v after %v", event, err, time.Since(started))
	}
	if _, err := answer.Next(); err != io.EOF || time.Since(started) > 20*drainTime {
		t.Errorf("got %v after %v", err, time.Since(started))
	}
	<-gone
	_ = answer.Close()
}

// TestARefusalIsKnownByItsHeader: one whose body does not come must not hold up the next source.
func TestARefusalIsKnownByItsHeader(t *testing.T) {
	call := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	started := time.Now()
	_, err := call.Send(t.Context(), reader{})
	var failure *adapters.Failure
	if !errors.As(err, &failure) || failure.Reason != adapters.Overloaded || failure.Code != "code" || failure.Accepted {
		t.Errorf("got %+v", err)
	}
	if took := time.Since(started); took > errorTimeMax+3*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestAFailureInsideASuccess has the success's status, wherever it comes, and is final.
func TestAFailureInsideASuccess(t *testing.T) {
	call := serve(t, streams("data: a\n\ndata: fail\n\ndata: end\n\n"))
	call.Stream = true
	answer, err := call.Send(t.Context(), reader{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Close() }()
	if event, err := answer.Next(); err != nil || string(event.Relay) != "data: a\n\n" {
		t.Errorf("got %q, %v", event.Relay, err)
	}
	for range 2 {
		_, err := answer.Next()
		if failure, _ := err.(*adapters.Failure); failure == nil || failure.Reason != adapters.Overloaded || failure.Status != 200 || !failure.Accepted {
			t.Errorf("got %+v", err)
		}
	}
	call = serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "[]") })
	_, err = call.Send(t.Context(), reader{})
	if failure, _ := err.(*adapters.Failure); failure == nil || failure.Reason != adapters.UpstreamError || failure.Status != 200 || !failure.Accepted {
		t.Errorf("got %+v", err)
	}
}

// TestEventsThatCameTogether: what says that more follows is followed without waiting, so that nothing is held back for it.
func TestEventsThatCameTogether(t *testing.T) {
	goOn := make(chan struct{})
	call := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, piece := range []string{"data: a\n\ndata: b\n\n", "data: c\n\n: comment\n\n", "data: d\n\ndata: e", "\n\ndata: end\n\ndata: more\n\n"} {
			_, _ = io.WriteString(w, piece)
			_ = http.NewResponseController(w).Flush()
			<-goOn
		}
	})
	call.Stream = true
	answer, err := call.Send(t.Context(), reader{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Close() }()
	for _, want := range []struct {
		event string
		more  bool
	}{{"a", true}, {"b", false}, {"c", false}, {"d", false}, {"e", true}, {"end", false}} {
		event, err := answer.Next()
		if got := strings.TrimSpace(strings.TrimPrefix(string(event.Relay), "data: ")); err != nil || got != want.event || event.More != want.more {
			t.Errorf("got %q, more %v, %v, want %+v", got, event.More, err, want)
		}
		if !event.More && event.Kind != adapters.Done {
			goOn <- struct{}{}
		}
	}
	close(goOn)
}

// TestEventsAreCompleted: what the reader gets ends as an event does, and begins without a mark.
func TestEventsAreCompleted(t *testing.T) {
	call := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "\xef\xbb\xbfdata: a\n\n: comment\n\ndata:\n\ndata: end")
	})
	call.Stream = true
	answer, err := call.Send(t.Context(), reader{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Close() }()
	for _, want := range []string{"data: a\n\n", "data: end\n\n"} {
		if event, err := answer.Next(); err != nil || string(event.Relay) != want {
			t.Errorf("got %q, %v, want %q", event.Relay, err, want)
		}
	}
}

// TestAWholeAnswerThatIsClosed before it is read is gone; one that is closed meanwhile is all there, or gone.
func TestAWholeAnswerThatIsClosed(t *testing.T) {
	call := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"a":1}`) })
	for range 50 {
		answer, err := call.Send(t.Context(), reader{})
		if err != nil {
			t.Fatal(err)
		}
		var closing sync.WaitGroup
		closing.Go(func() { _ = answer.Close() })
		event, err := answer.Next()
		if err == nil && string(event.Relay) != `{"a":1}` || err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("got %q, %v", event.Relay, err)
		}
		closing.Wait()
	}
	answer, err := call.Send(t.Context(), reader{})
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Close()
	for range 2 {
		if event, err := answer.Next(); !errors.Is(err, context.Canceled) {
			t.Errorf("closed: got %q, %v", event.Relay, err)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for _, test := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "7", 7 * time.Second}, {"Retry-After", "1.5", 1500 * time.Millisecond}, {"Retry-After-Ms", "250", 250 * time.Millisecond},
		{"Retry-After", "-3", 0}, {"Retry-After", "soon", 0}, {"Retry-After", "NaN", 0}, {"Retry-After", "Inf", 0},
		{"Retry-After", "999999999", retryAfterMax}, {"Retry-After", "1e300", retryAfterMax}, {"Retry-After", "99999999999999999999", retryAfterMax},
		{"Retry-After", "0", 0}, {"Retry-After", "", 0}, {"Retry-After-Ms", "-1", 0}, {"Retry-After-Ms", "x", 0}, {"Retry-After-Ms", "1e300", retryAfterMax},
		{"Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT", retryAfterMax}, {"Retry-After", "Mon, 02 Jan 2006 15:04:05 GMT", 0},
	} {
		if got := retryAfter(http.Header{test.name: {test.value}}); got != test.want {
			t.Errorf("%s: %s: got %v, want %v", test.name, test.value, got, test.want)
		}
	}
}

func TestRetryAfterPrefersMilliseconds(t *testing.T) {
	for ms, want := range map[string]time.Duration{"20": 20 * time.Millisecond, "-20": 7 * time.Second, "soon": 7 * time.Second} {
		if got := retryAfter(http.Header{"Retry-After": {"7"}, "Retry-After-Ms": {ms}}); got != want {
			t.Errorf("%s: got %v, want %v", ms, got, want)
		}
	}
	in := time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)
	if got := retryAfter(http.Header{"Retry-After": {in}}); got < 58*time.Second || got > time.Minute {
		t.Errorf("a date in a minute: got %v", got)
	}
}

func TestObject(t *testing.T) {
	deep := strings.Repeat(`{"a":`, adapters.DepthMax) + "1" + strings.Repeat("}", adapters.DepthMax)
	for document, want := range map[string]bool{
		`{}`: true, ` {"a":1} `: true, deep: true, `{"a":` + deep + `}`: false, ``: false, `{`: false, `{}x`: false, `[]`: false, `null`: false, `"x"`: false,
	} {
		if _, ok := Object([]byte(document)); ok != want {
			t.Errorf("%.40q: got %v", document, ok)
		}
	}
}
