package workshop

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/open-policy-agent/opa/v1/ast"

	"regent/engine/policy"
	"regent/engine/tarball"
)

// start holds what a new bundle is made of. The files' endings keep tools from taking them for the bundle itself.
//
//go:embed start/*.tmpl
var start embed.FS

var startTemplates = template.Must(template.ParseFS(start, "start/*.tmpl"))

// ErrOccupied is the error of a folder that holds something already.
var ErrOccupied = errors.New("it is not empty: name a folder that is, or that does not exist")

// ruleName is what a rule's folder may be called: a package of Rego whose name, in capitals, is a code.
var ruleName = regexp.MustCompile(`^[a-z][a-z0-9_]{1,62}$`)

// newBundle is what the templates know.
type newBundle struct {
	Rule, Code, Folder string
}

// Init makes an organisation's bundle with one rule and its test in a folder that is empty or does not exist. What it writes passes every
// check and test beside the shipped bundle, which it finds out before it writes. It returns the paths that it wrote.
func Init(ctx context.Context, shipped fs.FS, folder, rule string) ([]string, error) {
	if !ruleName.MatchString(rule) || ast.IsKeyword(rule) {
		return nil, fmt.Errorf("the rule's name %q must match %s, and be no word of Rego's own", rule, ruleName)
	}
	files, err := startingWith(newBundle{Rule: rule, Code: strings.ToUpper(rule), Folder: filepath.ToSlash(filepath.Clean(folder))})
	if err != nil {
		return nil, err
	}
	if err := proved(ctx, shipped, files); err != nil {
		return nil, fmt.Errorf("a bundle with a rule of the name %s would not pass: choose another name: %w", rule, err)
	}
	entries, err := os.ReadDir(folder)
	switch {
	case len(entries) > 0:
		return nil, fmt.Errorf("%s: %w", folder, ErrOccupied)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return writeAll(folder, files)
}

// startingWith are the files of a new bundle.
func startingWith(bundle newBundle) (map[string][]byte, error) {
	below := path.Join("org/rules", bundle.Rule, bundle.Rule)
	files := map[string][]byte{}
	for name, from := range map[string]string{
		manifestFile: "manifest.tmpl", "README.md": "README.md.tmpl", below + moduleEnding: "rule.rego.tmpl", below + testEnding: "rule_test.rego.tmpl",
	} {
		var text bytes.Buffer
		if err := startTemplates.ExecuteTemplate(&text, from, bundle); err != nil {
			return nil, err
		}
		files[name] = text.Bytes()
	}
	return files, nil
}

// proved fails unless the files pass as a bundle.
func proved(ctx context.Context, shipped fs.FS, files map[string][]byte) error {
	of, err := policy.Files(shipped)
	if err != nil {
		return err
	}
	tree, err := tarball.NewTree(files)
	if err != nil {
		return err
	}
	bench := &Bench{Given: []*Bundle{{Name: "org", Files: files, tree: tree}}, shipped: &Bundle{Name: shippedRoot, Files: of, tree: shipped}}
	checked, err := bench.Check(ctx)
	if err == nil && len(checked.Problems) > 0 {
		err = &policy.LoadError{Problems: checked.Problems}
	}
	if err != nil {
		return err
	}
	report, err := bench.Test(ctx, policy.TestRun{})
	if err == nil && len(report.Failed()) > 0 {
		err = &policy.LoadError{Problems: report.Failed(), Tests: true}
	}
	return err
}

func writeAll(folder string, files map[string][]byte) (written []string, err error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := root.MkdirAll(path.Dir(name), 0o755)
		if err == nil {
			err = root.WriteFile(name, files[name], 0o644)
		}
		if err != nil {
			return written, err
		}
		written = append(written, filepath.Join(folder, filepath.FromSlash(name)))
	}
	return written, nil
}
