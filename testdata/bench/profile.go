package main

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// profileFor is how long each profile runs: some thousand samples.
const profileFor = 10 * time.Second

// profile writes profiles of the gateway into a folder, each with a table of what each room of the house takes.
func (b *bench) profile(folder string, wanted func(load string) bool) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	for _, load := range []struct {
		name, store string
		run         func(*target, string) error
	}{
		{"calls", regent, func(t *target, _ string) error { return callFor(t, 16, profileFor).err }},
		{"first", regent, firstFor},
		{"chunks", regent, pacedFor},
		{"sqlite", sqlite, func(t *target, _ string) error { return callFor(t, 64, profileFor).err }},
	} {
		if !wanted(load.name) {
			continue
		}
		file := filepath.Join(folder, load.name)
		if err := b.profileLoad(load.store, file, load.run); err != nil {
			return fmt.Errorf("profile of %s: %w", load.name, err)
		}
		if err := showRooms(file, load.name == "chunks"); err != nil {
			return err
		}
	}
	if wanted(ledgerStage) {
		return b.profileLedger(folder)
	}
	return nil
}

// firstFor reads short streams, one after the other.
func firstFor(t *target, _ string) error {
	if _, lost := firstTokens(t, chat, profileFor); lost > 0 {
		return fmt.Errorf("%d streams did not come through whole", lost)
	}
	return nil
}

// pacedFor reads paced streams, as many as leave the gateway time, and profiles the heap while they are held.
func pacedFor(t *target, file string) error {
	const streams, gap = 500, 100 * time.Millisecond
	h := hold(t, chat, streams, plan{chunks: int(profileFor / gap), gap: gap})
	h.waitOpen()
	err := t.process.tell(askHeap, file+".held.pprof")
	<-h.done
	return errors.Join(append(h.errs, err)...)
}

// profileLoad profiles a gateway under a load.
func (b *bench) profileLoad(store, file string, load func(*target, string) error) error {
	t, err := b.openRegent(store, catalogueText, b.self, hostProgram)
	if err != nil {
		return err
	}
	defer b.stop(t)
	if err := callFor(t, 16, time.Second).err; err != nil {
		return err
	}
	if err := t.process.tell(askProfile, file+".cpu.pprof"); err != nil {
		return err
	}
	if err := load(t, file); err != nil {
		return err
	}
	if err := t.process.tell(askProfileEnd, ""); err != nil {
		return err
	}
	return t.process.tell(askHeap, file+".heap.pprof")
}

// showRooms prints the tables of a load's profiles, and writes them beside those.
func showRooms(file string, held bool) error {
	var tables strings.Builder
	kinds := []struct{ title, suffix, index, unit string }{
		{"processor time", ".cpu.pprof", "cpu", "ms"}, {"bytes allocated, start included", ".heap.pprof", "alloc_space", "B"},
	}
	if held {
		kinds = append(kinds, struct{ title, suffix, index, unit string }{"bytes live while streams are held", ".held.pprof", "inuse_space", "B"})
	}
	for _, kind := range kinds {
		table, err := rooms(file+kind.suffix, kind.index, kind.unit)
		if err != nil {
			return err
		}
		fmt.Fprintf(&tables, "%s: %s\n%s\n", file+kind.suffix, kind.title, table)
	}
	fmt.Print(tables.String())
	return os.WriteFile(file+".txt", []byte(tables.String()), 0o644)
}

// roomOf says to which room a function belongs, empty where it says nothing: then whoever called it is asked.
func roomOf(function string) string {
	for _, r := range []struct{ prefix, room string }{
		{"regent/server/inference.", "server/inference"}, {"regent/server/catalog.", "server/catalog"}, {"regent/server.", "server"},
		{"regent/engine/policy.", "engine/policy"}, {"github.com/open-policy-agent/", "engine/policy: OPA"},
		{"regent/engine/decisions.", "engine/decisions"}, {"regent/engine.", "engine"},
		{"regent/ledger/sqldb.", "ledger/sqldb"}, {"modernc.org/", "ledger/sqldb: SQLite"}, {"database/sql", "ledger/sqldb"},
		{"regent/ledger/memory.", "ledger/memory"}, {"regent/ledger.", "ledger"},
		{"regent/adapters", "adapters"},
		{"encoding/json", "encoding/json"}, {"github.com/tidwall/gjson", "gjson"},
		{"github.com/tiktoken-go/", "tokenizer"}, {"github.com/dlclark/", "tokenizer"}, {"log/slog", "log/slog"},
		{"net/http.(*conn)", "net/http server"}, {"net/http.(*response)", "net/http server"}, {"net/http.(*connReader)", "net/http server"},
		{"net/http.(*chunkWriter)", "net/http server"}, {"net/http.checkConnErrorWriter", "net/http server"},
		{"net/http.(*Server)", "net/http server"}, {"net/http.readRequest", "net/http server"},
		{"net/http.(*persistConn)", "net/http client"}, {"net/http.(*Transport)", "net/http client"}, {"net/http.(*Client)", "net/http client"},
		{"net/http.persistConnWriter", "net/http client"}, {"net/http.(*Request).write", "net/http client"}, {"net/http.ReadResponse", "net/http client"},
		{"net/http.(*bodyEOFSignal)", "net/http client"}, {"net/http.(*transferWriter)", "net/http client"}, {"net/http.send", "net/http client"},
		{"net/http.(*wantConn)", "net/http client"},
	} {
		if strings.HasPrefix(function, r.prefix) {
			return r.room
		}
	}
	return ""
}

