package catalog

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"oras.land/oras-go/v2/registry"

	"regent/engine/policy"
)

const (
	// pollDefault is how often a server or a registry is asked for a new bundle where nothing is written.
	pollDefault  = time.Minute
	pollMin      = time.Second    // a request a second of each gateway is what a small server bears
	pollMax      = 24 * time.Hour // a bundle that is looked for less often is not kept up to date
	bundlesMax   = 32             // each may hold 32 MiB
	keyBytesMax  = 64 << 10       // several times a certificate of the largest key
	envPrefix    = "env:"
	httpsScheme  = "https"
	httpScheme   = "http"
	oneOfSources = "exactly one of folder, file, url and oci"
)

// bundleName is how policy wants a bundle to be called.
var bundleName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// Bundle is a policy bundle that the file names: where it comes from, and who has to have signed it.
type Bundle struct {
	BundleSource
	// Signing is nil for a bundle that is taken unsigned.
	Signing *policy.Signing `json:"-"`
}

// BundleSource is where a bundle comes from. Two that are equal are one place, looked at in one way.
type BundleSource struct {
	Name string
	// Exactly one of Folder, File, URL and OCI is not empty. Relative paths are relative to where the program was started.
	Folder, File, URL, OCI string
	// Poll is how often a server or a registry is asked.
	Poll time.Duration
	// Credential is what a server or a registry is shown; empty is none.
	Credential string `json:"-"`
	// PlainHTTP has a registry on this machine spoken to without TLS.
	PlainHTTP bool
}

// bundles enters the bundles and checks what can be checked without looking at them.
func (p *parser) bundles() error {
	keys, err := p.signingKeys()
	if err != nil {
		return err
	}
	if len(p.file.Policy.Bundles) > bundlesMax {
		return p.fail([]any{"policy", "bundles"}, "there are more than %d bundles", bundlesMax)
	}
	names := map[string]bool{}
	for i, entry := range p.file.Policy.Bundles {
		way := []any{"policy", "bundles", i}
		if !bundleName.MatchString(entry.Name) {
			return p.fail(append(way, "name"), "bundle name %q must match %s", entry.Name, bundleName)
		}
		if names[entry.Name] {
			return p.fail(append(way, "name"), "bundle %q is defined twice", entry.Name)
		}
		names[entry.Name] = true
		source, err := p.bundleSource(entry, way)
		if err != nil {
			return err
		}
		signing, err := p.signing(entry, keys, append(way, "signing"))
		if err != nil {
			return err
		}
		p.catalogue.Bundles = append(p.catalogue.Bundles, Bundle{BundleSource: source, Signing: signing})
	}
	return nil
}

// bundleSource reads where a bundle comes from.
func (p *parser) bundleSource(entry bundleEntry, way []any) (BundleSource, error) {
	source := BundleSource{Name: entry.Name, Folder: entry.Folder, File: entry.File, URL: entry.URL, OCI: entry.OCI, PlainHTTP: entry.PlainHTTP}
	written := 0
	for _, place := range []string{entry.Folder, entry.File, entry.URL, entry.OCI} {
		if place != "" {
			written++
		}
	}
	if written != 1 {
		return source, p.fail(way, "bundle %q needs %s", entry.Name, oneOfSources)
	}
	for _, remote := range []struct {
		key     string
		written bool
	}{{"poll", entry.Poll != ""}, {"credential", entry.Credential != ""}} {
		if remote.written && entry.URL == "" && entry.OCI == "" {
			return source, p.fail(append(way, remote.key), "bundle %q: %s is for url and oci", entry.Name, remote.key)
		}
		if !remote.written && isEmpty(p.node, append(way, remote.key)...) {
			return source, p.fail(append(way, remote.key), "bundle %q: %s is empty: write it, or leave it out", entry.Name, remote.key)
		}
	}
	if entry.PlainHTTP && entry.OCI == "" {
		return source, p.fail(append(way, "plain_http"), "bundle %q: plain_http is for oci", entry.Name)
	}
	if entry.URL == "" && entry.OCI == "" {
		return source, nil
	}
	return source, p.remote(&source, entry, way)
}

// remote reads what only servers and registries have.
func (p *parser) remote(source *BundleSource, entry bundleEntry, way []any) (err error) {
	if source.Poll, err = pollOf(entry.Poll); err != nil {
		return p.fail(append(way, "poll"), "bundle %q: poll: %v", entry.Name, err)
	}
	if entry.Credential != "" {
		if source.Credential, err = p.secret(entry.Credential); err != nil {
			return p.fail(append(way, "credential"), "bundle %q: credential: %v", entry.Name, err)
		}
	}
	if entry.URL != "" {
		if err := checkBundleURL(entry.URL, source.Credential != ""); err != nil {
			return p.fail(append(way, "url"), "bundle %q: url %v", entry.Name, err)
		}
		return nil
	}
	if err := checkReference(entry.OCI, entry.PlainHTTP); err != nil {
		return p.fail(append(way, "oci"), "bundle %q: oci %v", entry.Name, err)
	}
	return nil
}

