package bundles

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"regent/engine/policy"
	"regent/server/catalog"
)

// must fails if one of them is an error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// TestAFolderHasToHoldStill: what was changed is read when it is the same at two looks.
func TestAFolderHasToHoldStill(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, small)
	from := newFolder(folder)
	wantError(t, from, false, ErrUnsettled, "it counts as soon as it holds still")
	wantTree(t, from, false, small)
	wantTree(t, from, false, nil)

	path := filepath.Join(folder, "org/rules/a/a.rego")
	for _, half := range []string{"package or", "package org.rules.b", "package org.rules.b\n\nx := 1"} { // a file that is being written
		must(t, os.WriteFile(path, []byte(half), 0o644))
		wantError(t, from, false, ErrUnsettled, folder)
	}
	want := maps.Clone(small)
	want["org/rules/a/a.rego"] = "package org.rules.b\n\nx := 1"
	wantTree(t, from, false, want)
	wantTree(t, from, false, nil)

	must(t, os.Remove(path))
	delete(want, "org/rules/a/a.rego")
	wantError(t, from, false, ErrUnsettled, folder)
	wantTree(t, from, false, want)
}

// TestAFolderThatIsWrittenAllTheTime: that it never counts is said.
func TestAFolderThatIsWrittenAllTheTime(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, small)
	from := newFolder(folder)
	wantTree(t, from, true, small)
	for i := range unsettledMax {
		write(t, folder, map[string]string{"log": strings.Repeat("x", i)})
		wantError(t, from, false, ErrUnsettled, folder)
	}
	write(t, folder, map[string]string{"log": strings.Repeat("x", unsettledMax)})
	if _, err := from.fetch(t.Context(), false); err == nil || errors.Is(err, ErrUnsettled) || !strings.Contains(err.Error(), "does not hold still") {
		t.Errorf("got %v", err)
	}
	wantTree(t, from, false, map[string]string{
		".manifest": small[".manifest"], "org/rules/a/a.rego": small["org/rules/a/a.rego"], "log": strings.Repeat("x", unsettledMax),
	})
}

// TestAFileThatTakesAnothersPlace has its size and its time: it is another file all the same.
func TestAFileThatTakesAnothersPlace(t *testing.T) {
	folder := t.TempDir()
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	path, next := filepath.Join(folder, "a.rego"), filepath.Join(t.TempDir(), "next")
	must(t, os.WriteFile(path, []byte("package a"), 0o644), os.Chtimes(path, day, day))
	from := newFolder(folder)
	wantTree(t, from, true, map[string]string{"a.rego": "package a"})
	must(t, os.WriteFile(next, []byte("package b"), 0o644), os.Chtimes(next, day, day), os.Rename(next, path))
	wantError(t, from, false, ErrUnsettled, folder)
	wantTree(t, from, false, map[string]string{"a.rego": "package b"})
}

