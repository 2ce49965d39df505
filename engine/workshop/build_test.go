package workshop

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"regent/engine/policy"
	"regent/engine/tarball"
	"regent/policies"
)

// built writes an archive of a bundle and reads it again.
func built(t *testing.T, of *Bundle, revision string, signer *Signer) string {
	t.Helper()
	archive, err := of.Build(revision, signer)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "org.tar.gz")
	if err := WriteFile(path, archive); err != nil {
		t.Fatal(err)
	}
	return path
}

// readWhole is all that is in an archive, the signature included.
func readWhole(path string) (map[string][]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	tree, err := tarball.Read(bytes.NewReader(content), tarball.Limits{Bytes: 1 << 20, Files: 100, Depth: 10})
	if err != nil {
		return nil, err
	}
	return tree.Files(), nil
}

// inMemory is a tree of files.
func inMemory(t *testing.T, files map[string][]byte) *tarball.Tree {
	t.Helper()
	tree, err := tarball.NewTree(files)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// loaded loads an archive as the gateway does, with the name org.
func loaded(t *testing.T, path string, signing *policy.Signing) (*policy.Activation, error) {
	t.Helper()
	file, err := readWhole(path)
	if err != nil {
		t.Fatal(err)
	}
	return policy.Load(context.Background(), policy.Source{Bundles: []policy.Bundle{
		{Name: "regent", FS: policies.Files(), Tested: true},
		{Name: "org", FS: inMemory(t, file), Signing: signing},
	}})
}

func TestAnArchiveIsTheFolder(t *testing.T) {
	folder := bench(t, started(t))
	whole, err := folder.Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	path := built(t, folder.Given[0], "", nil)
	archive := bench(t, path)
	again, err := archive.Load(context.Background(), policy.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	if whole.Digest() != again.Digest() {
		t.Errorf("the digest is %s, that of the folder %s", again.Digest(), whole.Digest())
	}
	if report, err := archive.Test(context.Background(), policy.TestRun{}); err != nil || len(report.Tests) != 3 {
		t.Errorf("its tests have not come along: %+v, %v", report, err)
	}
	revised := built(t, folder.Given[0], "2026-11", nil)
	activation, err := loaded(t, revised, nil)
	if err != nil || activation.Bundles()["org"] != "2026-11" {
		t.Errorf("the revision is %v, %v", activation.Bundles(), err)
	}
}

func TestASignatureIsVerified(t *testing.T) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []struct{ algorithm, private, public string }{
		{"RS256", pemOf(t, private), publicOf(t, &private.PublicKey)},
		{"PS512", pemOf(t, private), publicOf(t, &private.PublicKey)},
		{"ES256", pemOf(t, curve), publicOf(t, &curve.PublicKey)},
		{"HS256", "a shared secret", "a shared secret"},
	} {
		t.Run(key.algorithm, func(t *testing.T) {
			signer, err := NewSigner(key.private, key.algorithm, "k1", "production")
			if err != nil {
				t.Fatal(err)
			}
			path := built(t, bench(t, started(t)).Given[0], "", signer)
			trusted := &policy.Signing{Keys: map[string]policy.Key{"k1": {Algorithm: key.algorithm, Key: key.public}}, Scope: "production"}
			if _, err := loaded(t, path, trusted); err != nil {
				t.Error(err)
			}
			trusted.Scope = "test"
			if _, err := loaded(t, path, trusted); err == nil || !strings.Contains(err.Error(), "scope") {
				t.Errorf("another scope: got %v", err)
			}
			trusted.Scope, trusted.Keys = "production", map[string]policy.Key{"k2": trusted.Keys["k1"]}
			if _, err := loaded(t, path, trusted); err == nil {
				t.Error("a key of another id verified it")
			}
		})
	}
}

func TestAChangedFileIsNotWhatWasSigned(t *testing.T) {
	signer, err := NewSigner("a shared secret", "HS256", "k1", "")
	if err != nil {
		t.Fatal(err)
	}
	bundle := bench(t, started(t)).Given[0]
	files, err := readWhole(built(t, bundle, "", signer))
	if err != nil {
		t.Fatal(err)
	}
	files[weekend] = []byte(strings.ReplaceAll(string(files[weekend]), "Saturday", "Monday"))
	_, err = policy.Load(context.Background(), policy.Source{Bundles: []policy.Bundle{
		{Name: "regent", FS: policies.Files(), Tested: true},
		{Name: "org", FS: inMemory(t, files), Signing: &policy.Signing{Keys: map[string]policy.Key{"k1": {Algorithm: "HS256", Key: "a shared secret"}}}},
	}})
	var refused *policy.LoadError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), weekend+": digest mismatch") {
		t.Errorf("got %v", err)
	}
}

// A key that is none of what was named: no error quotes it.
func TestAKeyIsNeverTold(t *testing.T) {
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	whole := pemOf(t, private)
	for _, test := range []struct{ key, algorithm, keyID string }{
		{"hunter2", "RS256", "k"},
		{whole, "ES256", "k"},
		{strings.ReplaceAll(whole, "PRIVATE", "PUBLIC"), "ES256", "k"},
		{whole, "none", "k"},
		{whole, "RS256", ""},
		{whole[:400], "RS256", "k"},
		{"", "HS256", "k"},
	} {
		_, err := NewSigner(test.key, test.algorithm, test.keyID, "")
		if err == nil {
			t.Errorf("%s with the id %q took a wrong key", test.algorithm, test.keyID)
			continue
		}
		if strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "MII") {
			t.Errorf("the key is in %v", err)
		}
	}
}

func pemOf(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func publicOf(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}
