package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../../.."

// tower says what each floor of the house may import of the others. An arrow always points down.
var tower = []struct {
	floor string
	may   []string
}{
	{"policies", nil},
	{"ledger", nil},
	{"adapters", []string{"ledger"}},
	{"engine", []string{"adapters", "ledger"}},
	{"server", []string{"policies", "ledger", "adapters", "engine"}},
}

// TestImports holds the house in its shape. Tests may look anywhere.
func TestImports(t *testing.T) {
	for _, floor := range tower {
		walkGo(t, filepath.Join(root, floor.floor), func(path, imported string) {
			rest, ours := strings.CutPrefix(imported, "regent/")
			if !ours {
				return
			}
			to, below, _ := strings.Cut(rest, "/")
			if to != floor.floor && !slices.Contains(floor.may, to) {
				t.Errorf("%s imports %s: %s may import only itself and %v", path, imported, floor.floor, floor.may)
			}
			if floor.floor == "engine" && to == "adapters" && below != "" {
				t.Errorf("%s imports %s: the engine knows the vocabulary of adapters, and no protocol", path, imported)
			}
		})
	}
}

// TestLedgerUsage: adapters know the ledger's usage and nothing of its money.
func TestAdaptersKnowUsageAlone(t *testing.T) {
	walkGo(t, filepath.Join(root, "adapters"), func(path, imported string) {
		if strings.HasPrefix(imported, "regent/ledger/") {
			t.Errorf("%s imports %s", path, imported)
		}
	})
}

// TestTheEngineIsLean: a host that links the router links no database's driver, nothing that fetches bundles, and no server.
func TestTheEngineIsLean(t *testing.T) {
	text, err := exec.Command("go", "list", "-deps", "regent/engine").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dependency := range strings.Fields(string(text)) {
		for _, heavy := range []string{
			"modernc.org/", "github.com/jackc/", "github.com/pressly/", "oras.land/", "github.com/opencontainers/",
			"github.com/open-policy-agent/opa/v1/download", "github.com/open-policy-agent/opa/v1/plugins", "github.com/prometheus/",
			"regent/server", "regent/ledger/sqldb", "regent/adapters/", "regent/policies",
		} {
			if strings.HasPrefix(dependency, heavy) {
				t.Errorf("the engine links %s", dependency)
			}
		}
	}
}

// TestTopLevel: the house has these rooms and no others.
func TestTopLevel(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	rooms := []string{"policies", "engine", "adapters", "ledger", "server", "testdata", "go.mod", "go.sum", "Makefile", "README.md", "LICENSE"}
	made := []string{"bin", "data"} // by the Makefile and by running; not kept
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, ".") && !slices.Contains(rooms, name) && !slices.Contains(made, name) {
			t.Errorf("%s does not belong at the top level", name)
		}
	}
}

// walkGo calls found for each import of each Go file below a folder that is no test.
func walkGo(t *testing.T, folder string, found func(path, imported string)) {
	files := 0
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files++
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			found(path, imported)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files == 0 {
		t.Fatalf("no Go files below %s", folder)
	}
}
