package tarball

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
	"strings"
	"time"
)

// Tree is files in memory: a file system that never changes. Any number of goroutines may use it.
type Tree struct {
	files   map[string][]byte
	folders map[string][]fs.DirEntry // ordered by name
	version string
}

var _ fs.FS = (*Tree)(nil)

// NewTree makes a tree of files by their paths, which it keeps: they must not be changed any more. A path that leads elsewhere, on
// whichever system, or is a file and a folder is an [ErrEntry].
func NewTree(files map[string][]byte) (*Tree, error) {
	names := slices.Sorted(maps.Keys(files))
	t := &Tree{files: files, folders: map[string][]fs.DirEntry{".": nil}, version: versionOf(names, files)}
	for _, name := range names {
		if err := checkPath(name); err != nil {
			return nil, err
		}
		t.enter(name, node{name: path.Base(name), size: int64(len(files[name]))})
	}
	for _, name := range names {
		if _, isFolder := t.folders[name]; isFolder {
			return nil, fmt.Errorf("%w: %s is a file and a folder", ErrEntry, shown(name))
		}
	}
	for _, entries := range t.folders {
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	}
	return t, nil
}

func checkPath(name string) error {
	if !fs.ValidPath(name) || name == "." || strings.ContainsAny(name, "\\\x00") {
		return fmt.Errorf("%w: the entry %s is no path below the root", ErrEntry, shown(name))
	}
	return nil
}

// shown is a path as an error tells it: its beginning, since one in a tarball may have a megabyte.
func shown(name string) string { return fmt.Sprintf("%.200q", name) }

// Files are all files by their paths. They must not be changed.
func (t *Tree) Files() map[string][]byte { return t.files }

// Version identifies the files' paths and contents: equal ones are the same files.
func (t *Tree) Version() string { return t.version }

// enter lists an entry in its folder, and the folder in its own.
func (t *Tree) enter(name string, entry node) {
	folder := path.Dir(name)
	_, known := t.folders[folder]
	t.folders[folder] = append(t.folders[folder], fs.FileInfoToDirEntry(entry))
	if !known {
		t.enter(folder, node{name: path.Base(folder), folder: true})
	}
}

// versionOf is a SHA-256, in hex, of all names, in order, and contents.
func versionOf(names []string, files map[string][]byte) string {
	sum := sha256.New()
	write := func(text []byte) {
		_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(text)))) // a hash never fails
		_, _ = sum.Write(text)
	}
	for _, name := range names {
		write([]byte(name))
		write(files[name])
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Open opens a file or a folder.
func (t *Tree) Open(name string) (fs.File, error) {
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
func (n node) ModTime() time.Time { return time.Time{} } // it does not belong to the content
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
