package tunnels

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/karve-k8s/karve/internal/quote"
)

// ErrAddress means that an address is neither an IP address nor a DNS name.
var ErrAddress = errors.New("neither an IP address without a zone nor a DNS name")

// CheckAddress refuses what no node may have as its address. The API server accepts any text in
// status.addresses, and a node writes its own. The address becomes a part of known_hosts, of errors
// that name a command, and of requests to other machines. An IP address with a zone is refused, too: a
// zone is any text, and means something on one machine only.
func CheckAddress(address string) error {
	if ip, err := netip.ParseAddr(address); err == nil && ip.Zone() == "" {
		return nil
	}
	if len(validation.IsDNS1123Subdomain(strings.ToLower(address))) == 0 {
		return nil
	}
	return fmt.Errorf("address %s: %w", quote.Text(address), ErrAddress)
}

// mostAddresses is how many addresses of a node are used. Each one that does not answer costs an
// attempt its timeout.
const mostAddresses = 8

// usable drops the addresses that no connection may be made to. refused says which, for people; it
// is empty if there are none.
func usable(addresses []string) (good []string, refused string) {
	bad := 0
	for _, a := range addresses {
		if err := CheckAddress(a); err == nil {
			good = append(good, a)
		} else if bad++; bad == 1 {
			refused = fmt.Sprintf("status.addresses of the Node: %v, so it is not used", err)
		}
	}
	if bad > 1 {
		refused += fmt.Sprintf(" (and %d more like it)", bad-1)
	}
	if more := len(good) - mostAddresses; more > 0 {
		good = good[:mostAddresses]
		refused = strings.TrimPrefix(fmt.Sprintf("%s; status.addresses of the Node: the last %d are not used", refused, more), "; ")
	}
	return good, refused
}
