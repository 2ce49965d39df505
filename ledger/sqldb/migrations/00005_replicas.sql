-- Many processes on one database: rows that they lock, and what they agree on.

{transaction}
-- +goose Up

-- openings are the fixed windows that were ever used: {"length in microseconds": [opened_at, total at that moment]}.
ALTER TABLE ledger_account ADD COLUMN openings TEXT;
UPDATE ledger_account SET openings = {openings};
DROP TABLE ledger_opening;

-- What began under a key since opened_at; the row says nothing any more from closes_at on.
CREATE TABLE ledger_rate (
	key       {text}  NOT NULL PRIMARY KEY,
	opened_at {int} NOT NULL,
	closes_at {int} NOT NULL,
	count     {int} NOT NULL CHECK (count >= 0)
) {strict};
CREATE INDEX ledger_rate_by_close ON ledger_rate (closes_at);

-- What is known of something that may be down: failures without a success between, when a probe may be sent, and which hold is the
-- probe that is out, until when.
CREATE TABLE ledger_circuit (
	key         {text}    NOT NULL PRIMARY KEY,
	failures    {int}   NOT NULL CHECK (failures >= 0),
	retry_at    {int},
	probe       {bytes},
	probe_until {int}
) {strict};

-- The keys under which a hold was counted, a JSON list, and the circuit that hears of its end, with its rule.
ALTER TABLE ledger_hold ADD COLUMN rates             TEXT;
ALTER TABLE ledger_hold ADD COLUMN circuit           TEXT;
ALTER TABLE ledger_hold ADD COLUMN circuit_threshold {int};
ALTER TABLE ledger_hold ADD COLUMN circuit_cool_down {int};

-- The one row that processes agree on: who looks for holds that are due when nobody else does, until when, the number of such
-- sweepers so far, when one last looked, and until when nothing expires.
CREATE TABLE ledger_sweep (
	id              {int}   NOT NULL PRIMARY KEY CHECK (id = 1),
	sweeper         {bytes},
	epoch           {int}   NOT NULL CHECK (epoch >= 0),
	until           {int},
	swept_at        {int},
	suspended_until {int}
) {strict};
INSERT INTO ledger_sweep (id, epoch) VALUES (1, 0);
