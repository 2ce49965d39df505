package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
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

// mix is how many calls of each kind a process gets in a round.
type mix struct{ streams, wholes, denied int }

func (m mix) all() int { return m.streams + m.wholes + m.denied }

// stormScripts are what the storms ask for. The calls of slow take longer than a hold lives.
var stormScripts = map[string]fake.Script{
	"quick":   {{ChunkMillis: 5}},
	"whole":   {{DelayMillis: 20}},
	"slow":    {{ChunkMillis: 250, Text: slices.Repeat([]string{"tick "}, 8)}},
	"broken":  {{Break: fake.BreakAfterDelta}},
	"silent":  {{ChunkMillis: 5, OmitUsage: true}},
	"refuses": {{Status: http.StatusServiceUnavailable}},
}

// stormUsage is the usage of a whole answer, where the provider tells it: 2 tokens of the request, and one a delta.
var stormUsage = map[string]int64{"quick": 2 + 5, "whole": 2 + 5, "slow": 2 + 8, "failover": 2 + 5}

func stormModels() string {
	return siteModel("quick", "quick") + siteModel("whole", "whole") + siteModel("slow", "slow") + siteModel("broken", "broken") +
		siteModel("silent", "silent") + siteModel("failover", "refuses", "quick")
}

// storm is calls of many clients, what they and the provider saw of them, and when a process is killed meanwhile.
type storm struct {
	*site
	mix    mix
	random *rand.Rand
	calls  []*clientCall
	sent   map[string]bool // by the client's request id

	mu sync.Mutex // guards what follows
	// seen counts the calls that reached the provider, by the client's request id.
	seen   map[string]int
	events [moments]int
	// fatal is the event, and the number of it, at which now is closed.
	fatal struct {
		moment, number int
		now            chan struct{}
		passed         bool
	}
}

// clientCall is one call, as its client saw it.
type clientCall struct {
	id, model string
	stream    bool
	// hangUpAfter is how many deltas the client reads before it goes away; 0 reads all.
	hangUpAfter int

	// by is the process that was asked.
	by        *process
	status    int
	requestID string
	deltas    int
	complete  bool // the whole answer has come: [DONE], or all of a body
}

// newStorm makes the site of a storm.
func newStorm(t *testing.T, mix mix, tokens string, variables ...string) *storm {
	t.Helper()
	s := &storm{mix: mix, random: rand.New(rand.NewPCG(ledgertest.Seed(t), 1)), sent: map[string]bool{}, seen: map[string]int{}}
	s.fatal.passed = true
	config := fake.Config{OnCall: func(_ string, body []byte) {
		s.provided(body)
		s.happened(providerCalled)
	}}
	s.site = newLimitedSite(t, config, stormScripts, stormModels(), tokens, variables...)
	return s
}

