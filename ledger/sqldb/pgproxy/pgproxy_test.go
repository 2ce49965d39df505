package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"regent/ledger/sqldb/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Tests{M: m}) }

// bank is a database with one balance, and a proxy in front of it.
type bank struct {
	*Proxy
	t        *testing.T
	database string
	direct   *pgx.Conn
	conn     *pgx.Conn // by way of the proxy
}

func newBank(t *testing.T) *bank {
	t.Helper()
	database := pgtest.Shared(t).NewDatabase(t)
	b := &bank{t: t, database: database}
	b.direct = b.connect(database)
	if _, err := b.direct.Exec(t.Context(), `CREATE TABLE account (id INT PRIMARY KEY, balance INT); INSERT INTO account VALUES (1, 0)`); err != nil {
		t.Fatal(err)
	}
	b.proxy(t)
	return b
}

// proxy puts a new proxy in front of the database, for a test.
func (b *bank) proxy(t *testing.T) {
	t.Helper()
	b.t, b.Proxy = t, New(t, b.database)
	b.conn = b.connect(b.URL())
}

func (b *bank) connect(location string) *pgx.Conn {
	b.t.Helper()
	return b.connectAs(location, pgx.QueryExecModeCacheStatement)
}

// connectAs connects in a mode, by which statements are prepared or not.
func (b *bank) connectAs(location string, mode pgx.QueryExecMode) *pgx.Conn {
	b.t.Helper()
	config, err := pgx.ParseConfig(location)
	if err != nil {
		b.t.Fatal(err)
	}
	config.DefaultQueryExecMode = mode
	conn, err := pgx.ConnectConfig(b.t.Context(), config)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (b *bank) balance() (n int) {
	b.t.Helper()
	if err := b.direct.QueryRow(b.t.Context(), `SELECT balance FROM account`).Scan(&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

const (
	beginWrite = `BEGIN ISOLATION LEVEL SERIALIZABLE`
	beginLoad  = `begin isolation level serializable read only`
	read       = `SELECT balance FROM account WHERE id = $1`
	write      = `UPDATE account SET balance = balance + $1 WHERE id = 1`
)

// query is a statement with its arguments.
type query struct {
	text string
	args []any
}

// exchangeOn has a connection run statements in one exchange. The error is that of the first that failed.
func exchangeOn(ctx context.Context, conn *pgx.Conn, queries ...query) error {
	batch := &pgx.Batch{}
	for _, query := range queries {
		batch.Queue(query.text, query.args...)
	}
	results := conn.SendBatch(ctx, batch)
	for range queries {
		if _, err := results.Exec(); err != nil {
			return errors.Join(err, results.Close())
		}
	}
	return results.Close()
}

// client is a way to move the balance by one.
type client struct {
	name string
	mode pgx.QueryExecMode // of its connections
	move func(context.Context, *pgx.Conn) error
}

func pipelined(ctx context.Context, conn *pgx.Conn) error {
	err := exchangeOn(ctx, conn, query{text: beginWrite}, query{read, []any{1}}, query{read, []any{2}})
	if err == nil {
		err = exchangeOn(ctx, conn, query{write, []any{3}}, query{write, []any{-2}}, query{text: "commit"})
	}
	if err != nil && !conn.IsClosed() {
		err = errors.Join(err, exchangeOn(ctx, conn, query{text: "ROLLBACK"}))
	}
	return err
}

func atOnce(ctx context.Context, conn *pgx.Conn) error {
	err := exchangeOn(ctx, conn, query{text: beginWrite}, query{read, []any{1}}, query{write, []any{1}}, query{text: "COMMIT;"})
	if err != nil && !conn.IsClosed() {
		err = errors.Join(err, exchangeOn(ctx, conn, query{text: "ROLLBACK"}))
	}
	return err
}

func oneByOne(ctx context.Context, conn *pgx.Conn) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, write, 1)
		return err
	})
}

func allSimple(ctx context.Context, conn *pgx.Conn) error {
	for _, text := range []string{beginWrite, `UPDATE account SET balance = balance + 1`, "end"} {
		if _, err := conn.Exec(ctx, text); err != nil {
			if !conn.IsClosed() {
				_, _ = conn.Exec(ctx, "ABORT")
			}
			return err
		}
	}
	return nil
}

// clients are the ways that faults must be right for.
var clients = []client{
	{"prepared", pgx.QueryExecModeCacheStatement, pipelined},
	{"parsed", pgx.QueryExecModeExec, pipelined},
	{"at once", pgx.QueryExecModeCacheStatement, atOnce},
	{"one by one", pgx.QueryExecModeExec, oneByOne},
	{"simple", pgx.QueryExecModeExec, allSimple},
}

