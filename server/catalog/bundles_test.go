package catalog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"regent/engine/policy"
)

// publicKey is a key of the curve P-256.
const publicKey = `-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEYD54V/vp+54P9DXarYqx4MPcm+HK
RIQzNasYSoRQHQ/6S6Ps8tpMcT+KvIIC8W/e9k0W7Cm72M1P9jU7SLf/vg==
-----END PUBLIC KEY-----
`

// bundled is the good file with a policy; KEYFILE stands for the file of a key. Its line 17 is the first of the keys.
const bundled = good + `policy:
  keys:
    - {id: release, algorithm: ES256, key: KEYFILE}
    - {id: shared, algorithm: HS256, key: "env:SHARED"}
  bundles:
    - {name: team, folder: policies/team}
    - {name: packed, file: /srv/packed.tar.gz, signing: {key: shared}}
    - {name: org, url: "https://policy.example.com/org.tar.gz?v=1", credential: "env:TOKEN", poll: 30s, signing: {key: release, scope: write}}
    - {name: pushed, oci: "registry.example.com/policies/org:1.0", credential: "env:USER"}
    - {name: local, oci: "localhost:5000/org@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", plain_http: true}
`

var bundleEnv = map[string]string{"SHARED": "secret-of-hmac", "TOKEN": "secret-token", "USER": "me:secret-password", "LINES": "a\nb", "NONE": ""}

func parseBundled(t *testing.T, from, to string) (*Catalogue, error) {
	t.Helper()
	if !strings.Contains(bundled, from) {
		t.Fatalf("%q is not in the file", from)
	}
	keyFile := filepath.Join(t.TempDir(), "release.pem")
	if err := os.WriteFile(keyFile, []byte(publicKey), 0o600); err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(hashed(strings.Replace(bundled, from, to, 1)), "KEYFILE", keyFile)
	return Parse("c.yaml", []byte(text), func(name string) (string, bool) { value, given := bundleEnv[name]; return value, given })
}

func TestBundles(t *testing.T) {
	c, err := parseBundled(t, "", "")
	if err != nil {
		t.Fatal(err)
	}
	want := []BundleSource{
		{Name: "team", Folder: "policies/team"},
		{Name: "packed", File: "/srv/packed.tar.gz"},
		{Name: "org", URL: "https://policy.example.com/org.tar.gz?v=1", Poll: 30 * time.Second, Credential: "secret-token"},
		{Name: "pushed", OCI: "registry.example.com/policies/org:1.0", Poll: time.Minute, Credential: "me:secret-password"},
		{Name: "local", OCI: "localhost:5000/org@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", Poll: time.Minute, PlainHTTP: true},
	}
	for i, bundle := range c.Bundles {
		if i >= len(want) || bundle.BundleSource != want[i] {
			t.Errorf("bundle %d: %+v", i, bundle.BundleSource)
		}
	}
	if len(c.Bundles) != len(want) || c.Bundles[0].Signing != nil || c.Bundles[3].Signing != nil {
		t.Fatalf("bundles: %+v", c.Bundles)
	}
	shared, release := c.Bundles[1].Signing, c.Bundles[2].Signing
	if shared == nil || shared.KeyID != "shared" || shared.Scope != "" || len(shared.Keys) != 1 || shared.Keys["shared"] != (policy.Key{Algorithm: "HS256", Key: "secret-of-hmac"}) {
		t.Errorf("signing by a shared secret: %+v", shared)
	}
	if release == nil || release.KeyID != "release" || release.Scope != "write" || release.Keys["release"] != (policy.Key{Algorithm: "ES256", Key: publicKey}) {
		t.Errorf("signing by a key: %+v", release)
	}
}

