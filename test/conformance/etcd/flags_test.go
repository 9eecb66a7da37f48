package etcd

import (
	"flag"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/karve-k8s/karve/envtest/etcd"
)

// Karve's etcd accepts the flags of etcd, and no others. The list below has the flags that only the
// command defines (server/etcdmain/config.go), and does not export.
func TestFlagsAreEtcds(t *testing.T) {
	theirs := map[string]bool{}
	fs := flag.NewFlagSet("etcd", flag.ContinueOnError)
	embed.NewConfig().AddFlags(fs)
	fs.VisitAll(func(f *flag.Flag) {
		b, ok := f.Value.(interface{ IsBoolFlag() bool })
		theirs[f.Name] = ok && b.IsBoolFlag()
	})
	for name := range strings.FieldsSeq(`config-file discovery-fallback initial-cluster-state v2-deprecation
		cluster-active-size cluster-remove-delay cluster-sync-interval config force max-result-buffer max-retry-attempts
		peer-heartbeat-interval peer-election-timeout retry-interval snapshot v vv`) {
		theirs[name] = false
	}
	theirs["version"] = true
	ours := etcd.Flags()
	for name, boolean := range theirs {
		if b, known := ours[name]; !known {
			t.Errorf("--%s is missing", name)
		} else if b != boolean {
			t.Errorf("--%s: boolean is %v, want %v as in etcd", name, b, boolean)
		}
	}
	for name := range ours {
		if _, known := theirs[name]; !known {
			t.Errorf("etcd has no --%s", name)
		}
	}
}
