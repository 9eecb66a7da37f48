package command

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/karve-k8s/karve/addons"
	"github.com/karve-k8s/karve/bootstrap/kubeadm"
)

const (
	kubeletConfig = "configmap/" + addons.KubeletConfig
	// oldNodes tells what an administrator has to do on nodes, whose kubelets have a copy.
	oldNodes = "Nodes that joined before keep the DNS that they have. On each, run kubeadm upgrade node phase kubelet-config,\n" +
		"or set clusterDNS in the configuration of its kubelet if it joined without kubeadm, and restart the kubelet."
	// withoutDNS is about those that `karve node` looks after.
	withoutDNS = "A node that install.sh made, and that has no DNS yet, takes it with karve node upgrade."
)

// tellKubelets makes kubelets that join from now on use the DNS at an address. What somebody else
// has set stays, unless force is true.
func (c *addonClients) tellKubelets(ctx context.Context, stdout, stderr io.Writer, address string, o addons.ApplyOptions) error {
	current, err := addons.KubeletDNS(ctx, c.typed)
	switch {
	case apierrors.IsNotFound(err):
		fmt.Fprintf(stderr, "karve: warning: there is no ConfigMap kube-system/%s, from which nodes learn the address of the DNS: set clusterDNS: [%s] in the configuration of their kubelets\n", addons.KubeletConfig, address)
		return nil
	case err != nil:
		return err
	case slices.Equal(current, []string{address}):
		showResults(stdout, []addons.Result{{Object: kubeletConfig, Action: addons.Unchanged}}, o.DryRun)
		return nil
	case len(current) > 0 && !o.ForceConflicts:
		fmt.Fprintf(stderr, "karve: warning: nodes that join use another DNS, because clusterDNS in ConfigMap kube-system/%s is %s; --force-conflicts sets it to %s\n",
			addons.KubeletConfig, strings.Join(current, ", "), address)
		showResults(stdout, []addons.Result{{Object: kubeletConfig, Action: addons.Unchanged}}, o.DryRun)
		return nil
	}
	if !o.DryRun {
		if _, err := kubeadm.SetClusterDNS(ctx, c.typed, address); err != nil {
			return err
		}
	}
	showResults(stdout, []addons.Result{{Object: kubeletConfig, Action: addons.Configured}}, o.DryRun)
	if !o.DryRun {
		fmt.Fprintln(stdout, oldNodes+"\n"+withoutDNS)
	}
	return nil
}

// untellKubelets makes kubelets that join from now on use the DNS of their machine, if they used
// the one at address.
func (c *addonClients) untellKubelets(ctx context.Context, stdout io.Writer, address string) error {
	current, err := addons.KubeletDNS(ctx, c.typed)
	if apierrors.IsNotFound(err) || err == nil && !slices.Equal(current, []string{address}) {
		return nil
	} else if err != nil {
		return err
	}
	if _, err := kubeadm.SetClusterDNS(ctx, c.typed); err != nil {
		return err
	}
	showResults(stdout, []addons.Result{{Object: kubeletConfig, Action: addons.Configured}}, false)
	fmt.Fprintln(stdout, oldNodes)
	return nil
}
