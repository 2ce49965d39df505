package sqldb_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgproxy"
	"regent/ledger/sqldb/pgtest"
)

const (
	stormCallers = 16
	stormCalls   = 6 // of each caller
	// stormMax is the limit of each account: less than all calls would use.
	stormMax = 300
)

// stormPosted is an account without a limit, to which a token is posted for each call.
var stormPosted = user("posted")

var stormAccounts = []ledger.Account{user("alice"), user("bob"), user("carol"), user("Élise/%")}

// storm is callers of two ledgers on one database, while something goes wrong all the time.
type storm struct {
	t       *testing.T
	seed    uint64
	watched *sqldb.Store // which nothing happens to
	stores  []*sqldb.Store
	ledgers []*ledger.Ledger

	mu sync.Mutex
	// What callers were told: what accounts were charged, how calls ended, and how many were denied.
	charged map[ledger.Account]int64
	ended   map[ledger.State]int
	denied  int
	// posted counts what was posted, each under an id.
	posted int64
	// unanswered counts the operations that were repeated.
	unanswered atomic.Int64
}

// newStorm opens ledgers by one configuration, and a store by another to watch them.
func newStorm(t *testing.T, seed uint64, watched, config sqldb.Config, patience time.Duration) *storm {
	t.Helper()
	s := &storm{t: t, seed: seed, charged: map[ledger.Account]int64{}, ended: map[ledger.State]int{}}
	s.watched = open(t, watched)
	t.Cleanup(func() { _ = s.watched.Close() })
	for range 2 {
		store := open(t, config)
		store.SetPatience(patience)
		s.stores = append(s.stores, store)
		s.ledgers = append(s.ledgers, start(t, ledger.Config{Store: store, TTL: 2 * ttl}))
	}
	return s
}