// TestLinksInAFolder: within it they are followed, out of it they are refused, and the message says which.
func TestLinksInAFolder(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret.rego")
	must(t, os.WriteFile(secret, []byte("package secret"), 0o644))
	for name, test := range map[string]struct {
		make func(folder string) error
		kind error // nil where it is taken
		text string
	}{
		"to a file beside it":  {func(f string) error { return os.Symlink("a.rego", filepath.Join(f, "org/b.rego")) }, nil, "org/b.rego"},
		"to a file outside":    {func(f string) error { return os.Symlink(secret, filepath.Join(f, "org/b.rego")) }, ErrEntry, `org/b.rego is a link to "` + secret + `"`},
		"to a file above":      {func(f string) error { return os.Symlink("../../../etc/passwd", filepath.Join(f, "org/b.rego")) }, ErrEntry, "org/b.rego is a link to"},
		"to a folder outside":  {func(f string) error { return os.Symlink("/etc", filepath.Join(f, "org/etc")) }, ErrEntry, `org/etc is a link to "/etc"`},
		"to the folder itself": {func(f string) error { return os.Symlink("..", filepath.Join(f, "org/loop")) }, ErrEntry, "org/loop is a link to a folder of the bundle"},
		"to itself":            {func(f string) error { return os.Symlink("loop.rego", filepath.Join(f, "org/loop.rego")) }, ErrEntry, "org/loop.rego is a link to"},
		"to nothing":           {func(f string) error { return os.Symlink("nothing", filepath.Join(f, "org/b.rego")) }, fs.ErrNotExist, "org/b.rego: no such file"},
		"of a name with a dot": {func(f string) error { return os.Symlink(secret, filepath.Join(f, ".b.rego")) }, nil, ""},
		"no link, but a pipe":  {func(f string) error { return syscall.Mkfifo(filepath.Join(f, "org/b.rego"), 0o644) }, ErrEntry, "org/b.rego is no regular file"},
		"to hidden, into a loop": {func(f string) error {
			return errors.Join(os.Mkdir(filepath.Join(f, ".h"), 0o755), os.Symlink("../.h", filepath.Join(f, ".h/x")), os.Symlink(".h", filepath.Join(f, "x")))
		}, ErrEntry, "is a link to"},
		"no link, but too deep": {func(f string) error { return os.MkdirAll(filepath.Join(f, strings.Repeat("d/", most.Depth+1)), 0o755) }, ErrEntry, "below more than 32 folders"},
	} {
		folder := t.TempDir()
		write(t, folder, map[string]string{"org/a.rego": "package org"})
		must(t, test.make(folder))
		from := newFolder(folder)
		if test.kind != nil {
			wantError(t, from, true, test.kind, test.text)
			continue
		}
		want := map[string]string{"org/a.rego": "package org"}
		if test.text != "" {
			want[test.text] = "package org"
		}
		t.Log(name)
		wantTree(t, from, true, want)
	}
}

