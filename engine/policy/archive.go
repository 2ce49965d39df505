package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/util"

	"regent/engine/tarball"
)

// An archive is a compressed tar of everything that an activation's digest is of: the settings in force, and the bundles' files, tests
// left out. Whoever keeps the archives of the activations that records name can evaluate each recorded decision again.
const (
	archivedSettings = "settings.json"
	archivedBundles  = "bundles/"
)

// restorable bounds what is restored: 33 bundles of the largest size, as many as a gateway takes, and settings as large as one.
var restorable = tarball.Limits{
	Bytes: (33 + 1) * MaxBundleBytes,
	Files: (33 + 1) * MaxBundleFiles,
	Depth: MaxBundleDepth + 2, // bundles/ and the bundle's own folder lie above
}

// Archive is the activation, as [Restore] takes it. Equal activations have equal archives.
func (a *Activation) Archive() ([]byte, error) {
	files := map[string][]byte{archivedSettings: a.canonical}
	for _, u := range a.bundles {
		for name, content := range u.files {
			files[archivedBundles+u.name+"/"+name] = content
		}
	}
	var archive bytes.Buffer
	if err := tarball.Write(&archive, files); err != nil {
		return nil, fmt.Errorf("policy: archive: %w", err)
	}
	return archive.Bytes(), nil
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
	return guarded(ctx, func(ctx context.Context) (*Activation, error) { return restored(ctx, settings, bundles) })
}

func restored(ctx context.Context, settings Settings, bundles []*unpacked) (*Activation, error) {
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
	tree, err := tarball.Read(bytes.NewReader(archive), restorable)
	if err != nil {
		return settings, nil, err
	}
	byBundle := make(map[string]*unpacked)
	for _, path := range util.KeysSorted(tree.Files()) {
		content := tree.Files()[path]
		if path == archivedSettings {
			if settings, err = readSettings(content); err != nil {
				return settings, nil, err
			}
			continue
		}
		below, isBelow := strings.CutPrefix(path, archivedBundles)
		owner, name, isFile := strings.Cut(below, "/")
		if !isBelow || !isFile {
			return settings, nil, fmt.Errorf("%s does not belong in an archive", path)
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
