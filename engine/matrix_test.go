package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"regent/adapters"
	"regent/adapters/anthropic"
	"regent/adapters/fake"
	"regent/adapters/openai"
	"regent/adapters/upstream"
	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
)

// matrix is what a governed call comes to, whatever its first candidate does, in whichever protocol and on whichever store. A second
// candidate would answer well.
//
// The first two columns say what the first candidate sends, and what happens then. A hold of 100 tokens is settled or released; charged
// is what was used, and what was held (?) where nobody knows that; budget and outcome are what the settlement tells, calls how many of
// them the first candidate gets, and next whether the second one was tried. Without a cap nothing is held, and uncapped is charged:
// what was used, or an estimate (~).
//
// The last columns are the protocols, each with a stream and with a whole answer. x runs, and anything else is why it cannot:
//
//	w  a whole answer is one event that brings its end and its usage: nothing is before them, or between
//	d  an answer without its terminal event is broken in this protocol, and complete in the other: each has a line of its own
//	e  nothing is read after this protocol's terminal event
//	u  the usage comes with this protocol's terminal event: nothing is between them
const matrix = `
sends                         then            | hold     charged budget    outcome     calls next | uncapped | chat whole responses whole messages whole host whole
-                             policy refuses  | released 0       released  error       1     no   | 0        | x    x     x         x     x        x     x    x
-                             policy panics   | released 0       released  error       1     no   | 0        | x    x     x         x     x        x     x    x
-                             unresolved      | released 0       -         error       0     yes  | 0        | x    x     x         x     x        x     x    x
-                             unreachable     | released 0       released  error       1     yes  | 0        | x    x     x         x     x        x     x    x
-                             busy            | released 0       released  error       1     yes  | 0        | x    x     x         x     x        x     x    x
-                             finds invalid   | released 0       released  error       1     no   | 0        | x    x     x         x     x        x     x    x
-                             send aborts     | released 0       released  abort       1     no   | 0        | x    x     x         x     x        x     x    x
-                             send panics     | released 0       released  error       1     no   | 0        | x    x     x         x     x        x     x    x
-                             breaks          | released 0       released  error       1     yes  | 0        | x    x     x         x     x        x     x    x
-                             aborts          | released 0       released  abort       1     no   | 0        | x    x     x         x     x        x     x    x
-                             closes          | released 0       released  early_close 1     no   | 0        | x    x     x         x     x        x     x    x
-                             panics          | released 0       released  error       1     no   | 0        | x    x     x         x     x        x     x    x
-                             ends            | released 0       released  error       1     yes  | 0        | x    x     x         x     x        x     d    d
-                             ends            | settled  100?    committed success     1     no   | ~15      | d    d     d         d     d        d     x    x

open                          breaks          | released 0       released  error       1     yes  | 0        | x    w     x         w     x        w     x    w
open                          aborts          | released 0       released  abort       1     no   | 0        | x    w     x         w     x        w     x    w
open                          closes          | released 0       released  early_close 1     no   | 0        | x    w     x         w     x        w     x    w
open                          panics          | released 0       released  error       1     no   | 0        | x    w     x         w     x        w     x    w
open finish                   ends            | released 0       released  error       1     yes  | 0        | x    w     x         w     x        w     d    d
open finish                   ends            | settled  100?    committed success     1     no   | ~15      | d    w     d         w     d        w     x    w

open text                     breaks          | settled  100?    committed error       1     no   | ~17      | x    w     x         w     x        w     x    w
open text                     aborts          | settled  100?    committed abort       1     no   | ~17      | x    w     x         w     x        w     x    w
open text                     closes          | settled  100?    committed early_close 1     no   | ~17      | x    w     x         w     x        w     x    w
open text                     panics          | settled  100?    committed error       1     no   | ~17      | x    w     x         w     x        w     x    w
open text                     close panics    | settled  100?    committed early_close 1     no   | ~17      | x    w     x         w     x        w     x    w
open text finish              ends            | settled  100?    committed error       1     no   | ~17      | x    w     x         w     x        w     d    d
open text finish              ends            | settled  100?    committed success     1     no   | ~17      | d    w     d         w     d        w     x    w

open tool                     breaks          | settled  100?    committed error       1     no   | ~16      | x    w     x         w     x        w     x    w
open tool                     aborts          | settled  100?    committed abort       1     no   | ~16      | x    w     x         w     x        w     x    w
open tool                     closes          | settled  100?    committed early_close 1     no   | ~16      | x    w     x         w     x        w     x    w
open tool                     panics          | settled  100?    committed error       1     no   | ~16      | x    w     x         w     x        w     x    w

open finish usage             breaks          | settled  7       committed error       1     yes  | 7        | x    w     u         w     x        w     x    w
open finish usage             aborts          | settled  7       committed abort       1     no   | 7        | x    w     u         w     x        w     x    w
open finish usage             closes          | settled  7       committed early_close 1     no   | 7        | x    w     u         w     x        w     x    w
open finish usage             panics          | settled  7       committed error       1     no   | 7        | x    w     u         w     x        w     x    w
open finish usage             ends            | settled  7       committed error       1     yes  | 7        | x    w     u         w     x        w     d    d
open finish usage             ends            | settled  7       committed success     1     no   | 7        | d    w     d         w     d        w     x    w
open text finish usage        breaks          | settled  7       committed error       1     no   | 7        | x    w     u         w     x        w     x    w
open text finish usage        aborts          | settled  7       committed abort       1     no   | 7        | x    w     u         w     x        w     x    w
open text finish usage        closes          | settled  7       committed early_close 1     no   | 7        | x    w     u         w     x        w     x    w
open text finish usage        panics          | settled  7       committed error       1     no   | 7        | x    w     u         w     x        w     x    w
open text finish usage        ends            | settled  7       committed error       1     no   | 7        | x    w     u         w     x        w     d    d
open text finish usage        ends            | settled  7       committed success     1     no   | 7        | d    w     d         w     d        w     x    w

open finish done              ends            | settled  100?    committed success     1     no   | ~15      | x    x     x         x     x        x     x    x
open text finish done         ends            | settled  100?    committed success     1     no   | ~17      | x    x     x         x     x        x     x    x
open finish usage done        ends            | settled  7       committed success     1     no   | 7        | x    x     x         x     x        x     x    x
open tool finish usage done   ends            | settled  7       committed success     1     no   | 7        | x    x     x         x     x        x     x    x
open text finish usage done   ends            | settled  7       committed success     1     no   | 7        | x    x     x         x     x        x     x    x
open text finish usage done   breaks          | settled  7       committed success     1     no   | 7        | e    e     e         e     e        e     x    x
open text finish usage done   aborts          | settled  7       committed success     1     no   | 7        | x    x     x         x     x        x     x    x
open text finish usage done   closes          | settled  7       committed success     1     no   | 7        | x    x     x         x     x        x     x    x
open text finish usage done   panics          | settled  7       committed success     1     no   | 7        | x    x     x         x     x        x     x    x
open text finish usage done   close panics    | settled  7       committed success     1     no   | 7        | x    x     x         x     x        x     x    x
`

