package sqldb

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// refundsReach is how far back charges are looked at for refunds: no window reaches further, in microseconds.
const refundsReach = int64((ledger.LengthMax + 24*time.Hour) / time.Microsecond)

// load reads the rows that keys name in one exchange. A transaction that writes makes what does not exist first, then locks what it
// reads, the tables in one order and each in the order of its keys: accounts, rates, circuits, holds. Each statement sees all that was
// committed before the locks of the one before it were obtained.
func (s *Store) load(keys ledger.Keys, access access, clock any, exchange func([]query) error) (*load, error) {
	l := newLoad(s, keys, access, clock)
	if err := exchange(l.queries()); err != nil {
		return nil, err
	}
	return l, l.complete()
}

// load is one exchange's reading.
type load struct {
	*Store
	keys  ledger.Keys
	locks bool // and makes
	clock any
	rows  *ledger.Rows

	// accounts are those that were named, by text; met are those that were found, the ones that were never touched among them.
	accounts map[string]ledger.Account
	met      map[string]bool
	metRates map[string]bool
	// untouched are those that are only there to be locked.
	untouched []string
	ends      list
}

func newLoad(s *Store, keys ledger.Keys, access access, clock any) *load {
	l := &load{
		Store: s, keys: keys, locks: access == writing && s.dialect.rows, clock: clock,
		accounts: make(map[string]ledger.Account, len(keys.Accounts)), met: make(map[string]bool, len(keys.Accounts)),
		metRates: make(map[string]bool, len(keys.Rates)),
		rows: &ledger.Rows{
			Accounts:    make(map[ledger.Account]ledger.AccountRow, len(keys.Accounts)),
			Holds:       make(map[uuid.UUID]ledger.HoldRow, len(keys.Holds)+len(keys.Ends)),
			Calls:       make(map[uuid.UUID]ledger.Call, len(keys.Calls)+len(keys.Ends)),
			Rates:       make(map[string]ledger.RateRow, len(keys.Rates)),
			Circuits:    make(map[string]ledger.CircuitRow, len(keys.Circuits)),
			Idempotency: make(map[ledger.IdempotencyKey]uuid.UUID, len(keys.Idempotency)),
			Standing:    make(map[ledger.Account][]uuid.UUID, len(keys.Standing)),
			Totals:      make(map[ledger.Moment]int64, len(keys.Totals)+len(keys.Edges)),
			Marks:       make(map[ledger.Mark]ledger.ChargeRow, len(keys.Marks)),
			Refunds:     make(map[ledger.Span]int64, len(keys.Refunds)),
			Refunded:    make(map[ledger.Account][]ledger.ChargeRow, len(keys.Refunded)),
			Amendments:  make(map[uuid.UUID]ledger.AmendmentRow, len(keys.Amendments)),
		},
	}
	for _, account := range keys.Accounts {
		l.accounts[account.String()] = account
	}
	l.ends = ids(keys.Ends)
	return l
}

// ids are arguments, each once and in order.
func ids(keys []uuid.UUID) list {
	keys = slices.Clone(keys)
	slices.SortFunc(keys, compareIDs)
	return ofOne(slices.Compact(keys), func(id uuid.UUID) any { return id[:] })
}

// texts are arguments, each once and in order: rows are locked in one order by everybody.
func texts(keys []string) list {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	return ofOne(slices.Compact(keys), func(key string) any { return key })
}

// queries are all that has to be asked.
func (l *load) queries() (queries []query) {
	add := func(asked bool, q func() []query) {
		if asked {
			queries = append(queries, q()...)
		}
	}
	k := &l.keys
	ending := len(k.Ends) > 0 || k.Due
	add(true, l.readClock)
	add(len(l.accounts) > 0 || ending, l.readAccounts)
	add(len(k.Rates)+len(k.Ends) > 0, l.readRates)
	add(len(k.Circuits)+len(k.Counting)+len(k.Hearing)+len(k.Ends) > 0, l.readCircuits)
	add(len(k.Holds) > 0 || ending, l.readHolds)
	add(len(k.Calls) > 0 || ending, l.readCalls)
	add(len(k.Idempotency) > 0, l.readByKey)
	add(k.Stream != uuid.Nil, l.readLast)
	add(len(k.Edges) > 0, l.readEdges)
	add(len(k.Refunded) > 0, l.readRefunded)
	add(len(k.Totals) > 0, l.readTotals)
	add(len(k.Marks) > 0, l.readMarks)
	add(len(k.Refunds) > 0, l.readRefunds)
	add(len(k.Standing) > 0, l.readStanding)
	add(len(k.Amendments) > 0, l.readAmendments)
	add(k.Page.Limit > 0, l.readPage)
	return queries
}

