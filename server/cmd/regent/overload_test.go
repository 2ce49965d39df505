package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"regent/adapters/fake"
	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
	"regent/policies"
	"regent/server"
)

// gatedStore is a store whose transactions wait while a test holds its gate.
type gatedStore struct {
	ledger.Store
	gate    sync.Mutex
	entered chan struct{} // gets a token when a transaction begins
}

func (g *gatedStore) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	g.gate.Lock()
	defer g.gate.Unlock()
	return g.Store.Update(ctx, decide)
}

// serve runs a gateway on the site's catalogue in this process, until stop is called, which waits for it.
func (s *site) serve(config server.Config) (_ *server.Server, stop func()) {
	s.t.Helper()
	config.Addr, config.Data, config.Catalogue = "127.0.0.1:0", filepath.Join(s.folder, dataFolder), filepath.Join(s.folder, "catalogue.yaml")
	config.Policies, config.Stdout, config.Log = policies.Files(), io.Discard, slog.New(slog.DiscardHandler)
	config.Env = func(name string) (string, bool) { return tokenOf("alice"), name == "TOKEN_ALICE" }
	gateway, err := server.New(config)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 1)
	go func() { stopped <- gateway.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-stopped; err != nil {
			s.t.Errorf("the gateway: %v", err)
		}
	})
	s.t.Cleanup(stop)
	return gateway, stop
}

// TestAFullQueueIsRefusedAndWorkedOff: what the ledger cannot take soon is refused at once and no provider hears of it. What runs
// goes on to its end, what waits is served when the store is, and then everything is admitted again.
func TestAFullQueueIsRefusedAndWorkedOff(t *testing.T) {
	const queued, more = 8, 20
	scripts := map[string]fake.Script{"quick": {{}}, "started": stopScripts["started"]}
	s := newSite(t, fake.Config{}, scripts, siteModel("quick", "quick")+siteModel("started", "started"))
	store := &gatedStore{Store: memory.New(nil), entered: make(chan struct{}, 1)}
	gateway, stop := s.serve(server.Config{Store: store, QueueMax: queued})
	at := address(gateway.URL())
	waiting := func(n int) {
		t.Helper()
		waitUntil(t, fmt.Sprintf("%d operations to wait", n), func() bool { return gateway.Ledger().Status().Waiting == n })
	}
	running := begin(t, s, at, "started", "running", true)
	waiting(0)

	store.gate.Lock()
	opened := sync.OnceFunc(store.gate.Unlock)
	defer opened() // so that a failed test ends
	select {
	case <-store.entered: // an earlier transaction's
	default:
	}
	var clients sync.WaitGroup
	answers := make(chan int, 1+queued)
	ask := func(n int) {
		clients.Go(func() {
			status, text, _ := askQuick(t, at, fmt.Sprintf("waits-%d", n), n%2 == 0)
			if !strings.Contains(text, "built-in") {
				t.Errorf("a call that waited got %d\n%s", status, text)
			}
			answers <- status
		})
	}
	<-store.entered // a sweep, or whatever comes by
	for n := range queued {
		ask(n)
	}
	waiting(queued)
	for n := range more {
		status, text, header := askQuick(t, at, fmt.Sprintf("refused-%d", n), n%2 == 0)
		if status != http.StatusServiceUnavailable || header.Get("Retry-After") != "1" || !strings.Contains(text, `"code":"ledger_busy"`) {
			t.Fatalf("with a full queue: got %d, %v\n%s", status, header, text)
		}
	}
	if seen := s.provider.Seen("quick").Requests; seen != 0 {
		t.Errorf("the provider has heard of %d calls that nobody has admitted", seen)
	}
	s.provider.Release()
	running.wantAnswer(t, http.StatusOK, "data: [DONE]", `"error"`) // it waits for no settlement
	waiting(queued + 1)

	opened()
	clients.Wait()
	close(answers)
	for status := range answers {
		if status != http.StatusOK {
			t.Errorf("a call that waited got %d", status)
		}
	}
	waiting(0)
	for n := range more {
		if status, text, _ := askQuick(t, at, fmt.Sprintf("after-%d", n), n%2 == 0); status != http.StatusOK {
			t.Errorf("after the overload: %d\n%s", status, text)
		}
	}
	stop()
	wantBooks(t, store, 1+queued+more)
}

// askQuick sends one call to the model quick and returns all of its answer.
func askQuick(t *testing.T, at address, id string, stream bool) (status int, text string, header http.Header) {
	return ask(t, http.DefaultClient, at.request(context.Background(), "quick", id, stream))
}

// ask sends a request and returns all of its answer.
func ask(t *testing.T, client *http.Client, r *http.Request) (status int, text string, header http.Header) {
	response, err := client.Do(r)
	if err != nil {
		t.Errorf("%s: %v", r.URL, err)
		return 0, "", nil
	}
	defer func() { _ = response.Body.Close() }() // all of it is read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("%s: %v", r.URL, err)
	}
	return response.StatusCode, string(body), response.Header
}

// wantBooks checks that so many calls came about, that each is complete, and that the books are right.
func wantBooks(t *testing.T, store ledger.Store, calls int) {
	t.Helper()
	reports, err := store.Calls(context.Background(), ledger.CallQuery{Owner: "alice", Limit: 1000})
	if err != nil || len(reports) != calls {
		t.Errorf("%d calls came about, %v, want %d", len(reports), err, calls)
	}
	for _, report := range reports {
		if report.State != ledger.Completed {
			t.Errorf("%s is %s", report.ClientRequestID, report.State)
		}
	}
	if err := ledgertest.Audit(context.Background(), store); err != nil {
		t.Error(err)
	}
}
