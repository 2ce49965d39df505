package sqldb

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// changes are the statements that write absolute rows, each table in the order of its keys.
func (s *Store) changes(c *ledger.Changes, clock any) (queries []query, err error) {
	add := func(statement string, rows list) { queries = append(queries, s.write(statement, rows)...) }
	holds, err := holdRows(c.Holds)
	if err != nil {
		return nil, err
	}
	prices, err := priceRows(c.Prices)
	if err != nil {
		return nil, err
	}
	accounts, err := accountRows(c.Accounts)
	if err != nil {
		return nil, err
	}
	stand, leave := standing(c.Holds)
	if c.Sweep != nil {
		sweep := c.Sweep
		queries = append(queries, s.bind(writeSweep, nullID(sweep.Sweeper), sweep.Epoch, nullMicros(sweep.Until), nullMicros(sweep.SweptAt),
			nullMicros(sweep.SuspendedUntil)))
		queries = append(queries, s.bind(deleteRates, clock, cleanupMax))
	}
	add(writeAccounts, accounts)
	add(writeRates, rateRows(c.Rates))
	add(writeCircuits, circuitRows(c.Circuits))
	add(writeCharges, chargeRows(c.Charges))
	for mark, amount := range c.Refunds {
		queries = append(queries, s.bind(writeRefund, amount, mark.Account.String(), mark.Total))
	}
	add(writePrices, prices)
	for _, calls := range freeingFirst(c.Calls) {
		add(writeCalls, callRows(calls))
	}
	add(writeHolds, holds)
	add(writeStanding, stand)
	add(deleteStanding, leave)
	add(writeAmendments, amendmentRows(c.Amendments))
	add(writeRecords, recordRows(c.Records))
	return append(queries, s.pruned(c.Pruned)...), nil
}

// cleanupMax bounds what one sweep removes of rates whose window has closed, so that nobody waits for it.
const cleanupMax = 1000

// pruned removes what a transaction no longer keeps.
func (s *Store) pruned(p ledger.Pruned) (queries []query) {
	if p.UpTo == 0 {
		return nil
	}
	charges := make(list, len(p.Charges))
	for i, mark := range p.Charges {
		charges[i] = []any{mark.Account.String(), mark.Total}
	}
	for _, part := range []struct {
		statement string
		rows      list
	}{{deleteHolds, ids(p.Holds)}, {deleteCalls, ids(p.Calls)}, {deleteAmendments, ids(p.Amendments)}, {deleteCharges, charges}} {
		queries = append(queries, s.write(part.statement, part.rows)...)
	}
	return append(queries, s.bind(deleteRecords, p.Stream[:], p.UpTo))
}

func accountRows(rows map[ledger.Account]ledger.AccountRow) (written list, err error) {
	keys := make(map[string]ledger.Account, len(rows))
	for account := range rows {
		keys[account.String()] = account
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		row := rows[keys[key]]
		opened, err := openingsText(row.Openings)
		if err != nil {
			return nil, fmt.Errorf("sqldb: openings of %s: %w", key, err)
		}
		written = append(written, []any{key, row.Used, row.Held, row.Refunds, row.Refunded, row.Floor, row.TouchedAt.UnixMicro(),
			nullMicros(row.ChargedAt), nullText(row.Month.Zone), nullMicros(row.Month.Ends), opened})
	}
	return written, nil
}

// openingsText is what openings scans.
func openingsText(opened map[time.Duration]ledger.OpeningRow) (any, error) {
	stored := make(map[string][2]int64, len(opened))
	for length, opening := range opened {
		stored[strconv.FormatInt(length.Microseconds(), 10)] = [2]int64{opening.At.UnixMicro(), opening.Total}
	}
	return nullDocument(stored, len(stored) > 0)
}

func rateRows(rows map[string]ledger.RateRow) (written list) {
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		row := rows[key]
		written = append(written, []any{key, row.OpenedAt.UnixMicro(), row.ClosesAt.UnixMicro(), row.Count})
	}
	return written
}

func circuitRows(rows map[string]ledger.CircuitRow) (written list) {
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		row := rows[key]
		written = append(written, []any{key, row.Failures, nullMicros(row.RetryAt), nullID(row.Probe), nullMicros(row.ProbeUntil)})
	}
	return written
}

func chargeRows(rows []ledger.ChargeRow) list {
	return listOf(rows, func(c ledger.ChargeRow) []any {
		return []any{c.Account.String(), c.Total, c.At.UnixMicro(), c.Amount}
	})
}

func priceRows(rows map[[32]byte]ledger.Price) (written list, err error) {
	for key, price := range rows {
		body, err := json.Marshal(price)
		if err != nil {
			return nil, fmt.Errorf("sqldb: price: %w", err)
		}
		written = append(written, []any{key[:], string(body)})
	}
	slices.SortFunc(written, func(a, b []any) int { return slices.Compare(a[0].([]byte), b[0].([]byte)) })
	return written, nil
}

