package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"regent/adapters"
	"regent/adapters/fake"
	"regent/engine"
	"regent/ledger"
	"regent/policies"
	"regent/server/inference"
)

// catalogueText has one model on one source of the built-in provider, at a dollar per million tokens.
const catalogueText = `
inference: {enabled: true}
connections:
  - {id: fake, provider: fake, adapter: vllm, protocols: [openai.chat, openai.responses, openai.compact, openai.embeddings], base_url: "builtin:fake", credential: "env:KEY", allow_private: true}
models:
  - id: m
    context_tokens: 128000
    output_tokens_max: 100
    access: {everyone: true}
    sources: [{id: s, connection: fake, model: up, circuit: {enabled: false}, price: {input: "1", output: "1"}}]
users:
  - {id: alice, features: ["feat:ai:use"], tokens: [{name: t, token: "env:TOKEN"}]}
limits:
  user: {tokens: {max: "100000000"}, usd: {max: "1000"}}
policy:
  settings: {settlement: {interrupted: estimate, drain_millis: 200, accepted_without_output: release}}
decisions:
  sinks: [{name: out, stdout: true}]
`

const (
	token       = "gwi_00000000000000000000000000000000000000000000000000000000000a11ce"
	tokenOfEve  = "gwi_0000000000000000000000000000000000000000000000000000000000000e7e"
	upstreamKey = "sk-of-the-provider"
)

// output is what a gateway printed and logged.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// gateway is one that runs for a test.
type gateway struct {
	*Server
	output *output
	client *http.Client
	// halt stops it, once.
	halt func() error
}

// startGateway starts a gateway in memory. prepare may change its parts before it serves.
func startGateway(t *testing.T, prepare func(*Server)) *gateway {
	t.Helper()
	return startGatewayOn(t, memoryURL, catalogueText, prepare)
}

func startGatewayOn(t *testing.T, database, catalogueText string, prepare func(*Server)) *gateway {
	t.Helper()
	return startGatewayWith(t, func(c *Config) { c.DatabaseURL = database }, catalogueText, prepare)
}

// startGatewayWith starts a gateway whose configuration is changed.
func startGatewayWith(t *testing.T, change func(*Config), catalogueText string, prepare func(*Server)) *gateway {
	t.Helper()
	folder := t.TempDir()
	path := filepath.Join(folder, "catalogue.yaml")
	if err := os.WriteFile(path, []byte(catalogueText), 0o600); err != nil {
		t.Fatal(err)
	}
	g := &gateway{output: &output{}, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}}
	config := Config{
		Addr: "127.0.0.1:0", Data: filepath.Join(folder, "data"), Catalogue: path, Policies: policies.Files(),
		Stdout: g.output, Log: slog.New(slog.NewTextHandler(g.output, nil)), DrainFor: time.Second,
		Env: func(name string) (string, bool) {
			value, ok := map[string]string{"TOKEN": token, "TOKEN_OF_EVE": tokenOfEve, "KEY": upstreamKey, "BUNDLE": bundleToken, "HMAC": hmacSecret}[name]
			return value, ok
		},
	}
	change(&config)
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	g.Server = s
	if prepare != nil {
		prepare(s)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	g.halt = sync.OnceValue(func() error {
		s.Fake().Release()
		g.client.CloseIdleConnections()
		stop()
		return <-stopped
	})
	t.Cleanup(func() {
		if err := g.halt(); err != nil {
			t.Errorf("stopping the gateway: %v", err)
		}
	})
	return g
}

// stallAfter makes a gateway's clients have so long for one write.
func stallAfter(stall time.Duration) func(*Server) {
	return func(s *Server) { s.inference.WriteStall, s.http.WriteTimeout = stall, stall }
}

// resolver is a function that resolves.
type resolver func(engine.Candidate) (adapters.Provider, error)

func (r resolver) Resolve(candidate engine.Candidate) (adapters.Provider, error) { return r(candidate) }

// plant has a gateway's providers made otherwise.
func plant(t *testing.T, s *Server, resolve resolver) {
	t.Helper()
	if err := s.wire(resolve); err != nil {
		t.Fatal(err)
	}
}

