package bundles

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"time"

	"regent/engine/policy"
)

// filesMax bounds the files of a bundle: as many as policy takes.
const filesMax = 10_000

// gathered is what is read of a bundle, file by file.
type gathered struct {
	files map[string][]byte
	bytes int64
}

// add reads a file, within what policy takes.
func (g *gathered) add(name string, content io.Reader) error {
	if len(g.files) == filesMax {
		return wrong(ErrTooLarge, "move what is no policy out of it", "it has more than %d files", filesMax)
	}
	text, err := io.ReadAll(io.LimitReader(content, policy.MaxBundleBytes-g.bytes+1))
	if err != nil {
		return err
	}
	if g.bytes += int64(len(text)); g.bytes > policy.MaxBundleBytes {
		return wrong(ErrTooLarge, "move data out of it", "its files are larger than %d bytes", policy.MaxBundleBytes)
	}
	if g.files == nil {
		g.files = map[string][]byte{}
	}
	g.files[name] = text
	return nil
}

// tree is the files of a bundle in memory: a file system that never changes.
type tree struct {
	files   map[string][]byte
	folders map[string][]fs.DirEntry // ordered by name
	// version identifies the files' names and contents.
	version string
}

var _ fs.FS = (*tree)(nil)

// newTree makes a tree of files by their paths. A path that is a file and a folder is an error.
func newTree(files map[string][]byte) (*tree, error) {
	t := &tree{files: files, folders: map[string][]fs.DirEntry{".": nil}, version: versionOf(files)}
	for name, content := range files {
		t.enter(name, node{name: path.Base(name), size: int64(len(content))})
	}
	for folder, entries := range t.folders {
		if _, isFile := files[folder]; isFile {
			return nil, wrong(ErrEntry, "name one of them otherwise", "%s is a file and a folder", folder)
		}
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	}
	return t, nil
}

// enter lists an entry in its folder, and the folder in its own.
func (t *tree) enter(name string, entry node) {
	folder := path.Dir(name)
	_, known := t.folders[folder]
	t.folders[folder] = append(t.folders[folder], fs.FileInfoToDirEntry(entry))
	if !known {
		t.enter(folder, node{name: path.Base(folder), folder: true})
	}
}

// versionOf is a SHA-256, in hex, of all names and contents.
func versionOf(files map[string][]byte) string {
	sum := sha256.New()
	write := func(text []byte) {
		_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text)))) // a hash never fails
		_, _ = sum.Write(text)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		write([]byte(name))
		write(files[name])
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Open opens a file or a folder.
func (t *tree) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	if content, isFile := t.files[name]; isFile {
		return &openFile{node{name: path.Base(name), size: int64(len(content))}, bytes.NewReader(content)}, nil
	}
	if entries, isFolder := t.folders[name]; isFolder {
		return &openFolder{node{name: path.Base(name), folder: true}, entries}, nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// node is what is known of a file or a folder.
type node struct {
	name   string
	size   int64
	folder bool
}

func (n node) Name() string       { return n.name }
func (n node) Size() int64        { return n.size }
func (n node) IsDir() bool        { return n.folder }
func (n node) Sys() any           { return nil }
func (n node) ModTime() time.Time { return time.Time{} } // it does not belong to a bundle's content
func (n node) Mode() fs.FileMode {
	if n.folder {
		return fs.ModeDir | 0o555
	}
	return 0o444
}

type openFile struct {
	node
	*bytes.Reader
}

func (f *openFile) Stat() (fs.FileInfo, error) { return f.node, nil }
func (f *openFile) Size() int64                { return f.node.size }
func (f *openFile) Close() error               { return nil }

// openFolder is a folder, and what has not been read of it.
type openFolder struct {
	node
	rest []fs.DirEntry
}

func (f *openFolder) Stat() (fs.FileInfo, error) { return f.node, nil }
func (f *openFolder) Close() error               { return nil }
func (f *openFolder) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: f.name, Err: fmt.Errorf("%w: it is a folder", fs.ErrInvalid)}
}

// ReadDir lists the next n entries; all that are left if n is not above 0.
func (f *openFolder) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		n = len(f.rest)
	} else if len(f.rest) == 0 {
		return nil, io.EOF
	}
	next := slices.Clone(f.rest[:min(n, len(f.rest))])
	f.rest = f.rest[len(next):]
	return next, nil
}
