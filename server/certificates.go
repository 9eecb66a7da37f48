package server

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	netutils "k8s.io/utils/net"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/server/apiserver"
)

// renewCheck is the longest time between two looks at what is due.
const renewCheck = time.Hour

// runCertificates makes what is missing of the certificates, and renews them until
// everything has stopped.
func (s *controlPlane) runCertificates(ctx context.Context, ready func()) error {
	if err := s.openCertificates(); err != nil {
		return err
	}
	ready()
	s.keepCertificatesFresh(ctx, watchAddresses(ctx), watchClock(ctx, systemClock()))
	return nil
}

func (s *controlPlane) openCertificates() (err error) {
	s.advertise = advertiseAddress(s.Config)
	serviceIPs, err := serviceIPs(s.ServiceClusterIPRange)
	if err != nil {
		return err
	}
	sans := slices.Clone(s.TLSSANs)
	if s.advertise != nil { // may be an address of a NAT, not of an interface
		sans = append(sans, s.advertise.String())
	}
	var notes []certs.Note
	s.certs, notes, err = certs.Ensure(certs.Config{
		Dir: s.path("certs"), ServiceIPs: serviceIPs, ExtraSANs: sans, ClusterDomain: s.ClusterDomain,
		Etcd: s.etcdAPI != nil,
	})
	if err != nil {
		return err
	}
	s.logNotes(notes, map[certs.Note]bool{})
	return nil
}

// keepCertificatesFresh renews what is due, at once when an address of this
// machine changes or its clock is set. The files' readers notice by themselves;
// nothing restarts.
func (s *controlPlane) keepCertificatesFresh(ctx context.Context, changed <-chan struct{}, set <-chan time.Duration) {
	told := map[certs.Note]bool{}
	for {
		wait := renewCheck
		if due := s.certs.NextDue(); !due.IsZero() {
			wait = max(min(wait, time.Until(due)), time.Second)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case step := <-set:
			s.log.Infof("the clock was set by %v: looking at the certificates", step.Round(time.Second))
		case <-time.After(wait):
		}
		renewed, notes, err := s.certs.Renew()
		s.logNotes(notes, told)
		if err != nil {
			s.log.Errorf("renew certificates: %v", err)
		}
		if len(renewed) == 0 {
			continue
		}
		s.log.Infof("renewed certificates: %v", renewed)
		if slices.Contains(renewed, certs.Admin) || slices.Contains(renewed, certs.ServerCA) {
			if err := s.writeKubeconfigs(); err != nil {
				s.log.Errorf("renew kubeconfig: %v", err)
			}
		}
	}
}

// logNotes logs each note once; told remembers.
func (s *controlPlane) logNotes(notes []certs.Note, told map[certs.Note]bool) {
	for _, n := range notes {
		switch {
		case told[n]:
		case n.Warning:
			s.log.Warnf("certificates: %s", n)
		default:
			s.log.Infof("certificates: %s", n)
		}
		told[n] = true
	}
}

func (s *controlPlane) certificatePaths() apiserver.Certificates {
	c := s.certs
	return apiserver.Certificates{
		UserCert: s.TLSCertFile, UserKey: s.TLSKeyFile,
		ServingCert: c.CertFile(certs.Serving), ServingKey: c.KeyFile(certs.Serving),
		ClientCA: c.CertFile(certs.ClientCA), FrontProxyCA: c.CertFile(certs.FrontProxyCA),
		FrontProxyClientCert: c.CertFile(certs.FrontProxyClient), FrontProxyClientKey: c.KeyFile(certs.FrontProxyClient),
		KubeletClientCert: c.CertFile(certs.KubeletClient), KubeletClientKey: c.KeyFile(certs.KubeletClient),
		ServiceAccountKey: c.KeyFile(certs.ServiceAccount),
	}
}

func (s *controlPlane) kubeconfigPath() string { return s.path("admin.kubeconfig") }

// writeKubeconfigs writes the admin's kubeconfig, and the copy the user asked
// for first: the one in the data directory says that all is done.
func (s *controlPlane) writeKubeconfigs() error {
	server := s.url()
	if s.TLSCertFile != "" { // our certificate is shown to who asks by this name
		_, port, _ := net.SplitHostPort(localAddress(s.secure))
		server = "https://" + net.JoinHostPort("localhost", port)
	}
	k := s.certs.Kubeconfig(certs.Admin, server)
	if s.WriteKubeconfig != "" {
		if err := certs.WriteKubeconfig(s.WriteKubeconfig, s.WriteKubeconfigMode, k); err != nil {
			return fmt.Errorf("--write-kubeconfig: %w", err)
		}
	}
	return certs.WriteKubeconfig(s.kubeconfigPath(), 0, k)
}

// serviceIPs are the addresses of the kubernetes Service: the first of each range.
func serviceIPs(ranges string) ([]net.IP, error) {
	cidrs, err := checkCIDRs("service-cluster-ip-range", ranges)
	if err != nil {
		return nil, err
	}
	var ips []net.IP
	for _, cidr := range cidrs {
		ip, err := netutils.GetIndexedIP(cidr, 1)
		if err != nil {
			return nil, fmt.Errorf("--service-cluster-ip-range %s: %w", cidr, err)
		}
		ips = append(ips, ip)
	}
	return ips, nil
}

func firstOf(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return first
}
