package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"regent/adapters/fake"
	"regent/engine/decisions"
	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgtest"
	"regent/policies"
	"regent/server"
)

var update = flag.Bool("update", false, "write what scripts compare with as it is now")

// atOnce is how many of the tests that can run beside others do: most of their time they wait for something to expire.
const atOnce = "6"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", atOnce); err != nil { // go test -parallel counts all the same: it is parsed later
		panic(err)
	}
	testscript.Main(pgtest.Tests{M: m}, map[string]func(){
		"regent": func() {
			e := &environment{env: os.LookupEnv, now: scriptNow, stdout: os.Stdout}
			if os.Getenv(nowVariable) != "" {
				e.serverNow = scriptNow
			}
			os.Exit(e.run(os.Args[1:], os.Stderr))
		},
	})
}

// nowVariable gives the program that a script runs the script's clock; elsewhere it has the system's.
const nowVariable = "SCRIPT_NOW"

func scriptNow() time.Time {
	if now, err := time.Parse(time.RFC3339Nano, os.Getenv(nowVariable)); err == nil {
		return now
	}
	return time.Now()
}

// TestScript runs the end-to-end scripts, each on every store. Their verbs are described in testdata/README.md.
func TestScript(t *testing.T) {
	for name, database := range map[string]func(*testing.T) string{
		"sqlite":   func(*testing.T) string { return "" },
		"memory":   func(*testing.T) string { return "memory:" },
		"postgres": func(t *testing.T) string { return newDatabase(t, pgtest.Shared(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			database(t) // skips all of them where there is no PostgreSQL
			testscript.Run(t, testscript.Params{
				Dir:                 "../../../testdata/script",
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
				UpdateScripts:       *update,
				Setup: func(env *testscript.Env) error {
					return setUp(env, database(t), func() string { return pgtest.Shared(t).NewDatabase(t) })
				},
				Condition: func(condition string) (bool, error) { return condition == name, nil },
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"post": post, "get": get, "parallel": parallel, "finish": finish, "policy": changePolicy, "catalogue": changeCatalogue,
					"upstream": upstream, "clock": moveClock, "ledger": showLedger, "decisions": showDecisions, "restart": restart,
					"settled": settled, "health": showHealth, "hangup": hangup, "nowhere": nowhere, "terminate": terminate, "find": find,
					"database": changeDatabase, "archive": archive, "exits": exits,
				},
			})
		})
	}
}

// demoToken is the token of the user demo in every script; tokens of other users are made from their names.
func tokenOf(user string) string {
	return "gwi_" + fmt.Sprintf("%064x", []byte(user))[:64]
}

// gateway is a script's running gateway.
type gateway struct {
	config  server.Config
	clock   *ledgertest.Clock
	folder  string
	server  *server.Server
	stop    context.CancelFunc
	stopped chan error
	output  *lockedBuffer  // what the gateway printed and logged
	calls   sync.WaitGroup // of parallel
	mu      sync.Mutex     // guards statuses
	status  map[int]int
	empty   func() string // makes an empty database on a server
}

type gatewayKey struct{}