func one(q query) []query { return []query{q} }

// readMax is the most rows in a list of one statement that reads: filled up and at three arguments each, far below what databases take.
const readMax = 4096

// inParts asks for keys, each once, by as many statements as it takes.
func inParts[K comparable](keys []K, ask func([]K) query) (queries []query) {
	seen := make(map[K]bool, len(keys))
	distinct := make([]K, 0, len(keys))
	for _, key := range keys {
		if !seen[key] {
			seen[key] = true
			distinct = append(distinct, key)
		}
	}
	for part := range slices.Chunk(distinct, readMax) {
		queries = append(queries, ask(part))
	}
	return queries
}

// parts are a statement that reads what is named, what is of the holds that end, and what is of those that are due.
type parts struct {
	read, named, ends, due string
	// after ends it; last are its arguments.
	after string
	last  []any
}

// names puts a statement together of the parts that are asked for.
func (l *load) names(p parts, named list, row func(scan) error) query {
	statement, args := p.read+p.named, []any{named}
	if p.ends != "" && len(l.ends) > 0 {
		statement, args = statement+p.ends, append(args, l.ends)
	}
	if p.due != "" && l.keys.Due {
		statement, args = statement+p.due, append(args, l.clock, ledger.DueMax)
	}
	return l.read(row, statement+p.after, append(args, p.last...)...)
}

func (l *load) readClock() []query {
	statement := readSweep
	if l.keys.Sweep {
		statement = lockSweep
	}
	return one(l.read(func(scan scan) error {
		sweep := &l.rows.Sweep
		return scan(micros{&l.rows.Now}, id{&sweep.Sweeper}, &sweep.Epoch, micros{&sweep.Until}, micros{&sweep.SweptAt}, micros{&sweep.SuspendedUntil})
	}, statement, l.clock))
}

func (l *load) readAccounts() (queries []query) {
	p, named := parts{read: readAccounts, named: textsNamed, after: ")"}, texts(slices.Collect(maps.Keys(l.accounts)))
	if l.locks {
		queries = l.write(makeAccounts, l.seen.unseen(named))
		p.after = lockAccounts
	}
	for len(named) > readMax {
		queries = append(queries, l.read(l.account, p.read+p.named+p.after, named[:readMax]))
		named = named[readMax:]
	}
	p.ends, p.due = accountsEnd, accountsDue
	return append(queries, l.names(p, named, l.account))
}

func (l *load) account(scan scan) error {
	var key string
	var row ledger.AccountRow
	err := scan(&key, &row.Used, &row.Held, &row.Refunds, &row.Refunded, &row.Floor, micros{&row.TouchedAt}, micros{&row.ChargedAt},
		text{&row.Month.Zone}, micros{&row.Month.Ends}, openings{&row.Openings})
	if err != nil {
		return err
	}
	l.met[key] = true
	if row.TouchedAt.IsZero() {
		l.untouched = append(l.untouched, key)
		return nil
	}
	if l.locks {
		l.seen.add(key)
	}
	account, err := l.parse(key)
	l.rows.Accounts[account] = row
	return err
}

// parse reads an account's text, which mostly is one of those that were named.
func (l *load) parse(key string) (ledger.Account, error) {
	if account, named := l.accounts[key]; named {
		return account, nil
	}
	return parseAccount(key)
}

func parseAccount(key string) (account ledger.Account, err error) {
	if err = account.UnmarshalText([]byte(key)); err != nil {
		err = fmt.Errorf("account %q: %w", key, err)
	}
	return account, err
}

func (l *load) readRates() (queries []query) {
	p, named := parts{read: readRates, named: textsNamed, ends: ratesEnd, after: ")"}, texts(l.keys.Rates)
	if l.locks {
		queries = l.write(makeRates, named)
		p.after = lockRates
	}
	return append(queries, l.names(p, named, func(scan scan) error {
		var key string
		var row ledger.RateRow
		if err := scan(&key, micros{&row.OpenedAt}, micros{&row.ClosesAt}, &row.Count); err != nil {
			return err
		}
		l.metRates[key] = true
		if row != (ledger.RateRow{}) {
			l.rows.Rates[key] = row
		}
		return nil
	}))
}

