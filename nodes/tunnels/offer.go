package tunnels

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/karve-k8s/karve/internal/quote"
)

// The ConfigMap in kube-public by which servers offer their keys to nodes.
const (
	OfferName  = "karve-ssh"
	OfferUser  = "user"            // the key of the user's name
	OfferLines = "authorized_keys" // the key of the lines, one for each server
)

// ErrOffer means that a line is not one that AuthorizedKey makes.
var ErrOffer = errors.New("not a line for authorized_keys that only forwards connections")

// limit is an option that takes rights from a key that is restricted already. People may add it.
var limit = regexp.MustCompile(`^(from|permitopen|expiry-time)="[^"\\]*"$`)

// Offered checks lines that were offered to a node, and returns them in the form in which they go into
// authorized_keys. Each has to be a key that may forward connections and nothing else: what a ConfigMap
// says must not run commands on nodes. The error names the line.
func Offered(text string) ([]string, error) {
	var all []string
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, comment, options, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, fmt.Errorf("line %d: %w: %w", number, ErrOffer, err)
		}
		for _, needed := range []string{"restrict", "port-forwarding"} {
			if !slices.Contains(options, needed) {
				return nil, fmt.Errorf("line %d: %w: the option %s is missing", number, ErrOffer, needed)
			}
		}
		if slices.Index(options, "restrict") > slices.Index(options, "port-forwarding") { // sshd reads them in order
			return nil, fmt.Errorf("line %d: %w: restrict comes after port-forwarding, and forbids it again", number, ErrOffer)
		}
		for _, o := range options {
			if o != "restrict" && o != "port-forwarding" && !limit.MatchString(o) {
				return nil, fmt.Errorf("line %d: %w: it has the option %s", number, ErrOffer, quote.Text(o))
			}
		}
		if strings.ContainsFunc(comment, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, fmt.Errorf("line %d: %w: its comment is %s", number, ErrOffer, quote.Text(comment))
		}
		// Written anew from what was checked: sshd might read the original in another way.
		line = strings.Join(options, ",") + " " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) + " " + comment
		all = append(all, strings.TrimSpace(line))
	}
	return all, nil
}
