package apiserver

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/karve-k8s/karve/server/flags"
)

// UserFlag is an option of kube-apiserver that Karve has under the same name.
type UserFlag struct {
	Name    string
	Section string // of the help
	Usage   string // upstream's own words
	Bool    bool   // needs no value
}

// userFlags are the options that Kubernetes users know by name. --kube-apiserver-arg sets all
// others.
var userFlags = []struct {
	section string
	names   []string
}{
	{"API", []string{"feature-gates", "runtime-config", "event-ttl", "service-node-port-range", "shutdown-delay-duration",
		"max-requests-inflight", "max-mutating-requests-inflight", "allow-privileged", "egress-selector-config-file"}},
	{"AUTHENTICATION AND AUTHORIZATION", []string{"anonymous-auth", "authentication-config", "authorization-mode", "authorization-config",
		"oidc-issuer-url", "oidc-client-id", "oidc-username-claim", "oidc-groups-claim", "oidc-ca-file", "token-auth-file", "service-account-issuer",
		"service-account-jwks-uri", "api-audiences"}},
	{"ADMISSION", []string{"enable-admission-plugins", "disable-admission-plugins", "admission-control-config-file"}},
	{"AUDIT, ENCRYPTION, TRACING", []string{"audit-policy-file", auditLogOption, "audit-log-maxage", "audit-log-maxbackup", "audit-log-maxsize",
		"audit-webhook-config-file", EncryptionOption, "encryption-provider-config-automatic-reload", "tracing-config-file"}},
	{"LISTENERS", []string{"tls-min-version", "tls-cipher-suites", "tls-sni-cert-key", "goaway-chance", "cors-allowed-origins"}},
}

// fileFlags are the options of kube-apiserver that name files which it reads while it is being
// configured. Upstream would report a missing file late and without the option's name.
var fileFlags = []string{
	"admission-control-config-file", "audit-policy-file", "audit-webhook-config-file", "authentication-config",
	"authentication-token-webhook-config-file", "authorization-config", "authorization-policy-file",
	"authorization-webhook-config-file", "egress-selector-config-file", EncryptionOption,
	"kubelet-certificate-authority", "kubelet-client-certificate", "kubelet-client-key", "oidc-ca-file", "proxy-client-cert-file",
	"proxy-client-key-file", FrontProxyOption, "service-account-key-file",
	"service-account-signing-key-file", "token-auth-file", "tracing-config-file",
}

// CheckFiles opens every file that args (name=value) name, and validates the configuration of the
// egress selector, because upstream's error names neither option nor file. It creates nothing. The error
// joins those that are wrong, each with its option.
func CheckFiles(args []string) error {
	var errs []error
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		files := []string{value}
		switch {
		case value == "":
			continue
		case name == auditLogOption:
			errs = append(errs, checkAuditLog(value))
			continue
		case name == "tls-sni-cert-key": // cert,key:names
			pair, _, _ := strings.Cut(value, ":")
			files = strings.Split(pair, ",")
		case !slices.Contains(fileFlags, name):
			continue
		}
		for _, file := range files {
			err := CheckFile(name, file)
			if err == nil && name == "egress-selector-config-file" {
				err = checkEgressSelector(name, file)
			}
			if err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// EncryptionOption is the option of kube-apiserver that names the file with the keys of stored
// objects.
const EncryptionOption = "encryption-provider-config"

// FrontProxyOption is the option of kube-apiserver that names another authority of the front proxy than Karve's.
const FrontProxyOption = "requestheader-client-ca-file"

// LastArg returns the value of an option in args (name=value) that counts: the last one. It returns
// nothing if the option is not there.
func LastArg(args []string, option string) (last string) {
	for _, arg := range args {
		if name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "="); name == option {
			last = value
		}
	}
	return last
}

// StoragePrefix returns the prefix of all keys that an API server with args (name=value) stores,
// with a slash at its end.
func StoragePrefix(args []string) string {
	prefix := path.Join("/", cmp.Or(LastArg(args, "etcd-prefix"), kubeoptions.DefaultEtcdPathPrefix))
	return strings.TrimSuffix(prefix, "/") + "/"
}

// checkEgressSelector reads and validates the file as upstream does later.
func checkEgressSelector(flag, path string) error {
	config, err := egressselector.ReadEgressSelectorConfiguration(path)
	if err == nil {
		err = egressselector.ValidateEgressSelectorConfiguration(config).ToAggregate()
	}
	if err != nil {
		return fmt.Errorf("--%s %s: %w", flag, path, err)
	}
	return nil
}

// auditLogOption is the option of kube-apiserver that names the file of the audit log. "-" is stdout.
const auditLogOption = "audit-log-path"

// checkAuditLog opens the log as upstream does later, if it exists.
func checkAuditLog(path string) error {
	if path == "-" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("--%s %s: is a directory: name a file, such as %s", auditLogOption, path, filepath.Join(path, "audit.log"))
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--%s: %w: name a file that the server can write", auditLogOption, err)
	}
	return f.Close()
}

// CheckFile opens a file that an option names.
func CheckFile(flag, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("--%s: %w", flag, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return fmt.Errorf("--%s %s: is a directory", flag, path)
	}
	return nil
}

// Find reports whether kube-apiserver has an option. If Karve sets it, instead says what to use in its place.
func Find(name string) (found bool, instead string) {
	return flags.Find(options.NewServerRunOptions().Flags(), ownedFlags, name)
}

// blame adds an option of args to each problem of err that names none of them: the one without which validate does not find
// the problem. It leaves out what [CheckFiles] reports.
func blame(err error, args []string, validate func(args []string) error) error {
	if err == nil || errors.Is(err, ErrFeatureGates) {
		return err
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok && errors.Join(joined.Unwrap()...).Error() == err.Error() {
		var all []error
		for _, problem := range joined.Unwrap() {
			all = append(all, blame(problem, args, validate))
		}
		return errors.Join(all...)
	}
	names := make([]string, len(args))
	for i, arg := range args {
		names[i], _, _ = strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if strings.Contains(err.Error(), names[i]) {
			return err
		}
	}
	for i, name := range names {
		found := validate(slices.Delete(slices.Clone(args), i, i+1))
		if errors.Is(found, ErrOtherGates) || found != nil && strings.Contains(found.Error(), err.Error()) {
			continue
		}
		if CheckFiles(args[i:i+1]) != nil { // which has named the file
			return nil
		}
		if name == "watch-cache-sizes" {
			err = fmt.Errorf("%w: want RESOURCE#SIZE, such as pods#500", err)
		}
		return fmt.Errorf("--kube-apiserver-arg: %s: %w", name, err)
	}
	return err
}

// UserFlags describes the kube-apiserver options that the command line has under the same
// names. Their values go into Config.Args.
func UserFlags() ([]UserFlag, error) {
	sets := options.NewServerRunOptions().Flags()
	var all []UserFlag
	for _, group := range userFlags {
	names:
		for _, name := range group.names {
			for _, set := range sets.FlagSets {
				if f := set.Lookup(name); f != nil {
					all = append(all, UserFlag{name, group.section, f.Usage, f.NoOptDefVal == "true"})
					continue names
				}
			}
			return nil, fmt.Errorf("kube-apiserver no longer has --%s", name)
		}
	}
	return all, nil
}
