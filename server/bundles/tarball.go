package bundles

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"regent/engine/policy"
)

const (
	// entryBytes is what a tarball spends on an entry besides its content: a header, a longer name, and what fills up a block.
	entryBytes = 2 << 10
	// inflatedMax bounds a tarball as it is decompressed, so that one that is small and grows without an end stops there.
	inflatedMax = policy.MaxBundleBytes + filesMax*entryBytes
)

// untar reads a tarball into memory. It holds files and folders and nothing else, each once, all below its root.
func untar(compressed io.Reader) (*tree, error) {
	inflated, err := gzip.NewReader(compressed)
	if err != nil {
		return nil, notTarball(gzip.ErrHeader)
	}
	bounded := &bound{from: inflated, left: inflatedMax}
	var found gathered
	for archive := tar.NewReader(bounded); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = found.entry(header, archive)
		}
		if err != nil {
			return nil, notTarball(err)
		}
	}
	if _, err := io.Copy(io.Discard, bounded); err != nil { // only at its end it is known to be whole
		return nil, notTarball(err)
	}
	if len(found.files) == 0 {
		return nil, wrong(ErrNotTarball, "make it by `regent policy build` or `tar czf`", "it holds no file")
	}
	return newTree(found.files)
}

// notTarball says of an error of a reader that it is no tarball. One of ours says more.
func notTarball(err error) error {
	var ours *Error
	if errors.As(err, &ours) {
		return ours
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
	return wrong(ErrNotTarball, "make it by `regent policy build` or `tar czf`", "%s", what)
}

// entry takes an entry of a tarball.
func (g *gathered) entry(header *tar.Header, content io.Reader) error {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil // what git archive says of its commit
	}
	name, err := cleaned(header.Name)
	switch {
	case err != nil:
		return err
	case header.Typeflag == tar.TypeDir:
		return nil
	case header.Typeflag != tar.TypeReg:
		return wrong(ErrEntry, "put the file itself there", "the entry %q is a link or something special", header.Name)
	}
	if _, twice := g.files[name]; twice {
		return wrong(ErrEntry, "leave one of them out", "the entry %q is there twice", name)
	}
	return g.add(name, content)
}

// cleaned is the path of an entry below the root. Tools write it as /x, ./x or x.
func cleaned(name string) (string, error) {
	clean := path.Clean(strings.TrimLeft(name, "/"))
	if slices.Contains(strings.Split(name, "/"), "..") || !fs.ValidPath(clean) || strings.ContainsAny(clean, "\\\x00") {
		return "", wrong(ErrEntry, "pack it from within its folder", "the entry %q is no path below the root", name)
	}
	return clean, nil
}

// bound reads so many bytes and refuses more.
type bound struct {
	from io.Reader
	left int64
}

func (b *bound) Read(p []byte) (int, error) {
	n, err := b.from.Read(p[:min(int64(len(p)), b.left+1)])
	if b.left -= int64(n); b.left < 0 {
		return 0, wrong(ErrTooLarge, "move data out of it", "decompressed it is larger than %d bytes", int64(inflatedMax))
	}
	return n, err
}
