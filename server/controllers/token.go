package controllers

import (
	"context"
	"fmt"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/controller-manager/pkg/clientbuilder"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	saController "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/server/lifecycle"
)

// tokenController puts tokens into Secrets of type kubernetes.io/service-account-token. Upstream
// does not export its constructor.
type tokenController struct {
	*saController.TokensController
	workers int
}

func newTokenController(ctx context.Context, shared app.ControllerContext, root clientbuilder.ControllerClientBuilder) (app.Controller, error) {
	config := shared.ComponentConfig.SAController
	key, err := keyutil.PrivateKeyFromFile(config.ServiceAccountKeyFile)
	if err != nil {
		return nil, fmt.Errorf("read service account key: %w", err)
	}
	_, roots, err := certs.ReadAuthorities(config.RootCAFile) // before upstream publishes the file
	if err != nil {
		return nil, lifecycle.Final(fmt.Errorf("read root CA: %w", err))
	}
	rootCA, err := certutil.EncodeCertificates(roots...)
	if err != nil {
		return nil, fmt.Errorf("read root CA %s: %w", config.RootCAFile, err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("use service account key: %w", err)
	}
	client, err := root.Client("tokens-controller")
	if err != nil {
		return nil, fmt.Errorf("create client for token controller: %w", err)
	}
	core := shared.InformerFactory.Core().V1()
	controller, err := saController.NewTokensController(klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), client,
		saController.TokensControllerOptions{TokenGenerator: generator, RootCA: rootCA})
	if err != nil {
		return nil, fmt.Errorf("create token controller: %w", err)
	}
	return tokenController{controller, int(config.ConcurrentSATokenSyncs)}, nil
}

func (tokenController) Name() string { return names.ServiceAccountTokenController }

func (t tokenController) Run(ctx context.Context) { t.TokensController.Run(ctx, t.workers) }
