package policy

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"
)

// Signing is by whom a bundle has to be signed, as `opa sign` and `regent policy build` do it: .signatures.json holds a JSON web
// token with the digest of every other file.
type Signing struct {
	// Keys that are trusted, by id. Required.
	Keys map[string]Key
	// KeyID is the key that must have signed. Empty lets the signature name one of the keys.
	KeyID string
	// Scope must be the one that was signed, so that a bundle for one purpose cannot be put to another. Empty wants none.
	Scope string
}

// Key verifies signatures.
type Key struct {
	// Algorithm is one of [Algorithms]. It is the key's, never the token's, so that a public key is not taken for a shared secret.
	Algorithm string
	// Key is the public key or its certificate as PEM; of the algorithms HS… the shared secret.
	Key string
}

// signaturesFile is where a bundle keeps its signature.
const signaturesFile = ".signatures.json"

// Algorithms are those that a bundle may be signed by.
var Algorithms = []string{"ES256", "ES384", "ES512", "HS256", "HS384", "HS512", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"}

// Validate says what is wrong with a signing.
func (s *Signing) Validate() error {
	if len(s.Keys) == 0 {
		return errors.New("no key is trusted")
	}
	for id, key := range s.Keys {
		if !slices.Contains(Algorithms, key.Algorithm) {
			return fmt.Errorf("the algorithm of the key %q is %q, none of %s", id, key.Algorithm, strings.Join(Algorithms, ", "))
		}
		if err := key.validate(); err != nil {
			return fmt.Errorf("the key %q: %w", id, err)
		}
	}
	if _, exists := s.Keys[s.KeyID]; s.KeyID != "" && !exists {
		return fmt.Errorf("the key %s is not among the trusted ones", s.KeyID)
	}
	return nil
}

// validate says whether the key can verify what its algorithm signs. It quotes nothing of it.
func (k Key) validate() error {
	if strings.HasPrefix(k.Algorithm, "HS") {
		if k.Key == "" {
			return errors.New("the secret is empty")
		}
		return nil
	}
	block, _ := pem.Decode([]byte(k.Key))
	if block == nil {
		return errors.New("it is no PEM: give the public key, or its certificate")
	}
	var public any
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		public, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		public, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var certificate *x509.Certificate
		if certificate, err = x509.ParseCertificate(block.Bytes); err == nil {
			public = certificate.PublicKey
		}
	default:
		return fmt.Errorf("it is a %s: a gateway verifies, and gets the public key alone", strings.ToLower(block.Type))
	}
	if err != nil {
		return errors.New("the PEM holds no public key that can be read")
	}
	_, isRSA := public.(*rsa.PublicKey)
	_, isEC := public.(*ecdsa.PublicKey)
	if wantsEC := strings.HasPrefix(k.Algorithm, "ES"); wantsEC != isEC || !wantsEC != isRSA {
		return fmt.Errorf("it is a %T, which does not fit the algorithm %s", public, k.Algorithm)
	}
	return nil
}

// verify holds the files to their signature: each must be signed as it is, and none that was signed may be missing.
func (s *Signing) verify(files map[string][]byte) error {
	if err := s.Validate(); err != nil {
		return err
	}
	text, exists := files[signaturesFile]
	if !exists {
		return errors.New("it is missing: the bundle has to be signed")
	}
	var signatures bundle.SignaturesConfig
	if err := json.Unmarshal(text, &signatures); err != nil {
		return err
	}
	signatures.Plugin = "" // OPA's own verification, whatever the file says
	keys := make(map[string]*bundle.KeyConfig, len(s.Keys))
	for id, key := range s.Keys {
		keys[id] = &bundle.KeyConfig{Key: key.Key, Algorithm: key.Algorithm}
	}
	signed, err := bundle.VerifyBundleSignature(signatures, bundle.NewVerificationConfig(keys, s.KeyID, s.Scope, nil))
	if err != nil {
		if err.Error() == "scope mismatch" {
			err = fmt.Errorf("it was made for another scope than %q", s.Scope)
		}
		return fmt.Errorf("the signature is not good: %w", err)
	}
	for _, name := range util.KeysSorted(files) {
		if name == signaturesFile {
			continue
		}
		if err := bundle.VerifyBundleFile(name, *bytes.NewBuffer(files[name]), signed); err != nil {
			return fmt.Errorf("the signature is not good: %w", err)
		}
	}
	if len(signed) > 0 {
		return fmt.Errorf("the signature is not good: signed, but not there: %s", strings.Join(util.KeysSorted(signed), ", "))
	}
	return nil
}
