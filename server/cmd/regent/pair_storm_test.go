package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"regent/adapters/fake"
	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgproxy"
	"regent/ledger/sqldb/pgtest"
)

const (
	// pairCallers call each process at once.
	pairCallers = 64
	// pairLimit and pairWindow bound the tokens of the one user: not all callers' calls fit at once, and those of a process that was
	// killed leave less room for a while.
	pairLimit  = 110_000
	pairWindow = 3 * time.Second
	// checkEvery is after how many rounds everything comes to rest and is looked at.
	checkEvery = 10
	// stormVariable says how long the storm goes on, in place of a number of rounds.
	stormVariable = "REGENT_TEST_STORM_FOR"
)

// pairStorm is rounds of calls to two processes on one database, in each of which one is killed with -9, and connections are cut.
type pairStorm struct {
	*storm
	pair   [2]*member
	client *http.Client
	checks int
	// isolation is that of the database's transactions, which each storm chooses.
	isolation string
	// The calls of the storm are those since the last look. These count all.
	reached, kills, cuts, expired int
	states                        map[ledger.State]int
	retries                       map[string]int
}

// TestTwoProcessesStorm: two processes on one database, one of which is killed over and over, and their connections cut. Afterwards
// the books are right to the last token, no admission has passed the limit that both share, and no client, no provider and no sink
// saw anything that the ledger does not know, or the other way round.
func TestTwoProcessesStorm(t *testing.T) {
	t.Parallel()
	s := newPairStorm(t)
	defer s.report(time.Now())
	for round := range stormRounds(t, pairRounds) {
		s.round(round)
		if (round+1)%checkEvery == 0 {
			s.check(false)
		}
		if t.Failed() {
			return
		}
	}
	s.check(true)
	s.wantShipped()
	for _, m := range s.pair {
		s.countRetries(m)
		m.now().signal(syscall.SIGTERM)
		m.now().wantExit()
	}
	s.auditSinks(s.pair[0].data, s.pair[1].data)
}

// newPairStorm starts both processes, at one of the isolations.
func newPairStorm(t *testing.T) *pairStorm {
	t.Helper()
	limit := fmt.Sprintf(`{max: "%d", window: rolling/%v}`, pairLimit, pairWindow)
	database := newDatabase(t, pgtest.Shared(t))
	s := &pairStorm{
		storm:  newStorm(t, mix{streams: 60, wholes: 12, denied: 3}, limit, "REGENT_HOLD_TTL=3s", "REGENT_DRAIN_FOR=20s"),
		client: newClient(t), isolation: "READ COMMITTED", states: map[ledger.State]int{}, retries: map[string]int{},
	}
	if s.url = database; s.random.IntN(2) == 0 {
		s.isolation = "SERIALIZABLE"
		s.variables = append(s.variables, "REGENT_DATABASE_ISOLATION=serializable")
	}
	slow := fake.Step{ChunkMillis: 150, Text: slices.Repeat([]string{"tick "}, 8)}
	if os.Getenv(stormVariable) != "" { // there is time for calls that take longer than a hold lives
		slow.ChunkMillis = 500
	}
	s.provider.SetScript("slow", fake.Script{slow})
	s.pair = s.newPair()
	return s
}

// stormRounds counts the rounds of a storm: n, or as many as a variable says, or for as long as another one says.
func stormRounds(t *testing.T, n int) iter.Seq[int] {
	t.Helper()
	long, err := time.ParseDuration(cmp.Or(os.Getenv(stormVariable), "0"))
	if err != nil {
		t.Fatalf("%s: %v", stormVariable, err)
	}
	if n = ledgertest.Rounds(t, n); testing.Short() {
		n = 3
	}
	began := time.Now()
	return func(yield func(int) bool) {
		for round := 0; round < n && long == 0 || time.Since(began) < long; round++ {
			if !yield(round) {
				return
			}
		}
	}
}

// round sends calls to both processes, cuts connections, and kills one process and starts it again.
func (s *pairStorm) round(round int) {
	victim := s.pair[s.random.IntN(2)]
	var queues [2][]*clientCall
	for i, m := range s.pair {
		queues[i] = s.newCalls(roundName(round) + "-" + m.data)
		s.calls = append(s.calls, queues[i]...)
	}
	now, pause := s.choose(2 * s.mix.all())
	trouble := s.trouble()
	var clients sync.WaitGroup
	for i, m := range s.pair {
		s.callAll(&clients, m, queues[i])
	}
	clients.Go(trouble)
	if bits.OnesCount(uint(round+1)) == 1 {
		clients.Go(s.verify)
	}
	all := s.awaitMoment(round, &clients, now, pause)
	s.countRetries(victim)
	victim.crash()
	s.kills++
	<-all
	for _, m := range s.pair {
		m.proxy.Disarm()
	}
}

// callAll has callers send calls, one after the other each.
func (s *pairStorm) callAll(clients *sync.WaitGroup, m *member, calls []*clientCall) {
	queue := make(chan *clientCall, len(calls))
	for _, call := range calls {
		queue <- call
	}
	close(queue)
	for range pairCallers {
		clients.Go(func() {
			for call := range queue {
				s.send(s.client, m.now(), call)
			}
		})
	}
}