// want is what a client hears: a SQLSTATE, or nothing but that its connection ended.
var want = map[Fault]string{
	CutAtBegin: "", CutAtReads: "", CutBeforeCommit: "", CutAfterCommit: "", CutInAnswer: "", CutAtLoad: "",
	SerializationAtReads: "40001", SerializationAtStatement: "40001", SerializationAtCommit: "40001", SerializationAtLoad: "40001",
	AmbiguousCommitted: "40003", AmbiguousNotCommitted: "40003",
	ShutdownAtCommit: "57P01",
}

func code(err error) string {
	var failure *pgconn.PgError
	if errors.As(err, &failure) {
		return failure.Code
	}
	return ""
}

// TestFaults: for every fault and way to run a transaction, the client hears and the server does what the fault's name says,
// and the next transaction finds nothing left of it.
func TestFaults(t *testing.T) {
	b := newBank(t)
	for _, client := range clients {
		for _, fault := range Faults() {
			if fault == CutAtLoad || fault == SerializationAtLoad {
				continue
			}
			needsPipeline := fault == SerializationAtReads || fault == CutAtReads && client.name == "at once"
			if needsPipeline && !slices.Contains([]string{"prepared", "parsed"}, client.name) {
				continue
			}
			t.Run(client.name+" "+fault.String(), func(t *testing.T) {
				b.t = t
				conn := b.connectAs(b.URL(), client.mode)
				if err := client.move(t.Context(), conn); err != nil { // prepares
					t.Fatal(err)
				}
				before, fired := b.balance(), b.Arm(fault)
				err := client.move(t.Context(), conn)
				select {
				case <-fired:
				default:
					t.Fatalf("did not fire; left %v, %v", b.Disarm(), err)
				}
				moved := b.balance() - before
				if err == nil || code(err) != want[fault] || (moved == 1) != fault.Commits() {
					t.Errorf("balance moved by %d, client heard %v", moved, err)
				}
				cut := want[fault] == "" || fault == ShutdownAtCommit
				if conn.IsClosed() != cut {
					t.Errorf("the connection is closed: %v, want %v", conn.IsClosed(), cut)
				}
				if cut {
					conn = b.connectAs(b.URL(), client.mode)
				}
				if err := client.move(t.Context(), conn); err != nil || b.balance() != before+moved+1 {
					t.Errorf("the next transaction: %v", err)
				}
			})
		}
	}
}

// TestStatementsBeforeCommitRun: what comes before a COMMIT that fails has run, as a sequence shows, which nothing rolls back.
func TestStatementsBeforeCommitRun(t *testing.T) {
	b := newBank(t)
	if _, err := b.direct.Exec(t.Context(), `CREATE SEQUENCE ran`); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, fault := range Faults() {
		if fault < SerializationAtCommit || fault > ShutdownAtCommit {
			continue
		}
		ran++
		b.Arm(fault)
		conn := b.connect(b.URL())
		if err := exchangeOn(t.Context(), conn, query{text: beginWrite}, query{read, []any{1}}); err != nil {
			t.Fatal(err)
		}
		if err := exchangeOn(t.Context(), conn, query{text: `SELECT nextval('ran')`}, query{text: "COMMIT"}); code(err) != want[fault] {
			t.Errorf("%v: %v", fault, err)
		}
		var last int
		if err := b.direct.QueryRow(t.Context(), `SELECT last_value FROM ran`).Scan(&last); err != nil || last != ran {
			t.Errorf("%v: ran %d times, %v, want %d", fault, last, err, ran)
		}
	}
}

func load(ctx context.Context, conn *pgx.Conn) error {
	return exchangeOn(ctx, conn, query{text: beginLoad}, query{read, []any{1}}, query{text: "commit"})
}

// TestLoads: faults of loads hit loads alone, and those of writing transactions leave loads alone.
func TestLoads(t *testing.T) {
	b := newBank(t)
	for _, fault := range Faults() {
		t.Run(fault.String(), func(t *testing.T) {
			b.proxy(t)
			move, hit, spared := pipelined, pipelined, load
			if fault == CutAtLoad || fault == SerializationAtLoad {
				hit, spared = load, move
			}
			for _, work := range []func(context.Context, *pgx.Conn) error{load, move} {
				if err := work(t.Context(), b.conn); err != nil {
					t.Fatal(err)
				}
			}
			b.Arm(fault)
			if err := spared(t.Context(), b.conn); err != nil || len(b.Fired()) != 0 {
				t.Errorf("%v, fired %v", err, b.Fired())
			}
			if err := hit(t.Context(), b.conn); err == nil || code(err) != want[fault] {
				t.Errorf("client heard %v", err)
			}
			if !slices.Equal(b.Fired(), []Fault{fault}) {
				t.Errorf("fired %v", b.Fired())
			}
		})
	}
}

