package server

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	certutil "k8s.io/client-go/util/cert"

	"github.com/karve-k8s/karve/certs"
)

// ownReadyChecks are the checks of /readyz that are about the server as a whole. A start does not wait for
// them: it works on a full disk. `karve status` shows their errors.
func (s *controlPlane) ownReadyChecks() []healthz.HealthChecker {
	all := []healthz.HealthChecker{healthz.NamedCheck("certificates", func(*http.Request) error { return s.checkCertificates(time.Now()) })}
	if engine := s.storage.Connection().Engine; engine != nil {
		all = append(all, healthz.NamedCheck("datastore-writes", func(*http.Request) error { return engine.Writable() }))
	}
	return all
}

// checkCertificates returns an error if a certificate that the server presents has expired. What cannot be
// read is not its concern, nor are authorities, of which there may be old ones.
func (s *controlPlane) checkCertificates(now time.Time) error {
	var files []string
	for _, name := range certs.Names() {
		files = append(files, s.certificates.Store().CertFile(name))
	}
	if s.TLSCertFile != "" {
		files = append(files, s.TLSCertFile)
	}
	var errs []error
	for _, file := range files {
		chain, err := certutil.CertsFromFile(file)
		if err != nil || chain[0].IsCA && file != s.TLSCertFile {
			continue
		}
		if now.After(chain[0].NotAfter) {
			errs = append(errs, fmt.Errorf("%s has expired at %s", file, chain[0].NotAfter.Format(time.RFC3339)))
		}
	}
	return errors.Join(errs...)
}
