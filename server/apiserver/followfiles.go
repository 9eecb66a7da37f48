package apiserver

import (
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust"

	"github.com/karve-k8s/karve/server/filewatch"
)

// These are upstream's readers of certificates, which read files as they do but share a watcher. The
// aggregator's reader of its client certificate is out of reach, and has a watcher of its own.
type (
	followedCA struct {
		dynamiccertificates.CAContentProvider
		filewatch.Reader
	}
	followedCert struct {
		dynamiccertificates.CertKeyContentProvider
		filewatch.Reader
	}
	followedSNI struct {
		dynamiccertificates.SNICertKeyContentProvider
		filewatch.Reader
	}
)

func followCA(ca *dynamiccertificates.CAContentProvider, files ...string) {
	if upstream, ok := (*ca).(filewatch.Runner); ok { // otherwise no files
		*ca = followedCA{*ca, filewatch.Reader{Upstream: upstream, Files: files}}
	}
}

// clientCAs returns the files of authorities that clients' certificates are verified with: users', and
// those of front proxies.
func clientCAs(o options.CompletedOptions) (users, proxies []string) {
	if c := o.Authentication.ClientCert; c != nil && c.ClientCA != "" {
		users = []string{c.ClientCA}
	}
	if h := o.Authentication.RequestHeader; h != nil && h.ClientCAFile != "" {
		proxies = []string{h.ClientCAFile}
	}
	return users, proxies
}

// followServing makes the files of the secure listener share a watcher.
func followServing(s *genericapiserver.SecureServingInfo, o options.CompletedOptions) {
	if s == nil {
		return
	}
	users, proxies := clientCAs(o)
	followCA(&s.ClientCA, append(users, proxies...)...)
	if upstream, ok := s.Cert.(filewatch.Runner); ok {
		pair := o.SecureServing.ServerCert.CertKey
		s.Cert = followedCert{s.Cert, filewatch.Reader{Upstream: upstream, Files: []string{pair.CertFile, pair.KeyFile}}}
	}
	pairs := o.SecureServing.SNICertKeys // in the order of SNICerts, where one that is in no file is in front
	for i, sni := range s.SNICerts {
		if upstream, ok := sni.(filewatch.Runner); ok {
			s.SNICerts[i] = followedSNI{sni, filewatch.Reader{Upstream: upstream, Files: []string{pairs[0].CertFile, pairs[0].KeyFile}}}
			pairs = pairs[1:]
		}
	}
}

// followPublished does so with the authorities that the API server publishes for extension API servers.
func followPublished(info *clusterauthenticationtrust.ClusterAuthenticationInfo, o options.CompletedOptions) {
	users, proxies := clientCAs(o)
	followCA(&info.ClientCA, users...)
	followCA(&info.RequestHeaderCA, proxies...)
}
