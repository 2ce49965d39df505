package workshop

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/format"
)

// ErrSyntax is why a file cannot be formatted; its text names file and line of each error.
var ErrSyntax = errors.New("it is not Rego")

// Format is a module as `opa fmt` writes it.
func Format(name string, content []byte) ([]byte, error) {
	return format.SourceWithOpts(name, content, format.Opts{RegoVersion: ast.RegoV1})
}

// differsAt is the first line of a text that another one does not have there.
func differsAt(text, other []byte) int {
	lines, others := bytes.Split(text, []byte("\n")), bytes.Split(other, []byte("\n"))
	for i, line := range lines {
		if i == len(others) || !bytes.Equal(line, others[i]) {
			return i + 1
		}
	}
	return len(lines)
}

// FormatAt finds the modules at a path, a folder or a file, that are not formatted, by their paths in order, and formats them if write is
// true. Files that are no Rego are all told, in an error that is [ErrSyntax], and hold up nothing else.
func FormatAt(at string, write bool) (changed []string, err error) {
	info, err := os.Stat(at)
	if err != nil {
		return nil, fmt.Errorf("workshop: %w", err)
	}
	folder, only := at, ""
	if !info.IsDir() {
		if !strings.HasSuffix(at, moduleEnding) {
			return nil, fmt.Errorf("workshop: %s is neither a folder nor a %s file", at, moduleEnding)
		}
		folder, only = filepath.Split(filepath.Clean(at))
		if folder == "" {
			folder = "."
		}
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, fmt.Errorf("workshop: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	names := []string{only}
	if only == "" {
		if names, err = modulesBelow(root); err != nil {
			return nil, fmt.Errorf("workshop: %s: %w", at, err)
		}
	}
	var failures []error
	for _, name := range names {
		differs, err := formatIn(root, name, filepath.Join(folder, name), write)
		if differs {
			changed = append(changed, filepath.Join(folder, name))
		}
		failures = append(failures, err)
	}
	return changed, errors.Join(failures...)
}

// modulesBelow are the modules of a folder, apart from what is hidden.
func modulesBelow(root *os.Root) (names []string, err error) {
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(entry.Name(), ".") && name != ".":
			if entry.IsDir() {
				return fs.SkipDir
			}
		case entry.Type().IsRegular() && strings.HasSuffix(name, moduleEnding):
			names = append(names, filepath.FromSlash(name))
		}
		return nil
	})
	return names, err
}

// formatIn says whether a file differs from its format, and gives it that.
func formatIn(root *os.Root, name, shown string, write bool) (differs bool, err error) {
	content, err := root.ReadFile(name)
	if err != nil {
		return false, fmt.Errorf("workshop: %w", err)
	}
	formatted, err := Format(shown, content)
	if err != nil {
		return false, fmt.Errorf("workshop: %w: %s", ErrSyntax, syntaxErrors(err))
	}
	if bytes.Equal(content, formatted) {
		return false, nil
	}
	if !write {
		return true, nil
	}
	info, err := root.Stat(name)
	if err == nil {
		err = root.WriteFile(name, formatted, info.Mode().Perm())
	}
	if err != nil {
		return false, fmt.Errorf("workshop: %w", err)
	}
	return true, nil
}

// syntaxErrors are the errors of a parser with their places.
func syntaxErrors(err error) string {
	var list ast.Errors
	if !errors.As(err, &list) {
		return err.Error()
	}
	lines := make([]string, len(list))
	for i, e := range list {
		lines[i] = e.Message
		if e.Location != nil {
			lines[i] = fmt.Sprintf("%s:%d: %s", e.Location.File, e.Location.Row, e.Message)
		}
	}
	return strings.Join(lines, "\n")
}
