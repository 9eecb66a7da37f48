package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"
	signerconfig "k8s.io/kubernetes/pkg/controller/certificates/signer/config"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach"

	"github.com/karve-k8s/karve/server/controllers/replacements"
)

// The controllers here are upstream's, built as upstream's constructors do, which are not exported. Those
// would take five inotify instances, and a user has 128.

// loop is a controller that is a function.
type loop struct {
	name string
	run  func(context.Context)
}

func (l loop) Name() string { return l.name }

func (l loop) Run(ctx context.Context) { l.run(ctx) }

// signerWorkers is how many requests each signer signs at once, as upstream.
const signerWorkers = 5

type newSigner func(ctx context.Context, client kubernetes.Interface, requests certificatesinformers.CertificateSigningRequestInformer, cert, key string, ttl time.Duration) (*signer.CSRSigningController, error)

// newSigners builds upstream's signers of certificate requests. They share a watcher of their files.
func newSigners(ctx context.Context, shared app.ControllerContext) (app.Controller, error) {
	o := shared.ComponentConfig.CSRSigningController
	all := []struct {
		build newSigner
		files signerconfig.CSRSigningConfiguration
	}{
		{signer.NewKubeletServingCSRSigningController, o.KubeletServingSignerConfiguration},
		{signer.NewKubeletClientCSRSigningController, o.KubeletClientSignerConfiguration},
		{signer.NewKubeAPIServerClientCSRSigningController, o.KubeAPIServerClientSignerConfiguration},
		{signer.NewLegacyUnknownCSRSigningController, o.LegacyUnknownSignerConfiguration},
	}
	common := signerconfig.CSRSigningConfiguration{CertFile: o.ClusterSigningCertFile, KeyFile: o.ClusterSigningKeyFile}
	usable := common.CertFile != "" && common.KeyFile != ""
	specific := false
	for _, s := range all {
		specific = specific || s.files != signerconfig.CSRSigningConfiguration{}
	}
	switch {
	case usable && specific:
		return nil, errors.New("--kube-controller-manager-arg: cluster-signing-cert-file and cluster-signing-key-file are for all signers: leave them out, or the options of the single ones")
	case !usable && !specific:
		return nil, nil
	}
	client, err := shared.NewClient("certificate-controller")
	if err != nil {
		return nil, err
	}
	requests := shared.InformerFactory.Certificates().V1().CertificateSigningRequests()
	var signers []*signer.CSRSigningController
	for _, s := range all {
		if !specific {
			s.files = common
		}
		if s.files == (signerconfig.CSRSigningConfiguration{}) {
			continue
		}
		built, err := s.build(ctx, client, requests, s.files.CertFile, s.files.KeyFile, o.ClusterSigningDuration.Duration)
		if err == nil {
			err = replacements.FollowSigner(built, s.files.CertFile, s.files.KeyFile)
		}
		if err != nil {
			return nil, fmt.Errorf("create signer of certificate requests: %w", err)
		}
		signers = append(signers, built)
	}
	return loop{names.CertificateSigningRequestSigningController, func(ctx context.Context) {
		var running sync.WaitGroup
		for _, s := range signers {
			running.Go(func() { s.Run(ctx, signerWorkers) })
		}
		running.Wait()
	}}, nil
}

// newAttachDetach builds upstream's controller that attaches volumes, with a prober of FlexVolume drivers
// that begins when there is one.
func newAttachDetach(ctx context.Context, shared app.ControllerContext) (app.Controller, error) {
	volumes := shared.ComponentConfig.PersistentVolumeBinderController.VolumeConfiguration
	plugins, err := app.ProbeAttachableVolumePlugins(klog.FromContext(ctx), volumes)
	if err != nil {
		return nil, fmt.Errorf("find volume plugins: %w", err)
	}
	client, err := shared.NewClient("attachdetach-controller")
	if err != nil {
		return nil, err
	}
	core, storage, o := shared.InformerFactory.Core().V1(), shared.InformerFactory.Storage().V1(), shared.ComponentConfig.AttachDetachController
	controller, err := attachdetach.NewAttachDetachController(ctx, client, core.Pods(), core.Nodes(), core.PersistentVolumeClaims(), core.PersistentVolumes(),
		storage.CSINodes(), storage.CSIDrivers(), storage.VolumeAttachments(), plugins,
		&replacements.LateProber{DynamicPluginProber: app.GetDynamicPluginProber(ctx, volumes), Dir: volumes.FlexVolumePluginDir},
		o.DisableAttachDetachReconcilerSync, o.ReconcilerSyncLoopPeriod.Duration, o.DisableForceDetachOnTimeout, attachdetach.DefaultTimerConfig)
	if err != nil {
		return nil, fmt.Errorf("create controller that attaches volumes: %w", err)
	}
	return loop{names.PersistentVolumeAttachDetachController, controller.Run}, nil
}
