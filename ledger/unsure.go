package ledger

import "github.com/google/uuid"

// unsure are holds that were renewed in a transaction of which it is not known whether it was committed, with the token that their
// owner still has: the row's may be a later one, which nobody else has made, since nobody else has that token.
type unsure map[uuid.UUID]int64

// mark notes the renewals of a transaction that may have been committed.
func (u unsure) mark(waiting []*waiter) {
	for _, w := range waiting {
		if op, renewed := w.operation.(*renew); renewed && w.err == nil {
			u[op.id] = op.token
		}
	}
}

// isNewest says whether a token is that of the hold's newest renewal, as far as its owner can know.
func (b *batch) isNewest(hold HoldRow, token int64) bool {
	marked, unsure := b.unsure[hold.ID]
	return hold.Token == token || unsure && marked == token && hold.Token > token
}

// settled forgets marks of operations that were answered: what their callers know is true.
func (u unsure) settled(waiting []*waiter) {
	if len(u) == 0 {
		return
	}
	for _, w := range waiting {
		switch op := w.operation.(type) {
		case *renew:
			delete(u, op.id)
		case *end:
			delete(u, op.Hold)
		case *admit:
			if op.Replaces != nil && w.err == nil {
				delete(u, op.Replaces.Hold)
			}
		}
	}
}
