// Package options is the options of karve: those of `karve server` with their defaults
// (server.go), and how they are read from the command line, variables and the configuration
// file, explained (help.go), and refused (mistakes.go).
package options

import (
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/simulate"
)

// The sections of `karve server --help`, in order.
const (
	general     = "GENERAL"
	listeners   = "LISTENERS"
	identity    = "CERTIFICATES AND KUBECONFIG"
	network     = "CLUSTER NETWORK"
	storage     = "DATASTORE"
	reaching    = "REACHING NODES"
	components  = "CONTROLLERS AND SCHEDULER"
	simulation  = "SIMULATED NODES"
	passThrough = "OPTIONS OF KUBERNETES' COMPONENTS"
)

// Server returns the options of `karve server`: Karve's own, then those of kube-apiserver that
// have the same name here. In a usage, the first sentence is what the short help shows, and a
// word in backquotes stands for the value.
func Server() []cli.Flag {
	list := []cli.Flag{
		Config(),
		DataDir(),
		text(general, "log-level", "info", "`LEVEL` of the log: error, warning, info, debug or trace. From debug on, the log has upstream's info lines too."),
		text(general, "log-format", "text", "`FORMAT` of the log: text or json"),
		text(general, "startup-trace", "", "`FILE` for a trace of the start, which Perfetto and Chrome's tracing can show"),
		text(general, "memory-limit", memory.Auto, "soft memory limit, a `SIZE` such as 200Mi. auto is GOMEMLIMIT or, if that is not set, what the control group or the machine has to spare."),
		&cli.DurationFlag{Category: general, Name: "settle-after", EnvVars: env("settle-after"), Usage: "`DURATION` after which a ready server gives back the memory of its start. A cluster that only lives for a short time starts faster with more than 0, and uses more memory."},
		&cli.DurationFlag{Category: general, Name: "start-timeout", Value: 5 * time.Minute, EnvVars: env("start-timeout"), Usage: "`DURATION` that each part may take to start, up to the API server. What uses the API is tried until it succeeds."},
		texts(general, "upstream", "run upstream's code instead of Karve's, to find out which of them has a problem. `NAMES` are those of deviations, separated by commas, or all; list prints them (see docs/deviations.md)."),
		yes(general, "stop-with-stdin", "stop when standard input ends, for example because the process at the other end of a pipe has exited"),

		text(listeners, "bind-address", "", "`IP` address of the secure listener (default: all addresses)"),
		number(listeners, "secure-port", server.DefaultSecurePort, "`PORT` of the secure listener; 0 picks a free one"),
		text(listeners, "advertise-address", "", "`IP` address at which nodes and Pods reach this server (default: that of the default route). With a loopback address, the Service kubernetes has no endpoints."),
		text(listeners, "advertise-url", "", "`URL` at which users reach the cluster, such as https://karve.example:6443 of a load balancer. The serving certificate contains the host, and karve kubeconfig prints the URL. (default: this server)"),
		text(listeners, "control-plane-endpoint", "", "`HOST` or HOST:PORT at which nodes reach the API server, such as a load balancer (default: those of --advertise-url, else the advertised address and the secure port). kubeadm join gets it from the cluster, and the serving certificate contains it."),
		text(listeners, "insecure-bind-address", "127.0.0.1", "`IP` address of the insecure listener"),
		insecurePortFlag(server.OwnersKnown),
		yes(listeners, "insecure-allow-remote", "allow an --insecure-bind-address that is not loopback. Everybody who can reach it is an administrator."),
		anyUserFlag(server.OwnersKnown),
		yes(listeners, "disable-http2", "serve HTTP/1.1 only"),
		yes(listeners, "compress-loopback", "compress large responses for clients on this machine too, if they ask for it. Use it if a tunnel ends on this machine."),

		texts(identity, "tls-san", "`NAME` or address to add to the serving certificate. Repeat it, or separate several with commas."),
		text(identity, "tls-cert-file", "", "`FILE` with your own serving certificate"),
		text(identity, "tls-private-key-file", "", "`FILE` with the private key of --tls-cert-file"),
		text(identity, "write-kubeconfig", "", "`PATH` for a second copy of the admin's kubeconfig"),
		text(identity, "write-kubeconfig-mode", "0600", "file `MODE` of that copy"),

		text(network, "service-cluster-ip-range", server.DefaultServiceClusterIPRange, "`CIDR` of Service addresses. For dual-stack, give an IPv4 and an IPv6 CIDR, separated by a comma."),
		text(network, "cluster-cidr", "", "`CIDR` of Pod addresses; each node gets a part of it. For dual-stack, give two, separated by a comma. (default: "+server.DefaultClusterCIDR+", for IPv6 "+server.DefaultClusterCIDRv6+")"),
		text(network, "cluster-domain", server.DefaultClusterDomain, "DNS `DOMAIN` of the cluster"),
		yes(network, "no-kubeadm-objects", "leave out the objects that kubeadm join needs, and leave alone those that exist"),

		DatastoreEndpoint(),
		text(storage, "durability", "", "`MODE` of the built-in datastore: full or relaxed (default: full). With full, every write is on the disk before it is acknowledged. relaxed writes less, for SD cards: a power cut may lose the last 100 ms, and the last 60 s of nodes' heartbeats."),
		text(storage, "fork-from", "", "start as a copy of another cluster: a `FILE` of karve snapshot, or a data directory. The new cluster has the objects, certificates and keys of the other one, which may be running. If --data-dir is such a fork already, it goes on as it is."),
		DatastoreCAFile(), DatastoreCertFile(), DatastoreKeyFile(),
		ClusterTokenFile(),
		NewAuthorities(),
		text(storage, "etcd-listen", "", "`URL` at which to serve the etcd API as well: https://ADDRESS:PORT. Clients need a certificate of certs/etcd-ca in the data directory. With a loopback address, http:// works too. (default: a socket in the data directory only)"),

		text(reaching, "ssh-user", "", "reach nodes, Pods and Services through SSH as this `USER` of the nodes, which then need no open port but that of SSH (default: directly)"),
		SSHKeyFile(),
		text(reaching, "ssh-agent", "", "`SOCKET` of an SSH agent whose keys to use; "+server.AgentVariable+" is the one that this variable names"),
		text(reaching, "ssh-jump", "", "bastion, a `USER@HOST[:PORT]`, through which to reach the nodes' SSH servers"),
		SSHKnownHosts(),
		number(reaching, "ssh-port", 22, "`PORT` of the nodes' SSH servers"),

		texts(components, "disable-controllers", "`NAMES` of controllers to leave out, separated by commas"),
		yes(components, "no-controllers", "leave out all controllers"),
		yes(components, "disable-scheduler", "leave out the scheduler"),
		yes(components, "approve-kubelet-serving", "approve the serving certificates that kubelets ask for (serverTLSBootstrap), if every name and address in them is that of the kubelet's Node"),

		number(simulation, "simulate-nodes", 0, "number `N` of simulated nodes, for tests. Their Pods become ready, those of Jobs complete, and nothing is run. The annotations "+simulate.Prefix+"… of Pods and Nodes make them fail (see docs/testing.md)."),
		texts(simulation, simulate.PodsOption, "a default for all Pods of simulated nodes, as `NAME=VALUE`: the annotation "+simulate.Prefix+"NAME. Annotations of a Namespace take precedence, and those of a Pod. Repeat it for more."),
		texts(simulation, simulate.ListenOption, "`ADDRESS:PORT` of this machine at which a process may answer for Pods of simulated nodes (annotation "+simulate.Listen+"). Whoever may create Pods can then reach it. Repeat it for more. (default: none)"),

		texts(passThrough, "kube-apiserver-arg", "any option of kube-apiserver, as `NAME=VALUE`. Repeat it for more."),
		texts(passThrough, "kube-controller-manager-arg", "any option of kube-controller-manager, as `NAME=VALUE`. Repeat it for more."),
		texts(passThrough, "kube-scheduler-arg", "any option of kube-scheduler, as `NAME=VALUE`. Repeat it for more."),
	}
	upstream, err := apiserver.UserFlags()
	if err != nil {
		panic(err) // a test makes sure
	}
	for _, f := range upstream {
		if usage := f.Usage; f.Bool {
			list = append(list, yes(f.Section, f.Name, usage))
		} else {
			list = append(list, texts(f.Section, f.Name, "`VALUE`: "+withoutGates(usage)))
		}
	}
	return list
}

