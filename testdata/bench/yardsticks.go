package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"regent/ledger"
)

// yardstick is what a good engineer writes by hand for the same calls, with prepared statements and a pool. It keeps the same durable
// facts as the ledger does: the rows of four accounts, the call and its end, the hold and its end, a charge of each account, a decision
// record, a charge record and an outcome record, under the indexes that the ledger has on them. Otherwise it does less: it knows no
// windows and holds limits against all that was ever used, it has no idempotency keys and looks for no hold that is due, and its
// accounts and the price are there before.
type yardstick struct {
	pool chan *pgx.Conn
	// book books in one transaction; it returns errDenied, or what the server said.
	book func(ctx context.Context, conn *pgx.Conn, b *booking, m *moved) error
	// again counts the transactions that were done again.
	again atomic.Int64
}

// yardSchema has room in the pages of accounts, so that their updates touch no index.
const yardSchema = `
CREATE TABLE yard_account (account TEXT COLLATE "C" PRIMARY KEY, used INT8 NOT NULL DEFAULT 0, held INT8 NOT NULL DEFAULT 0,
	touched_at TIMESTAMPTZ NOT NULL DEFAULT now(), CHECK (used >= 0 AND held >= 0)) WITH (fillfactor = 50);
CREATE TABLE yard_call (id UUID PRIMARY KEY, owner TEXT COLLATE "C" NOT NULL, model TEXT NOT NULL, protocol TEXT NOT NULL, state TEXT NOT NULL,
	created_at TIMESTAMPTZ NOT NULL DEFAULT now(), ended_at TIMESTAMPTZ);
CREATE INDEX ON yard_call (owner, created_at);
CREATE TABLE yard_hold (id UUID PRIMARY KEY, call UUID NOT NULL, source TEXT NOT NULL, provider TEXT NOT NULL, state TEXT NOT NULL,
	token INT8 NOT NULL, accounts TEXT[] NOT NULL, amounts INT8[] NOT NULL, price BYTEA NOT NULL,
	admitted_at TIMESTAMPTZ NOT NULL DEFAULT now(), deadline TIMESTAMPTZ NOT NULL, ended_at TIMESTAMPTZ,
	result TEXT, status INT4, usage TEXT, tokens INT8, nano_usd INT8);
CREATE INDEX ON yard_hold (deadline, id) WHERE state = 'live';
CREATE INDEX ON yard_hold (call, admitted_at);
CREATE TABLE yard_charge (account TEXT COLLATE "C" NOT NULL, total INT8 NOT NULL, at TIMESTAMPTZ NOT NULL DEFAULT now(), amount INT8 NOT NULL,
	PRIMARY KEY (account, total));
CREATE INDEX ON yard_charge (account, at, total);
CREATE TABLE yard_record (number INT8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at TIMESTAMPTZ NOT NULL DEFAULT now(), kind TEXT NOT NULL,
	call UUID NOT NULL, body TEXT NOT NULL);
CREATE INDEX ON yard_record (at, number);
CREATE INDEX ON yard_record (call, at);`

// yardHistory are rows of the past: in tables of a few pages, everybody is a neighbour of everybody, which SERIALIZABLE takes for a
// conflict.
const yardHistory = `
INSERT INTO yard_account (account) SELECT 'past/' || i || '/tokens' FROM generate_series(1, 20000) i;
INSERT INTO yard_call SELECT gen_random_uuid(), 'past-' || i % 100, 'm', 'openai.chat', 'completed', now(), now() FROM generate_series(1, 20000) i;
INSERT INTO yard_hold SELECT gen_random_uuid(), id, 's', 'p', 'settled', 1, '{past/1/tokens}', '{1000}', '\x00', now(), now(), now(), 'success', 200,
	NULL, 0, 0 FROM yard_call;`

// moved is what a booking moves, in the form in which a statement takes it.
type moved struct {
	settling               bool
	accounts               []string
	held, used, most       []int64
	charge, outcome, usage string
	price                  []byte
	tokens, nanoUSD        int64
}

