// Package memory is a ledger store in the process's memory: for tests, and for a host whose limits need not outlive it or be
// shared with another process.
package memory

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"regent/ledger"
)

// endedMax bounds the calls that have ended and are still remembered, and with them their attempts and records: at 1 KB
// each about 64 MB.
const endedMax = 1 << 16

// Store is a [ledger.Store]. Use New.
type Store struct {
	now func() time.Time

	mu          sync.Mutex // guards all below, for the whole of a transaction
	accountsMax int
	recent      *simplelru.LRU[ledger.Account, struct{}] // accounts, the one used longest ago first
	accounts    map[ledger.Account]ledger.AccountRow
	holds       map[uuid.UUID]ledger.HoldRow
	calls       map[uuid.UUID]ledger.Call
	attempts    map[uuid.UUID][]uuid.UUID // the holds of a call, in order
	order       []uuid.UUID               // calls, oldest first
	endedHolds  []uuid.UUID               // holds of no call that have ended, oldest first
	idempotency map[ledger.IdempotencyKey]uuid.UUID
	standing    map[ledger.Account]map[uuid.UUID]bool
	deadlines   deadlines
	charges     map[ledger.Account][]ledger.ChargeRow // by total
	refunds     map[ledger.Account]map[int64]int64    // of charges, by total
	records     map[uuid.UUID][]ledger.Record
	cursors     map[cursor]int64
	amendments  map[uuid.UUID]ledger.AmendmentRow
	amended     []uuid.UUID // amendments, oldest first
	sweep       ledger.SweepRow
	gates       gates
	activations activations
}

type cursor struct {
	sink   string
	writer uuid.UUID
}

var _ ledger.Store = (*Store)(nil)

// New makes an empty store with the default bounds. now is its clock; nil is the system's.
func New(now func() time.Time) *Store {
	if now == nil {
		now = time.Now
	}
	return &Store{
		now:         now,
		accountsMax: accountsDefault,
		recent:      unbounded[ledger.Account, struct{}](),
		accounts:    map[ledger.Account]ledger.AccountRow{},
		holds:       map[uuid.UUID]ledger.HoldRow{},
		calls:       map[uuid.UUID]ledger.Call{},
		attempts:    map[uuid.UUID][]uuid.UUID{},
		idempotency: map[ledger.IdempotencyKey]uuid.UUID{},
		standing:    map[ledger.Account]map[uuid.UUID]bool{},
		charges:     map[ledger.Account][]ledger.ChargeRow{},
		refunds:     map[ledger.Account]map[int64]int64{},
		records:     map[uuid.UUID][]ledger.Record{},
		cursors:     map[cursor]int64{},
		amendments:  map[uuid.UUID]ledger.AmendmentRow{},
		gates:       newGates(),
		activations: activations{recent: unbounded[[32]byte, activation]()},
	}
}

// Update runs decide while nothing else reads or writes. Nothing is written before Save, so an error leaves no trace.
func (s *Store) Update(_ context.Context, decide func(ledger.Tx) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return decide(tx{s, s.clock()})
}

// Load reads rows.
func (s *Store) Load(_ context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.load(keys, s.clock()), nil
}

func (s *Store) clock() time.Time { return s.now().UTC().Truncate(time.Microsecond) }

// tx is a transaction: the store, locked, at one reading of the clock.
type tx struct {
	*Store
	now time.Time
}

func (t tx) Load(_ context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	return t.load(keys, t.now), nil
}

func (t tx) Save(_ context.Context, changes *ledger.Changes) error {
	t.save(changes)
	return nil
}

