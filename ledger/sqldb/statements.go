package sqldb

// Every statement of the store, in the one SQL source: ? is an argument, what stands in [brackets] is repeated for a list, and
// {words} are rendered for each database (see dialect). A statement changes one table once; what a statement finds first it locks in
// the order of its keys.
const (
	sweepColumns = `t.sweeper, t.epoch, t.until, t.swept_at, t.suspended_until`
	readSweep    = `SELECT {now}, ` + sweepColumns + ` FROM ledger_sweep t WHERE t.id = 1`
	lockSweep    = readSweep + ` {lock}`
	writeSweep   = `UPDATE ledger_sweep SET sweeper = ?, epoch = ?, until = ?, swept_at = ?, suspended_until = ? WHERE id = 1`

	// dueHolds are those whose deadline has passed, the oldest first, so many at most.
	dueHolds = `(SELECT d.id, d.accounts, d.call FROM ledger_hold d
		WHERE d.state = 'live' AND d.deadline <= {now} ORDER BY d.deadline, d.id LIMIT ?) h`

	// What is named, and what is of the holds that are named and of those that are due.
	textsNamed  = `VALUES [(CAST(? AS TEXT))]`
	idsNamed    = `VALUES [(CAST(? AS {bytes}))]`
	accountsEnd = ` UNION SELECT e.value FROM ledger_hold h, {each h.accounts} WHERE h.id IN ([?])`
	accountsDue = ` UNION SELECT e.value FROM ` + dueHolds + `, {each h.accounts}`
	callsEnd    = ` UNION SELECT h.call FROM ledger_hold h WHERE h.id IN ([?])`
	callsDue    = ` UNION SELECT h.call FROM ` + dueHolds
	holdsDue    = ` UNION SELECT h.id FROM ` + dueHolds
	ratesEnd    = ` UNION SELECT e.value FROM ledger_hold h, {each h.rates} WHERE h.id IN ([?])`
	circuitsEnd = ` UNION SELECT h.circuit FROM ledger_hold h WHERE h.id IN ([?])`

	accountColumns = `used, held, refunds, refunded, floor, touched_at, charged_at, month_zone, month_ends, openings`
	accountFound   = `t.used, t.held, t.refunds, t.refunded, t.floor, t.touched_at, t.charged_at, t.month_zone, t.month_ends, t.openings`
	// An account that was never touched is there to be locked only.
	makeAccounts = `INSERT INTO ledger_account (account, used, held, touched_at) VALUES [(?, 0, 0, 0)] ON CONFLICT (account) DO NOTHING`
	readAccounts = `SELECT t.account, ` + accountFound + ` FROM ledger_account t WHERE t.account IN (`
	lockAccounts = `) ORDER BY t.account {lock}`

	writeAccounts = `INSERT INTO ledger_account (account, ` + accountColumns + `) VALUES [(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)]
		ON CONFLICT (account) DO UPDATE SET used = excluded.used, held = excluded.held, refunds = excluded.refunds,
		refunded = excluded.refunded, floor = excluded.floor, touched_at = excluded.touched_at, charged_at = excluded.charged_at,
		month_zone = excluded.month_zone, month_ends = excluded.month_ends, openings = excluded.openings`
	// What was made to be locked, and was not touched, goes with the transaction that made it.
	deleteUntouched = `DELETE FROM ledger_account WHERE touched_at = 0 AND account IN ([?])`
	pageAccounts    = `SELECT account FROM ledger_account WHERE account > ? AND touched_at > 0 ORDER BY account LIMIT ?`

	// totalAt is what account v.column1 had used in all at a moment.
	totalAt = `coalesce((SELECT c.total FROM ledger_charge c WHERE c.account = v.column1 AND c.at <= `
	newest  = ` ORDER BY c.account DESC, c.at DESC, c.total DESC LIMIT 1), 0)`

	readTotals = `SELECT v.column1, v.column2, ` + totalAt + `v.column2` + newest + `
		FROM (VALUES [(CAST(? AS TEXT), CAST(? AS BIGINT))]) v`
	// A decision's moment is the clock's, or that of the newest entry of its accounts.
	readEdges = `SELECT v.column1, m.moment - v.column2, ` + totalAt + `m.moment - v.column2` + newest + `
		FROM (SELECT {now} AS moment UNION SELECT max(t.touched_at) FROM ledger_account t WHERE t.account IN ([?])) m,
		(VALUES [(CAST(? AS TEXT), CAST(? AS BIGINT))]) v WHERE m.moment IS NOT NULL AND m.moment >= {now}`
	readMarks = `SELECT v.column1, v.column2, c.total, c.at, c.amount, c.refunded
		FROM (VALUES [(CAST(? AS TEXT), CAST(? AS BIGINT))]) v JOIN ledger_charge c ON c.account = v.column1 AND c.total =
		(SELECT min(n.total) FROM ledger_charge n WHERE n.account = v.column1 AND n.total >= v.column2)`
	readRefunds = `SELECT v.column1, v.column2, v.column3, (SELECT CAST(coalesce(sum(c.refunded), 0) AS BIGINT) FROM ledger_charge c
		WHERE c.account = v.column1 AND c.total > v.column2 AND c.total <= v.column3 AND c.refunded > 0)
		FROM (VALUES [(CAST(? AS TEXT), CAST(? AS BIGINT), CAST(? AS BIGINT))]) v`
	// The sum keeps a database from looking through all charges of that time: those with a refund are few, and have an index.
	readRefunded = `SELECT c.account, c.total, c.at, c.amount, c.refunded FROM ledger_charge c
		WHERE c.account IN ([?]) AND c.refunded > 0 AND c.at + 0 > {now} - ? ORDER BY c.account, c.total`

	chargeColumns = `total, at, amount, refunded`
	pageCharges   = `SELECT ` + chargeColumns + ` FROM ledger_charge WHERE account = ? AND total > ? ORDER BY account, total LIMIT ?`
	writeCharges  = `INSERT INTO ledger_charge (account, total, at, amount) VALUES [(?, ?, ?, ?)]`
	writeRefund   = `UPDATE ledger_charge SET refunded = refunded + ? WHERE account = ? AND total = ?`
	deleteCharges = `DELETE FROM ledger_charge WHERE (account, total) IN (VALUES [(CAST(? AS TEXT), CAST(? AS BIGINT))])`

	writePrices = `INSERT INTO ledger_price (id, body) VALUES [(?, ?)] ON CONFLICT (id) DO NOTHING`

	rateColumns = `opened_at, closes_at, count`
	makeRates   = `INSERT INTO ledger_rate (key, opened_at, closes_at, count) VALUES [(?, 0, 0, 0)] ON CONFLICT (key) DO NOTHING`
	readRates   = `SELECT t.key, t.opened_at, t.closes_at, t.count FROM ledger_rate t WHERE t.key IN (`
	lockRates   = `) ORDER BY t.key {lock}`
	writeRates  = `INSERT INTO ledger_rate (key, ` + rateColumns + `) VALUES [(?, ?, ?, ?)]
		ON CONFLICT (key) DO UPDATE SET opened_at = excluded.opened_at, closes_at = excluded.closes_at, count = excluded.count`
	// What is closed says nothing any more. What somebody waits for stays.
	deleteRates = `DELETE FROM ledger_rate WHERE key IN
		(SELECT t.key FROM ledger_rate t WHERE t.closes_at <= {now} ORDER BY t.closes_at LIMIT ? {skip})`

	circuitColumns = `failures, retry_at, probe, probe_until`
	makeCircuits   = `INSERT INTO ledger_circuit (key, failures) VALUES [(?, 0)] ON CONFLICT (key) DO NOTHING`
	// A circuit without failures is locked by none but those who are about to count one: whoever else meets it changes nothing.
	readCircuits  = `SELECT t.key, t.failures, t.retry_at, t.probe, t.probe_until FROM ledger_circuit t WHERE t.key IN (`
	withFailures  = `) AND (t.failures > 0`
	orFailing     = ` OR t.key IN (SELECT h.circuit FROM ledger_hold h WHERE h.id IN ([?]))`
	orCounting    = ` OR t.key IN ([?])`
	lockCircuits  = `) ORDER BY t.key {lock}`
	writeCircuits = `INSERT INTO ledger_circuit (key, ` + circuitColumns + `) VALUES [(?, ?, ?, ?, ?)]
		ON CONFLICT (key) DO UPDATE SET failures = excluded.failures, retry_at = excluded.retry_at, probe = excluded.probe,
		probe_until = excluded.probe_until`

	callColumns = `t.id, t.owner, t.client_request_id, t.idempotency_key, t.model, t.protocol, t.stream, t.state, t.created_at, t.ended_at`
	readCalls   = `SELECT ` + callColumns + ` FROM ledger_call t WHERE t.id IN (`
	readByKey   = `SELECT ` + callColumns + ` FROM ledger_call t WHERE t.state IN ('held', 'completed') AND t.idempotency_key IS NOT NULL
		AND (t.owner, t.idempotency_key) IN (VALUES [(CAST(? AS TEXT), CAST(? AS TEXT))])`
	readCall    = `SELECT ` + callColumns + ` FROM ledger_call t WHERE t.id = ?`
	readByOwner = `SELECT ` + callColumns + ` FROM ledger_call t WHERE t.owner = ? ORDER BY t.created_at DESC, t.id DESC LIMIT ?`
	readByName  = `SELECT ` + callColumns + ` FROM ledger_call t
		WHERE t.owner = ? AND (t.client_request_id = ? OR t.idempotency_key = ?) ORDER BY t.created_at DESC, t.id DESC LIMIT ?`
	pageCalls  = `SELECT ` + callColumns + ` FROM ledger_call t WHERE t.id > ? ORDER BY t.id LIMIT ?`
	writeCalls = `INSERT INTO ledger_call (id, owner, client_request_id, idempotency_key, model, protocol, stream, state, created_at, ended_at)
		VALUES [(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)] ON CONFLICT (id) DO UPDATE SET state = excluded.state, ended_at = excluded.ended_at`
	deleteCalls = `DELETE FROM ledger_call WHERE id IN ([?])`

	holdColumns = `t.id, t.call, t.source, t.provider, t.state, t.token, t.reserve_tokens, t.reserve_nano_usd, t.accounts,
		t.admitted_at, t.deadline, t.ended_at, t.result, t.reason, t.status, t.usage, t.tokens, t.nano_usd, t.estimated,
		t.unknown_usage, t.overage, t.digest, t.refunded, t.totals, t.reserve_nano_credits, t.nano_credits, t.credit_rate,
		t.rates, t.circuit, t.circuit_threshold, t.circuit_cool_down, p.body`
	withPrice    = ` LEFT JOIN ledger_price p ON p.id = t.price`
	readHolds    = `SELECT ` + holdColumns + ` FROM ledger_hold t` + withPrice + ` WHERE t.id IN (`
	lockHolds    = `) ORDER BY t.id {lock}`
	readStanding = `SELECT s.account, ` + holdColumns + ` FROM ledger_standing s JOIN ledger_hold t ON t.id = s.hold` + withPrice + `
		WHERE s.account IN ([?]) ORDER BY s.account, t.id`
	readAttempts = `SELECT ` + holdColumns + ` FROM ledger_hold t` + withPrice + ` WHERE t.call = ? ORDER BY t.admitted_at, t.id`
	pageHolds    = `SELECT ` + holdColumns + ` FROM ledger_hold t` + withPrice + ` WHERE t.id > ? ORDER BY t.id LIMIT ?`
	writeHolds   = `INSERT INTO ledger_hold (id, call, source, provider, state, token, reserve_tokens, reserve_nano_usd, accounts,
		admitted_at, deadline, ended_at, result, reason, status, usage, tokens, nano_usd, estimated, unknown_usage, overage, digest,
		refunded, totals, reserve_nano_credits, nano_credits, credit_rate, rates, circuit, circuit_threshold, circuit_cool_down, price)
		VALUES [(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)]
		ON CONFLICT (id) DO UPDATE SET state = excluded.state, token = excluded.token, deadline = excluded.deadline,
		ended_at = excluded.ended_at, result = excluded.result, reason = excluded.reason, status = excluded.status,
		usage = excluded.usage, tokens = excluded.tokens, nano_usd = excluded.nano_usd, estimated = excluded.estimated,
		unknown_usage = excluded.unknown_usage, overage = excluded.overage, digest = excluded.digest, refunded = excluded.refunded,
		totals = excluded.totals, nano_credits = excluded.nano_credits`
	deleteHolds = `DELETE FROM ledger_hold WHERE id IN ([?])`

	writeStanding  = `INSERT INTO ledger_standing (account, hold) VALUES [(?, ?)] ON CONFLICT (account, hold) DO NOTHING`
	deleteStanding = `DELETE FROM ledger_standing WHERE (account, hold) IN (VALUES [(CAST(? AS TEXT), CAST(? AS {bytes}))])`

	readLast = `SELECT coalesce(max(number), 0) FROM ledger_record WHERE writer = ?`
	// One seek for each stream, and not a look at every record.
	readStreams = `WITH RECURSIVE w (writer) AS (SELECT f.writer FROM (SELECT writer FROM ledger_record ORDER BY writer LIMIT 1) f
		UNION ALL SELECT (SELECT r.writer FROM ledger_record r WHERE r.writer > w.writer ORDER BY r.writer LIMIT 1)
		FROM w WHERE w.writer IS NOT NULL)
		SELECT w.writer, (SELECT max(r.number) FROM ledger_record r WHERE r.writer = w.writer) FROM w WHERE w.writer IS NOT NULL ORDER BY w.writer`
	readOldest    = `SELECT min(at) FROM ledger_record WHERE writer = ? AND number > ?`
	recordColumns = `writer, number, at, kind, call, body`
	readRecords   = `SELECT ` + recordColumns + ` FROM ledger_record WHERE writer = ? AND number > ? ORDER BY number LIMIT ?`
	readTail      = `SELECT ` + recordColumns + ` FROM ledger_record ORDER BY at DESC, writer DESC, number DESC LIMIT ?`
	readOfCall    = `SELECT ` + recordColumns + ` FROM ledger_record WHERE call = ? ORDER BY at, writer, number`
	writeRecords  = `INSERT INTO ledger_record (` + recordColumns + `) VALUES [(?, ?, ?, ?, ?, ?)]`
	deleteRecords = `DELETE FROM ledger_record WHERE writer = ? AND number <= ?`

	// The last use never moves backwards. What somebody else has just made is there already.
	touchActivation = `UPDATE ledger_activation SET used_at = CASE WHEN used_at < {now} THEN {now} ELSE used_at END
		WHERE digest = ? RETURNING used_at`
	makeActivation = `INSERT INTO ledger_activation (digest, used_at, content) VALUES (?, {now}, ?) ON CONFLICT (digest)
		DO UPDATE SET used_at = excluded.used_at WHERE ledger_activation.used_at < excluded.used_at`
	readActivation    = `SELECT content FROM ledger_activation WHERE digest = ?`
	oldActivations    = `SELECT t.digest FROM ledger_activation t WHERE t.used_at < ? ORDER BY t.digest`
	deleteActivations = `DELETE FROM ledger_activation WHERE digest IN (` + oldActivations + ` {lock}) RETURNING digest`

	readAmendments   = `SELECT id, digest FROM ledger_amendment WHERE id IN ([?])`
	writeAmendments  = `INSERT INTO ledger_amendment (id, digest) VALUES [(?, ?)]`
	deleteAmendments = `DELETE FROM ledger_amendment WHERE id IN ([?])`

	readSinks  = `SELECT DISTINCT sink FROM ledger_cursor ORDER BY sink`
	readCursor = `SELECT number FROM ledger_cursor WHERE sink = ? AND writer = ?`
	// A cursor that stands where it is to go was moved by the same before, in a transaction of which nobody knew the end.
	writeCursor = `INSERT INTO ledger_cursor (sink, writer, number) VALUES (?, ?, ?) ON CONFLICT (sink, writer)
		DO UPDATE SET number = excluded.number WHERE ledger_cursor.number = ? OR ledger_cursor.number = ? RETURNING number`
)
