package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strings"
	"syscall"

	"regent/policies"
	"regent/server"
)

// The programs that this one runs as processes of their own, named by its first argument.
const (
	mockProgram  = "mock"
	proxyProgram = "proxy"
	// hostProgram is the gateway without a program of its own around it, so that it can be profiled and its allocations counted.
	hostProgram = "host"
	// ledgerProgram books calls on a database that it shares with others.
	ledgerProgram = "ledger"
)

var programs = []string{mockProgram, proxyProgram, hostProgram, ledgerProgram}

// serve runs one of them until its standard input ends, or it is asked to stop.
func serve(name string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if name == ledgerProgram {
		return serveLedger(ctx, cancel, args[0])
	}
	go func() {
		defer cancel() // whoever started it has gone
		obey(os.Stdin, os.Stdout, answerTo)
	}()
	switch name {
	case mockProgram:
		return listen(ctx, mock())
	case proxyProgram:
		upstream, err := url.Parse(args[0])
		if err != nil {
			return err
		}
		return listen(ctx, proxy(upstream))
	}
	return host(ctx)
}

func listen(ctx context.Context, handler http.Handler) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("listen", "http://"+listener.Addr().String())
	failed := make(chan error, 1)
	go func() { failed <- http.Serve(listener, handler) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
}

// host runs the gateway, as the program does.
func host(ctx context.Context) error {
	config, err := server.FromEnv(os.LookupEnv)
	if err != nil {
		return err
	}
	config.Policies = policies.Files()
	s, err := server.New(config)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// What a process of this program can be told, some with a file's name; it answers each with a line.
const (
	askAllocated  = "allocated"    // how many objects and bytes it has allocated so far
	askLive       = "live"         // how many bytes of heap and stacks are in use, and how many goroutines there are
	askProfile    = "profile"      // begin a CPU profile in the file
	askProfileEnd = "profile-end"  // end it
	askHeap       = "heap-profile" // write a profile of what is allocated and what is live into the file
)

// obeyed is the answer to what has no other; a failure's begins otherwise.
const obeyed = "done"

func obey(commands io.Reader, answers io.Writer, answer func(command string) string) {
	scanner := bufio.NewScanner(commands)
	for scanner.Scan() {
		_, _ = fmt.Fprintln(answers, answer(scanner.Text())) // where nobody listens, the commands end too
	}
}

func answerTo(command string) string {
	verb, file, _ := strings.Cut(command, " ")
	var stats runtime.MemStats
	var err error
	switch verb {
	case askAllocated:
		runtime.ReadMemStats(&stats)
		return fmt.Sprint(stats.Mallocs, stats.TotalAlloc)
	case askLive:
		runtime.GC() // twice: what sync.Pool keeps dies in the second
		runtime.GC()
		runtime.ReadMemStats(&stats)
		return fmt.Sprint(stats.HeapAlloc+stats.StackInuse, runtime.NumGoroutine())
	case askProfile:
		err = writeFile(file, pprof.StartCPUProfile)
	case askProfileEnd:
		pprof.StopCPUProfile()
	case askHeap:
		runtime.GC() // the profile shows what was live at the last collection
		err = writeFile(file, pprof.WriteHeapProfile)
	}
	if err != nil {
		return err.Error()
	}
	return obeyed
}

// writeFile makes a file. It stays open: a CPU profile is written into it later.
func writeFile(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return write(file)
}
