package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestASinkHasWholeLinesOnly(t *testing.T) {
	long := strings.Repeat("x", 3*tailChunk)
	for name, test := range map[string]struct{ before, after string }{
		"a new file":             {"", "new\n"},
		"whole lines":            {"one\ntwo\n", "one\ntwo\nnew\n"},
		"a torn line":            {"one\ntwo\nthr", "one\ntwo\nnew\n"},
		"nothing but a torn one": {"on", "new\n"},
		"a long torn line":       {"one\n" + long, "one\nnew\n"},
		"a long line":            {long + "\n", long + "\nnew\n"},
		"an end at a chunk's":    {"one\n" + long[:tailChunk-1] + "\n" + long[:tailChunk], "one\n" + long[:tailChunk-1] + "\nnew\n"},
		"nothing but long torn":  {long, "new\n"},
	} {
		path := filepath.Join(t.TempDir(), "sink")
		if test.before != "" {
			if err := os.WriteFile(path, []byte(test.before), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file, err := openSink(path)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := file.WriteString("new\n"); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != test.after {
			t.Errorf("%s: got %d bytes, %v, want %d", name, len(got), err, len(test.after))
		}
	}
}
