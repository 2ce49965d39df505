package server

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"

	"regent/ledger"
)

// allowFiles lets the process open so many files: each stream has four ends here.
func allowFiles(t *testing.T, n uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Cur >= n {
		return
	}
	limit.Cur, limit.Max = n, max(n, limit.Max) // more than the most takes a privilege
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Skipf("the process may not open %d files: %v", n, err)
	}
}

// A thousand streams, each with a pause between its chunks, run side by side: each is complete to the byte, and is charged once.
func TestAThousandSlowStreams(t *testing.T) {
	const streams = 1000
	allowFiles(t, 5*streams)
	g := startGateway(t, nil)
	g.script(t, `{"text": ["Hello", " and", " so", " on", "."], "chunk_ms": 50}`)
	want := g.post(t, streamBody)
	if want.status != http.StatusOK || want.broken || !strings.HasSuffix(want.body, done) || strings.Count(want.body, "data: ") != 8 {
		t.Fatalf("one stream: %d %s", want.status, want.body)
	}
	g.script(t, `{"text": ["Hello", " and", " so", " on", "."], "chunk_ms": 100, "hold_after_delta": true}`)
	var ids sync.Map
	var clients sync.WaitGroup
	for range streams {
		clients.Go(func() {
			response, err := g.client.Do(g.request(t, http.MethodPost, "/chat/completions", strings.NewReader(streamBody)))
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = response.Body.Close() }()
			body, err := io.ReadAll(response.Body)
			if got := strings.ReplaceAll(string(body), ": keepalive\n\n", ""); err != nil || ": keepalive\n\n"+got != want.body {
				t.Errorf("got %d %q, %v", response.StatusCode, got, err)
			}
			if _, twice := ids.LoadOrStore(response.Header.Get("X-Regent-Request-Id"), true); twice {
				t.Error("two streams have one id")
			}
		})
	}
	wait(t, "all streams to be open at once", func() bool { return g.Fake().Seen("up").Open == streams })
	g.Fake().Release()
	clients.Wait()
	n := 0
	ids.Range(func(id, _ any) bool {
		n++
		if got := g.ended(t, id.(string)); got != "completed success 0.000007" {
			t.Errorf("a call ended as %q", got)
		}
		return true
	})
	if n != streams {
		t.Errorf("%d streams were answered", n)
	}
	g.wantNothingHeld(t)
	account := ledger.Account{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.Tokens}
	balances, err := g.Ledger().Read(t.Context(), []ledger.Claim{{Account: account, Limits: g.Catalogue().Limits(account)}})
	if err != nil || len(balances) != 1 || balances[0].Used != 7*(streams+1) {
		t.Errorf("used %+v, %v", balances, err)
	}
}
