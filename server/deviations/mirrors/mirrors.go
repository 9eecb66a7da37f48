// Package mirrors lists the functions of upstream that Karve repeats in parts, replaces, or relies on
// beyond their documentation: see [All]. A test compares their source with a hash, and
// scripts/upgrade prints how they differ between two versions.
package mirrors

// Mirror is a function of upstream's whose body Karve repeats in parts, replaces, or relies on beyond
// its documentation.
type Mirror struct {
	Ours     string // Karve's file
	Package  string // the import path of upstream's package
	Function string // name, or Type.name of a method; also a variable
	Hash     string // of the source, without comments
}

const (
	apiserverApp     = "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllerApp    = "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	schedulerApp     = "k8s.io/kubernetes/cmd/kube-scheduler/app"
	genericServer    = "k8s.io/apiserver/pkg/server"
	registryStore    = "k8s.io/apiserver/pkg/registry/generic/registry"
	aggregator       = "k8s.io/kube-aggregator/pkg/apiserver"
	namespaceLoop    = "k8s.io/kubernetes/pkg/controller/namespace"
	namespaceGate    = "k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	goRestful        = "github.com/emicklei/go-restful/v3"
	controlPlane     = "k8s.io/kubernetes/pkg/controlplane"
	extensions       = "k8s.io/apiextensions-apiserver/pkg/apiserver"
	clientBuilder    = "k8s.io/controller-manager/pkg/clientbuilder"
	garbageCollector = "k8s.io/kubernetes/pkg/controller/garbagecollector"
	workQueue        = "k8s.io/client-go/util/workqueue"
)