func (g *gateway) script(t *testing.T, text string) {
	t.Helper()
	script, err := fake.ParseScript([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	g.Fake().SetScript("up", script)
}

const (
	wholeBody  = `{"model":"m","messages":[{"role":"user","content":"Hello"}]}`
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"Hello"}]}`
)

// request is an authenticated request to a path below the data plane.
func (g *gateway) request(t *testing.T, method, path string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, g.URL()+inference.Base+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// answered is a response, read to its end or to where it broke.
type answered struct {
	status int
	header http.Header
	body   string
	broken bool
}

func (g *gateway) do(t *testing.T, r *http.Request) answered {
	t.Helper()
	response, err := g.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return answered{response.StatusCode, response.Header, string(body), err != nil}
}

func (g *gateway) post(t *testing.T, body string) answered {
	t.Helper()
	return g.do(t, g.request(t, http.MethodPost, "/chat/completions", strings.NewReader(body)))
}

// code is the code of an answer's error, whole or as the stream's last event; empty if there is none.
func (a answered) code() string {
	text := a.body
	if at := strings.LastIndex(text, "data: "); at >= 0 {
		text = text[at+len("data: "):]
	}
	var document struct{ Error struct{ Code string } }
	if json.Unmarshal([]byte(text), &document) != nil {
		return ""
	}
	return document.Error.Code
}

// end is how a call ended, as its owner is shown it.
type end struct {
	State    ledger.State
	Attempts []struct{ Outcome, Reason string }
	Charge   struct {
		USD          string
		Estimated    bool
		UnknownUsage bool `json:"unknown_usage"`
	}
}

func (e end) String() string {
	text := string(e.State)
	for _, attempt := range e.Attempts {
		text += " " + strings.TrimSpace(attempt.Outcome+" "+attempt.Reason)
	}
	text += " " + e.Charge.USD
	if e.Charge.Estimated {
		text += " estimated"
	}
	if e.Charge.UnknownUsage {
		text += " unknown"
	}
	return text
}

// ended waits until a call has ended, and tells how.
func (g *gateway) ended(t *testing.T, id string) string {
	t.Helper()
	var e end
	wait(t, "the call to end", func() bool {
		a := g.do(t, g.request(t, http.MethodGet, "/requests/"+id, nil))
		if a.status != http.StatusOK || json.Unmarshal([]byte(a.body), &e) != nil {
			t.Fatalf("requests/%s: %d %s", id, a.status, a.body)
		}
		return e.State != ledger.Held
	})
	return e.String()
}

// wantNothingHeld waits until no hold is left.
func (g *gateway) wantNothingHeld(t *testing.T) {
	t.Helper()
	accounts, err := ledger.ParseAccounts("user/alice")
	if err != nil {
		t.Fatal(err)
	}
	var held string
	wait(t, "all holds to end", func() bool {
		held = ""
		for _, account := range accounts {
			balances, err := g.Ledger().Read(t.Context(), []ledger.Claim{{Account: account, Limits: g.Catalogue().Limits(account)}})
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range balances {
				if b.Held != 0 {
					held += fmt.Sprint(account, " ", b.Held)
				}
			}
		}
		return held == ""
	})
}

// wantAlive sees that the gateway serves a call, and that it is charged.
func (g *gateway) wantAlive(t *testing.T) {
	t.Helper()
	g.script(t, `{"text": ["Hello"]}`)
	a := g.post(t, wholeBody)
	if a.status == http.StatusBadGateway && strings.Contains(a.body, `"reason":"connection"`) {
		a = g.post(t, wholeBody) // on a connection that a hostile provider had spoilt, which nobody could know
	}
	if a.status != http.StatusOK {
		t.Fatalf("the next call: %d %s", a.status, a.body)
	}
	if got := g.ended(t, a.header.Get("X-Regent-Request-Id")); got != "completed success 0.000003" {
		t.Errorf("the next call: %s", got)
	}
	g.wantNothingHeld(t)
}

// wait waits until something is so.
func wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