// TestBundlesThatAreRefused changes one thing in a good file: each is refused, with the line and the words that help, and no secret.
func TestBundlesThatAreRefused(t *testing.T) {
	for name, test := range map[string]struct{ from, to, want string }{
		"no source":                  {", folder: policies/team", "", `c.yaml:21: bundle "team" needs exactly one of folder, file, url and oci`},
		"two sources":                {"folder: policies/team", "folder: policies/team, file: x", `c.yaml:21: bundle "team" needs exactly one of`},
		"an empty source":            {"folder: policies/team", "folder: ", `c.yaml:21: bundle "team" needs exactly one of`},
		"no name":                    {"name: team, ", "", `c.yaml:21: bundle name "" must match`},
		"a name that no label is":    {"name: team", "name: Team", `c.yaml:21: bundle name "Team" must match`},
		"a name twice":               {"name: packed", "name: team", `c.yaml:22: bundle "team" is defined twice`},
		"an unknown key":             {"folder: policies/team", "dir: policies/team", "c.yaml:21: unknown key dir"},
		"poll of a folder":           {"folder: policies/team", "folder: policies/team, poll: 5s", `c.yaml:21: bundle "team": poll is for url and oci`},
		"a credential of a file":     {"file: /srv/packed.tar.gz", `file: /srv/packed.tar.gz, credential: "env:TOKEN"`, `c.yaml:22: bundle "packed": credential is for url and oci`},
		"plain_http of a URL":        {"poll: 30s", "plain_http: true", `c.yaml:23: bundle "org": plain_http is for oci`},
		"poll too often":             {"poll: 30s", "poll: 999ms", `c.yaml:23: bundle "org": poll: "999ms" must be a length such as 30s, of at least 1s and at most 24h0m0s`},
		"poll too rarely":            {"poll: 30s", "poll: 25h", `c.yaml:23: bundle "org": poll: "25h" must be a length`},
		"poll of no length":          {"poll: 30s", "poll: often", `c.yaml:23: bundle "org": poll: "often" must be a length`},
		"an empty poll":              {"poll: 30s", "poll: ", `c.yaml:23: bundle "org": poll is empty: write it, or leave it out`},
		"a credential in clear":      {`"env:TOKEN"`, "secret-token", `c.yaml:23: bundle "org": credential: it must be env:NAME; a secret does not belong into this file`},
		"a credential that is unset": {"env:TOKEN", "env:MISSING", `c.yaml:23: bundle "org": credential: the variable MISSING is not set`},
		"a credential of nothing":    {"env:TOKEN", "env:NONE", `c.yaml:23: bundle "org": credential: the variable NONE is not set`},
		"a credential of two lines":  {"env:TOKEN", "env:LINES", `c.yaml:23: bundle "org": credential: the variable LINES holds more than one line`},
		"an empty credential":        {`credential: "env:TOKEN"`, "credential: ", `c.yaml:23: bundle "org": credential is empty`},
		"a URL with a user":          {"https://policy", "https://me:secret-password@policy", `c.yaml:23: bundle "org": url must be without a user: a secret does not belong into this file, write credential: env:NAME`},
		"a URL of a file":            {"https://policy.example.com", "file:///srv", `c.yaml:23: bundle "org": url must be http(s)://HOST/PATH`},
		"a URL with a fragment":      {"?v=1", "#v1", `c.yaml:23: bundle "org": url must be http(s)://HOST/PATH`},
		"a credential in plain":      {"https://policy", "http://policy", `c.yaml:23: bundle "org": url must be https: the credential would be sent in plain`},
		"an image without a tag":     {"policies/org:1.0", "policies/org", `c.yaml:24: bundle "pushed": oci must be REGISTRY/REPOSITORY:TAG or`},
		"an image without registry":  {"registry.example.com/policies/org:1.0", "org:1.0", `c.yaml:24: bundle "pushed": oci must be REGISTRY/REPOSITORY:TAG or`},
		"an image of a URL":          {"registry.example.com", "https://registry.example.com", `c.yaml:24: bundle "pushed": oci must be REGISTRY/REPOSITORY:TAG or`},
		"plain_http elsewhere":       {"localhost:5000", "registry.example.com", `c.yaml:25: bundle "local": oci must be on this machine (localhost, 127.0.0.1) with plain_http`},
		"an unknown signing key":     {"signing: {key: shared}", "signing: {key: shred}", `c.yaml:22: bundle "packed": unknown key "shred": write it under policy.keys`},
		"signing without a key":      {"signing: {key: shared}", "signing: {scope: write}", `c.yaml:22: bundle "packed": signing needs a key, the id of one of policy.keys`},
		"an empty signing":           {"signing: {key: shared}", "signing: ", `c.yaml:22: bundle "packed": signing needs a key`},
		"an empty mapping":           {"signing: {key: shared}", "signing: {}", `c.yaml:22: bundle "packed": signing needs a key`},
		"an empty scope":             {"scope: write", "scope: ", `c.yaml:23: bundle "org": scope is empty`},
		"signing that is a word":     {"signing: {key: shared}", "signing: shared", `c.yaml:22: signing: want a mapping with key and scope, not the text "shared"`},
		"a key twice":                {"id: shared", "id: release", `c.yaml:19: key "release" is defined twice`},
		"a key without a name":       {"id: shared, ", "", `c.yaml:19: key id "" must match`},
		"an unknown algorithm":       {"HS256", "HS1", `c.yaml:19: the algorithm of the key "shared" is "HS1", none of ES256`},
		"no algorithm":               {"algorithm: HS256, ", "", `c.yaml:19: the algorithm of the key "shared" is ""`},
		"a secret for a public key":  {"HS256", "ES256", `c.yaml:19: the key "shared": it is no PEM: give the public key, or its certificate`},
		"a key that is unset":        {"env:SHARED", "env:MISSING", `c.yaml:19: key "shared": the variable MISSING is not set`},
		"no key":                     {`, key: "env:SHARED"`, "", `c.yaml:19: key "shared": key must be written: env:NAME, or the path of a file`},
		"a key of no variable":       {"env:SHARED", "env:", `c.yaml:19: key "shared": key must be written`},
		"a key's file that is gone":  {"KEYFILE", "KEYFILE.gone", `c.yaml:18: key "release": stat `},
		"a key's file that is none":  {"KEYFILE", "/", `c.yaml:18: key "release": / is no regular file`},
		"a device for a key":         {"KEYFILE", "/dev/zero", `c.yaml:18: key "release": /dev/zero is no regular file`},
		"too many bundles":           {"  bundles:\n", "  bundles:\n" + strings.Repeat("    - {name: x, folder: x}\n", 30), "c.yaml:20: there are more than 32 bundles"},
	} {
		_, err := parseBundled(t, test.from, test.to)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret-") {
			t.Errorf("%s: the message tells too much: %v", name, err)
		}
	}
}

