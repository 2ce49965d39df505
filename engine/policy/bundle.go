package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/loader/filter"
	"github.com/open-policy-agent/opa/v1/util"
	"go.yaml.in/yaml/v3"
)

// Bounds of one bundle.
const (
	MaxBundleBytes = 32 << 20 // of all files together: OPA needs about 20 times as much memory for data, so 640 MB
	MaxBundleFiles = 10_000   // OPA takes some 0.1 ms for each
	MaxBundleDepth = 32       // folders that a file lies below: a rule needs three, and each costs memory
)

// Bundle is a tree of files as OPA knows it: .manifest, modules, data.json or data.yaml, and, ours alone, schemas/. Folders and
// files whose names begin with a dot are not part of it, except for .manifest and .signatures.json at its root.
type Bundle struct {
	// Name labels the bundle in records and errors; lower-case letters, digits, dots, dashes and underscores. Required.
	Name string
	// FS holds the bundle at its root. It is read once, while loading. Required.
	FS fs.FS
	// Signing says by which keys the bundle has to be signed. nil takes it unsigned, and looks at no signature.
	Signing *Signing
	// Tested says that the bundle's tests have passed already, together with these very bundles, and need not be run again.
	Tested bool
}

var bundleName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// unpacked is a bundle that was read and parsed.
type unpacked struct {
	name    string
	files   map[string][]byte // what the activation is made of, by path
	tests   map[string][]byte // modules of tests, by path
	tested  bool              // they have passed already
	parsed  bundle.Bundle
	schemas map[string]any // by path below schemas/, without its ending
}

// unpack reads the bundle's files, once, and parses them.
func unpack(source Bundle, reduced *ast.Capabilities) (*unpacked, []Problem) {
	refuse := func(file string, format string, args ...any) []Problem {
		return []Problem{{Bundle: source.Name, File: file, Text: fmt.Sprintf(format, args...)}}
	}
	if !bundleName.MatchString(source.Name) {
		return nil, refuse("", "the name %q is not %s", source.Name, bundleName)
	}
	if source.FS == nil {
		return nil, refuse("", "it has no files: FS is nil")
	}
	all, err := readFiles(source.FS)
	if err != nil {
		return nil, refuse("", "%v", err)
	}
	if source.Signing != nil {
		if err := source.Signing.verify(all); err != nil {
			return nil, refuse(signaturesFile, "%v", err)
		}
	}
	u := &unpacked{name: source.Name, tested: source.Tested, schemas: map[string]any{}}
	u.files, u.tests = sorted(all)
	return u, u.parse(reduced)
}

// parse makes of files what is compiled.
func (u *unpacked) parse(reduced *ast.Capabilities) []Problem {
	refuse := func(file string, format string, args ...any) []Problem {
		return []Problem{{Bundle: u.name, File: file, Text: fmt.Sprintf(format, args...)}}
	}
	files := u.files
	if err := checkManifest(files[bundle.ManifestExt]); err != nil {
		return refuse(bundle.ManifestExt, "%v", err)
	}
	for _, name := range util.KeysSorted(files) {
		key, isSchema := schemaKey(name)
		if !isSchema && !isData(name) {
			continue
		}
		var content any
		if err := util.Unmarshal(files[name], &content); err != nil {
			return refuse(name, "it is neither JSON nor YAML: %v", err)
		}
		if err := checkWhole(name, files[name]); err != nil {
			return refuse(name, "%v", err)
		}
		if isSchema {
			u.schemas[key] = content
		}
	}
	var err error
	u.parsed, err = bundle.NewCustomReader(&fileLoader{files: files, names: util.KeysSorted(files)}).
		WithBaseDir(u.name).
		WithSkipBundleVerification(true). // it is done: what is read here is not all that was signed
		WithProcessAnnotations(true).
		WithRegoVersion(ast.RegoV1).
		WithCapabilities(reduced).
		Read()
	if err != nil {
		return problemsOf(err, u.name)
	}
	return nil
}

// checkWhole refuses a document of which a part would be lost: a key that is there twice, or a second document.
func checkWhole(name string, text []byte) error {
	if strings.HasSuffix(name, ".json") {
		return refuseRepeated(text)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var content any
	if err := decoder.Decode(&content); err != nil && !errors.Is(err, io.EOF) {
		return err // a key that is there twice
	}
	if err := decoder.Decode(&content); !errors.Is(err, io.EOF) {
		return errors.New("it holds more than one document")
	}
	return nil
}

// readFiles reads every file of a bundle. A link that leads out of the tree is for the tree to refuse; os.Root does.
func readFiles(tree fs.FS) (map[string][]byte, error) {
	files := make(map[string][]byte)
	size := 0
	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if isHidden(name) {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if entry.IsDir() {
			return nil
		}
		if ending := path.Ext(name); ending != bundle.RegoExt && strings.EqualFold(ending, bundle.RegoExt) {
			return fmt.Errorf("%s is no module for OPA: write its ending as %s", name, bundle.RegoExt)
		}
		if strings.Count(name, "/") > MaxBundleDepth {
			return fmt.Errorf("%s lies below more than %d folders: move it up", name, MaxBundleDepth)
		}
		if len(files) == MaxBundleFiles {
			return fmt.Errorf("it holds more than %d files: move what is no policy out of it", MaxBundleFiles)
		}
		content, err := readFile(tree, name, MaxBundleBytes-size)
		if errors.Is(err, errIsFolder) {
			return nil
		}
		if err != nil {
			return err
		}
		size += len(content)
		files[name] = content
		return nil
	})
	return files, err
}

var errIsFolder = errors.New("it is a folder")

