package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/flags"
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

// defaultConfigFile is read if it is there; one named by --config must be.
var defaultConfigFile = systemConfigFile()

// systemConfigFile is /etc/karve/config.yaml; on Windows, where every user may make
// such a directory, it is the user's own.
func systemConfigFile() string {
	if runtime.GOOS != "windows" {
		return "/etc/karve/config.yaml"
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "" // no %AppData%: there is none
	}
	return filepath.Join(dir, "karve", "config.yaml")
}

// serverFlags are the options of `karve server`: ours, then those that
// kube-apiserver has under the same name.
func serverFlags() []cli.Flag {
	list := []cli.Flag{
		configFlag(),
		dataDirFlag(),
		text(general, "log-level", "info", "`LEVEL`: error, warning, info, debug (upstream's info lines too) or trace"),
		text(general, "log-format", "text", "`FORMAT`: text or json"),
		text(general, "startup-trace", "", "`FILE` for a trace of the start, to be read by Perfetto or Chrome's tracing"),
		text(general, "memory-limit", memory.Auto, "soft limit of memory, a `SIZE` such as 200Mi; auto is GOMEMLIMIT, or what the control group or the machine has to spare"),
		&cli.DurationFlag{Category: general, Name: "settle-after", EnvVars: env("settle-after"), Usage: "`DURATION` after which a server that is ready gives back the memory of its start; more than 0 is for clusters that are soon gone: up sooner, with more memory"},
		&cli.DurationFlag{Category: general, Name: "start-timeout", Value: 5 * time.Minute, EnvVars: env("start-timeout"), Usage: "`DURATION` that each part may take to start"},
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

		datastoreEndpointFlag(),
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

func configFlag() cli.Flag {
	return text(general, "config", "", "`FILE` with options in YAML, name: value (default: "+defaultConfigFile+", if it is there)")
}

func dataDirFlag() cli.Flag {
	return text(general, "data-dir", defaultDataDir(), "`DIR` for state, certificates and the admin's kubeconfig")
}

func datastoreEndpointFlag() cli.Flag {
	return text(storage, "datastore-endpoint", "", "`URL` of the datastore: sqlite://DIR?durability=full|relaxed|memory&cache=BYTES, memory://, postgres://USER:PASSWORD@HOST/DATABASE, mysql://USER:PASSWORD@tcp(HOST:PORT)/DATABASE, nats://HOST, or an etcd's http(s)://host:port,… (default: the built-in one in the data directory). Others see the command line: a password is better given by the variable or the file")
}

func text(section, name, value, usage string) *cli.StringFlag {
	return &cli.StringFlag{Category: section, Name: name, Value: value, Usage: usage, EnvVars: env(name)}
}

func texts(section, name, usage string) *cli.StringSliceFlag {
	return &cli.StringSliceFlag{Category: section, Name: name, Usage: usage, EnvVars: env(name)}
}

func number(section, name string, value int, usage string) *cli.IntFlag {
	return &cli.IntFlag{Category: section, Name: name, Value: value, Usage: usage, EnvVars: env(name)}
}

func yes(section, name, usage string) *cli.BoolFlag {
	return &cli.BoolFlag{Category: section, Name: name, Usage: usage, EnvVars: env(name)}
}

// env is the variable of an option: --data-dir is KARVE_DATA_DIR.
func env(name string) []string {
	return []string{"KARVE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))}
}

// defaultDataDir is /var/lib/karve for root, and in the XDG data directory
// (https://specifications.freedesktop.org/basedir-spec) for everybody else.
func defaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/karve"
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "karve")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local", "share", "karve")
}

// serverConfig reads the options into the server's configuration.
func serverConfig(c *cli.Context) (server.Config, error) {
	mode, wrongMode := strconv.ParseUint(c.String("write-kubeconfig-mode"), 8, 9)
	if wrongMode != nil {
		wrongMode = fmt.Errorf("--write-kubeconfig-mode %q: want an octal mode such as 0640", c.String("write-kubeconfig-mode"))
	}
	limit, wrongLimit := memory.Limit(c.String("memory-limit"))
	if wrongLimit != nil {
		wrongLimit = fmt.Errorf("--memory-limit %q: %w", c.String("memory-limit"), wrongLimit)
	}
	config := server.Config{
		MemoryLimit:           limit,
		SettleAfter:           c.Duration("settle-after"),
		DataDir:               c.String("data-dir"),
		BindAddress:           c.String("bind-address"),
		SecurePort:            c.Int("secure-port"),
		AdvertiseAddress:      c.String("advertise-address"),
		InsecureBindAddress:   c.String("insecure-bind-address"),
		InsecurePort:          c.Int("insecure-port"),
		InsecureAllowRemote:   c.Bool("insecure-allow-remote"),
		InsecureAnyUser:       c.Bool("insecure-any-user"),
		DisableHTTP2:          c.Bool("disable-http2"),
		CompressLoopback:      c.Bool("compress-loopback"),
		TLSSANs:               split(c.StringSlice("tls-san")),
		TLSCertFile:           c.String("tls-cert-file"),
		TLSKeyFile:            c.String("tls-private-key-file"),
		WriteKubeconfig:       c.String("write-kubeconfig"),
		WriteKubeconfigMode:   os.FileMode(mode),
		ServiceClusterIPRange: c.String("service-cluster-ip-range"),
		ClusterCIDR:           c.String("cluster-cidr"),
		ClusterDomain:         c.String("cluster-domain"),
		DatastoreEndpoint:     c.String("datastore-endpoint"),
		Durability:            c.String("durability"),
		ForkFrom:              c.String("fork-from"),
		DatastoreCAFile:       c.String("datastore-cafile"),
		DatastoreCertFile:     c.String("datastore-certfile"),
		DatastoreKeyFile:      c.String("datastore-keyfile"),
		EtcdListen:            c.String("etcd-listen"),
		NoControllers:         c.Bool("no-controllers"),
		DisableControllers:    split(c.StringSlice("disable-controllers")),
		DisableScheduler:      c.Bool("disable-scheduler"),
		SimulateNodes:         c.Int("simulate-nodes"),
		ControllerManagerArgs: c.StringSlice("kube-controller-manager-arg"),
		SchedulerArgs:         c.StringSlice("kube-scheduler-arg"),
		StartupTrace:          c.String("startup-trace"),
		StartTimeout:          c.Duration("start-timeout"),
	}
	switch config.InsecurePort { // as Kubernetes had it, 0 is off
	case 0:
		config.DisableInsecure = true
	case -1:
		config.InsecurePort = 0
	}
	upstream, err := apiserver.UserFlags()
	if err != nil {
		return config, err
	}
	set := setFlags(c)
	for _, f := range upstream {
		switch {
		case !set[f.Name]:
		case f.Bool:
			config.APIServerArgs = append(config.APIServerArgs, fmt.Sprintf("%s=%v", f.Name, c.Bool(f.Name)))
		default:
			for _, value := range c.StringSlice(f.Name) {
				config.APIServerArgs = append(config.APIServerArgs, f.Name+"="+value)
			}
		}
	}
	config.APIServerArgs = append(config.APIServerArgs, c.StringSlice("kube-apiserver-arg")...)
	return config, errors.Join(wrongMode, wrongLimit, checkAnyUser(server.OwnersKnown, config.InsecureAnyUser, set["insecure-port"]))
}

// setFlags are the names of what was given on the command line, in the configuration
// file or in a variable. It is Context.IsSet for all flags at once, which goes
// through all of them for each.
func setFlags(c *cli.Context) map[string]bool {
	set := map[string]bool{}
	for _, name := range c.FlagNames() {
		set[name] = true
	}
	for _, f := range c.Command.Flags {
		if f.IsSet() {
			set[f.Names()[0]] = true
		}
	}
	return set
}

// split takes a,b and repeated options alike.
func split(values []string) []string {
	var all []string
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				all = append(all, item)
			}
		}
	}
	return all
}

