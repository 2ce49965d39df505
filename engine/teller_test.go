package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"regent/engine/policy"
	"regent/ledger"
)

// logged is a log that several goroutines write to.
type logged struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) lines(holding string) (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, holding) {
			lines = append(lines, line)
		}
	}
	return lines
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// TestTellingKeepsTheOrder: and goes on after a panic, of whose value nothing is logged.
func TestTellingKeepsTheOrder(t *testing.T) {
	log := &logged{}
	teller := &teller{log: log.logger()}
	var told, want []int
	for i := range 1000 {
		teller.tell(func() {
			told = append(told, i)
			if i%100 == 0 {
				panic(fmt.Sprint("secret ", i))
			}
		})
		want = append(want, i)
		if i%300 == 0 {
			teller.wait()
		}
	}
	teller.wait()
	teller.wait() // there is nothing to wait for
	if !slices.Equal(told, want) {
		t.Errorf("told %v", told)
	}
	if panics := log.lines("panicked"); len(panics) != 10 || !strings.Contains(panics[0], "type=string") || len(log.lines("secret")) > 0 {
		t.Errorf("logged %v", panics)
	}
}

// TestWhatIsToldTooMuchIsDropped: who tells never waits; what was dropped is logged once.
func TestWhatIsToldTooMuchIsDropped(t *testing.T) {
	log := &logged{}
	teller := &teller{log: log.logger()}
	begun, going := make(chan struct{}), make(chan struct{})
	teller.tell(func() { close(begun); <-going })
	<-begun
	var told []int
	for i := range tellMax + 7 {
		teller.tell(func() { told = append(told, i) })
	}
	close(going)
	teller.wait()
	if len(told) != tellMax || told[0] != 0 || told[tellMax-1] != tellMax-1 {
		t.Errorf("%d were told", len(told))
	}
	if dropped := log.lines("dropped"); len(dropped) != 1 || !strings.Contains(dropped[0], "dropped=7") {
		t.Errorf("logged %v", dropped)
	}
	teller.tell(func() { told = nil })
	teller.wait()
	if told != nil || len(log.lines("dropped")) != 1 {
		t.Errorf("afterwards: %d told, logged %v", len(told), log.lines("dropped"))
	}
}

// slowLog is a log that is written to only when somebody reads of it.
type slowLog struct{ written chan struct{} }

func (b slowLog) Write(p []byte) (int, error) { <-b.written; return len(p), nil }

// TestALogThatBlocksHoldsUpNobody: who tells does not wait for it.
func TestALogThatBlocksHoldsUpNobody(t *testing.T) {
	log := slowLog{make(chan struct{})}
	teller := &teller{log: slog.New(slog.NewTextHandler(log, nil))}
	begun, going := make(chan struct{}), make(chan struct{})
	teller.tell(func() { close(begun); <-going })
	<-begun
	for range tellMax + 1 {
		teller.tell(func() {})
	}
	close(going)
	for taken := false; !taken; { // until the teller has gone on to its log
		teller.mu.Lock()
		taken = teller.dropped == 0
		teller.mu.Unlock()
	}
	told := false
	teller.tell(func() { told = true })
	close(log.written)
	if teller.wait(); !told {
		t.Error("it was not told")
	}
}

// TestCallbacksHoldUpNoCall: neither one that blocks nor one that panics; and Close waits for all of them.
func TestCallbacksHoldUpNoCall(t *testing.T) {
	log := &logged{}
	going := make(chan struct{})
	var diagnostics []Diagnostics
	var settlements []Settlement
	b := newBench(t, func(c *Config, _ *policy.Settings) {
		c.Log = log.logger()
		c.OnDiagnostics = func(d Diagnostics) {
			<-going
			diagnostics = append(diagnostics, d)
			panic("a fault")
		}
		c.OnSettlement = func(s Settlement) { settlements = append(settlements, s); panic(errors.New("another")) }
	})
	serve := func(source string) {
		t.Helper()
		if err := b.router.Serve(ctx, called(1000, source), func(context.Context, *Grant) Outcome { return served }); err != nil {
			t.Fatal(err)
		}
	}
	for _, source := range []string{"one", "two", "three"} { // while the first is being told
		serve(source)
	}
	if _, err := b.router.Resolve(ctx, called(30, "four")); err == nil {
		t.Error("a call beyond its limit was allowed")
	}
	b.router.settling.Wait()
	late, cancel := context.WithCancel(ctx)
	cancel()
	if err := b.router.Close(late); !errors.Is(err, context.Canceled) {
		t.Errorf("it closed while somebody was being told: %v", err)
	}
	close(going)
	b.flush()
	var selected []string
	for _, d := range diagnostics {
		selected = append(selected, d.Outcome+" "+d.SelectedModel)
	}
	if want := []string{"allow one", "allow two", "allow three", "deny "}; !slices.Equal(selected, want) {
		t.Errorf("diagnostics: %q", selected)
	}
	sources := map[string]bool{}
	for _, s := range settlements {
		if s.Outcome != ledger.Success || s.Charge.Tokens != 5 || !s.BudgetCommitted || s.BudgetReleased {
			t.Errorf("settlement: %+v", s)
		}
		sources[s.Source] = true
	}
	if len(settlements) != 3 || len(sources) != 3 || len(log.lines("panicked")) != 7 {
		t.Errorf("%d settlements, of %v; logged %q", len(settlements), sources, log.lines("panicked"))
	}
	b.wantBalance(ledger.ScopeUser, "alice", 15, 0)
}
