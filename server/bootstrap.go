package server

import (
	"fmt"
	"os"

	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"github.com/karve-k8s/karve/bootstrap"
)

// bootstrapOptions are what the controllers that will run would do first.
func (s *controlPlane) bootstrapOptions() (bootstrap.Options, error) {
	o := bootstrap.Options{Repairing: s.repairing}
	if s.NoControllers {
		return o, nil
	}
	controllers, err := s.controllerOptions()
	if err != nil {
		return o, err
	}
	controllers.UseCertificates(s.certs)
	o.ServiceAccounts = controllers.Runs(names.ServiceAccountController)
	o.ControllerAccounts = controllers.KubeCloudShared.UseServiceAccountCredentials && controllers.RunsDefaults()
	o.AggregatedRoles = controllers.Runs(names.ClusterRoleAggregationController)
	if controllers.Runs(names.RootCACertificatePublisherController) {
		pem, err := os.ReadFile(controllers.SAController.RootCAFile)
		if err != nil {
			return o, fmt.Errorf("read the root CA: %w", err)
		}
		o.RootCA = string(pem)
	}
	return o, nil
}

// repairing says that this start takes longer, and why.
func (s *controlPlane) repairing(hook string, err error) {
	if err != nil {
		s.log.Warnf("%s: could not see at once what is there; looking again: %v", hook, err)
		return
	}
	s.log.Infof("%s: not everything is there as Kubernetes needs it; making it so", hook)
}
