-- What persons do to the books is recorded, and done once.

{transaction}
-- +goose Up

-- What a person did, by the id that it was asked for under; digest identifies what was asked for.
CREATE TABLE ledger_amendment (
	id     {bytes} NOT NULL PRIMARY KEY,
	digest {bytes} NOT NULL
) {strict};

-- The journal with the kinds of records that a person makes, and the one that stands for what was pruned.
CREATE TABLE ledger_record_new (
	writer {bytes} NOT NULL,
	number {int}   NOT NULL CHECK (number > 0),
	at     {int}   NOT NULL,
	kind   TEXT    NOT NULL CHECK (kind IN ('decision', 'charge', 'outcome', 'correction', 'reset', 'closing')),
	call   {bytes},
	body   TEXT    NOT NULL,
	PRIMARY KEY (writer, number)
) {strict};
INSERT INTO ledger_record_new (writer, number, at, kind, call, body) SELECT writer, number, at, kind, call, body FROM ledger_record;
DROP TABLE ledger_record;
ALTER TABLE ledger_record_new RENAME TO ledger_record;
CREATE INDEX ledger_record_by_time ON ledger_record (at, writer, number);
CREATE INDEX ledger_record_by_call ON ledger_record (call, at) WHERE call IS NOT NULL;
