// Package workshop is what authors of policy work with before anything counts: it reads bundles as they lie in folders and archives,
// checks, tests, formats, builds and starts them, explains a decision down to rule and line, and compares what two policies say of
// the same inputs.
//
// Nothing here decides a call. A bundle is judged by package engine/policy, as the gateway does: what passes here loads there. A bundle
// is read once, so that what was checked and tested is what is built.
package workshop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"regent/engine/policy"
	"regent/engine/tarball"
)

// Bundle is one bundle as an author gave it.
type Bundle struct {
	// Path is the folder or archive that was given; empty for the shipped bundle.
	Path string
	// Name is the path's last element, in letters that name a bundle.
	Name string
	// Files by their path within the bundle: .manifest, modules with tests, data, schemas. They must not be changed.
	Files map[string][]byte
	tree  fs.FS // of Files, and of what lies beside them
}

// Bench holds the bundles that an author works on, and beneath them the shipped one, unless a given bundle takes its place.
type Bench struct {
	// Given are the bundles in the order of their paths.
	Given   []*Bundle
	shipped *Bundle // nil if a given bundle has its root
}

// shippedRoot is the root of the shipped bundle, and its name.
const shippedRoot = "regent"

// timeLimit bounds a decision in the workshop: ten times the gateway's, since the machine of an author is busy with other things.
const timeLimit = 5 * time.Second

// Gather reads the bundles at some paths. It fails as [Open] does; what is wrong with what a bundle says is told by what is done with it.
func Gather(shipped fs.FS, paths ...string) (*Bench, error) {
	bench := &Bench{}
	taken := map[string]bool{shippedRoot: true}
	for _, path := range paths {
		tree, err := Open(path)
		if err != nil {
			return nil, err
		}
		files, err := policy.Files(tree)
		if err != nil {
			return nil, unreadable(path, err)
		}
		given := &Bundle{Path: path, Name: unique(nameOf(path), taken), Files: files, tree: tree}
		bench.Given = append(bench.Given, given)
	}
	if slices.ContainsFunc(bench.Given, (*Bundle).hasShippedRoot) {
		return bench, nil
	}
	files, err := policy.Files(shipped)
	if err != nil {
		return nil, fmt.Errorf("the shipped bundle: %w", err)
	}
	bench.shipped = &Bundle{Name: shippedRoot, Files: files, tree: shipped}
	return bench, nil
}

// Open reads the bundle in a folder, or in an archive whose name ends in .tar.gz or .tgz. Nothing outside of a folder is read, also by
// way of a link. What it returns is held in memory, and does not change. It fails where a path is neither; where it is and cannot be read
// as a bundle, because it is too large, leads out of itself or is broken, with a *[policy.LoadError].
func Open(path string) (fs.FS, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return openFolder(path)
	case isArchive(path):
		return openArchive(path)
	}
	return nil, fmt.Errorf("%s is neither a folder nor a .tar.gz", path)
}

func openFolder(path string) (tree fs.FS, err error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	files, err := policy.Files(root.FS())
	if err == nil {
		tree, err = tarball.NewTree(files)
	}
	if err != nil {
		return nil, unreadable(path, err)
	}
	return tree, nil
}

func openArchive(path string) (fs.FS, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	tree, err := tarball.Read(file, tarball.Limits{Bytes: policy.MaxBundleBytes, Files: policy.MaxBundleFiles, Depth: policy.MaxBundleDepth})
	if err != nil {
		return nil, unreadable(path, err)
	}
	return tree, nil
}

func unreadable(path string, err error) error {
	return &policy.LoadError{Problems: []policy.Problem{{File: path, Text: err.Error()}}}
}

var archiveEndings = []string{".tar.gz", ".tgz"}

func isArchive(path string) bool {
	return slices.ContainsFunc(archiveEndings, func(ending string) bool { return strings.HasSuffix(path, ending) })
}

// nameLength bounds the name of a bundle, with room for a number.
const nameLength = 48

// nameOf makes a path's last element a name of a bundle.
func nameOf(path string) string {
	if absolute, err := filepath.Abs(path); err == nil { // "." has a name, too
		path = absolute
	}
	base := strings.ToLower(filepath.Base(path))
	for _, ending := range archiveEndings {
		base = strings.TrimSuffix(base, ending)
	}
	fit := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			return r
		}
		return '-'
	}, base)
	if fit = strings.TrimLeft(fit, "._-"); fit == "" {
		fit = "bundle"
	}
	return fit[:min(len(fit), nameLength)]
}

