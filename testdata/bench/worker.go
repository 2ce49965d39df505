package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// workerOrder is what a process that books on a shared database is told to do.
type workerOrder struct {
	Callers     int
	Name, Group string
	For         time.Duration
}

// worker is a process with a ledger of its own.
type worker struct{ on *ourBooks }

// serveLedger runs one until its standard input ends.
func serveLedger(ctx context.Context, cancel func(), url string) error {
	on, err := openOurs(ctx, url, "ledger", nil)
	if err != nil {
		return err
	}
	w := &worker{on}
	fmt.Println("listen", "stdin")
	go func() {
		defer cancel()
		obey(os.Stdin, os.Stdout, w.answer)
	}()
	<-ctx.Done()
	return on.close()
}

// answer does what it is told, and says what it came to.
func (w *worker) answer(order string) string {
	var o workerOrder
	if err := json.Unmarshal([]byte(order), &o); err != nil {
		return err.Error()
	}
	result, err := bookFor(context.Background(), w.on, o.Callers, o.Name, o.Group, o.For)
	if err != nil {
		return err.Error()
	}
	text, err := json.Marshal(result)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
