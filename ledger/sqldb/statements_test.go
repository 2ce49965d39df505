package sqldb

import (
	"context"
	"database/sql"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"regent/ledger"
	"regent/ledger/sqldb/pgtest"
)

var dialects = []dialect{sqlite, postgres, postgres.serializable(), cockroach}

// rendering is the SQL source for a dialect.
func rendering(d dialect, namespace string) *Store {
	s := &Store{dialect: d}
	s.words = d.renderer(namespace)
	return s
}

// constants are the constants of statements.go.
func constants(t *testing.T) map[string]string {
	t.Helper()
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, "statements.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	checked, err := (&types.Config{}).Check("sqldb", files, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, name := range checked.Scope().Names() {
		found[name] = constant.StringVal(checked.Scope().Lookup(name).(*types.Const).Val())
	}
	return found
}

// sources are the files of the package that are no tests.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*ast.File{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		if files[path], err = parser.ParseFile(token.NewFileSet(), path, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// names are those that the package's code uses.
func names(t *testing.T) map[string]bool {
	t.Helper()
	used := map[string]bool{}
	for path, file := range sources(t) {
		ast.Inspect(file, func(node ast.Node) bool {
			if name, is := node.(*ast.Ident); is && path != "statements.go" {
				used[name.Name] = true
			}
			return true
		})
	}
	return used
}

// allKeys are keys that ask for everything, for n of each.
func allKeys(n int) (keys ledger.Keys) {
	keys = ledger.Keys{Due: true, Sweep: true, Stream: uuid.Max, Page: ledger.Page{Writer: uuid.Max, Limit: 1}}
	for i := range n {
		text, id := strconv.Itoa(i), uuid.UUID{byte(i), 1}
		account := ledger.Account{Scope: ledger.ScopeUser, ID: text, Unit: ledger.Tokens}
		keys.Accounts = append(keys.Accounts, account)
		keys.Holds, keys.Ends, keys.Calls = append(keys.Holds, id), append(keys.Ends, id), append(keys.Calls, id)
		keys.Failing = append(keys.Failing, id)
		keys.Rates, keys.Circuits = append(keys.Rates, text), append(keys.Circuits, text)
		keys.Counting, keys.Hearing = append(keys.Counting, text), append(keys.Hearing, text)
		keys.Idempotency = append(keys.Idempotency, ledger.IdempotencyKey{Owner: text, Key: text})
		keys.Edges = append(keys.Edges, ledger.Edge{Account: account, Length: time.Hour})
		keys.Refunded, keys.Standing = append(keys.Refunded, account), append(keys.Standing, account)
		keys.Totals = append(keys.Totals, ledger.Moment{Account: account, At: time.Unix(1, 0)})
		keys.Marks = append(keys.Marks, ledger.Mark{Account: account, Total: 1})
		keys.Refunds = append(keys.Refunds, ledger.Span{Account: account, Above: 1, UpTo: 2})
		keys.Amendments = append(keys.Amendments, id)
	}
	return keys
}

