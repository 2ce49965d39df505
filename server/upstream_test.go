package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"regent/adapters"
	"regent/adapters/openai"
	"regent/adapters/upstream"
	"regent/engine"
)

// wired is a script of bytes on the wire, piece by piece.
func wired(end string, pieces ...any) string {
	var wire []map[string]any
	for _, piece := range pieces {
		switch piece := piece.(type) {
		case string:
			wire = append(wire, map[string]any{"text": piece})
		case int: // of the piece before
			wire[len(wire)-1]["times"] = piece
		}
	}
	text, err := json.Marshal(map[string]any{"wire": wire, "wire_end": end})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// What is on the wire says that the connection ends with it: the next call would else race with its end.
const (
	streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
	jsonHead   = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
	delta      = `data: {"choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}` + "\n\n"
	finish     = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	used       = `data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":1}}` + "\n\n"
	done       = "data: [DONE]\n\n"
	endless    = 1 << 40
)

// reported is a stream's chunk with a report of usage.
func reported(usage string) string { return `data: {"choices":[],"usage":` + usage + "}\n\n" }

// answer is a whole answer with a report of usage.
func whole(usage string) string {
	return `{"choices":[{"message":{"content":"Hello"}}],"usage":` + usage + `}`
}

func sized(body string) string {
	return jsonHead + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(body)) + body
}

// hostile is what a provider does to one call, and what has to come of it.
type hostile struct {
	name, script, body string
	status             int
	// code is of the error, in the stream's last event if the status is 200; end is how the call ended, and for how much.
	code, end string
}

const (
	refusedFree = "failed error upstream_error 0"
	brokenFree  = "failed error stream_broken 0"
	lostFree    = "failed error connection 0"
	brokenAfter = "failed error stream_broken 0.000009 estimated"
	unreported  = "completed success 0.000009 estimated"
	bothTold    = "completed success 0.000003"
)