// trouble chooses what happens to the connections in a round, and when: nothing, a fault beside a commit, or all of them are cut,
// those of one process or of both.
func (s *pairStorm) trouble() (happen func()) {
	m, after := s.pair[s.random.IntN(2)], time.Duration(s.random.Int64N(int64(300*time.Millisecond)))
	fault := pgproxy.Faults()[s.random.IntN(len(pgproxy.Faults()))]
	switch s.random.IntN(4) {
	case 0:
		return func() { m.proxy.Arm(fault) }
	case 1:
		s.cuts++
		return func() { time.Sleep(after); m.cut(m.proxy.KillAll) }
	case 2:
		s.cuts++
		return func() {
			time.Sleep(after)
			s.pair[0].cut(func() { s.pair[1].cut(s.terminate) })
		}
	}
	return func() {}
}

// verify looks at the books while calls run and processes die. It connects under a name of its own, so that nobody cuts it off.
func (s *pairStorm) verify() {
	store, err := sqldb.Open(context.Background(), sqldb.Config{URL: s.url + "&application_name=onlooker", ReadOnly: true})
	if err != nil {
		s.t.Error(err)
		return
	}
	report, err := ledger.Verify(context.Background(), store)
	if err := errors.Join(err, store.Close()); err != nil || len(report.Differences) > 0 {
		s.t.Errorf("while calls run: %v, %v", report.Differences, err)
	}
}

// terminate has the server end the connections of both processes.
func (s *pairStorm) terminate() {
	err := onDatabase(s.url, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'regent' AND pid <> pg_backend_pid()`)
		return err
	})
	if err != nil {
		s.t.Error(err)
	}
}

// check waits until everything is at rest, and looks at what has happened since the last time; at the whole journal less often the
// longer it is, and at the end.
func (s *pairStorm) check(end bool) {
	s.wantNoHolds()
	s.checks++
	s.withStore(func(store ledger.Store) {
		for state, n := range s.auditCalls(store, s.calls) {
			s.states[state] += n
		}
		if end || bits.OnesCount(uint(s.checks)) == 1 {
			if err := ledgertest.Audit(context.Background(), store); err != nil {
				s.t.Error(err)
			}
			s.auditLimit(store)
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reached += len(s.seen)
	clear(s.seen)
	s.calls = nil
	if os.Getenv(stormVariable) != "" {
		s.t.Logf("%d calls so far, by state: %v", len(s.sent), s.states)
	}
}

// entry is something that changes what counts towards a limit.
type entry struct {
	at     time.Time
	amount int64
	admits bool
}

// auditLimit goes through the whole history of the user's tokens in the order of time: no admission passed the limit, counting what was
// held, and what was charged in the window. Of charges that were lowered, what is left counts.
func (s *pairStorm) auditLimit(store ledger.Store) {
	var entries []entry
	err := store.View(context.Background(), func(view ledger.View) error {
		s.expired = 0
		for after := uuid.Nil; ; {
			holds, err := view.Holds(context.Background(), after, 1000)
			if err != nil {
				return err
			}
			if len(holds) == 0 {
				break
			}
			after = holds[len(holds)-1].ID
			for _, hold := range holds {
				entries = append(entries, entry{hold.AdmittedAt, *hold.Reserve.Tokens, true}, entry{hold.EndedAt, -*hold.Reserve.Tokens, false})
				if hold.State == ledger.HoldExpired {
					s.expired++
				}
			}
		}
		for after := int64(0); ; {
			charges, err := view.Charges(context.Background(), aliceAccounts[0], after, 1000)
			if err != nil || len(charges) == 0 {
				return err
			}
			after = charges[len(charges)-1].Total
			for _, charge := range charges {
				left := charge.Amount - charge.Refunded
				entries = append(entries, entry{charge.At, left, false}, entry{charge.At.Add(pairWindow), -left, false})
			}
		}
	})
	if err != nil {
		s.t.Fatal(err)
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(a.at.Compare(b.at), cmp.Compare(btoi(a.admits), btoi(b.admits)))
	})
	counted := int64(0)
	for _, e := range entries {
		if counted += e.amount; e.admits && counted > pairLimit {
			s.t.Errorf("at %v an admission came to %d of %d", e.at, counted, pairLimit)
		}
	}
	if counted != 0 {
		s.t.Errorf("%d is held or counts for ever", counted)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

var retriesLine = regexp.MustCompile(`(?m)^regent_database_retries_total\{cause="(\w+)"\} (\d+)$`)

// countRetries adds what a process says of its transactions that were done again.
func (s *pairStorm) countRetries(m *member) {
	_, text := fetch(s.t, m.now().address, "/metrics")
	for _, found := range retriesLine.FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(found[2])
		if err != nil {
			s.t.Error(err)
		}
		s.retries[found[1]] += n
	}
}

// pairRoundsToFill are the rounds after which the limit has been reached for certain.
const pairRoundsToFill = 10

// report prints what the storm came to.
func (s *pairStorm) report(began time.Time) {
	if s.kills >= pairRoundsToFill && s.states[ledger.Denied] <= s.kills*2*s.mix.denied {
		s.t.Errorf("the limit has denied nothing: %v", s.states)
	}
	verdict := "no difference"
	if s.t.Failed() {
		verdict = "DIFFERENCES, see above"
	}
	faults := len(s.pair[0].proxy.Fired()) + len(s.pair[1].proxy.Fired())
	s.t.Logf("%v at %s: %d calls, %d of them reached the provider; by state: %v; %d kills, %d cuts, %d faults beside commits; "+
		"transactions done again: %v; %d holds expired: %s", time.Since(began).Round(time.Second), s.isolation, len(s.sent), s.reached,
		s.states, s.kills, s.cuts, faults, s.retries, s.expired, verdict)
}