// collector are the functions below which the garbage collector works, whoever had to help it.
var collector = []string{
	"runtime.gcBgMarkWorker", "runtime.gcAssistAlloc", "runtime.bgsweep", "runtime.bgscavenge", "runtime.gcStart", "runtime.gcDrain",
	"runtime.gcMarkDone", "runtime.deductSweepCredit", "runtime.(*mcache).nextFree",
}

// roomOfStack says which room has the time of a stack, from its innermost frame on outwards.
func roomOfStack(stack []string) string {
	for _, function := range stack {
		for _, prefix := range collector {
			if strings.HasPrefix(function, prefix) {
				return "runtime: garbage collection"
			}
		}
	}
	for _, function := range stack {
		if room := roomOf(function); room != "" {
			return room
		}
	}
	if slices.ContainsFunc(stack, func(f string) bool { return !strings.HasPrefix(f, "runtime.") }) {
		return "other: " + stack[len(stack)-1]
	}
	return "runtime: scheduler"
}

// rooms shares the weight of a profile out. A room's own weight is that of the stacks whose innermost frame that belongs anywhere
// belongs to it; within is that of all stacks which pass through it. Stacks end after 128 frames, and Rego's are deeper, so that
// what is outside of policy has less within than is true.
func rooms(file, index, unit string) (string, error) {
	text, err := exec.Command("go", "tool", "pprof", "-traces", "-sample_index="+index, "-unit="+unit, file).Output()
	if err != nil {
		return "", fmt.Errorf("go tool pprof: %w", err)
	}
	own, within, total := map[string]float64{}, map[string]float64{}, 0.0
	for weight, stack := range traces(text, unit) {
		total += weight
		own[roomOfStack(stack)] += weight
		for room := range roomsOn(stack) {
			within[room] += weight
		}
	}
	names := slices.SortedFunc(maps.Keys(own), func(a, b string) int { return cmp.Compare(own[b], own[a]) })
	var w strings.Builder
	fmt.Fprintf(&w, "%-30s %8s %8s   of %.0f %s\n", "room", "own", "within", total, unit)
	for _, name := range names {
		fmt.Fprintf(&w, "%-30s %7.1f%% %7.1f%%\n", name, 100*own[name]/total, 100*within[name]/total)
	}
	return w.String(), nil
}

// roomsOn are the rooms that a stack passes through.
func roomsOn(stack []string) map[string]bool {
	found := map[string]bool{}
	for _, function := range stack {
		if room := roomOf(function); room != "" {
			found[room] = true
		}
	}
	return found
}

// traces reads what "pprof -traces" prints: stacks with a weight in a unit, the innermost function first.
func traces(text []byte, unit string) iter.Seq2[float64, []string] {
	return func(yield func(float64, []string) bool) {
		var weight float64
		var stack []string
		for line := range strings.Lines(string(text) + traceEnd) {
			if strings.HasPrefix(line, traceEnd) {
				if len(stack) > 0 && !yield(weight, stack) {
					return
				}
				weight, stack = 0, nil
				continue
			}
			fields := strings.Fields(line)
			if len(fields) > 1 && stack == nil { // the first function stands beside the weight
				weight, _ = strconv.ParseFloat(strings.TrimSuffix(fields[0], unit), 64) // else it is a label or the head
				fields = fields[1:]
			}
			if weight > 0 && len(fields) > 0 {
				stack = append(stack, fields[0])
			}
		}
	}
}

// traceEnd begins the line between two traces.
const traceEnd = "-----"