func hostileStreams() []hostile {
	cases := []hostile{
		{"a page of HTML", `{"raw": "<html>sorry</html>", "content_type": "text/html"}`, "", 502, "upstream_error", refusedFree},
		{"HTML that is said to be a stream", wired("", streamHead+"<html>\n<body>\n\nsorry\n\n"), "", 502, "upstream_error", brokenFree},
		{"nothing", wired("", streamHead), "", 502, "upstream_error", brokenFree},
		{"no answer at all", `{"break": "before_header"}`, "", 502, "upstream_error", lostFree},
		{"a length of 0", wired("", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), "", 502, "upstream_error", brokenFree},
		{"204", wired("", "HTTP/1.1 204 No Content\r\n\r\n"), "", 502, "upstream_error", refusedFree},
		{"half an event", wired("", streamHead+`data: {"choices":[{"delta":{"content":"He`), "", 502, "upstream_error", brokenFree},
		{"half an event after output", wired("", streamHead+delta+`data: {"choi`), "", 200, "upstream_error", brokenAfter},
		{"an event without end", wired("", streamHead+"data: ", "xxxxxxxxxxxxxxxx", endless), "", 502, "upstream_error", brokenFree},
		{"an event without end, after output", wired("", streamHead+delta+"data: ", "xxxxxxxxxxxxxxxx", endless), "", 200, "upstream_error", brokenAfter},
		{"an event nested deeply", wired("", streamHead+"data: ", strings.Repeat("[", 1<<10), 3<<10, "\n\n"+done), "", 502, "upstream_error", brokenFree},
		{"lines without end", wired("", streamHead, "data: x\n", endless), "", 502, "upstream_error", brokenFree},
		{"no output without end", wired("", streamHead, ": comment\n\n", 1<<20, done), "", 200, "", "completed success 0.000007 estimated"},
		{"openings without end", wired("", streamHead, `data: {"choices":[{"delta":{"role":"assistant"}}]}`+"\n\n", 20_000, delta+finish+used+done), "", 200, "", bothTold},
		{"compressed though nobody asked", wired("", strings.Replace(streamHead, "\r\n\r\n", "\r\nContent-Encoding: gzip\r\n\r\n", 1), "\x1f\u008b\b\x00", endless), "", 502, "upstream_error", brokenFree},
		{"informational answers without end", wired("", "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n", endless), "", 502, "upstream_error", lostFree},
		{"a thousand informational answers", wired("", "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n", 1000, streamHead+delta+finish+used+done), "", 200, "", bothTold},
		{"a header without end", wired("", "HTTP/1.1 200 OK\r\n", "X-More: and more and more and more\r\n", endless), "", 502, "upstream_error", lostFree},
		{"one header line without end", wired("", "HTTP/1.1 200 OK\r\nX-Long: ", "xxxxxxxxxxxxxxxx", endless), "", 502, "upstream_error", lostFree},
		{"no HTTP", wired("", "SSH-2.0-OpenSSH_9.9\r\n"), "", 502, "upstream_error", lostFree},
		{"another protocol", wired("", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"), "", 502, "upstream_error", refusedFree},
		{"two lengths", wired("", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), "", 502, "upstream_error", lostFree},
		{"a length of -1", wired("", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: -1\r\n\r\n"+done), "", 502, "upstream_error", lostFree},
		{"fewer bytes than said", wired("", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"+delta), "", 200, "upstream_error", brokenAfter},
		{"fewer bytes than said, but all of the answer", wired("", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n"+delta+finish+used+done), "", 200, "", bothTold},
		{"more bytes than said", wired("", fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", len(delta))+delta+finish+used+done), "", 200, "upstream_error", brokenAfter},
		{"a byte at a time", `{"text": ["Hello"], "split": 1}`, "", 200, "", bothTold},
		{"reset after the header", wired("reset", streamHead), "", 502, "upstream_error", brokenFree},
		{"reset after output", wired("reset", streamHead+delta), "", 200, "upstream_error", brokenAfter},
		{"trailers", wired("", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n"+
			fmt.Sprintf("%x\r\n%s\r\n", len(delta+finish+used+done), delta+finish+used+done)+"0\r\nX-T: 1\r\n\r\n"), "", 200, "", bothTold},
		{"a chunk of a size that cannot be", wired("", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"), "", 502, "upstream_error", brokenFree},
		{"an error in the stream", `{"text": ["Hello", "x"], "error_after": 1}`, "", 200, "upstream_error", brokenAfter},
		{"an error in place of the stream", wired("", streamHead+`data: {"error":{"message":"m","code":"context_length_exceeded"}}`+"\n\n"), "", 400, "context_length_exceeded", "failed error context_length 0"},
		{"more after the end", wired("", streamHead+delta+finish+used+done+delta+reported(`{"prompt_tokens":9,"completion_tokens":9}`)+done), "", 200, "", bothTold},
		{"usage twice", wired("", streamHead+delta+finish+reported(`{"prompt_tokens":90,"completion_tokens":9}`)+used+done), "", 200, "", bothTold},
		{"usage twice, the last of no use", wired("", streamHead+delta+finish+used+reported(`{"prompt_tokens":-1,"completion_tokens":1}`)+done), "", 200, "", unreported},
	}
	for name, usage := range untrueUsage() {
		cases = append(cases, hostile{name, wired("", streamHead+delta+finish+reported(usage)+done), "", 200, "", unreported})
	}
	for c := range cases {
		cases[c].body = streamBody
	}
	return cases
}

// untrueUsage are reports that cannot be true, so that the call is charged by an estimate.
func untrueUsage() map[string]string {
	return map[string]string{
		"usage of -1":        `{"prompt_tokens":-1,"completion_tokens":-1}`,
		"usage of 1e300":     `{"prompt_tokens":1e300,"completion_tokens":1}`,
		"usage that is text": `{"prompt_tokens":"12","completion_tokens":"12"}`,
		"usage of null":      `null`,
		"usage of nulls":     `{"prompt_tokens":null,"completion_tokens":null}`,
		"usage of a list":    `[1,2]`,
		"usage beyond 2^64":  `{"prompt_tokens":18446744073709551617,"completion_tokens":1}`,
	}
}

func hostileAnswers() []hostile {
	const good = `{"prompt_tokens":2,"completion_tokens":1}`
	cases := []hostile{
		{"a page of HTML", `{"raw": "<html>sorry</html>", "content_type": "text/html"}`, "", 502, "upstream_error", refusedFree},
		{"nothing", wired("", jsonHead+"\r\n"), "", 502, "upstream_error", refusedFree},
		{"a length of 0", wired("", jsonHead+"Content-Length: 0\r\n\r\n"), "", 502, "upstream_error", refusedFree},
		{"half an answer", wired("", jsonHead+"Content-Length: 500\r\n\r\n"+`{"choices":[`), "", 502, "upstream_error", brokenFree},
		{"half an answer that is said to be all", wired("", jsonHead+"\r\n"+`{"choices":[`), "", 502, "upstream_error", refusedFree},
		{"an answer without end", wired("", jsonHead+"\r\n"+`{"choices":["`, "xxxxxxxxxxxxxxxx", endless), "", 502, "upstream_error", refusedFree},
		{"an answer that is said to be of 10 GB", wired("", jsonHead+"Content-Length: 10000000000\r\n\r\n", "xxxxxxxxxxxxxxxx", endless), "", 502, "upstream_error", refusedFree},
		{"nested deeply", wired("", jsonHead+"\r\n"+`{"choices":`, "[", 1<<20), "", 502, "upstream_error", refusedFree},
		{"nested to the largest size", wired("", jsonHead+"\r\n"+`{"choices":`, strings.Repeat("[", 1<<10), 60<<10), "", 502, "upstream_error", refusedFree},
		{"compressed though nobody asked", wired("", jsonHead+"Content-Encoding: gzip\r\n\r\n", "\x1f\u008b\b\x00", endless), "", 502, "upstream_error", refusedFree},
		{"informational answers without end", wired("", "HTTP/1.1 100 Continue\r\n\r\n", endless), "", 502, "upstream_error", lostFree},
		{"more bytes than said", wired("", sized(whole(good))+whole(good)), "", 200, "", bothTold},
		{"fewer bytes than said", wired("", jsonHead+"Content-Length: 9999\r\n\r\n"+whole(good)), "", 502, "upstream_error", brokenFree},
		{"reset in the middle", wired("reset", jsonHead+"Content-Length: 9999\r\n\r\n"+whole(good)), "", 502, "upstream_error", brokenFree},
		{"an error of status 200", wired("", sized(`{"error":{"message":"m"}}`)), "", 502, "upstream_error", refusedFree},
		{"choices that are no list", wired("", sized(`{"choices":{"0":1}}`)), "", 502, "upstream_error", refusedFree},
		{"a refusal without end", wired("", "HTTP/1.1 400 Bad Request\r\n\r\n", "xxxxxxxxxxxxxxxx", endless), "", 400, "invalid_request", "failed error invalid_request 0"},
		{"a refusal whose end does not come", wired("hold", "HTTP/1.1 400 Bad Request\r\nContent-Length: 10\r\n\r\nx"), "", 400, "invalid_request", "failed error invalid_request 0"},
	}
	for name, usage := range untrueUsage() {
		cases = append(cases, hostile{name, wired("", sized(whole(usage))), "", 200, "", unreported})
	}
	for _, target := range []string{"/v1/chat/completions", "/elsewhere", "http://127.0.0.2:1/x", "//[::1]/x", "file:///etc/passwd", "http://[::1"} {
		for _, status := range []int{301, 302, 303, 307, 308} {
			end := refusedFree
			if target == "http://[::1" { // which net/http itself refuses to read
				end = lostFree
			}
			cases = append(cases, hostile{
				fmt.Sprintf("%d to %q", status, target),
				wired("", fmt.Sprintf("HTTP/1.1 %d Moved\r\nConnection: close\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", status, target)),
				"", 502, "upstream_error", end,
			})
		}
	}
	for c := range cases {
		cases[c].body = wholeBody
	}
	return cases
}

// impatient waits for a provider's header for a short time only.
func impatient(t *testing.T, baseURL string, wait time.Duration) adapters.Provider {
	t.Helper()
	client := upstream.New(upstream.Config{AllowPrivate: true})
	client.Transport.(*http.Transport).ResponseHeaderTimeout = wait
	provider, err := openai.New(openai.Config{BaseURL: baseURL, APIKey: upstreamKey, Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

// A provider that does not finish its header is waited for, for a time.
func TestAHeaderThatIsNeverFinished(t *testing.T) {
	g := startGateway(t, func(s *Server) {
		provider := impatient(t, s.fake.URL(), 100*time.Millisecond)
		plant(t, s, func(engine.Candidate) (adapters.Provider, error) { return provider, nil })
	})
	for _, script := range []string{`{"hold": true}`, wired("hold", "HTTP/1.1 200 OK\r\nX-More: "), wired("hold", "HTTP/1.1 100 Continue\r\n\r\n")} {
		for _, body := range []string{wholeBody, streamBody} {
			g.script(t, script)
			a := g.post(t, body)
			if a.status != http.StatusGatewayTimeout || a.code() != "upstream_timeout" {
				t.Errorf("%s: got %d %s", script, a.status, a.body)
			}
			if got := g.ended(t, a.header.Get("X-Regent-Request-Id")); got != "failed error timeout 0" {
				t.Errorf("%s: %s", script, got)
			}
		}
	}
	g.wantAlive(t)
}

// Whatever a provider does, the client is told by the table, the call ends once and is charged by the rule, the provider has heard
// of it once, and the memory stays bounded.
func TestHostileProviders(t *testing.T) {
	g := startGateway(t, nil)
	for kind, cases := range map[string][]hostile{"stream": hostileStreams(), "whole": hostileAnswers()} {
		for _, test := range cases {
			t.Run(kind+"/"+test.name, func(t *testing.T) {
				g.script(t, test.script)
				var a answered
				grown := growth(func() { a = g.post(t, test.body) })
				if a.status != test.status || a.code() != test.code {
					t.Errorf("got %d %q, want %d %q: %.300s", a.status, a.code(), test.status, test.code, a.body)
				}
				if complete := strings.HasSuffix(a.body, done); kind == "stream" && complete != (test.code == "") || a.broken {
					t.Errorf("broken %v: %q", a.broken, a.body[max(0, len(a.body)-300):])
				}
				if got := g.ended(t, a.header.Get("X-Regent-Request-Id")); got != test.end {
					t.Errorf("the call ended as %q, want %q", got, test.end)
				}
				if n := g.Fake().Seen("up").Requests; n != 1 {
					t.Errorf("the provider saw %d requests", n)
				}
				if grown > 400<<20 { // the largest whole answer, doubled as it is read, and copied
					t.Errorf("it took %d MiB", grown>>20)
				}
			})
		}
	}
	g.wantNothingHeld(t)
	g.wantAlive(t)
}