// movedBy computes what a booking moves.
func movedBy(b *booking, settling bool) (*moved, error) {
	m := &moved{settling: settling}
	tokens, err := bookedUsage.Tokens()
	if err != nil {
		return nil, err
	}
	nanoUSD, err := bookedPrice.Cost(bookedUsage)
	if err != nil {
		return nil, err
	}
	price := bookedPrice.ID()
	m.price, m.tokens, m.nanoUSD = price[:], tokens, nanoUSD
	charged := map[ledger.Account]int64{}
	for _, claim := range b.claims {
		held, used := reservedTokens, tokens
		if claim.Account.Unit == ledger.USD {
			held, used = reservedUSD, nanoUSD
		}
		charged[claim.Account] = used
		m.accounts = append(m.accounts, claim.Account.String())
		m.held, m.used, m.most = append(m.held, held), append(m.used, used), append(m.most, claim.Limits[0].Max)
	}
	if !settling {
		return m, nil
	}
	for _, part := range []struct {
		text *string
		body any
	}{
		{&m.usage, bookedUsage},
		{&m.charge, ledger.ChargeBody{Hold: b.hold, Source: "s", Provider: "p", Usage: &bookedUsage, Price: &bookedPrice, Tokens: tokens,
			NanoUSD: nanoUSD, Accounts: charged}},
		{&m.outcome, ledger.OutcomeBody{Hold: b.hold, Source: "s", Provider: "p", Result: bookedOutcome.Result, Status: bookedOutcome.Status,
			State: ledger.Completed, Usage: &bookedUsage, Tokens: tokens, USD: ledger.FormatUSD(nanoUSD)}},
	} {
		text, err := json.Marshal(part.body)
		if err != nil {
			return nil, err
		}
		*part.text = string(text)
	}
	return m, nil
}

// openYardstick connects to a database, and makes the tables unless they are there.
func openYardstick(ctx context.Context, url, isolation string, connections int,
	book func(context.Context, *pgx.Conn, *booking, *moved) error) (*yardstick, error) {
	y := &yardstick{pool: make(chan *pgx.Conn, connections), book: book}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["default_transaction_isolation"] = isolation
	for range connections {
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return nil, errors.Join(err, y.close())
		}
		y.pool <- conn
	}
	conn := <-y.pool
	defer func() { y.pool <- conn }()
	for _, statement := range []string{yardSchema, yardHistory, "VACUUM ANALYZE"} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return nil, err
		}
	}
	return y, nil
}

func (y *yardstick) admit(ctx context.Context, b *booking) error {
	b.call, b.hold, b.token = uuid.New(), uuid.New(), 1 // at random, so that neighbours in an index are nobody in particular
	return y.do(ctx, b, false)
}

func (y *yardstick) settle(ctx context.Context, b *booking) error { return y.do(ctx, b, true) }

// do books until there was no conflict.
func (y *yardstick) do(ctx context.Context, b *booking, settling bool) error {
	m, err := movedBy(b, settling)
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		err := y.try(ctx, b, m)
		var sent *pgconn.PgError
		if !errors.As(err, &sent) || sent.Code != "40001" && sent.Code != "40P01" {
			return err
		}
		y.again.Add(1)
		most := 200 * time.Microsecond << min(attempt, 7)
		time.Sleep(rand.N(most))
	}
}

func (y *yardstick) try(ctx context.Context, b *booking, m *moved) error {
	conn := <-y.pool
	defer func() { y.pool <- conn }()
	return y.book(ctx, conn, b, m)
}

func (y *yardstick) prepare(ctx context.Context, claims []ledger.Claim) error {
	conn := <-y.pool
	defer func() { y.pool <- conn }()
	for _, claim := range claims {
		_, err := conn.Exec(ctx, `INSERT INTO yard_account (account) VALUES ($1) ON CONFLICT DO NOTHING`, claim.Account.String())
		if err != nil {
			return err
		}
	}
	return nil
}