func pollOf(text string) (time.Duration, error) {
	if text == "" {
		return pollDefault, nil
	}
	poll, err := time.ParseDuration(text)
	if err != nil || poll < pollMin || poll > pollMax {
		return 0, fmt.Errorf("%q must be a length such as 30s, of at least %v and at most %v", text, pollMin, pollMax)
	}
	return poll, nil
}

// secret reads a variable. That it is not there is an error: a bundle without its credential would never arrive.
func (p *parser) secret(written string) (string, error) {
	variable, fromEnv := strings.CutPrefix(written, envPrefix)
	if !fromEnv {
		return "", errors.New("it must be env:NAME; a secret does not belong into this file")
	}
	value, given := p.env(variable)
	if !given || value == "" {
		return "", fmt.Errorf("the variable %s is not set", variable)
	}
	if strings.ContainsAny(value, "\r\n") {
		return "", fmt.Errorf("the variable %s holds more than one line", variable)
	}
	return value, nil
}

// checkBundleURL wants an address that can be shown, but for its query, and over which a secret is not told to everybody on the way.
func checkBundleURL(text string, withCredential bool) error {
	at, err := url.Parse(text)
	switch {
	case err != nil || at.Scheme != httpsScheme && at.Scheme != httpScheme || at.Host == "" || at.Fragment != "":
		return errors.New("must be http(s)://HOST/PATH without a fragment")
	case at.User != nil:
		return errors.New("must be without a user: a secret does not belong into this file, write credential: env:NAME")
	case withCredential && at.Scheme == httpScheme && !isLoopback(at.Hostname()):
		return errors.New("must be https: the credential would be sent in plain")
	}
	return nil
}

// checkReference wants registry/repository and a tag or a digest: a latest one that nobody wrote would be one that nobody chose.
func checkReference(text string, plain bool) error {
	reference, err := registry.ParseReference(text)
	if err != nil || reference.Reference == "" {
		return errors.New("must be REGISTRY/REPOSITORY:TAG or REGISTRY/REPOSITORY@sha256:DIGEST")
	}
	host, err := url.Parse("//" + reference.Registry)
	if plain && (err != nil || !isLoopback(host.Hostname())) {
		return errors.New("must be on this machine (localhost, 127.0.0.1) with plain_http: leave it out, and have the registry speak TLS")
	}
	return nil
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

// signingKeys reads the keys by which bundles may be signed.
func (p *parser) signingKeys() (map[string]policy.Key, error) {
	keys := map[string]policy.Key{}
	for i, entry := range p.file.Policy.Keys {
		way := []any{"policy", "keys", i}
		if err := checkNew(p, "key", entry.ID, keys, way...); err != nil {
			return nil, err
		}
		text, err := p.keyText(entry.Key)
		if err != nil {
			return nil, p.fail(append(way, "key"), "key %q: %v", entry.ID, err)
		}
		key := policy.Key{Algorithm: entry.Algorithm, Key: text}
		if err := (&policy.Signing{Keys: map[string]policy.Key{entry.ID: key}}).Validate(); err != nil {
			return nil, p.fail(append(way, "algorithm"), "%v", err)
		}
		keys[entry.ID] = key
	}
	return keys, nil
}

// keyText is a key, from a variable or a file.
func (p *parser) keyText(written string) (string, error) {
	variable, fromEnv := strings.CutPrefix(written, envPrefix)
	if written == "" || variable == "" {
		return "", errors.New("key must be written: env:NAME, or the path of a file")
	}
	if fromEnv {
		if text, given := p.env(variable); given && text != "" {
			return text, nil
		}
		return "", fmt.Errorf("the variable %s is not set", variable)
	}
	text, err := p.read(written)
	if err == nil && len(text) == 0 {
		err = fmt.Errorf("%s is empty", written)
	}
	return string(text), err
}

// readKey reads a file of a key. What is no regular file could keep a reader waiting.
func readKey(path string) ([]byte, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(file, keyBytesMax+1))
	if err == nil && len(text) > keyBytesMax {
		err = fmt.Errorf("%s is larger than %d bytes, and no key", path, keyBytesMax)
	}
	return text, err
}

// signing reads who has to have signed a bundle. An empty one would take it unsigned, which nobody means who writes the word.
func (p *parser) signing(entry bundleEntry, keys map[string]policy.Key, way []any) (*policy.Signing, error) {
	if entry.Signing == nil && !isEmpty(p.node, way...) {
		return nil, nil
	}
	if entry.Signing == nil || entry.Signing.Key == "" {
		return nil, p.fail(way, "bundle %q: signing needs a key, the id of one of policy.keys", entry.Name)
	}
	key, known := keys[entry.Signing.Key]
	if !known {
		return nil, p.fail(append(way, "key"), "bundle %q: unknown key %q: write it under policy.keys", entry.Name, entry.Signing.Key)
	}
	if entry.Signing.Scope == "" && isEmpty(p.node, append(way, "scope")...) {
		return nil, p.fail(append(way, "scope"), "bundle %q: scope is empty: write it, or leave it out", entry.Name)
	}
	return &policy.Signing{Keys: map[string]policy.Key{entry.Signing.Key: key}, KeyID: entry.Signing.Key, Scope: entry.Signing.Scope}, nil
}