// setUp starts a gateway on a script's own files: catalogue.yaml if there is one, and what is in policies/ laid over the bundle.
func setUp(env *testscript.Env, database string, empty func() string) error {
	g := &gateway{
		clock: ledgertest.NewClock(), folder: env.WorkDir, output: &lockedBuffer{}, status: map[int]int{}, empty: empty,
	}
	g.config = server.Config{
		Addr: "127.0.0.1:0", Data: filepath.Join(env.WorkDir, "data"), DatabaseURL: database, Policies: overlay{os.DirFS(filepath.Join(env.WorkDir, "policies"))},
		Stdout: g.output, Log: slog.New(slog.NewTextHandler(g.output, nil)), Now: g.clock.Now, Elapsed: g.clock.Elapsed,
		DrainFor: 2 * time.Second,
		Env: func(name string) (string, bool) {
			if user, ok := strings.CutPrefix(name, "TOKEN_"); ok {
				return tokenOf(strings.ToLower(user)), true
			}
			return map[string]string{"REGENT_DEMO_TOKEN": tokenOf("demo"), "UPSTREAM_KEY": "sk-canary-key"}[name],
				name == "REGENT_DEMO_TOKEN" || name == "UPSTREAM_KEY"
		},
	}
	env.Setenv("REGENT_ADDR", "127.0.0.1:0") // for programs that a script runs: whatever else listens here is not its business
	if path := filepath.Join(env.WorkDir, "catalogue.yaml"); exists(path) {
		g.config.Catalogue = path
		text, err := os.ReadFile(path)
		if err == nil {
			err = g.writeCatalogue(string(text))
		}
		if err != nil {
			return err
		}
	}
	env.Values[gatewayKey{}] = g
	env.Setenv(nowVariable, g.clock.Now().Format(time.RFC3339Nano))
	if g.atServer() {
		env.Setenv(databaseVariable, database) // for the program that the script runs
	}
	env.Defer(func() {
		if err := g.halt(); err != nil {
			env.T().Log("stopping the gateway: ", err)
			env.T().FailNow()
		}
	})
	return g.start()
}

// writeCatalogue writes the catalogue's file. $WORK in it is the script's folder.
func (g *gateway) writeCatalogue(text string) error {
	return os.WriteFile(filepath.Join(g.folder, "catalogue.yaml"), []byte(strings.ReplaceAll(text, "$WORK", g.folder)), 0o644)
}

const databaseVariable = "REGENT_DATABASE_URL"

// atServer says that the gateway's database is a server's.
func (g *gateway) atServer() bool { return strings.HasPrefix(g.config.DatabaseURL, "postgres:") }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (g *gateway) start() (err error) {
	if g.atServer() { // a server's own clock does not stand still
		g.config.Store, err = sqldb.Open(context.Background(), sqldb.Config{URL: g.config.DatabaseURL, Now: g.clock.Now})
		if err != nil {
			return err
		}
	}
	if g.server, err = server.New(g.config); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	g.stop, g.stopped = stop, make(chan error, 1)
	go func(s *server.Server) { g.stopped <- s.Run(ctx) }(g.server)
	return nil
}

func (g *gateway) halt() error {
	if g.server == nil {
		return nil
	}
	g.server.Fake().Release()
	g.stop()
	g.server = nil
	return <-g.stopped
}

func of(ts *testscript.TestScript) *gateway { return ts.Value(gatewayKey{}).(*gateway) }

// overlay lays a script's policy files over the shipped bundle.
type overlay struct{ top fs.FS }

func (o overlay) Open(name string) (fs.File, error) {
	if info, err := fs.Stat(o.top, name); err == nil && !info.IsDir() {
		return o.top.Open(name)
	}
	if name == "." || isDir(o.top, name) {
		return mergedDir{o, name}, nil
	}
	return policies.Files().Open(name)
}

func isDir(fsys fs.FS, name string) bool {
	info, err := fs.Stat(fsys, name)
	return err == nil && info.IsDir()
}

// ReadDir lists both layers. A file named NAME.absent hides NAME.
func (o overlay) ReadDir(name string) ([]fs.DirEntry, error) {
	entries := map[string]fs.DirEntry{}
	for _, layer := range []fs.FS{policies.Files(), o.top} {
		list, err := fs.ReadDir(layer, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, entry := range list {
			entries[entry.Name()] = entry
		}
	}
	var merged []fs.DirEntry
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		_, hidden := entries[name+".absent"]
		if !hidden && !strings.HasSuffix(name, ".absent") {
			merged = append(merged, entries[name])
		}
	}
	return merged, nil
}

// mergedDir is an open folder of an overlay.
type mergedDir struct {
	overlay
	name string
}

func (d mergedDir) Stat() (fs.FileInfo, error) {
	if isDir(d.top, d.name) {
		return fs.Stat(d.top, d.name)
	}
	return fs.Stat(policies.Files(), d.name)
}
func (d mergedDir) Read([]byte) (int, error)           { return 0, fs.ErrInvalid }
func (d mergedDir) Close() error                       { return nil }
func (d mergedDir) ReadDir(int) ([]fs.DirEntry, error) { return d.overlay.ReadDir(d.name) }

