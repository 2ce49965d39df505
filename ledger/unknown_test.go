package ledger_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/memory"
)

// reissuing is a store that commits and does not know it, and whose next transactions, so many, cannot even read.
type reissuing struct {
	ledger.Store
	armed bool
	lost  int
}

func (s *reissuing) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	if !s.armed {
		return s.Store.Update(ctx, decide)
	}
	s.armed = false
	if err := s.Store.Update(ctx, decide); err != nil {
		return err
	}
	for range s.lost {
		if err := decide(unreadable{}); !errors.Is(err, errUnreadable) {
			return err
		}
	}
	return s.Store.Update(ctx, decide)
}

type unreadable struct{ ledger.Tx }

var errUnreadable = errors.New("the connection is stale")

func (unreadable) Load(context.Context, ledger.Keys) (*ledger.Rows, error) { return nil, errUnreadable }

// A batch that was committed unknown is answered as it was decided, however often the store fails before it can tell.
func TestAnUnknownCommitIsAnsweredOnce(t *testing.T) {
	for lost := range 3 {
		store, expired := &reissuing{Store: memory.New(nil), lost: lost}, 0
		l, err := ledger.Open(ledger.Config{Store: store, OnExpire: func(ledger.Expiry) { expired++ }})
		if err != nil {
			t.Fatal(err)
		}
		tokens := int64(5)
		store.armed = true
		hold, err := l.Admit(t.Context(), ledger.Admission{
			Hold: uuid.Must(uuid.NewV7()), Reserve: ledger.Reserve{Tokens: &tokens}, Decision: []byte(`{}`), Claims: []ledger.Claim{{Account: aliceTokens}},
		})
		if err != nil || hold.Token != 1 {
			t.Errorf("lost %d times: %+v, %v", lost, hold, err)
		}
		store.armed = true
		if hold, err = l.Renew(t.Context(), hold.ID, hold.Token, 0); err != nil { // which leaves no record
			t.Errorf("lost %d times: the renewal: %v", lost, err)
		}
		store.armed = true
		charge, err := l.Settle(t.Context(), ledger.Ending{Hold: hold.ID, Token: hold.Token}, ledger.Consumption{Usage: &ledger.Usage{Output: 3}})
		if err != nil || charge.Tokens != 3 {
			t.Errorf("lost %d times: charged %+v, %v", lost, charge, err)
		}
		row, _, err := ledger.ReadAccount(t.Context(), store, aliceTokens)
		if err != nil || row.Used != 3 || row.Held != 0 || expired != 0 {
			t.Errorf("lost %d times: %+v, %v, %d expiries", lost, row, err, expired)
		}
		streams, err := store.Streams(t.Context())
		if err != nil || len(streams) != 1 || streams[0].Last != 3 { // a decision, a charge, an outcome
			t.Errorf("lost %d times: %+v, %v", lost, streams, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
