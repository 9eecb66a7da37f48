package egress

import (
	"context"
	"errors"
	"fmt"
	"net"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/karve-k8s/karve/internal/ownports"
)

// ErrItself is wrapped by the error for a Node whose address is the API server's own. A node names its address itself, and the
// API server would be its own client there, with its certificate for kubelets.
var ErrItself = errors.New("the address of this API server, and not of a kubelet")

// ToKubelets returns a lookup whose dialers close a connection to the API server's own listener before anything is sent.
func ToKubelets(lookup egressselector.Lookup, listener net.Addr) egressselector.Lookup {
	return func(to egressselector.NetworkContext) (utilnet.DialFunc, error) {
		dial, err := lookup(to)
		if err != nil || dial == nil {
			return dial, err
		}
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err == nil && ownports.Reaches(conn.RemoteAddr(), listener) {
				conn.Close()
				return nil, fmt.Errorf("connect to %s: it is %w", address, ErrItself)
			}
			return conn, err
		}, nil
	}
}
