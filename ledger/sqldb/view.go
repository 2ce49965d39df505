package sqldb

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"regent/ledger"
)

// View runs look in one reading transaction. SQLite keeps for it what is overwritten meanwhile, so that its log grows as long as it runs.
func (s *Store) View(ctx context.Context, look func(ledger.View) error) error {
	return s.readers.inTx(ctx, func(session session) error {
		return look(view{tx{session, s.clock()}})
	})
}

// view is a reading transaction at one reading of the clock.
type view struct{ tx }

func (v view) Streams(ctx context.Context) ([]ledger.Stream, error) { return v.streams(ctx) }

func (v view) Records(ctx context.Context, writer uuid.UUID, after int64, limit int) ([]ledger.Record, error) {
	return v.records(ctx, selectRecords, writer[:], after, limit)
}

func (v view) Accounts(ctx context.Context, after ledger.Account, limit int) (accounts []ledger.Account, err error) {
	key := ""
	if after != (ledger.Account{}) {
		key = after.String()
	}
	err = v.query(ctx, func(scan scan) error {
		var key string
		if err := scan(&key); err != nil {
			return err
		}
		var account ledger.Account
		if err := account.UnmarshalText([]byte(key)); err != nil {
			return fmt.Errorf("account %q: %w", key, err)
		}
		accounts = append(accounts, account)
		return nil
	}, selectAccounts, key, limit)
	return accounts, err
}

func (v view) Charges(ctx context.Context, account ledger.Account, after int64, limit int) (charges []ledger.ChargeRow, err error) {
	err = v.query(ctx, func(scan scan) error {
		charge, err := scanCharge(scan, account)
		charges = append(charges, charge)
		return err
	}, selectCharges, account.String(), after, limit)
	return charges, err
}

func (v view) Holds(ctx context.Context, after uuid.UUID, limit int) (holds []ledger.HoldRow, err error) {
	err = v.query(ctx, func(scan scan) error {
		hold, err := scanHold(scan)
		holds = append(holds, hold)
		return err
	}, selectHolds, after[:], limit)
	return holds, err
}

func (v view) Calls(ctx context.Context, after uuid.UUID, limit int) (calls []ledger.Call, err error) {
	err = v.query(ctx, func(scan scan) error {
		call, err := scanCall(scan)
		calls = append(calls, call)
		return err
	}, selectCalls, after[:], limit)
	return calls, err
}
