package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/sqldb/pgtest"
)

// readiness asks a process whether it would serve calls.
func readiness(t *testing.T, at address) int {
	t.Helper()
	status, _ := fetch(t, at, "/readyz")
	return status
}

// TestTheDatabaseGoesAwayAndComesBack: for longer than holds live while both processes are called. They say so and refuse calls; what
// runs goes on and is settled once; and nobody is charged for the outage.
func TestTheDatabaseGoesAwayAndComesBack(t *testing.T) {
	t.Parallel()
	const ttl, away = 6 * time.Second, 7 * time.Second // settlements are tried more often than holds expire
	cluster := pgtest.Start(t, pgtest.Options{NoSync: true})
	s := newPairSite(t, cluster, boundless, "REGENT_HOLD_TTL="+ttl.String())
	pair := s.newPair()
	var streams [2]*running
	for n, m := range pair {
		streams[n] = begin(t, s, m.now().address, "started", "stream-of-"+m.data, true)
	}
	load := newLoad(t, pair)
	waitUntil(t, "calls to be served", func() bool { return load.served.Load() > 20 })

	gone := time.Now()
	if err := cluster.Crash(); err != nil {
		t.Fatal(err)
	}
	for _, m := range pair {
		waitUntil(t, "the process not to be ready", func() bool { return readiness(t, m.now().address) == http.StatusServiceUnavailable })
		status, text, _ := askQuick(t, m.now().address, "refused-by-"+m.data, false)
		if status != http.StatusServiceUnavailable || !strings.Contains(text, `"code":"ledger_unavailable"`) {
			t.Errorf("without a database: %d\n%s", status, text)
		}
	}
	time.Sleep(time.Until(gone.Add(away)))
	if err := cluster.Resume(); err != nil {
		t.Fatal(err)
	}
	for _, m := range pair {
		waitUntil(t, "the process to be ready", func() bool { return readiness(t, m.now().address) == http.StatusOK })
		if status, text, _ := askQuick(t, m.now().address, "served-by-"+m.data, true); status != http.StatusOK {
			t.Errorf("with the database back: %d\n%s", status, text)
		}
		load.served.Add(1)
	}
	time.Sleep(ttl) // what is not renewed by now would expire
	load.stop()
	s.provider.Release()
	for _, stream := range streams {
		stream.wantAnswer(t, http.StatusOK, "data: [DONE]", `"error"`)
	}
	s.wantNoHolds()
	s.wantServed(load.served.Load() + 2)
	t.Logf("%d calls served, %d refused", load.served.Load(), load.refused.Load())
}

// load is calls to two processes, one after the other to each, until it is stopped.
type load struct {
	served, refused atomic.Int64
	stop            func()
}

func newLoad(t *testing.T, pair [2]*member) *load {
	l := &load{}
	var callers sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	for _, m := range pair {
		for caller := range 4 {
			callers.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					status, text, _ := askQuick(t, m.now().address, fmt.Sprintf("%s-%d-%d", m.data, caller, n), n%2 == 0)
					switch { // a stream that has waited for the ledger is refused in its body
					case strings.Contains(text, `"code":"ledger_unavailable"`):
						l.refused.Add(1)
						time.Sleep(10 * time.Millisecond) // as a client does that is told to come back
					case status == http.StatusOK && strings.Contains(text, "built-in"):
						l.served.Add(1)
					default:
						t.Errorf("a call got %d\n%s", status, text)
					}
				}
			})
		}
	}
	l.stop = sync.OnceFunc(func() { cancel(); callers.Wait() })
	t.Cleanup(l.stop)
	return l
}

// wantServed checks that so many calls have completed, each charged at what it used, and that no hold has expired.
func (s *site) wantServed(calls int64) {
	s.t.Helper()
	s.withStore(func(store ledger.Store) {
		reports, err := store.Calls(context.Background(), ledger.CallQuery{Owner: "alice", Limit: 100_000})
		if err != nil {
			s.t.Fatal(err)
		}
		completed := int64(0)
		for _, report := range reports {
			for _, attempt := range report.Attempts {
				if attempt.Outcome.Result == ledger.Expired {
					s.t.Errorf("%s: its hold has expired: %+v", report.ClientRequestID, attempt)
				}
			}
			if report.State != ledger.Completed {
				continue
			}
			completed++
			if len(report.Attempts) != 1 || report.Attempts[0].Charge.Tokens != 2+5 {
				s.t.Errorf("%s: want one attempt that is charged 7, got %+v", report.ClientRequestID, report.Attempts)
			}
		}
		if completed != calls {
			s.t.Errorf("%d calls have completed, their clients have %d answers", completed, calls)
		}
	})
	s.wantTrue()
}