// invalidValue is how package flag refuses a value: it knows one dash only.
var invalidValue = regexp.MustCompile(`^invalid (?:boolean )?value (".*") for (?:flag )?-+([^ :]+): (.*)$`)

// explainUsage tells a mistake in the options of a command, and names the nearest
// one where one was misspelt.
func explainUsage(err error, command string, known []cli.Flag) error {
	see := "see " + command + " --help"
	if m := invalidValue.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("--%s %s: %s (%s)", m[2], m[1], m[3], see)
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag needs an argument: -"); ok {
		return fmt.Errorf("--%s needs a value (%s)", strings.TrimLeft(name, "-"), see)
	}
	name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !ok {
		return fmt.Errorf("%w (%s)", err, see)
	}
	name = strings.TrimLeft(name, "-")
	proposal := see
	names := flagNames(known)
	long := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return len(name) == 1 })
	if near := flags.Nearest(name, long); near != "" {
		proposal = fmt.Sprintf("did you mean --%s?", near)
	} else if slices.Contains(names, "kube-apiserver-arg") {
		proposal += ", or pass it to its component by --kube-apiserver-arg " + name + "=…"
	}
	return fmt.Errorf("there is no option --%s; %s", name, proposal)
}

func flagNames(list []cli.Flag) []string {
	var names []string
	for _, f := range list {
		names = append(names, f.Names()...)
	}
	return names
}