// lockedBuffer is what a gateway printed and logged.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return bytes.Clone(b.buffer.Bytes())
}

// request is what post and get take: [-as USER] [-token TOKEN] [-header 'NAME: VALUE']... PATH [FILE]
func request(ts *testscript.TestScript, method string, args []string) *http.Request {
	g := of(ts)
	header := http.Header{}
	user := "demo"
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		switch args[0] {
		case "-as":
			user = args[1]
		case "-header":
			name, value, _ := strings.Cut(args[1], ": ")
			header.Set(name, value)
		default:
			ts.Fatalf("unknown option %s", args[0])
		}
		args = args[2:]
	}
	if user != "nobody" {
		header.Set("Authorization", "Bearer "+tokenOf(user))
	}
	if len(args) == 0 {
		ts.Fatalf("usage: %s [-as USER] [-header 'NAME: VALUE'] PATH [FILE]", method)
	}
	path := args[0]
	if !strings.HasPrefix(path, "/") {
		path = "/api/inference/v1/" + path
	}
	var body io.Reader
	if len(args) > 1 {
		body = strings.NewReader(ts.ReadFile(args[1]))
	}
	r, err := http.NewRequest(method, g.server.URL()+path, body)
	ts.Check(err)
	maps.Copy(r.Header, header)
	return r
}

// shown are the headers that scripts can look at.
var shown = []string{"Content-Type", "Retry-After", "X-Should-Retry", "Allow"}

// exchange sends a request and prints the answer. The id of what was posted goes into $REQUEST.
func exchange(ts *testscript.TestScript, neg bool, r *http.Request) {
	response, err := http.DefaultClient.Do(r)
	ts.Check(err)
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n", response.Status)
	for _, name := range shown {
		if value := response.Header.Get(name); value != "" {
			fmt.Fprintf(&text, "%s: %s\n", name, value)
		}
	}
	fmt.Fprintf(&text, "\n%s", body)
	if err != nil {
		fmt.Fprintf(&text, "\n(the connection broke)\n")
	}
	_, _ = io.WriteString(ts.Stdout(), text.String())
	if r.Method == http.MethodPost {
		ts.Setenv("REQUEST", response.Header.Get("X-Regent-Request-Id"))
	}
	if ok := response.StatusCode < 300; ok == neg {
		ts.Fatalf("%s %s: %s\n%s", r.Method, r.URL.Path, response.Status, body)
	}
}

func post(ts *testscript.TestScript, neg bool, args []string) {
	exchange(ts, neg, request(ts, http.MethodPost, args))
}

func get(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) > 1 && args[0] == "-until" {
		wanted := regexp.MustCompile("(?m)" + args[1])
		args = args[2:]
		waitFor(ts, "an answer that holds "+wanted.String(), func() bool {
			response, err := http.DefaultClient.Do(request(ts, http.MethodGet, args))
			ts.Check(err)
			defer func() { _ = response.Body.Close() }() // it was only read
			text, err := io.ReadAll(response.Body)
			ts.Check(err)
			return wanted.Match(text)
		})
	}
	exchange(ts, neg, request(ts, http.MethodGet, args))
}

// parallel N post ...: sends N requests at once and waits until each is answered or held open by the provider; prints how many
// are which.
func parallel(ts *testscript.TestScript, _ bool, args []string) {
	g := of(ts)
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	model := args[1]
	answered := make(chan int, n)
	for range n {
		r := request(ts, http.MethodPost, args[2:])
		g.calls.Go(func() {
			status := 0
			if response, err := http.DefaultClient.Do(r); err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				status = response.StatusCode
			}
			g.mu.Lock()
			g.status[status]++
			g.mu.Unlock()
			answered <- status
		})
	}
	waitFor(ts, "every call to be answered or held", func() bool { return len(answered)+g.server.Fake().Seen(model).Open >= n })
	_, _ = fmt.Fprintf(ts.Stdout(), "held open %d\n", g.server.Fake().Seen(model).Open)
	g.print(ts)
}