// reasons why a cell cannot exist, by their letters.
var reasons = map[string]string{
	"w": "a whole answer is one event that brings its end and its usage",
	"d": "the end without a terminal event has another line for this protocol",
	"e": "nothing is read after this protocol's terminal event",
	"u": "the usage comes with this protocol's terminal event",
}

// protocols are the matrix's last columns. A further one is a further entry, and a further column.
var protocols = []struct {
	name   string
	stream bool
	make   func(*rig, *cell) adapters.Provider
	*wire
}{
	{"chat", true, (*rig).spoken, chatWire}, {"chat whole", false, (*rig).spoken, chatWire},
	{"responses", true, (*rig).spoken, responsesWire}, {"responses whole", false, (*rig).spoken, responsesWire},
	{"messages", true, (*rig).spoken, messagesWire}, {"messages whole", false, (*rig).spoken, messagesWire},
	{"host", true, (*rig).host, chatWire}, {"host whole", false, (*rig).host, chatWire},
}

// wire is how a protocol's server is asked and answers.
type wire struct {
	protocol adapters.Protocol
	// content is what is asked besides a stream: of 43 bytes.
	content string
	// usage is a format that reports the tokens of input and of output.
	usage string
	// sends is in how many events the server says what a cell sends, one where it is not listed. What a stream of text or of a tool's call
	// has around it comes with the finish.
	sends, toolSends, emptySends map[string]int
}