// TestFaultsWaitForTheirTurn: they happen in the order in which they were armed.
func TestFaultsWaitForTheirTurn(t *testing.T) {
	b := newBank(t)
	move := pipelined
	queue := []Fault{AmbiguousCommitted, SerializationAtReads, SerializationAtCommit, AmbiguousNotCommitted}
	for _, fault := range queue {
		b.Arm(fault)
	}
	b.Arm(CutAtLoad)
	for _, fault := range queue {
		if err := move(t.Context(), b.conn); code(err) != want[fault] {
			t.Errorf("%v: %v", fault, err)
		}
	}
	if err := move(t.Context(), b.conn); err != nil || b.balance() != 2 {
		t.Errorf("%v, balance %d", err, b.balance())
	}
	if left := b.Disarm(); !slices.Equal(left, []Fault{CutAtLoad}) || !slices.Equal(b.Fired(), queue) {
		t.Errorf("left %v, fired %v", left, b.Fired())
	}
}

// TestTransactionsThatFailByThemselves: the fault waits for one that does not.
func TestTransactionsThatFailByThemselves(t *testing.T) {
	b := newBank(t)
	for _, fault := range Faults() {
		if want[fault] == "" && fault != CutBeforeCommit && fault != CutAfterCommit && fault != CutInAnswer {
			continue
		}
		if fault == SerializationAtReads || fault == SerializationAtLoad {
			continue // nothing comes before
		}
		t.Run(fault.String(), func(t *testing.T) {
			b.proxy(t)
			conn := b.connectAs(b.URL(), pgx.QueryExecModeExec)
			b.Arm(fault)
			bad := query{`SELECT 1 / $1::int`, []any{0}}
			err := exchangeOn(t.Context(), conn, query{text: beginWrite}, bad, query{write, []any{1}}, query{text: "COMMIT"})
			if code(err) != "22012" || len(b.Fired()) != 0 {
				t.Fatalf("%v, fired %v", err, b.Fired())
			}
			if err := exchangeOn(t.Context(), conn, query{text: "COMMIT"}); err != nil { // it answers ROLLBACK
				t.Error(err)
			}
			if err := pipelined(t.Context(), conn); code(err) != want[fault] || len(b.Fired()) != 1 {
				t.Errorf("%v, fired %v", err, b.Fired())
			}
		})
	}
}

func TestCounts(t *testing.T) {
	b := newBank(t)
	move := pipelined
	if err := errors.Join(move(t.Context(), b.conn), load(t.Context(), b.conn)); err != nil {
		t.Fatal(err)
	}
	earlier := b.Counts()
	if earlier.Preparations == 0 || earlier.Connections != 1 {
		t.Errorf("%+v", earlier)
	}
	if err := errors.Join(move(t.Context(), b.conn), move(t.Context(), b.conn), load(t.Context(), b.conn), b.conn.Ping(t.Context())); err != nil {
		t.Fatal(err)
	}
	b.Arm(SerializationAtStatement)
	if err := move(t.Context(), b.conn); err == nil { // and prepares ROLLBACK
		t.Fatal("no failure")
	}
	b.connect(b.URL())
	want := Counts{Connections: 1, Exchanges: 2 + 2 + 1 + 1 + 2 + 2, Preparations: 1, Pings: 1, Commits: 3, Loads: 1, Rollbacks: 1}
	if got := b.Counts().Sub(earlier); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestSlow(t *testing.T) {
	b := newBank(t)
	const delay = 100 * time.Millisecond
	b.Slow(delay)
	start := time.Now()
	if _, err := b.conn.Exec(t.Context(), `SELECT 1`); err != nil || time.Since(start) < delay {
		t.Errorf("%v after %v", err, time.Since(start))
	}
	b.Slow(time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), delay)
	defer cancel()
	if _, err := b.conn.Exec(ctx, `SELECT 1`); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	b.Slow(0)
	if err := pipelined(t.Context(), b.connect(b.URL())); err != nil {
		t.Error(err)
	}
}