// All are all of them. When an upgrade changes one, the test fails: compare upstream's new
// function with our file, change that if it has to follow, and then the hash.
var All = []Mirror{
	{"server/apiserver/options.go", apiserverApp, "NewAPIServerCommand", "5ae04353a39c"},
	{"server/apiserver/upstream.go", apiserverApp, "NewAPIServerCommand", "5ae04353a39c"},
	{"server/apiserver/run.go", apiserverApp, "Run", "437a90ba7d20"},
	{"server/apiserver/run.go", genericServer, "GenericAPIServer.RunPostStartHooks", "33c4cd4ae091"},
	{"server/apiserver/run.go", genericServer, "runPostStartHook", "f1a1a41ea118"},
	{"server/apiserver/chain.go", apiserverApp, "NewConfig", "1bf7ab262b78"},
	{"server/apiserver/chain.go", apiserverApp, "CreateServerChain", "c5631a7aac06"},
	{"server/apiserver/genericconfig.go", controlPlane + "/apiserver", "BuildGenericConfig", "20d4b1e60837"},
	{"server/apiserver/genericconfig.go", genericServer, "DefaultOpenAPIV3Config", "32eebed56f00"},
	{"server/apiserver/followfiles.go", genericServer + "/options", "SecureServingOptions.ApplyTo", "3a40c40b481e"},
	{"server/apiserver/loopbackcertificate.go", genericServer + "/options", "SecureServingOptionsWithLoopback.ApplyTo", "f09bb41a038f"},
	{"server/apiserver/loopbackcertificate.go", genericServer + "/options", "SecureServingOptionsWithLoopback.ApplyToConfig", "28f7de82e82d"},
	{"server/apiserver/replacements/alignedclock.go", registryStore, "StorageWithCacher", "dba216cf9bae"},
	{"server/apiserver/replacements/alignedclock.go", "k8s.io/apiserver/pkg/storage/cacher", "Cacher.dispatchEvents", "11205fbe501c"},
	{"server/apiserver/replacements/alignedclock.go", "k8s.io/client-go/util/watchlist", "DoesClientNotSupportWatchListSemantics", "13dfb901c17b"},
	{"server/apiserver/replacements/earlyinformers.go", genericServer, "StorageReadinessHook.Hook", "5751e7d678b6"},
	{"server/apiserver/replacements/earlyinformers.go", genericServer, "GenericAPIServer.RunPreShutdownHooks", "12a830c85221"},
	{"server/apiserver/replacements/earlyinformers.go", genericServer, "completedConfig.New", "4bc0bab060e5"},
	{"server/apiserver/externalnames.go", apiserverApp, "CreateKubeAPIServerConfig", "05f7160ffc0c"},
	{"server/apiserver/externalnames.go", apiserverApp, "buildServiceResolver", "801dfef1d8cb"},
	{"server/apiserver/externalnames.go", aggregator, "NewEndpointServiceResolver", "340b7e051c78"},
	{"server/apiserver/singleserver.go", extensions, "crdHandler.serveResource", "3fbbbe15f4ac"},
	{"server/apiserver/singleserver.go", "k8s.io/kubernetes/pkg/controlplane/reconcilers", "NewLeaseEndpointReconciler", "3c4935399885"},
	{"server/apiserver/singleserver.go", "k8s.io/apiserver/pkg/reconcilers", "NewPeerEndpointLeaseReconciler", "6e5dacb5133c"},
	{"server/apiserver/singleserver.go", controlPlane + "/apiserver", "completedConfig.New", "c01b7fca80bd"},
	{"server/apiserver/growth.go", genericServer + "/filters", "timeoutHandler.ServeHTTP", "6b3ac64968f4"},
	{"server/apiserver/insecurechain.go", genericServer, "DefaultBuildHandlerChain", "a7510c760823"},
	{"server/apiserver/replacements/streams.go", genericServer, "preparedGenericAPIServer.RunWithContext", "27720df0fed7"},
	{"server/apiserver/replacements/storageclient.go", "k8s.io/apiserver/pkg/storage/storagebackend/factory", "newETCD3Client", "03a55d7a5ffc"},
	{"server/apiserver/replacements/storageclient.go", "k8s.io/apiserver/pkg/storage/etcd3", "NewETCDLatencyTracker", "31574770380c"},
	{"server/apiserver/replacements/clientcertificates.go", "k8s.io/apiserver/pkg/authentication/request/x509", "Authenticator.AuthenticateRequest", "5546107c28bf"},
	{"server/apiserver/replacements/clientcertificates.go", "k8s.io/apiserver/pkg/authentication/request/x509", "CommonNameUserConversion", "9235777a787c"},
	{"server/apiserver/replacements/clientcertificates.go", "k8s.io/kubernetes/pkg/kubeapiserver/authenticator", "Config.New", "89c04e806eeb"},
	{"server/apiserver/replacements/routes.go", goRestful, "CurlyRouter.SelectRoute", "9e646c804aa0"},
	{"server/apiserver/replacements/routes.go", goRestful, "CurlyRouter.selectRoutes", "807764d10b15"},
	{"server/apiserver/replacements/routes.go", goRestful, "CurlyRouter.matchesRouteByPathTokens", "5ecc76d01c7e"},
	{"server/apiserver/replacements/routes.go", goRestful, "CurlyRouter.detectWebService", "bc53ffee51c9"},
	{"server/apiserver/replacements/routes.go", goRestful, "RouterJSR311.detectRoute", "6f362d74cdf9"},
	{"server/apiserver/replacements/awaitstorage.go", extensions, "crdHandler.getOrCreateServingInfoFor", "bab6c81cdac7"},
	{"server/apiserver/replacements/promptpolicies.go", "k8s.io/apiserver/pkg/admission/plugin/policy/generic", "policySource.Run", "e3deddb08afe"},
	{"server/apiserver/replacements/listbuffer.go", "k8s.io/apiserver/pkg/endpoints/metrics", "ResponseWriterDelegator.Write", "b5703b40ae34"},
	{"server/apiserver/replacements/uncached.go", "k8s.io/apiserver/pkg/registry/generic", "UndecoratedStorage", "a4735595a197"},
	{"server/apiserver/replacements/uncached.go", "k8s.io/apiserver/pkg/storage/etcd3", "watchChan.startWatching", "c025678887ce"},
	{"server/apiserver/openapi/documents.go", genericServer + "/routes", "OpenAPI.InstallV2", "19026e6be7a8"},
	{"server/apiserver/openapi/documents.go", genericServer + "/routes", "OpenAPI.InstallV3", "7b536819cb09"},
	{"server/apiserver/openapi/aggregator.go", aggregator, "APIAggregator.PrepareRun", "09eba7e906bd"},
	{"server/apiserver/egress/pinned.go", "k8s.io/apiserver/pkg/util/webhook", "NewGenericWebhook", "7d1ba3853bd8"},
	{"server/apiserver/egress/redirects.go", "k8s.io/apiserver/pkg/util/webhook", "ClientManager.HookClient", "24eb4000671d"},
	{"server/controllers/controllers.go", controllerApp, "Run", "524e464d904e"},
	{"server/controllers/controllers.go", controllerApp, "NewControllerManagerCommand", "73f8ab311e9b"},
	{"server/controllers/controllers.go", controllerApp, "createClientBuilders", "1f72b143d37f"},
	{"server/controllers/token.go", controllerApp, "newServiceAccountTokenController", "b874432e50e0"},
	{"server/controllers/unexported.go", controllerApp, "newCertificateSigningRequestSigningController", "d4aba1a09301"},
	{"server/controllers/unexported.go", controllerApp, "newPersistentVolumeAttachDetachController", "30703463508d"},
	{"server/controllers/unexported.go", "k8s.io/kubernetes/pkg/controller/certificates/signer", "CSRSigningController.Run", "69f9d845f259"},
	{"server/controllers/podranges.go", controllerApp, "newNodeIpamController", "193a40c86984"},
	{"server/controllers/replacements/garbage.go", controllerApp, "newGarbageCollectorController", "783b9eced065"},
	{"server/controllers/replacements/garbage.go", garbageCollector, "GarbageCollector.Sync", "c24157caa328"},
	{"server/controllers/replacements/garbage.go", controllerApp, "CreateControllerContext", "e3e4ce81b5c3"},
	{"server/controllers/replacements/garbage.go", garbageCollector, "GraphBuilder.controllerFor", "7f5f7bee9f3b"},
	{"server/controllers/replacements/namespaces.go", controllerApp, "newModifiedNamespaceController", "33fe619b087d"},
	{"server/controllers/replacements/namespaces.go", namespaceGate, "Lifecycle.Admit", "34f20e53e09d"},
	{"server/controllers/replacements/namespaces.go", namespaceGate, "Lifecycle.SetExternalKubeInformerFactory", "6b49bf939088"},
	{"server/controllers/replacements/namespaces.go", "k8s.io/kubernetes/pkg/registry/core/namespace/storage", "REST.Delete", "96b81bbe0a4a"},
	{"server/controllers/replacements/namespaces.go", namespaceLoop, "NewNamespaceController", "0e165c2de14e"},
	{"server/controllers/replacements/namespaces.go", namespaceLoop, "NamespaceController.worker", "63cd395ce0c2"},
	{"server/controllers/replacements/namespaces.go", namespaceLoop, "NamespaceController.syncNamespaceFromKey", "65eaf3462f2d"},
	{"server/controllers/replacements/fencedbuilder.go", clientBuilder, "DynamicControllerClientBuilder.Config", "60d6486456be"},
	{"server/controllers/replacements/fencedbuilder.go", clientBuilder, "DynamicControllerClientBuilder.DiscoveryClient", "4888700035c4"},
	{"server/controllers/replacements/standstill.go", "k8s.io/kubernetes/pkg/controller/nodelifecycle", "Controller.tryUpdateNodeHealth", "b50e96398d25"},
	{"server/controllers/replacements/watchers.go", "k8s.io/kubernetes/pkg/volume", "VolumePluginMgr.refreshProbedPlugins", "680c519d1e59"},
	{"server/filewatch/filewatch.go", genericServer + "/dynamiccertificates", "DynamicCertKeyPairContent.Run", "4611109d2ab4"},
	{"server/filewatch/filewatch.go", genericServer + "/dynamiccertificates", "DynamicFileCAContent.Run", "7de6cd009dc4"},
	{"server/scheduler/scheduler.go", schedulerApp, "Setup", "ad9e34380f1f"},
	{"server/scheduler/scheduler.go", schedulerApp, "Run", "c6ca54d1c77a"},
	{"server/scheduler/scheduler.go", schedulerApp + "/options", "Options.Config", "ddbef866292a"},
	{"server/scheduler/scheduler.go", schedulerApp + "/options", "createClients", "6105ee190630"},
	{"server/scheduler/scheduler.go", "k8s.io/kubernetes/pkg/scheduler", "NewInformerFactory", "976739161ca5"},
	{"server/queues/queues.go", workQueue, "Typed.updateUnfinishedWorkLoop", "71f608828f4c"},
	{"server/queues/queues.go", workQueue, "Typed.updateUnfinishedWork", "57f416716a60"},
	{"server/queues/queues.go", workQueue, "Typed.Get", "482bfe9fd6e3"},
	{"server/queues/queues.go", workQueue, "defaultQueueMetrics.get", "ad7e798768c5"},
	{"server/queues/queues.go", workQueue, "defaultQueueMetrics.done", "3ab3067f31a4"},
	{"server/queues/queues.go", workQueue, "newQueueMetrics", "7427e09e332e"},
	{"server/election/election.go", "k8s.io/client-go/tools/leaderelection", "LeaderElector.Run", "a0c1c8df18d5"},
	{"server/insecure/serve.go", genericServer, "SecureServingInfo.Serve", "664606639d04"},
	{"server/loopback/loopback.go", "k8s.io/client-go/transport", "New", "f43ca80483bb"},
	{"server/sharedinformers/share.go", "k8s.io/client-go/informers", "sharedInformerFactory.InformerFor", "215b28027ae6"},
	{"server/sharedinformers/share.go", "k8s.io/client-go/tools/cache", "sharedIndexInformer.RunWithContext", "83a2e466faa4"},
	{"bootstrap/policy.go", "k8s.io/kubernetes/pkg/registry/rbac/rest", "PolicyData.EnsureRBACPolicy", "9c1a751a3c5a"},
	{"bootstrap/hooks.go", controlPlane, "CompletedConfig.New", "cf21468ee329"},
	{"bootstrap/hooks.go", "k8s.io/kubernetes/pkg/registry/scheduling/rest", "AddSystemPriorityClasses", "16d518df0965"},
	{"bootstrap/hooks.go", "k8s.io/kubernetes/pkg/registry/flowcontrol/rest", "RESTStorageProvider.PostStartHook", "bcc161655bc6"},
}
