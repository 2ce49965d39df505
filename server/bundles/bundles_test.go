package bundles

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"

	"regent/engine/policy"
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

// entry is one entry of a tarball.
type entry struct {
	tar.Header
	content string
}

// tarred packs entries as they are.
func tarred(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	for _, e := range entries {
		if e.Typeflag == 0 {
			e.Typeflag = tar.TypeReg
		}
		if e.Typeflag != tar.TypeXGlobalHeader {
			e.Mode, e.Size = 0o644, int64(len(e.content))
		}
		if err := archive.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

func file(name, content string) entry { return entry{tar.Header{Name: name}, content} }

// packed packs files as `opa build` does.
func packed(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var entries []entry
	for _, name := range slices.Sorted(maps.Keys(files)) {
		entries = append(entries, file("/"+name, files[name]))
	}
	return tarred(t, entries...)
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

func TestTree(t *testing.T) {
	files := map[string][]byte{".manifest": []byte("{}"), "org/rules/a/a.rego": []byte("package a"), "org/empty": {}}
	tree, err := newTree(files)
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(tree, slices.Sorted(maps.Keys(files))...); err != nil {
		t.Error(err)
	}
	if _, err := newTree(map[string][]byte{"a": nil, "a/b": nil}); !errors.Is(err, ErrEntry) {
		t.Errorf("a file that is a folder: %v", err)
	}
	same, err := newTree(maps.Clone(files))
	if err != nil || same.version != tree.version {
		t.Errorf("the same files are another version: %v", err)
	}
	for _, other := range []map[string][]byte{{}, {"ab": []byte("c")}, {"a": []byte("bc")}, {"a": []byte("b"), "c": nil}} {
		for _, another := range []map[string][]byte{{"ab": nil}, {"a": []byte("b")}, {"a": nil, "b": []byte("c")}} {
			if versionOf(other) == versionOf(another) {
				t.Errorf("%v and %v are one version", other, another)
			}
		}
	}
}

func TestTarballs(t *testing.T) {
	want := map[string]string{".manifest": "{}", "org/a.rego": "package org"}
	for name, entries := range map[string][]entry{
		"as opa build writes it":  {file("/.manifest", "{}"), file("/org/a.rego", "package org")},
		"as tar writes it":        {{Header: tar.Header{Name: "./", Typeflag: tar.TypeDir}}, file("./.manifest", "{}"), {Header: tar.Header{Name: "./org/", Typeflag: tar.TypeDir}}, file("./org/a.rego", "package org")},
		"as git archive does":     {{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "1"}}}, file(".manifest", "{}"), file("org/a.rego", "package org")},
		"with slashes to be lost": {file("//.manifest", "{}"), file("org//./a.rego", "package org")},
	} {
		tree, err := untar(bytes.NewReader(tarred(t, entries...)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := contents(t, tree); !maps.Equal(got, want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestTarballsThatAreRefused(t *testing.T) {
	good := packed(t, small)
	damaged := bytes.Clone(good)
	damaged[len(damaged)-6] ^= 1 // the checksum
	var noTar bytes.Buffer
	compressed := gzip.NewWriter(&noTar)
	_, _ = io.WriteString(compressed, strings.Repeat("this is no tar ", 100))
	_ = compressed.Close()
	link := func(kind byte, to string) entry {
		return entry{Header: tar.Header{Name: "x.rego", Typeflag: kind, Linkname: to}}
	}
	many := make([]entry, filesMax+1)
	for i := range many {
		many[i] = file(fmt.Sprintf("%d/%d", i%100, i), "")
	}
	for name, test := range map[string]struct {
		content []byte
		kind    error
		text    string
	}{
		"nothing":               {nil, ErrNotTarball, "it is not compressed by gzip"},
		"a page":                {[]byte("<html>not found</html>"), ErrNotTarball, "it is not compressed by gzip"},
		"half a tarball":        {good[:len(good)/2], ErrNotTarball, "it ends too early"},
		"all but its end":       {good[:len(good)-4], ErrNotTarball, "it ends too early"},
		"a wrong checksum":      {damaged, ErrNotTarball, "its checksum is wrong"},
		"what is no tar":        {noTar.Bytes(), ErrNotTarball, "what was compressed is no tar"},
		"an empty one":          {tarred(t), ErrNotTarball, "it holds no file"},
		"a way out":             {tarred(t, file("../x.rego", "")), ErrEntry, `"../x.rego" is no path below the root`},
		"a way out and in":      {tarred(t, file("a/../../a/x.rego", "")), ErrEntry, "is no path below the root"},
		"a way in a way":        {tarred(t, file("a/../x.rego", "")), ErrEntry, "is no path below the root"},
		"an absolute way out":   {tarred(t, file("/../x.rego", "")), ErrEntry, "is no path below the root"},
		"a backslash":           {tarred(t, file(`..\x.rego`, "")), ErrEntry, "is no path below the root"},
		"no text":               {tarred(t, file("\xff.rego", "")), ErrEntry, "is no path below the root"},
		"the same twice":        {tarred(t, file("x.rego", "1"), file("./x.rego", "2")), ErrEntry, `"x.rego" is there twice`},
		"a link":                {tarred(t, link(tar.TypeSymlink, "/etc/passwd")), ErrEntry, `"x.rego" is a link or something special`},
		"a hard link":           {tarred(t, file("y.rego", ""), link(tar.TypeLink, "y.rego")), ErrEntry, `"x.rego" is a link or something special`},
		"a device":              {tarred(t, link(tar.TypeChar, "")), ErrEntry, "something special"},
		"a pipe":                {tarred(t, link(tar.TypeFifo, "")), ErrEntry, "something special"},
		"a file and a folder":   {tarred(t, file("a", ""), file("a/x.rego", "")), ErrEntry, "a is a file and a folder"},
		"too many files":        {tarred(t, many...), ErrTooLarge, "more than 10000 files"},
		"a file that is a bomb": {tarred(t, file("data.json", strings.Repeat("\x00", policy.MaxBundleBytes+1))), ErrTooLarge, "larger than 33554432 bytes"},
		"files that are a bomb": {tarred(t, file("a", strings.Repeat("a", policy.MaxBundleBytes/2)), file("b", strings.Repeat("b", policy.MaxBundleBytes/2)), file("c", "c")), ErrTooLarge, "larger than"},
	} {
		tree, err := untar(bytes.NewReader(test.content))
		if tree != nil || !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("%s: got %v, want %v: %s", name, err, test.kind, test.text)
		}
	}
}

// endless is a bomb: zeros that are compressed, without an end, and count how many were asked for.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.read.Add(int64(len(p)))
	clear(p)
	return len(p), nil
}

// TestABombStopsAtTheBound: what follows the last file counts as well, and no more is decompressed than the bound.
func TestABombStopsAtTheBound(t *testing.T) {
	var bomb endless
	piped, in := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		compressed, err := gzip.NewWriterLevel(in, gzip.BestSpeed)
		if err != nil {
			t.Error(err)
		}
		archive := tar.NewWriter(compressed)
		_ = archive.WriteHeader(&tar.Header{Name: "x.rego", Size: 1, Mode: 0o644})
		_, _ = archive.Write([]byte("x"))
		_ = archive.Close()
		_, _ = io.Copy(compressed, &bomb)
	}()
	_, err := untar(piped)
	_ = piped.Close()
	<-done
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	if read := bomb.read.Load(); read > inflatedMax+16<<20 { // what the compressor buffers
		t.Errorf("%d bytes were decompressed", read)
	}
}

func FuzzUntar(f *testing.F) {
	f.Add(packed(f, small))
	f.Add(tarred(f, file("../x", "y"), file("a", "b"), file("a", "c")))
	f.Add([]byte{0x1f, 0x8b})
	f.Fuzz(func(t *testing.T, content []byte) {
		tree, err := untar(bytes.NewReader(content))
		var ours *Error
		if err != nil && !errors.As(err, &ours) || (tree == nil) == (err == nil) {
			t.Fatalf("%v, %v", tree, err)
		}
		for name := range tree.walkable() {
			if !fs.ValidPath(name) {
				t.Fatalf("the path %q", name)
			}
		}
	})
}

func (t *tree) walkable() map[string][]byte {
	if t == nil {
		return nil
	}
	return t.files
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
