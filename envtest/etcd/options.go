package etcd

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/karve-k8s/karve/kine"
)

// options are the values of etcd's flags that have an effect here.
type options struct {
	dataDir, name       string
	clientURLs          string
	httpURLs            string // of HTTP alone; with some, clientURLs are of gRPC alone
	metricsURLs         string
	advertised          string
	noSync              bool
	certFile, keyFile   string
	trustedCAFile       string
	clientCertAuth      bool
	minTLS              string
	maxTxnOps           uint
	logLevel            string
	version             bool
	initialCluster      string
	initialClusterState string
	progress            time.Duration
}

// A flag of etcd's without effect here is of one of three kinds. moot: there is nothing for
// it to do. missing: someone could expect an effect, and is told that there is none.
// refused: without the effect, the program would be something else than was asked for.
type effect int

const (
	moot effect = iota
	missing
	refused
)

// idle are the flags of etcd v3.7 (server/embed/config.go, server/etcdmain/config.go)
// without effect here, by kind. TestFlagsAreEtcds in test/conformance/etcd compares them with
// etcd's.
var idle = []struct {
	effect
	reason string
	names  string // of those that take a value
	bools  string
}{
	{moot, "there is one member, and no raft",
		`heartbeat-interval election-timeout listen-peer-urls initial-advertise-peer-urls initial-cluster-token
		raft-read-timeout raft-write-timeout snapshot-count max-snapshots max-wals wal-dir max-learners snapshot-catchup-entries
		peer-cert-file peer-key-file peer-client-cert-file peer-client-key-file peer-trusted-ca-file peer-crl-file peer-cert-allowed-cn
		peer-cert-allowed-hostname downgrade-check-time corrupt-check-time compact-hash-check-time v2-deprecation
		client-cert-file client-key-file`,
		`initial-election-tick-advance strict-reconfig-check pre-vote force-new-cluster peer-client-cert-auth peer-auto-tls
		peer-skip-client-san-verification`},
	{moot, "the storage engine is another",
		`backend-bbolt-freelist-type backend-batch-interval backend-batch-limit compaction-batch-limit
		compaction-sleep-interval bootstrap-defrag-threshold-megabytes`, ``},
	{moot, "there are no users to authenticate", `auth-token bcrypt-cost auth-token-ttl self-signed-cert-validity`, ``},
	{moot, "etcd ignores it, too",
		`cluster-active-size cluster-remove-delay cluster-sync-interval config force max-result-buffer max-retry-attempts
		peer-heartbeat-interval peer-election-timeout retry-interval snapshot v vv`, ``},
	{moot, "the log is lines of text on standard error", `logger log-outputs log-format log-rotation-config-json`, `enable-log-rotation`},
	{missing, "the disk is the limit", `quota-backend-bytes`, ``},
	{missing, "requests are limited to 1.5 MiB", `max-request-bytes`, ``},
	{missing, "kube-apiserver compacts every five minutes, and nobody else does", `auto-compaction-retention auto-compaction-mode`, ``},
	{missing, "connections are kept as etcd keeps them by default",
		`grpc-keepalive-min-time grpc-keepalive-interval grpc-keepalive-timeout max-concurrent-streams`, `socket-reuse-port socket-reuse-address`},
	{missing, "there are no such warnings", `warning-apply-duration warning-unary-request-duration`, ``},
	{missing, "there is no such part",
		`feature-gates metrics cors host-whitelist distributed-tracing-address distributed-tracing-service-name
		distributed-tracing-instance-id distributed-tracing-sampling-rate`,
		`enable-pprof enable-grpc-gateway enable-distributed-tracing memory-mlock`},
	{refused, "this is one member, which joins no others",
		`discovery-endpoints discovery-token discovery-dial-timeout discovery-request-timeout discovery-keepalive-time
		discovery-keepalive-timeout discovery-cert discovery-key discovery-cacert discovery-user discovery-password
		discovery-srv discovery-srv-name discovery-fallback`,
		`discovery-insecure-transport discovery-insecure-skip-tls-verify`},
	{refused, "give the options on the command line", `config-file`, ``},
	{refused, "it would let in whom etcd keeps out", `client-crl-file client-cert-allowed-hostname cipher-suites tls-max-version`, ``},
	{refused, "make a certificate, and name it by --cert-file and --key-file", ``, `auto-tls`},
}

