-- The ledger's tables. {int}, {bytes} and {strict} are rendered for each database; times are microseconds since 1970 UTC by
-- the database's clock; amounts are integers in the unit of their account, money in nano-USD.

{transaction}
-- +goose Up

-- What is counted for one scope and unit. used is all that was ever charged, and never falls: what is refunded stands beside its charge.
-- held is the sum of the live holds.
CREATE TABLE ledger_account (
	account    {text}  NOT NULL PRIMARY KEY,
	used       {int} NOT NULL CHECK (used >= 0),
	held       {int} NOT NULL CHECK (held >= 0),
	touched_at {int} NOT NULL
) {strict};

-- The last opening of each fixed window of an account; total is the account's used at that moment.
CREATE TABLE ledger_opening (
	account   {text}  NOT NULL,
	length    {int} NOT NULL CHECK (length > 0),
	opened_at {int} NOT NULL,
	total     {int} NOT NULL CHECK (total >= 0),
	PRIMARY KEY (account, length)
) {strict};

-- Prices by content: id is the SHA-256 of the classes in their order; body holds them in pico-USD per token.
CREATE TABLE ledger_price (
	id   {bytes} NOT NULL PRIMARY KEY,
	body TEXT    NOT NULL
) {strict};

-- One row a call: its one terminal state is written with the settlement of its last hold.
CREATE TABLE ledger_call (
	id                {bytes} NOT NULL PRIMARY KEY,
	owner             {text}    NOT NULL,
	client_request_id {text},
	idempotency_key   {text},
	model             TEXT    NOT NULL,
	protocol          TEXT    NOT NULL,
	stream            {int}   NOT NULL CHECK (stream IN (0, 1)),
	state             TEXT    NOT NULL CHECK (state IN ('denied', 'held', 'completed', 'failed', 'cancelled')),
	created_at        {int}   NOT NULL,
	ended_at          {int},
	CHECK ((state = 'held') = (ended_at IS NULL))
) {strict};
CREATE INDEX ledger_call_by_owner ON ledger_call (owner, created_at);
CREATE INDEX ledger_call_by_client_request_id ON ledger_call (owner, client_request_id) WHERE client_request_id IS NOT NULL;
CREATE INDEX ledger_call_by_idempotency_key ON ledger_call (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- Only one call of an owner runs or has completed under one key.
CREATE UNIQUE INDEX ledger_call_one_per_key ON ledger_call (owner, idempotency_key)
	WHERE idempotency_key IS NOT NULL AND state IN ('held', 'completed');

-- One row a hold, which is one attempt of a call: what was set aside, until when, and what became of it.
CREATE TABLE ledger_hold (
	id               {bytes} NOT NULL PRIMARY KEY,
	call             {bytes},
	source           TEXT    NOT NULL,
	provider         TEXT    NOT NULL,
	state            TEXT    NOT NULL CHECK (state IN ('live', 'settled', 'released', 'expired')),
	token            {int}   NOT NULL CHECK (token > 0),
	reserve_tokens   {int}   CHECK (reserve_tokens >= 0),
	reserve_nano_usd {int}   CHECK (reserve_nano_usd >= 0),
	accounts         TEXT    NOT NULL,
	price            {bytes},
	admitted_at      {int}   NOT NULL,
	deadline         {int}   NOT NULL,
	ended_at         {int},
	result           TEXT    NOT NULL,
	reason           TEXT    NOT NULL,
	status           {int}   NOT NULL,
	usage            TEXT,
	tokens           {int}   NOT NULL CHECK (tokens >= 0),
	nano_usd         {int}   NOT NULL CHECK (nano_usd >= 0),
	estimated        {int}   NOT NULL CHECK (estimated IN (0, 1)),
	unknown_usage    {int}   NOT NULL CHECK (unknown_usage IN (0, 1)),
	overage          {int}   NOT NULL CHECK (overage IN (0, 1)),
	digest           {bytes} NOT NULL,
	refunded         {int}   NOT NULL CHECK (refunded IN (0, 1)),
	CHECK ((state = 'live') = (ended_at IS NULL))
) {strict};
CREATE INDEX ledger_hold_by_deadline ON ledger_hold (deadline, id) WHERE state = 'live';
CREATE INDEX ledger_hold_by_call ON ledger_hold (call, admitted_at) WHERE call IS NOT NULL;

-- Which live holds stand on an account. A renewal does not touch it.
CREATE TABLE ledger_standing (
	account {text}    NOT NULL,
	hold    {bytes} NOT NULL,
	PRIMARY KEY (account, hold)
) {strict};

-- The journal: append-only, numbered without gaps in each writer's stream.
CREATE TABLE ledger_record (
	writer {bytes} NOT NULL,
	number {int}   NOT NULL CHECK (number > 0),
	at     {int}   NOT NULL,
	kind   TEXT    NOT NULL CHECK (kind IN ('decision', 'charge', 'outcome')),
	call   {bytes},
	body   TEXT    NOT NULL,
	PRIMARY KEY (writer, number)
) {strict};
CREATE INDEX ledger_record_by_time ON ledger_record (at, writer, number);
CREATE INDEX ledger_record_by_call ON ledger_record (call, at) WHERE call IS NOT NULL;

-- How far each sink has read each stream.
CREATE TABLE ledger_cursor (
	sink   {text}    NOT NULL,
	writer {bytes} NOT NULL,
	number {int}   NOT NULL CHECK (number >= 0),
	PRIMARY KEY (sink, writer)
) {strict};
