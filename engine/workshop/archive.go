package workshop

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/open-policy-agent/opa/v1/util"

	"regent/engine/policy"
)

// Bounds of an archive that is read.
const (
	maxUnpacked = 2 * policy.MaxBundleBytes // bytes: a bundle's files, and as much again for headers and padding
	maxEntries  = 20_000                    // twice what a bundle has of files, for its folders
)

// readArchive reads the regular files of a .tar.gz by their paths. Links, devices and paths that lead elsewhere are refused, as is a path
// that is there twice, of which tools each take another one.
func readArchive(archive io.Reader) (map[string][]byte, error) {
	unzipped, err := gzip.NewReader(archive)
	if err != nil {
		return nil, fmt.Errorf("it is no .tar.gz: %w", err)
	}
	entries := tar.NewReader(&bounded{from: unzipped, left: maxUnpacked})
	files := make(map[string][]byte)
	size := int64(0)
	for n := 0; ; n++ {
		header, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			return files, nil
		case err != nil:
			return nil, fmt.Errorf("it cannot be unpacked: %w", err)
		case n == maxEntries:
			return nil, fmt.Errorf("it has more than %d entries", maxEntries)
		case header.Typeflag == tar.TypeDir || header.Typeflag == tar.TypeXGlobalHeader:
			continue
		}
		name := path.Clean(strings.TrimLeft(header.Name, "/"))
		switch _, exists := files[name]; {
		case header.Typeflag != tar.TypeReg:
			return nil, fmt.Errorf("%s is no regular file", header.Name)
		case !fs.ValidPath(name):
			return nil, fmt.Errorf("%s leads out of it", header.Name)
		case exists:
			return nil, fmt.Errorf("%s is there twice", name)
		}
		if size += header.Size; size > policy.MaxBundleBytes {
			return nil, fmt.Errorf("its files have more than %d bytes", policy.MaxBundleBytes)
		}
		if files[name], err = io.ReadAll(entries); err != nil {
			return nil, fmt.Errorf("it cannot be unpacked: %w", err)
		}
	}
}

// bounded is a reader that fails where it would have to read more.
type bounded struct {
	from io.Reader
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("it has more than %d bytes when it is unpacked", int64(maxUnpacked))
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// writeArchive writes files as a .tar.gz that depends on nothing but them: their paths in order, no times, no owner.
func writeArchive(to io.Writer, files map[string][]byte) error {
	zipped := gzip.NewWriter(to)
	entries := tar.NewWriter(zipped)
	for _, name := range util.KeysSorted(files) {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name]))}
		if err := entries.WriteHeader(header); err != nil {
			return err
		}
		if _, err := entries.Write(files[name]); err != nil {
			return err
		}
	}
	return errors.Join(entries.Close(), zipped.Close())
}