// unless are values that ask for nothing.
var unless = map[string]string{
	"auto-compaction-retention": "0", "quota-backend-bytes": "0", "max-request-bytes": "1572864", "enable-grpc-gateway": "false",
	"auto-compaction-mode": "periodic", "metrics": "basic",
}

// usedFlags are those that do the same as in etcd.
func (o *options) usedFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.dataDir, "data-dir", "", "the `directory` of the datastore (default: NAME.etcd)")
	fs.StringVar(&o.name, "name", "default", "the member's `name`, of which the default of --data-dir is made")
	fs.StringVar(&o.clientURLs, "listen-client-urls", "http://localhost:2379", "`URLs` where clients are served, with commas: http, https, unix or unixs; /health, /livez, /readyz and /version, too")
	fs.StringVar(&o.httpURLs, "listen-client-http-urls", "", "`URLs` where those paths are served instead")
	fs.StringVar(&o.metricsURLs, "listen-metrics-urls", "", "`URLs` where those paths are served as well")
	fs.StringVar(&o.advertised, "advertise-client-urls", "", "`URLs` by which clients are told to connect")
	fs.BoolVar(&o.noSync, "unsafe-no-fsync", false, "answer a write before it is on the disk: a power cut may lose the last 100 ms, the end of the process loses nothing")
	fs.StringVar(&o.certFile, "cert-file", "", "`file` with the certificate that clients see")
	fs.StringVar(&o.keyFile, "key-file", "", "`file` with its key")
	fs.StringVar(&o.trustedCAFile, "trusted-ca-file", "", "`file` with the authority of clients' certificates, which they then need")
	fs.BoolVar(&o.clientCertAuth, "client-cert-auth", false, "clients need a certificate")
	fs.StringVar(&o.minTLS, "tls-min-version", "TLS1.2", "TLS1.2 or TLS1.3")
	fs.UintVar(&o.maxTxnOps, "max-txn-ops", defaultMaxTxnOps, "the `number` of operations that a transaction may have")
	fs.DurationVar(&o.progress, "watch-progress-notify-interval", kine.ProgressInterval, "the `time` after a write when watches that asked for progress are told the revision; at least 100ms")
	fs.StringVar(&o.logLevel, "log-level", "warn", "debug, info, warn or error")
	fs.StringVar(&o.initialCluster, "initial-cluster", "", "`members`, which can only be this one")
	fs.StringVar(&o.initialClusterState, "initial-cluster-state", "new", "new: there is nothing to join")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")
}

// defaultMaxTxnOps is more than etcd's 128, because an API server of Karve's writes the
// first objects of a cluster in one transaction.
const defaultMaxTxnOps = 4096

// idleFlag takes a value and records whether it was given one.
type idleFlag struct {
	boolean bool
	value   *string
}

func (f idleFlag) String() string     { return "" }
func (f idleFlag) Set(v string) error { *f.value = v; return nil }
func (f idleFlag) IsBoolFlag() bool   { return f.boolean }

