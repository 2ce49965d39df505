package policy

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/util"
)

// An archive is a compressed tar of everything that an activation's digest is of: the settings in force, and the bundles' files, tests
// left out. Whoever keeps the archives of the activations that records name can evaluate each recorded decision again.
const (
	archivedSettings = "settings.json"
	archivedBundles  = "bundles/"
	maxArchive       = 2 * MaxBundleBytes * 16 // bytes of what is restored: of sixteen bundles of the largest size, and as much again
)

// Archive is the activation, as [Restore] takes it. Equal activations have equal archives.
func (a *Activation) Archive() ([]byte, error) {
	var archive bytes.Buffer
	compressor := gzip.NewWriter(&archive)
	writer := tar.NewWriter(compressor)
	err := writeArchived(writer, archivedSettings, a.canonical)
	for _, u := range slices.SortedFunc(slices.Values(a.bundles), byName) {
		for _, name := range util.KeysSorted(u.files) {
			err = cmp.Or(err, writeArchived(writer, archivedBundles+u.name+"/"+name, u.files[name]))
		}
	}
	if err = errors.Join(err, writer.Close(), compressor.Close()); err != nil {
		return nil, fmt.Errorf("policy: archive: %w", err)
	}
	return archive.Bytes(), nil
}

func writeArchived(writer *tar.Writer, name string, content []byte) error {
	if err := writer.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := writer.Write(content)
	return err
}

// restoredTimeLimit bounds a decision of a restored activation: nobody waits for it but who looks at it.
const restoredTimeLimit = 10 * time.Second

// Restore loads an activation from its archive. It decides as it did, and remembers nothing. Its digest tells whether the archive is
// the one that is looked for.
func Restore(ctx context.Context, archive []byte) (*Activation, error) {
	settings, bundles, err := readArchive(archive)
	if err != nil {
		return nil, fmt.Errorf("policy: restore: %w", err)
	}
	var problems []Problem
	for _, u := range bundles {
		problems = append(problems, u.parse(capabilities(nil))...)
	}
	if len(problems) > 0 {
		return nil, loadError(problems)
	}
	return load(ctx, Source{Settings: settings, TimeLimit: restoredTimeLimit, Remembered: -1, restored: true}, bundles)
}

func readArchive(archive []byte) (settings Settings, bundles []*unpacked, err error) {
	decompressor, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return settings, nil, err
	}
	reader := tar.NewReader(io.LimitReader(decompressor, maxArchive))
	byBundle := make(map[string]*unpacked)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return settings, nil, err
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			return settings, nil, err
		}
		if header.Name == archivedSettings {
			if settings, err = readSettings(content); err != nil {
				return settings, nil, err
			}
			continue
		}
		owner, name, isFile := strings.Cut(strings.TrimPrefix(header.Name, archivedBundles), "/")
		if !isFile || !strings.HasPrefix(header.Name, archivedBundles) {
			return settings, nil, fmt.Errorf("%s does not belong in an archive", header.Name)
		}
		if byBundle[owner] == nil {
			byBundle[owner] = &unpacked{name: owner, files: map[string][]byte{}, tested: true, schemas: map[string]any{}}
			bundles = append(bundles, byBundle[owner])
		}
		byBundle[owner].files[name] = content
	}
	return settings, bundles, nil
}

func readSettings(content []byte) (Settings, error) {
	var tree map[string]any
	if err := json.Unmarshal(content, &tree); err != nil {
		return Settings{}, err
	}
	return decodeSettings(tree)
}
