package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// all are a value's samples, one a round.
func (b *bench) all(stage, target, value string) (found []float64) {
	for _, s := range b.samples {
		if s.Stage == stage && s.Target == target {
			found = append(found, s.Values[value])
		}
	}
	return found
}

// of is the median over the rounds of a value.
func (b *bench) of(stage, target, value string) float64 { return median(b.all(stage, target, value)) }

// ratio is a value of a target to the proxy's. What is below one of its unit cannot be measured, and counts as one.
func (b *bench) ratio(stage, target, value string) float64 {
	return b.of(stage, target, value) / max(1, b.of(stage, bare, value))
}

// added is what a target adds to the upstream's own median latency, in microseconds.
func (b *bench) added(stage, target string) float64 {
	return b.of(stage, target, "p50") - b.of(stage, direct, "p50")
}

func (b *bench) addedRatio(stage string) float64 {
	return b.added(stage, regent) / max(1, b.added(stage, bare))
}

// judgement is a figure that has a target.
type judgement struct {
	Figure string  `json:"figure"`
	Is     float64 `json:"is"`
	Most   bool    `json:"most"` // the bound is the most that it may be, else the least
	Bound  float64 `json:"bound"`
	Met    bool    `json:"met"`
}

func atMost(bound float64, figure string, is float64) judgement {
	return judgement{figure, is, true, bound, is <= bound}
}

func atLeast(bound float64, figure string, is float64) judgement {
	return judgement{figure, is, false, bound, is >= bound}
}

const (
	// allocationsMax is what was measured, and some percent: the copies of rows, the journal's JSON, and the goroutines' hand-over.
	allocationsMax = 180
	// rowsMax is two account rows (one, twice), two of the hold, two of the call, a charge, and three records of the journal.
	rowsMax = 10
)

// judge holds what was measured against the targets.
func (b *bench) judge() (judged []judgement) {
	for _, figure := range []struct {
		stage string
		judge func() judgement
	}{
		{"c16", func() judgement { return atMost(1.5, "CPU per call, 16 clients", b.ratio("c16", regent, "cpu_us")) }},
		{oneClient, func() judgement { return atMost(2, "added p50, 1 client", b.addedRatio(oneClient)) }},
		{"c64", func() judgement {
			return atLeast(0.4, "calls/s on SQLite to in memory, 64 clients", b.of("c64", sqlite, "per_s")/max(1, b.of("c64", regent, "per_s")))
		}},
		{windowStage, func() judgement {
			return atMost(1.5, "admission with 500,000 charges in its windows to one with 1,000", b.of(windowStage, many, "admitted")/b.of(windowStage, few, "admitted"))
		}},
		{windowStage, func() judgement {
			return atMost(1.5, "denial, with the time of its end, likewise", b.of(windowStage, many, "denied")/b.of(windowStage, few, "denied"))
		}},
		{windowStage, func() judgement {
			return atMost(allocationsMax, "allocations of an admission and settlement, in memory", b.of(windowStage, regent, "allocations"))
		}},
		{windowStage, func() judgement {
			return atMost(rowsMax, "rows that they write", b.of(windowStage, regent, "rows"))
		}},
	} {
		if len(b.all(figure.stage, regent, "")) > 0 {
			judged = append(judged, figure.judge())
		}
	}
	return slices.Concat(judged, b.judgeStreams(), b.judgePolicy(), b.judgeLibrary(), b.judgeLedger())
}

// judgeStreams holds the streams of each protocol against their targets.
func (b *bench) judgeStreams() (judged []judgement) {
	for _, s := range speeches {
		if first := spoken(firstStage, s); len(b.all(first, regent, "")) > 0 {
			judged = append(judged, atMost(1.3, s.name+": added p50 to the first token", b.addedRatio(first)))
		}
		if held := spoken(holdStage, s); len(b.all(held, regent, "")) > 0 {
			judged = append(judged,
				atMost(1.3, s.name+": CPU per paced chunk", b.ratio(held, regent, "cpu_us")),
				atMost(1.2, s.name+": memory per held stream", b.ratio(held, regent, "kib")),
				atMost(0, s.name+": slow streams lost, in any round", slices.Max(b.all(held, regent, "lost"))))
		}
	}
	return judged
}

