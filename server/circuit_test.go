package server

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// guardedCatalogue has the source's circuit on, and two users.
func guardedCatalogue() string {
	text := strings.Replace(catalogueText, "circuit: {enabled: false}, ", "circuit: {threshold: 3, cool_down: 1h}, ", 1)
	return strings.Replace(text, "limits:\n", "  - {id: eve, features: [\"feat:ai:use\"], tokens: [{name: t, token: \"env:TOKEN_OF_EVE\"}]}\nlimits:\n", 1)
}

// postAs posts with another's token.
func (g *gateway) postAs(t *testing.T, token, body string) answered {
	t.Helper()
	r := g.request(t, http.MethodPost, "/chat/completions", strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	return g.do(t, r)
}

// refusing is a script of a refusal with a body of the provider's own.
func refusing(status int, body string) string {
	return wired("", fmt.Sprintf("HTTP/1.1 %d No\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body))
}

// What one user's calls bring upon themselves leaves their source serving another; what is the source's fault does not.
func TestOneUserCannotCloseASourceForAnother(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		status int // what the other user gets
	}{
		"a flagged prompt":       {refusing(403, `{"error":{"code":403,"message":"flagged","metadata":{"reasons":["x"],"flagged_input":"x"}}}`), 200},
		"403":                    {`{"status": 403}`, 200},
		"404":                    {`{"status": 404}`, 200},
		"409":                    {`{"status": 409}`, 200},
		"413":                    {`{"status": 413}`, 200},
		"415":                    {`{"status": 415}`, 200},
		"418":                    {`{"status": 418}`, 200},
		"422":                    {`{"status": 422}`, 200},
		"451":                    {`{"status": 451}`, 200},
		"a 400 inside a success": {wired("", sized(`{"error":{"code":400,"message":"m"}}`)), 200},
		"401":                    {`{"status": 401}`, 503},
		"500":                    {`{"status": 500}`, 503},
		"529":                    {`{"status": 529}`, 503},
		"no answer":              {`{"break": "before_header"}`, 503},
		"garbage":                {wired("", sized("<html>")), 503},
	} {
		t.Run(name, func(t *testing.T) {
			g := startGatewayOn(t, memoryURL, guardedCatalogue(), nil)
			g.script(t, test.script)
			for range 3 {
				a := g.post(t, wholeBody)
				if a.status == http.StatusOK {
					t.Fatalf("got %s", a.body)
				}
				g.ended(t, a.header.Get("X-Regent-Request-Id"))
			}
			g.script(t, `{}`)
			if a := g.postAs(t, tokenOfEve, wholeBody); a.status != test.status {
				t.Errorf("the other user got %d %s, want %d", a.status, a.body, test.status)
			}
		})
	}
}

// Nor does a client that does not read until the provider has enough of it.
func TestAClientThatDoesNotReadCannotCloseASource(t *testing.T) {
	event := fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", strings.Repeat("x", 64<<10))
	for name, test := range map[string]struct {
		pause  time.Duration
		status int
	}{"a client that does not read": {1500 * time.Millisecond, 200}, "a client that reads": {0, 503}} {
		t.Run(name, func(t *testing.T) {
			g := startGatewayOn(t, memoryURL, guardedCatalogue(), nil)
			g.script(t, wired("", streamHead, event, 300)) // more than sockets keep; it has no end
			var calls sync.WaitGroup
			for range 3 {
				calls.Go(func() {
					response, err := g.client.Do(g.request(t, http.MethodPost, "/chat/completions", strings.NewReader(streamBody)))
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(test.pause)
					body, err := io.ReadAll(response.Body)
					_ = response.Body.Close()
					if a := (answered{body: string(body)}); err != nil || a.code() != "upstream_error" {
						t.Errorf("the stream ended with %q, %v", a.body[max(0, len(a.body)-200):], err)
					}
					if got := g.ended(t, response.Header.Get("X-Regent-Request-Id")); !strings.HasPrefix(got, "failed error stream_broken") {
						t.Errorf("the call ended as %q", got)
					}
				})
			}
			calls.Wait()
			g.script(t, `{}`)
			if a := g.postAs(t, tokenOfEve, wholeBody); a.status != test.status {
				t.Errorf("the other user got %d %s, want %d", a.status, a.body, test.status)
			}
		})
	}
}