// TestAKeysFileIsWatched: another key counts as another catalogue does, and one that is broken changes nothing.
func TestAKeysFileIsWatched(t *testing.T) {
	folder := t.TempDir()
	path, key := filepath.Join(folder, "c.yaml"), filepath.Join(folder, "key")
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(key, "first")
	write(path, hashed(good)+"policy:\n  keys: [{id: k, algorithm: HS256, key: "+key+"}]\n  bundles: [{name: b, folder: x, signing: {key: k}}]\n")
	changes := 0
	live, err := Open(path, noEnv, func(*Catalogue) { changes++ })
	if err != nil {
		t.Fatal(err)
	}
	inForce := func() string { return live.Current().Bundles[0].Signing.Keys["k"].Key }
	live.look()
	if changes != 1 || inForce() != "first" {
		t.Fatalf("%d changes, the key %q", changes, inForce())
	}
	write(key, "second")
	live.look()
	if changes != 2 || inForce() != "second" {
		t.Errorf("after a change: %d changes, the key %q", changes, inForce())
	}
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		live.look()
	}
	if changes != 2 || inForce() != "second" || live.Err() == nil || !strings.Contains(live.Err().Error(), "c.yaml:17: key \"k\": ") {
		t.Errorf("without the key: %d changes, the key %q, %v", changes, inForce(), live.Err())
	}
	write(key, "second")
	live.look()
	if changes != 3 || live.Err() != nil {
		t.Errorf("with the key again: %d changes, %v", changes, live.Err())
	}
}
