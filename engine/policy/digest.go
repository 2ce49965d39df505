package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"

	"github.com/open-policy-agent/opa/v1/util"
)

// ParseDigest reads a digest as [Activation.Digest] writes it.
func ParseDigest(text string) (digest [sha256.Size]byte, err error) {
	if len(text) == 2*sha256.Size {
		_, err = hex.Decode(digest[:], []byte(text))
	}
	if len(text) != 2*sha256.Size || err != nil {
		return digest, fmt.Errorf("policy: %q is no digest: it has to be %d hex digits", text, 2*sha256.Size)
	}
	return digest, nil
}

// digestOf is a canonical digest of bundles, in the order of their names, and of settings in their JSON form. Every part is
// preceded by its length, so that no two different sources are written alike.
func digestOf(settings []byte, bundles ...*unpacked) string {
	sum := sha256.New()
	count(sum, len(bundles))
	for _, u := range slices.SortedFunc(slices.Values(bundles), byName) {
		part(sum, []byte(u.name))
		count(sum, len(u.files))
		for _, name := range util.KeysSorted(u.files) {
			part(sum, []byte(name))
			part(sum, u.files[name])
		}
	}
	part(sum, settings)
	return hex.EncodeToString(sum.Sum(nil))
}

func byName(a, b *unpacked) int {
	if a.name < b.name {
		return -1
	}
	return 1
}

func part(sum hash.Hash, content []byte) {
	count(sum, len(content))
	sum.Write(content)
}

func count(sum hash.Hash, n int) {
	sum.Write(binary.BigEndian.AppendUint64(nil, uint64(n)))
}
