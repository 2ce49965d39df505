package main

import (
	"context"
	"net/http"
	"sync"
	"syscall"
	"testing"

	"regent/ledger"
	"regent/ledger/ledgertest"
)

// crashStorm is rounds of calls on one data folder, each ended by kill -9.
type crashStorm struct{ *storm }

// TestCrashStorm: the program is killed at random moments, over and over, on one data folder. Afterwards the books are right to
// the last token, and no client and no provider saw anything that the ledger does not know.
func TestCrashStorm(t *testing.T) {
	rounds := crashRounds
	if testing.Short() {
		rounds = 3
	}
	mix := mix{streams: 100, wholes: 20, denied: 5}
	s := &crashStorm{newStorm(t, mix, boundless, "REGENT_HOLD_TTL=1500ms", "REGENT_DRAIN_FOR=20s")}
	for round := range ledgertest.Rounds(t, rounds) {
		s.round(round)
		if t.Failed() {
			return
		}
	}
	s.settle()
	s.withStore(func(store ledger.Store) {
		if err := ledgertest.Audit(context.Background(), store); err != nil {
			t.Error(err)
		}
		t.Logf("calls by state: %v", s.auditCalls(store, s.calls))
	})
	s.auditSinks(dataFolder)
	t.Logf("%d calls, %d of them reached the provider", len(s.calls), len(s.seen))
}

// round starts the program, sends calls, and kills it.
func (s *crashStorm) round(round int) {
	calls := s.newCalls(roundName(round))
	now, pause := s.choose(len(calls))
	p := s.start()
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer client.CloseIdleConnections()
	var clients sync.WaitGroup
	for _, call := range calls {
		clients.Go(func() { s.send(client, p, call) })
	}
	all := s.awaitMoment(round, &clients, now, pause)
	p.kill()
	<-all
	p.wantSound()
	s.calls = append(s.calls, calls...)
	s.tearSink(dataFolder)
}

// settle runs the program once more, until every hold has ended and the sink has everything, and stops it.
func (s *crashStorm) settle() {
	p := s.start()
	s.wantNoHolds()
	s.wantShipped()
	p.signal(syscall.SIGTERM)
	p.wantExit()
}
