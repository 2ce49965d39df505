package sqldb

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync"
)

// query is a statement as a database gets it.
type query struct {
	text string
	args []any
	// row is called for each row of the result; nil for a statement without one.
	row func(scan) error
}

type scan func(...any) error

// list is the arguments of what stands in [brackets] in a statement: it is repeated for each.
type list [][]any

// ofOne is a list of single arguments.
func ofOne[T any](values []T, argument func(T) any) list {
	l := make(list, len(values))
	for i, value := range values {
		l[i] = []any{argument(value)}
	}
	return l
}

// source is the SQL source, rendered for one database. Statements have ? for an argument.
type source struct {
	words *strings.Replacer
	texts sync.Map // by textKey
}

// listsMax is the most lists in one statement.
const listsMax = 6

// textKey names a rendered text: a statement with so many rows in each list.
type textKey struct {
	statement string
	rows      [listsMax]int
}

// read is a statement that finds rows. Its lists are filled up to a power of four by repetition, which changes nothing and keeps the
// number of texts that a database has to prepare small: some have two lists. An empty one gets NULLs.
func (s *source) read(row func(scan) error, statement string, args ...any) query {
	for i, arg := range args {
		if l, isList := arg.(list); isList {
			args[i] = l.filled(strings.Count(bracket(statement, countLists(args[:i])), "?"))
		}
	}
	q := s.bind(statement, args...)
	q.row = row
	return q
}

func countLists(args []any) (n int) {
	for _, arg := range args {
		if _, isList := arg.(list); isList {
			n++
		}
	}
	return n
}

// bracket is the text in the nth brackets of a statement.
func bracket(statement string, n int) string {
	for {
		_, rest, _ := strings.Cut(statement, "[")
		inside, after, found := strings.Cut(rest, "]")
		if !found {
			panic("sqldb: more lists than brackets: " + statement)
		}
		if n == 0 {
			return inside
		}
		n, statement = n-1, after
	}
}

func (l list) filled(width int) list {
	if len(l) == 0 {
		return list{make([]any, width)}
	}
	n := 1
	for n < len(l) {
		n *= 4
	}
	filled := append(make(list, 0, n), l...)
	for len(filled) < n {
		filled = append(filled, l[len(l)-1])
	}
	return filled
}

// writeMax is the most rows of one statement that writes: at some 30 arguments each far below the 65,535 that PostgreSQL takes, and
// below SQLite's 32,766.
const writeMax = 64

// write is a statement that writes a list of rows, in parts of powers of two rows, so that the number of texts stays small.
func (s *source) write(statement string, rows list) (queries []query) {
	for len(rows) > 0 {
		n := min(writeMax, 1<<(bits.Len(uint(len(rows)))-1))
		queries = append(queries, s.bind(statement, rows[:n]))
		rows = rows[n:]
	}
	return queries
}

// bind renders a statement and puts its arguments in order.
func (s *source) bind(statement string, args ...any) query {
	key := textKey{statement: statement}
	var flat []any
	lists := 0
	for _, arg := range args {
		l, isList := arg.(list)
		if !isList {
			flat = append(flat, arg)
			continue
		}
		key.rows[lists] = len(l)
		lists++
		for _, row := range l {
			flat = append(flat, row...)
		}
	}
	text, known := s.texts.Load(key)
	if !known {
		text, _ = s.texts.LoadOrStore(key, s.render(key))
	}
	return query{text: text.(string), args: flat}
}

// render repeats what is in brackets and numbers the arguments.
func (s *source) render(key textKey) string {
	var repeated strings.Builder
	rest := s.words.Replace(key.statement)
	for i := 0; ; i++ {
		before, after, found := strings.Cut(rest, "[")
		repeated.WriteString(before)
		if !found {
			break
		}
		inside, after, found := strings.Cut(after, "]")
		if !found || key.rows[i] == 0 {
			panic(fmt.Sprintf("sqldb: %d rows for the list [%s] of %s", key.rows[i], inside, key.statement))
		}
		repeated.WriteString(strings.Repeat(inside+", ", key.rows[i]-1) + inside)
		rest = after
	}
	var numbered strings.Builder
	for i, part := range strings.Split(repeated.String(), "?") {
		if i > 0 {
			numbered.WriteString("$" + strconv.Itoa(i))
		}
		numbered.WriteString(part)
	}
	return numbered.String()
}