func (s *Store) load(keys ledger.Keys, now time.Time) *ledger.Rows {
	rows := &ledger.Rows{
		Now:         now,
		Accounts:    make(map[ledger.Account]ledger.AccountRow, len(keys.Accounts)),
		Holds:       make(map[uuid.UUID]ledger.HoldRow, len(keys.Holds)),
		Calls:       make(map[uuid.UUID]ledger.Call, len(keys.Calls)),
		Idempotency: map[ledger.IdempotencyKey]uuid.UUID{},
		Standing:    map[ledger.Account][]uuid.UUID{},
		Sweep:       s.sweep,
	}
	s.loadAccounts(keys.Accounts, rows)
	for _, id := range keys.Holds {
		if row, ok := s.holds[id]; ok {
			rows.Holds[id] = row
		}
	}
	s.loadCalls(keys.Calls, rows)
	for _, id := range keys.Ends {
		s.loadEnd(id, rows)
	}
	for _, key := range keys.Idempotency {
		if id, ok := s.idempotency[key]; ok {
			rows.Idempotency[key] = id
			rows.Calls[id] = s.calls[id]
		}
	}
	for _, account := range keys.Standing {
		rows.Standing[account] = []uuid.UUID{}
		for id := range s.standing[account] {
			rows.Standing[account] = append(rows.Standing[account], id)
			rows.Holds[id] = s.holds[id]
		}
	}
	for _, id := range keys.Amendments {
		if row, ok := s.amendments[id]; ok {
			put(&rows.Amendments, id, row)
		}
	}
	if keys.Page.Limit > 0 {
		rows.Page = s.page(keys.Page.Writer, keys.Page.After, keys.Page.Limit)
	}
	if keys.Due {
		s.loadDue(rows)
	}
	s.loadPast(keys, rows)
	s.loadGates(keys, rows)
	if stream := s.records[keys.Stream]; len(stream) > 0 {
		rows.Last = stream[len(stream)-1].Number
	}
	return rows
}

func (s *Store) loadAccounts(accounts []ledger.Account, rows *ledger.Rows) {
	for _, account := range accounts {
		if row, ok := s.accounts[account]; ok {
			rows.Accounts[account] = row
		}
	}
}

func (s *Store) loadCalls(calls []uuid.UUID, rows *ledger.Rows) {
	for _, id := range calls {
		if row, ok := s.calls[id]; ok {
			rows.Calls[id] = row
		}
	}
}

// loadEnd reads a hold with the rows that its end changes.
func (s *Store) loadEnd(id uuid.UUID, rows *ledger.Rows) {
	hold, ok := s.holds[id]
	if !ok {
		return
	}
	rows.Holds[id] = hold
	s.loadAccounts(hold.Accounts, rows)
	s.loadCalls([]uuid.UUID{hold.Call}, rows)
}

// loadPast reads what keys ask of charges.
func (s *Store) loadPast(keys ledger.Keys, rows *ledger.Rows) {
	for _, moment := range slices.Concat(keys.Totals, moments(keys.Edges, rows)) {
		charges := s.charges[moment.Account]
		after := sort.Search(len(charges), func(i int) bool { return charges[i].At.After(moment.At) })
		if after > 0 {
			put(&rows.Totals, moment, charges[after-1].Total)
		} else {
			put(&rows.Totals, moment, 0)
		}
	}
	for _, account := range keys.Refunded {
		var charges []ledger.ChargeRow
		for total, amount := range s.refunds[account] {
			charges = append(charges, ledger.ChargeRow{Account: account, Total: total, Refunded: amount})
		}
		slices.SortFunc(charges, func(a, b ledger.ChargeRow) int { return cmp.Compare(a.Total, b.Total) })
		put(&rows.Refunded, account, charges)
	}
	for _, mark := range keys.Marks {
		charges := s.charges[mark.Account]
		first := sort.Search(len(charges), func(i int) bool { return charges[i].Total >= mark.Total })
		if first < len(charges) {
			charge := charges[first]
			charge.Refunded = s.refunds[mark.Account][charge.Total]
			put(&rows.Marks, mark, charge)
		}
	}
	for _, span := range keys.Refunds {
		var sum int64
		for total, amount := range s.refunds[span.Account] {
			if total > span.Above && total <= span.UpTo {
				sum += amount
			}
		}
		put(&rows.Refunds, span, sum)
	}
}

// moments are those at which windows begin that end now, or at the newest entry of what was read.
func moments(edges []ledger.Edge, rows *ledger.Rows) (found []ledger.Moment) {
	newest := rows.Now
	for _, row := range rows.Accounts {
		if row.TouchedAt.After(newest) {
			newest = row.TouchedAt
		}
	}
	for _, edge := range edges {
		found = append(found, ledger.Moment{Account: edge.Account, At: rows.Now.Add(-edge.Length)})
		if newest.After(rows.Now) {
			found = append(found, ledger.Moment{Account: edge.Account, At: newest.Add(-edge.Length)})
		}
	}
	return found
}

func put[K comparable, V any](to *map[K]V, key K, value V) {
	if *to == nil {
		*to = map[K]V{}
	}
	(*to)[key] = value
}

