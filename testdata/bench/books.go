package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"regent/ledger"
	"regent/ledger/sqldb"
)

// books are something that keeps the money of calls on PostgreSQL: Regent's ledger, or a yardstick.
type books interface {
	// admit sets the reserve of a booking aside under every limit, or returns errDenied.
	admit(ctx context.Context, b *booking) error
	// settle charges what it has used.
	settle(ctx context.Context, b *booking) error
	// prepare makes what has to be there before the claims are booked.
	prepare(ctx context.Context, claims []ledger.Claim) error
	// verify sees that the sums agree when nothing runs.
	verify(ctx context.Context) error
	// conflicts are how often a transaction was done again.
	conflicts() int64
	close() error
}

var errDenied = errors.New("denied")

// booking is one call with one attempt.
type booking struct {
	call, hold uuid.UUID
	token      int64
	claims     []ledger.Claim
}

// What each call reserves and uses, and its decision record, which is about as long as the gateway's.
var (
	reservedTokens, reservedUSD = int64(1000), int64(9_000_000)
	bookedUsage                 = ledger.Usage{UncachedInput: 400, Output: 300}
	bookedPrice                 = ledger.Price{Rates: ledger.Rates{UncachedInput: 3_000_000, Output: 15_000_000}}
	bookedOutcome               = ledger.Outcome{Result: ledger.Success, Status: 200}
	bookedDecision              = []byte(`{"decision":"allow","text":"` + strings.Repeat("0123456789", 60) + `"}`)
)

const plenty = 1 << 50 // a limit that nobody meets

// claimsOf are four accounts of a caller under fixed and rolling windows. All callers share the group where it is hot; its limit is most.
func claimsOf(name, group string, most int64) []ledger.Claim {
	claim := func(scope, id string, unit ledger.Unit, window ledger.Window, most int64) ledger.Claim {
		return ledger.Claim{
			Account: ledger.Account{Scope: scope, ID: id, Unit: unit}, Limits: []ledger.Limit{{Window: window, Max: most}},
		}
	}
	return []ledger.Claim{
		claim(ledger.ScopeUser, name, ledger.Tokens, ledger.Rolling{Length: 5 * time.Hour}, plenty),
		claim(ledger.ScopeUser, name, ledger.USD, ledger.Fixed{Length: 24 * time.Hour}, plenty),
		claim(ledger.ScopeGroup, group, ledger.Tokens, ledger.Rolling{Length: 7 * 24 * time.Hour}, most),
		claim(ledger.ScopeSource, name, ledger.USD, ledger.Fixed{Length: time.Hour}, plenty),
	}
}

// ourBooks are Regent's ledger on PostgreSQL, through its public interface.
type ourBooks struct {
	*ledger.Ledger
	store *sqldb.Store
	db    *sql.DB
	// trips are round trips to the server. Those that prepare statements are counted apart: each text takes one on each connection.
	trips, preparing atomic.Int64
}

// openOurs opens a ledger on a database whose tables are there.
func openOurs(ctx context.Context, url, namespace string, now func() time.Time) (*ourBooks, error) {
	parsed, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	o := &ourBooks{}
	dial := parsed.DialFunc
	parsed.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &countedConn{Conn: conn, to: o}, err
	}
	o.db = stdlib.OpenDB(*parsed, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
	o.db.SetMaxOpenConns(8) // as many as the store opens itself
	o.db.SetMaxIdleConns(8)
	if o.store, err = sqldb.Open(ctx, sqldb.Config{DB: o.db, Namespace: namespace, Now: now}); err == nil {
		o.Ledger, err = ledger.Open(ledger.Config{Store: o.store})
	}
	if err != nil {
		return nil, errors.Join(err, o.db.Close())
	}
	return o, nil
}

func (o *ourBooks) admit(ctx context.Context, b *booking) error {
	var err error
	if b.call, err = uuid.NewV7(); err != nil {
		return err
	}
	if b.hold, err = uuid.NewV7(); err != nil {
		return err
	}
	hold, err := o.Admit(ctx, ledger.Admission{
		Hold: b.hold, Call: &ledger.Call{ID: b.call, Owner: b.claims[0].Account.ID, Model: "m", Protocol: "openai.chat"},
		Source: "s", Provider: "p", Price: &bookedPrice, Claims: b.claims, Decision: bookedDecision,
		Reserve: ledger.Reserve{Tokens: &reservedTokens, NanoUSD: &reservedUSD, NanoCredits: new(int64)},
	})
	b.token = hold.Token
	var limit *ledger.LimitError
	if errors.As(err, &limit) {
		return errDenied
	}
	return err
}

func (o *ourBooks) settle(ctx context.Context, b *booking) error {
	ending := ledger.Ending{Hold: b.hold, Token: b.token, Outcome: bookedOutcome, State: ledger.Completed}
	_, err := o.Settle(ctx, ending, ledger.Consumption{Usage: &bookedUsage})
	return err
}

func (o *ourBooks) prepare(context.Context, []ledger.Claim) error { return nil }

func (o *ourBooks) verify(ctx context.Context) error {
	v, err := ledger.Verify(ctx, o.store)
	if err == nil && len(v.Differences) > 0 {
		err = fmt.Errorf("%d differences, the first of them: %v", len(v.Differences)+v.More, v.Differences[0])
	}
	return err
}

func (o *ourBooks) conflicts() int64 { return o.store.Counters().Conflicts }

// commits are the transactions that the server has taken, the reading ones among them.
func (o *ourBooks) commits() int64 {
	c := o.store.Counters()
	return c.Transactions - c.Conflicts - c.Unknown - c.Lost
}

func (o *ourBooks) close() error { return errors.Join(o.Close(), o.db.Close()) }

// countedConn counts round trips: a write after something was read begins one.
type countedConn struct {
	net.Conn
	to      *ourBooks
	waiting atomic.Bool // for an answer
}

// parseMessage is the first byte of PostgreSQL's message that prepares a statement.
const parseMessage = 'P'

func (c *countedConn) Write(p []byte) (int, error) {
	if !c.waiting.Swap(true) {
		if p[0] == parseMessage {
			c.to.preparing.Add(1)
		} else {
			c.to.trips.Add(1)
		}
	}
	return c.Conn.Write(p)
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.waiting.Store(false)
	}
	return n, err
}
