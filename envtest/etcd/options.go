package etcd

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/karve-k8s/karve/kine"
)

// options are the values of etcd's flags that have an effect here.
type options struct {
	dataDir, name       string
	clientURLs          string
	advertised          string
	noSync              bool
	maxTxnOps           uint
	logLevel            string
	version             bool
	initialCluster      string
	initialClusterState string
	progress            time.Duration
}

// idle are the flags of etcd v3.7 (server/embed/config.go) that test suites set and that have no effect
// here, by what would change if they had one.
var idle = []struct {
	warning string // empty: nothing would change
	names   string
}{
	{"", `listen-peer-urls initial-advertise-peer-urls initial-cluster-token heartbeat-interval election-timeout snapshot-count max-snapshots
		max-wals wal-dir logger log-outputs backend-batch-interval backend-batch-limit`},
	{"the disk is the limit", `quota-backend-bytes`},
	{"requests are limited to 1.5 MiB", `max-request-bytes`},
	{"kube-apiserver compacts every five minutes, and nobody else does", `auto-compaction-retention auto-compaction-mode`},
}

// usedFlags are those that do the same as in etcd.
func (o *options) usedFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.dataDir, "data-dir", "", "the `directory` of the datastore (default: NAME.etcd)")
	fs.StringVar(&o.name, "name", "default", "the member's `name`, of which the default of --data-dir is made")
	fs.StringVar(&o.clientURLs, "listen-client-urls", "http://localhost:2379", "`URLs` where clients are served, with commas, by http; /health and /version, too")
	fs.StringVar(&o.advertised, "advertise-client-urls", "", "`URLs` by which clients are told to connect")
	fs.BoolVar(&o.noSync, "unsafe-no-fsync", false, "answer a write before it is on the disk: a power cut may lose the last 100 ms, the end of the process loses nothing")
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

// newFlags returns a set of all flags, and what those of idle are set to.
func newFlags(o *options) (fs *flag.FlagSet, unused map[string]*string) {
	fs, unused = flag.NewFlagSet("etcd", flag.ContinueOnError), map[string]*string{}
	fs.SetOutput(io.Discard)
	o.usedFlags(fs)
	for _, group := range idle {
		for name := range strings.FieldsSeq(group.names) {
			unused[name] = fs.String(name, "", "accepted without effect")
		}
	}
	return fs, unused
}

// errHelp means that the user asked for the options.
var errHelp = flag.ErrHelp

// parse parses a command line. The error joins
// everything that is wrong; warnings are about flags without effect.
func parse(args []string, nearest func(string, []string) string) (o options, warnings []string, err error) {
	fs, unused := newFlags(&o)
	if err := fs.Parse(args); err != nil {
		return o, nil, explain(err, fs, nearest)
	}
	if fs.NArg() > 0 {
		return o, nil, fmt.Errorf("etcd takes flags only, got %q", fs.Arg(0))
	}
	var problems []error
	for _, group := range idle {
		for name := range strings.FieldsSeq(group.names) {
			if value := *unused[name]; group.warning != "" && value != "" && value != "0" {
				warnings = append(warnings, fmt.Sprintf("--%s has no effect here: %s", name, group.warning))
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
	switch {
	case o.progress < 0:
		problems = append(problems, fmt.Errorf("--watch-progress-notify-interval %v: want a time such as 5s", o.progress))
	case o.progress == 0: // as in etcd
		o.progress = kine.ProgressInterval
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
	fs, _ := newFlags(&options{})
	fs.VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		fmt.Fprintf(w, "\n%s\n      %s\n", strings.TrimRight("  --"+f.Name+" "+value, " "), usage)
	})
}