func (g *gateway) print(ts *testscript.TestScript) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, status := range slices.Sorted(maps.Keys(g.status)) {
		_, _ = fmt.Fprintf(ts.Stdout(), "answered %d: %d\n", status, g.status[status])
	}
}

// finish lets the provider answer what it holds, waits for all of parallel, and prints the sums.
func finish(ts *testscript.TestScript, _ bool, _ []string) {
	g := of(ts)
	g.server.Fake().Release()
	g.calls.Wait()
	g.print(ts)
}

// hangup post-options... PATH FILE: posts a stream and closes the connection when the first output has come, or, with
// -at-once before the path, when the provider has got the call, and then waits until that has been ended, too.
func hangup(ts *testscript.TestScript, _ bool, args []string) {
	atOnce := slices.Contains(args, "-at-once")
	args = slices.DeleteFunc(args, func(arg string) bool { return arg == "-at-once" })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := request(ts, http.MethodPost, args).WithContext(ctx)
	if atOnce {
		provider := of(ts).server.Fake()
		go func() {
			for provider.Seen("steady").Open == 0 {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		_, err := http.DefaultClient.Do(r)
		if err == nil {
			ts.Fatalf("the call was answered before the client hung up")
		}
		waitFor(ts, "the provider's call to end", func() bool { return of(ts).server.Fake().Seen("steady").Open == 0 })
		return
	}
	response, err := http.DefaultClient.Do(r)
	ts.Check(err)
	ts.Setenv("REQUEST", response.Header.Get("X-Regent-Request-Id"))
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "data:") {
	}
	cancel()
	_ = response.Body.Close()
}

// nowhere TEXT...: fails if a text is found in any file of the data folder, in a table of a server's database, or in what the gateway
// printed and logged.
func nowhere(ts *testscript.TestScript, _ bool, texts []string) {
	g := of(ts)
	places := map[string][]byte{"what was printed and logged": g.output.bytes()}
	ts.Check(filepath.WalkDir(g.config.Data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		places[path] = text
		return err
	}))
	if g.atServer() {
		ts.Check(onDatabase(g.config.DatabaseURL, func(ctx context.Context, conn *pgx.Conn) error { return readTables(ctx, conn, places) }))
	}
	for place, content := range places {
		for _, text := range texts {
			if bytes.Contains(content, []byte(text)) || bytes.Contains(content, []byte(hex.EncodeToString([]byte(text)))) {
				ts.Fatalf("%q is in %s", text, place)
			}
		}
	}
}

// readTables reads every table of a database as text, in which bytes are in hexadecimal.
func readTables(ctx context.Context, conn *pgx.Conn, places map[string][]byte) error {
	rows, err := conn.Query(ctx, `SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'public'`)
	if err != nil {
		return err
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, table := range tables {
		var text string
		err = errors.Join(err, conn.QueryRow(ctx, `SELECT coalesce(string_agg(t::text, ' '), '') FROM `+table+` t`).Scan(&text))
		places[table] = []byte(text)
	}
	return err
}

// onDatabase connects to a database and does something there.
func onDatabase(url string, do func(context.Context, *pgx.Conn) error) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return errors.Join(do(ctx, conn), conn.Close(ctx))
}

// database empty: makes an empty database on the server and puts its URL into the variable. database ahead: notes a migration in it that
// this program does not know.
func changeDatabase(ts *testscript.TestScript, neg bool, args []string) {
	switch {
	case neg || len(args) != 1 || args[0] != "empty" && args[0] != "ahead":
		ts.Fatalf("usage: database empty|ahead")
	case args[0] == "empty":
		ts.Setenv(databaseVariable, of(ts).empty())
	default:
		ts.Check(onDatabase(ts.Getenv(databaseVariable), func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, `INSERT INTO ledger_migration (version_id, is_applied) SELECT max(version_id) + 1, true FROM ledger_migration`)
			return err
		}))
	}
}

