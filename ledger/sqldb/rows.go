package sqldb

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// load reads the rows that keys name, each kind in the order of its keys.
func (s session) load(ctx context.Context, keys ledger.Keys, now time.Time) (*ledger.Rows, error) {
	rows := &ledger.Rows{
		Now:         now,
		Accounts:    make(map[ledger.Account]ledger.AccountRow, len(keys.Accounts)),
		Holds:       make(map[uuid.UUID]ledger.HoldRow, len(keys.Holds)),
		Calls:       make(map[uuid.UUID]ledger.Call, len(keys.Calls)),
		Idempotency: make(map[ledger.IdempotencyKey]uuid.UUID, len(keys.Idempotency)),
		Standing:    make(map[ledger.Account][]uuid.UUID, len(keys.Standing)),
	}
	if err := s.loadPast(ctx, keys, rows); err != nil {
		return nil, err
	}
	for _, account := range sorted(keys.Accounts, compareAccounts) {
		if err := s.loadAccount(ctx, account, rows); err != nil {
			return nil, err
		}
	}
	for _, id := range sorted(keys.Holds, compareIDs) {
		if err := s.loadHolds(ctx, rows, nil, selectHold, id[:]); err != nil {
			return nil, err
		}
	}
	for _, id := range sorted(keys.Calls, compareIDs) {
		if err := s.loadCalls(ctx, rows, selectCall, id[:]); err != nil {
			return nil, err
		}
	}
	for _, key := range keys.Idempotency {
		if err := s.loadCalls(ctx, rows, selectByKey, key.Owner, key.Key); err != nil {
			return nil, err
		}
	}
	for _, account := range keys.Standing {
		ids := []uuid.UUID{}
		if err := s.loadHolds(ctx, rows, &ids, selectStanding, account.String()); err != nil {
			return nil, err
		}
		rows.Standing[account] = ids
	}
	rows.Amendments = make(map[uuid.UUID]ledger.AmendmentRow, len(keys.Amendments))
	for _, id := range keys.Amendments {
		if err := s.loadAmendment(ctx, id, rows); err != nil {
			return nil, err
		}
	}
	if keys.Oldest.Limit > 0 {
		var err error
		if rows.Oldest, err = s.records(ctx, selectRecords, keys.Oldest.Writer[:], 0, keys.Oldest.Limit); err != nil {
			return nil, err
		}
	}
	if keys.Due {
		if err := s.loadHolds(ctx, rows, &rows.Due, selectDue, now.UnixMicro()); err != nil {
			return nil, err
		}
	}
	if keys.Stream == uuid.Nil {
		return rows, nil
	}
	return rows, s.query(ctx, func(scan scan) error { return scan(&rows.Last) }, selectLast, keys.Stream[:])
}

