package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"regent/adapters/fake"
	"regent/engine/decisions"
	"regent/ledger"
	"regent/ledger/ledgertest"
)

// The moments at which a process is killed: when so many of these have happened.
const (
	requestSent = iota
	providerCalled
	outputSeen
	answerComplete
	moments
)

const (
	streamsPerRound = 100
	wholesPerRound  = 20
	deniedPerRound  = 5
)

// crashModels are what the storm asks for. The calls of slow take longer than a hold lives.
var crashScripts = map[string]fake.Script{
	"quick":   {{ChunkMillis: 5}},
	"whole":   {{DelayMillis: 20}},
	"slow":    {{ChunkMillis: 250, Text: slices.Repeat([]string{"tick "}, 8)}},
	"broken":  {{Break: fake.BreakAfterDelta}},
	"silent":  {{ChunkMillis: 5, OmitUsage: true}},
	"refuses": {{Status: http.StatusServiceUnavailable}},
}

func crashModels() string {
	return siteModel("quick", "quick") + siteModel("whole", "whole") + siteModel("slow", "slow") + siteModel("broken", "broken") +
		siteModel("silent", "silent") + siteModel("failover", "refuses", "quick")
}

// crashStorm is rounds of calls on one data folder, each ended by kill -9.
type crashStorm struct {
	*site
	random *rand.Rand
	calls  []*clientCall

	events [moments]atomic.Int64
	// killAt is the event, and the number of it, at which now is closed.
	killAt struct {
		moment int
		number int64
		once   *sync.Once
		now    chan struct{}
	}

	mu sync.Mutex // guards seen
	// seen counts the calls that reached the provider, by the client's request id.
	seen map[string]int
}

// clientCall is one call, as its client saw it.
type clientCall struct {
	id, model string
	stream    bool
	// hangUpAfter is how many deltas the client reads before it goes away; 0 reads all.
	hangUpAfter int

	status    int
	requestID string
	deltas    int
	complete  bool // the whole answer has come: [DONE], or all of a body
}

// TestCrashStorm: the program is killed at random moments, over and over, on one data folder. Afterwards the books are right to
// the last token, and no client and no provider saw anything that the ledger does not know.
func TestCrashStorm(t *testing.T) {
	rounds := crashRounds
	if testing.Short() {
		rounds = 3
	}
	seed := ledgertest.Seed(t)
	storm := &crashStorm{random: rand.New(rand.NewPCG(seed, 1)), seen: map[string]int{}}
	config := fake.Config{OnCall: func(_ string, body []byte) {
		storm.provided(body)
		storm.happened(providerCalled)
	}}
	storm.site = newSite(t, config, crashScripts, crashModels(), "REGENT_HOLD_TTL=1500ms", "REGENT_DRAIN_FOR=20s")
	for round := range ledgertest.Rounds(t, rounds) {
		storm.round(round)
		if t.Failed() {
			return
		}
	}
	storm.settle()
	storm.withStore(storm.audit)
	storm.auditSink()
	t.Logf("%d calls, %d of them reached the provider", len(storm.calls), len(storm.seen))
}

