package sqldb

import (
	"context"

	"github.com/google/uuid"

	"regent/ledger"
)

// View runs look in one reading transaction, again from the start if it cannot be finished. The database keeps for it what is
// overwritten meanwhile, as long as it runs.
func (s *Store) View(ctx context.Context, look func(ledger.View) error) error {
	return s.inTx(ctx, reading, func(session session) error {
		if err := look(view{&tx{Store: s, session: session, access: reading, clock: s.clock()}}); err != nil {
			return err
		}
		return session.commit(ctx, nil)
	})
}

// view is a reading transaction at one reading of the clock.
type view struct{ *tx }

func (v view) ask(ctx context.Context, row func(scan) error, statement string, args ...any) error {
	return v.session.exchange(ctx, one(v.read(row, statement, args...)))
}

func (v view) Streams(ctx context.Context) (streams []ledger.Stream, err error) {
	err = v.ask(ctx, stream(&streams), readStreams)
	return streams, err
}

func (v view) Records(ctx context.Context, writer uuid.UUID, after int64, limit int) (records []ledger.Record, err error) {
	err = v.ask(ctx, record(&records), readRecords, writer[:], after, limit)
	return records, err
}

func (v view) Accounts(ctx context.Context, after ledger.Account, limit int) (accounts []ledger.Account, err error) {
	key := ""
	if after != (ledger.Account{}) {
		key = after.String()
	}
	err = v.ask(ctx, func(scan scan) error {
		var key string
		if err := scan(&key); err != nil {
			return err
		}
		account, err := parseAccount(key)
		accounts = append(accounts, account)
		return err
	}, pageAccounts, key, limit)
	return accounts, err
}

func (v view) Charges(ctx context.Context, account ledger.Account, after int64, limit int) (charges []ledger.ChargeRow, err error) {
	err = v.ask(ctx, func(scan scan) error {
		charge := ledger.ChargeRow{Account: account}
		err := scan(&charge.Total, micros{&charge.At}, &charge.Amount, &charge.Refunded)
		charges = append(charges, charge)
		return err
	}, pageCharges, account.String(), after, limit)
	return charges, err
}

func (v view) Holds(ctx context.Context, after uuid.UUID, limit int) (holds []ledger.HoldRow, err error) {
	err = v.ask(ctx, func(scan scan) error {
		hold, err := scanHold(scan)
		holds = append(holds, hold)
		return err
	}, pageHolds, after[:], limit)
	return holds, err
}

func (v view) Calls(ctx context.Context, after uuid.UUID, limit int) (calls []ledger.Call, err error) {
	err = v.ask(ctx, func(scan scan) error {
		call, err := scanCall(scan)
		calls = append(calls, call)
		return err
	}, pageCalls, after[:], limit)
	return calls, err
}