func waitFor(ts *testscript.TestScript, what string, done func() bool) {
	deadline := time.Now().Add(20 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			ts.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// settled waits until a call has its terminal state.
func settled(ts *testscript.TestScript, _ bool, args []string) {
	id, err := uuid.Parse(args[0])
	ts.Check(err)
	waitFor(ts, "the call to end", func() bool {
		report, err := of(ts).store().Call(context.Background(), id)
		return err == nil && report.State != ledger.Held
	})
}

func (g *gateway) store() ledger.Store { return g.server.Ledger().Store() }

// policy NAME FILE: lays a file over the bundle at a path and has it loaded; policy -rm PATH takes one away.
func changePolicy(ts *testscript.TestScript, _ bool, args []string) {
	g := of(ts)
	path := filepath.Join(g.folder, "policies", args[0])
	text := ts.ReadFile(args[1])
	ts.Check(os.MkdirAll(filepath.Dir(path), 0o755))
	ts.Check(os.WriteFile(path, []byte(text), 0o644))
	g.server.Activate()
}

// archive NAME: keeps a policy of that name, which decides nothing, beside those that records name.
func archive(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: archive NAME")
	}
	content := []byte(args[0])
	ts.Check(of(ts).store().KeepActivation(context.Background(), sha256.Sum256(content), content))
}

// catalogue FILE: replaces the catalogue's file and waits until it was read.
func changeCatalogue(ts *testscript.TestScript, neg bool, args []string) {
	g := of(ts)
	before := g.server.Catalogue()
	ts.Check(g.writeCatalogue(ts.ReadFile(args[0])))
	if neg {
		waitFor(ts, "the catalogue to be refused", func() bool { return g.server.CatalogueErr() != nil })
		return
	}
	waitFor(ts, "the catalogue to be read", func() bool { return g.server.Catalogue() != before })
	g.server.Activate() // the catalogue's tokens count before its policy is built
}

// upstream MODEL FILE: scripts the provider. upstream MODEL: prints what it has seen. upstream release: lets held calls go on.
func upstream(ts *testscript.TestScript, _ bool, args []string) {
	provider := of(ts).server.Fake()
	switch {
	case args[0] == "release":
		provider.Release()
	case len(args) == 2:
		script, err := fake.ParseScript([]byte(ts.ReadFile(args[1])))
		ts.Check(err)
		provider.SetScript(args[0], script)
	default:
		seen := provider.Seen(args[0])
		_, _ = fmt.Fprintf(ts.Stdout(), "requests %d\nopen %d\nconnections %d\n", seen.Requests, seen.Open, provider.Connections())
		for _, name := range slices.Sorted(maps.Keys(seen.Header)) {
			_, _ = fmt.Fprintf(ts.Stdout(), "%s: %s\n", name, strings.Join(seen.Header[name], ", "))
		}
		_, _ = fmt.Fprintf(ts.Stdout(), "%s\n", seen.Body)
	}
}

// clock +DURATION: lets time pass. clock step DURATION: moves the store's clock alone.
func moveClock(ts *testscript.TestScript, _ bool, args []string) {
	clock := of(ts).clock
	d, err := time.ParseDuration(strings.TrimPrefix(args[len(args)-1], "+"))
	ts.Check(err)
	if args[0] == "step" {
		clock.Step(d)
	} else {
		clock.Advance(d)
	}
	ts.Setenv(nowVariable, clock.Now().Format(time.RFC3339Nano))
}

// ledger ACCOUNT [REGEXP]: prints used and held of an account's limits; with an expression, waits until they match it.
func showLedger(ts *testscript.TestScript, _ bool, args []string) {
	accounts, err := ledger.ParseAccounts(args[0])
	ts.Check(err)
	text := of(ts).balances(ts, accounts)
	if len(args) > 1 {
		want, err := regexp.Compile(args[1])
		ts.Check(err)
		waitFor(ts, "the ledger to say "+args[1]+"; it says "+text, func() bool {
			text = of(ts).balances(ts, accounts)
			return want.MatchString(text)
		})
	}
	_, _ = io.WriteString(ts.Stdout(), text)
}

func (g *gateway) balances(ts *testscript.TestScript, accounts []ledger.Account) string {
	var text strings.Builder
	for _, account := range accounts {
		balances, err := g.server.Ledger().Read(context.Background(), []ledger.Claim{{Account: account, Limits: g.server.Catalogue().Limits(account)}})
		ts.Check(err)
		for _, b := range balances {
			format := func(n int64) string { return ledger.FormatAmount(account.Unit, n) }
			fmt.Fprintf(&text, "%s %s used %s held %s of %s\n", account, b.Limit.Window, format(b.Used), format(b.Held), format(b.Limit.Max))
		}
	}
	return text.String()
}

// exits CODE PROGRAM ARG…: runs a program that has to end with the exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARG…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var ended *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &ended) {
		got = ended.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("the exit code is %d, not %d", got, want)
	}
}

