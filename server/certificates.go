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
	logNotes(s.log, notes, map[certs.Note]bool{})
	return nil
}

// keepCertificatesFresh renews what is due until ctx ends.
func (s *controlPlane) keepCertificatesFresh(ctx context.Context, changed <-chan struct{}, set <-chan time.Duration) {
	renewer{renew: s.certs.Renew, nextDue: s.certs.NextDue, publish: s.renewKubeconfigs, log: s.log}.run(ctx, changed, set)
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

// publishKubeconfigs writes the admin's kubeconfig for the first time: its presence says
// that the cluster answers. From then on a renewal writes it again.
func (s *controlPlane) publishKubeconfigs() error {
	s.kubeconfigs.Lock()
	defer s.kubeconfigs.Unlock()
	s.published = true
	return s.writeKubeconfigs()
}

// renewKubeconfigs writes what has been published again, with the certificates of now.
// A start that is under way publishes them itself.
func (s *controlPlane) renewKubeconfigs() error {
	s.kubeconfigs.Lock()
	defer s.kubeconfigs.Unlock()
	if !s.published {
		return nil
	}
	return s.writeKubeconfigs()
}

// writeKubeconfigs writes the admin's kubeconfig and the copy that the user asked for.
func (s *controlPlane) writeKubeconfigs() error {
	server := s.url()
	if s.TLSCertFile != "" { // clients that ask by this name are shown our certificate
		_, port, _ := net.SplitHostPort(localAddress(s.secure))
		server = "https://" + net.JoinHostPort("localhost", port)
	}
	files := certs.KubeconfigFiles{Path: s.kubeconfigPath(), Copy: s.WriteKubeconfig, CopyMode: s.WriteKubeconfigMode}
	return files.Write(s.certs.Kubeconfig(certs.Admin, server))
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
