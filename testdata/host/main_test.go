package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestABudgetOutlivesTheProcess: each run is a process of its own, and a task has 100 tokens for all of them.
func TestABudgetOutlivesTheProcess(t *testing.T) {
	folder := t.TempDir()
	program := filepath.Join(folder, "host")
	if text, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	words := strings.Fields(strings.Repeat("word ", 30))
	run := func() (string, error) {
		text, err := exec.Command(program, append([]string{filepath.Join(folder, "budgets.db")}, words...)...).CombinedOutput()
		return string(text), err
	}
	first, err := run()
	if want := strings.Join(words, " ") + "\nthe task has used 60 of 100 tokens\n"; err != nil || first != want {
		t.Errorf("the first run: %v\n%s", err, first)
	}
	second, err := run()
	if err != nil || !strings.HasSuffix(second, "the task has used 120 of 100 tokens\n") {
		t.Errorf("a call that used more than it held: %v\n%s", err, second)
	}
	if third, err := run(); err == nil || !strings.Contains(third, "ERR_PRISM_MODEL_ROUTER_BUDGET") {
		t.Errorf("a run without a budget: %v\n%s", err, third)
	}
}

// TestItIsShort: that is what it shows.
func TestItIsShort(t *testing.T) {
	text, err := os.ReadFile("main.go")
	if lines := bytes.Count(text, []byte("\n")); err != nil || lines >= 60 {
		t.Errorf("%d lines, %v", lines, err)
	}
}
