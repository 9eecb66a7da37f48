package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/insecure"
)

// validateAPIServer runs upstream's own validation of the API server's options.
func (p *plan) validateAPIServer(ctx context.Context) error {
	// This key serves only the validation: upstream parses a key when it completes its options.
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return fmt.Errorf("make a key: %w", err)
	}
	return apiserver.Validate(ctx, p.apiserverConfig(), key, p.DataDir) // a read-only root may have no /tmp
}

func checkPort(flag string, port int) error {
	if port < 0 || port > 65535 {
		return fmt.Errorf("--%s %d: not a port: 0 to 65535", flag, port)
	}
	return nil
}

func checkAddress(flag, address string) error {
	if address != "" && net.ParseIP(address) == nil {
		return fmt.Errorf("--%s %q: not an IP address", flag, address)
	}
	return nil
}

// checkAdvertised refuses an address that no endpoint can have. Upstream would refuse it while it
// starts. Karve advertises nothing in place of a loopback address, and looks for an address in
// place of an unspecified one.
func checkAdvertised(address string) error {
	if err := checkAddress("advertise-address", address); err != nil || address == "" {
		return err
	}
	if ip := net.ParseIP(address); ip.IsLoopback() || ip.IsUnspecified() {
		return nil
	}
	if err := validation.ValidateEndpointIP(address, nil).ToAggregate(); err != nil {
		return fmt.Errorf("--advertise-address %s: %w", address, err)
	}
	return nil
}

// checkOwners refuses an insecure port on a system that does not report which user opened a
// connection.
func checkOwners(c Config) error {
	if err := insecure.CheckOwners(c.ownersKnown(), c.InsecureAnyUser); err != nil {
		return fmt.Errorf("--insecure-port %d: %w", c.InsecurePort, err)
	}
	return nil
}

func (c Config) ownersKnown() bool { return OwnersKnown && !c.unknownOwners }

func checkPortsDiffer(c Config) error {
	if c.SecurePort != 0 && c.SecurePort == c.InsecurePort {
		return fmt.Errorf("--insecure-port %d: the same as --secure-port", c.InsecurePort)
	}
	return nil
}

func checkFile(flag, path string) error {
	if path == "" {
		return nil
	}
	return apiserver.CheckFile(flag, path)
}

func checkKeyPair(cert, key string) error {
	if (cert == "") != (key == "") {
		return errors.New("--tls-cert-file and --tls-private-key-file: one is given without the other")
	}
	if cert == "" {
		return nil
	}
	if err := errors.Join(checkFile("tls-cert-file", cert), checkFile("tls-private-key-file", key)); err != nil {
		return err
	}
	if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
		return fmt.Errorf("--tls-cert-file %s, --tls-private-key-file %s: %w", cert, key, err)
	}
	return nil
}
