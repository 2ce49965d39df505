package main

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"regent/ledger/sqldb"
)

// clientOf is a client of a handler, and the target that it calls.
func clientOf(t *testing.T, handler http.Handler) (*client, *target) {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	at := &target{name: direct, base: plainBase, process: &process{url: server.URL}}
	c, err := dial(at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c, at
}

func TestMockAnswersWhatTheClientExpects(t *testing.T) {
	c, at := clientOf(t, mock())
	for range 2 { // on one connection
		if err := c.call(wholeRequest(at)); err != nil {
			t.Error(err)
		}
		p, chunks := plan{chunks: 3, gap: time.Millisecond}, 0
		if err := c.stream(streamRequest(at, chat, p), chat, p, func(int) { chunks++ }); err != nil || chunks != 3 {
			t.Errorf("%d of 3 chunks: %v", chunks, err)
		}
	}
}

// TestLossIsSeen: whatever is missing from an answer, it does not count as one.
func TestLossIsSeen(t *testing.T) {
	p := plan{chunks: 2}
	whole := roleChunk + textChunk + textChunk + stopChunk + usageChunk + doneChunk
	for name, body := range map[string]string{
		"a chunk":           strings.Replace(whole, textChunk, "", 1),
		"a byte":            strings.Replace(whole, "of text ", "of text", 1),
		"the usage":         strings.Replace(whole, usageChunk, "", 1),
		"the end":           strings.TrimSuffix(whole, doneChunk),
		"everything":        "",
		"nothing, but late": doneChunk + strings.TrimSuffix(whole, doneChunk),
	} {
		c, at := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
		if err := c.stream(streamRequest(at, chat, p), chat, p, func(int) {}); !errors.Is(err, errAnswer) {
			t.Errorf("without %s: %v", name, err)
		}
		if err := c.call(wholeRequest(at)); !errors.Is(err, errAnswer) {
			t.Errorf("without %s, as a whole answer: %v", name, err)
		}
	}
}

func TestRefusalsAreToldFromFailures(t *testing.T) {
	for status, want := range map[int]error{http.StatusServiceUnavailable: errRefused, http.StatusForbidden: errAnswer} {
		c, at := clientOf(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		if err := c.call(wholeRequest(at)); !errors.Is(err, want) {
			t.Errorf("%d: %v, want %v", status, err, want)
		}
	}
}

// TestTransactionsAreCounted: each SetCursor is one.
func TestTransactionsAreCounted(t *testing.T) {
	folder, ctx := t.TempDir(), context.Background()
	store, err := sqldb.Open(ctx, sqldb.Config{Path: filepath.Join(folder, "regent.db")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	const transactions = 7
	commits, written, err := countCommits(folder, func() error {
		for n := range int64(transactions) {
			if err := store.SetCursor(ctx, "sink", [16]byte{1}, n-1, n); err != nil {
				return err
			}
		}
		return nil
	}, func() {})
	if err != nil || commits != transactions || written == 0 {
		t.Errorf("%v commits in %v bytes (%v), want %d", commits, written, err, transactions)
	}
}

// TestLogEndsAtAnEarlierOnesFrame: the rest of the file is from before the log began anew.
func TestLogEndsAtAnEarlierOnesFrame(t *testing.T) {
	const page = 512
	log := make([]byte, logHeader)
	binary.BigEndian.PutUint32(log[8:], page)
	copy(logSalt(log), "new salt")
	for _, frame := range []struct {
		salt string
		size uint32
	}{{"new salt", 0}, {"new salt", 9}, {"old salt", 9}} {
		header := make([]byte, frameHeader+page)
		binary.BigEndian.PutUint32(header[4:], frame.size)
		copy(header[8:], frame.salt)
		log = append(log, header...)
	}
	if commits, length := readLog(log); commits != 1 || length != logHeader+2*(frameHeader+page) {
		t.Errorf("%d commits in %d bytes", commits, length)
	}
}

func TestTraces(t *testing.T) {
	const text = `File: bench
Type: cpu
Duration: 10s, Total samples = 30ms
-----------+-------------------------------------------------------
     bytes:  16
      20ms   runtime.mallocgc
             encoding/json.Marshal
             regent/engine.(*Router).Serve
-----------+-------------------------------------------------------
      10ms   runtime.gcBgMarkWorker
`
	var weights []float64
	var stacks [][]string
	for weight, stack := range traces([]byte(text), "ms") {
		weights, stacks = append(weights, weight), append(stacks, stack)
	}
	want := [][]string{{"runtime.mallocgc", "encoding/json.Marshal", "regent/engine.(*Router).Serve"}, {"runtime.gcBgMarkWorker"}}
	if !reflect.DeepEqual(weights, []float64{20, 10}) || !reflect.DeepEqual(stacks, want) {
		t.Errorf("%v of %q", weights, stacks)
	}
}

func TestRoomOfStack(t *testing.T) {
	for stack, want := range map[string]string{
		"runtime.mallocgc encoding/json.Marshal regent/engine.(*Router).Serve":                              "encoding/json",
		"runtime.memmove regent/ledger/sqldb.scan regent/ledger.(*Ledger).write":                            "ledger/sqldb",
		"runtime.scanObject runtime.gcAssistAlloc runtime.mallocgc regent/engine.(*Router).Serve":           "runtime: garbage collection",
		"runtime.findRunnable runtime.schedule runtime.mcall":                                               "runtime: scheduler",
		"syscall.write net.(*conn).Write net/http.checkConnErrorWriter.Write regent/server/inference.write": "net/http server",
	} {
		if got := roomOfStack(strings.Fields(stack)); got != want {
			t.Errorf("%s: %s, want %s", stack, got, want)
		}
	}
}

// TestJudge: the bounds themselves meet them, and whatever is past them does not.
func TestJudge(t *testing.T) {
	b := &bench{}
	put := func(stage, target string, v values) {
		b.samples = append(b.samples, sample{Stage: stage, Target: target, Values: v})
	}
	put("c16", bare, values{"cpu_us": 100})
	put("c16", regent, values{"cpu_us": 150})
	put(oneClient, direct, values{"p50": 50})
	put(oneClient, bare, values{"p50": 150})
	put(oneClient, regent, values{"p50": 251})
	put("c64", regent, values{"per_s": 1000})
	put("c64", sqlite, values{"per_s": 399})
	put(holdStage, bare, values{"cpu_us": 10, "kib": 50, "lost": 9})
	for _, lost := range []float64{0, 1, 2} { // one at the median, two at most
		put(holdStage, regent, values{"cpu_us": 13, "kib": 60, "lost": lost})
	}
	var is []float64
	var met []bool
	for _, j := range b.judge() {
		is, met = append(is, j.Is), append(met, j.Met)
	}
	if !reflect.DeepEqual(is, []float64{1.5, 2.01, 0.399, 1.3, 1.2, 2}) || !reflect.DeepEqual(met, []bool{true, false, false, true, true, false}) {
		t.Errorf("%v: %v", is, met)
	}
}

// TestJudgePolicy: likewise, for what policy costs.
func TestJudgePolicy(t *testing.T) {
	b := &bench{}
	put := func(target string, v values) {
		b.samples = append(b.samples, sample{Stage: policyStage, Target: target, Values: v})
	}
	if judged := b.judgePolicy(); judged != nil {
		t.Errorf("nothing was measured: %v", judged)
	}
	put(trivial, values{"ns": 4000})
	put(cold, values{"ns": 60_000})
	put(remembered, values{"ns": 1001})
	put(regent, values{"cold": 550, "few": 500, "all": 511})
	put(steady, values{"p99": 10})
	put(swapping, values{"p99": 30, "failed": 1})
	var is []float64
	var met []bool
	for _, j := range b.judgePolicy() {
		is, met = append(is, j.Is), append(met, j.Met)
	}
	if !reflect.DeepEqual(is, []float64{15, 550, 1.022, 0.25025, 3, 1}) || !reflect.DeepEqual(met, []bool{true, true, false, false, true, false}) {
		t.Errorf("%v: %v", is, met)
	}
}

// TestCatalogue: the catalogue's place-holder is there once, and what is not wanted for counting comes last.
func TestCatalogue(t *testing.T) {
	withoutSinks, sinks, found := strings.Cut(catalogueText, "decisions:")
	if strings.Count(catalogueText, "UPSTREAM") != 2 || !found || !strings.Contains(withoutSinks, "policy:") || strings.Contains(sinks, "\n\n") {
		t.Error(catalogueText)
	}
}

func TestProcessSaysWhyItDidNotStart(t *testing.T) {
	folder := t.TempDir()
	_, err := start(context.Background(), folder, "program", []string{"PATH=" + os.Getenv("PATH")}, "sh", "-c", "echo no such thing >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Error(err)
	}
}

// TestRoundTripsAreCounted: what is written before the answer is read is one trip, and what prepares a statement is counted apart.
func TestRoundTripsAreCounted(t *testing.T) {
	ours := &ourBooks{}
	here, there := net.Pipe()
	conn := &countedConn{Conn: here, to: ours}
	go func() { _, _ = io.Copy(there, there) }() // an echo, which a pipe reads before it writes
	for _, message := range []string{"Parse", "Bind", "Bind"} {
		if _, err := conn.Write([]byte(message)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, len(message))); err != nil {
			t.Fatal(err)
		}
	}
	_ = here.Close()
	if ours.trips.Load() != 2 || ours.preparing.Load() != 1 {
		t.Errorf("%d round trips and %d that prepare, want 2 and 1", ours.trips.Load(), ours.preparing.Load())
	}
}
