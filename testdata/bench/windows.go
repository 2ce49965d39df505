package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/memory"
	"regent/ledger/sqldb"
)

const (
	windowStage = "windows"
	few, many   = "few", "many"
	// asked is what each admission asks for; each charge of the past is as much.
	asked = 10
)

// histories are how many charges lie in the windows of an account.
var histories = map[string]int{few: 1_000, many: 500_000}

// windows measures what an admission under three rolling windows takes, and what a denial that says when it ends, with few and with
// many charges in the windows, on SQLite; and counts what one admission and settlement allocate and write.
func (b *bench) windows() error {
	ledgers := map[string]*ledger.Ledger{}
	for name, charges := range histories {
		l, err := b.openHistory(name, charges)
		if err != nil {
			return fmt.Errorf("%d charges: %w", charges, err)
		}
		defer func() { _ = l.Close() }() // everything was written, and is thrown away
		ledgers[name] = l
	}
	for range b.rounds {
		for name, l := range ledgers {
			v, err := timeAdmissions(l, int64(histories[name])*asked)
			if err != nil {
				return err
			}
			b.samples = append(b.samples, sample{Stage: windowStage, Target: name, Values: v})
		}
	}
	v, err := countLedger()
	b.samples = append(b.samples, sample{Stage: windowStage, Target: regent, Values: v})
	return err
}

var pastAccount = ledger.Account{Scope: ledger.ScopeUser, ID: "past", Unit: ledger.Tokens}

// openHistory makes a database in which an account was charged, evenly over the last 29 days.
func (b *bench) openHistory(name string, charges int) (*ledger.Ledger, error) {
	store, err := sqldb.Open(b.ctx, sqldb.Config{Path: filepath.Join(b.folder, name+".db")})
	if err != nil {
		return nil, err
	}
	const page = 20_000 // rows a transaction
	every := 29 * 24 * time.Hour / time.Duration(charges)
	at := time.Now().Add(-29 * 24 * time.Hour).Truncate(time.Microsecond)
	row := ledger.AccountRow{}
	for done := 0; done < charges; done += page {
		changes := &ledger.Changes{}
		for range min(page, charges-done) {
			at = at.Add(every.Truncate(time.Microsecond))
			row.Used += asked
			row.TouchedAt, row.ChargedAt = at, at
			changes.Charges = append(changes.Charges, ledger.ChargeRow{Account: pastAccount, Total: row.Used, At: at, Amount: asked})
		}
		changes.Accounts = map[ledger.Account]ledger.AccountRow{pastAccount: row}
		err := store.Update(b.ctx, func(tx ledger.Tx) error { return tx.Save(b.ctx, changes) })
		if err != nil {
			return nil, errors.Join(err, store.Close())
		}
	}
	return ledger.Open(ledger.Config{Store: store})
}

// timeAdmissions takes the median times of admissions, and of denials that half of the longest window has to leave first.
func timeAdmissions(l *ledger.Ledger, used int64) (values, error) {
	var admitted, denied []float64
	for range 100 {
		took, err := admitAndRelease(l, 2*used)
		if err != nil {
			return nil, err
		}
		admitted = append(admitted, took)
		began := time.Now()
		_, err = l.Admit(context.Background(), admission(used/2))
		denied = append(denied, float64(time.Since(began).Microseconds()))
		var limit *ledger.LimitError
		if !errors.As(err, &limit) || limit.Structural || limit.RetryAfter < 24*time.Hour {
			return nil, fmt.Errorf("what does not fit: %w", err)
		}
	}
	return values{"admitted": median(admitted), "denied": median(denied)}, nil
}

func admitAndRelease(l *ledger.Ledger, max int64) (took float64, err error) {
	began := time.Now()
	hold, err := l.Admit(context.Background(), admission(max))
	took = float64(time.Since(began).Microseconds())
	if err != nil {
		return 0, err
	}
	return took, l.Release(context.Background(), ledger.Ending{Hold: hold.ID, Token: hold.Token, Outcome: ledger.Outcome{Result: ledger.Errored}})
}

func admission(max int64) ledger.Admission {
	tokens := int64(asked)
	a := ledger.Admission{Hold: uuid.Must(uuid.NewV7()), Reserve: ledger.Reserve{Tokens: &tokens}, Claims: []ledger.Claim{{Account: pastAccount}}}
	for _, length := range []time.Duration{5 * time.Hour, 7 * 24 * time.Hour, 30 * 24 * time.Hour} {
		a.Claims[0].Limits = append(a.Claims[0].Limits, ledger.Limit{Window: ledger.Rolling{Length: length}, Max: max})
	}
	return a
}

// countLedger counts what one admission and settlement of a call allocate in memory, and how many rows they write.
func countLedger() (values, error) {
	store := &countingStore{Store: memory.New(nil)}
	l, err := ledger.Open(ledger.Config{Store: store})
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // it is in memory
	usage := ledger.Usage{UncachedInput: 7, Output: 3}
	call := func() {
		a := admission(1 << 50)
		a.Call = &ledger.Call{ID: uuid.Must(uuid.NewV7()), Owner: "past", Model: "m", Protocol: "openai.chat"}
		a.Decision = []byte("{}")
		hold, admitErr := l.Admit(context.Background(), a)
		ending := ledger.Ending{Hold: hold.ID, Token: hold.Token, Outcome: ledger.Outcome{Result: ledger.Success}, State: ledger.Completed}
		_, settleErr := l.Settle(context.Background(), ending, ledger.Consumption{Usage: &usage})
		err = errors.Join(err, admitErr, settleErr)
	}
	call()
	store.rows = 0
	const calls = 1000
	allocations := testing.AllocsPerRun(calls, call) // which makes one call more, to warm up
	return values{"allocations": allocations, "rows": float64(store.rows) / (calls + 1)}, err
}

// countingStore counts the rows that are written.
type countingStore struct {
	ledger.Store
	rows int
}

func (s *countingStore) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	return s.Store.Update(ctx, func(tx ledger.Tx) error { return decide(countingTx{tx, s}) })
}

type countingTx struct {
	ledger.Tx
	store *countingStore
}

func (t countingTx) Save(ctx context.Context, c *ledger.Changes) error {
	t.store.rows += len(c.Accounts) + len(c.Holds) + len(c.Calls) + len(c.Charges) + len(c.Refunds) + len(c.Records)
	return t.Tx.Save(ctx, c)
}
