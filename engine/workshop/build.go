package workshop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/open-policy-agent/opa/v1/util"

	"regent/engine/tarball"
)

// Build packs the bundle into a .tar.gz of the same bytes wherever and whenever it is built, except for a signature by an algorithm that
// takes chance (ES… and PS…). A revision, if it is not empty, replaces the manifest's. A signer, if it is not nil, signs every file. The
// bundle is to have been checked and tested.
func (b *Bundle) Build(revision string, signer *Signer) ([]byte, error) {
	files := maps.Clone(b.Files)
	if revision != "" {
		manifest, err := revised(files[manifestFile], revision)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.Place(manifestFile, 0), err)
		}
		files[manifestFile] = manifest
	}
	if signer != nil {
		signature, err := signer.sign(files)
		if err != nil {
			return nil, fmt.Errorf("signing: %w", err)
		}
		files[signatureFile] = signature
	}
	var archive bytes.Buffer
	if err := tarball.Write(&archive, files); err != nil {
		return nil, fmt.Errorf("%s: %w", b.Path, err)
	}
	return archive.Bytes(), nil
}

// revised is a manifest with another revision, and all else as it was.
func revised(manifest []byte, revision string) ([]byte, error) {
	var fields map[string]any
	if err := util.UnmarshalJSON(manifest, &fields); err != nil {
		return nil, err
	}
	fields["revision"] = revision
	return json.Marshal(fields)
}

// WriteFile puts a built bundle where it is wanted at once, so that nobody reads half of it.
func WriteFile(path string, content []byte) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	_, err = file.Write(content)
	if err = errors.Join(err, file.Chmod(0o644), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
