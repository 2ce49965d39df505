-- Activations: the policies that decided, kept as long as a record names them.

{transaction}
-- +goose Up

-- What a loaded policy consists of, by the digest under which records name it. used_at is when a process last said that it is in force:
-- what was not in use for long is named by no record any more. It stands before the content, which may be big, to be read without it.
CREATE TABLE ledger_activation (
	digest  {bytes} NOT NULL PRIMARY KEY,
	used_at {int}   NOT NULL,
	content {bytes} NOT NULL
) {strict};
