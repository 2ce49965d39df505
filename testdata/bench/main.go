// Command bench measures what a call through Regent costs, as ratios to a bare httputil.ReverseProxy in the same run. Its README
// says what each figure means. It needs Linux, whose /proc it reads.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	var err error
	if len(os.Args) > 1 && slices.Contains(programs, os.Args[1]) {
		err = serve(os.Args[1], os.Args[2:])
	} else {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var errMissed = errors.New("a target is missed")

// run does what the command line says.
func run() error {
	rounds := flag.Int("rounds", 5, "rounds")
	dur := flag.Duration("dur", time.Second, "length of one sample")
	only := flag.String("only", "", "take these stages alone, with commas between: c1 c16 c64 c512 first hold (and -responses, -messages of both) counts policy library windows ledger")
	file := flag.String("json", "", "also write every sample into this file")
	folder := flag.String("profile", "", "instead write profiles into this folder, of calls, first, chunks, sqlite and ledger")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b, err := newBench(ctx, max(1, *rounds), *dur)
	if b != nil {
		defer b.close()
	}
	if err != nil {
		return err
	}
	stages := strings.FieldsFunc(*only, func(r rune) bool { return r == ',' })
	wanted := func(stage string) bool { return len(stages) == 0 || slices.Contains(stages, stage) }
	if *folder != "" {
		return b.profile(*folder, wanted)
	}
	if err := b.run(wanted); err != nil {
		return cmp.Or(ctx.Err(), err) // what fails after an interrupt fails because of it
	}
	if len(b.samples) == 0 {
		return fmt.Errorf("there is no stage %q", *only)
	}
	fmt.Print(b.report())
	if *file != "" {
		if err := b.writeJSON(*file); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(b.judge(), func(j judgement) bool { return !j.Met }) {
		return errMissed
	}
	return nil
}

// writeJSON writes every sample, for those who compare runs.
func (b *bench) writeJSON(path string) error {
	text, err := json.MarshalIndent(map[string]any{"samples": b.samples, "judged": b.judge()}, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
