package sqldb_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgproxy"
)

const (
	ttl = time.Minute
	day = 24 * time.Hour
)

var ctx = context.Background()

// bench is a ledger on PostgreSQL by way of a proxy, with the words that the tests are written in.
type bench struct {
	*ledgertest.Clock
	t      *testing.T
	config sqldb.Config
	proxy  *pgproxy.Proxy
	store  *sqldb.Store
	ledger *ledger.Ledger
}

// onPostgres runs a test at each isolation, both at once.
func onPostgres(t *testing.T, test func(t *testing.T, config sqldb.Config)) {
	for _, server := range servers[:2] {
		t.Run(server.name, func(t *testing.T) {
			t.Parallel()
			test(t, migrated(t, server.config(t)))
		})
	}
}

// proxied is a database by way of a proxy.
func proxied(t *testing.T, config sqldb.Config) (sqldb.Config, *pgproxy.Proxy) {
	t.Helper()
	proxy := pgproxy.New(t, config.URL)
	config.URL = proxy.URL()
	return config, proxy
}

// newBench opens a ledger whose clock is moved by hand.
func newBench(t *testing.T, config sqldb.Config) *bench {
	t.Helper()
	b := &bench{Clock: ledgertest.NewClock(), t: t}
	b.config, b.proxy = proxied(t, config)
	b.config.Now = b.Now
	b.store = open(t, b.config)
	b.ledger = b.start(b.store)
	return b
}

// start starts a ledger that only looks for what is due when something else is done.
func (b *bench) start(store ledger.Store) *ledger.Ledger {
	b.t.Helper()
	return start(b.t, ledger.Config{
		Store: store, TTL: ttl, LateRefund: day, Elapsed: b.Elapsed, SweepEvery: time.Hour,
	})
}

// start starts a ledger and closes it when the test ends.
func start(t *testing.T, config ledger.Config) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func user(name string) ledger.Account {
	return ledger.Account{Scope: ledger.ScopeUser, ID: name, Unit: ledger.Tokens}
}

// admission is one of n tokens under a limit of a day.
func admission(account ledger.Account, n, max int64) ledger.Admission {
	return ledger.Admission{
		Hold: newID(), Source: "one", Provider: "fake", Reserve: ledger.Reserve{Tokens: &n},
		Claims: []ledger.Claim{{Account: account, Limits: []ledger.Limit{{Window: ledger.Fixed{Length: day}, Max: max}}}},
	}
}

func newCall() *ledger.Call {
	id := newID()
	return &ledger.Call{ID: id, Owner: "alice", Model: "demo", Protocol: "openai.chat", ClientRequestID: id.String(), IdempotencyKey: id.String()}
}

// forCall makes an admission one for a call of its own.
func forCall(a ledger.Admission) ledger.Admission {
	a.Call, a.Decision = newCall(), []byte(`{}`)
	return a
}

func ending(hold ledger.Hold) ledger.Ending {
	return ledger.Ending{Hold: hold.ID, Token: hold.Token, Outcome: ledger.Outcome{Result: ledger.Success, Status: 200}, State: ledger.Completed}
}

func output(n int64) ledger.Consumption {
	return ledger.Consumption{Usage: &ledger.Usage{Output: n}}
}

func (b *bench) admit(a ledger.Admission) ledger.Hold {
	b.t.Helper()
	hold, err := b.ledger.Admit(ctx, a)
	if err != nil {
		b.t.Fatalf("admit: %v", err)
	}
	wantEqual(b.t, "hold", hold.ID, a.Hold)
	return hold
}

func (b *bench) renew(hold ledger.Hold) ledger.Hold {
	b.t.Helper()
	renewed, err := b.ledger.Renew(ctx, hold.ID, hold.Token, 0)
	if err != nil {
		b.t.Fatalf("renew: %v", err)
	}
	return renewed
}

func (b *bench) settle(hold ledger.Hold, n int64) {
	b.t.Helper()
	charge, err := b.ledger.Settle(ctx, ending(hold), output(n))
	if err != nil {
		b.t.Fatalf("settle: %v", err)
	}
	wantEqual(b.t, "charge", charge, ledger.Charge{Tokens: n})
}

// touch has the ledger look at what is due.
func (b *bench) touch() {
	b.t.Helper()
	b.must("touch", b.ledger.Refuse(ctx, nil, []byte(`{"touch":true}`)))
}

func (b *bench) must(what string, err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// want checks what an account has used, less refunds, and what is held of it.
func (b *bench) want(account ledger.Account, used, held int64) {
	b.t.Helper()
	row, _, err := ledger.ReadAccount(ctx, b.store, account)
	b.must("read", err)
	if row.Used-row.Refunds != used || row.Held != held {
		b.t.Fatalf("%s: used %d, held %d; want used %d, held %d", account, row.Used-row.Refunds, row.Held, used, held)
	}
}

// audit checks the books of a ledger at rest.
func (b *bench) audit() {
	b.t.Helper()
	b.must("audit", ledgertest.Audit(ctx, b.store))
}

// wantIdle checks that no connection of a store stays in use: a sweep takes one now and then.
func wantIdle(t *testing.T, store *sqldb.Store) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); store.InUse() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d connections in use", store.InUse())
		}
	}
}

// numbers reads the journal, and checks that each stream is numbered without a gap. It returns the records of all.
func numbers(t *testing.T, store ledger.Store) (all []ledger.Record) {
	t.Helper()
	streams, err := store.Streams(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, stream := range streams {
		records, err := store.Records(ctx, stream.Writer, 0, int(stream.Last))
		if err != nil {
			t.Fatal(err)
		}
		for i, record := range records {
			wantEqual(t, "number", record.Number, records[0].Number+int64(i))
		}
		all = append(all, records...)
	}
	return all
}

func kindsOf(records []ledger.Record) (kinds []ledger.Kind) {
	for _, record := range records {
		kinds = append(kinds, record.Kind)
	}
	return kinds
}

func wantEqual[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func wantSame[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got error %v, want %v", what, err, want)
	}
}
