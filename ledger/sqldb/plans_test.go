package sqldb

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"regent/ledger"
	"regent/ledger/sqldb/pgtest"
)

// grown fills a database as some months do.
const grown = `
	INSERT INTO ledger_price (id, body) SELECT sha256(CAST(i AS TEXT)::bytea), '{}' FROM generate_series(1, 50) i;
	INSERT INTO ledger_account (account, used, held, touched_at, charged_at)
		SELECT 'user/u' || i || '/tokens', 1000, 0, 1000000, 1000000 FROM generate_series(0, 19999) i;
	INSERT INTO ledger_charge (account, total, at, amount, refunded)
		SELECT 'user/u' || i % 20000 || '/tokens', 10 * (1 + i / 20000), 1000000 + i, 10, CASE WHEN i % 500 = 0 THEN 1 ELSE 0 END
		FROM generate_series(0, 199999) i;
	INSERT INTO ledger_call (id, owner, client_request_id, idempotency_key, model, protocol, stream, state, created_at, ended_at)
		SELECT decode(lpad(to_hex(i), 32, '0'), 'hex'), 'u' || i % 20000, 'c' || i, CASE WHEN i % 2 = 0 THEN 'k' || i END, 'm', 'p', 0,
		CASE WHEN i < 50000 THEN 'completed' ELSE 'held' END, 1000000 + i, CASE WHEN i < 50000 THEN 1000000 + i END
		FROM generate_series(0, 50499) i;
	INSERT INTO ledger_hold (id, call, source, provider, state, token, reserve_tokens, accounts, price, admitted_at, deadline, ended_at,
		result, reason, status, tokens, nano_usd, estimated, unknown_usage, overage, digest, refunded, rates, circuit, circuit_threshold,
		circuit_cool_down)
		SELECT decode(lpad(to_hex(i), 32, '0'), 'hex'), decode(lpad(to_hex(i), 32, '0'), 'hex'), 's', 'p',
		CASE WHEN i < 50000 THEN 'settled' ELSE 'live' END, 1, 10,
		'["user/u' || i % 20000 || '/tokens","user/u' || (i + 1) % 20000 || '/tokens"]', sha256(CAST(1 + i % 50 AS TEXT)::bytea), 1000000 + i,
		CAST(extract(epoch FROM now()) * 1000000 AS BIGINT) + 1000000 * CAST(i - 50010 AS BIGINT), CASE WHEN i < 50000 THEN 1000000 + i END,
		'', '', 0, 0, 0, 0, 0, 0, sha256(''), 0, '["token/u' || i % 20000 || '/1m"]', 'source/s' || i % 200, 3, 30000000
		FROM generate_series(0, 50499) i;
	INSERT INTO ledger_standing (account, hold)
		SELECT 'user/u' || i % 20000 || '/tokens', decode(lpad(to_hex(i), 32, '0'), 'hex') FROM generate_series(50000, 50499) i;
	INSERT INTO ledger_rate (key, opened_at, closes_at, count)
		SELECT 'token/u' || i || '/1m', at, at + 60000000, 1
		FROM generate_series(0, 19999) i, LATERAL (SELECT CAST(extract(epoch FROM now()) * 1000000 AS BIGINT) - 1000000 * CAST(i % 60 AS BIGINT)) t (at);
	INSERT INTO ledger_circuit (key, failures, retry_at)
		SELECT 'source/s' || i, i % 4, CASE WHEN i % 4 = 3 THEN 1000000 END FROM generate_series(0, 199) i;
	INSERT INTO ledger_record (writer, number, at, kind, call, body)
		SELECT decode(lpad(to_hex(i % 3), 32, '0'), 'hex'), 1 + i / 3, 1000000 + i, 'charge', decode(lpad(to_hex(i % 50000), 32, '0'), 'hex'), '{}'
		FROM generate_series(0, 59999) i;
	ANALYZE`

// TestPlans: on a database that has grown, what is asked for a batch is found by indexes, however the server plans it.
func TestPlans(t *testing.T) {
	store := migratedStore(t, Config{URL: pgtest.Shared(t).NewDatabase(t)})
	onConnection(t, store.Pool(), func(conn *pgx.Conn) {
		if _, err := conn.Exec(context.Background(), grown); err != nil {
			t.Fatal(err)
		}
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			t.Run(mode, func(t *testing.T) {
				plans := &planner{t: t, conn: conn}
				plans.exec("SET plan_cache_mode = " + mode)
				plans.exec(store.dialect.write)
				defer plans.exec("ROLLBACK")
				plans.exec(store.dialect.settings)
				for _, n := range []int{1, 8, 64, 256} {
					for _, q := range hot(t, store, n) {
						plans.check(q)
					}
				}
				for _, q := range store.lookups() {
					plans.check(q)
				}
				t.Logf("the highest cost is %.0f", plans.most)
			})
		}
	})
}

