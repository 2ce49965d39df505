package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/adapters/fake"
	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgproxy"
	"regent/ledger/sqldb/pgtest"
)

// newDatabase makes a database on PostgreSQL with the ledger's tables.
func newDatabase(t testing.TB, cluster *pgtest.Cluster) (url string) {
	t.Helper()
	url = cluster.NewDatabase(t)
	if _, _, err := sqldb.Migrate(t.Context(), sqldb.Config{URL: url}); err != nil {
		t.Fatal(err)
	}
	return url
}

// member is one of the processes that share a database. Each has a data folder of its own, with its sink's file, and its own way
// to the database, which can be cut.
type member struct {
	site  *site
	data  string
	proxy *pgproxy.Proxy

	mu      sync.RWMutex // guards process
	process *process
}

// newMember starts a process on the site's database.
func (s *site) newMember(data string) *member {
	s.t.Helper()
	m := &member{site: s, data: data, proxy: pgproxy.New(s.t, s.url)}
	m.process = m.run()
	return m
}

// newPair starts two.
func (s *site) newPair() [2]*member {
	return [2]*member{s.newMember("first"), s.newMember("second")}
}

func (m *member) run() *process { return m.site.startIn(m.data, "REGENT_DATABASE_URL="+m.proxy.URL()) }

// now is the process that runs; while there is none, it is waited for.
func (m *member) now() *process {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.process
}

// crash kills the process and, once it has gone, starts the next.
func (m *member) crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.process.kill()
	m.process.wantSound()
	m.site.tearSink(m.data)
	m.process = m.run()
}

// cut does something to the member's connections while it runs, and not while it starts.
func (m *member) cut(do func()) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	do()
}

// fetch reads what a process says at a path, as alice.
func fetch(t *testing.T, at address, path string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, string(at)+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+tokenOf("alice"))
	status, text, _ = ask(t, http.DefaultClient, r)
	return status, text
}

