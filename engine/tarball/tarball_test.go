package tarball

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
)

// few are limits that are soon reached.
var few = Limits{Bytes: 1 << 20, Files: 100, Depth: 4}

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

func folder(name string) entry {
	return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeDir}}
}

func link(kind byte, to string) entry {
	return entry{Header: tar.Header{Name: "x.rego", Typeflag: kind, Linkname: to}}
}

func TestTree(t *testing.T) {
	files := map[string][]byte{".manifest": []byte("{}"), "org/rules/a/a.rego": []byte("package a"), "org/rules-b": nil, "org/empty": {}}
	tree, err := NewTree(files)
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(tree, slices.Sorted(maps.Keys(files))...); err != nil {
		t.Error(err)
	}
	same, err := NewTree(maps.Clone(files))
	if err != nil || same.Version() != tree.Version() {
		t.Errorf("the same files are another version: %v", err)
	}
	for _, paths := range [][]string{{"a", "a/b"}, {"/a"}, {"../a"}, {"a//b"}, {"."}, {""}, {`..\a`}, {"a\x00"}, {"\xff"}} {
		wrong := map[string][]byte{}
		for _, path := range paths {
			wrong[path] = nil
		}
		if _, err := NewTree(wrong); !errors.Is(err, ErrEntry) {
			t.Errorf("%q is a tree: %v", paths, err)
		}
	}
}

func TestVersionsDiffer(t *testing.T) {
	versions := map[string]map[string][]byte{}
	for _, files := range []map[string][]byte{
		nil, {"ab": []byte("c")}, {"a": []byte("bc")}, {"a": []byte("b"), "c": nil}, {"ab": nil}, {"a": []byte("b")}, {"a": nil, "b": []byte("c")},
	} {
		tree, err := NewTree(files)
		if err != nil {
			t.Fatal(err)
		}
		if other, known := versions[tree.Version()]; known {
			t.Errorf("%v and %v are one version", files, other)
		}
		versions[tree.Version()] = files
	}
}

func TestRead(t *testing.T) {
	want := map[string]string{".manifest": "{}", "org/a.rego": "package org"}
	for name, entries := range map[string][]entry{
		"as opa build writes it":  {file("/.manifest", "{}"), file("/org/a.rego", "package org")},
		"as tar writes it":        {folder("./"), file("./.manifest", "{}"), folder("./org/"), file("./org/a.rego", "package org")},
		"as git archive does":     {{Header: tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "1"}}}, file(".manifest", "{}"), file("org/a.rego", "package org")},
		"with slashes to be lost": {file("//.manifest", "{}"), file("org//./a.rego", "package org")},
	} {
		tree, err := Read(bytes.NewReader(tarred(t, entries...)), few)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := map[string]string{}
		for path, content := range tree.Files() {
			got[path] = string(content)
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	good := tarred(t, file(".manifest", `{"roots": ["org"]}`), file("org/rules/a/a.rego", "package org.rules.a\n"))
	damaged := bytes.Clone(good)
	damaged[len(damaged)-6] ^= 1 // the checksum
	var noTar bytes.Buffer
	compressed := gzip.NewWriter(&noTar)
	_, _ = io.WriteString(compressed, strings.Repeat("this is no tar ", 100))
	_ = compressed.Close()
	many := make([]entry, few.Files+1)
	for i := range many {
		many[i] = file(fmt.Sprintf("%d/%d", i%10, i), "")
	}
	half := strings.Repeat("a", int(few.Bytes)/2)
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
		"folders alone":         {tarred(t, folder("a/")), ErrNotTarball, "it holds no file"},
		"a way out":             {tarred(t, file("../x.rego", "")), ErrEntry, `"../x.rego" is no path below the root`},
		"a way out and in":      {tarred(t, file("a/../../a/x.rego", "")), ErrEntry, "is no path below the root"},
		"a way in a way":        {tarred(t, file("a/../x.rego", "")), ErrEntry, "is no path below the root"},
		"an absolute way out":   {tarred(t, file("/../x.rego", "")), ErrEntry, "is no path below the root"},
		"a backslash":           {tarred(t, file(`..\x.rego`, "")), ErrEntry, "is no path below the root"},
		"no text":               {tarred(t, file("\xff.rego", "")), ErrEntry, "is no path below the root"},
		"the root itself":       {tarred(t, file(".", "")), ErrEntry, "is no path below the root"},
		"a path without an end": {tarred(t, file(strings.Repeat("a", 100_000)+"/../x", "")), ErrEntry, `aaaa" is no path below the root`},
		"many folders":          {tarred(t, file("a/b/c/d/e/x", "")), ErrEntry, `"a/b/c/d/e/x" lies below more than 4 folders`},
		"the same twice":        {tarred(t, file("x.rego", "1"), file("./x.rego", "2")), ErrEntry, `"x.rego" is there twice`},
		"a link":                {tarred(t, link(tar.TypeSymlink, "/etc/passwd")), ErrEntry, `"x.rego" is a link or something special`},
		"a hard link":           {tarred(t, file("y.rego", ""), link(tar.TypeLink, "y.rego")), ErrEntry, `"x.rego" is a link or something special`},
		"a device":              {tarred(t, link(tar.TypeChar, "")), ErrEntry, "something special"},
		"a pipe":                {tarred(t, link(tar.TypeFifo, "")), ErrEntry, "something special"},
		"a file and a folder":   {tarred(t, file("a", ""), file("a/x.rego", "")), ErrEntry, `"a" is a file and a folder`},
		"too many files":        {tarred(t, many...), ErrTooLarge, "more than 100 files"},
		"too many folders":      {tarred(t, slices.Repeat([]entry{folder("a/")}, 3000)...), ErrTooLarge, "decompressed it is larger than 1253376 bytes"},
		"a large file":          {tarred(t, file("data.json", half+half+"a")), ErrTooLarge, "its files are larger than 1048576 bytes"},
		"large files":           {tarred(t, file("a", half), file("b", half), file("c", "c")), ErrTooLarge, "its files are larger than 1048576 bytes"},
	} {
		tree, err := Read(bytes.NewReader(test.content), few)
		if tree != nil || !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.text) || len(err.Error()) > 1000 {
			t.Errorf("%s: got %v, want %v: %s", name, err, test.kind, test.text)
		}
	}
}