// helpOf is the help text of a command with the options of a server: what it is
// for, then the options by section, in the order of serverFlags. cli's own
// template sorts the sections by name and has one line for each option, however
// much upstream has to say about it.
func helpOf(list []cli.Flag, purpose string) string {
	var b strings.Builder
	b.WriteString(purpose + "\n" +
		"Every option can be given as --name VALUE, as a variable KARVE_NAME, and as\n" +
		"name: value in the file of --config; the first of these that is there counts.\n" +
		"A variable that is nearly the name of an option is an error. Any other KARVE_…\n" +
		"that sets nothing is a warning, but for those of install.sh and of Services.\n")
	var sections []string
	bySection := map[string][]cli.Flag{}
	for _, f := range list {
		section := f.(cli.CategorizableFlag).GetCategory()
		if bySection[section] == nil {
			sections = append(sections, section)
		}
		bySection[section] = append(bySection[section], f)
	}
	for _, section := range sections {
		fmt.Fprintf(&b, "\n%s\n", section)
		for _, f := range bySection[section] {
			writeHelp(&b, f.(cli.DocGenerationFlag))
		}
	}
	// The template language must not see what upstream writes in its usages.
	return "{{print " + strconv.Quote(b.String()) + "}}"
}

// writeHelp writes an option and what it means, wrapped.
func writeHelp(w io.Writer, f cli.DocGenerationFlag) {
	const width, indent = 78, "      "
	placeholder, usage := placeholderOf(f.GetUsage())
	fmt.Fprintln(w, strings.TrimRight("  --"+f.Names()[0]+" "+placeholder, " "))
	if value := f.GetDefaultText(); f.TakesValue() && value != "" && value != `""` && !strings.Contains(usage, "(default: ") {
		usage += " (default: " + strings.Trim(value, `"`) + ")"
	}
	line := indent
	for word := range strings.FieldsSeq(usage) {
		if len(line)+len(word) > width && line != indent {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
			line = indent
		}
		line += word + " "
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// placeholderOf reads the `NAME` of the value out of a usage, as cli does.
func placeholderOf(usage string) (placeholder, rest string) {
	before, after, ok := strings.Cut(usage, "`")
	name, after, closed := strings.Cut(after, "`")
	if !ok || !closed {
		return "", usage
	}
	if rest, ok := strings.CutPrefix(after, ": "); ok && before == "" {
		return name, rest
	}
	return name, before + name + after
}
