package pgtest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(Tests{M: m}) }

func connect(t *testing.T, location string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), location)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func exec1(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

func show(t *testing.T, conn *pgx.Conn, sql string) (value string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestDatabasesAreApartAndOfOneServer(t *testing.T) {
	c := Shared(t)
	a, b := c.NewDatabase(t), c.NewDatabase(t)
	if Shared(t) != c || a == b {
		t.Fatal("one cluster, two databases")
	}
	exec1(t, connect(t, a), `CREATE TABLE x (n INT)`)
	exec1(t, connect(t, b), `CREATE TABLE x (n INT)`)
	exec1(t, connect(t, c.TCP(a)), `INSERT INTO x VALUES (1)`)
	if n := show(t, connect(t, a), `SELECT count(*)::text FROM x`); n != "1" {
		t.Error("TCP and the socket show two databases")
	}
}

func TestSettings(t *testing.T) {
	c := Start(t, Options{Settings: map[string]string{"deadlock_timeout": "123ms"}})
	conn := connect(t, c.URL("postgres"))
	for setting, want := range map[string]string{"fsync": "on", "max_connections": "200", "deadlock_timeout": "123ms"} {
		if got := show(t, conn, "SHOW "+setting); got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}
	if got := show(t, connect(t, Shared(t).URL("postgres")), "SHOW fsync"); got != "off" {
		t.Errorf("the shared cluster has fsync %s", got)
	}
}

// TestOutage: data outlive a stop and a crash, connections do not, and the addresses stay.
func TestOutage(t *testing.T) {
	c := Start(t, Options{NoSync: true})
	database := c.NewDatabase(t)
	exec1(t, connect(t, database), `CREATE TABLE x (n INT)`)
	for _, stop := range []func() error{c.Stop, c.Crash} {
		conn := connect(t, database)
		exec1(t, conn, `INSERT INTO x VALUES (1)`)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), `SELECT 1`); err == nil {
			t.Error("a connection outlives the server")
		}
		for _, location := range []string{database, c.TCP(database)} {
			if _, err := pgx.Connect(t.Context(), location); err == nil {
				t.Errorf("%s serves while the server is stopped", location)
			}
		}
		if err := errors.Join(stop(), c.Resume(), c.Resume()); err != nil {
			t.Fatal(err)
		}
	}
	for _, crash := range []bool{false, true} {
		if err := c.Restart(crash); err != nil {
			t.Fatal(err)
		}
	}
	if n := show(t, connect(t, c.TCP(database)), `SELECT count(*)::text FROM x`); n != "2" {
		t.Errorf("%s rows, want 2", n)
	}
}

// TestClusterEndsWithItsProcess: a test binary that is killed leaves no server, and its folder is removed by another's start.
func TestClusterEndsWithItsProcess(t *testing.T) {
	const inChild = "REGENT_PGTEST_CHILD"
	if os.Getenv(inChild) != "" {
		c := Shared(t)
		os.Stdout.WriteString("folder " + c.folder.path + "\n")
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		return
	}
	Shared(t) // or skip
	child := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), inChild+"=1")
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	path := ""
	for lines := bufio.NewScanner(stdout); path == "" && lines.Scan(); {
		path, _ = strings.CutPrefix(lines.Text(), "folder ")
		if !strings.HasPrefix(path, top) {
			path = ""
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // killed
	if path == "" {
		t.Fatal("the child started no cluster")
	}
	pidFile := filepath.Join(path, "data", "postmaster.pid")
	if runtime.GOOS == "linux" {
		for deadline := time.Now().Add(30 * time.Second); exists(pidFile); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the server outlives its process")
			}
		}
	}
	old := time.Now().Add(-2 * staleAge)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	removeStale()
	if exists(path) {
		t.Error("the folder stays")
	}
	if !exists(Shared(t).folder.path) {
		t.Error("a folder in use is removed")
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestNewestVersionFirst(t *testing.T) {
	folders := []string{debian + "/9.6/bin", debian + "/9/bin", debian + "/17/bin", debian + "/15/bin"}
	newest := slices.MaxFunc(folders, func(a, b string) int { return version(a) - version(b) })
	if newest != debian+"/17/bin" {
		t.Error(newest)
	}
}

// noted is a test that notes how it ended.
type noted struct {
	testing.TB
	end string
}

func (n *noted) Helper()      {}
func (n *noted) Skip(...any)  { n.end = "skipped" }
func (n *noted) Fatal(...any) { n.end = "failed" }

func TestMissingPostgres(t *testing.T) {
	for value, want := range map[string]string{"": "skipped", "required": "failed"} {
		t.Setenv(requiredVariable, value)
		n := &noted{}
		must(n, errMissing)
		if n.end != want {
			t.Errorf("%s=%q: %s, want %s", requiredVariable, value, n.end, want)
		}
	}
	n := &noted{}
	must(n, syscall.ENOSPC)
	if n.end != "failed" {
		t.Error("a server that does not start is not a missing one")
	}
}
