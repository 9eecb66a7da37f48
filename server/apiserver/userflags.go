package apiserver

import (
	"fmt"

	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// UserFlag is an option of kube-apiserver that Karve has under the same name.
type UserFlag struct {
	Name    string
	Section string // of the help
	Usage   string // upstream's own words
	Bool    bool   // needs no value
}

// userFlags are the options that users of Kubernetes know by name. All others
// can be reached by --kube-apiserver-arg.
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
	{"AUDIT, ENCRYPTION, TRACING", []string{"audit-policy-file", "audit-log-path", "audit-log-maxage", "audit-log-maxbackup", "audit-log-maxsize",
		"audit-webhook-config-file", "encryption-provider-config", "encryption-provider-config-automatic-reload", "tracing-config-file"}},
	{"LISTENERS", []string{"tls-min-version", "tls-cipher-suites", "tls-sni-cert-key", "goaway-chance", "cors-allowed-origins"}},
}

// UserFlags describes the options of kube-apiserver that the command line has
// under their own names; their values go into Config.Args.
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
