// Package tarball keeps files as a .tar.gz, and in memory as a tree.
//
// What is read may come from anybody: it costs no more than its limits say, and nothing of it leads out of its root. Errors tell paths
// of files, and never what is in them.
package tarball

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

// What can be wrong with files.
var (
	// ErrNotTarball: they are no .tar.gz, or not all of one.
	ErrNotTarball = errors.New("it is no tar.gz")
	// ErrEntry: a file is no regular one, is there twice, or has a path that none may have.
	ErrEntry = errors.New("it holds what it may not")
	// ErrTooLarge: they are more than the limits.
	ErrTooLarge = errors.New("it is too large")
)

// Limits bound files that are read. All are required.
type Limits struct {
	// Bytes of all files together.
	Bytes int64
	// Files that there may be.
	Files int
	// Depth is how many folders a file may lie below: each costs memory, also where no byte of a file does.
	Depth int
}

// entryBytes is what a tarball spends on an entry besides its content: a header, a longer name, and what fills up a block.
const entryBytes = 2 << 10

// inflated bounds a tarball as it is decompressed, so that one that is small and grows without an end stops there.
func (l Limits) inflated() int64 { return l.Bytes + int64(l.Files)*entryBytes }

// Read reads a .tar.gz into memory. It holds regular files, each once, all below its root; folders in it are looked past. An error
// wraps one of those above.
func Read(from io.Reader, limits Limits) (*Tree, error) {
	decompressed, err := gzip.NewReader(from)
	if err != nil {
		return nil, notTarball(gzip.ErrHeader)
	}
	bounded := &bound{from: decompressed, most: limits.inflated(), left: limits.inflated()}
	found := Gather(limits)
	if err := found.addAll(tar.NewReader(bounded)); err != nil {
		return nil, notTarball(err)
	}
	if _, err := io.Copy(io.Discard, bounded); err != nil { // only at its end it is known to be whole
		return nil, notTarball(err)
	}
	if len(found.files) == 0 {
		return nil, fmt.Errorf("%w: it holds no file", ErrNotTarball)
	}
	return found.Tree()
}

func (g *Gathered) addAll(archive *tar.Reader) error {
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = g.addEntry(header, archive)
		}
		if err != nil {
			return err
		}
	}
}

func (g *Gathered) addEntry(header *tar.Header, content io.Reader) error {
	switch header.Typeflag {
	case tar.TypeReg:
		return g.Add(below(header.Name), content)
	case tar.TypeDir, tar.TypeXGlobalHeader: // the latter is what git archive says of its commit
		return nil
	}
	return fmt.Errorf("%w: the entry %s is a link or something special", ErrEntry, shown(header.Name))
}

// below is the path of an entry below the root. Tools write it as /x, ./x or x. One that goes up stays as it is, and is no path.
func below(name string) string {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return name
	}
	return path.Clean(strings.TrimLeft(name, "/"))
}

// notTarball says of an error of a reader that it is no tarball. One of ours says more.
func notTarball(err error) error {
	if errors.Is(err, ErrEntry) || errors.Is(err, ErrTooLarge) {
		return err
	}
	what := "it is broken" // what the reader says may hold a part of it
	switch {
	case errors.Is(err, gzip.ErrHeader):
		what = "it is not compressed by gzip"
	case errors.Is(err, io.ErrUnexpectedEOF):
		what = "it ends too early"
	case errors.Is(err, gzip.ErrChecksum):
		what = "its checksum is wrong"
	case errors.Is(err, tar.ErrHeader):
		what = "what was compressed is no tar"
	}
	return fmt.Errorf("%w: %s", ErrNotTarball, what)
}

// bound reads so many bytes and refuses more.
type bound struct {
	from       io.Reader
	most, left int64
}

func (b *bound) Read(p []byte) (int, error) {
	n, err := b.from.Read(p[:min(int64(len(p)), b.left+1)])
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("%w: decompressed it is larger than %d bytes", ErrTooLarge, b.most)
	}
	return n, err
}

// Write writes files by their paths as a .tar.gz that depends on nothing but them: in the order of their paths, with no times and no
// owner. A path that [NewTree] would not take is an [ErrEntry].
func Write(to io.Writer, files map[string][]byte) error {
	compressor := gzip.NewWriter(to)
	archive := tar.NewWriter(compressor)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := writeFile(archive, name, files[name]); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), compressor.Close())
}

func writeFile(archive *tar.Writer, name string, content []byte) error {
	if err := checkPath(name); err != nil {
		return err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}