// busy waits until another connection runs a statement that contains a text, or none does.
func (b *bank) busy(text string, want bool) {
	b.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var running bool
		err := b.direct.QueryRow(b.t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE state = 'active' AND pid <> pg_backend_pid() AND strpos(query, $1) > 0)`, text).Scan(&running)
		if err != nil || time.Now().After(deadline) {
			b.t.Fatalf("running %v, %v", running, err)
		}
		if running == want {
			return
		}
	}
}

func TestKillAll(t *testing.T) {
	b := newBank(t)
	idle := b.connect(b.URL())
	failed := make(chan error)
	go func() {
		_, err := b.conn.Exec(context.Background(), `SELECT pg_sleep(60)`)
		failed <- err
	}()
	b.busy("pg_sleep", true)
	b.KillAll()
	if err := <-failed; err == nil || code(err) != "" {
		t.Error(err)
	}
	if _, err := idle.Exec(t.Context(), `SELECT 1`); err == nil {
		t.Error("an idle connection lives")
	}
	if err := pipelined(t.Context(), b.connect(b.URL())); err != nil {
		t.Error(err)
	}
}

// TestCancel: a client's request to cancel reaches its statement on the server.
func TestCancel(t *testing.T) {
	b := newBank(t)
	failed := make(chan error)
	go func() {
		_, err := b.conn.Exec(context.Background(), `SELECT pg_sleep(60)`)
		failed <- err
	}()
	b.busy("pg_sleep", true)
	if err := b.conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-failed; code(err) != "57014" {
		t.Error(err)
	}
}

func TestEncryptionIsRefused(t *testing.T) {
	b := newBank(t)
	if err := pipelined(t.Context(), b.connect(strings.Replace(b.URL(), "sslmode=disable", "sslmode=prefer", 1))); err != nil {
		t.Error(err)
	}
}

// TestFlush: answers come before the exchange is complete, and no fault meets it.
func TestFlush(t *testing.T) {
	b := newBank(t)
	b.Arm(AmbiguousCommitted)
	pipeline := b.conn.PgConn().StartPipeline(t.Context())
	pipeline.SendQueryParams(beginWrite, nil, nil, nil, nil)
	pipeline.SendQueryParams(`UPDATE account SET balance = 7 RETURNING balance`, nil, nil, nil, nil)
	pipeline.SendFlushRequest()
	if err := pipeline.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		results, err := pipeline.GetResults()
		if err != nil {
			t.Fatal(err)
		}
		if err := results.(*pgconn.ResultReader).Read().Err; err != nil {
			t.Fatal(err)
		}
	}
	pipeline.SendQueryParams("COMMIT", nil, nil, nil, nil)
	if err := errors.Join(pipeline.Sync(), pipeline.Close()); err != nil || b.balance() != 7 || len(b.Fired()) != 0 {
		t.Errorf("%v, balance %d, fired %v", err, b.balance(), b.Fired())
	}
}

// TestMuch: neither long pipelines nor long answers stop the proxy.
func TestMuch(t *testing.T) {
	b := newBank(t)
	const queries, size = 2000, 10_000
	batch := &pgx.Batch{}
	for range queries {
		batch.Queue(`SELECT $1::text`, strings.Repeat("x", size))
	}
	results := b.conn.SendBatch(t.Context(), batch)
	for i := range queries {
		var text string
		if err := results.QueryRow().Scan(&text); err != nil || len(text) != size {
			t.Fatalf("%d: %d bytes, %v", i, len(text), err)
		}
	}
	if err := results.Close(); err != nil {
		t.Error(err)
	}
}

// TestServerEnds: the client hears the server's last words, and finds it again by the same address.
func TestServerEnds(t *testing.T) {
	cluster := pgtest.Start(t, pgtest.Options{NoSync: true})
	proxy := New(t, cluster.TCP(cluster.NewDatabase(t)))
	idle, err := pgx.Connect(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := idle.Exec(t.Context(), `SELECT 1`); code(err) != "57P01" && !idle.IsClosed() {
		t.Error(err)
	}
	if _, err := pgx.Connect(t.Context(), proxy.URL()); err == nil {
		t.Error("a stopped server takes connections")
	}
	if err := cluster.Resume(); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestVerbs(t *testing.T) {
	for text, want := range map[string]verb{
		"COMMIT": commit, " commit ; ": commit, "end": commit, "Commit Transaction": commit,
		"begin": begin, "START TRANSACTION ISOLATION LEVEL SERIALIZABLE": begin, "begin read write": begin,
		"BEGIN ISOLATION LEVEL SERIALIZABLE, READ\nONLY": beginReadOnly,
		"rollback": rollback, "ABORT": rollback, "ROLLBACK TO SAVEPOINT x": other,
		"": other, ";": other, "begin; select 1; commit": other, "SELECT 'commit'": other, "-- ping": other,
	} {
		if got := verbOf(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestNames: every fault has a name and a place in the tests.
func TestNames(t *testing.T) {
	for _, fault := range Faults() {
		if _, known := want[fault]; !known || fault.String() == "" {
			t.Errorf("%d %q", int(fault), fmt.Sprint(fault))
		}
	}
	if len(Faults()) != len(names) {
		t.Error("a name without a fault")
	}
}
