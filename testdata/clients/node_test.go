package clients

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
)

// TestNode has each SDK for Node take the steps of steps.test.mjs, each on a gateway of its own.
func TestNode(t *testing.T) {
	for _, speaker := range []string{"openai-chat", "openai-responses", "anthropic", "anthropic-beta"} {
		t.Run(speaker, func(t *testing.T) {
			t.Parallel()
			g := start(t)
			control := httptest.NewServer(g.upstreamControl())
			defer control.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			node := exec.CommandContext(ctx, "node", "--test", "--test-reporter=tap", "steps.test.mjs")
			node.Env = append(os.Environ(), "SPEAKER="+speaker, "OPENAI_URL="+g.openAI(), "ANTHROPIC_URL="+g.anthropic(),
				"UPSTREAM_CONTROL="+control.URL, "TOKEN_RICH="+richToken, "TOKEN_POOR="+poorToken)
			if output, err := node.CombinedOutput(); err != nil {
				t.Errorf("node: %v\n%s", err, output)
			}
		})
	}
}

// upstreamControl lets a client of another language script the provider and see what it has seen, each by the model's name as
// the path.
func (g *gateway) upstreamControl() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /{model}", func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err == nil {
			err = g.script(r.PathValue("model"), text)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("GET /{model}", func(w http.ResponseWriter, r *http.Request) {
		seen := g.upstream.Seen(r.PathValue("model"))
		_ = json.NewEncoder(w).Encode(map[string]any{ // a client that has gone needs no answer
			"requests": seen.Requests, "open": seen.Open, "body": string(seen.Body),
		})
	})
	return mux
}