func TestReadTakesAsMuchAsItsLimits(t *testing.T) {
	whole := make([]entry, few.Files)
	for i := range whole {
		whole[i] = file(fmt.Sprintf("a/b/c/d/%d", i), "")
	}
	whole[0].content = strings.Repeat("a", int(few.Bytes))
	if tree, err := Read(bytes.NewReader(tarred(t, whole...)), few); err != nil || len(tree.Files()) != few.Files {
		t.Errorf("got %v", err)
	}
}

// endless is a bomb: zeros that are compressed, without an end, and count how many were asked for.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.read.Add(int64(len(p)))
	clear(p)
	return len(p), nil
}

// TestABombStopsAtTheBound: also what a file says of its size, and what follows the last one, counts, and no more is decompressed.
func TestABombStopsAtTheBound(t *testing.T) {
	for name, size := range map[string]int64{"after a file": 1, "as a file": 1 << 40} {
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
			_ = archive.WriteHeader(&tar.Header{Name: "x.rego", Size: size, Mode: 0o644})
			_, _ = archive.Write([]byte("x"))
			_ = archive.Close() // fails where a file is not all there
			_, _ = io.Copy(compressed, &bomb)
		}()
		_, err := Read(piped, few)
		_ = piped.Close()
		<-done
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: got %v", name, err)
		}
		if read := bomb.read.Load(); read > few.inflated()+16<<20 { // what the compressor buffers
			t.Errorf("%s: %d bytes were decompressed", name, read)
		}
	}
}

func TestGatherTellsOfItsReader(t *testing.T) {
	broken := errors.New("broken")
	if err := Gather(few).Add("a", io.MultiReader(strings.NewReader("a"), failing{broken})); err != broken {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestWriteDependsOnItsFilesAlone(t *testing.T) {
	files := map[string][]byte{}
	for _, name := range []string{"b", "a/c", "a/b", ".manifest", strings.Repeat("long", 60) + "/x"} {
		files[name] = []byte("content of " + name)
	}
	var first bytes.Buffer
	if err := Write(&first, files); err != nil {
		t.Fatal(err)
	}
	for range 20 { // the order of a map is another one each time
		var again bytes.Buffer
		if err := Write(&again, maps.Clone(files)); err != nil || !bytes.Equal(first.Bytes(), again.Bytes()) {
			t.Fatalf("it differs, %v", err)
		}
	}
	if tree, err := Read(&first, few); err != nil || !maps.EqualFunc(tree.Files(), files, bytes.Equal) {
		t.Errorf("got %v, %v", tree, err)
	}
}

func TestWriteRefusesWhatIsNotRead(t *testing.T) {
	for _, name := range []string{"/a", "./a", "../a", `a\b`, "", "."} {
		if err := Write(io.Discard, map[string][]byte{name: nil}); !errors.Is(err, ErrEntry) {
			t.Errorf("%q: got %v", name, err)
		}
	}
	full := errors.New("full")
	if err := Write(failing{full}, map[string][]byte{"a": nil}); !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// FuzzRead: whatever comes is refused for a reason that is known, or is a tree that is written and read again as it is.
func FuzzRead(f *testing.F) {
	f.Add(tarred(f, file("/.manifest", "{}"), folder("a/"), file("a/b", "c")))
	f.Add(tarred(f, file("../x", "y"), file("a", "b"), file("a", "c")))
	f.Add(tarred(f, link(tar.TypeSymlink, "b")))
	f.Add([]byte{0x1f, 0x8b})
	f.Fuzz(func(t *testing.T, content []byte) {
		tree, err := Read(bytes.NewReader(content), few)
		if err != nil {
			if tree != nil || !errors.Is(err, ErrNotTarball) && !errors.Is(err, ErrEntry) && !errors.Is(err, ErrTooLarge) {
				t.Fatalf("%v, %v", tree, err)
			}
			return
		}
		for name := range tree.Files() {
			if !fs.ValidPath(name) {
				t.Fatalf("the path %q", name)
			}
		}
		var again bytes.Buffer
		if err := Write(&again, tree.Files()); err != nil {
			t.Fatal(err)
		}
		if same, err := Read(&again, few); err != nil || same.Version() != tree.Version() {
			t.Fatalf("it is read again as %v, %v", same, err)
		}
	})
}
