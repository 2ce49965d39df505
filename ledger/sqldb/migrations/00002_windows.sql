-- Charges one by one, so that windows of every kind are differences of two totals.

{transaction}
-- +goose Up

-- What an account was charged. total is what the account had used in all with this charge, and names it: totals rise, and times never
-- fall with them. refunded is what was taken back of it, which leaves every window together with it.
CREATE TABLE ledger_charge (
	account  {text}  NOT NULL,
	total    {int} NOT NULL CHECK (total >= amount),
	at       {int} NOT NULL,
	amount   {int} NOT NULL CHECK (amount > 0),
	refunded {int} NOT NULL DEFAULT 0 CHECK (refunded >= 0 AND refunded <= amount),
	PRIMARY KEY (account, total)
) {strict};
CREATE INDEX ledger_charge_by_time ON ledger_charge (account, at, total);
CREATE INDEX ledger_charge_by_refund ON ledger_charge (account, total) WHERE refunded > 0;

-- refunds is all that was ever refunded, refunded the highest total whose charge has a refund; floor is the total from which windows
-- count at the earliest; charged_at is the newest charge; the month that is being counted ends at month_ends, in month_zone.
ALTER TABLE ledger_account ADD COLUMN refunds    {int} NOT NULL DEFAULT 0 CHECK (refunds >= 0 AND refunds <= used);
ALTER TABLE ledger_account ADD COLUMN refunded   {int} NOT NULL DEFAULT 0 CHECK (refunded >= 0 AND refunded <= used);
ALTER TABLE ledger_account ADD COLUMN floor      {int} NOT NULL DEFAULT 0 CHECK (floor >= 0 AND floor <= used);
ALTER TABLE ledger_account ADD COLUMN charged_at {int};
ALTER TABLE ledger_account ADD COLUMN month_zone TEXT;
ALTER TABLE ledger_account ADD COLUMN month_ends {int};

-- The totals of the charges that a hold became, by account.
ALTER TABLE ledger_hold ADD COLUMN totals TEXT;

-- What was used before stands as one charge an account, at its newest entry: later than it was, so that no limit is passed.
INSERT INTO ledger_charge (account, total, at, amount) SELECT account, used, touched_at, used FROM ledger_account WHERE used > 0;
UPDATE ledger_account SET charged_at = touched_at WHERE used > 0;
