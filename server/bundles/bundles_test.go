package bundles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"

	"regent/engine/policy"
	"regent/engine/tarball"
	"regent/server/catalog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hasty are limits for a server that is slow on purpose.
var hasty = limits{connect: time.Second, header: 300 * time.Millisecond, whole: 600 * time.Millisecond}

// small is a bundle of two files, and another with one rule more.
var (
	small  = map[string]string{".manifest": `{"roots": ["org"]}`, "org/rules/a/a.rego": "package org.rules.a\n"}
	larger = map[string]string{".manifest": `{"roots": ["org"]}`, "org/rules/a/a.rego": "package org.rules.a\n", "org/rules/b/b.rego": "package org.rules.b\n"}
)

// packed is a tarball of files.
func packed(t testing.TB, files map[string]string) []byte {
	t.Helper()
	contents := map[string][]byte{}
	for name, text := range files {
		contents[name] = []byte(text)
	}
	var packed bytes.Buffer
	if err := tarball.Write(&packed, contents); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// contents are the files of a tree.
func contents(t *testing.T, tree fs.FS) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(tree, name)
		files[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// wantTree fetches, and wants these files; nil where nothing is new.
func wantTree(t *testing.T, from source, atOnce bool, want map[string]string) {
	t.Helper()
	found, err := from.fetch(t.Context(), atOnce)
	switch {
	case err != nil:
		t.Fatalf("it cannot be fetched: %v", err)
	case (found == nil) != (want == nil):
		t.Fatalf("fetched %v, want %v", found, want)
	case found != nil && !maps.Equal(contents(t, found), want):
		t.Fatalf("fetched %v, want %v", contents(t, found), want)
	}
}

// wantError fetches, and wants an error of a kind with a text.
func wantError(t *testing.T, from source, atOnce bool, kind error, text string) {
	t.Helper()
	found, err := from.fetch(t.Context(), atOnce)
	var ours *Error
	if found != nil || !errors.Is(err, kind) || !errors.As(err, &ours) || ours.Remedy == "" || !strings.Contains(err.Error(), text) {
		t.Fatalf("fetched %v: %v; want %v: %s", found, err, kind, text)
	}
}

// TestWhatIsWrongWithATarball: whatever it is, the error says where, what, and what to do.
func TestWhatIsWrongWithATarball(t *testing.T) {
	many := map[string]string{}
	for i := range most.Files + 1 {
		many[fmt.Sprintf("%d/%d", i%100, i)] = ""
	}
	for name, test := range map[string]struct {
		content []byte
		kind    error
		text    string
	}{
		"no tarball":     {[]byte("<html>not found</html>"), ErrNotTarball, "it is no tar.gz: it is not compressed by gzip: make it by"},
		"too many files": {packed(t, many), ErrTooLarge, "it is too large: it has more than 10000 files: move data out of it, and what is no policy"},
		"a bomb": {packed(t, map[string]string{"data.json": strings.Repeat("\x00", policy.MaxBundleBytes+1)}), ErrTooLarge,
			"its files are larger than 33554432 bytes: move data out of it"},
		"too deep": {packed(t, map[string]string{strings.Repeat("a/", policy.MaxBundleDepth+1) + "x": ""}), ErrEntry,
			"lies below more than 32 folders: let it hold regular files"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "org.tar.gz")
			must(t, os.WriteFile(path, test.content, 0o644))
			wantError(t, newFile(path), true, test.kind, test.text)
			wantError(t, newFile(path), true, test.kind, path+": ")
		})
	}
}

// changes counts what a set tells of.
type changes struct{ n atomic.Int64 }

func (c *changes) add() { c.n.Add(1) }

// newSet is a set with the program's own bundle, and what it logs.
func newSet(t *testing.T) (*Set, *changes, *logged) {
	t.Helper()
	told, log := &changes{}, &logged{}
	return New(Config{Embedded: fstest.MapFS{".manifest": {Data: []byte("{}")}}, Changed: told.add, Log: slog.New(slog.NewTextHandler(log, nil))}), told, log
}

type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start watches until the test ends.
func start(t *testing.T, s *Set) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the set ended: %v", err)
		}
	})
}

