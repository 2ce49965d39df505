// Package pgtest gives tests PostgreSQL: throw-away clusters that end with the process that started them, and databases in
// them. It knows nothing of what is tested.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// requiredVariable decides what a missing PostgreSQL is: a failure if it says "required", else a reason to skip.
	requiredVariable = "REGENT_TEST_POSTGRES"
	// cockroachVariable is the URL of a CockroachDB whose user may create databases.
	cockroachVariable = "REGENT_TEST_COCKROACH_URL"
)

// shared is the cluster of this test binary.
var shared struct {
	mu      sync.Mutex
	cluster *Cluster
	err     error
}

// Shared is one cluster for all tests of this binary, started when it is first asked for and stopped by [Tests]. It does not
// sync to disk, which the logic of tests does not need. Tests must not stop it, since others run at the same time. Without
// PostgreSQL the test is skipped or fails, as the variable REGENT_TEST_POSTGRES says.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = New(Options{NoSync: true})
	}
	must(t, shared.err)
	return shared.cluster
}

// Start starts a cluster of the test's own, which may stop and crash it, and removes it when the test ends. Without PostgreSQL
// the test is skipped or fails, as for [Shared].
func Start(t testing.TB, options Options) *Cluster {
	t.Helper()
	c, err := New(options)
	must(t, err)
	t.Cleanup(func() {
		if err := c.Remove(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// must ends the test unless err is nil.
func must(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, errMissing) && os.Getenv(requiredVariable) != "required":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// Tests are the tests of a binary that uses [Shared]: Run stops the shared cluster after them. A binary runs them in TestMain,
// by os.Exit(pgtest.Tests{M: m}.Run()), or hands them to goleak.VerifyTestMain.
type Tests struct{ *testing.M }

// Run runs the tests and gives the process's exit code.
func (m Tests) Run() int {
	code := m.M.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.cluster == nil {
		return code
	}
	if err := shared.cluster.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// NewDatabase creates an empty database for the test and gives its URL, on the unix socket; [Cluster.TCP] has the same database
// on TCP. Where the server can, the database orders text as people do and not by its bytes: most databases in use do, and a
// statement that relies on another order must say so. It is dropped when the test ends, with whoever is still connected.
func (c *Cluster) NewDatabase(t testing.TB) string {
	t.Helper()
	name := createDatabase(t, c.URL("postgres"), func(ctx context.Context, conn *pgx.Conn) (string, error) {
		var icu bool
		err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int >= 150000
			AND EXISTS (SELECT FROM pg_collation WHERE collname = 'en-US-x-icu')`).Scan(&icu)
		if err != nil || !icu {
			return "", err
		}
		return "TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en-US'", nil
	}, "WITH (FORCE)")
	return c.URL(name)
}

// Cockroach creates an empty database on the CockroachDB that the variable REGENT_TEST_COCKROACH_URL names, and gives its URL.
// Without the variable the test is skipped.
func Cockroach(t testing.TB) string {
	t.Helper()
	admin := os.Getenv(cockroachVariable)
	if admin == "" {
		t.Skipf("%s names no CockroachDB", cockroachVariable)
	}
	location, err := url.Parse(admin)
	if err != nil {
		t.Fatalf("%s: %v", cockroachVariable, err)
	}
	plain := func(context.Context, *pgx.Conn) (string, error) { return "", nil }
	location.Path = "/" + createDatabase(t, admin, plain, "CASCADE")
	return location.String()
}

// databaseTimeout bounds what creating or dropping a database takes on a busy machine.
const databaseTimeout = time.Minute

// createDatabase creates a database by the administrator's URL with the clauses that with gives, and drops it with the clause
// drop when the test ends.
func createDatabase(t testing.TB, admin string, with func(context.Context, *pgx.Conn) (string, error), drop string) (name string) {
	t.Helper()
	name = fmt.Sprintf("test_%016x", rand.Uint64())
	err := administer(admin, func(ctx context.Context, conn *pgx.Conn) error {
		clauses, err := with(ctx, conn)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "CREATE DATABASE "+name+" "+clauses)
		return err
	})
	if err != nil {
		t.Fatalf("create a database: %v", err)
	}
	t.Cleanup(func() {
		err := administer(admin, func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "DROP DATABASE "+name+" "+drop)
			return err
		})
		if err != nil {
			t.Logf("the database stays: %v", err) // the test left the server stopped
		}
	})
	return name
}

func administer(admin string, work func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, admin)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }() // nothing is lost with it
	return work(ctx, conn)
}
