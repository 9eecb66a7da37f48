package certs

import (
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"time"
)

// Name names one certificate authority, key or certificate of the control
// plane. Its files are NAME.crt and NAME.key.
type Name string

// All names. The table below says which authority signs what, the subjects and the
// lifetimes. Upstream's requirements:
// https://kubernetes.io/docs/setup/best-practices/certificates/
const (
	ServerCA          Name = "server-ca"          // signs Serving; clients trust it
	ClientCA          Name = "client-ca"          // signs client certificates, also those of kubelets
	FrontProxyCA      Name = "front-proxy-ca"     // signs FrontProxyClient, and nothing else
	ServiceAccount    Name = "service-account"    // signs and verifies service account tokens; a key only
	Serving           Name = "serving"            // the API server's own certificate
	FrontProxyClient  Name = "front-proxy-client" // of the aggregator, for extension API servers
	KubeletClient     Name = "kubelet-client"     // of the API server, for kubelets; without a group: a node may lead it to an API server
	Admin             Name = "admin"              // the first user, system:masters
	ControllerManager Name = "controller-manager" // system:kube-controller-manager
	Scheduler         Name = "scheduler"          // system:kube-scheduler

	// Made for a server that serves the etcd API on the network.
	EtcdCA     Name = "etcd-ca"     // signs the two below; a holder of such a certificate is an administrator
	EtcdServer Name = "etcd-server" // the etcd API's own certificate
	EtcdClient Name = "etcd-client" // for clients of the etcd API
)

// Kind says what a Name is.
type Kind string

// The three kinds. KindCA and KindLeaf have a certificate and a key, KindKey
// has a key only.
const (
	KindCA   Kind = "CA"
	KindKey  Kind = "key"
	KindLeaf Kind = "certificate"
)

const (
	day      = 24 * time.Hour
	leafLife = 365 * day
	caLife   = 10 * 365 * day
	masters  = "system:masters"
)

var (
	forServers = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	forClients = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	forBoth    = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
)

// entry is one row of the table.
type entry struct {
	name    Name
	kind    Kind
	signer  Name // the CA; empty unless kind is KindLeaf
	cn      string
	orgs    []string
	usage   []x509.ExtKeyUsage
	withSAN bool // carries Config's SANs
	life    time.Duration
	etcd    bool // made with Config.Etcd, and maintained where EtcdCA exists
}

// table lists everything that this package makes. CAs come before what they sign, because
// planning and writing go from top to bottom.
var table = [...]entry{
	{name: ServerCA, kind: KindCA, life: caLife},
	{name: ClientCA, kind: KindCA, life: caLife},
	{name: FrontProxyCA, kind: KindCA, life: caLife},
	{name: ServiceAccount, kind: KindKey},
	{name: Serving, kind: KindLeaf, signer: ServerCA, cn: "kube-apiserver", usage: forServers, withSAN: true, life: leafLife},
	{name: FrontProxyClient, kind: KindLeaf, signer: FrontProxyCA, cn: "front-proxy-client", usage: forClients, life: leafLife},
	{name: KubeletClient, kind: KindLeaf, signer: ClientCA, cn: "kube-apiserver-kubelet-client", usage: forClients, life: leafLife},
	{name: Admin, kind: KindLeaf, signer: ClientCA, cn: "kubernetes-admin", orgs: []string{masters}, usage: forClients, life: leafLife},
	{name: ControllerManager, kind: KindLeaf, signer: ClientCA, cn: "system:kube-controller-manager", usage: forClients, life: leafLife},
	{name: Scheduler, kind: KindLeaf, signer: ClientCA, cn: "system:kube-scheduler", usage: forClients, life: leafLife},
	{name: EtcdCA, kind: KindCA, life: caLife, etcd: true},
	{name: EtcdServer, kind: KindLeaf, signer: EtcdCA, cn: "etcd-server", usage: forServers, withSAN: true, life: leafLife, etcd: true},
	{name: EtcdClient, kind: KindLeaf, signer: EtcdCA, cn: "etcd-client", usage: forClients, life: leafLife, etcd: true},
}

// wanted reports whether e is made and maintained in dir.
func (e entry) wanted(dir string, etcd bool) bool {
	if !e.etcd || etcd {
		return true
	}
	_, err := os.Lstat(certFile(dir, EtcdCA))
	return err == nil
}

// Names returns every name, authorities first.
func Names() []Name {
	names := make([]Name, len(table))
	for i, e := range table {
		names[i] = e.name
	}
	return names
}

// ParseName returns the Name spelled s, or an error that lists the valid ones.
func ParseName(s string) (Name, error) {
	if _, ok := lookup(Name(s)); ok {
		return Name(s), nil
	}
	known := make([]string, len(table))
	for i, e := range table {
		known[i] = string(e.name)
	}
	return "", fmt.Errorf("unknown certificate %q: it is one of %s", s, strings.Join(known, ", "))
}

func lookup(n Name) (entry, bool) {
	for _, e := range table {
		if e.name == n {
			return e, true
		}
	}
	return entry{}, false
}
