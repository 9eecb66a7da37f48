package controllers

import (
	"cmp"
	"fmt"

	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/certs"
)

// MakesServiceAccounts reports whether a controller creates the default service account of
// each namespace.
func (u *Upstream) MakesServiceAccounts() bool { return u.Runs(names.ServiceAccountController) }

// Bootstrap returns what the controllers that these options enable would create first, so
// that a new cluster can begin with it.
func (u *Upstream) Bootstrap(store *certs.Store) (bootstrap.Options, error) {
	o := bootstrap.Options{
		ServiceAccounts:    u.MakesServiceAccounts(),
		ControllerAccounts: u.RunsDefaults(),
		AggregatedRoles:    u.Runs(names.ClusterRoleAggregationController),
	}
	if u.Runs(names.RootCACertificatePublisherController) {
		pem, _, err := certs.ReadAuthorities(cmp.Or(u.SAController.RootCAFile, store.CertFile(certs.ServerCA)))
		if err != nil {
			return o, fmt.Errorf("read the root CA: %w", err)
		}
		o.RootCA = string(pem)
	}
	return o, nil
}
