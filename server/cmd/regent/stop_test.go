package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/adapters/fake"
	"regent/ledger"
	"regent/ledger/ledgertest"
)

var stopScripts = map[string]fake.Script{
	"held":    {{Hold: true}},
	"started": {{HoldAfterDelta: true}},
	"endless": {{Text: slices.Repeat([]string{strings.Repeat("x", 64<<10)}, 1000)}}, // more than the sockets of a connection hold
}

func stopModels() string {
	return siteModel("held", "held") + siteModel("started", "started") + siteModel("endless", "endless")
}

// running is a call whose client reads all that comes.
type running struct {
	id    string
	ended chan struct{}
	// status and text are the whole answer, and err is how it broke, once ended is closed.
	status int
	text   string
	err    error
}

// begin sends a call and waits until the provider has it open, and the client its first delta if there is one.
func begin(t *testing.T, s *site, at address, model, id string, stream bool) *running {
	t.Helper()
	c := &running{id: id, ended: make(chan struct{})}
	open, delta := s.provider.Seen(model).Open, make(chan struct{})
	go func() {
		defer close(c.ended)
		c.read(at.request(context.Background(), model, id, stream), delta)
	}()
	early := func() {
		t.Helper()
		t.Fatalf("%s ended early: %d, %v\n%s", id, c.status, c.err, c.text)
	}
	waitUntil(t, "the provider to have the call", func() bool {
		select {
		case <-c.ended:
			early()
		default:
		}
		return s.provider.Seen(model).Open > open
	})
	if model == "started" {
		select {
		case <-delta:
		case <-c.ended:
			early()
		}
	}
	return c
}

// read sends the call and reads its answer; delta is closed at the first output.
func (c *running) read(r *http.Request, delta chan struct{}) {
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		c.err = err
		return
	}
	defer func() { _ = response.Body.Close() }() // all of it is read
	c.status = response.StatusCode
	var text strings.Builder
	for reader, seen := bufio.NewReader(response.Body), false; ; {
		line, err := reader.ReadString('\n')
		text.WriteString(line)
		if !seen && strings.Contains(line, `"content":"This"`) {
			seen = true
			close(delta)
		}
		if err != nil {
			if err != io.EOF {
				c.err = err
			}
			break
		}
	}
	c.text = text.String()
}

// wantAnswer waits for the end of a call and looks at what its client got.
func (c *running) wantAnswer(t *testing.T, status int, contains, lacks string) {
	t.Helper()
	select {
	case <-c.ended:
	case <-time.After(patience):
		t.Fatalf("%s does not end", c.id)
	}
	if c.err != nil {
		t.Errorf("%s: the answer breaks: %v", c.id, c.err)
	}
	if c.status != status || !strings.Contains(c.text, contains) || strings.Contains(c.text, lacks) {
		t.Errorf("%s: got %d\n%s\nwant %d with %s, without %s", c.id, c.status, c.text, status, contains, lacks)
	}
}

