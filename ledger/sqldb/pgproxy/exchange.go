package pgproxy

import (
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// verb is what a statement is to a transaction.
type verb int

const (
	other verb = iota
	begin
	beginReadOnly
	commit
	rollback
)

func verbOf(text string) verb {
	words := strings.Fields(strings.ToLower(strings.TrimRight(text, "; \t\r\n")))
	if len(words) == 0 || strings.Contains(strings.Join(words, " "), ";") {
		return other
	}
	rest := " " + strings.Join(words[1:], " ") + " "
	switch words[0] {
	case "begin", "start":
		if strings.Contains(rest, " read only") {
			return beginReadOnly
		}
		return begin
	case "commit", "end":
		return commit
	case "rollback", "abort":
		if strings.Contains(rest, " to ") {
			return other
		}
		return rollback
	}
	return other
}

// step is one execution in an exchange, with the messages that belong to it.
type step struct {
	messages []message
	text     string
	verb     verb
}

// exchange is what a client sends for the server to answer at once.
type exchange struct {
	steps []step
	// tail are the messages after the last execution: the Sync, unless it is a simple query.
	tail   []message
	simple bool
	// flushed says that a part of it was on its way before its end was known.
	flushed bool

	// What it is to its transaction, once it is complete: whether that is open, or READ ONLY; and where in steps it begins and
	// commits, and the first and the last of its other statements are, or -1.
	open, load                 bool
	begin, commit, first, last int
}

// place finds what a complete exchange is to its transaction.
func (x *exchange) place(open, load bool) {
	x.open, x.load = open, open && load
	x.begin, x.commit, x.first, x.last = -1, -1, -1, -1
	for i, step := range x.steps {
		switch {
		case step.verb == begin || step.verb == beginReadOnly:
			x.begin, x.open, x.load = i, true, step.verb == beginReadOnly
		case step.verb == commit && x.commit < 0:
			x.commit = i
		case step.verb == other && x.commit < 0:
			x.last = i
			if x.first < 0 {
				x.first = i
			}
		}
	}
}

// messages are those of the steps from one on, and before another, without the tail.
func (x *exchange) messages(from, to int) (messages []message) {
	for _, step := range x.steps[from:to] {
		messages = append(messages, step.messages...)
	}
	return messages
}

// beforeCommit are the messages before COMMIT is executed, without those that bind and describe it. What is prepared stays so,
// whatever becomes of COMMIT.
func (x *exchange) beforeCommit() []message {
	messages := x.messages(0, x.commit)
	for _, m := range x.messages(x.commit, len(x.steps)) {
		if m.kind == 'P' {
			messages = append(messages, m)
		}
	}
	return messages
}

// all are the messages of the exchange.
func (x *exchange) all() []message { return append(x.messages(0, len(x.steps)), x.tail...) }

// statements are the texts of a connection's prepared statements and portals, by their names.
type statements struct{ prepared, portals map[string]string }

// add adds a client's message to an exchange, and reports whether it completes it.
func (s *statements) add(x *exchange, m message) (complete bool, err error) {
	x.tail = append(x.tail, m)
	switch m.kind {
	case 'P':
		var parse pgproto3.Parse
		err = parse.Decode(m.body())
		s.prepared[parse.Name] = parse.Query
	case 'B':
		var bind pgproto3.Bind
		err = bind.Decode(m.body())
		s.portals[bind.DestinationPortal] = s.prepared[bind.PreparedStatement]
	case 'E':
		var execute pgproto3.Execute
		err = execute.Decode(m.body())
		x.step(s.portals[execute.Portal])
	case 'Q':
		var query pgproto3.Query
		err = query.Decode(m.body())
		x.simple = true
		x.step(query.String)
		return true, err
	case 'S':
		return true, nil
	}
	return false, err
}

// step makes a step of what has come since the last.
func (x *exchange) step(text string) {
	x.steps = append(x.steps, step{x.tail, text, verbOf(text)})
	x.tail = nil
}
