package ledgertest

import (
	"context"
	"errors"
	"fmt"

	"regent/ledger"
)

// Audit checks the books of a ledger at rest: [ledger.Verify] finds no difference, nothing runs on the store, and every hold has ended.
// All that is wrong is in the error, joined.
func Audit(ctx context.Context, store ledger.Store) error {
	report, err := ledger.Verify(ctx, store)
	found := []error{err}
	for _, difference := range report.Differences {
		found = append(found, errors.New(difference.String()))
	}
	if report.More > 0 {
		found = append(found, fmt.Errorf("and %d differences more", report.More))
	}
	if report.Live > 0 {
		found = append(found, fmt.Errorf("%d holds live still", report.Live))
	}
	return errors.Join(found...)
}