// readFile reads one file of at most so many bytes.
func readFile(tree fs.FS, name string, most int) ([]byte, error) {
	file, err := tree.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir(): // a link to a folder, whose files would be in the bundle twice
		return nil, errIsFolder
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	content, err := io.ReadAll(io.LimitReader(file, int64(most)+1))
	if err == nil && len(content) > most {
		err = fmt.Errorf("it holds more than %d bytes: move data out of it", MaxBundleBytes)
	}
	return content, err
}

// isHidden says whether a path is none of the bundle's: what version control, editors and mounted volumes keep beside the files.
func isHidden(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, ".") && name != "." && name != bundle.ManifestExt && name != signaturesFile
}

// sorted keeps the files that an activation is made of, and apart from them its tests: a changed test changes no decision. What is
// neither is left out.
func sorted(all map[string][]byte) (files, tests map[string][]byte) {
	files, tests = make(map[string][]byte), make(map[string][]byte)
	for name, content := range all {
		switch {
		case strings.HasSuffix(name, testSuffix):
			tests[name] = content
		case belongs(name):
			files[name] = content
		}
	}
	return files, tests
}

// testSuffix is how the name of a module of tests ends.
const testSuffix = "_test" + bundle.RegoExt

func belongs(name string) bool {
	_, isSchema := schemaKey(name)
	return name == bundle.ManifestExt || isData(name) || strings.HasSuffix(name, bundle.RegoExt) || isSchema
}

func isData(name string) bool {
	return slices.Contains([]string{"data.json", "data.yaml", "data.yml"}, path.Base(name))
}

func schemaKey(name string) (key string, isSchema bool) {
	below, inFolder := strings.CutPrefix(name, "schemas/")
	key, isJSON := strings.CutSuffix(below, ".json")
	return key, inFolder && isJSON && !isData(name)
}

// checkManifest wants what OPA would otherwise assume: roots, without which a bundle owns everything, and Rego v1.
func checkManifest(content []byte) error {
	if content == nil {
		return errors.New(`it is missing: write one with the roots of the bundle, for example {"roots": ["org"], "rego_version": 1}`)
	}
	if err := refuseRepeated(content); err != nil {
		return err
	}
	var manifest struct {
		Roots            *[]string      `json:"roots"`
		RegoVersion      *int           `json:"rego_version"`
		FileRegoVersions map[string]int `json:"file_rego_versions"`
	}
	if err := json.Unmarshal(content, &manifest); err != nil {
		return err
	}
	if manifest.Roots == nil || len(*manifest.Roots) == 0 || slices.Contains(*manifest.Roots, "") {
		return errors.New(`it names no roots, so that the bundle would own everything: write for example "roots": ["org"]`)
	}
	if manifest.RegoVersion != nil && *manifest.RegoVersion != 1 || len(manifest.FileRegoVersions) > 0 {
		return errors.New(`policy is written in Rego v1: write "rego_version": 1 and leave file_rego_versions out`)
	}
	return nil
}

// revision is what records call the bundle: the manifest's revision, or else the digest of the bundle's files, whatever it is called.
func (u *unpacked) revision() string {
	if revision := u.parsed.Manifest.Revision; revision != "" {
		return revision
	}
	return digestOf(nil, &unpacked{files: u.files})
}

// roots owned by the bundle.
func (u *unpacked) roots() []string { return *u.parsed.Manifest.Roots }

// problemsOf turns OPA's errors into problems with a place, where they have one.
func problemsOf(err error, bundleName string) []Problem {
	var list ast.Errors
	var single *ast.Error
	switch {
	case errors.As(err, &list):
	case errors.As(err, &single):
		list = ast.Errors{single}
	default:
		return []Problem{{Bundle: bundleName, Text: err.Error()}}
	}
	problems := make([]Problem, len(list))
	for i, e := range list {
		problems[i] = problemAt(e.Location, explain(e))
		if problems[i].Bundle == "" {
			problems[i].Bundle = bundleName
		}
	}
	return problems
}

// problemAt places a problem. A module's file name begins with the name of its bundle.
func problemAt(location *ast.Location, text string) Problem {
	if location == nil {
		return Problem{Text: text}
	}
	owner, file, _ := strings.Cut(location.File, "/")
	return Problem{Bundle: owner, File: file, Line: location.Row, Text: text}
}

// explain adds to OPA's message what an author cannot know from it.
func explain(e *ast.Error) string {
	text := e.Message
	if e.Details != nil {
		text += "\n\t" + strings.Join(e.Details.Lines(), "\n\t")
	}
	if name, isUndefined := strings.CutPrefix(e.Message, "undefined function "); isUndefined && ast.BuiltinMap[name] != nil {
		return name + impure
	}
	return text
}

const impure = " may not be used in policy, which decides by its input alone: a fact that it needs has to be a field of the input"

// fileLoader hands files that were read already to OPA's reader of bundles.
type fileLoader struct {
	files map[string][]byte
	names []string
}

func (l *fileLoader) NextFile() (*bundle.Descriptor, error) {
	if len(l.names) == 0 {
		return nil, io.EOF
	}
	name := l.names[0]
	l.names = l.names[1:]
	return bundle.NewDescriptor(name, name, bytes.NewReader(l.files[name])), nil
}

func (l *fileLoader) WithFilter(filter.LoaderFilter) bundle.DirectoryLoader         { return l }
func (l *fileLoader) WithPathFormat(bundle.PathFormat) bundle.DirectoryLoader       { return l }
func (l *fileLoader) WithSizeLimitBytes(int64) bundle.DirectoryLoader               { return l }
func (l *fileLoader) WithFollowSymlinks(followSymlinks bool) bundle.DirectoryLoader { return l }