// find NAME REGEXP puts what the group of the expression is in the last output into $NAME.
func find(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: find NAME REGEXP")
	}
	found := regexp.MustCompile(args[1]).FindStringSubmatch(ts.ReadFile("stdout"))
	if len(found) != 2 {
		ts.Fatalf("the last output has no group of %s", args[1])
	}
	ts.Setenv(args[0], found[1])
}

// decisions REQUEST: prints the records of a decision, a line each: what was decided of each candidate, what was charged, how
// it ended.
func showDecisions(ts *testscript.TestScript, _ bool, args []string) {
	id, err := uuid.Parse(args[0])
	ts.Check(err)
	records, err := of(ts).store().CallRecords(context.Background(), id)
	ts.Check(err)
	for _, record := range records {
		line, err := describeRecord(record)
		ts.Check(err)
		_, _ = fmt.Fprintln(ts.Stdout(), line)
	}
}

func describeRecord(record ledger.Record) (string, error) {
	switch record.Kind {
	case ledger.DecisionRecord:
		var event struct{ Result decisions.Result }
		if err := json.Unmarshal(record.Body, &event); err != nil {
			return "", err
		}
		line := "decision"
		for _, c := range event.Result.Candidates {
			line += fmt.Sprintf(" %s=%s", c.Source, c.Outcome)
			if c.Reason != "" {
				line += "(" + c.Reason + ")"
			}
		}
		return line, nil
	case ledger.ChargeRecord:
		var body ledger.ChargeBody
		err := json.Unmarshal(record.Body, &body)
		return fmt.Sprintf("charge %s tokens=%d usd=%s estimated=%v unknown=%v", body.Source, body.Tokens, ledger.FormatUSD(body.NanoUSD), body.Estimated, body.UnknownUsage), err
	}
	if record.Kind == ledger.CorrectionRecord {
		var body ledger.CorrectionBody
		err := json.Unmarshal(record.Body, &body)
		return fmt.Sprintf("correction tokens=%d usd=%s by %s: %s", body.Tokens, ledger.FormatUSD(body.NanoUSD), body.Actor, body.Reason), err
	}
	var body ledger.OutcomeBody
	err := json.Unmarshal(record.Body, &body)
	return strings.TrimSpace(fmt.Sprintf("outcome %s %s %s %s", body.Source, body.Result, body.Reason, body.State)), err
}

// terminate asks the gateway to stop, as SIGTERM does, and does not wait for it.
func terminate(ts *testscript.TestScript, _ bool, _ []string) {
	g := of(ts)
	g.stop()
	waitFor(ts, "the gateway to drain", func() bool {
		response, err := http.Get(g.server.URL() + "/readyz")
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusServiceUnavailable
	})
}

// restart stops the gateway and starts it again on the same data.
func restart(ts *testscript.TestScript, _ bool, _ []string) {
	g := of(ts)
	ts.Check(g.halt())
	ts.Check(g.start())
}

// health [REGEXP]: prints the readiness report; the verb fails if the gateway is not ready. With an expression, waits until it matches the
// report.
func showHealth(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) > 0 {
		want, err := regexp.Compile(args[0])
		ts.Check(err)
		waitFor(ts, "health to say "+args[0], func() bool {
			response, err := http.Get(of(ts).server.URL() + "/readyz")
			ts.Check(err)
			defer func() { _ = response.Body.Close() }()
			text, err := io.ReadAll(response.Body)
			ts.Check(err)
			return want.Match(text)
		})
	}
	exchange(ts, neg, request(ts, http.MethodGet, []string{"-as", "nobody", "/readyz"}))
}