// verify sees that each account has what its charges and holds come to, and each call its records.
func (y *yardstick) verify(ctx context.Context) error {
	conn := <-y.pool
	defer func() { y.pool <- conn }()
	var accounts, calls int
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM yard_account a
		LEFT JOIN (SELECT account, sum(amount) AS used FROM yard_charge GROUP BY account) c USING (account)
		LEFT JOIN (SELECT account, sum(amount) AS held FROM yard_hold, unnest(accounts, amounts) AS s (account, amount) WHERE state = 'live'
			GROUP BY account) h USING (account)
		WHERE a.used <> coalesce(c.used, 0) OR a.held <> coalesce(h.held, 0)`).Scan(&accounts); err != nil {
		return err
	}
	if err := conn.QueryRow(ctx, `SELECT count(*) FROM yard_call c JOIN yard_hold h ON h.call = c.id
		WHERE c.owner NOT LIKE 'past-%' AND (SELECT count(*) FROM yard_record r WHERE r.call = c.id) <> CASE h.state WHEN 'live' THEN 1 ELSE 3 END
		OR (c.state = 'held') <> (h.state = 'live')`).Scan(&calls); err != nil {
		return err
	}
	if accounts+calls > 0 {
		return fmt.Errorf("%d accounts and %d calls are wrong", accounts, calls)
	}
	return nil
}

func (y *yardstick) conflicts() int64 { return y.again.Load() }

func (y *yardstick) close() error {
	var errs []error
	for range len(y.pool) {
		errs = append(errs, (<-y.pool).Close(context.Background()))
	}
	return errors.Join(errs...)
}

// One statement, which is a transaction: it locks the accounts in their order, looks whether all have room, and only then writes.
const (
	admitAtOnce = `
WITH want AS (SELECT * FROM unnest($1::text[], $2::int8[], $3::int8[]) AS t (account, amount, most)),
found AS MATERIALIZED (SELECT w.amount, w.most - a.used - a.held AS room FROM yard_account a JOIN want w ON w.account = a.account
	ORDER BY a.account FOR UPDATE OF a),
allowed AS (SELECT count(*) = cardinality($1) AND coalesce(bool_and(room >= amount), false) AS yes FROM found),
u AS (UPDATE yard_account a SET held = a.held + w.amount, touched_at = now() FROM want w, allowed WHERE a.account = w.account AND allowed.yes),
c AS (INSERT INTO yard_call (id, owner, model, protocol, state) SELECT $4::uuid, $5::text, 'm', 'openai.chat', 'held' FROM allowed WHERE yes),
h AS (INSERT INTO yard_hold (id, call, source, provider, state, token, accounts, amounts, price, deadline)
	SELECT $6::uuid, $4::uuid, 's', 'p', 'live', 1, $1, $2, $7::bytea, now() + interval '60 s' FROM allowed WHERE yes),
r AS (INSERT INTO yard_record (kind, call, body) SELECT 'decision', $4::uuid, $8::text FROM allowed WHERE yes)
SELECT yes FROM allowed`
	settleAtOnce = `
WITH h AS (UPDATE yard_hold SET state = 'settled', ended_at = now(), result = 'success', status = 200, usage = $6::text, tokens = $7::int8,
	nano_usd = $8::int8 WHERE id = $4::uuid AND token = $5::int8 AND state = 'live' RETURNING call),
want AS (SELECT * FROM unnest($1::text[], $2::int8[], $3::int8[]) AS t (account, held, used)),
found AS MATERIALIZED (SELECT w.account, w.held, w.used FROM h, yard_account a JOIN want w ON w.account = a.account
	ORDER BY a.account FOR UPDATE OF a),
u AS (UPDATE yard_account a SET held = a.held - f.held, used = a.used + f.used, touched_at = now() FROM found f WHERE a.account = f.account
	RETURNING a.account, a.used AS total, f.used AS amount),
c AS (INSERT INTO yard_charge (account, total, amount) SELECT account, total, amount FROM u),
k AS (UPDATE yard_call c SET state = 'completed', ended_at = now() FROM h WHERE c.id = h.call),
r AS (INSERT INTO yard_record (kind, call, body) SELECT v.kind, h.call, v.body FROM h, (VALUES ('charge', $9::text), ('outcome', $10::text)) v (kind, body))
SELECT count(*) = 1 FROM h`
)

// atOnce books in one statement.
func atOnce(ctx context.Context, conn *pgx.Conn, b *booking, m *moved) error {
	var done bool
	if m.settling {
		err := conn.QueryRow(ctx, settleAtOnce, m.accounts, m.held, m.used, b.hold, b.token, m.usage, m.tokens, m.nanoUSD, m.charge, m.outcome).Scan(&done)
		if err == nil && !done {
			err = ledger.ErrState
		}
		return err
	}
	err := conn.QueryRow(ctx, admitAtOnce, m.accounts, m.held, m.most, b.call, b.claims[0].Account.ID, b.hold, m.price, string(bookedDecision)).Scan(&done)
	if err == nil && !done {
		err = errDenied
	}
	return err
}

// locked books in two round trips: one begins a transaction and locks the rows in their order, the other writes and commits.
func locked(ctx context.Context, conn *pgx.Conn, b *booking, m *moved) error {
	rows, state := map[string][2]int64{}, ""
	begin := &pgx.Batch{}
	begin.Queue("BEGIN")
	if m.settling {
		begin.Queue(`SELECT state FROM yard_hold WHERE id = $1 AND token = $2 FOR UPDATE`, b.hold, b.token).
			QueryRow(func(row pgx.Row) error { return row.Scan(&state) })
	}
	begin.Queue(`SELECT account, used, held FROM yard_account WHERE account = ANY($1) ORDER BY account FOR UPDATE`, m.accounts).
		Query(func(found pgx.Rows) error {
			var account string
			var row [2]int64
			_, err := pgx.ForEachRow(found, []any{&account, &row[0], &row[1]}, func() error { rows[account] = row; return nil })
			return err
		})
	err := conn.SendBatch(ctx, begin).Close()
	if err == nil {
		err = decideLocked(rows, state, m)
	}
	if err == nil {
		err = conn.SendBatch(ctx, writeLocked(rows, b, m)).Close()
	}
	if err != nil && conn.PgConn().TxStatus() != 'I' {
		_, rollback := conn.Exec(ctx, "ROLLBACK")
		err = errors.Join(err, rollback)
	}
	return err
}

// decideLocked moves the amounts in the rows that are locked, if that may be.
func decideLocked(rows map[string][2]int64, state string, m *moved) error {
	if m.settling && state != "live" {
		return ledger.ErrState
	}
	for i, account := range m.accounts {
		row, found := rows[account]
		switch {
		case m.settling:
			row[0], row[1] = row[0]+m.used[i], row[1]-m.held[i]
		case !found || m.most[i]-row[0]-row[1] < m.held[i]:
			return errDenied
		default:
			row[1] += m.held[i]
		}
		rows[account] = row
	}
	return nil
}

func writeLocked(rows map[string][2]int64, b *booking, m *moved) *pgx.Batch {
	var used, held []int64
	for _, account := range m.accounts {
		used, held = append(used, rows[account][0]), append(held, rows[account][1])
	}
	write := &pgx.Batch{}
	write.Queue(`UPDATE yard_account a SET used = t.used, held = t.held, touched_at = now()
		FROM unnest($1::text[], $2::int8[], $3::int8[]) AS t (account, used, held) WHERE a.account = t.account`, m.accounts, used, held)
	if m.settling {
		write.Queue(`INSERT INTO yard_charge (account, total, amount) SELECT * FROM unnest($1::text[], $2::int8[], $3::int8[])`, m.accounts, used, m.used)
		write.Queue(`UPDATE yard_hold SET state = 'settled', ended_at = now(), result = 'success', status = 200, usage = $2, tokens = $3, nano_usd = $4
			WHERE id = $1`, b.hold, m.usage, m.tokens, m.nanoUSD)
		write.Queue(`UPDATE yard_call SET state = 'completed', ended_at = now() WHERE id = $1`, b.call)
		write.Queue(`INSERT INTO yard_record (kind, call, body) VALUES ('charge', $1, $2), ('outcome', $1, $3)`, b.call, m.charge, m.outcome)
	} else {
		write.Queue(`INSERT INTO yard_call (id, owner, model, protocol, state) VALUES ($1, $2, 'm', 'openai.chat', 'held')`, b.call, b.claims[0].Account.ID)
		write.Queue(`INSERT INTO yard_hold (id, call, source, provider, state, token, accounts, amounts, price, deadline)
			VALUES ($1, $2, 's', 'p', 'live', 1, $3, $4, $5, now() + interval '60 s')`, b.hold, b.call, m.accounts, m.held, m.price)
		write.Queue(`INSERT INTO yard_record (kind, call, body) VALUES ('decision', $1, $2)`, b.call, string(bookedDecision))
	}
	write.Queue("COMMIT")
	return write
}