func grownID(i int) uuid.UUID {
	return uuid.UUID{12: byte(i >> 24), 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)}
}

// hot are the statements of a batch of n operations of every kind.
func hot(t *testing.T, store *Store, n int) (queries []query) {
	t.Helper()
	keys := ledger.Keys{Due: true, Stream: grownID(1), Page: ledger.Page{Writer: grownID(1), Limit: 500}}
	changes := &ledger.Changes{
		Accounts: map[ledger.Account]ledger.AccountRow{}, Holds: map[uuid.UUID]ledger.HoldRow{}, Calls: map[uuid.UUID]ledger.Call{},
		Refunds: map[ledger.Mark]int64{}, Sweep: &ledger.SweepRow{}, Rates: map[string]ledger.RateRow{}, Circuits: map[string]ledger.CircuitRow{},
	}
	for i := range n {
		account := ledger.Account{Scope: ledger.ScopeUser, ID: fmt.Sprintf("u%d", 7*i), Unit: ledger.Tokens}
		hold := grownID(50_000 + i)
		keys.Accounts, keys.Refunded, keys.Standing = append(keys.Accounts, account), append(keys.Refunded, account), append(keys.Standing, account)
		keys.Holds, keys.Ends, keys.Calls = append(keys.Holds, uuid.UUID{1, byte(i)}), append(keys.Ends, hold), append(keys.Calls, hold)
		keys.Idempotency = append(keys.Idempotency, ledger.IdempotencyKey{Owner: account.ID, Key: fmt.Sprintf("k%d", 7*i)})
		keys.Edges = append(keys.Edges, ledger.Edge{Account: account, Length: time.Hour}, ledger.Edge{Account: account, Length: 24 * time.Hour})
		keys.Totals = append(keys.Totals, ledger.Moment{Account: account, At: time.UnixMicro(1_100_000)})
		keys.Marks = append(keys.Marks, ledger.Mark{Account: account, Total: 35})
		keys.Refunds = append(keys.Refunds, ledger.Span{Account: account, Above: 10, UpTo: 90})
		rate, circuit := fmt.Sprintf("token/u%d/1m", 7*i), fmt.Sprintf("source/s%d", i%200)
		keys.Rates, keys.Circuits = append(keys.Rates, rate), append(keys.Circuits, circuit)
		keys.Counting, keys.Hearing = append(keys.Counting, circuit), append(keys.Hearing, circuit)
		changes.Rates[rate] = ledger.RateRow{OpenedAt: time.Unix(8, 0), ClosesAt: time.Unix(68, 0), Count: 2}
		changes.Circuits[circuit] = ledger.CircuitRow{Failures: 3, RetryAt: time.Unix(9, 0), Probe: hold, ProbeUntil: time.Unix(39, 0)}
		changes.Accounts[account] = ledger.AccountRow{Used: 2000, TouchedAt: time.Unix(9, 0)}
		changes.Holds[hold] = ledger.HoldRow{
			ID: hold, Call: hold, State: ledger.HoldSettled, Token: 2, Accounts: []ledger.Account{account}, EndedAt: time.Unix(9, 0),
			AdmittedAt: time.Unix(8, 0), Deadline: time.Unix(10, 0), Rates: []string{rate},
			Circuit: &ledger.Circuit{Key: circuit, Threshold: 3, CoolDown: 30 * time.Second},
		}
		changes.Calls[hold] = ledger.Call{ID: hold, State: ledger.Completed, CreatedAt: time.Unix(8, 0), EndedAt: time.Unix(9, 0)}
		changes.Charges = append(changes.Charges, ledger.ChargeRow{Account: account, Total: 2000, At: time.Unix(9, 0), Amount: 5})
		changes.Refunds[ledger.Mark{Account: account, Total: 10}] = 1
		changes.Records = append(changes.Records, ledger.Record{Writer: grownID(9), Number: int64(i + 1), Kind: ledger.ChargeRecord, Body: []byte(`{}`)})
		changes.Pruned.Holds = append(changes.Pruned.Holds, grownID(i))
		changes.Pruned.Calls = append(changes.Pruned.Calls, grownID(i))
		changes.Pruned.Charges = append(changes.Pruned.Charges, ledger.Mark{Account: account, Total: 10})
	}
	changes.Pruned.Stream, changes.Pruned.UpTo = grownID(1), 400
	writes, err := store.changes(changes, nil)
	if err != nil {
		t.Fatal(err)
	}
	queries = append(newLoad(store, keys, writing, nil).queries(), newLoad(store, keys, reading, nil).queries()...)
	return append(queries, writes...)
}

