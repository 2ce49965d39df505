package sqldb

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// after scans what stands before the columns that a row is scanned for.
func (s scan) after(before ...any) scan {
	return func(columns ...any) error { return s(append(before, columns...)...) }
}

func scanCall(scan scan) (ledger.Call, error) {
	var call ledger.Call
	err := scan(id{&call.ID}, &call.Owner, text{&call.ClientRequestID}, text{&call.IdempotencyKey}, &call.Model, &call.Protocol,
		flag{&call.Stream}, &call.State, micros{&call.CreatedAt}, micros{&call.EndedAt})
	return call, err
}

func scanHold(scan scan) (ledger.HoldRow, error) {
	var h ledger.HoldRow
	var circuit sql.NullString
	var threshold, coolDown sql.NullInt64
	err := scan(id{&h.ID}, id{&h.Call}, &h.Source, &h.Provider, &h.State, &h.Token, &h.Reserve.Tokens, &h.Reserve.NanoUSD,
		document{&h.Accounts}, micros{&h.AdmittedAt}, micros{&h.Deadline}, micros{&h.EndedAt}, &h.Outcome.Result, &h.Outcome.Reason,
		&h.Outcome.Status, document{&h.Usage}, &h.Charge.Tokens, &h.Charge.NanoUSD, flag{&h.Charge.Estimated}, flag{&h.Charge.UnknownUsage},
		flag{&h.Charge.Overage}, digest{&h.Digest}, flag{&h.Refunded}, document{&h.Totals}, &h.Reserve.NanoCredits, &h.Charge.NanoCredits,
		document{&h.CreditRate}, document{&h.Rates}, &circuit, &threshold, &coolDown, document{&h.Price})
	if circuit.Valid {
		h.Circuit = &ledger.Circuit{
			Key: circuit.String, Threshold: threshold.Int64, CoolDown: time.Duration(coolDown.Int64) * time.Microsecond,
		}
	}
	return h, err
}

// record scans a record and appends it.
func record(to *[]ledger.Record) func(scan) error {
	return func(scan scan) error {
		var r ledger.Record
		var body string
		err := scan(id{&r.Writer}, &r.Number, micros{&r.At}, &r.Kind, id{&r.Call}, &body)
		r.Body = json.RawMessage(body)
		*to = append(*to, r)
		return err
	}
}

// The types below scan a column into a Go value that drivers do not know.

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

type digest struct{ to *[32]byte }

func (d digest) Scan(value any) error {
	if value, is := value.([]byte); is && copy(d.to[:], value) == len(d.to) && len(value) == len(d.to) {
		return nil
	}
	return fmt.Errorf("a digest that is none, of type %T", value)
}

type micros struct{ to *time.Time }

// Scan reads NULL and 0 as no time at all.
func (m micros) Scan(value any) error {
	switch value := value.(type) {
	case nil:
		*m.to = time.Time{}
		return nil
	case int64:
		*m.to = time.Time{}
		if value != 0 {
			*m.to = time.UnixMicro(value).UTC()
		}
		return nil
	}
	return fmt.Errorf("a time of type %T", value)
}

type flag struct{ to *bool }

func (f flag) Scan(value any) error {
	switch value {
	case int64(0), int64(1):
		*f.to = value == int64(1)
		return nil
	}
	return fmt.Errorf("a flag that is %v", value)
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
	case []byte:
		return json.Unmarshal(value, d.to)
	}
	return fmt.Errorf("a document of type %T", value)
}

// openings scans the fixed windows of an account: by length in microseconds, when each opened and the account's total then.
type openings struct {
	to *map[time.Duration]ledger.OpeningRow
}

func (o openings) Scan(value any) error {
	var stored map[string][2]int64
	if err := (document{&stored}).Scan(value); err != nil {
		return err
	}
	*o.to = make(map[time.Duration]ledger.OpeningRow, len(stored))
	for length, opening := range stored {
		length, err := strconv.ParseInt(length, 10, 64)
		if err != nil {
			return err
		}
		(*o.to)[time.Duration(length)*time.Microsecond] = ledger.OpeningRow{At: time.UnixMicro(opening[0]).UTC(), Total: opening[1]}
	}
	return nil
}
