package bundles

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/errcode"

	"regent/engine/policy"
	"regent/engine/tarball"
	"regent/server/catalog"
)

// layerSuffix is how the type of a tarball's layer ends, whichever tool has pushed it.
const layerSuffix = "tar+gzip"

// manifestTypes are those of one image.
var manifestTypes = []string{ocispec.MediaTypeImageManifest, "application/vnd.docker.distribution.manifest.v2+json"}

// manifestBytesMax bounds a manifest, whose size the registry says: as much as registries take.
const manifestBytesMax = 4 << 20

// image is a bundle in a registry: an image with one layer, its tarball.
type image struct {
	place  catalog.BundleSource
	limits limits
	client *http.Client
	known  digest.Digest // of the manifest that was fetched last
}

func newImage(place catalog.BundleSource, limits limits) *image {
	return &image{place: place, limits: limits, client: newClient(limits)}
}

func (i *image) fetch(ctx context.Context, _ bool) (*tarball.Tree, error) {
	ctx, cancel := context.WithTimeout(ctx, i.limits.whole)
	defer cancel()
	found, err := i.pull(ctx)
	if err != nil {
		return nil, at(i.place.OCI, ofRegistry(err))
	}
	return found, nil
}

// pull asks which image the reference names, and gets it if it is not the one that is known. One that is named by its digest stays
// what it is.
func (i *image) pull(ctx context.Context) (*tarball.Tree, error) {
	repository, err := i.repository()
	if err != nil {
		return nil, err
	}
	reference := repository.Reference.Reference
	if i.known != "" && reference == i.known.String() {
		return nil, nil
	}
	manifest, err := repository.Resolve(ctx, reference)
	if err != nil || manifest.Digest == i.known {
		return nil, err
	}
	layer, err := layerOf(ctx, repository, manifest)
	if err != nil {
		return nil, err
	}
	packed, err := content.FetchAll(ctx, repository.Blobs(), layer)
	if err != nil {
		return nil, err
	}
	found, err := tarball.Read(bytes.NewReader(packed), most)
	if err != nil {
		return nil, err
	}
	i.known = manifest.Digest
	return found, nil
}

// repository is made anew for each look, with a credential that was not used before: tokens of registries live for minutes.
func (i *image) repository() (*remote.Repository, error) {
	repository, err := remote.NewRepository(i.place.OCI)
	if err != nil {
		return nil, err
	}
	client := &auth.Client{Client: i.client, Cache: auth.NewCache()}
	client.SetUserAgent(userAgent)
	if i.place.Credential != "" {
		client.Credential = auth.StaticCredential(repository.Reference.Host(), credentialOf(i.place.Credential))
	}
	repository.Client, repository.PlainHTTP = client, i.place.PlainHTTP
	return repository, nil
}

// credentialOf is a user with a password, or else a token as it is.
func credentialOf(text string) auth.Credential {
	if user, password, isUser := strings.Cut(text, ":"); isUser {
		return auth.Credential{Username: user, Password: password}
	}
	return auth.Credential{AccessToken: text}
}

// layerOf is the one layer of an image that is a tarball.
func layerOf(ctx context.Context, repository *remote.Repository, described ocispec.Descriptor) (layer ocispec.Descriptor, err error) {
	if !slices.Contains(manifestTypes, described.MediaType) {
		return layer, wrong(ErrImage, "name one image, by its tag or digest", "it is a list of images, or something else")
	}
	if described.Size < 0 || described.Size > manifestBytesMax {
		return layer, wrong(ErrTooLarge, "name one image of a bundle", "its manifest is larger than any")
	}
	text, err := content.FetchAll(ctx, repository.Manifests(), described)
	if err != nil {
		return layer, err
	}
	var manifest ocispec.Manifest
	if json.Unmarshal(text, &manifest) != nil {
		return layer, wrong(ErrImage, "push it by `oras push` or `policy push`", "its manifest is broken")
	}
	found := 0
	for _, candidate := range manifest.Layers {
		if strings.HasSuffix(candidate.MediaType, layerSuffix) {
			layer = candidate
			found++
		}
	}
	switch {
	case found != 1:
		return layer, wrong(ErrImage, "push the bundle's tar.gz as its only layer, of the type "+ocispec.MediaTypeImageLayerGzip,
			"%d of its layers are a tar.gz", found)
	case layer.Size < 0 || layer.Size > policy.MaxBundleBytes:
		return layer, wrong(ErrTooLarge, "move data out of it", "it is larger than %d bytes", policy.MaxBundleBytes)
	}
	return layer, nil
}

// ofRegistry tells the kind of what only registries answer.
func ofRegistry(err error) error {
	var answer *errcode.ErrorResponse
	switch {
	case errors.As(err, &answer):
		return refused(answer.StatusCode)
	case errors.Is(err, errdef.ErrNotFound):
		return refused(http.StatusNotFound)
	case errors.Is(err, auth.ErrBasicCredentialNotFound):
		return refused(http.StatusUnauthorized)
	case errors.Is(err, content.ErrMismatchedDigest), errors.Is(err, content.ErrTrailingData), errors.Is(err, content.ErrInvalidDescriptorSize):
		return wrong(ErrNotUnderstood, "the registry is at fault; it is asked again", "what came is not what the digest names")
	}
	return err
}
