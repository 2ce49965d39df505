package tarball

import (
	"fmt"
	"io"
	"strings"
)

// Gathered is files that are read one by one, within limits.
type Gathered struct {
	limits Limits
	files  map[string][]byte
	bytes  int64
}

// Gather begins with no file.
func Gather(limits Limits) *Gathered {
	return &Gathered{limits: limits, files: map[string][]byte{}}
}

// Add reads a file. An error wraps [ErrEntry] or [ErrTooLarge], or is the reader's as it is.
func (g *Gathered) Add(name string, content io.Reader) error {
	_, twice := g.files[name]
	switch {
	case twice: // tools each take another one
		return fmt.Errorf("%w: the entry %s is there twice", ErrEntry, shown(name))
	case strings.Count(name, "/") > g.limits.Depth:
		return fmt.Errorf("%w: the entry %s lies below more than %d folders", ErrEntry, shown(name), g.limits.Depth)
	case len(g.files) == g.limits.Files:
		return fmt.Errorf("%w: it has more than %d files", ErrTooLarge, g.limits.Files)
	}
	text, err := io.ReadAll(io.LimitReader(content, g.limits.Bytes-g.bytes+1))
	if err != nil {
		return err
	}
	if g.bytes += int64(len(text)); g.bytes > g.limits.Bytes {
		return fmt.Errorf("%w: its files are larger than %d bytes", ErrTooLarge, g.limits.Bytes)
	}
	g.files[name] = text
	return nil
}

// Tree is what was read, as [NewTree] makes it. Nothing may be added any more.
func (g *Gathered) Tree() (*Tree, error) { return NewTree(g.files) }