// loadDue adds the live holds whose deadline has passed. Entries of the heap that a renewal or an end has overtaken are
// dropped on the way.
func (s *Store) loadDue(rows *ledger.Rows) {
	var due []deadline
	for len(s.deadlines) > 0 && !s.deadlines[0].at.After(rows.Now) && len(due) < ledger.DueMax {
		next := heap.Pop(&s.deadlines).(deadline)
		if hold := s.holds[next.hold]; hold.State == ledger.HoldLive && hold.Deadline.Equal(next.at) {
			due = append(due, next)
			rows.Due = append(rows.Due, next.hold)
			s.loadEnd(next.hold, rows)
		}
	}
	for _, next := range due { // still due until a transaction has ended them
		heap.Push(&s.deadlines, next)
	}
}

func (s *Store) save(changes *ledger.Changes) {
	for account, row := range changes.Accounts {
		s.accounts[account] = row
		s.recent.Add(account, struct{}{})
	}
	for _, charge := range changes.Charges {
		s.saveCharge(charge)
	}
	for mark, amount := range changes.Refunds {
		if s.refunds[mark.Account] == nil {
			s.refunds[mark.Account] = map[int64]int64{}
		}
		s.refunds[mark.Account][mark.Total] += amount
	}
	for _, call := range changes.Calls {
		s.saveCall(call)
	}
	for _, hold := range changes.Holds {
		s.saveHold(hold)
	}
	for id, row := range changes.Amendments {
		s.amendments[id] = row
		s.amended = append(s.amended, id)
	}
	if changes.Sweep != nil {
		s.sweep = *changes.Sweep
	}
	for _, record := range changes.Records {
		s.records[record.Writer] = append(s.records[record.Writer], record)
	}
	s.gates.save(changes, s.clock())
	s.prune(changes.Pruned)
	s.evict()
	s.forget()
}

// chargesMax bounds the charges that are remembered of an account: 6 MB of the busiest.
const chargesMax = 1 << 16

func (s *Store) saveCharge(charge ledger.ChargeRow) {
	charges := append(s.charges[charge.Account], charge)
	if len(charges) > chargesMax {
		charges = thin(charges)
		for total := range s.refunds[charge.Account] {
			if total < charges[0].Total {
				delete(s.refunds[charge.Account], total)
			}
		}
	}
	s.charges[charge.Account] = charges
}

// thin forgets what no window reaches any more, but for the newest of it, whose total is where the longest window begins. If that
// is little, it merges pairs of the older half: a charge that is merged into the one after it leaves its windows later than it
// should, never earlier.
func thin(charges []ledger.ChargeRow) []ledger.ChargeRow {
	reach := charges[len(charges)-1].At.Add(-ledger.LengthMax)
	begin := max(0, sort.Search(len(charges), func(i int) bool { return charges[i].At.After(reach) })-1)
	kept := slices.Clone(charges[begin:])
	if len(kept) <= chargesMax/2 {
		return kept
	}
	older := len(kept) / 2
	merged := kept[:1]
	for i := 2; i < older; i += 2 {
		merged = append(merged, kept[i])
	}
	return append(merged, kept[older:]...)
}

func (s *Store) saveCall(call ledger.Call) {
	if _, known := s.calls[call.ID]; !known {
		s.order = append(s.order, call.ID)
	}
	s.calls[call.ID] = call
	if call.IdempotencyKey == "" {
		return
	}
	key := ledger.IdempotencyKey{Owner: call.Owner, Key: call.IdempotencyKey}
	if call.State == ledger.Held || call.State == ledger.Completed {
		s.idempotency[key] = call.ID
	} else if s.idempotency[key] == call.ID {
		delete(s.idempotency, key)
	}
}

