package workshop

import (
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jws"
	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"

	"regent/engine/policy"
)

// signatureFile is where a bundle keeps its signature.
const signatureFile = ".signatures.json"

// Signer signs bundles as `opa sign` does, so that OPA and [policy.Signing] verify them. It does not print its key.
type Signer struct {
	algorithm jwa.SignatureAlgorithm
	key       any
	keyID     string
	scope     string
}

// NewSigner makes a signer of a key: a private key as PEM, or of the algorithms HS… the shared secret as it is. Errors say nothing of the
// key.
func NewSigner(key, algorithm, keyID, scope string) (*Signer, error) {
	known, isKnown := jwa.LookupSignatureAlgorithm(algorithm)
	switch {
	case !isKnown || !slices.Contains(policy.Algorithms, algorithm):
		return nil, fmt.Errorf("the algorithm %q is none of %s", algorithm, strings.Join(policy.Algorithms, ", "))
	case key == "":
		return nil, errors.New("the signing key is empty")
	case keyID == "":
		return nil, errors.New("the signing key has no id: whoever verifies finds it by that")
	}
	signer := &Signer{algorithm: known, key: []byte(key), keyID: keyID, scope: scope}
	if !strings.HasPrefix(algorithm, "HS") {
		private, err := parsePrivateKey([]byte(key))
		if err != nil {
			return nil, err
		}
		signer.key = private
	}
	if _, err := signer.token(claims{}); err != nil {
		return nil, err
	}
	return signer, nil
}

var errNoPrivateKey = errors.New("the signing key is no private key in PEM, unencrypted, as openssl writes it")

// parsePrivateKey reads a private key. The errors of parsers are left out: they could quote what they read.
func parsePrivateKey(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errNoPrivateKey
	}
	for _, parse := range []func([]byte) (any, error){
		x509.ParsePKCS8PrivateKey,
		func(der []byte) (any, error) { return x509.ParsePKCS1PrivateKey(der) },
		func(der []byte) (any, error) { return x509.ParseECPrivateKey(der) },
	} {
		if key, err := parse(block.Bytes); err == nil {
			if signer, canSign := key.(crypto.Signer); canSign {
				return signer, nil
			}
		}
	}
	return nil, errNoPrivateKey
}

// claims are what is signed.
type claims struct {
	Files []bundle.FileInfo `json:"files"`
	Scope string            `json:"scope,omitempty"`
}

// sign returns the file of signatures over all files. OPA reads a scope to sign from a file of claims only; here the claims are made.
func (s *Signer) sign(files map[string][]byte) ([]byte, error) {
	payload := claims{Scope: s.scope}
	for _, name := range util.KeysSorted(files) {
		digest, err := digestOf(name, files[name])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		payload.Files = append(payload.Files, bundle.NewFile(name, digest, bundle.SHA256.String()))
	}
	token, err := s.token(payload)
	if err != nil {
		return nil, err
	}
	return json.Marshal(bundle.SignaturesConfig{Signatures: []string{token}})
}

// token is the signed form of some claims.
func (s *Signer) token(signed claims) (string, error) {
	text, err := json.Marshal(signed)
	if err != nil {
		return "", err
	}
	headers := jws.NewHeaders()
	if err := headers.Set(jws.KeyIDKey, s.keyID); err != nil {
		return "", err
	}
	token, err := jws.Sign(text, jws.WithKey(s.algorithm, s.key, jws.WithProtectedHeaders(headers)))
	if err != nil {
		return "", fmt.Errorf("the signing key does not fit the algorithm %s", s.algorithm) // the cause could quote the key
	}
	return string(token), nil
}

// digestOf is what OPA takes for a file's digest: of JSON and YAML that it reads, the values count and not how they are written.
func digestOf(name string, content []byte) (string, error) {
	hasher, err := bundle.NewSignatureHasher(bundle.SHA256)
	if err != nil {
		return "", err
	}
	var value any = content
	if bundle.IsStructuredDoc(name) {
		if err := util.Unmarshal(content, &value); err != nil {
			return "", err
		}
	}
	digest, err := hasher.HashFile(value)
	return hex.EncodeToString(digest), err
}
