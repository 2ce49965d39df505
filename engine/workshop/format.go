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

// Formatted is what formatting has found, in the order of paths.
type Formatted struct {
	// Changed are the files whose format is another one.
	Changed []string
	// Broken says why files are no Rego, each as FILE:LINE: text. They stay as they are.
	Broken []string
}

// FormatAt finds the modules at a path, a folder or a file, that are not formatted, and formats them if write is true.
func FormatAt(at string, write bool) (found Formatted, err error) {
	root, folder, names, err := modulesAt(at)
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, name := range names {
		shown := filepath.Join(folder, name)
		switch differs, err := formatIn(root, name, shown, write); {
		case differs:
			found.Changed = append(found.Changed, shown)
		case errors.As(err, new(ast.Errors)):
			found.Broken = append(found.Broken, syntaxErrors(err)...)
		case err != nil:
			return found, fmt.Errorf("%s: %w", shown, err)
		}
	}
	return found, nil
}

// modulesAt are the modules at a path by their names in a folder, which is to be closed.
func modulesAt(at string) (root *os.Root, folder string, names []string, err error) {
	info, err := os.Stat(at)
	if err != nil {
		return nil, "", nil, err
	}
	folder = at
	if !info.IsDir() {
		if !strings.HasSuffix(at, moduleEnding) {
			return nil, "", nil, fmt.Errorf("%s is neither a folder nor a %s file", at, moduleEnding)
		}
		folder, names = filepath.Dir(at), []string{filepath.Base(at)}
	}
	if root, err = os.OpenRoot(folder); err != nil {
		return nil, "", nil, err
	}
	if info.IsDir() {
		names, err = modulesBelow(root)
	}
	if err != nil {
		return nil, "", nil, errors.Join(err, root.Close())
	}
	return root, folder, names, nil
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
		return false, err
	}
	formatted, err := Format(shown, content)
	if err != nil || bytes.Equal(content, formatted) {
		return false, err
	}
	if !write {
		return true, nil
	}
	info, err := root.Stat(name)
	if err == nil {
		err = root.WriteFile(name, formatted, info.Mode().Perm())
	}
	return err == nil, err
}

// syntaxErrors are the errors of a parser with their places.
func syntaxErrors(err error) (lines []string) {
	var list ast.Errors
	if errors.As(err, &list) {
		for _, e := range list {
			line := e.Message
			if e.Location != nil {
				line = fmt.Sprintf("%s:%d: %s", e.Location.File, e.Location.Row, e.Message)
			}
			lines = append(lines, line)
		}
	}
	return lines
}
