-- Credits: what calls take of a subscription, in nano-credits.

{transaction}
-- +goose Up

ALTER TABLE ledger_hold ADD COLUMN reserve_nano_credits {int} CHECK (reserve_nano_credits >= 0);
ALTER TABLE ledger_hold ADD COLUMN nano_credits         {int} NOT NULL DEFAULT 0 CHECK (nano_credits >= 0);
-- The multipliers, frozen at admission; NULL for what takes no credits.
ALTER TABLE ledger_hold ADD COLUMN credit_rate          TEXT;