func (s *Store) saveHold(hold ledger.HoldRow) {
	before, known := s.holds[hold.ID]
	s.holds[hold.ID] = hold
	if !known && hold.Call != uuid.Nil {
		s.attempts[hold.Call] = append(s.attempts[hold.Call], hold.ID)
		slices.SortFunc(s.attempts[hold.Call], func(a, b uuid.UUID) int {
			return cmp.Or(s.holds[a].AdmittedAt.Compare(s.holds[b].AdmittedAt), slices.Compare(a[:], b[:]))
		})
	}
	if hold.State != ledger.HoldLive {
		for _, account := range hold.Accounts {
			delete(s.standing[account], hold.ID)
			if len(s.standing[account]) == 0 {
				delete(s.standing, account)
			}
		}
		if hold.Call == uuid.Nil && before.State == ledger.HoldLive {
			s.endedHolds = append(s.endedHolds, hold.ID)
		}
		return
	}
	if !known || !hold.Deadline.Equal(before.Deadline) {
		heap.Push(&s.deadlines, deadline{hold.Deadline, hold.ID})
	}
	for _, account := range hold.Accounts {
		if s.standing[account] == nil {
			s.standing[account] = map[uuid.UUID]bool{}
		}
		s.standing[account][hold.ID] = true
	}
}

// forget drops the oldest of what has ended, beyond the bound. Accounts and what is live are kept.
func (s *Store) forget() {
	for len(s.endedHolds) > endedMax {
		delete(s.holds, s.endedHolds[0])
		s.endedHolds = s.endedHolds[1:]
	}
	for len(s.amended) > endedMax {
		delete(s.amendments, s.amended[0])
		s.amended = s.amended[1:]
	}
	for len(s.order) > endedMax && s.calls[s.order[0]].State != ledger.Held {
		for _, hold := range s.attempts[s.order[0]] {
			delete(s.holds, hold)
		}
		s.forgetCall(s.order[0])
		s.order = s.order[1:]
	}
	for writer, records := range s.records {
		if excess := len(records) - 4*endedMax; excess > 0 { // a call writes about 3 records
			s.records[writer] = records[excess:]
		}
	}
}

func (s *Store) forgetCall(id uuid.UUID) {
	call := s.calls[id]
	delete(s.attempts, id)
	delete(s.calls, id)
	key := ledger.IdempotencyKey{Owner: call.Owner, Key: call.IdempotencyKey}
	if s.idempotency[key] == id {
		delete(s.idempotency, key)
	}
}

// prune removes what a transaction no longer keeps. Views share what is removed from, so it is copied.
func (s *Store) prune(pruned ledger.Pruned) {
	if pruned.UpTo == 0 {
		return
	}
	records := s.records[pruned.Stream]
	s.records[pruned.Stream] = slices.Clone(records[place(records, pruned.UpTo+1):])
	holds := map[uuid.UUID]bool{}
	for _, id := range pruned.Holds {
		holds[id] = true
		call := s.holds[id].Call
		s.attempts[call] = slices.DeleteFunc(s.attempts[call], func(attempt uuid.UUID) bool { return attempt == id })
		delete(s.holds, id)
	}
	s.endedHolds = slices.DeleteFunc(s.endedHolds, func(id uuid.UUID) bool { return holds[id] })
	calls := map[uuid.UUID]bool{}
	for _, id := range pruned.Calls {
		calls[id] = true
		s.forgetCall(id)
	}
	s.order = slices.DeleteFunc(s.order, func(id uuid.UUID) bool { return calls[id] })
	amendments := map[uuid.UUID]bool{}
	for _, id := range pruned.Amendments {
		amendments[id] = true
		delete(s.amendments, id)
	}
	s.amended = slices.DeleteFunc(s.amended, func(id uuid.UUID) bool { return amendments[id] })
	s.pruneCharges(pruned.Charges)
}

func (s *Store) pruneCharges(marks []ledger.Mark) {
	gone := map[ledger.Account]map[int64]bool{}
	for _, mark := range marks {
		if gone[mark.Account] == nil {
			gone[mark.Account] = map[int64]bool{}
		}
		gone[mark.Account][mark.Total] = true
		delete(s.refunds[mark.Account], mark.Total)
	}
	for account, totals := range gone {
		charges := slices.Clone(s.charges[account])
		s.charges[account] = slices.DeleteFunc(charges, func(c ledger.ChargeRow) bool { return totals[c.Total] })
	}
}

// Call reads one call.
func (s *Store) Call(_ context.Context, id uuid.UUID) (ledger.CallReport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call, ok := s.calls[id]
	if !ok {
		return ledger.CallReport{}, ledger.ErrNotFound
	}
	return s.report(call), nil
}