func (l *load) readCircuits() (queries []query) {
	k := &l.keys
	p := parts{read: readCircuits, named: textsNamed, ends: circuitsEnd, after: ")"}
	if l.locks {
		queries = l.write(makeCircuits, texts(slices.Concat(k.Circuits, k.Counting)))
		p.after = lockCircuits
	}
	if len(k.Counting) > 0 {
		p.after, p.last = orCounting+p.after, append(p.last, texts(k.Counting))
	}
	if len(k.Failing) > 0 {
		p.after, p.last = orFailing+p.after, append([]any{ids(k.Failing)}, p.last...)
	}
	p.after = withFailures + p.after
	return append(queries, l.names(p, texts(slices.Concat(k.Circuits, k.Counting, k.Hearing)), func(scan scan) error {
		var key string
		var row ledger.CircuitRow
		if err := scan(&key, &row.Failures, micros{&row.RetryAt}, id{&row.Probe}, micros{&row.ProbeUntil}); err != nil {
			return err
		}
		l.rows.Circuits[key] = row
		return nil
	}))
}

func (l *load) readHolds() []query {
	p := parts{read: readHolds, named: idsNamed, due: holdsDue, after: ")"}
	if l.locks {
		p.after = lockHolds
	}
	return one(l.names(p, ids(slices.Concat(l.keys.Holds, l.keys.Ends)), l.hold))
}

func (l *load) hold(scan scan) error {
	hold, err := scanHold(scan)
	l.rows.Holds[hold.ID] = hold
	return err
}

func (l *load) readCalls() []query {
	p := parts{read: readCalls, named: idsNamed, ends: callsEnd, due: callsDue, after: ")"}
	return one(l.names(p, ids(l.keys.Calls), l.call))
}

func (l *load) call(scan scan) error {
	call, err := scanCall(scan)
	l.rows.Calls[call.ID] = call
	return err
}

func (l *load) readByKey() []query {
	named := make(list, len(l.keys.Idempotency))
	for i, key := range l.keys.Idempotency {
		named[i] = []any{key.Owner, key.Key}
	}
	return one(l.read(func(scan scan) error {
		call, err := scanCall(scan)
		l.rows.Calls[call.ID] = call
		l.rows.Idempotency[ledger.IdempotencyKey{Owner: call.Owner, Key: call.IdempotencyKey}] = call.ID
		return err
	}, readByKey, named))
}

func (l *load) readLast() []query {
	return one(l.read(func(scan scan) error { return scan(&l.rows.Last) }, readLast, l.keys.Stream[:]))
}

func (l *load) readEdges() []query {
	named := texts(slices.Collect(maps.Keys(l.accounts)))
	named = named[:min(len(named), readMax)] // of more, the newest entry may be another's: that decision reads on
	return inParts(l.keys.Edges, func(edges []ledger.Edge) query {
		return l.read(l.total, readEdges, l.clock, named, listOf(edges, func(edge ledger.Edge) []any {
			return []any{edge.Account.String(), edge.Length.Microseconds()}
		}), l.clock)
	})
}

func (l *load) readTotals() []query {
	return inParts(l.keys.Totals, func(moments []ledger.Moment) query {
		return l.read(l.total, readTotals, listOf(moments, func(moment ledger.Moment) []any {
			return []any{moment.Account.String(), moment.At.UnixMicro()}
		}))
	})
}

func (l *load) total(scan scan) error {
	var key string
	var moment ledger.Moment
	var total int64
	err := scan(&key, micros{&moment.At}, &total)
	if err != nil {
		return err
	}
	moment.Account, err = l.parse(key)
	l.rows.Totals[moment] = total
	return err
}

func (l *load) readRefunded() []query {
	for _, account := range l.keys.Refunded {
		l.rows.Refunded[account] = nil
	}
	return inParts(l.keys.Refunded, func(accounts []ledger.Account) query {
		named := ofOne(accounts, func(account ledger.Account) any { return account.String() })
		return l.read(func(scan scan) error {
			charge, err := l.charge(scan)
			l.rows.Refunded[charge.Account] = append(l.rows.Refunded[charge.Account], charge)
			return err
		}, readRefunded, named, l.clock, refundsReach)
	})
}