func unique(name string, taken map[string]bool) string {
	free := name
	for n := 2; taken[free]; n++ {
		free = fmt.Sprintf("%s-%d", name, n)
	}
	taken[free] = true
	return free
}

// hasShippedRoot says whether the bundle takes the place of the shipped one.
func (b *Bundle) hasShippedRoot() bool {
	var manifest struct {
		Roots []string `json:"roots"`
	}
	err := json.Unmarshal(b.Files[manifestFile], &manifest)
	return err == nil && slices.ContainsFunc(manifest.Roots, func(root string) bool { return strings.Trim(root, "/") == shippedRoot })
}

// Place is where a line of the bundle is for whoever gave its path: PATH/FILE:LINE.
func (b *Bundle) Place(file string, line int) string {
	place := filepath.Join(b.Path, filepath.FromSlash(file))
	if b.Path == "" {
		place = "(shipped) " + file
	}
	if line > 0 {
		place = fmt.Sprintf("%s:%d", place, line)
	}
	return place
}

// Place is where a line of a bundle is for whoever gave the bundles. One that is not on the bench goes by its name.
func (b *Bench) Place(bundle, file string, line int) string {
	if found := b.named(bundle); found != nil {
		return found.Place(file, line)
	}
	place := strings.TrimSpace(bundle + " " + file)
	if line > 0 {
		place = fmt.Sprintf("%s:%d", place, line)
	}
	return place
}

// Tell is a problem as compilers tell it: FILE:LINE: text.
func (b *Bench) Tell(problem policy.Problem) string {
	text := strings.ReplaceAll(problem.Text, "\n\t", "\n    ")
	if problem.Bundle == "" && problem.File == "" {
		return text
	}
	return b.Place(problem.Bundle, problem.File, problem.Line) + ": " + text
}

func (b *Bench) named(name string) *Bundle {
	for _, bundle := range b.all() {
		if bundle.Name == name {
			return bundle
		}
	}
	return nil
}

// all are the bundles, the shipped one first.
func (b *Bench) all() []*Bundle {
	if b.shipped == nil {
		return b.Given
	}
	return append([]*Bundle{b.shipped}, b.Given...)
}

// source is what the gateway would load. The tests of the shipped bundle passed when it was shipped; tested says so of the others, too.
func (b *Bench) source(tested bool) policy.Source {
	source := policy.Source{TimeLimit: timeLimit}
	for _, bundle := range b.all() {
		source.Bundles = append(source.Bundles, policy.Bundle{Name: bundle.Name, FS: bundle.tree, Tested: tested || bundle == b.shipped})
	}
	return source
}

// Load loads the bundles as the gateway does, under settings that replace those of the bundles key by key, and runs no test. It fails
// as [policy.Load] does.
func (b *Bench) Load(ctx context.Context, settings policy.Settings) (*policy.Activation, error) {
	source := b.source(true)
	source.Settings = settings
	return policy.Load(ctx, source)
}

// noTest is a filter that no test passes.
const noTest = "^$"

// Test runs the tests of the given bundles, the shipped one's beside them for what they define. Where the given bundles have none, none is
// run. The coverage is that of the given bundles. It fails as [policy.Load] does.
func (b *Bench) Test(ctx context.Context, run policy.TestRun) (*policy.TestReport, error) {
	if _, err := b.Load(ctx, policy.Settings{}); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(b.Given, (*Bundle).hasTests) {
		run.Filter = noTest
	}
	report, err := policy.Test(ctx, b.source(false), run)
	if err != nil {
		return nil, err
	}
	report.Tests = slices.DeleteFunc(report.Tests, func(test policy.TestResult) bool { return !b.gave(test.Bundle) })
	report.Coverage = slices.DeleteFunc(report.Coverage, func(file policy.Coverage) bool { return !b.gave(file.Bundle) })
	for i, file := range report.Coverage {
		report.Coverage[i].Uncovered = slices.Compact(file.Uncovered) // several things may be on one line
	}
	return report, nil
}

// gave says whether a bundle of this name was given.
func (b *Bench) gave(name string) bool {
	return slices.ContainsFunc(b.Given, func(given *Bundle) bool { return given.Name == name })
}

// hasTests says whether the bundle holds a module of tests, whatever is in it.
func (b *Bundle) hasTests() bool {
	for name := range b.Files {
		if strings.HasSuffix(name, testEnding) {
			return true
		}
	}
	return false
}
