package options

import (
	"fmt"
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
	components  = "CONTROLLERS AND SCHEDULER"
	simulation  = "SIMULATED NODES"
	passThrough = "UPSTREAM'S OWN OPTIONS"
)

// Server are the options of `karve server`: ours, then those that
// kube-apiserver has under the same name.
func Server() []cli.Flag {
	list := []cli.Flag{
		Config(),
		DataDir(),
		text(general, "log-level", "info", "`LEVEL`: error, warning, info, debug (upstream's info lines too) or trace"),
		text(general, "log-format", "text", "`FORMAT`: text or json"),
		text(general, "startup-trace", "", "`FILE` for a trace of the start, to be read by Perfetto or Chrome's tracing"),
		text(general, "memory-limit", memory.Auto, "soft limit of memory, a `SIZE` such as 200Mi; auto is GOMEMLIMIT, or what the control group or the machine has to spare"),
		&cli.DurationFlag{Category: general, Name: "settle-after", EnvVars: env("settle-after"), Usage: "`DURATION` after which a server that is ready gives back the memory of its start; more than 0 is for clusters that are soon gone: up sooner, with more memory"},
		&cli.DurationFlag{Category: general, Name: "start-timeout", Value: 5 * time.Minute, EnvVars: env("start-timeout"), Usage: "`DURATION` that each part may take to start"},
		texts(general, "upstream", "`NAMES` of deviations to switch off, with commas, or all: there upstream's code runs instead of Karve's, to find out whose a problem is; list prints them (see docs/deviations.md)"),
		yes(general, "stop-with-stdin", "stop when standard input ends, as a pipe does with the process at its other end"),

		text(listeners, "bind-address", "", "`IP` the secure listener listens on (default: every address)"),
		number(listeners, "secure-port", server.DefaultSecurePort, "`PORT` of the secure listener; 0 is any free one"),
		text(listeners, "advertise-address", "", "`IP` by which the cluster reaches this server (default: the one of the default route)"),
		text(listeners, "insecure-bind-address", "127.0.0.1", "`IP` the insecure listener listens on"),
		insecurePortFlag(server.OwnersKnown),
		yes(listeners, "insecure-allow-remote", "allow an insecure-bind-address that is not loopback: whoever reaches it is an administrator"),
		anyUserFlag(server.OwnersKnown),
		yes(listeners, "disable-http2", "serve HTTP/1.1 only"),
		yes(listeners, "compress-loopback", "compress large answers for clients on this machine too, if they ask for it: for a tunnel that ends here"),

		texts(identity, "tls-san", "`NAME` or address to add to the serving certificate; repeatable, or with commas"),
		text(identity, "tls-cert-file", "", "`FILE` with a serving certificate of your own"),
		text(identity, "tls-private-key-file", "", "`FILE` with its key"),
		text(identity, "write-kubeconfig", "", "`PATH` for a second copy of the admin's kubeconfig"),
		text(identity, "write-kubeconfig-mode", "0600", "`MODE` of that copy"),

		text(network, "service-cluster-ip-range", server.DefaultServiceClusterIPRange, "`CIDR` of Service addresses; an IPv4 and an IPv6 one with a comma between for dual-stack"),
		text(network, "cluster-cidr", "", "`CIDR` of Pod addresses, of which each node gets a part (default: left to the network plugin)"),
		text(network, "cluster-domain", server.DefaultClusterDomain, "DNS `DOMAIN` of the cluster"),

		DatastoreEndpoint(),
		text(storage, "durability", "", "`MODE` of the built-in datastore: full, every write is on the disk before it is answered; or relaxed, which writes less, for SD cards: a power cut may lose the last 100 ms, and the last 30 s of nodes' heartbeats (default: full)"),
		text(storage, "fork-from", "", "`FILE` of karve snapshot, or the data directory of another cluster, running or not: this one begins with its objects, certificates and keys; a --data-dir that is a fork of it already goes on as it is"),
		text(storage, "datastore-cafile", "", "`FILE` with the CA of that database or etcd"),
		text(storage, "datastore-certfile", "", "`FILE` with a client certificate for it"),
		text(storage, "datastore-keyfile", "", "`FILE` with the key of that"),

		text(storage, "etcd-listen", "", "`URL` where the datastore is served as the etcd API, too: https://ADDRESS:PORT, for who has a certificate of certs/etcd-ca in the data directory, or http:// with a loopback address (default: only its socket)"),

		texts(components, "disable-controllers", "`NAMES` of controllers to leave out, with commas"),
		yes(components, "no-controllers", "leave out all controllers"),
		yes(components, "disable-scheduler", "leave out the scheduler"),

		number(simulation, "simulate-nodes", 0, "`N` nodes that run Pods without running them, for tests: Pods become ready, Jobs complete, and annotations "+simulate.Prefix+"… of Pods and Nodes make them fail (see docs/testing.md)"),

		texts(passThrough, "kube-apiserver-arg", "`NAME=VALUE`, any option of kube-apiserver; repeatable"),
		texts(passThrough, "kube-controller-manager-arg", "`NAME=VALUE`, any option of kube-controller-manager; repeatable"),
		texts(passThrough, "kube-scheduler-arg", "`NAME=VALUE`, any option of kube-scheduler; repeatable"),
	}
	upstream, err := apiserver.UserFlags()
	if err != nil {
		panic(err) // a test makes sure
	}
	for _, f := range upstream {
		if usage := f.Usage; f.Bool {
			list = append(list, yes(f.Section, f.Name, usage))
		} else {
			list = append(list, texts(f.Section, f.Name, "`VALUE`: "+usage))
		}
	}
	return list
}

// insecurePortFlag is --insecure-port, whose default is off where the system does not
// tell which user opens a connection (ownersKnown).
func insecurePortFlag(ownersKnown bool) cli.Flag {
	const usage = "`PORT` of the listener without authentication; 0 switches it off, -1 is any free one"
	if ownersKnown {
		return number(listeners, "insecure-port", server.DefaultInsecurePort, usage)
	}
	return number(listeners, "insecure-port", 0, usage+"; any but 0 needs --insecure-any-user on this system (default: 0)")
}

// anyUserFlag is --insecure-any-user, which says what it opens.
func anyUserFlag(ownersKnown bool) cli.Flag {
	if ownersKnown {
		return yes(listeners, "insecure-any-user", "accept every local user at the insecure port as an administrator, not only root and the server's own user, and containers that share this machine's network")
	}
	return yes(listeners, "insecure-any-user", "open the insecure port that --insecure-port names, although this system does not tell which user connects to it: every local user, every program and, with Docker Desktop, every container on this machine is an administrator")
}

// checkAnyUser refuses --insecure-any-user where it would do nothing: where the
// insecure port is off unless it is named.
func checkAnyUser(ownersKnown, anyUser, portGiven bool) error {
	if ownersKnown || !anyUser || portGiven {
		return nil
	}
	return fmt.Errorf("--insecure-any-user: the insecure port is off on this system; add --insecure-port %d to open it", server.DefaultInsecurePort)
}