// wantDraining waits until the process is not ready, and sees that it takes no new call.
func wantDraining(t *testing.T, p *process) {
	t.Helper()
	waitUntil(t, "the process to drain", func() bool {
		response, err := http.Get(string(p.address) + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusServiceUnavailable
	})
	response, err := http.DefaultClient.Do(p.request(context.Background(), "held", "late", true))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") != "1" ||
		!strings.Contains(string(body), `"code":"draining"`) {
		t.Errorf("a new call got %s, %v, %v\n%s", response.Status, response.Header, err, body)
	}
}

// hold is the one attempt of a call.
func (s *site) hold(id string) (hold ledger.HoldRow, report ledger.CallReport) {
	s.t.Helper()
	s.withStore(func(store ledger.Store) {
		reports, err := store.Calls(context.Background(), ledger.CallQuery{Owner: "alice", ClientRequestID: id, Limit: 2})
		if err != nil || len(reports) != 1 || len(reports[0].Attempts) != 1 {
			s.t.Fatalf("%s: %+v, %v, want one call with one attempt", id, reports, err)
		}
		report = reports[0]
		rows, err := store.Load(context.Background(), ledger.Keys{Holds: []uuid.UUID{report.Attempts[0].Hold}})
		if err != nil {
			s.t.Fatal(err)
		}
		hold = rows.Holds[report.Attempts[0].Hold]
	})
	return hold, report
}

// wantEnd checks how a call ended, and that the books are right.
func (s *site) wantEnd(id string, state ledger.State, hold ledger.HoldState, tokens int64) {
	s.t.Helper()
	row, report := s.hold(id)
	if report.State != state || row.State != hold || row.Charge.Tokens != tokens {
		s.t.Errorf("%s is %s, its hold %s, charged %d; want %s, %s, %d", id, report.State, row.State, row.Charge.Tokens, state, hold, tokens)
	}
	s.withStore(func(store ledger.Store) {
		if err := ledgertest.Audit(context.Background(), store); err != nil {
			s.t.Error(err)
		}
	})
}

// TestACallOutlivesItsHoldInADrain: running calls are renewed while the process drains.
func TestACallOutlivesItsHoldInADrain(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	s := newSite(t, fake.Config{}, stopScripts, stopModels(), "REGENT_HOLD_TTL=1s", "REGENT_DRAIN_FOR=5m")
	p := s.start()
	call := begin(t, s, p.address, "started", "long", true)
	asked, _ := s.hold("long")
	p.signal(syscall.SIGTERM)
	wantDraining(t, p)
	waitUntil(t, "the hold to be renewed beyond its time", func() bool {
		now, _ := s.hold("long")
		return now.Deadline.After(asked.Deadline.Add(2 * ttl))
	})
	s.provider.Release()
	call.wantAnswer(t, http.StatusOK, "data: [DONE]", `"error"`)
	p.wantExit()
	s.wantEnd("long", ledger.Completed, ledger.HoldSettled, 2+5)
}

// TestADrainThatIsOverEndsWhatRuns, each by its own protocol, and settles it.
func TestADrainThatIsOverEndsWhatRuns(t *testing.T) {
	s := newSite(t, fake.Config{}, stopScripts, stopModels(), "REGENT_DRAIN_FOR=100ms")
	p := s.start()
	started := begin(t, s, p.address, "started", "started", true)
	held := begin(t, s, p.address, "held", "held", false)
	p.signal(syscall.SIGTERM)
	started.wantAnswer(t, http.StatusOK, `data: {"error":{"code":"draining"`, "[DONE]")
	held.wantAnswer(t, http.StatusServiceUnavailable, `"code":"draining"`, "choices")
	p.wantExit()
	input := inputTokens(t, s, "started")
	s.wantEnd("started", ledger.Failed, ledger.HoldSettled, input+siteOutputMax)
	s.wantEnd("held", ledger.Failed, ledger.HoldReleased, 0)
}

// inputTokens is how many tokens a call's request was counted as, by its decision record.
func inputTokens(t *testing.T, s *site, id string) int64 {
	t.Helper()
	_, report := s.hold(id)
	var event struct {
		Input struct {
			Call struct {
				InputTokens int64 `json:"input_tokens"`
			}
		}
	}
	s.withStore(func(store ledger.Store) {
		records, err := store.CallRecords(context.Background(), report.ID)
		if err == nil {
			err = json.Unmarshal(records[0].Body, &event)
		}
		if err != nil || event.Input.Call.InputTokens == 0 {
			t.Fatalf("%s: %+v, %v", id, event, err)
		}
	})
	return event.Input.Call.InputTokens
}

// TestASecondSignalEndsTheDrain, whichever of the two it is.
func TestASecondSignalEndsTheDrain(t *testing.T) {
	s := newSite(t, fake.Config{}, stopScripts, stopModels(), "REGENT_DRAIN_FOR=10m")
	p := s.start()
	call := begin(t, s, p.address, "started", "started", true)
	p.signal(syscall.SIGTERM)
	wantDraining(t, p)
	p.signal(syscall.SIGINT)
	call.wantAnswer(t, http.StatusOK, `data: {"error":{"code":"draining"`, "[DONE]")
	p.wantExit()
	s.wantEnd("started", ledger.Failed, ledger.HoldSettled, inputTokens(t, s, "started")+siteOutputMax)
}

// TestAClientThatTakesNothingIsSettledAtAStop: it keeps its call from ending until its connection is closed, and the process
// waits for the settlement after that.
func TestAClientThatTakesNothingIsSettledAtAStop(t *testing.T) {
	t.Parallel()
	s := newSite(t, fake.Config{}, stopScripts, stopModels(), "REGENT_DRAIN_FOR=100ms")
	p := s.start()
	response, err := http.DefaultClient.Do(p.request(context.Background(), "endless", "deaf", true))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // what is left of it is lost
	for reader := bufio.NewReader(response.Body); ; {
		line, err := reader.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, "xxx") {
			break
		}
	}
	p.signal(syscall.SIGTERM)
	p.wantExit()
	hold, report := s.hold("deaf")
	if report.State != ledger.Failed || hold.State != ledger.HoldSettled || hold.Charge.Tokens == 0 {
		t.Errorf("the call is %s, its hold %s, charged %+v; want it failed, settled and charged", report.State, hold.State, hold.Charge)
	}
}

// TestAProcessThatStoodStillChargesNobody: stopped for longer than a hold lives, it goes on where it was. What it could not renew
// does not expire.
func TestAProcessThatStoodStillChargesNobody(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	s := newSite(t, fake.Config{}, stopScripts, stopModels(), "REGENT_HOLD_TTL=1s")
	p := s.start()
	call := begin(t, s, p.address, "started", "started", true)
	p.signal(syscall.SIGSTOP)
	before, _ := s.hold("started")
	waitUntil(t, "the hold to be due", func() bool { return time.Now().After(before.Deadline.Add(ttl)) })
	p.signal(syscall.SIGCONT)
	waitUntil(t, "the hold to be renewed or ended", func() bool {
		now, _ := s.hold("started")
		return now.Token > before.Token || now.State != ledger.HoldLive
	})
	s.provider.Release()
	call.wantAnswer(t, http.StatusOK, "data: [DONE]", `"error"`)
	p.signal(syscall.SIGTERM)
	p.wantExit()
	s.wantEnd("started", ledger.Completed, ledger.HoldSettled, 2+5)
}
