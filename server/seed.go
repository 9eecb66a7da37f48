package server

import (
	"context"
	"fmt"
	"os"

	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/datastore"
)

// birthplace is our own engine as bootstrap.Store. A real etcd has none: it does
// not take a transaction of that size, and other servers may start on it now.
type birthplace struct {
	engine   *datastore.Engine
	endpoint string
}

func (b birthplace) Endpoint() string { return b.endpoint }

func (b birthplace) Empty(ctx context.Context, prefix string) (bool, error) {
	resp, err := b.engine.Range(ctx, datastore.RangeRequest{Key: prefix, End: datastore.PrefixEnd(prefix), CountOnly: true})
	return err == nil && resp.Count == 0, err
}

func (b birthplace) CreateAll(ctx context.Context, prefix string, objects []bootstrap.KeyValue) error {
	// No key of the range has ever been created.
	req := datastore.TxnRequest{Compare: []datastore.Compare{{
		Key: prefix, End: datastore.PrefixEnd(prefix), Target: datastore.CompareCreateRevision,
	}}}
	for _, o := range objects {
		req.Then = append(req.Then, datastore.Op{Put: &datastore.PutRequest{Key: o.Key, Value: o.Value}})
	}
	_, err := b.engine.Txn(ctx, req)
	return err
}

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