// newFlags returns a set with all of etcd's flags.
func newFlags(o *options) *flag.FlagSet {
	fs := flag.NewFlagSet("etcd", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.usedFlags(fs)
	for _, group := range idle {
		for i, names := range []string{group.names, group.bools} {
			for name := range strings.FieldsSeq(names) {
				fs.Var(idleFlag{boolean: i == 1, value: new(string)}, name, group.reason)
			}
		}
	}
	return fs
}

// errHelp means that the user asked for the options.
var errHelp = flag.ErrHelp

// parse parses a command line, and ETCD_NAME for flags that are not on it. The error joins
// everything that is wrong; warnings are about flags without effect.
func parse(args []string, nearest func(string, []string) string) (o options, warnings []string, err error) {
	fs := newFlags(&o)
	if err := fs.Parse(args); err != nil {
		return o, nil, explain(err, fs, nearest)
	}
	if fs.NArg() > 0 {
		return o, nil, fmt.Errorf("etcd takes flags only, got %q", fs.Arg(0))
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var problems []error
	fs.VisitAll(func(f *flag.Flag) {
		variable := "ETCD_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value := os.Getenv(variable); value != "" && !given[f.Name] {
			if err := fs.Set(f.Name, value); err != nil {
				problems = append(problems, fmt.Errorf("%s=%s: %w", variable, value, err))
			}
			given[f.Name] = true
		}
	})
	for _, group := range idle {
		for name := range strings.FieldsSeq(group.names + " " + group.bools) {
			value := *fs.Lookup(name).Value.(idleFlag).value
			switch {
			case !given[name] || value == unless[name] && value != "" || group.effect == moot:
			case group.effect == missing:
				warnings = append(warnings, fmt.Sprintf("--%s has no effect here: %s", name, group.reason))
			default:
				problems = append(problems, fmt.Errorf("--%s: %s", name, group.reason))
			}
		}
	}
	if err := o.check(); err != nil {
		problems = append(problems, err)
	} else if o.progress < leastProgress {
		warnings = append(warnings, fmt.Sprintf("--watch-progress-notify-interval %v: the least is %v, which is taken", o.progress, leastProgress))
		o.progress = leastProgress
	}
	return o, warnings, errors.Join(problems...)
}

// leastProgress is etcd's (server/etcdserver/api/v3rpc/watch.go, minWatchProgressInterval).
const leastProgress = 100 * time.Millisecond

// check checks the options that have an effect.
func (o *options) check() error {
	var problems []error
	if o.dataDir == "" {
		o.dataDir = o.name + ".etcd"
	}
	if strings.Contains(o.initialCluster, ",") {
		problems = append(problems, fmt.Errorf("--initial-cluster %s: this is one member, which joins no others", o.initialCluster))
	}
	if o.initialClusterState != "new" {
		problems = append(problems, fmt.Errorf("--initial-cluster-state %s: this is one member, which joins no others", o.initialClusterState))
	}
	if o.minTLS != "TLS1.2" && o.minTLS != "TLS1.3" && o.minTLS != "" {
		problems = append(problems, fmt.Errorf("--tls-min-version %s: want TLS1.2 or TLS1.3", o.minTLS))
	}
	if (o.certFile == "") != (o.keyFile == "") {
		problems = append(problems, errors.New("--cert-file and --key-file: one is given without the other"))
	}
	switch {
	case o.progress < 0:
		problems = append(problems, fmt.Errorf("--watch-progress-notify-interval %v: want a time such as 5s", o.progress))
	case o.progress == 0: // as in etcd
		o.progress = kine.ProgressInterval
	}
	if o.clientCertAuth && o.trustedCAFile == "" {
		problems = append(problems, errors.New("--client-cert-auth needs --trusted-ca-file"))
	}
	return errors.Join(problems...)
}

// explain words a mistake on the command line as Karve does.
func explain(err error, fs *flag.FlagSet, nearest func(string, []string) string) error {
	if errors.Is(err, flag.ErrHelp) {
		return errHelp
	}
	text := err.Error()
	name, ok := strings.CutPrefix(text, "flag provided but not defined: -")
	if !ok {
		return errors.New(text + " (see etcd --help)")
	}
	var names []string
	fs.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	name = strings.TrimLeft(name, "-")
	if near := nearest(name, names); near != "" {
		return fmt.Errorf("etcd has no flag --%s; did you mean --%s?", name, near)
	}
	return fmt.Errorf("etcd has no flag --%s (see etcd --help)", name)
}

// help is for people, and for envtest, which searches for names at the start of a line.
func help(w io.Writer) {
	fmt.Fprint(w, "etcd: Karve's datastore with the flags of etcd, for one member\n")
	var o options
	used := flag.NewFlagSet("etcd", flag.ContinueOnError)
	o.usedFlags(used)
	used.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "\n%s\n      %s\n", strings.TrimRight("  --"+f.Name+" "+value, " "), usage)
	})
	for _, group := range idle {
		verb := map[effect]string{moot: "Nothing to do", missing: "No effect", refused: "Refused"}[group.effect]
		fmt.Fprintf(w, "\n%s: %s\n", verb, group.reason)
		for name := range strings.FieldsSeq(group.names + " " + group.bools) {
			fmt.Fprintf(w, "  --%s\n", name)
		}
	}
}

// Flags returns the names of all known flags, and whether each takes no value, for a
// comparison with etcd's.
func Flags() map[string]bool {
	all := map[string]bool{}
	newFlags(&options{}).VisitAll(func(f *flag.Flag) {
		b, ok := f.Value.(interface{ IsBoolFlag() bool })
		all[f.Name] = ok && b.IsBoolFlag()
	})
	return all
}
