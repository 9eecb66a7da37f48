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

// usable drops the addresses that no connection may be made to. refused says so, for people; it
// is empty if there are none.
func usable(addresses []string) (good []string, refused string) {
	for _, a := range addresses {
		err := CheckAddress(a)
		switch {
		case err == nil && len(good) < mostAddresses:
			good = append(good, a)
		case refused == "" && err == nil:
			refused = fmt.Sprintf("status.addresses of the Node: only the first %d are used", mostAddresses)
		case refused == "":
			refused = fmt.Sprintf("status.addresses of the Node: %v, so it is not used, nor are others like it", err)
		}
	}
	return good, refused
}
