package workshop

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"maps"
	"slices"
	"strings"
	"testing"

	"regent/engine/policy"
)

// packed is an archive of some entries.
func packed(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var archive bytes.Buffer
	zipped := gzip.NewWriter(&archive)
	entries := tar.NewWriter(zipped)
	for _, header := range headers {
		if err := entries.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if _, err := entries.Write(bytes.Repeat([]byte("x"), int(header.Size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := entries.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func file(name string, size int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644}
}

func TestAnArchiveIsReadByItsRegularFiles(t *testing.T) {
	files, err := readArchive(bytes.NewReader(packed(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "org/"}, file("/.manifest", 1), file("./org/a.rego", 2), file("org/b.rego", 0))))
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, []string{".manifest", "org/a.rego", "org/b.rego"}) || string(files["org/a.rego"]) != "xx" {
		t.Errorf("got %v", got)
	}
}

func TestAnArchiveIsRefused(t *testing.T) {
	for _, test := range []struct {
		name    string
		archive []byte
		want    string
	}{
		{"no gzip", []byte("nothing"), "it is no .tar.gz"},
		{"a link", packed(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "/etc/passwd"}), "a is no regular file"},
		{"a device", packed(t, tar.Header{Typeflag: tar.TypeChar, Name: "a"}), "a is no regular file"},
		{"a way out", packed(t, file("a/../../b", 1)), "a/../../b leads out of it"},
		{"a file twice", packed(t, file("a", 1), file("./a", 2)), "a is there twice"},
		{"large files", packed(t, file("a", policy.MaxBundleBytes), file("b", 1)), "its files have more than 33554432 bytes"},
		{"cut off", packed(t, file("a", 100_000))[:60], "it cannot be unpacked"},
		{"many entries", packed(t, slices.Repeat([]tar.Header{{Typeflag: tar.TypeDir, Name: "a/"}}, maxEntries+1)...), "more than 20000 entries"},
	} {
		if _, err := readArchive(bytes.NewReader(test.archive)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", test.name, err, test.want)
		}
	}
}

// What a few bytes unpack to is bounded, also where no file says its size.
func TestAnArchiveIsNoBomb(t *testing.T) {
	var archive bytes.Buffer
	zipped := gzip.NewWriter(&archive)
	if err := tar.NewWriter(zipped).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 1<<20)
	for range 2*policy.MaxBundleBytes>>20 + 1 {
		if _, err := zipped.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := readArchive(&archive); err == nil {
		t.Error("it was unpacked")
	}
}

func TestAnArchiveDependsOnItsFilesAlone(t *testing.T) {
	files := map[string][]byte{}
	for _, name := range []string{"b", "a/c", "a/b", ".manifest", strings.Repeat("long/", 40) + "x"} {
		files[name] = []byte("content of " + name)
	}
	var first bytes.Buffer
	if err := writeArchive(&first, files); err != nil {
		t.Fatal(err)
	}
	for range 20 { // the order of a map is another one each time
		var again bytes.Buffer
		if err := writeArchive(&again, maps.Clone(files)); err != nil || !bytes.Equal(first.Bytes(), again.Bytes()) {
			t.Fatalf("it differs, %v", err)
		}
	}
	read, err := readArchive(&first)
	if err != nil || !maps.EqualFunc(read, files, bytes.Equal) {
		t.Errorf("got %v, %v", read, err)
	}
}

func FuzzArchive(f *testing.F) {
	f.Add(packed(f, file("/.manifest", 1), file("a/b", 3)))
	f.Add(packed(f, tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: "b"}))
	f.Fuzz(func(t *testing.T, archive []byte) {
		files, err := readArchive(bytes.NewReader(archive))
		for name := range files {
			if err == nil && (strings.HasPrefix(name, "/") || strings.Contains("/"+name+"/", "/../")) {
				t.Errorf("%q leads out", name)
			}
		}
	})
}
