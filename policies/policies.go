// Package policies holds the rules that come with the gateway: an OPA bundle with root "regent", as embedded files. It
// loads and decides nothing; hosts, the program and tests hand Files to package engine/policy, or to any OPA tool.
package policies

import (
	"embed"
	"io/fs"
)

// The dot file needs "all:"; this Go file and README.md stay out of the bundle.
//
//go:embed all:.manifest all:regent all:schemas
var files embed.FS

// Files returns the bundle: .manifest, the rules with their tests and settings under regent/, and the schemas of the input
// document and the settings under schemas/. It is a function, so that nobody can replace the embedded files at run time.
func Files() fs.FS { return files }
