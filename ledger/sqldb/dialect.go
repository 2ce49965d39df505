package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"strings"

	"github.com/pressly/goose/v3"
)

// dialect is how one database wants the SQL source.
type dialect struct {
	// name is for people.
	name string
	// words are rendered in the source:
	//
	//	{int} {bytes}  the types of integers and bytes
	//	{text}         the type of a text by which rows are in order: that of its bytes
	//	{strict}       keeps a table from taking a value of another type
	//	{lock}         locks the rows of table t that a query finds; {skip} does so but for those that are locked
	//	{now}          the database's clock in microseconds; its argument replaces the clock if it is not NULL
	//	{each c}       the texts of the JSON array in column c, as e.value
	//	{openings}     what migration 5 takes over of the table of openings
	//	{transaction}  how a migration is run
	words []string
	goose goose.Dialect
	// rows says that transactions lock rows, and not the whole database.
	rows bool
	// write and read begin transactions; settings, if there are any, follow them.
	write, read, settings string
}

// databaseClock is the transaction's time, which is one in all its statements.
const databaseClock = `coalesce(CAST(? AS BIGINT), CAST(extract(epoch FROM now()) * 1000000 AS BIGINT))`

var (
	// sqlite's STRICT tables refuse a value of another type, so that an integer that overflowed to a float is an error there and
	// never a wrong amount. Its clock knows milliseconds only, so the process's is used.
	sqlite = dialect{
		name: "SQLite", goose: goose.DialectSQLite3,
		words: []string{
			"{int}", "INTEGER", "{bytes}", "BLOB", "{text}", "TEXT", "{strict}", "STRICT", "{lock}", "", "{skip}", "", "{now}", "CAST(? AS BIGINT)",
			"{each h.accounts}", "json_each(h.accounts) AS e", "{each h.rates}", "json_each(h.rates) AS e",
			"{openings}", `(SELECT json_group_object(CAST(o.length AS TEXT), json_array(o.opened_at, o.total))
				FROM ledger_opening o WHERE o.account = ledger_account.account HAVING count(*) > 0)`,
			"{transaction}", "",
		},
	}
	// postgres takes all locks of a transaction in one order, so that READ COMMITTED is serializable: every statement after the
	// one that locked sees what was committed by then. What is at SERIALIZABLE is aborted more often, for neighbours in an index.
	postgres = dialect{
		name: "PostgreSQL", goose: goose.DialectPostgres, rows: true,
		words: append(serverWords(""), "{text}", `TEXT COLLATE "C"`),
		write: "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE", read: "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
		settings: byKeys,
	}
	// cockroach is always serializable. Its locks are a hint that saves retries. It cannot change a table and its rows in one
	// transaction.
	cockroach = dialect{
		name: "CockroachDB", goose: goose.DialectPostgres, rows: true,
		words: append(serverWords("-- +goose NO TRANSACTION"), "{text}", "TEXT"),
		write: "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE", read: "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY",
	}
)

func serverWords(transaction string) []string {
	return []string{
		"{int}", "INT8", "{bytes}", "BYTEA", "{strict}", "", "{lock}", "FOR UPDATE OF t", "{skip}", "FOR UPDATE OF t SKIP LOCKED", "{now}", databaseClock,
		"{each h.accounts}", "json_array_elements_text(CAST(h.accounts AS JSON)) AS e (value)",
		"{each h.rates}", "json_array_elements_text(CAST(h.rates AS JSON)) AS e (value)",
		"{openings}", "NULL", // there never was such a table with rows
		"{transaction}", transaction,
	}
}

// byKeys has PostgreSQL look up rows by their keys, one by one. It guesses that thousands of accounts are due, where mostly none is, and
// would read all of a table for them, in each batch: at SERIALIZABLE that conflicts with whoever else writes to the table. And it keeps
// the plan of a prepared statement as it made it while the tables were young. Nor is it worth compiling anything for them.
const byKeys = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
	set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

// serializable is the dialect at the strictest isolation.
func (d dialect) serializable() dialect {
	d.write = "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE"
	return d
}

// renderer renders the source for a dialect and a namespace: every name of ours begins with "ledger_".
func (d dialect) renderer(namespace string) *strings.Replacer {
	pairs := []string{"ledger_", namespace + "_"}
	for _, word := range d.words {
		pairs = append(pairs, strings.ReplaceAll(word, "ledger_", namespace+"_"))
	}
	return strings.NewReplacer(pairs...)
}

// namespaces are short enough for the longest name of an index.
var namespaces = regexp.MustCompile(`^[a-z][a-z0-9_]{0,24}$`)

// dialectOf asks a server what it is.
func dialectOf(ctx context.Context, db *sql.DB) (dialect, error) {
	var version string
	if err := db.QueryRowContext(ctx, "SELECT version()").Scan(&version); err != nil {
		return dialect{}, err
	}
	for _, d := range []dialect{cockroach, postgres} {
		if strings.HasPrefix(version, d.name) {
			return d, nil
		}
	}
	return dialect{}, fmt.Errorf("the server is %q, neither PostgreSQL nor CockroachDB", version)
}
