package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"regent/ledger"
	"regent/ledger/sqldb"
)

// countedCalls is over how many calls things are counted. The calls are alike and come one after the other, so that more would
// give the same; and the log of the database must not begin anew meanwhile, which it does after some thousand pages.
const countedCalls = 20

// counts are what can be counted rather than timed: a busy machine changes little of them.
func (b *bench) counts() error {
	for _, name := range []string{bare, regent} {
		v, err := b.countMemory(name)
		if err != nil {
			return fmt.Errorf("counting the memory of %s: %w", name, err)
		}
		b.samples = append(b.samples, sample{Stage: countStage, Target: name, Values: v})
	}
	v, err := b.countRecords()
	if err != nil {
		return fmt.Errorf("counting what is recorded: %w", err)
	}
	b.samples = append(b.samples, sample{Stage: countStage, Target: sqlite, Values: v})
	return nil
}

// countMemory counts allocations of a call, and what a held stream keeps.
func (b *bench) countMemory(name string) (values, error) {
	t, err := b.openCounted(name)
	if err != nil {
		return nil, err
	}
	defer b.stop(t)
	if err := callTimes(t, 100).err; err != nil { // so that pools are filled
		return nil, err
	}
	const calls = 300 // so many that what goes on in the background is nothing beside them
	objects, allocated, err := t.process.count(askAllocated)
	if err != nil {
		return nil, err
	}
	if err := callTimes(t, calls).err; err != nil {
		return nil, err
	}
	t.process.settle()
	objectsAfter, allocatedAfter, err := t.process.count(askAllocated)
	if err != nil {
		return nil, err
	}
	v := values{"objects": (objectsAfter - objects) / calls, "allocated": (allocatedAfter - allocated) / calls}
	return v, countHeld(t, v)
}

// openCounted starts a target that can be asked for counts.
func (b *bench) openCounted(name string) (*target, error) {
	if name == bare {
		return b.open(bare)
	}
	return b.openRegent(name, catalogueText, b.self, hostProgram)
}

// countHeld counts what a held stream keeps.
func countHeld(t *target, v values) error {
	live, goroutines, err := t.process.count(askLive)
	if err != nil {
		return err
	}
	h := hold(t, chat, 200, plan{chunks: 3, gap: time.Second})
	h.waitOpen()
	liveHeld, goroutinesHeld, err := t.process.count(askLive)
	open := h.open()
	<-h.done
	v["live"], v["goroutines"] = (liveHeld-live)/open, (goroutinesHeld-goroutines)/open
	return err
}

// countRecords counts what a call leaves in the database, and in how many transactions. No sink reads the journal meanwhile, for it
// would write how far it has come.
func (b *bench) countRecords() (values, error) {
	withoutSinks, _, _ := strings.Cut(catalogueText, "decisions:")
	t, err := b.openRegent(sqlite, withoutSinks, b.regent)
	if err != nil {
		return nil, err
	}
	commits, written, err := countCommits(t.data, func() error { return callTimes(t, countedCalls).err }, t.process.settle)
	b.stop(t)
	if err != nil {
		return nil, err
	}
	v := values{"transactions": commits / countedCalls, "log_bytes": written / countedCalls}
	return v, countJournal(b.ctx, t.data, v)
}

// countCommits counts the transactions, and the bytes, that work adds to SQLite's write-ahead log.
func countCommits(folder string, work func() error, settle func()) (commits, written float64, err error) {
	path := filepath.Join(folder, "regent.db-wal")
	before, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	if err := work(); err != nil {
		return 0, 0, err
	}
	settle()
	after, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	if !bytes.Equal(logSalt(before), logSalt(after)) {
		return 0, 0, fmt.Errorf("%s began anew", path)
	}
	commitsBefore, bytesBefore := readLog(before)
	commitsAfter, bytesAfter := readLog(after)
	return float64(commitsAfter - commitsBefore), float64(bytesAfter - bytesBefore), nil
}

// The format of SQLite's write-ahead log: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
const (
	logHeader   = 32
	frameHeader = 24
)

// logSalt is the part of the log's header that changes when the log begins anew; each of its frames repeats it.
func logSalt(log []byte) []byte { return log[16:24] }

// readLog counts the commits and the bytes of the log. A frame that commits says how large the database is then.
func readLog(log []byte) (commits, length int) {
	frame := frameHeader + int(binary.BigEndian.Uint32(log[8:12]))
	length = logHeader
	for ; len(log)-length >= frame; length += frame {
		header := log[length : length+frameHeader]
		if !bytes.Equal(header[8:16], logSalt(log)) {
			break // a frame of an earlier log
		}
		if binary.BigEndian.Uint32(header[4:8]) > 0 {
			commits++
		}
	}
	return commits, length
}

// countJournal counts the journal's records, through the store's own door.
func countJournal(ctx context.Context, folder string, v values) (err error) {
	store, err := sqldb.Open(ctx, sqldb.Config{Path: filepath.Join(folder, "regent.db"), ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // it was only read
	records, err := store.Tail(ctx, 10*countedCalls)
	if err != nil {
		return err
	}
	v["records"] = float64(len(records)) / countedCalls
	for _, record := range records {
		v["journal_bytes"] += float64(len(record.Body)) / countedCalls
		if record.Kind == ledger.DecisionRecord {
			v["decision_bytes"] += float64(len(record.Body)) / countedCalls
		}
	}
	return nil
}