var (
	chatWire = &wire{
		protocol: adapters.OpenAIChat, content: `"messages":[{"role":"user","content":"Hi"}]`, usage: `{"prompt_tokens":%d,"completion_tokens":%d}`,
	}
	responsesWire = &wire{
		protocol: adapters.OpenAIResponses, content: `"input":[{"role":"user","content":"Hello"}]`, usage: `{"input_tokens":%d,"output_tokens":%d}`,
		sends:      map[string]int{"open": 2, "text": 3, "finish": 3, "usage": 0},
		toolSends:  map[string]int{"open": 2, "finish": 3, "usage": 0},
		emptySends: map[string]int{"open": 2, "finish": 5, "usage": 0},
	}
	messagesWire = &wire{
		protocol: adapters.AnthropicMessages, content: `"messages":[{"role":"user","content":"Hi"}]`, usage: `{"input_tokens":%d,"output_tokens":%d}`,
		sends:      map[string]int{"text": 3, "finish": 2, "usage": 0},
		toolSends:  map[string]int{"tool": 2, "finish": 3, "usage": 0},
		emptySends: map[string]int{"finish": 4, "usage": 0},
	}
)

// body is what is asked: of 15 tokens, by its bytes.
func (w *wire) body(stream bool) []byte {
	return fmt.Appendf(nil, `{"stream":%t,%s}`, stream, w.content)
}

// events is in how many events the server says what a cell sends.
func (w *wire) events(c *cell) (n int) {
	counts := w.sends
	switch {
	case c.sent("tool"):
		counts = w.toolSends
	case !c.sent("text"):
		counts = w.emptySends
	}
	for _, kind := range c.sends {
		if some, listed := counts[kind]; listed {
			n += some
		} else {
			n++
		}
	}
	return n
}

const (
	matrixHold  = 100
	matrixUsage = 7 // of the first candidate
	matrixNext  = 3 // of the second
	nanoATok    = 1000
)

// cell is one line of the matrix in one protocol, with or without a cap.
type cell struct {
	*wire
	sends                 []string
	then                  string
	hold, charged, budget string
	outcome               string
	calls                 int
	next                  bool
	stream, isCapped      bool
}

func (c *cell) sent(what string) bool { return slices.Contains(c.sends, what) }

// goesOn says that the first candidate has more to say, which nobody is to get: it is for nothing.
func (c *cell) goesOn() bool { return c.then == "aborts" || c.then == "closes" }

// events is how many events of the first candidate come before what happens then.
func (c *cell) events() int {
	if !c.stream {
		return min(1, len(c.sends))
	}
	return c.wire.events(c)
}

// line is a line of the matrix, whose cells are still apart.
type line struct {
	cell
	uncapped string
	columns  []string
}

// readMatrix reads the text above.
func readMatrix(t *testing.T) (lines []line) {
	t.Helper()
	for _, text := range strings.Split(strings.TrimSpace(matrix), "\n")[1:] {
		if text == "" {
			continue
		}
		parts := strings.Split(text, "|")
		if len(parts) != 4 {
			t.Fatalf("%q has %d parts", text, len(parts))
		}
		expected, columns := strings.Fields(parts[1]), strings.Fields(parts[3])
		if len(expected) != 6 || len(columns) != len(protocols) {
			t.Fatalf("%q has %d expectations and %d columns", text, len(expected), len(columns))
		}
		sends := strings.Fields(strings.TrimSpace(parts[0][:30]))
		if sends[0] == "-" {
			sends = nil
		}
		lines = append(lines, line{
			cell: cell{
				sends: sends, then: strings.TrimSpace(parts[0][30:]), hold: expected[0], charged: expected[1], budget: expected[2], outcome: expected[3],
				calls: int(expected[4][0] - '0'), next: expected[5] == "yes",
			},
			uncapped: strings.TrimSpace(parts[2]), columns: columns,
		})
	}
	return lines
}

