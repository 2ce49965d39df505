package sqldb

// Every statement of the store. One mutation per table per statement, plain single-row upserts of absolute values, and
// placeholders that each database reads.
const (
	accountColumns = `used, held, refunds, refunded, floor, touched_at, charged_at, month_zone, month_ends`
	selectAccount  = `SELECT ` + accountColumns + ` FROM ledger_account WHERE account = $1`
	upsertAccount  = `INSERT INTO ledger_account (account, ` + accountColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
		ON CONFLICT (account) DO UPDATE SET used = excluded.used, held = excluded.held, refunds = excluded.refunds,
		refunded = excluded.refunded, floor = excluded.floor, touched_at = excluded.touched_at, charged_at = excluded.charged_at,
		month_zone = excluded.month_zone, month_ends = excluded.month_ends`

	selectTotal   = `SELECT total FROM ledger_charge WHERE account = $1 AND at <= $2 ORDER BY account DESC, at DESC, total DESC LIMIT 1`
	chargeColumns = `total, at, amount, refunded`
	selectMark    = `SELECT ` + chargeColumns + ` FROM ledger_charge WHERE account = $1 AND total >= $2 ORDER BY account, total LIMIT 1`
	selectCharges = `SELECT ` + chargeColumns + ` FROM ledger_charge WHERE account = $1 AND total > $2 ORDER BY account, total LIMIT $3`
	selectRefunds = `SELECT CAST(coalesce(sum(refunded), 0) AS BIGINT) FROM ledger_charge
		WHERE account = $1 AND total > $2 AND total <= $3 AND refunded > 0`
	insertCharge = `INSERT INTO ledger_charge (account, total, at, amount) VALUES ($1, $2, $3, $4)`
	updateRefund = `UPDATE ledger_charge SET refunded = refunded + $3 WHERE account = $1 AND total = $2`

	deleteCharge = `DELETE FROM ledger_charge WHERE account = $1 AND total = $2`

	selectAccounts = `SELECT account FROM ledger_account WHERE account > $1 ORDER BY account LIMIT $2`
	selectOpenings = `SELECT length, opened_at, total FROM ledger_opening WHERE account = $1`
	upsertOpening  = `INSERT INTO ledger_opening (account, length, opened_at, total) VALUES ($1, $2, $3, $4)
		ON CONFLICT (account, length) DO UPDATE SET opened_at = excluded.opened_at, total = excluded.total`

	insertPrice = `INSERT INTO ledger_price (id, body) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING`

	callColumns = `id, owner, client_request_id, idempotency_key, model, protocol, stream, state, created_at, ended_at`
	selectCall  = `SELECT ` + callColumns + ` FROM ledger_call WHERE id = $1`
	selectByKey = `SELECT ` + callColumns + ` FROM ledger_call
		WHERE owner = $1 AND idempotency_key = $2 AND state IN ('held', 'completed')`
	selectByOwner = `SELECT ` + callColumns + ` FROM ledger_call
		WHERE owner = $1 ORDER BY created_at DESC, id DESC LIMIT $2`
	selectByClientRequestID = `SELECT ` + callColumns + ` FROM ledger_call
		WHERE owner = $1 AND (client_request_id = $2 OR idempotency_key = $2) ORDER BY created_at DESC, id DESC LIMIT $3`
	selectCalls = `SELECT ` + callColumns + ` FROM ledger_call WHERE id > $1 ORDER BY id LIMIT $2`
	upsertCall  = `INSERT INTO ledger_call (` + callColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
		ON CONFLICT (id) DO UPDATE SET state = excluded.state, ended_at = excluded.ended_at`

	deleteCall = `DELETE FROM ledger_call WHERE id = $1`

	holdColumns = `h.id, h.call, h.source, h.provider, h.state, h.token, h.reserve_tokens, h.reserve_nano_usd, h.accounts,
		h.admitted_at, h.deadline, h.ended_at, h.result, h.reason, h.status, h.usage, h.tokens, h.nano_usd, h.estimated,
		h.unknown_usage, h.overage, h.digest, h.refunded, h.totals, h.reserve_nano_credits,
		h.nano_credits, h.credit_rate, p.body`
	fromHold       = ` FROM ledger_hold h LEFT JOIN ledger_price p ON p.id = h.price `
	selectHold     = `SELECT ` + holdColumns + fromHold + `WHERE h.id = $1`
	selectHolds    = `SELECT ` + holdColumns + fromHold + `WHERE h.id > $1 ORDER BY h.id LIMIT $2`
	selectDue      = `SELECT ` + holdColumns + fromHold + `WHERE h.state = 'live' AND h.deadline <= $1 ORDER BY h.deadline, h.id`
	selectAttempts = `SELECT ` + holdColumns + fromHold + `WHERE h.call = $1 ORDER BY h.admitted_at, h.id`
	selectStanding = `SELECT ` + holdColumns + fromHold + `JOIN ledger_standing s ON s.hold = h.id WHERE s.account = $1`
	upsertHold     = `INSERT INTO ledger_hold (id, call, source, provider, state, token, reserve_tokens, reserve_nano_usd, accounts,
		admitted_at, deadline, ended_at, result, reason, status, usage, tokens, nano_usd, estimated, unknown_usage, overage, digest,
		refunded, totals, reserve_nano_credits, nano_credits, credit_rate, price)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28)
		ON CONFLICT (id) DO UPDATE SET state = excluded.state, token = excluded.token, deadline = excluded.deadline,
		ended_at = excluded.ended_at, result = excluded.result, reason = excluded.reason, status = excluded.status,
		usage = excluded.usage, tokens = excluded.tokens, nano_usd = excluded.nano_usd, estimated = excluded.estimated,
		unknown_usage = excluded.unknown_usage, overage = excluded.overage, digest = excluded.digest, refunded = excluded.refunded,
		totals = excluded.totals, nano_credits = excluded.nano_credits`
	deleteHold = `DELETE FROM ledger_hold WHERE id = $1`

	insertStanding = `INSERT INTO ledger_standing (account, hold) VALUES ($1, $2) ON CONFLICT (account, hold) DO NOTHING`
	deleteStanding = `DELETE FROM ledger_standing WHERE account = $1 AND hold = $2`

	selectLast    = `SELECT number FROM ledger_record WHERE writer = $1 ORDER BY number DESC LIMIT 1`
	selectStreams = `SELECT writer, max(number) FROM ledger_record GROUP BY writer ORDER BY writer`
	recordColumns = `writer, number, at, kind, call, body`
	selectRecords = `SELECT ` + recordColumns + ` FROM ledger_record WHERE writer = $1 AND number > $2 ORDER BY number LIMIT $3`
	selectTail    = `SELECT ` + recordColumns + ` FROM ledger_record ORDER BY at DESC, writer DESC, number DESC LIMIT $1`
	selectOfCall  = `SELECT ` + recordColumns + ` FROM ledger_record WHERE call = $1 ORDER BY at, writer, number`
	insertRecord  = `INSERT INTO ledger_record (` + recordColumns + `) VALUES ($1, $2, $3, $4, $5, $6)`

	deleteRecords = `DELETE FROM ledger_record WHERE writer = $1 AND number <= $2`

	selectAmendment = `SELECT digest FROM ledger_amendment WHERE id = $1`
	insertAmendment = `INSERT INTO ledger_amendment (id, digest) VALUES ($1, $2)`
	deleteAmendment = `DELETE FROM ledger_amendment WHERE id = $1`

	selectSinks  = `SELECT DISTINCT sink FROM ledger_cursor ORDER BY sink`
	selectCursor = `SELECT number FROM ledger_cursor WHERE sink = $1 AND writer = $2`
	upsertCursor = `INSERT INTO ledger_cursor (sink, writer, number) VALUES ($1, $2, $3)
		ON CONFLICT (sink, writer) DO UPDATE SET number = excluded.number`
)

// statements are all of them, prepared when a database is opened.
var statements = []string{
	selectAccount, selectAccounts, upsertAccount, selectTotal, selectMark, selectCharges, selectRefunds, insertCharge, updateRefund,
	deleteCharge, selectOpenings, upsertOpening, insertPrice,
	selectCall, selectCalls, selectByKey, selectByOwner, selectByClientRequestID, upsertCall, deleteCall,
	selectHold, selectHolds, selectDue, selectAttempts, selectStanding, upsertHold, deleteHold, insertStanding, deleteStanding,
	selectLast, selectStreams, selectRecords, selectTail, selectOfCall, insertRecord, deleteRecords,
	selectAmendment, insertAmendment, deleteAmendment,
	selectSinks, selectCursor, upsertCursor,
}
