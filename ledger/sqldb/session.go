package sqldb

import "context"

// session is one transaction.
type session interface {
	// exchange runs statements, together in one round trip where the database can, and reads their results in order.
	exchange(ctx context.Context, queries []query) error
	// commit does so and commits with them. Nothing can follow it.
	commit(ctx context.Context, queries []query) error
}

// access is what a transaction may do.
type access int

const (
	reading access = iota
	writing
)

// database runs transactions. fn either commits its session or has everything that it did rolled back, reads excepted.
type database interface {
	inTx(ctx context.Context, access access, fn func(session) error) error
	close() error
}

var commitQuery = query{text: "COMMIT"}