// Calls reads calls, newest first.
func (s *Store) Calls(_ context.Context, query ledger.CallQuery) ([]ledger.CallReport, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var reports []ledger.CallReport
	for _, id := range slices.Backward(s.order) {
		call := s.calls[id]
		wanted := query.ClientRequestID == "" || query.ClientRequestID == call.ClientRequestID || query.ClientRequestID == call.IdempotencyKey
		if call.Owner == query.Owner && wanted && len(reports) < query.Limit {
			reports = append(reports, s.report(call))
		}
	}
	return reports, nil
}

func (s *Store) report(call ledger.Call) ledger.CallReport {
	report := ledger.CallReport{Call: call}
	for _, id := range s.attempts[call.ID] {
		report.Attempts = append(report.Attempts, s.holds[id].Attempt())
	}
	return report
}

// Streams lists the journal's streams.
func (s *Store) Streams(context.Context) ([]ledger.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var streams []ledger.Stream
	for writer, records := range s.records {
		streams = append(streams, ledger.Stream{Writer: writer, Last: records[len(records)-1].Number})
	}
	slices.SortFunc(streams, func(a, b ledger.Stream) int { return slices.Compare(a.Writer[:], b.Writer[:]) })
	return streams, nil
}

// Records reads a stream.
func (s *Store) Records(_ context.Context, writer uuid.UUID, after int64, limit int) ([]ledger.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.page(writer, after, limit), nil
}

func (s *Store) page(writer uuid.UUID, after int64, limit int) []ledger.Record {
	records := s.records[writer]
	from := place(records, after+1)
	return slices.Clone(records[from:min(len(records), from+limit)])
}

// place is where a number is among records, or would be.
func place(records []ledger.Record, number int64) int {
	at, _ := slices.BinarySearchFunc(records, number, func(r ledger.Record, number int64) int { return cmp.Compare(r.Number, number) })
	return at
}

// Oldest is the earliest time of the records of a stream above a number.
func (s *Store) Oldest(_ context.Context, writer uuid.UUID, after int64) (oldest time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	records := s.records[writer]
	for _, record := range records[place(records, after+1):] {
		if oldest.IsZero() || record.At.Before(oldest) {
			oldest = record.At
		}
	}
	return oldest, nil
}

// Tail reads the newest records.
func (s *Store) Tail(_ context.Context, limit int) ([]ledger.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tail []ledger.Record
	for _, records := range s.records {
		tail = append(tail, records[max(0, len(records)-limit):]...)
	}
	sortRecords(tail)
	return tail[max(0, len(tail)-limit):], nil
}

// CallRecords reads the records of a call.
func (s *Store) CallRecords(_ context.Context, call uuid.UUID) ([]ledger.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []ledger.Record
	for _, records := range s.records {
		for _, record := range records {
			if record.Call == call {
				found = append(found, record)
			}
		}
	}
	sortRecords(found)
	return found, nil
}

func sortRecords(records []ledger.Record) {
	slices.SortFunc(records, func(a, b ledger.Record) int {
		return cmp.Or(a.At.Compare(b.At), slices.Compare(a.Writer[:], b.Writer[:]), cmp.Compare(a.Number, b.Number))
	})
}

// Cursor is how far a sink has read.
func (s *Store) Cursor(_ context.Context, sink string, writer uuid.UUID) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cursors[cursor{sink, writer}], nil
}

// SetCursor moves a sink's cursor.
func (s *Store) SetCursor(_ context.Context, sink string, writer uuid.UUID, from, to int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cursors[cursor{sink, writer}] != from {
		return ledger.ErrState
	}
	s.cursors[cursor{sink, writer}] = to
	return nil
}

// Sinks lists the sinks that have read anything.
func (s *Store) Sinks(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for cursor := range s.cursors {
		names = append(names, cursor.sink)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Durable is false: all of it goes with the process.
func (s *Store) Durable() bool { return false }

// Close does nothing: a store in memory has nothing to free.
func (s *Store) Close() error { return nil }

// deadline says when a hold was due as of one of its renewals.
type deadline struct {
	at   time.Time
	hold uuid.UUID
}

// deadlines is a heap, the earliest first, then by hold.
type deadlines []deadline

func (d deadlines) Len() int { return len(d) }
func (d deadlines) Less(i, j int) bool {
	return cmp.Or(d[i].at.Compare(d[j].at), slices.Compare(d[i].hold[:], d[j].hold[:])) < 0
}
func (d deadlines) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)   { *d = append(*d, x.(deadline)) }
func (d *deadlines) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