func callRows(calls []ledger.Call) list {
	return listOf(calls, func(c ledger.Call) []any {
		return []any{c.ID[:], c.Owner, nullText(c.ClientRequestID), nullText(c.IdempotencyKey), c.Model, c.Protocol, integer(c.Stream),
			string(c.State), c.CreatedAt.UnixMicro(), nullMicros(c.EndedAt)}
	})
}

// freeingFirst parts calls into those that give their idempotency key up, or have none, and those that take one: another call may
// give up the very key in the same transaction.
func freeingFirst(calls map[uuid.UUID]ledger.Call) [2][]ledger.Call {
	var parts [2][]ledger.Call
	for _, id := range slices.SortedFunc(maps.Keys(calls), compareIDs) {
		takes := integer(takesKey(calls[id]))
		parts[takes] = append(parts[takes], calls[id])
	}
	return parts
}

// takesKey says whether nobody else may use the call's idempotency key.
func takesKey(call ledger.Call) bool {
	return call.IdempotencyKey != "" && (call.State == ledger.Held || call.State == ledger.Completed)
}

func holdRows(holds map[uuid.UUID]ledger.HoldRow) (written list, err error) {
	for _, id := range slices.SortedFunc(maps.Keys(holds), compareIDs) {
		row, err := holdRow(holds[id])
		if err != nil {
			return nil, fmt.Errorf("sqldb: hold %s: %w", id, err)
		}
		written = append(written, row)
	}
	return written, nil
}

func holdRow(h ledger.HoldRow) ([]any, error) {
	documents := [5]any{}
	for i, part := range []struct {
		value any
		there bool
	}{
		{h.Accounts, true}, {h.Usage, h.Usage != nil}, {h.Totals, len(h.Totals) > 0}, {h.CreditRate, h.CreditRate != nil},
		{h.Rates, len(h.Rates) > 0},
	} {
		var err error
		if documents[i], err = nullDocument(part.value, part.there); err != nil {
			return nil, err
		}
	}
	var price, circuit, threshold, coolDown any
	if h.Price != nil {
		key := h.Price.ID()
		price = key[:]
	}
	if h.Circuit != nil {
		circuit, threshold, coolDown = h.Circuit.Key, h.Circuit.Threshold, h.Circuit.CoolDown.Microseconds()
	}
	return []any{
		h.ID[:], nullID(h.Call), h.Source, h.Provider, string(h.State), h.Token, h.Reserve.Tokens, h.Reserve.NanoUSD, documents[0],
		h.AdmittedAt.UnixMicro(), h.Deadline.UnixMicro(), nullMicros(h.EndedAt), h.Outcome.Result, h.Outcome.Reason, h.Outcome.Status,
		documents[1], h.Charge.Tokens, h.Charge.NanoUSD, integer(h.Charge.Estimated), integer(h.Charge.UnknownUsage),
		integer(h.Charge.Overage), h.Digest[:], integer(h.Refunded), documents[2], h.Reserve.NanoCredits, h.Charge.NanoCredits,
		documents[3], documents[4], circuit, threshold, coolDown, price,
	}, nil
}

// standing is where holds begin to stand and where they no longer do. One that is renewed stands where it stood.
func standing(holds map[uuid.UUID]ledger.HoldRow) (stand, leave list) {
	for id, h := range holds {
		for _, account := range h.Accounts {
			row := []any{account.String(), id[:]}
			switch {
			case h.State != ledger.HoldLive:
				leave = append(leave, row)
			case h.Token == 1:
				stand = append(stand, row)
			}
		}
	}
	byKey := func(a, b []any) int {
		return cmp.Or(strings.Compare(a[0].(string), b[0].(string)), slices.Compare(a[1].([]byte), b[1].([]byte)))
	}
	slices.SortFunc(stand, byKey)
	slices.SortFunc(leave, byKey)
	return stand, leave
}

func amendmentRows(rows map[uuid.UUID]ledger.AmendmentRow) (written list) {
	for _, id := range slices.SortedFunc(maps.Keys(rows), compareIDs) {
		row := rows[id]
		written = append(written, []any{id[:], row.Digest[:]})
	}
	return written
}

func recordRows(rows []ledger.Record) list {
	return listOf(rows, func(r ledger.Record) []any {
		return []any{r.Writer[:], r.Number, r.At.UnixMicro(), string(r.Kind), nullID(r.Call), string(r.Body)}
	})
}

func listOf[T any](values []T, row func(T) []any) list {
	l := make(list, len(values))
	for i, value := range values {
		l[i] = row(value)
	}
	return l
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