// withoutGates is the usage of --feature-gates without its list of more than a hundred gates,
// which `karve feature-gates` prints.
func withoutGates(usage string) string {
	text, _, found := strings.Cut(usage, "Options are:")
	if !found {
		return usage
	}
	return text + " karve feature-gates lists the gates."
}

// insecurePortFlag is --insecure-port. It is off by default if the system does not report
// which user opened a connection (ownersKnown).
func insecurePortFlag(ownersKnown bool) cli.Flag {
	const usage = "`PORT` of the listener without authentication; 0 switches it off, -1 picks a free one"
	if ownersKnown {
		return number(listeners, "insecure-port", server.DefaultInsecurePort, usage)
	}
	return number(listeners, "insecure-port", 0, usage+". On this system, every other value needs --insecure-any-user. (default: 0)")
}

// anyUserFlag is --insecure-any-user, which says what it opens.
func anyUserFlag(ownersKnown bool) cli.Flag {
	if ownersKnown {
		return yes(listeners, "insecure-any-user", "accept every local user at the insecure port as an administrator, and containers that share this machine's network. Without it, only root and the server's own user are accepted.")
	}
	return yes(listeners, "insecure-any-user", "open the insecure port named by --insecure-port, although this system does not report which user connects. Every local user, every program and, with Docker Desktop, every container on this machine is an administrator.")
}

// checkAnyUser refuses --insecure-any-user where it would do nothing: where the
// insecure port is off unless it is named.
func checkAnyUser(ownersKnown, anyUser, portGiven bool) error {
	if ownersKnown || !anyUser || portGiven {
		return nil
	}
	return fmt.Errorf("--insecure-any-user: the insecure port is off on this system; add --insecure-port %d to open it", server.DefaultInsecurePort)
}