// lookups are the other statements that people and sinks wait for.
func (s *Store) lookups() []query {
	id, row := grownID(1), func(scan) error { return nil }
	var queries []query
	for _, lookup := range []struct {
		statement string
		args      []any
	}{
		{readCall, []any{id[:]}}, {readAttempts, []any{id[:]}}, {readByOwner, []any{"u7", 20}}, {readByName, []any{"u7", "c7", "c7", 20}},
		{readOfCall, []any{id[:]}}, {readTail, []any{20}}, {readRecords, []any{id[:], 100, 1000}}, {readStreams, nil},
		{pageAccounts, []any{"user/u1/tokens", 1000}}, {pageCharges, []any{"user/u1/tokens", 20, 1000}}, {pageHolds, []any{id[:], 1000}},
		{pageCalls, []any{id[:], 1000}}, {readLast, []any{id[:]}}, {readOldest, []any{id[:], 100}},
	} {
		queries = append(queries, s.read(row, lookup.statement, lookup.args...))
	}
	return queries
}

// planner asks a server for its plans.
type planner struct {
	t    *testing.T
	conn *pgx.Conn
	most float64 // the highest cost
}

// disabledCost is less than what a server up to PostgreSQL 17 adds to the cost of what is disabled, and more than any other cost here.
// Later ones say so instead.
const disabledCost = 1e9

func (p *planner) exec(text string) {
	p.t.Helper()
	if _, err := p.conn.Exec(context.Background(), text, pgx.QueryExecModeSimpleProtocol); err != nil {
		p.t.Fatalf("%v: %.300s", err, text)
	}
}

// plan is a node of a plan, of what matters here.
type plan struct {
	Type     string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Cond     string  `json:"Index Cond"`
	Cost     float64 `json:"Total Cost"`
	Disabled bool    `json:"Disabled"`
	Plans    []plan
}

// disabled says whether the plan needs what is disabled: there is no other.
func (p *plan) disabled() bool {
	return p.Disabled || p.Cost > disabledCost || slices.ContainsFunc(p.Plans, func(child plan) bool { return child.disabled() })
}

// check checks that no big table is read as a whole for a query.
func (p *planner) check(q query) {
	p.t.Helper()
	p.exec("PREPARE q AS " + q.text)
	defer p.exec("DEALLOCATE q")
	args := make([]string, len(q.args))
	for i, arg := range q.args {
		args[i] = literal(arg)
	}
	execute := "EXPLAIN (FORMAT JSON) EXECUTE q"
	if len(args) > 0 {
		execute += "(" + strings.Join(args, ", ") + ")"
	}
	var text string
	if err := p.conn.QueryRow(context.Background(), execute, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		p.t.Fatalf("%v: %.300s", err, execute)
	}
	var plans []struct{ Plan plan }
	if err := json.Unmarshal([]byte(text), &plans); err != nil || len(plans) != 1 {
		p.t.Fatal(err, text)
	}
	if plans[0].Plan.disabled() {
		p.t.Errorf("%d arguments: there is no plan but one that is disabled: %.400s", len(args), q.text)
	} else {
		p.most = max(p.most, plans[0].Plan.Cost)
	}
	if read := plans[0].Plan.scanned(); len(read) > 0 {
		p.t.Errorf("%d arguments: reads all of %v: %.400s", len(args), read, q.text)
	}
}

// big are the tables that grow.
var big = map[string]bool{
	"ledger_account": true, "ledger_charge": true, "ledger_hold": true, "ledger_call": true, "ledger_record": true, "ledger_rate": true,
}

func (p *plan) scanned() (tables []string) {
	sought := p.Cond != "" || strings.HasPrefix(p.Type, "Bitmap") || p.Type == "ModifyTable" || p.Type == "LockRows"
	if big[p.Relation] && !sought {
		tables = append(tables, p.Type+" "+p.Relation)
	}
	if p.Type == "Limit" { // in the order of an index
		for i := range p.Plans {
			if strings.HasPrefix(p.Plans[i].Type, "Index") {
				p.Plans[i].Cond = "limited"
			}
		}
	}
	for _, child := range p.Plans {
		tables = append(tables, child.scanned()...)
	}
	return tables
}

// literal writes an argument into a statement.
func literal(arg any) string {
	switch arg := arg.(type) {
	case nil:
		return "NULL"
	case []byte:
		return `'\x` + hex.EncodeToString(arg) + `'`
	case *int64:
		if arg == nil {
			return "NULL"
		}
		return fmt.Sprint(*arg)
	case string:
		return "'" + strings.ReplaceAll(arg, "'", "''") + "'"
	}
	return fmt.Sprint(arg)
}