// provided notes a call that reached the provider.
func (s *storm) provided(body []byte) {
	var request struct{ User string }
	if err := json.Unmarshal(body, &request); err != nil || request.User == "" {
		s.t.Errorf("the provider got %q: %v", body, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[request.User]++
}

// happened counts an event, and says so if it is the one at which a process is to be killed.
func (s *storm) happened(moment int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[moment]++
	if !s.fatal.passed && moment == s.fatal.moment && s.events[moment] >= s.fatal.number {
		s.fatal.passed = true
		close(s.fatal.now)
	}
}

// choose chooses a moment among the events of so many calls, some time after which a process is to be killed.
func (s *storm) choose(calls int) (now <-chan struct{}, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	streams := calls * s.mix.streams / s.mix.all()
	most := []int{calls, calls * (s.mix.all() - s.mix.denied) / s.mix.all(), 4 * streams, streams / 2}
	s.events = [moments]int{}
	s.fatal.moment = s.random.IntN(moments)
	s.fatal.number = 1 + s.random.IntN(most[s.fatal.moment])
	s.fatal.now, s.fatal.passed = make(chan struct{}), false
	return s.fatal.now, time.Duration(s.random.Int64N(int64(20 * time.Millisecond)))
}

// awaitMoment waits for the moment that was chosen and the pause after it, or until all clients have ended, of whom it tells.
func (s *storm) awaitMoment(round int, clients *sync.WaitGroup, now <-chan struct{}, pause time.Duration) (all <-chan struct{}) {
	ended := make(chan struct{})
	go func() { clients.Wait(); close(ended) }()
	select {
	case <-now:
		time.Sleep(pause)
	case <-ended: // fewer of the events than expected
	case <-time.After(patience):
		s.t.Errorf("round %d: the calls do not end", round)
	}
	return ended
}

func roundName(round int) string { return fmt.Sprintf("r%d", round) }

// newCalls makes the calls that one process gets in a round.
func (s *storm) newCalls(name string) (calls []*clientCall) {
	add := func(n int, stream bool, models ...string) {
		for range n {
			call := &clientCall{id: fmt.Sprintf("%s-c%d", name, len(calls)), model: models[s.random.IntN(len(models))], stream: stream}
			if s.random.IntN(8) == 0 {
				call.hangUpAfter = 1 + s.random.IntN(4)
			}
			calls = append(calls, call)
			s.sent[call.id] = true
		}
	}
	add(s.mix.streams, true, "quick", "quick", "quick", "slow", "broken", "silent", "failover")
	add(s.mix.wholes, false, "quick", "whole", "failover")
	add(s.mix.denied, true, "unknown")
	s.random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
	return calls
}

// send sends one call and reads its answer, however that ends.
func (s *storm) send(client *http.Client, p *process, call *clientCall) {
	call.by = p
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

var aliceAccounts = []ledger.Account{
	{Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.Tokens}, {Scope: ledger.ScopeUser, ID: "alice", Unit: ledger.USD},
}

// wantNoHolds waits until every hold has ended.
func (s *site) wantNoHolds() {
	s.t.Helper()
	s.withStore(func(store ledger.Store) {
		waitUntil(s.t, "every hold to end", func() bool {
			rows, err := store.Load(context.Background(), ledger.Keys{Standing: aliceAccounts})
			if err != nil {
				s.t.Fatal(err)
			}
			return len(rows.Holds) == 0
		})
	})
}

// auditCalls compares calls with the newest reports of the ledger, and counts them by state.
func (s *storm) auditCalls(store ledger.Store, calls []*clientCall) map[ledger.State]int {
	reports, err := store.Calls(context.Background(), ledger.CallQuery{Owner: "alice", Limit: 2 * len(calls)})
	if err != nil {
		s.t.Fatal(err)
	}
	booked := map[string]*ledger.CallReport{}
	for i, report := range reports {
		if booked[report.ClientRequestID] != nil {
			s.t.Errorf("%s came about twice", report.ClientRequestID)
		}
		if !s.sent[report.ClientRequestID] {
			s.t.Errorf("%s is in the ledger, and nobody sent it", report.ClientRequestID)
		}
		booked[report.ClientRequestID] = &reports[i]
	}
	states := map[ledger.State]int{}
	for _, call := range calls {
		report := booked[call.id]
		s.auditCall(call, report)
		if report != nil {
			states[report.State]++
		}
	}
	return states
}

// auditCall compares what a client and the provider saw of a call with its report, nil if the ledger knows none.
func (s *storm) auditCall(call *clientCall, report *ledger.CallReport) {
	s.mu.Lock()
	seen := s.seen[call.id]
	s.mu.Unlock()
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
		if attempt.Outcome.Result == ledger.Expired && !call.by.killed {
			s.t.Errorf("%s: its hold expired in a process that lived on: %+v", call.id, attempt)
		}
	}
	if call.complete && report.State != ledger.Completed && (report.State != ledger.Failed || !call.by.killed) {
		s.t.Errorf("%s: its client has the whole answer; the call is %s: %+v", call.id, report.State, report.Attempts)
	}
	if want := stormUsage[call.model]; call.complete && report.State == ledger.Completed && want > 0 && charged != want {
		s.t.Errorf("%s: used %d, charged %d: %+v", call.id, want, charged, report.Attempts)
	}
	if (call.complete || call.deltas > 0) && charged == 0 {
		s.t.Errorf("%s: its client has output, and nothing was charged: %s, %+v", call.id, report.State, report.Attempts)
	}
	if call.model == "unknown" && report.State != ledger.Denied {
		s.t.Errorf("%s: no such model, and the call is %s", call.id, report.State)
	}
}

// sinkPath is the file of the sink of a process with a data folder.
func (s *site) sinkPath(data string) string { return filepath.Join(s.folder, data, "decisions.jsonl") }

// tearSink leaves a sink's file as a process does that is killed in the middle of a write.
func (s *site) tearSink(data string) {
	file, err := os.OpenFile(s.sinkPath(data), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = file.WriteString(`{"labels":{"torn`)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		s.t.Error(err)
	}
}

// wantShipped waits until the sinks have read the whole journal.
func (s *site) wantShipped() {
	s.t.Helper()
	s.withStore(func(store ledger.Store) {
		waitUntil(s.t, "the sinks to get everything", func() bool {
			streams, err := store.Streams(context.Background())
			if err != nil {
				s.t.Fatal(err)
			}
			return !slices.ContainsFunc(streams, func(stream ledger.Stream) bool {
				at, err := store.Cursor(context.Background(), "file", stream.Writer)
				if err != nil {
					s.t.Fatal(err)
				}
				return at < stream.Last
			})
		})
	})
}

// shipped counts what a sink's file has, by the hash of a record's body. It is whole lines.
func (s *site) shipped(data string) map[[sha256.Size]byte]int {
	s.t.Helper()
	file, err := os.Open(s.sinkPath(data))
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // it was only read
	counts := map[[sha256.Size]byte]int{}
	for reader := bufio.NewReader(file); ; {
		line, err := reader.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return counts
		}
		var event struct{ Result json.RawMessage }
		if err := errors.Join(err, json.Unmarshal(line, &event)); err != nil {
			s.t.Fatalf("the sink has a line that is no event: %v: %.200q", err, line)
		}
		counts[sha256.Sum256(bytes.TrimSuffix(line, []byte("\n")))]++ // a decision's body is the event
		counts[sha256.Sum256(event.Result)]++                         // an outcome's is its result
	}
}

// auditSinks checks that the files of the sinks have every decision and outcome of the journal between them.
func (s *site) auditSinks(data ...string) {
	s.t.Helper()
	shipped := map[[sha256.Size]byte]int{}
	for _, folder := range data {
		for hash, n := range s.shipped(folder) {
			shipped[hash] += n
		}
	}
	missing := map[ledger.Kind]int{}
	s.eachShippable(func(record ledger.Record) {
		if shipped[sha256.Sum256(record.Body)] == 0 {
			missing[record.Kind]++
		}
	})
	if len(missing) > 0 {
		s.t.Errorf("the sinks lack records: %v", missing)
	}
}

// eachShippable reads the records of the journal that a sink gets.
func (s *site) eachShippable(read func(ledger.Record)) {
	s.t.Helper()
	s.withStore(func(store ledger.Store) {
		eachRecord(s.t, store, func(record ledger.Record) {
			if _, wanted, _ := decisions.Render(record, nil); wanted {
				read(record)
			}
		})
	})
}

// eachRecord reads all of a journal.
func eachRecord(t *testing.T, store ledger.Store, read func(ledger.Record)) {
	t.Helper()
	streams, err := store.Streams(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range streams {
		for at := int64(0); at < stream.Last; {
			records, err := store.Records(context.Background(), stream.Writer, at, 1000)
			if err != nil || len(records) == 0 {
				t.Fatalf("stream %s after %d: %d records, %v", stream.Writer, at, len(records), err)
			}
			for _, record := range records {
				read(record)
			}
			at = records[len(records)-1].Number
		}
	}
}
