package ownership

import (
	"os"
	"slices"
	"strings"
)

// Shared reports whether the kernel shows several users, or groups, by this number: in a user namespace, all that have no
// number there are 65534 (kernel.overflowuid).
func Shared(id uint32) bool {
	if id != 65534 {
		return false
	}
	numbers, err := os.ReadFile("/proc/self/uid_map") // missing without user namespaces
	return err == nil && !slices.Equal(strings.Fields(string(numbers)), []string{"0", "0", "4294967295"})
}