// run has callers call while disrupt is called over and over, and then checks the books.
func (s *storm) run(disrupt func(random *rand.Rand)) {
	s.t.Helper()
	var callers, others sync.WaitGroup
	for i := range stormCallers {
		callers.Go(func() {
			caller := &stormCaller{storm: s, ledger: s.ledgers[i%len(s.ledgers)], random: rand.New(rand.NewPCG(s.seed, uint64(i)))}
			for range stormCalls {
				caller.call()
			}
		})
	}
	over := make(chan struct{})
	others.Go(func() {
		random := rand.New(rand.NewPCG(s.seed, 1<<32))
		for !isClosed(over) {
			disrupt(random)
		}
	})
	others.Go(func() {
		for !isClosed(over) {
			s.watch()
			time.Sleep(5 * time.Millisecond)
		}
	})
	callers.Wait()
	close(over)
	others.Wait()
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// watch checks that no account has more used and held than its limit.
func (s *storm) watch() {
	rows, err := s.watched.Load(ctx, ledger.Keys{Accounts: stormAccounts})
	if err != nil {
		return // it cannot be reached
	}
	for account, row := range rows.Accounts {
		if row.Used+row.Held > stormMax {
			s.t.Errorf("%s: used %d, held %d, limit %d", account, row.Used, row.Held, stormMax)
		}
	}
}

// check compares the books with what callers were told.
func (s *storm) check() {
	s.t.Helper()
	if err := ledgertest.Audit(ctx, s.watched); err != nil {
		s.t.Fatal(err)
	}
	numbers(s.t, s.watched)
	for _, account := range stormAccounts {
		row, _, err := ledger.ReadAccount(ctx, s.watched, account)
		if err != nil || row.Used != s.charged[account] || row.Used > stormMax {
			s.t.Errorf("%s: used %d, %v; callers were told of %d, the limit is %d", account, row.Used, err, s.charged[account], stormMax)
		}
	}
	posted, _, err := ledger.ReadAccount(ctx, s.watched, stormPosted)
	wantEqual(s.t, "error", err, nil)
	wantEqual(s.t, "what was posted", posted.Used, s.posted)
	reports, err := s.watched.Calls(ctx, ledger.CallQuery{Owner: "alice", Limit: 1 << 20})
	if err != nil {
		s.t.Fatal(err)
	}
	ended := map[ledger.State]int{}
	for _, report := range reports {
		ended[report.State]++
	}
	for _, state := range []ledger.State{ledger.Held, ledger.Completed, ledger.Failed, ledger.Denied} {
		wantEqual(s.t, "calls that are "+string(state), ended[state], s.ended[state])
	}
	var counters sqldb.Counters
	for _, store := range s.stores {
		wantIdle(s.t, store)
		c := store.Counters()
		counters.Transactions += c.Transactions
		counters.Conflicts += c.Conflicts
		counters.Unknown += c.Unknown
		counters.Lost += c.Lost
	}
	s.t.Logf("%d completed, %d failed, %d denied; %d operations repeated; %+v", ended[ledger.Completed], ended[ledger.Failed], s.denied,
		s.unanswered.Load(), counters)
}

// stormCaller makes one call after another.
type stormCaller struct {
	*storm
	ledger *ledger.Ledger
	random *rand.Rand
}

// call makes one call, from its admission to its end. Each operation is repeated under its ids until it is answered.
func (c *stormCaller) call() {
	c.post()
	account := stormAccounts[c.random.IntN(len(stormAccounts))]
	a := forCall(admission(account, 1+c.random.Int64N(100), stormMax))
	charged := int64(0)
	hold, ok := c.admit(a)
	if !ok {
		return
	}
	for c.random.IntN(3) == 0 {
		hold = c.renew(hold)
		c.read(account)
	}
	for c.random.IntN(4) == 0 {
		next := a
		next.Hold, next.Source = newID(), "next"
		next.Replaces = &ledger.Replacement{Ending: ending(hold)}
		next.Replaces.State, next.Replaces.Outcome = "", ledger.Outcome{Result: ledger.Errored}
		if c.random.IntN(2) == 0 {
			used := output(1)
			next.Replaces.Consumption = &used
		}
		if replacing, ok := c.admit(next); ok {
			charged += replacing.Replaced.Tokens
			hold, a = replacing, next
		}
	}
	c.end(a, hold, charged)
}

func (c *stormCaller) end(a ledger.Admission, hold ledger.Hold, charged int64) {
	end, state := ending(hold), ledger.Completed
	var charge ledger.Charge
	var err error
	if c.random.IntN(4) == 0 {
		end.State, state = ledger.Failed, ledger.Failed
		err = c.repeat(func() error { return c.ledger.Release(ctx, end) })
	} else {
		used := output(c.random.Int64N(*a.Reserve.Tokens + 1))
		if c.random.IntN(4) == 0 {
			used.Usage = nil // what was held
		}
		err = c.repeat(func() (err error) { charge, err = c.ledger.Settle(ctx, end, used); return err })
	}
	if err != nil {
		c.t.Errorf("end: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.charged[a.Claims[0].Account] += charged + charge.Tokens
	c.ended[state]++
}

// admit returns false for a denial.
func (c *stormCaller) admit(a ledger.Admission) (hold ledger.Hold, ok bool) {
	err := c.repeat(func() (err error) { hold, err = c.ledger.Admit(ctx, a); return err })
	var denial *ledger.LimitError
	if errors.As(err, &denial) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.denied++
		return hold, false
	}
	if err != nil {
		c.t.Errorf("admit: %v", err)
	}
	return hold, err == nil
}

// post posts once, however often that is repeated.
func (c *stormCaller) post() {
	posting := ledger.Posting{ID: newID(), Accounts: []ledger.Account{stormPosted}, Usage: ledger.Usage{Output: 1}}
	if err := c.repeat(func() error { return c.ledger.Post(ctx, posting) }); err != nil {
		c.t.Errorf("post: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.posted++
}

func (c *stormCaller) renew(hold ledger.Hold) (renewed ledger.Hold) {
	err := c.repeat(func() (err error) { renewed, err = c.ledger.Renew(ctx, hold.ID, hold.Token, 0); return err })
	if err != nil {
		c.t.Errorf("renew: %v", err)
		return hold
	}
	return renewed
}

// read reads a balance, which stands within its limit.
func (c *stormCaller) read(account ledger.Account) {
	var balances []ledger.Balance
	err := c.repeat(func() (err error) {
		balances, err = c.ledger.Read(ctx, admission(account, 1, stormMax).Claims)
		return err
	})
	if err != nil || len(balances) != 1 || balances[0].Used+balances[0].Held > stormMax {
		c.t.Errorf("read: %+v, %v", balances, err)
	}
}

// repeat repeats an operation until it is answered.
func (c *stormCaller) repeat(operation func() error) (err error) {
	for range 1000 {
		if err = operation(); !errors.Is(err, ledger.ErrUnavailable) {
			return err
		}
		c.unanswered.Add(1)
		time.Sleep(time.Duration(c.random.IntN(20)) * time.Millisecond)
	}
	return fmt.Errorf("never answered: %w", err)
}

// TestFaultsStorm: faults behind each other, and connections that are cut, at random moments under concurrent callers.
func TestFaultsStorm(t *testing.T) {
	for round := range ledgertest.Rounds(t, 1) {
		onPostgres(t, func(t *testing.T, direct sqldb.Config) {
			config, proxy := proxied(t, direct)
			s := newStorm(t, ledgertest.Seed(t)+uint64(round), direct, config, 2*time.Second)
			faults := pgproxy.Faults()
			s.run(func(random *rand.Rand) {
				for range 1 + random.IntN(3) {
					proxy.Arm(faults[random.IntN(len(faults))])
				}
				time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
				if random.IntN(8) == 0 {
					proxy.KillAll()
				}
			})
			proxy.Disarm()
			s.check()
			t.Logf("%d faults", len(proxy.Fired()))
		})
	}
}

// TestServerEndsStorm: the server ends connections, is restarted, and crashes under concurrent callers, longer than the stores wait.
func TestServerEndsStorm(t *testing.T) {
	cluster := pgtest.Start(t, pgtest.Options{NoSync: true})
	for round := range ledgertest.Rounds(t, 1) {
		for _, serializable := range []bool{false, true} {
			t.Run(fmt.Sprintf("serializable %v", serializable), func(t *testing.T) {
				config := migrated(t, sqldb.Config{URL: cluster.NewDatabase(t), Serializable: serializable})
				s := newStorm(t, ledgertest.Seed(t)+uint64(round), config, config, 50*time.Millisecond)
				restarts := 0
				s.run(func(random *rand.Rand) {
					time.Sleep(time.Duration(random.IntN(30)) * time.Millisecond)
					if restarts < 2 && random.IntN(3) == 0 {
						if err := cluster.Restart(restarts == 0); err != nil {
							t.Error(err)
						}
						restarts++
						return
					}
					terminate(config.URL)
				})
				s.check()
				t.Logf("%d restarts", restarts)
			})
		}
	}
}

// terminate has the server end about half of the connections of a database's stores. Whether it could is seen by what happens.
func terminate(location string) {
	conn, err := pgx.Connect(ctx, location)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close(context.Background()) }()
	_, _ = conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name = 'regent' AND datname = current_database() AND random() < 0.5`)
}