// report is what a person reads.
func (b *bench) report() string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	b.reportLoads(w)
	b.reportStreams(w)
	b.reportCounts(w)
	b.reportPolicy(w)
	b.reportLibrary(w)
	b.reportLedger(w)
	_, _ = fmt.Fprintln(w, "judged\tis\ttarget\t\t")
	for _, j := range b.judge() {
		bound, verdict := "at least", "MISSED"
		if j.Most {
			bound = "at most"
		}
		if j.Met {
			verdict = "met"
		}
		_, _ = fmt.Fprintf(w, "%s\t%.2f\t%s %g\t%s\t\n", j.Figure, j.Is, bound, j.Bound, verdict)
	}
	_ = w.Flush() // into memory
	fmt.Fprintln(&text)
	for _, remark := range b.remarks {
		fmt.Fprintln(&text, strings.TrimSpace(remark))
	}
	for _, name := range []string{regent, sqlite} {
		if said := (&process{log: logFile(b.folder, name)}).said(); said != "" {
			fmt.Fprintf(&text, "%s logged at last: %s\n", name, said)
		}
	}
	fmt.Fprintln(&text, b.quiet())
	return text.String()
}

func (b *bench) reportLoads(w *tabwriter.Writer) {
	if !slices.ContainsFunc(b.samples, func(s sample) bool { return s.Values["per_s"] > 0 }) {
		return
	}
	_, _ = fmt.Fprintln(w, "clients, whole answers\t\tcalls/s\tp50 ms\tp99 ms\tCPU µs/call\tto proxy\trefused\tRSS MiB\t")
	for _, s := range stages {
		clients, isLoad := strings.CutPrefix(s.name, "c")
		for _, t := range s.targets {
			if !isLoad || len(b.all(s.name, t, "")) == 0 {
				continue
			}
			v := func(value string) float64 { return b.of(s.name, t, value) }
			_, _ = fmt.Fprintf(w, "%s\t%s\t%.0f\t%.2f\t%.2f\t%.0f\t%.2f\t%.1f%%\t%.0f\t\n", clients, t,
				v("per_s"), v("p50")/1e3, v("p99")/1e3, v("cpu_us"), b.ratio(s.name, t, "cpu_us"), 100*v("refused"), v("rss")/(1<<20))
		}
	}
	_, _ = fmt.Fprintln(w)
}

func (b *bench) reportStreams(w *tabwriter.Writer) {
	for _, s := range speeches {
		first := spoken(firstStage, s)
		if len(b.all(first, regent, "")) == 0 {
			continue
		}
		_, _ = fmt.Fprintf(w, "first token, %s\t\tp50 ms\tp99 ms\tadded p50 ms\t\n", s.name)
		for _, t := range []string{direct, bare, regent} {
			_, _ = fmt.Fprintf(w, "\t%s\t%.2f\t%.2f\t%.2f\t\n", t, b.of(first, t, "p50")/1e3, b.of(first, t, "p99")/1e3, b.added(first, t)/1e3)
		}
		_, _ = fmt.Fprintln(w)
	}
	for _, s := range speeches {
		held := spoken(holdStage, s)
		if len(b.all(held, regent, "")) == 0 {
			continue
		}
		_, _ = fmt.Fprintf(w, "%d slow streams, %s\t\tKiB/stream\tRSS MiB\tCPU µs/chunk\tlost\t\n", heldStreams, s.name)
		for _, t := range []string{bare, regent} {
			_, _ = fmt.Fprintf(w, "\t%s\t%.0f\t%.0f\t%.1f\t%.0f\t\n", t, b.of(held, t, "kib"), b.of(held, t, "rss")/(1<<20),
				b.of(held, t, "cpu_us"), slices.Max(b.all(held, t, "lost")))
		}
		_, _ = fmt.Fprintln(w)
	}
}

func (b *bench) reportCounts(w *tabwriter.Writer) {
	if len(b.all(countStage, regent, "")) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w, "counted\tproxy\tregent\tto proxy\t")
	for _, c := range []struct{ what, value string }{
		{"allocations per call", "objects"}, {"bytes allocated per call", "allocated"},
		{"bytes live per held stream", "live"}, {"goroutines per held stream", "goroutines"},
	} {
		_, _ = fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.2f\t\n", c.what,
			b.of(countStage, bare, c.value), b.of(countStage, regent, c.value), b.ratio(countStage, regent, c.value))
	}
	for _, c := range []struct{ what, value string }{
		{"ledger transactions per call", "transactions"}, {"bytes of the database's log per call", "log_bytes"},
		{"journal records per call", "records"}, {"bytes of them", "journal_bytes"}, {"bytes of the decision", "decision_bytes"},
	} {
		_, _ = fmt.Fprintf(w, "%s\t\t%.4g\t\t\n", c.what, b.of(countStage, sqlite, c.value))
	}
	_, _ = fmt.Fprintln(w)
}

// quiet says how quiet the machine was.
func (b *bench) quiet() string {
	var foreign []float64
	for _, s := range b.samples {
		foreign = append(foreign, s.Foreign)
	}
	slices.Sort(foreign)
	text := fmt.Sprintf("Others kept %.2f processors busy (median; most %.2f).", median(foreign), foreign[len(foreign)-1])
	if median(foreign) > disturbed {
		text += " That is too much: take these figures as rough, and measure again on a quiet machine."
	}
	return text
}
