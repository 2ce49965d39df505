package bundles

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"regent/engine/policy"
	"regent/server/catalog"
)

func quiet() *log.Logger { return log.New(io.Discard, "", 0) }

const layerType = "application/vnd.oci.image.layer.v1.tar+gzip"

// registry speaks what is needed to pull: manifests by tag and digest, blobs by digest, and a token where it wants one.
type registry struct {
	*httptest.Server
	mu       sync.Mutex
	tags     map[string]string // digests
	content  map[string][]byte // by digest
	types    map[string]string
	requests []string
	// wants is "basic", "bearer" or "token" (a bearer token that the token server gives for the password).
	wants string
	// blobs is where blobs are sent for; empty if here.
	blobs string
}

const password = "me:" + secret

func newRegistry(t *testing.T) *registry {
	t.Helper()
	r := &registry{tags: map[string]string{}, content: map[string][]byte{}, types: map[string]string{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *registry) host() string { return strings.TrimPrefix(r.URL, "http://") }

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// push puts an image under a tag, with layers of one type.
func (r *registry) push(tag, layerType string, layers ...[]byte) (digest string) {
	type descriptor struct {
		MediaType string `json:"mediaType"`
		Digest    string `json:"digest"`
		Size      int    `json:"size"`
	}
	described := []descriptor{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, layer := range layers {
		described = append(described, descriptor{layerType, digestOf(layer), len(layer)})
		r.content[digestOf(layer)] = layer
	}
	manifest, _ := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": described,
		"config": descriptor{"application/vnd.oci.empty.v1+json", digestOf([]byte("{}")), 2},
	})
	return r.put(tag, "application/vnd.oci.image.manifest.v1+json", manifest)
}

func (r *registry) put(tag, mediaType string, manifest []byte) string {
	digest := digestOf(manifest)
	r.tags[tag], r.content[digest], r.types[digest] = digest, manifest, mediaType
	return digest
}

func (r *registry) count(part string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, request := range r.requests {
		if strings.Contains(request, part) {
			n++
		}
	}
	return n
}

func (r *registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, request.Method+" "+request.URL.Path)
	given := request.Header.Get("Authorization")
	if request.URL.Path == "/token" {
		if given != "Basic "+base64.StdEncoding.EncodeToString([]byte(password)) || request.URL.Query().Get("scope") != "repository:policies/org:pull" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, `{"errors":[{"code":"DENIED","message":%q}]}`, given)
			return
		}
		_, _ = io.WriteString(w, `{"token":"of-the-registry"}`)
		return
	}
	if !r.admits(given) {
		w.Header().Set("WWW-Authenticate", map[string]string{
			"basic": `Basic realm="x"`, "bearer": `Bearer realm="` + r.URL + `/token"`,
			"token": `Bearer realm="` + r.URL + `/token",service="x",scope="repository:policies/org:pull"`,
		}[r.wants])
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"errors":[{"code":"DENIED","message":%q}]}`, given)
		return
	}
	kind, name, _ := strings.Cut(strings.TrimPrefix(request.URL.Path, "/v2/policies/org/"), "/")
	if digest, isTag := r.tags[name]; isTag {
		name = digest
	}
	content, exists := r.content[name]
	switch {
	case !exists:
		w.WriteHeader(http.StatusNotFound)
		return
	case kind == "blobs" && r.blobs != "":
		http.Redirect(w, request, r.blobs+request.URL.Path, http.StatusTemporaryRedirect)
		return
	case kind == "manifests":
		w.Header().Set("Content-Type", r.types[name])
	}
	w.Header().Set("Docker-Content-Digest", name)
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	if request.Method == http.MethodGet {
		_, _ = w.Write(content)
	}
}

func (r *registry) admits(given string) bool {
	switch r.wants {
	case "basic":
		return given == "Basic "+base64.StdEncoding.EncodeToString([]byte(password))
	case "bearer":
		return given == "Bearer "+secret
	case "token":
		return given == "Bearer of-the-registry"
	}
	return true
}

func (r *registry) image(reference, credential string) *image {
	return newImage(catalog.BundleSource{Name: "org", OCI: r.host() + "/policies/org" + reference, Credential: credential, PlainHTTP: true}, hasty)
}

// TestAnImageIsPulled when the tag names another one, and is not pulled when it does not.
func TestAnImageIsPulled(t *testing.T) {
	r := newRegistry(t)
	first := r.push("1.0", layerType, packed(t, small))
	from, fixed := r.image(":1.0", ""), r.image("@"+first, "")
	wantTree(t, from, false, small)
	wantTree(t, from, false, nil)
	wantTree(t, fixed, false, small)
	if blobs := r.count("/blobs/"); blobs != 2 {
		t.Errorf("%d blobs were pulled", blobs)
	}
	r.push("1.0", "application/vnd.opa.bundle.v1.tar+gzip", packed(t, larger))
	wantTree(t, from, false, larger)
	before := r.count("")
	wantTree(t, fixed, false, nil)
	if r.count("") != before {
		t.Error("an image that is named by its digest was asked for again")
	}
}

func TestCredentialsOfRegistries(t *testing.T) {
	for _, test := range []struct{ wants, credential string }{{"basic", password}, {"bearer", secret}, {"token", password}} {
		r := newRegistry(t)
		r.push("1", layerType, packed(t, small))
		r.wants = test.wants
		wantTree(t, r.image(":1", test.credential), false, small)
		for _, bad := range []string{"", "me:" + secret + "2", secret + "2"} {
			_, err := r.image(":1", bad).fetch(t.Context(), false)
			if err == nil || strings.Contains(err.Error(), secret) || !strings.HasPrefix(err.Error(), r.host()+"/policies/org:1: ") {
				t.Errorf("%s with the credential %q: %v", test.wants, bad, err)
			}
			if bad == "" && !errors.Is(err, &StatusError{401}) {
				t.Errorf("%s without a credential: %v", test.wants, err)
			}
		}
	}
}

// TestBlobsOfAnotherServer are got without the credential.
func TestBlobsOfAnotherServer(t *testing.T) {
	r, storage := newRegistry(t), newRegistry(t)
	for _, registry := range []*registry{r, storage} {
		registry.push("1", layerType, packed(t, small))
	}
	var shown []string
	watched := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		shown = append(shown, request.Header.Get("Authorization")+request.Header.Get("Referer"))
		storage.ServeHTTP(w, request)
	}))
	defer watched.Close()
	r.wants, r.blobs = "basic", watched.URL
	wantTree(t, r.image(":1", password), false, small)
	if len(shown) != 1 || shown[0] != "" {
		t.Errorf("it was shown %q", shown)
	}
}

func TestImagesThatAreRefused(t *testing.T) {
	good := packed(t, small)
	for name, test := range map[string]struct {
		push func(r *registry)
		kind error
		text string
	}{
		"no such tag": {func(*registry) {}, &StatusError{404}, "the answer is 404 Not Found: see whether it is there"},
		"no layer":    {func(r *registry) { r.push("1", layerType) }, ErrImage, "0 of its layers are a tar.gz: push the bundle's tar.gz as its only layer"},
		"two layers":  {func(r *registry) { r.push("1", layerType, good, packed(t, larger)) }, ErrImage, "2 of its layers"},
		"single files": {func(r *registry) {
			r.push("1", "application/vnd.cncf.openpolicyagent.policy.layer.v1+rego", []byte("package a"))
		}, ErrImage, "0 of its layers"},
		"a list of images":  {func(r *registry) { r.put("1", "application/vnd.oci.image.index.v1+json", []byte(`{"manifests":[]}`)) }, ErrImage, "a list of images"},
		"a broken manifest": {func(r *registry) { r.put("1", "application/vnd.oci.image.manifest.v1+json", []byte("{")) }, ErrImage, "its manifest is broken"},
		"garbage":           {func(r *registry) { r.push("1", layerType, []byte("garbage")) }, ErrNotTarball, "not compressed by gzip"},
		"a layer of another content": {func(r *registry) {
			r.push("1", layerType, good)
			r.content[digestOf(good)] = append([]byte("x"), good[1:]...)
		}, ErrNotUnderstood, "what came is not what the digest names"},
		"too large": {func(r *registry) { r.push("1", layerType, make([]byte, policy.MaxBundleBytes+1)) }, ErrTooLarge, "larger than 33554432 bytes"},
		"a manifest that is too large": {func(r *registry) {
			r.put("1", "application/vnd.oci.image.manifest.v1+json", make([]byte, 5<<20))
		}, ErrTooLarge, "its manifest is larger than any"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t)
			test.push(r)
			wantError(t, r.image(":1", ""), false, test.kind, test.text)
		})
	}
}

// TestARegistryWithoutTLS is only spoken to where that is written.
func TestARegistryWithoutTLS(t *testing.T) {
	r := newRegistry(t)
	r.Config.ErrorLog = quiet()
	r.push("1", layerType, packed(t, small))
	from := r.image(":1", "")
	from.place.PlainHTTP = false
	wantError(t, from, false, ErrUnreachable, "the server does not speak TLS")
}