// charge scans a charge after its account and what else stands before it.
func (l *load) charge(scan scan, before ...any) (charge ledger.ChargeRow, err error) {
	var key string
	columns := append([]any{&key}, before...)
	if err := scan(append(columns, &charge.Total, micros{&charge.At}, &charge.Amount, &charge.Refunded)...); err != nil {
		return charge, err
	}
	charge.Account, err = l.parse(key)
	return charge, err
}

func (l *load) readMarks() []query {
	marks := make(list, len(l.keys.Marks))
	for i, mark := range l.keys.Marks {
		marks[i] = []any{mark.Account.String(), mark.Total}
	}
	return one(l.read(func(scan scan) error {
		var total int64
		charge, err := l.charge(scan, &total)
		l.rows.Marks[ledger.Mark{Account: charge.Account, Total: total}] = charge
		return err
	}, readMarks, marks))
}

func (l *load) readRefunds() []query {
	spans := make(list, len(l.keys.Refunds))
	for i, span := range l.keys.Refunds {
		spans[i] = []any{span.Account.String(), span.Above, span.UpTo}
	}
	return one(l.read(func(scan scan) error {
		var key string
		var span ledger.Span
		var sum int64
		err := scan(&key, &span.Above, &span.UpTo, &sum)
		if err != nil {
			return err
		}
		span.Account, err = l.parse(key)
		l.rows.Refunds[span] = sum
		return err
	}, readRefunds, spans))
}

func (l *load) readStanding() []query {
	for _, account := range l.keys.Standing {
		l.rows.Standing[account] = []uuid.UUID{}
	}
	accounts := ofOne(l.keys.Standing, func(account ledger.Account) any { return account.String() })
	return one(l.read(func(scan scan) error {
		var key string
		hold, err := scanHold(scan.after(&key))
		if err != nil {
			return err
		}
		account, err := l.parse(key)
		l.rows.Holds[hold.ID] = hold
		l.rows.Standing[account] = append(l.rows.Standing[account], hold.ID)
		return err
	}, readStanding, accounts))
}

func (l *load) readAmendments() []query {
	return one(l.read(func(scan scan) error {
		var named uuid.UUID
		var row ledger.AmendmentRow
		err := scan(id{&named}, digest{&row.Digest})
		l.rows.Amendments[named] = row
		return err
	}, readAmendments, ids(l.keys.Amendments)))
}

func (l *load) readPage() []query {
	return one(l.read(record(&l.rows.Page), readRecords, l.keys.Page.Writer[:], l.keys.Page.After, l.keys.Page.Limit))
}

// errGone is a row that went between its making and its locking: it is made again in another transaction.
var errGone = errors.New("sqldb: a row was removed while it was being locked")

// complete sees that what was to be locked was, and lists what is due.
func (l *load) complete() error {
	if l.locks {
		gone := false
		for key := range l.accounts {
			if !l.met[key] {
				l.seen.remove(key)
				gone = true
			}
		}
		for _, key := range l.keys.Rates {
			gone = gone || !l.metRates[key]
		}
		if gone {
			return &failure{err: errGone}
		}
	}
	if !l.keys.Due {
		return nil
	}
	for _, hold := range l.rows.Holds {
		if hold.State == ledger.HoldLive && !hold.Deadline.After(l.rows.Now) && l.has(hold) {
			l.rows.Due = append(l.rows.Due, hold.ID)
		}
	}
	slices.SortFunc(l.rows.Due, func(a, b uuid.UUID) int {
		if order := l.rows.Holds[a].Deadline.Compare(l.rows.Holds[b].Deadline); order != 0 {
			return order
		}
		return compareIDs(a, b)
	})
	return nil
}

// has says whether all that ending a hold changes was read. What came to be due while others were waited for is left for the next.
func (l *load) has(hold ledger.HoldRow) bool {
	for _, account := range hold.Accounts {
		if _, read := l.rows.Accounts[account]; !read {
			return false
		}
	}
	_, read := l.rows.Calls[hold.Call]
	return read || hold.Call == uuid.Nil
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