// TestAFolderAsKubernetesMountsIt: every name is a link to ..data, which is a link that is led to another folder at once.
func TestAFolderAsKubernetesMountsIt(t *testing.T) {
	folder := t.TempDir()
	publish := func(version string, files map[string]string) {
		write(t, filepath.Join(folder, "..v"+version), files)
		must(t, os.Symlink("..v"+version, filepath.Join(folder, "..data_tmp")), os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")))
	}
	publish("1", small)
	for _, name := range []string{".manifest", "org"} {
		must(t, os.Symlink("..data/"+name, filepath.Join(folder, name)))
	}
	from := newFolder(folder)
	wantTree(t, from, true, small)
	wantTree(t, from, false, nil)
	publish("2", larger)
	wantError(t, from, false, ErrUnsettled, folder)
	wantTree(t, from, false, larger)
	must(t, os.RemoveAll(filepath.Join(folder, "..v1")))
	wantTree(t, from, false, nil)
}

// TestALinkToAFolder that is led elsewhere, as releases are.
func TestALinkToAFolder(t *testing.T) {
	releases := t.TempDir()
	write(t, filepath.Join(releases, "1"), small)
	write(t, filepath.Join(releases, "2"), larger)
	current, next := filepath.Join(releases, "current"), filepath.Join(releases, "next")
	must(t, os.Symlink("1", current))
	from := newFolder(current)
	wantTree(t, from, true, small)
	must(t, os.Symlink("2", next), os.Rename(next, current))
	wantError(t, from, false, ErrUnsettled, current)
	wantTree(t, from, false, larger)
}

func TestFoldersThatAreRefused(t *testing.T) {
	folder := t.TempDir()
	write(t, folder, small)
	from := newFolder(folder)
	wantTree(t, from, true, small)
	must(t, os.Rename(folder, folder+"-away"))
	wantError(t, from, false, fs.ErrNotExist, folder)
	must(t, os.Rename(folder+"-away", folder))
	wantError(t, from, false, ErrUnsettled, folder)
	wantTree(t, from, false, small)
	if _, err := newFolder(filepath.Join(folder, ".manifest")).fetch(t.Context(), true); err == nil || !strings.Contains(err.Error(), ".manifest: not a directory") {
		t.Errorf("a file in place of a folder: %v", err)
	}

	large := t.TempDir()
	write(t, large, map[string]string{"data.json": strings.Repeat(" ", policy.MaxBundleBytes), "more": "x"})
	from = newFolder(large)
	wantError(t, from, true, ErrTooLarge, "larger than 33554432 bytes")
	wantError(t, from, false, ErrTooLarge, "move data out of it")
	must(t, os.Remove(filepath.Join(large, "more")))
	if found, err := from.fetch(t.Context(), true); err != nil || len(found.Files()["data.json"]) != policy.MaxBundleBytes {
		t.Errorf("a bundle of the largest size: %v", err)
	}
}

// TestATarballOnDisk is watched as a folder is.
func TestATarballOnDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "org.tar.gz")
	from := newFile(path)
	wantError(t, from, false, fs.ErrNotExist, path+": no such file or directory")
	whole := packed(t, small)
	must(t, os.WriteFile(path, whole[:len(whole)/2], 0o644))
	wantError(t, from, false, ErrUnsettled, path)
	wantError(t, from, false, ErrNotTarball, path+": it is no tar.gz: it ends too early: make it by")
	wantError(t, from, false, ErrNotTarball, "it ends too early") // and is not read again
	must(t, os.WriteFile(path, whole, 0o644))
	wantError(t, from, false, ErrUnsettled, path)
	wantTree(t, from, false, small)
	wantTree(t, from, false, nil)
	wantTree(t, from, true, small) // whoever asks for a look gets one
	must(t, os.WriteFile(path, packed(t, larger), 0o644))
	wantTree(t, from, true, larger)

	wantError(t, newFile(t.TempDir()), true, ErrNotTarball, "it is no regular file: name a tar.gz")
	must(t, os.Truncate(path, policy.MaxBundleBytes+1))
	wantError(t, from, true, ErrTooLarge, "larger than 33554432 bytes")
}

// TestAChangeCountsWithinASecond, by a set that runs.
func TestAChangeCountsWithinASecond(t *testing.T) {
	folder, path := t.TempDir(), filepath.Join(t.TempDir(), "org.tar.gz")
	write(t, folder, small)
	must(t, os.WriteFile(path, packed(t, small), 0o644))
	s, told, _ := newSet(t)
	s.Follow([]catalog.Bundle{inFolderAs("a", folder), {BundleSource: catalog.BundleSource{Name: "b", File: path}}})
	start(t, s)
	wait(t, "both", func() bool { return holds(t, s, "a", small) && holds(t, s, "b", small) })
	write(t, folder, larger)
	must(t, os.WriteFile(path, packed(t, larger), 0o644))
	began := time.Now()
	wait(t, "the change of both", func() bool { return holds(t, s, "a", larger) && holds(t, s, "b", larger) })
	if took := time.Since(began); took > 2*time.Second { // half a second, and the rest for a machine that is busy
		t.Errorf("it took %v", took)
	}
	if told.n.Load() != 4 {
		t.Errorf("told %d times", told.n.Load())
	}
	must(t, os.Chtimes(path, time.Now(), time.Now().Add(-time.Hour))) // another time and the same content: read, and not told of
	must(t, os.RemoveAll(folder))
	wait(t, "the folder to be missed", func() bool { return s.States()[0].Err != nil })
	if !holds(t, s, "a", larger) {
		t.Error("the last good content does not count")
	}
	write(t, folder, larger)
	wait(t, "the folder to be there again", func() bool { return s.States()[0].Err == nil })
	time.Sleep(3 * localEvery)
	if told.n.Load() != 4 {
		t.Error("what was there before counts as a change")
	}
}