// newClient is a client with as many connections as it has calls.
func newClient(t *testing.T) *http.Client {
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// pairScripts are what the tests of two processes ask for.
var pairScripts = map[string]fake.Script{"quick": {{}}, "held": {{Hold: true}}, "started": {{HoldAfterDelta: true}}}

// newPairSite makes a site on a database that two processes share.
func newPairSite(t *testing.T, cluster *pgtest.Cluster, tokens string, variables ...string) *site {
	t.Helper()
	url := newDatabase(t, cluster)
	s := newLimitedSite(t, fake.Config{}, pairScripts, siteModel("quick", "quick")+siteModel("held", "held")+siteModel("started", "started"),
		tokens, variables...)
	s.url = url
	return s
}

// account reads an account.
func (s *site) account(account ledger.Account) (row ledger.AccountRow) {
	s.t.Helper()
	s.withStore(func(store ledger.Store) {
		rows, err := store.Load(context.Background(), ledger.Keys{Accounts: []ledger.Account{account}})
		if err != nil {
			s.t.Fatal(err)
		}
		row = rows.Accounts[account]
	})
	return row
}

// wantTrue checks that the books are, with nothing held any more.
func (s *site) wantTrue() {
	s.t.Helper()
	s.withStore(func(store ledger.Store) {
		if err := ledgertest.Audit(context.Background(), store); err != nil {
			s.t.Error(err)
		}
	})
}

// TestCapsHoldAcrossProcesses: of the calls that two processes get at once, as many are admitted as fit the limit, and not one more.
func TestCapsHoldAcrossProcesses(t *testing.T) {
	t.Parallel()
	const calls, limit = 64, 10_000
	s := newPairSite(t, pgtest.Shared(t), fmt.Sprintf(`{max: "%d", window: 24h}`, limit))
	pair, client := s.newPair(), newClient(t)
	answers := make(chan string, calls)
	var clients sync.WaitGroup
	for n := range calls {
		clients.Go(func() {
			_, text, _ := ask(t, client, pair[n%2].now().request(context.Background(), "held", fmt.Sprintf("call-%d", n), n%4 < 2))
			answers <- text
		})
	}
	waitUntil(t, "each call to be admitted or denied", func() bool { return len(answers)+s.provider.Seen("held").Open == calls })
	admitted := int64(s.provider.Seen("held").Open)
	tokens := s.account(aliceAccounts[0])
	if admitted == 0 || tokens.Held > limit || tokens.Held+tokens.Held/admitted <= limit || tokens.Held%admitted != 0 {
		t.Errorf("%d calls hold %d of %d: want as many as fit", admitted, tokens.Held, limit)
	}
	s.provider.Release()
	clients.Wait()
	close(answers)
	complete, denied := int64(0), int64(0)
	for text := range answers {
		switch { // a stream that has waited is denied in its body
		case strings.Contains(text, `"code":"insufficient_quota"`):
			denied++
		case strings.Contains(text, "built-in"):
			complete++
		default:
			t.Errorf("a call got\n%s", text)
		}
	}
	if complete != admitted || denied != calls-admitted {
		t.Errorf("%d calls were answered and %d denied, want %d and the rest", complete, denied, admitted)
	}
	s.wantNoHolds()
	if tokens := s.account(aliceAccounts[0]); tokens.Used != admitted*(2+5) || tokens.Held != 0 {
		t.Errorf("used %d, held %d, want %d and 0", tokens.Used, tokens.Held, admitted*(2+5))
	}
	s.wantTrue()
}

// TestAKeyCountsInBothProcesses: of two calls with one idempotency key, sent to two processes at once, one runs. What one process did,
// the other tells.
func TestAKeyCountsInBothProcesses(t *testing.T) {
	t.Parallel()
	s := newPairSite(t, pgtest.Shared(t), boundless)
	pair := s.newPair()
	send := func(m *member) *running {
		c := &running{id: "of " + m.data, ended: make(chan struct{})}
		r := m.now().request(context.Background(), "held", "twin", false)
		r.Header.Set("Idempotency-Key", "only-once")
		go func() { defer close(c.ended); c.read(r, nil) }()
		return c
	}
	first, second := send(pair[0]), send(pair[1])
	select {
	case <-first.ended:
		first, second = second, first
	case <-second.ended:
	case <-time.After(patience):
		t.Fatal("no call is refused")
	}
	second.wantAnswer(t, http.StatusConflict, `"code":"duplicate_request"`, "choices")
	waitUntil(t, "the provider to have the other", func() bool { return s.provider.Seen("held").Open == 1 })
	s.provider.Release()
	first.wantAnswer(t, http.StatusOK, `"choices"`, `"error"`)
	for _, m := range pair {
		again := send(m)
		again.wantAnswer(t, http.StatusConflict, `"code":"duplicate_request"`, "choices")
	}
	if requests := s.provider.Seen("held").Requests; requests != 1 {
		t.Errorf("the provider got %d calls, want 1", requests)
	}
	s.wantNoHolds()
	_, report := s.hold("twin")
	for _, path := range []string{"/api/inference/v1/requests/" + report.ID.String(), "/api/inference/v1/usage"} {
		status, text := fetch(t, pair[0].now().address, path)
		if other, otherText := fetch(t, pair[1].now().address, path); status != http.StatusOK || other != status || otherText != text {
			t.Errorf("%s: one says %d %s\nthe other %d %s", path, status, text, other, otherText)
		}
	}
	s.wantTrue()
}

// TestEachSinkGetsItsOwn: while both processes live, each record is in the file of the one that wrote it, once. What one leaves behind
// that dies, the other has soon. A process that stands still for as long as a dead one would lose records to the other: only where all
// took less time than that, a record in the wrong file is a fault.
func TestEachSinkGetsItsOwn(t *testing.T) {
	t.Parallel()
	const calls, leftAfter = 40, 5 * time.Second
	s := newPairSite(t, pgtest.Shared(t), boundless, "REGENT_HOLD_TTL=2s")
	pair := s.newPair()
	began := time.Now()
	for n := range calls {
		if status, text, _ := askQuick(t, pair[n%2].now().address, fmt.Sprintf("call-%d", n), n%4 < 2); status != http.StatusOK {
			t.Fatalf("%d\n%s", status, text)
		}
	}
	s.wantNoHolds()
	s.wantShipped()
	swift := time.Since(began) < leftAfter
	files := [2]map[[sha256.Size]byte]int{s.shipped(pair[0].data), s.shipped(pair[1].data)}
	owners, records := map[uuid.UUID]int{}, 0
	s.eachShippable(func(record ledger.Record) {
		records++
		hash, of := sha256.Sum256(record.Body), 0
		if files[1][hash] > 0 {
			of = 1
		}
		owner, known := owners[record.Writer]
		if swift && (files[of][hash] != 1 || files[1-of][hash] != 0 || known && owner != of) || files[of][hash] == 0 {
			t.Errorf("a %s of %s is %d times in one file, %d times in the other", record.Kind, record.Writer, files[0][hash], files[1][hash])
		}
		owners[record.Writer] = of
	})
	if records != 2*calls || len(owners) != 2 {
		t.Errorf("%d records of %d processes, want %d of 2", records, len(owners), 2*calls)
	}

	// The third waits for somebody to read its pipe, and dies with all that it has to tell.
	const dying = "third"
	if err := os.Mkdir(filepath.Join(s.folder, dying), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(s.sinkPath(dying), 0o600); err != nil {
		t.Fatal(err)
	}
	third := s.newMember(dying)
	for n := range calls / 2 {
		if status, text, _ := askQuick(t, third.now().address, fmt.Sprintf("left-%d", n), n%2 == 0); status != http.StatusOK {
			t.Fatalf("%d\n%s", status, text)
		}
	}
	begin(t, s, third.now().address, "started", "cut-off", true)
	third.now().kill()
	s.wantNoHolds()
	s.wantShipped()
	s.auditSinks(pair[0].data, pair[1].data)
	s.wantTrue()
}

// sweep reads what the processes agree on.
func (s *site) sweep() (row ledger.SweepRow) {
	s.t.Helper()
	s.withStore(func(store ledger.Store) {
		rows, err := store.Load(context.Background(), ledger.Keys{})
		if err != nil {
			s.t.Fatal(err)
		}
		row = rows.Sweep
	})
	return row
}

// TestOneOfTwoSweeps: of two processes that have nothing to do, one looks for what is due, always the same.
func TestOneOfTwoSweeps(t *testing.T) {
	t.Parallel()
	s := newPairSite(t, pgtest.Shared(t), boundless, "REGENT_HOLD_TTL=10s") // a look a second
	pair := s.newPair()
	waitUntil(t, "one to sweep", func() bool { return s.sweep().Epoch > 0 })
	before := s.sweep()
	waitUntil(t, "three more turns", func() bool { return s.sweep().SweptAt.After(before.SweptAt.Add(4 * time.Second)) })
	if after := s.sweep(); after.Sweeper != before.Sweeper || after.Epoch != before.Epoch {
		t.Errorf("%s swept in epoch %d, and then %s in %d", before.Sweeper, before.Epoch, after.Sweeper, after.Epoch)
	}
	for _, m := range pair {
		m.now().signal(syscall.SIGTERM)
		m.now().wantExit()
	}
}

// TestWhatTheDeadHeldIsChargedByTheOther: once, and its calls have failed.
func TestWhatTheDeadHeldIsChargedByTheOther(t *testing.T) {
	t.Parallel()
	s := newPairSite(t, pgtest.Shared(t), boundless, "REGENT_HOLD_TTL=1s")
	pair := s.newPair()
	ids := []string{"dead-1", "dead-2", "dead-3"}
	for _, id := range ids {
		begin(t, s, pair[0].now().address, "started", id, true)
	}
	living := begin(t, s, pair[1].now().address, "started", "living", true)
	pair[0].now().kill()
	reserved := int64(0)
	for _, id := range ids {
		waitUntil(t, "the hold to expire", func() bool { row, _ := s.hold(id); return row.State != ledger.HoldLive })
		row, report := s.hold(id)
		if row.State != ledger.HoldExpired || report.State != ledger.Failed || row.Charge.Tokens != *row.Reserve.Tokens {
			t.Errorf("%s is %s, its hold %s, charged %d of %d", id, report.State, row.State, row.Charge.Tokens, *row.Reserve.Tokens)
		}
		reserved += *row.Reserve.Tokens
	}
	s.provider.Release()
	living.wantAnswer(t, http.StatusOK, "data: [DONE]", `"error"`)
	s.wantNoHolds()
	s.wantEnd("living", ledger.Completed, ledger.HoldSettled, 2+5)
	if used := s.account(aliceAccounts[0]).Used; used != reserved+2+5 {
		t.Errorf("used %d, want %d", used, reserved+2+5)
	}
}

// TestAProcessThatStoodStillIsOvertaken: stopped for longer than a hold lives beside another, it comes back to holds that the other has
// expired. Its calls go on to their end, and what they were charged too much is given back, once.
func TestAProcessThatStoodStillIsOvertaken(t *testing.T) {
	t.Parallel()
	s := newPairSite(t, pgtest.Shared(t), boundless, "REGENT_HOLD_TTL=1s")
	pair := s.newPair()
	p := pair[0].now()
	stream, whole := begin(t, s, p.address, "started", "stream", true), begin(t, s, p.address, "held", "whole", false)
	p.signal(syscall.SIGSTOP)
	for _, id := range []string{"stream", "whole"} {
		waitUntil(t, "the other to expire the hold", func() bool { row, _ := s.hold(id); return row.State == ledger.HoldExpired })
	}
	p.signal(syscall.SIGCONT)
	s.provider.Release()
	stream.wantAnswer(t, http.StatusOK, "data: [DONE]", `"error"`)
	whole.wantAnswer(t, http.StatusOK, `"choices"`, `"error"`)
	p.signal(syscall.SIGTERM) // which waits for the settlements
	p.wantExit()
	for _, id := range []string{"stream", "whole"} {
		s.wantEnd(id, ledger.Failed, ledger.HoldExpired, 2+5)
		row, report := s.hold(id)
		if !row.Refunded {
			t.Errorf("%s: nothing was given back", id)
		}
		s.withStore(func(store ledger.Store) {
			records, err := store.CallRecords(context.Background(), report.ID)
			if err != nil {
				t.Fatal(err)
			}
			refunds := 0
			for _, record := range records {
				refunds += strings.Count(string(record.Body), `"refund":true`)
			}
			if refunds != 1 {
				t.Errorf("%s: %d refunds, want 1", id, refunds)
			}
		})
	}
}
