package pgproxy

// Fault is something that goes wrong once. Those of transactions that write leave alone a transaction that began as READ ONLY,
// and statements outside of transactions. A transaction that fails by itself at a fault's place fails as it does, and the fault
// goes on waiting.
type Fault int

const (
	// CutAtBegin cuts the connection before the server sees the exchange with BEGIN.
	CutAtBegin Fault = iota + 1
	// CutAtReads cuts the connection after the server answered the exchange with BEGIN, before the client hears of it.
	CutAtReads
	// SerializationAtReads has the first statement after BEGIN, in its exchange, fail with 40001.
	SerializationAtReads
	// SerializationAtStatement has the last statement of an exchange, that before COMMIT if it has one, fail with 40001. The
	// server's transaction is aborted by it, and what follows in the exchange is skipped. It waits for an exchange after that of
	// BEGIN, unless one holds the whole transaction.
	SerializationAtStatement
	// SerializationAtCommit has COMMIT fail with 40001: rolled back.
	SerializationAtCommit
	// AmbiguousCommitted has COMMIT fail with 40003: committed.
	AmbiguousCommitted
	// AmbiguousNotCommitted has COMMIT fail with 40003: rolled back.
	AmbiguousNotCommitted
	// CutBeforeCommit cuts the connection after the statements before COMMIT ran and before the server sees COMMIT. The client
	// hears of none of them.
	CutBeforeCommit
	// CutAfterCommit cuts the connection after the server committed, before the client hears of anything in the exchange.
	CutAfterCommit
	// CutInAnswer cuts the connection after the server committed, when the client has heard of all but the COMMIT.
	CutInAnswer
	// ShutdownAtCommit has the server shut down, 57P01, in place of COMMIT: rolled back.
	ShutdownAtCommit
	// CutAtLoad cuts the connection after the server answered an exchange of a READ ONLY transaction, before the client hears of
	// it.
	CutAtLoad
	// SerializationAtLoad has the first statement in an exchange of a READ ONLY transaction fail with 40001.
	SerializationAtLoad
)

// Faults are all there are.
func Faults() (all []Fault) {
	for fault := CutAtBegin; fault <= SerializationAtLoad; fault++ {
		all = append(all, fault)
	}
	return all
}

var names = map[Fault]string{
	CutAtBegin:               "CutAtBegin",
	CutAtReads:               "CutAtReads",
	SerializationAtReads:     "SerializationAtReads",
	SerializationAtStatement: "SerializationAtStatement",
	SerializationAtCommit:    "SerializationAtCommit",
	AmbiguousCommitted:       "AmbiguousCommitted",
	AmbiguousNotCommitted:    "AmbiguousNotCommitted",
	CutBeforeCommit:          "CutBeforeCommit",
	CutAfterCommit:           "CutAfterCommit",
	CutInAnswer:              "CutInAnswer",
	ShutdownAtCommit:         "ShutdownAtCommit",
	CutAtLoad:                "CutAtLoad",
	SerializationAtLoad:      "SerializationAtLoad",
}

func (f Fault) String() string { return names[f] }

// Commits reports whether the transaction that meets the fault is committed by the server all the same.
func (f Fault) Commits() bool {
	return f == AmbiguousCommitted || f == CutAfterCommit || f == CutInAnswer || f == CutAtLoad
}

// fits reports whether an exchange is the fault's place.
func (f Fault) fits(x *exchange) bool {
	if x.load || !x.open {
		return x.load && (f == CutAtLoad && len(x.steps) > 0 || f == SerializationAtLoad && x.first >= 0)
	}
	begins := x.begin >= 0
	switch f {
	case CutAtBegin:
		return begins
	case CutAtReads:
		return begins && x.commit < 0
	case SerializationAtReads:
		return begins && x.commit < 0 && x.first >= 0
	case SerializationAtStatement:
		return x.last >= 0 && (!begins || x.commit >= 0)
	case CutAtLoad, SerializationAtLoad:
		return false
	default:
		return x.commit >= 0
	}
}