// TestMatrix runs each cell, on each store, with and without a cap.
func TestMatrix(t *testing.T) {
	lines := readMatrix(t)
	for _, on := range []string{"memory", "SQLite"} {
		t.Run(on, func(t *testing.T) {
			r := newRig(t, on == "SQLite")
			for _, line := range lines {
				for i, protocol := range protocols {
					for _, isCapped := range []bool{true, false} {
						c := line.cell
						if c.wire, c.stream, c.isCapped = protocol.wire, protocol.stream, isCapped; !isCapped {
							c.hold, c.charged = "-", line.uncapped
						}
						name := fmt.Sprintf("%s/capped=%t/%s, then %s", protocol.name, isCapped, strings.Join(c.sends, " "), c.then)
						t.Run(name, func(t *testing.T) {
							if mark := line.columns[i]; mark != "x" {
								if reasons[mark] == "" {
									t.Fatalf("%q is no reason", mark)
								}
								t.Skip(reasons[mark])
							}
							r.run(t, &c, protocol.make(r, &c))
						})
					}
				}
			}
			r.verify(t)
		})
	}
}

// openFile is a store on SQLite, whose clock stands still.
func openFile(t *testing.T) ledger.Store {
	t.Helper()
	store, err := sqldb.Open(ctx, sqldb.Config{Path: filepath.Join(t.TempDir(), "ledger.db"), Now: ledgertest.NewClock().Now})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// rig is what all cells on one store share.
type rig struct {
	*bench
	server *fake.Server
	// serving are providers of the server, by the protocol, and nowhere those of an address where nobody listens.
	serving, nowhere map[adapters.Protocol]adapters.Provider
	candidate        providers
	heard            atomic.Pointer[func()] // told when the server is asked
	cells            int
	journal          int64 // the number of the last record that was looked at
}

func newRig(t *testing.T, durable bool) *rig {
	t.Helper()
	r := &rig{candidate: providers{}}
	client := upstream.New(upstream.Config{AllowPrivate: true})
	connect := func(url string) map[adapters.Protocol]adapters.Provider {
		ofOpenAI, err := openai.New(openai.Config{BaseURL: url, Client: client})
		if err != nil {
			t.Fatal(err)
		}
		ofAnthropic, err := anthropic.New(anthropic.Config{BaseURL: url, Client: client})
		if err != nil {
			t.Fatal(err)
		}
		return map[adapters.Protocol]adapters.Provider{
			adapters.OpenAIChat: ofOpenAI, adapters.OpenAIResponses: ofOpenAI, adapters.AnthropicMessages: ofAnthropic,
		}
	}
	var err error
	r.server, err = fake.Start(fake.Config{OnCall: func(string, []byte) {
		if heard := r.heard.Load(); heard != nil {
			(*heard)()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		_ = r.server.Close() // what is still open is ended
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	r.serving, r.nowhere = connect(r.server.URL()), connect("http://"+listener.Addr().String()+"/v1")
	wrap := func(memory ledger.Store) ledger.Store {
		if !durable {
			return memory
		}
		return openFile(t)
	}
	r.bench = newBenchOn(t, wrap, governing(r.candidate, nil))
	return r
}

var errFault = errors.New("a fault")

// spoken is the first candidate as a provider that speaks the cell's protocol, whose server does what the cell says.
func (r *rig) spoken(c *cell) adapters.Provider {
	step := fake.Step{
		Text: []string{}, ToolCall: c.sent("tool"), OmitUsage: !c.sent("usage"), OmitDone: !c.sent("done"),
		Usage: json.RawMessage(fmt.Sprintf(c.usage, 5, matrixUsage-5)),
	}
	if c.sent("text") {
		step.Text = append(step.Text, "Hello")
	}
	if c.goesOn() && !c.sent("finish") {
		step.Text = append(step.Text, "more")
	}
	switch c.then {
	case "unreachable":
		return r.nowhere[c.protocol]
	case "busy":
		step = fake.Step{Status: 503}
	case "finds invalid":
		step = fake.Step{Status: 400}
	case "send aborts":
		step = fake.Step{Hold: true}
	case "breaks":
		step.Break = map[int]string{0: fake.BreakBeforeBody, 1: fake.BreakAfterOpening, 2: fake.BreakAfterDelta, 3: fake.BreakAfterUsage, 4: fake.BreakAfterUsage}[len(c.sends)]
	case "ends":
		if len(c.sends) == 0 {
			kind := map[bool]string{true: "text/event-stream", false: "application/json"}[c.stream]
			step = fake.Step{Wire: []fake.Piece{{Text: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: " + kind + "\r\n\r\n"}}}
		}
	}
	r.server.SetScript("one", fake.Script{step})
	return r.serving[c.protocol]
}

// host is the first candidate as a provider that a host made.
func (r *rig) host(c *cell) adapters.Provider {
	provider := &scripted{}
	switch c.then {
	case "unreachable":
		provider.refusal = errors.New("no route") // a host's own words
	case "busy":
		provider.refusal = &adapters.Failure{Reason: adapters.Overloaded, Status: 503}
	case "finds invalid":
		provider.refusal = &adapters.Failure{Reason: adapters.InvalidRequest, Status: 400}
	case "breaks":
		provider.end = broken
	}
	event := map[string]adapters.Event{
		"open": opening, "text": hello, "tool": toolCall, "finish": finish, "done": done, "usage": reporting(adapters.Event{Kind: adapters.Closing}, matrixUsage),
	}
	one := adapters.Event{Kind: adapters.Done}
	for _, kind := range c.sends {
		next := event[kind]
		if kind == "done" && c.sent("usage") {
			next = reporting(done, matrixUsage)
		}
		provider.events = append(provider.events, next)
		one.OutputBytes += next.OutputBytes
		one.Usage = next.Usage
	}
	if !c.stream && len(c.sends) > 0 {
		provider.events = []adapters.Event{one}
	}
	if c.goesOn() {
		provider.events = append(provider.events, hello, reporting(done, 50))
	}
	return provider
}

// call is a call of one cell under way.
type call struct {
	*cell
	rig       *rig
	first     *watched
	second    *watched
	cancel    context.CancelFunc
	answer    adapters.Answer
	gotten    int // events
	got       string
	err       error
	panicked  any
	attempted uuid.UUID // the first candidate's
}

// run makes the call of a cell, and looks at everything that it left.
func (r *rig) run(t *testing.T, c *cell, first adapters.Provider) {
	defer func(t *testing.T) { r.t = t }(r.t)
	r.t = t
	r.cells++
	call := &call{cell: c, rig: r, first: &watched{Provider: first, closed: make(chan struct{})}, second: &watched{Provider: answering(matrixNext)}}
	call.script()
	r.candidate["one"], r.candidate["two"] = call.first, call.second
	if c.then == "unresolved" {
		delete(r.candidate, "one")
	}
	asked := hosted("one", "two")
	asked.TaskID, asked.Verified = fmt.Sprint("task ", r.cells), true
	if c.isCapped {
		asked.MaxTokens, asked.MaxCostNanoUSD = number(matrixHold), number(matrixHold*nanoATok)
	}
	governed, settlements := r.governed(asked, call.policy)
	call.panicked = panicOf(func() { call.make(governed) })
	want := c.calls
	if c.next {
		want++
	}
	told := r.awaitSettlements(settlements, want)
	call.wantTold(t, told)
	call.wantConsumed(t)
	call.wantJournal(t, told)
	used := call.charge().Tokens
	if c.next {
		used += matrixNext
	}
	key := TaskKey(asked.Identity, asked.TaskID)
	r.wantBalance(ledger.ScopeTask, key, used, 0)
	row, _, err := ledger.ReadAccount(ctx, r.ledger.Store(), ledger.Account{Scope: ledger.ScopeTask, ID: key, Unit: ledger.USD})
	if err != nil || row.Used != used*nanoATok || row.Held != 0 {
		t.Errorf("in nano-USD used %d, held %d, %v; want %d and 0", row.Used, row.Held, err, used*nanoATok)
	}
}

// script has the first candidate's steps do what the cell says.
func (c *call) script() {
	leave := func() {}
	switch c.then {
	case "send aborts":
		leave = func() { c.cancel() }
		c.first.send = func(ctx context.Context, _ adapters.Request) error {
			if _, scripted := c.first.Provider.(*scripted); !scripted {
				return nil // its server is heard of
			}
			leave()
			return ctx.Err()
		}
	case "send panics":
		c.first.send = func(context.Context, adapters.Request) error { panic(errFault) }
	case "aborts":
		c.first.next = c.at(func() {
			c.cancel()
			<-c.first.closed // which comes after the settlement has begun
		})
	case "closes":
		c.first.next = c.at(func() { _ = c.answer.Close() })
	case "panics":
		c.first.next = c.at(func() { panic(errFault) })
	case "close panics":
		faults := true
		c.first.closing = func() {
			if faults {
				faults = false
				panic(errFault)
			}
		}
		if !c.sent("done") {
			c.first.next = c.at(func() { _ = c.answer.Close() })
		}
	}
	c.rig.heard.Store(&leave)
}

// at runs a hook once all that the cell sends has been read.
func (c *call) at(hook func()) func(read int) {
	return func(read int) {
		if read == c.events() {
			hook()
		}
	}
}

// policy is the request's.
func (c *call) policy(request adapters.Request) (adapters.Request, error) {
	switch c.then {
	case "policy refuses":
		return request, errFault
	case "policy panics":
		panic(errFault)
	}
	return request, nil
}

// make asks, and reads to the end.
func (c *call) make(provider adapters.Provider) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.cancel = cancel
	request := adapters.Request{Protocol: c.protocol, Body: c.body(c.stream), PublicModel: "public", Stream: c.stream}
	if c.answer, c.err = provider.Send(ctx, request); c.err != nil {
		return
	}
	defer func() { _ = c.answer.Close() }() // of a call that is over
	for {
		var event adapters.Event
		if event, c.err = c.answer.Next(); c.err != nil {
			return
		}
		c.gotten++
		c.got += string(event.Relay)
	}
}

// charge is what the cell says of the first candidate's.
func (c *cell) charge() (charge ledger.Charge) {
	text := c.charged
	charge.UnknownUsage = strings.HasSuffix(text, "?")
	charge.Estimated = strings.HasPrefix(text, "~")
	if _, err := fmt.Sscan(strings.Trim(text, "~?"), &charge.Tokens); err != nil {
		panic(err)
	}
	charge.NanoUSD = charge.Tokens * nanoATok
	return charge
}

// wantTold checks the callback's settlements: of the first candidate, and then of the second.
func (c *call) wantTold(t *testing.T, told []Settlement) {
	t.Helper()
	for _, s := range told {
		switch s.Source {
		case "one":
			c.attempted = s.Attempt
			if s.Outcome != c.outcome || s.Charge != c.charge() || s.UnknownUsage != c.charge().UnknownUsage {
				t.Errorf("told of %s, charged %+v; want %s, charged %+v", s.Outcome, s.Charge, c.outcome, c.charge())
			}
			if s.BudgetReleased != (c.budget == "released") || s.BudgetCommitted != (c.budget == "committed") {
				t.Errorf("told that the budget was committed: %t, released: %t; want it %s", s.BudgetCommitted, s.BudgetReleased, c.budget)
			}
			if (s.Err == nil) != (c.outcome == ledger.Success) || (s.Usage != nil) != c.sent("usage") {
				t.Errorf("told of the error %v and the usage %+v", s.Err, s.Usage)
			}
		case "two":
			if want := (ledger.Charge{Tokens: matrixNext, NanoUSD: matrixNext * nanoATok}); s.Outcome != ledger.Success || s.Charge != want {
				t.Errorf("the next candidate: %+v", s)
			}
		}
	}
	if next := c.second.contacted.Load() > 0; next != c.next {
		t.Errorf("the next candidate was tried: %t, want %t", next, c.next)
	}
}

// wantConsumed checks what the consumer got: a panic, the whole of one answer, or a failure.
func (c *call) wantConsumed(t *testing.T) {
	t.Helper()
	if panics := strings.HasSuffix(c.then, "panics"); panics != (c.panicked != nil) || panics && c.panicked != errFault {
		t.Errorf("it ended in the panic %v", c.panicked)
	} else if panics {
		return
	}
	var failure *adapters.Failure
	switch {
	case c.next:
		if c.err != io.EOF || c.got != "open hello done" {
			t.Errorf("got %q, %v, want all of the next candidate's answer", c.got, c.err)
		}
	case c.outcome == ledger.Success && !c.goesOn():
		if c.err != io.EOF {
			t.Errorf("got %v, want the end", c.err)
		}
	case !errors.As(c.err, &failure):
		t.Errorf("got %v, want a failure", c.err)
	}
	passed := 0
	if c.sent("text") || c.sent("tool") || c.sent("done") {
		passed = c.events()
	}
	if c.goesOn() && c.gotten != passed {
		t.Errorf("got %d events, %q, of a call that had ended after %d", c.gotten, c.got, passed)
	}
}

// wantJournal checks that each attempt has ended once, as the cell says.
func (c *call) wantJournal(t *testing.T, told []Settlement) {
	t.Helper()
	r, ends := c.rig, map[uuid.UUID]int{}
	for {
		records, err := r.ledger.Store().Records(ctx, r.ledger.Writer(), r.journal, 100)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			break
		}
		for _, record := range records {
			r.journal = record.Number
			var body struct {
				Hold, Posting uuid.UUID
				Source        string
			}
			if err := json.Unmarshal(record.Body, &body); err != nil {
				t.Fatal(err)
			}
			switch {
			case record.Kind == ledger.OutcomeRecord:
				ends[body.Hold]++
				if body.Source == "one" {
					c.attempted = body.Hold
				}
			case record.Kind == ledger.ChargeRecord && body.Posting != uuid.Nil:
				ends[body.Posting]++
			}
		}
	}
	want := map[uuid.UUID]int{}
	for _, s := range told {
		if c.isCapped || s.Charge != (ledger.Charge{}) {
			want[s.Attempt]++
		}
	}
	if c.isCapped && c.calls == 0 {
		want[c.attempted]++ // which was set aside before nobody was found to ask
	}
	if fmt.Sprint(ends) != fmt.Sprint(want) {
		t.Errorf("the journal has the ends %v, want %v", ends, want)
	}
	rows, err := r.ledger.Store().Load(ctx, ledger.Keys{Holds: []uuid.UUID{c.attempted}})
	if err != nil {
		t.Fatal(err)
	}
	hold, held := rows.Holds[c.attempted]
	if held != c.isCapped {
		t.Fatalf("there is a hold: %t", held)
	}
	if held && (string(hold.State) != c.hold || hold.Outcome.Result != c.outcome || hold.Charge != c.charge()) {
		t.Errorf("the hold is %s, its outcome %s, its charge %+v; want %s, %s and %+v", hold.State, hold.Outcome.Result, hold.Charge, c.hold, c.outcome, c.charge())
	}
}

// verify computes the books of all cells again.
func (r *rig) verify(t *testing.T) {
	t.Helper()
	report, err := ledger.Verify(ctx, r.ledger.Store())
	if err != nil || len(report.Differences) > 0 || report.Live > 0 || report.Holds == 0 {
		t.Errorf("%+v, %v", report, err)
	}
}
