package server

import (
	"cmp"

	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/controllers"
	"github.com/karve-k8s/karve/server/scheduler"
)

// UpstreamOption looks for an option among those of upstream's programs. by are Karve's options that pass it on. If there are
// none because Karve sets it, instead says what to use in its place. Both are empty if upstream has no such option.
func UpstreamOption(name string) (by []string, instead string) {
	for _, component := range []struct {
		by   string
		find func(name string) (found bool, instead string)
	}{
		{"kube-apiserver-arg", apiserver.Find},
		{"kube-controller-manager-arg", controllers.Find},
		{"kube-scheduler-arg", scheduler.Find},
	} {
		switch found, owned := component.find(name); {
		case owned != "":
			instead = cmp.Or(instead, owned)
		case found:
			by = append(by, component.by)
		}
	}
	return by, instead
}
