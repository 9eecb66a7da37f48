package migrate

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
)

// sums are the checksums of the keys that the source has.
type sums map[string][sha256.Size]byte

// sumOf is over the value, and over whether the key expires. A datastore may lengthen a TTL.
func sumOf(e entry) [sha256.Size]byte {
	h := sha256.New()
	expires := byte(0)
	if e.ttl > 0 {
		expires = 1
	}
	h.Write([]byte{expires})
	h.Write(e.value)
	return [sha256.Size]byte(h.Sum(nil))
}

func (s sums) add(e entry) { s[e.key] = sumOf(e) }

func (s sums) copy() sums { return maps.Clone(s) }

// remove checks a key of the target, and removes it, so that those that are missing are left.
func (s sums) remove(e entry) error {
	want, there := s[e.key]
	if !there {
		return fmt.Errorf("verification failed: %s is there, once more than at the source", e.key)
	}
	if sumOf(e) != want {
		return fmt.Errorf("verification failed: %s has another value than at the source", e.key)
	}
	delete(s, e.key)
	return nil
}

// missing is the error for keys that are left.
func (s sums) missing() error {
	if len(s) == 0 {
		return nil
	}
	return fmt.Errorf("verification failed: %d keys are missing, such as %s", len(s), slices.Sorted(maps.Keys(s))[0])
}
