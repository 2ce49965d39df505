package catalog

import _ "embed"

// demo is the catalogue of a first run: no account and no network needed.
//
//go:embed demo.yaml
var demo []byte