// statements are all in the source: those that loads put together, and the constants that are whole.
func statements(t *testing.T, s *Store) []string {
	t.Helper()
	found := map[string]bool{}
	for _, access := range []access{reading, writing} {
		for _, due := range []bool{false, true} {
			for _, ending := range []bool{false, true} {
				keys := allKeys(1)
				keys.Due, keys.Sweep = due, due
				if !ending {
					keys.Ends, keys.Failing, keys.Counting = nil, nil, nil
				}
				newLoad(s, keys, access, nil).queries()
			}
		}
	}
	s.texts.Range(func(key, _ any) bool {
		found[key.(textKey).statement] = true
		return true
	})
	for _, text := range constants(t) {
		if isWhole(text) {
			found[text] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

var begins = regexp.MustCompile(`^(SELECT|INSERT|UPDATE|DELETE|WITH)\b`)

func isWhole(text string) bool {
	return begins.MatchString(text) && strings.Count(text, "(") == strings.Count(text, ")")
}

// rendered is a statement with n rows in each of its lists.
func (s *Store) rendered(statement string, n int) string {
	key := textKey{statement: statement}
	for i := range strings.Count(statement, "[") {
		key.rows[i] = n
	}
	return s.render(key)
}

var (
	// What one of the databases does not have, or has in its own way.
	foreign = regexp.MustCompile(`(?i)\b(SAVEPOINT|RELEASE|ADVISORY\w*|pg_\w+|LISTEN|NOTIFY|(BIG|SMALL)?SERIAL|SEQUENCE|NEXTVAL|IDENTITY|AUTOINCREMENT|` +
		`PLPGSQL|TRIGGER|FUNCTION|PROCEDURE|ARRAY\w*|UNNEST|ANY|ALL\s*\(|MERGE|LATERAL|COPY|LOCK TABLE|NOW\(\)\s*-|INTERVAL|DECIMAL|NUMERIC|FLOAT\w*|REAL)\b|::|\[|\]|\?|[{}]`)
	mutation = regexp.MustCompile(`\b(INSERT INTO|DELETE FROM|UPDATE \w+ SET)\b`)
	nested   = regexp.MustCompile(`\(\s*(INSERT|DELETE|UPDATE)\b`)
	word     = regexp.MustCompile(`'[^']*'`)
	// Where the type of an argument is known: beside a column, or by a cast.
	typed = regexp.MustCompile(`(CAST\(|[=<>+-] |IN \(\[|LIMIT )$`)
)

// lint tells what is wrong with a rendered statement.
func lint(text string) (wrong []string) {
	bare := word.ReplaceAllString(text, "''")
	for _, match := range foreign.FindAllString(bare, -1) {
		wrong = append(wrong, "has "+match)
	}
	mutations := mutation.FindAllStringIndex(bare, -1)
	if len(mutations) > 1 || len(mutations) == 1 && mutations[0][0] > 0 || nested.MatchString(bare) {
		wrong = append(wrong, "changes more than one table, or not at its top")
	}
	return wrong
}

// untyped tells of the arguments in a statement's source whose type a database cannot know.
func untyped(statement string) (wrong []string) {
	inserts := 0 // the end of an INSERT's own rows, whose columns have types
	if strings.HasPrefix(statement, "INSERT") {
		inserts = len(statement)
		if conflict := strings.Index(statement, "ON CONFLICT"); conflict > 0 {
			inserts = conflict
		}
	}
	for i, r := range statement {
		if r == '?' && i > inserts && !typed.MatchString(statement[:i]) {
			wrong = append(wrong, "an argument without a type after "+statement[max(0, i-30):i])
		}
	}
	return wrong
}

// TestLint: no statement uses what one of the databases does not have, changes two tables, or leaves an argument's type open.
func TestLint(t *testing.T) {
	used := names(t)
	for _, d := range dialects {
		s := rendering(d, "other")
		all := statements(t, s)
		for _, statement := range all {
			for _, n := range []int{1, 2, writeMax} {
				text := s.rendered(statement, n)
				for _, wrong := range append(lint(text), untyped(d.withWords(statement))...) {
					t.Errorf("%s: %s: %s", d.name, wrong, text)
				}
				if strings.Contains(text, "ledger_") {
					t.Errorf("%s: a name outside of the namespace: %s", d.name, text)
				}
			}
		}
		reached := strings.Join(all, "\n")
		for name, text := range constants(t) {
			locks := strings.HasPrefix(name, "lock") && !d.rows // which SQLite does not
			if !strings.Contains(reached, text) && used[name] && !locks {
				t.Errorf("%s: no statement contains %s = %q", d.name, name, text)
			}
		}
	}
}

// withWords is a statement with the dialect's words, and its lists as they are.
func (d dialect) withWords(statement string) string { return d.renderer("other").Replace(statement) }

// TestLintFindsFaults: the lint is not blind.
func TestLintFindsFaults(t *testing.T) {
	for _, text := range []string{
		"SELECT a FROM t WHERE b = ANY($1)", "SELECT $1::text", "SAVEPOINT a", "SELECT pg_advisory_xact_lock(1)", "LISTEN a",
		"CREATE TABLE a (b BIGSERIAL)", "SELECT nextval('a')", "CREATE TABLE a (b INT8 GENERATED ALWAYS AS IDENTITY)",
		"CREATE FUNCTION a() RETURNS INT LANGUAGE plpgsql", "SELECT * FROM unnest($1)", "SELECT ARRAY(SELECT 1)",
		"WITH a AS (INSERT INTO b VALUES (1)) SELECT 1", "WITH a AS (SELECT 1) DELETE FROM b", "DELETE FROM a; DELETE FROM b",
	} {
		if len(lint(text)) == 0 {
			t.Errorf("nothing wrong with %s", text)
		}
	}
	for _, statement := range []string{
		"SELECT v.column1 FROM (VALUES [(?)]) v", "SELECT ?", "SELECT a, ? FROM b", "SELECT coalesce(?, a) FROM b",
		"INSERT INTO a VALUES (?) ON CONFLICT (b) DO UPDATE SET c = coalesce(?, d)",
	} {
		if len(untyped(statement)) == 0 {
			t.Errorf("every type is known in %s", statement)
		}
	}
	for _, statement := range []string{
		"INSERT INTO a (b) VALUES [(?, ?)] ON CONFLICT (b) DO UPDATE SET c = excluded.c", "SELECT CAST(? AS TEXT)",
		"SELECT 'ANY' FROM a WHERE b IN ([?]) LIMIT ?", "UPDATE a SET b = b + ? WHERE c = ?",
	} {
		if wrong := append(untyped(statement), lint(strings.NewReplacer("?", "$1", "[", "", "]", "").Replace(statement))...); wrong != nil {
			t.Errorf("%v: %s", wrong, statement)
		}
	}
}

// TestLintOfMigrations: the migrations are as portable as the statements.
func TestLintOfMigrations(t *testing.T) {
	comments := regexp.MustCompile(`(?m)--.*$`)
	for _, d := range dialects {
		source, err := rendering(d, "other").migrations()
		if err != nil {
			t.Fatal(err)
		}
		names, err := fs.Glob(source, "*.sql")
		if err != nil || len(names) == 0 {
			t.Fatal(names, err)
		}
		for i, name := range names {
			if number, _, _ := strings.Cut(name, "_"); number != strings.Repeat("0", 5-len(strconv.Itoa(i+1)))+strconv.Itoa(i+1) {
				t.Errorf("%s is not number %d", name, i+1)
			}
			text, err := fs.ReadFile(source, name)
			if err != nil {
				t.Fatal(err)
			}
			for statement := range strings.SplitSeq(comments.ReplaceAllString(string(text), ""), ";") {
				statement = strings.TrimSpace(statement)
				for _, wrong := range lint(statement) {
					t.Errorf("%s: %s %s: %s", d.name, name, wrong, statement)
				}
				if strings.Contains(statement, "ledger_") {
					t.Errorf("%s: a name outside of the namespace: %s", d.name, statement)
				}
			}
		}
	}
}

// TestStatementsStandTogether: no SQL is hidden elsewhere in the package, where no lint sees it, but for what asks for a version and sets
// how PostgreSQL plans.
func TestStatementsStandTogether(t *testing.T) {
	for name, file := range sources(t) {
		if name == "statements.go" {
			continue
		}
		ast.Inspect(file, func(node ast.Node) bool {
			literal, is := node.(*ast.BasicLit)
			if !is || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			if begins.MatchString(text) && name != "migrate.go" && text != "SELECT version()" && text != byKeys {
				t.Errorf("%s has a statement: %s", name, text)
			}
			return true
		})
	}
}

// TestEveryStatementIsPrepared: by PostgreSQL and SQLite, with lists of several lengths.
func TestEveryStatementIsPrepared(t *testing.T) {
	ctx := context.Background()
	t.Run("SQLite", func(t *testing.T) {
		store, err := Open(ctx, Config{Path: filepath.Join(t.TempDir(), "regent.db")})
		if err != nil {
			t.Fatal(err)
		}
		db := store.database.(*file).writer.db
		prepareAll(t, store, func(text string) error {
			statement, err := db.PrepareContext(ctx, text)
			if err == nil {
				err = statement.Close()
			}
			return err
		})
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		store := migratedStore(t, Config{URL: pgtest.Shared(t).NewDatabase(t)})
		onConnection(t, store.Pool(), func(conn *pgx.Conn) {
			prepareAll(t, store, func(text string) error {
				_, err := conn.Prepare(ctx, "", text)
				return err
			})
		})
	})
}

func prepareAll(t *testing.T, store *Store, prepare func(text string) error) {
	t.Helper()
	for _, statement := range statements(t, store) {
		for _, n := range []int{1, 4, writeMax} {
			text := store.rendered(statement, n)
			if err := prepare(text); err != nil {
				t.Errorf("%v: %s", err, text)
			}
		}
	}
}

// migratedStore opens a store on tables that are up to date.
func migratedStore(t *testing.T, config Config) *Store {
	t.Helper()
	if _, _, err := Migrate(context.Background(), config); err != nil {
		t.Fatal(err)
	}
	store, err := Open(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// onConnection uses one connection of a pool.
func onConnection(t *testing.T, pool *sql.DB, use func(*pgx.Conn)) {
	t.Helper()
	connection, err := pool.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	err = connection.Raw(func(raw any) error {
		use(raw.(interface{ Conn() *pgx.Conn }).Conn())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