// provided notes a call that reached the provider.
func (s *crashStorm) provided(body []byte) {
	var request struct{ User string }
	if err := json.Unmarshal(body, &request); err != nil || request.User == "" {
		s.t.Errorf("the provider got %q: %v", body, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[request.User]++
}

// happened counts an event, and has the process killed if it is the one.
func (s *crashStorm) happened(moment int) {
	if s.events[moment].Add(1) >= s.killAt.number && moment == s.killAt.moment {
		s.killAt.once.Do(func() { close(s.killAt.now) })
	}
}

// round starts the program, sends calls, and kills it.
func (s *crashStorm) round(round int) {
	calls := s.newCalls(round)
	for i := range s.events {
		s.events[i].Store(0)
	}
	most := []int{len(calls), len(calls) - deniedPerRound, 4 * streamsPerRound, streamsPerRound / 2}
	moment := s.random.IntN(moments)
	s.killAt.moment, s.killAt.number = moment, 1+s.random.Int64N(int64(most[moment]))
	s.killAt.once, s.killAt.now = &sync.Once{}, make(chan struct{})
	pause := time.Duration(s.random.Int64N(int64(20 * time.Millisecond)))

	p := s.start()
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()
	var clients sync.WaitGroup
	for _, call := range calls {
		clients.Go(func() { s.do(client, p, call) })
	}
	all := make(chan struct{})
	go func() { clients.Wait(); close(all) }()
	select {
	case <-s.killAt.now:
		time.Sleep(pause)
	case <-all: // fewer of the events than expected
	case <-time.After(patience):
		s.t.Errorf("round %d: the calls do not end", round)
	}
	p.kill()
	<-all
	if stderr := p.stderr.bytes(); bytes.Contains(stderr, []byte("DATA RACE")) || bytes.Contains(stderr, []byte("panic")) {
		s.t.Errorf("round %d: the program said\n%s", round, stderr)
	}
	s.calls = append(s.calls, calls...)
	s.tearSink()
}

// tearSink leaves the sink's file as a process does that is killed in the middle of a write.
func (s *crashStorm) tearSink() {
	file, err := os.OpenFile(s.sinkPath(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = file.WriteString(`{"labels":{"torn`)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		s.t.Error(err)
	}
}

func (s *crashStorm) sinkPath() string { return filepath.Join(s.folder, "data", "decisions.jsonl") }

func (s *crashStorm) newCalls(round int) (calls []*clientCall) {
	add := func(n int, stream bool, models ...string) {
		for range n {
			call := &clientCall{id: fmt.Sprintf("r%d-c%d", round, len(calls)), model: models[s.random.IntN(len(models))], stream: stream}
			if s.random.IntN(8) == 0 {
				call.hangUpAfter = 1 + s.random.IntN(4)
			}
			calls = append(calls, call)
		}
	}
	add(streamsPerRound, true, "quick", "quick", "quick", "slow", "broken", "silent", "failover")
	add(wholesPerRound, false, "quick", "whole", "failover")
	add(deniedPerRound, true, "unknown")
	s.random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	return calls
}

// do sends one call and reads its answer, however that ends.
func (s *crashStorm) do(client *http.Client, p *process, call *clientCall) {
	ctx, hangUp := context.WithCancel(context.Background())
	defer hangUp()
	request := p.request(ctx, call.model, call.id, call.stream)
	s.happened(requestSent)
	response, err := client.Do(request)
	if err != nil {
		return // killed before it answered
	}
	defer func() { _ = response.Body.Close() }() // what of it came has been read
	call.status, call.requestID = response.StatusCode, response.Header.Get("X-Regent-Request-Id")
	if !call.stream || call.status != http.StatusOK {
		_, err := io.Copy(io.Discard, response.Body)
		call.complete = err == nil && call.status == http.StatusOK
		return
	}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "data: [DONE]":
			call.complete = true
			s.happened(answerComplete)
		case strings.Contains(line, `"delta":{"content":"`) && !strings.Contains(line, `"content":""`):
			call.deltas++
			s.happened(outputSeen)
		}
		if call.deltas == call.hangUpAfter && call.deltas > 0 {
			hangUp()
			return
		}
	}
}

// isShipped says whether every sink has come to the end of every stream.
func isShipped(t *testing.T, store ledger.Store) bool {
	t.Helper()
	ctx := context.Background()
	streams, err := store.Streams(ctx)
	if err != nil {
		t.Fatal(err)
	}
	sinks, err := store.Sinks(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, sink := range sinks {
		for _, stream := range streams {
			at, err := store.Cursor(ctx, sink, stream.Writer)
			if err != nil {
				t.Fatal(err)
			}
			if at < stream.Last {
				return false
			}
		}
	}
	return len(sinks) > 0
}

// settle runs the program once more, until every hold has ended and what was left is shipped, and stops it.
func (s *crashStorm) settle() {
	p := s.start()
	s.withStore(func(store ledger.Store) {
		waitUntil(s.t, "every hold to end", func() bool {
			rows, err := store.Load(context.Background(), ledger.Keys{Standing: aliceAccounts})
			if err != nil {
				s.t.Fatal(err)
			}
			return len(rows.Holds) == 0
		})
		waitUntil(s.t, "the sink to have what killed processes left", func() bool { return isShipped(s.t, store) })
	})
	p.signal(syscall.SIGTERM)
	p.wantExit()
}

var aliceAccounts = []ledger.Account{
	{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.Tokens}, {Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.USD},
}

// audit checks the books, and what was seen outside against them.
func (s *crashStorm) audit(store ledger.Store) {
	ctx := context.Background()
	if err := ledgertest.Audit(ctx, store); err != nil {
		s.t.Error(err)
	}
	reports, err := store.Calls(ctx, ledger.CallQuery{Owner: "alice", Limit: 2 * len(s.calls)})
	if err != nil {
		s.t.Fatal(err)
	}
	booked := map[string]*ledger.CallReport{}
	for i, report := range reports {
		if booked[report.ClientRequestID] != nil {
			s.t.Errorf("%s came about twice", report.ClientRequestID)
		}
		booked[report.ClientRequestID] = &reports[i]
	}
	states := map[ledger.State]int{}
	for _, call := range s.calls {
		report := booked[call.id]
		s.auditCall(call, report)
		delete(booked, call.id)
		if report != nil {
			states[report.State]++
		}
	}
	for id := range booked {
		s.t.Errorf("%s is in the ledger, and nobody sent it", id)
	}
	s.t.Logf("calls by state: %v", states)
}

// auditCall compares what a client and the provider saw of a call with its report, nil if the ledger knows none.
func (s *crashStorm) auditCall(call *clientCall, report *ledger.CallReport) {
	seen := s.seen[call.id]
	if report == nil {
		if seen > 0 || call.deltas > 0 || call.complete {
			s.t.Errorf("%s is not in the ledger; the provider saw it %d times, the client %+v", call.id, seen, *call)
		}
		return
	}
	if call.requestID != "" && call.requestID != report.ID.String() {
		s.t.Errorf("%s: the client was told %s, the ledger has %s", call.id, call.requestID, report.ID)
	}
	if seen > len(report.Attempts) {
		s.t.Errorf("%s: the provider saw %d attempts, the ledger has %d", call.id, seen, len(report.Attempts))
	}
	charged := int64(0)
	for _, attempt := range report.Attempts {
		charged += attempt.Charge.Tokens
	}
	if call.complete && report.State != ledger.Completed && report.State != ledger.Failed {
		s.t.Errorf("%s: its client has the whole answer; the call is %s", call.id, report.State)
	}
	if (call.complete || call.deltas > 0) && charged == 0 {
		s.t.Errorf("%s: its client has output, and nothing was charged: %s, %+v", call.id, report.State, report.Attempts)
	}
	if call.model == "unknown" && report.State != ledger.Denied {
		s.t.Errorf("%s: no such model, and the call is %s", call.id, report.State)
	}
}

// auditSink checks that the file of the sink is whole lines, and has every decision and outcome of the journal.
func (s *crashStorm) auditSink() {
	text, err := os.ReadFile(s.sinkPath())
	if err != nil {
		s.t.Fatal(err)
	}
	shipped := map[string]bool{}
	for line := range bytes.Lines(text) {
		var event struct{ Result json.RawMessage }
		if err := json.Unmarshal(line, &event); err != nil {
			s.t.Errorf("the sink has a line that is no event: %v: %.200q", err, line)
		}
		shipped[strings.TrimSuffix(string(line), "\n")] = true
		shipped[string(event.Result)] = true
	}
	s.withStore(func(store ledger.Store) {
		missing := map[ledger.Kind]int{}
		for _, record := range journalOf(s.t, store) {
			if _, wanted, _ := decisions.Render(record, nil); wanted && !shipped[string(record.Body)] {
				missing[record.Kind]++
			}
		}
		if len(missing) > 0 {
			s.t.Errorf("the sink lacks records: %v", missing)
		}
	})
}

// journalOf reads all of a journal.
func journalOf(t *testing.T, store ledger.Store) (all []ledger.Record) {
	t.Helper()
	streams, err := store.Streams(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range streams {
		records, err := store.Records(context.Background(), stream.Writer, 0, int(stream.Last))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, records...)
	}
	return all
}