func wait(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// holds says whether a set's bundle of a name has these files.
func holds(t *testing.T, s *Set, name string, files map[string]string) bool {
	t.Helper()
	snapshot, err := s.Snapshot()
	if err != nil {
		return false
	}
	for _, bundle := range snapshot.Bundles {
		if bundle.Name == name {
			return maps.Equal(contents(t, bundle.FS), files)
		}
	}
	return false
}

func inFolderAs(name, folder string) catalog.Bundle {
	return catalog.Bundle{BundleSource: catalog.BundleSource{Name: name, Folder: folder}}
}

// TestASetFollowsTheCatalogue: what is configured counts and nothing else, and what is not changed is not read again.
func TestASetFollowsTheCatalogue(t *testing.T) {
	s, told, _ := newSet(t)
	snapshot, err := s.Snapshot()
	if err != nil || len(snapshot.Bundles) != 1 || snapshot.Bundles[0].Name != EmbeddedName || !snapshot.Bundles[0].Tested {
		t.Fatalf("without a catalogue: %+v, %v", snapshot, err)
	}
	start(t, s)
	one, other := t.TempDir(), t.TempDir()
	write(t, one, small)
	write(t, other, larger)
	s.Follow([]catalog.Bundle{inFolderAs("one", one)})
	wait(t, "the first bundle", func() bool { return holds(t, s, "one", small) })
	if told.n.Load() != 1 {
		t.Errorf("told %d times", told.n.Load())
	}
	fetched := s.States()[0].Fetched

	signing := &policy.Signing{KeyID: "k"}
	signed := inFolderAs("one", one)
	signed.Signing = signing
	s.Follow([]catalog.Bundle{inFolderAs("regent", other), signed})
	if states := s.States(); len(states) != 2 || states[0].Name != "one" || !states[0].There || states[0].Fetched.Before(fetched) || states[1].There {
		t.Errorf("with a second bundle: %+v", states)
	}
	if told.n.Load() != 1 {
		t.Error("a bundle that is where it was has changed")
	}
	wait(t, "the second bundle", func() bool { return holds(t, s, "regent", larger) })
	snapshot, err = s.Snapshot()
	if err != nil || len(snapshot.Bundles) != 2 || snapshot.Bundles[0].Signing != signing || snapshot.Bundles[1].Signing != nil || snapshot.Bundles[1].Tested {
		t.Errorf("with a bundle in place of the program's own: %+v, %v", snapshot, err)
	}

	s.Follow(nil)
	snapshot, err = s.Snapshot()
	if err != nil || len(snapshot.Bundles) != 1 || snapshot.Bundles[0].Name != EmbeddedName || len(s.States()) != 0 {
		t.Errorf("without bundles again: %+v, %v", snapshot, err)
	}
}

// TestMissingBundles: each is named, with the reason.
func TestMissingBundles(t *testing.T) {
	s, told, log := newSet(t)
	nowhere := filepath.Join(t.TempDir(), "nowhere")
	s.Follow([]catalog.Bundle{inFolderAs("a", nowhere), inFolderAs("b", nowhere)})
	_, err := s.Snapshot()
	if err == nil || err.Error() != "bundle a is missing: it is being looked for\nbundle b is missing: it is being looked for" {
		t.Errorf("at first: %v", err)
	}
	for range 3 {
		s.Look(t.Context())
	}
	_, err = s.Snapshot()
	var missing *MissingError
	want := nowhere + ": no such file or directory: see whether it is there, and may be read"
	if !errors.As(err, &missing) || len(missing.Bundles) != 2 || missing.Bundles[1].Err.Error() != want || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after looking: %v", err)
	}
	if n := strings.Count(log.String(), "cannot be fetched"); n != 2 {
		t.Errorf("the same was logged %d times:\n%s", n, log)
	}
	if states := s.States(); states[0].Errors != 3 || states[0].There || !states[0].Fetched.IsZero() {
		t.Errorf("%+v", states[0])
	}
	write(t, nowhere, small)
	s.Look(t.Context())
	if !holds(t, s, "b", small) || told.n.Load() != 2 || s.States()[0].Err != nil || s.States()[0].Errors != 3 {
		t.Errorf("after it was written: %+v", s.States())
	}
	if n := strings.Count(log.String(), "can be fetched again"); n != 2 {
		t.Errorf("that it is there was logged %d times:\n%s", n, log)
	}
}

// TestASetRunsAgain: the supervisor may start it anew.
func TestASetRunsAgain(t *testing.T) {
	s, _, _ := newSet(t)
	folder := t.TempDir()
	write(t, folder, small)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s.Follow([]catalog.Bundle{inFolderAs("org", folder)}) // while it does not run
	start(t, s)
	wait(t, "the bundle", func() bool { return holds(t, s, "org", small) })
}

func TestDelay(t *testing.T) {
	for _, test := range []struct {
		failures     int
		least, most_ time.Duration
	}{
		{0, time.Minute, time.Minute}, {1, time.Second / 2, time.Second}, {2, time.Second, 2 * time.Second}, {3, 2 * time.Second, 4 * time.Second},
		{7, 30 * time.Second, time.Minute}, {1000, 30 * time.Second, time.Minute},
	} {
		for range 100 {
			if got := delay(time.Minute, test.failures); got < test.least || got > test.most_ {
				t.Errorf("after %d failures: %v", test.failures, got)
			}
		}
	}
	if got := delay(localEvery, 9); got > localEvery {
		t.Errorf("a folder that is not there is looked for after %v", got)
	}
}

// write writes files below a folder.
func write(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}
