package options

import (
	"slices"

	"github.com/urfave/cli/v2"
)

// mostUsedNames are the options of a server that its help shows: those that decide what most
// users want to decide. --help --all has all.
var mostUsedNames = []string{
	"config", "data-dir", "log-level", "audit-preset", "memory-limit",
	"bind-address", "secure-port", "advertise-address", "insecure-port",
	"tls-san", "tls-cert-file", "tls-private-key-file", "write-kubeconfig",
	"service-cluster-ip-range", "cluster-cidr", "cluster-domain",
	"datastore-endpoint", "durability", "fork-from", "cluster-token-file", "etcd-listen",
	"no-controllers", "disable-controllers", "disable-scheduler",
	"ssh-user", "ssh-keyfile",
	"simulate-nodes",
	"kube-apiserver-arg", "kube-controller-manager-arg", "kube-scheduler-arg",
	"feature-gates", "runtime-config",
	"authentication-config", "authorization-mode",
	"enable-admission-plugins",
	"audit-policy-file", "encryption-provider-config",
}

// shortUsages are what [WriteHelp] says of options whose usage is upstream's and long, or
// whose first sentence is.
var shortUsages = map[string]string{
	"feature-gates":              "switch features on or off: NAME=true,NAME=false; --help --all lists them",
	"runtime-config":             "switch APIs on or off: api/beta=true, storage.k8s.io/v1beta1=true",
	"authentication-config":      "file that configures JWT authenticators and anonymous requests",
	"authorization-mode":         "ordered list of authorizers (default: Node,RBAC)",
	"enable-admission-plugins":   "admission plugins to switch on beside the default ones",
	"audit-policy-file":          "file with the audit policy",
	"encryption-provider-config": "file that configures the encryption of Secrets in the datastore",
}

// mostUsed tells whether an option is one that every help shows: one of the command's own, or of
// mostUsedNames.
func mostUsed(f cli.Flag) bool {
	return sectionOf(f) == otherSection || slices.Contains(mostUsedNames, f.Names()[0])
}
