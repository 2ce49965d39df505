package main

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

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

// query runs a statement on the site's database and scans its one row.
func (s *site) query(statement string, to ...any) {
	s.t.Helper()
	conn, err := pgx.Connect(context.Background(), s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }() // it was only read
	if err := conn.QueryRow(context.Background(), statement).Scan(to...); err != nil {
		s.t.Fatalf("%s: %v", statement, err)
	}
}

// fetch reads what a process says at a path, as alice.
func fetch(t *testing.T, at address, path string) (status int, text string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, string(at)+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+tokenOf("alice"))
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // all of it is read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// newClient is a client with as many connections as it has calls.
func newClient(t *testing.T) *http.Client {
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