// sorted is a sorted copy without repetitions: rows are locked in one order by everybody.
func sorted[T comparable](keys []T, compare func(a, b T) int) []T {
	keys = slices.Clone(keys)
	slices.SortFunc(keys, compare)
	return slices.Compact(keys)
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

func compareAccounts(a, b ledger.Account) int {
	return cmp.Or(strings.Compare(a.Scope, b.Scope), strings.Compare(a.ID, b.ID), strings.Compare(string(a.Unit), string(b.Unit)))
}

func (s session) loadAccount(ctx context.Context, account ledger.Account, rows *ledger.Rows) error {
	var found bool
	var row ledger.AccountRow
	key := account.String()
	err := s.query(ctx, func(scan scan) error {
		found = true
		return scan(&row.Used, &row.Held, &row.Refunds, &row.Refunded, &row.Floor, micros{&row.TouchedAt}, micros{&row.ChargedAt},
			text{&row.Month.Zone}, micros{&row.Month.Ends})
	}, selectAccount, key)
	if err != nil || !found {
		return err
	}
	row.Openings = map[time.Duration]ledger.OpeningRow{}
	err = s.query(ctx, func(scan scan) error {
		var length int64
		var opening ledger.OpeningRow
		if err := scan(&length, micros{&opening.At}, &opening.Total); err != nil {
			return err
		}
		row.Openings[time.Duration(length)*time.Microsecond] = opening
		return nil
	}, selectOpenings, key)
	rows.Accounts[account] = row
	return err
}

// loadPast reads what keys ask of charges.
func (s session) loadPast(ctx context.Context, keys ledger.Keys, rows *ledger.Rows) error {
	rows.Totals = make(map[ledger.Moment]int64, len(keys.Totals))
	for _, moment := range keys.Totals {
		err := s.query(ctx, func(scan scan) error {
			var total int64
			err := scan(&total)
			rows.Totals[moment] = total
			return err
		}, selectTotal, moment.Account.String(), moment.At.UnixMicro())
		if err != nil {
			return err
		}
	}
	rows.Marks = make(map[ledger.Mark]ledger.ChargeRow, len(keys.Marks))
	for _, mark := range keys.Marks {
		err := s.query(ctx, func(scan scan) error {
			charge, err := scanCharge(scan, mark.Account)
			rows.Marks[mark] = charge
			return err
		}, selectMark, mark.Account.String(), mark.Total)
		if err != nil {
			return err
		}
	}
	rows.Refunds = make(map[ledger.Span]int64, len(keys.Refunds))
	for _, span := range keys.Refunds {
		err := s.query(ctx, func(scan scan) error {
			var sum int64
			err := scan(&sum)
			rows.Refunds[span] = sum
			return err
		}, selectRefunds, span.Account.String(), span.Above, span.UpTo)
		if err != nil {
			return err
		}
	}
	return nil
}

// loadHolds reads holds into rows, and their ids into ids if it is not nil.
func (s session) loadHolds(ctx context.Context, rows *ledger.Rows, ids *[]uuid.UUID, text string, args ...any) error {
	return s.query(ctx, func(scan scan) error {
		hold, err := scanHold(scan)
		if err != nil {
			return err
		}
		rows.Holds[hold.ID] = hold
		if ids != nil {
			*ids = append(*ids, hold.ID)
		}
		return nil
	}, text, args...)
}

func (s session) loadCalls(ctx context.Context, rows *ledger.Rows, text string, args ...any) error {
	return s.query(ctx, func(scan scan) error {
		call, err := scanCall(scan)
		if err != nil {
			return err
		}
		rows.Calls[call.ID] = call
		if call.IdempotencyKey != "" && takesKey(call) {
			rows.Idempotency[ledger.IdempotencyKey{Owner: call.Owner, Key: call.IdempotencyKey}] = call.ID
		}
		return nil
	}, text, args...)
}

func (s session) loadAmendment(ctx context.Context, id uuid.UUID, rows *ledger.Rows) error {
	return s.query(ctx, func(scan scan) error {
		var row ledger.AmendmentRow
		var digest []byte
		err := scan(&digest)
		if err == nil && copy(row.Digest[:], digest) != len(row.Digest) {
			err = fmt.Errorf("amendment %s: its digest has %d bytes", id, len(digest))
		}
		rows.Amendments[id] = row
		return err
	}, selectAmendment, id[:])
}

func scanCharge(scan scan, account ledger.Account) (ledger.ChargeRow, error) {
	charge := ledger.ChargeRow{Account: account}
	err := scan(&charge.Total, micros{&charge.At}, &charge.Amount, &charge.Refunded)
	return charge, err
}

func scanCall(scan scan) (ledger.Call, error) {
	var call ledger.Call
	err := scan(id{&call.ID}, &call.Owner, text{&call.ClientRequestID}, text{&call.IdempotencyKey}, &call.Model, &call.Protocol,
		&call.Stream, &call.State, micros{&call.CreatedAt}, micros{&call.EndedAt})
	return call, err
}

func scanHold(scan scan) (ledger.HoldRow, error) {
	var h ledger.HoldRow
	var digest []byte
	err := scan(id{&h.ID}, id{&h.Call}, &h.Source, &h.Provider, &h.State, &h.Token, &h.Reserve.Tokens, &h.Reserve.NanoUSD,
		document{&h.Accounts}, micros{&h.AdmittedAt}, micros{&h.Deadline}, micros{&h.EndedAt}, &h.Outcome.Result, &h.Outcome.Reason,
		&h.Outcome.Status, document{&h.Usage}, &h.Charge.Tokens, &h.Charge.NanoUSD, &h.Charge.Estimated, &h.Charge.UnknownUsage,
		&h.Charge.Overage, &digest, &h.Refunded, document{&h.Totals}, &h.Reserve.NanoCredits, &h.Charge.NanoCredits,
		document{&h.CreditRate}, document{&h.Price})
	if err == nil && copy(h.Digest[:], digest) != len(h.Digest) {
		err = fmt.Errorf("hold %s: its digest has %d bytes", h.ID, len(digest))
	}
	return h, err
}

// save writes absolute rows, in the order of their keys.
func (s session) save(ctx context.Context, changes *ledger.Changes) error {
	for _, account := range slices.SortedFunc(maps.Keys(changes.Accounts), compareAccounts) {
		if err := s.saveAccount(ctx, account, changes.Accounts[account]); err != nil {
			return err
		}
	}
	for _, charge := range changes.Charges {
		if err := s.exec(ctx, insertCharge, charge.Account.String(), charge.Total, charge.At.UnixMicro(), charge.Amount); err != nil {
			return err
		}
	}
	for mark, amount := range changes.Refunds {
		if err := s.exec(ctx, updateRefund, mark.Account.String(), mark.Total, amount); err != nil {
			return err
		}
	}
	for key, price := range changes.Prices {
		body, err := json.Marshal(price)
		if err != nil {
			return fmt.Errorf("sqldb: price: %w", err)
		}
		if err := s.exec(ctx, insertPrice, key[:], string(body)); err != nil {
			return err
		}
	}
	for _, call := range freeingFirst(changes.Calls) {
		err := s.exec(ctx, upsertCall, call.ID[:], call.Owner, nullText(call.ClientRequestID), nullText(call.IdempotencyKey),
			call.Model, call.Protocol, integer(call.Stream), string(call.State), call.CreatedAt.UnixMicro(), nullMicros(call.EndedAt))
		if err != nil {
			return err
		}
	}
	for _, hold := range inOrder(changes.Holds) {
		if err := s.saveHold(ctx, hold); err != nil {
			return err
		}
	}
	for id, row := range changes.Amendments {
		if err := s.exec(ctx, insertAmendment, id[:], row.Digest[:]); err != nil {
			return err
		}
	}
	for _, r := range changes.Records {
		if err := s.exec(ctx, insertRecord, r.Writer[:], r.Number, r.At.UnixMicro(), string(r.Kind), nullID(r.Call), string(r.Body)); err != nil {
			return err
		}
	}
	return s.prune(ctx, changes.Pruned)
}

// prune removes what a transaction no longer keeps.
func (s session) prune(ctx context.Context, pruned ledger.Pruned) error {
	if pruned.UpTo == 0 {
		return nil
	}
	for text, ids := range map[string][]uuid.UUID{deleteHold: pruned.Holds, deleteCall: pruned.Calls, deleteAmendment: pruned.Amendments} {
		for _, id := range ids {
			if err := s.exec(ctx, text, id[:]); err != nil {
				return err
			}
		}
	}
	for _, mark := range pruned.Charges {
		if err := s.exec(ctx, deleteCharge, mark.Account.String(), mark.Total); err != nil {
			return err
		}
	}
	return s.exec(ctx, deleteRecords, pruned.Stream[:], pruned.UpTo)
}

func inOrder[T any](rows map[uuid.UUID]T) []T {
	ordered := make([]T, 0, len(rows))
	for _, id := range slices.SortedFunc(maps.Keys(rows), compareIDs) {
		ordered = append(ordered, rows[id])
	}
	return ordered
}

// freeingFirst orders calls so that one that gives its idempotency key up is written before another that takes it.
func freeingFirst(calls map[uuid.UUID]ledger.Call) []ledger.Call {
	ordered := inOrder(calls)
	slices.SortStableFunc(ordered, func(a, b ledger.Call) int { return cmp.Compare(integer(takesKey(a)), integer(takesKey(b))) })
	return ordered
}

// takesKey says whether nobody else may use the call's idempotency key.
func takesKey(call ledger.Call) bool {
	return call.State == ledger.Held || call.State == ledger.Completed
}

func (s session) saveAccount(ctx context.Context, account ledger.Account, row ledger.AccountRow) error {
	key := account.String()
	err := s.exec(ctx, upsertAccount, key, row.Used, row.Held, row.Refunds, row.Refunded, row.Floor, row.TouchedAt.UnixMicro(),
		nullMicros(row.ChargedAt), nullText(row.Month.Zone), nullMicros(row.Month.Ends))
	if err != nil {
		return err
	}
	for length, opening := range row.Openings {
		if err := s.exec(ctx, upsertOpening, key, length.Microseconds(), opening.At.UnixMicro(), opening.Total); err != nil {
			return err
		}
	}
	return nil
}

func (s session) saveHold(ctx context.Context, h ledger.HoldRow) error {
	accounts, err := json.Marshal(h.Accounts)
	if err != nil {
		return fmt.Errorf("sqldb: accounts of hold %s: %w", h.ID, err)
	}
	usage, err := nullDocument(h.Usage, h.Usage != nil)
	if err != nil {
		return fmt.Errorf("sqldb: usage of hold %s: %w", h.ID, err)
	}
	totals, err := nullDocument(h.Totals, len(h.Totals) > 0)
	if err != nil {
		return fmt.Errorf("sqldb: totals of hold %s: %w", h.ID, err)
	}
	creditRate, err := nullDocument(h.CreditRate, h.CreditRate != nil)
	if err != nil {
		return fmt.Errorf("sqldb: credit rate of hold %s: %w", h.ID, err)
	}
	var price any
	if h.Price != nil {
		key := h.Price.ID()
		price = key[:]
	}
	err = s.exec(ctx, upsertHold, h.ID[:], nullID(h.Call), h.Source, h.Provider, string(h.State), h.Token, h.Reserve.Tokens,
		h.Reserve.NanoUSD, string(accounts), h.AdmittedAt.UnixMicro(), h.Deadline.UnixMicro(), nullMicros(h.EndedAt),
		h.Outcome.Result, h.Outcome.Reason, h.Outcome.Status, usage, h.Charge.Tokens, h.Charge.NanoUSD, integer(h.Charge.Estimated),
		integer(h.Charge.UnknownUsage), integer(h.Charge.Overage), h.Digest[:], integer(h.Refunded), totals, h.Reserve.NanoCredits,
		h.Charge.NanoCredits, creditRate, price)
	if err != nil {
		return err
	}
	standing := deleteStanding
	if h.State == ledger.HoldLive {
		if h.Token > 1 {
			return nil // a renewal: the hold stands where it stood
		}
		standing = insertStanding
	}
	for _, account := range h.Accounts {
		if err := s.exec(ctx, standing, account.String(), h.ID[:]); err != nil {
			return err
		}
	}
	return nil
}

// The types below scan a column into a Go value that database/sql does not know.

type id struct{ to *uuid.UUID }

func (i id) Scan(value any) error {
	switch value := value.(type) {
	case nil:
		*i.to = uuid.Nil
		return nil
	case []byte:
		if len(value) == len(i.to) {
			copy(i.to[:], value)
			return nil
		}
	}
	return fmt.Errorf("an id of type %T", value)
}

type micros struct{ to *time.Time }

func (m micros) Scan(value any) error {
	switch value := value.(type) {
	case nil:
		*m.to = time.Time{}
		return nil
	case int64:
		*m.to = time.UnixMicro(value).UTC()
		return nil
	}
	return fmt.Errorf("a time of type %T", value)
}

type text struct{ to *string }

func (t text) Scan(value any) error {
	var found sql.NullString
	err := found.Scan(value)
	*t.to = found.String
	return err
}

// document scans a JSON text; NULL leaves the target as it is.
type document struct{ to any }

func (d document) Scan(value any) error {
	switch value := value.(type) {
	case nil:
		return nil
	case string:
		return json.Unmarshal([]byte(value), d.to)
	}
	return fmt.Errorf("a document of type %T", value)
}

// nullDocument is a JSON text, or NULL for what is not there.
func nullDocument(value any, there bool) (any, error) {
	if !there {
		return nil, nil
	}
	body, err := json.Marshal(value)
	return string(body), err
}

func nullText(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func nullID(id uuid.UUID) any {
	if id == uuid.Nil {
		return nil
	}
	return id[:]
}

func nullMicros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// integer is a boolean as the tables hold it.
func integer(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
