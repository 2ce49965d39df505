package policy

import (
	"io/fs"
	"maps"
)

// Files reads what a bundle consists of, by path: its manifest, modules with their tests, data and schemas. What else lies in its
// folder, a signature included, is no part of it.
func Files(tree fs.FS) (map[string][]byte, error) {
	all, err := readFiles(tree)
	if err != nil {
		return nil, err
	}
	files, tests := sorted(all)
	maps.Copy(files, tests)
	return files, nil
}
