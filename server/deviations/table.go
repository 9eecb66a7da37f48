// Package deviations has the places where Karve runs its own code in place of upstream's:
// [Table] names them all, and the code of those in the API server is here, a file for each.
//
// Each deviation can be switched off (karve server --upstream=NAME), so that a problem can be
// bisected between Karve and upstream. See docs/deviations.md, which a test compares with Table.
package deviations

// Deviation is one place where Karve runs its own code in place of upstream's.
type Deviation struct {
	// Name is what --upstream calls it. The code is in the file of that name, or in the
	// package or file that Where names.
	Name  string
	Where string
	// Replaces is what of upstream's does not run: packages with symbols.
	Replaces string
	// Instead is what Karve does, in a sentence.
	Instead string
	// Gain is what a user gets by it, with the figures that Command printed. Without a
	// Command, the gain is one of behaviour, and Test shows it.
	Gain    string
	Command string
	// Tests are the tests that compare it with upstream.
	Tests []string
	// Needs are deviations without which this one is off, too.
	Needs []*Deviation
}

// The deviations. Each is in Table.
var (
	AlignedClock = &Deviation{
		Name:     "alignedclock",
		Replaces: "k8s.io/apiserver/pkg/registry/generic/registry.StorageWithCacher",
		Instead:  "The timers of all watch caches fire together, every 1.25 s, so an idle process wakes up less often.",
		Tests:    []string{"TestCacherConfigIsUpstreams", "TestOnBeat"},
	}
	AwaitStorage = &Deviation{
		Name:     "awaitstorage",
		Replaces: "k8s.io/apiextensions-apiserver/pkg/apiserver.(*crdHandler).getOrCreateServingInfoFor",
		Instead:  "The first request for a custom resource waits up to 250 ms for its new cache instead of being refused.",
		Tests:    []string{"TestFirstRequestOfAKind"},
	}
	Bootstrap = &Deviation{
		Name: "bootstrap", Where: "bootstrap",
		Replaces: "k8s.io/kubernetes/pkg/registry/{rbac,scheduling}/rest.PostStartHook, k8s.io/kubernetes/pkg/controlplane post-start hooks",
		Instead:  "One transaction writes the objects that a new cluster is born with, before the API server starts.",
		Tests:    []string{"TestBornAsUpstreamMakesIt"},
	}
	ClientCertificates = &Deviation{
		Name:     "clientcertificates",
		Replaces: "k8s.io/apiserver/pkg/authentication/request/x509.(*Authenticator).AuthenticateRequest",
		Instead:  "The identity of a verified client certificate is valid for one second without another verification.",
		Tests:    []string{"TestClientCertificateIsRemembered", "FuzzClientCertificates"},
	}
	Compression = &Deviation{
		Name:     "compression",
		Replaces: "k8s.io/apiserver/pkg/endpoints/handlers/responsewriters.negotiateContentEncoding",
		Instead:  "Large objects are not compressed for clients on the same machine.",
		Tests:    []string{"TestCompressionOfLargeAnswers", "TestCompressionForThisMachine"},
	}
	Counting = &Deviation{
		Name:     "counting",
		Replaces: "k8s.io/apiserver/pkg/registry/generic/registry.(*Store).startObservingCount",
		Instead:  "A timer counts the objects of each resource, instead of a goroutine for each.",
		Tests:    []string{"TestCount"},
	}
	EarlyInformers = &Deviation{
		Name:     "earlyinformers",
		Replaces: "k8s.io/apiserver/pkg/server post-start hook generic-apiserver-start-informers",
		Instead:  "The API server's informers start while the chain is prepared to run, before the post-start hooks that wait for them.",
		Tests:    []string{"TestInformersAreSyncedBeforeTheHooks", "TestInformersOutlivePreShutdownHooks"},
		Needs:    []*Deviation{GenericConfig, Loopback},
	}
	Garbage = &Deviation{
		Name: "garbage", Where: "server/controllers/garbage.go",
		Replaces: "k8s.io/kubernetes/cmd/kube-controller-manager/app.newGarbageCollectorController",
		Instead:  "The garbage collector looks for new kinds when a CustomResourceDefinition changes, and not only every 30 seconds.",
		Tests:    []string{"TestGarbageOfNewKinds"},
	}
	GenericConfig = &Deviation{
		Name:     "genericconfig",
		Replaces: "k8s.io/kubernetes/pkg/controlplane/apiserver.BuildGenericConfig",
		Instead:  "The certificate for the API server's own clients has an ECDSA key instead of two RSA keys, and the OpenAPI definitions are collected concurrently.",
		Tests:    []string{"TestGenericConfigIsUpstreams"},
	}
	GoAway = &Deviation{
		Name:     "goaway",
		Replaces: "golang.org/x/net/http2.goAwayTimeout",
		Instead:  "A server that only this machine can reach closes an idle connection 100 ms after GOAWAY instead of one second.",
		Tests:    []string{"TestGoAway"},
	}
	HandlerMux = &Deviation{
		Name: "handlermux", Where: "server/sharedinformers/handlermux.go",
		Replaces: "k8s.io/client-go/tools/cache.processorListener",
		Instead:  "The handlers of an informer share one of upstream's listeners, and have a goroutine only while something happens.",
		Tests:    []string{"TestHandlerMuxCallsHandlersLikeUpstream"},
	}
	ListBuffer = &Deviation{
		Name:     "listbuffer",
		Replaces: "golang.org/x/net/http2.(*responseWriter).Write",
		Instead:  "The answer to a GET over HTTP/2 is written in pieces of 64 KB instead of 4 KB.",
		Tests:    []string{"TestWideAnswersAreTheSame", "TestWideAnswersFlush"},
	}
	Loopback = &Deviation{
		Name: "loopback", Where: "server/loopback",
		Replaces: "k8s.io/client-go/transport.New, for clients in the server's process",
		Instead:  "Controllers, scheduler and the API server's own clients call the handler chain instead of connecting to it.",
		Tests:    []string{"TestSameAsHTTP2"},
	}
	Namespaces = &Deviation{
		Name: "namespaces", Where: "server/controllers/namespaces.go",
		Replaces: "k8s.io/kubernetes/pkg/controller/namespace.NamespaceController",
		Instead:  "A deleted namespace is emptied when the requests that were admitted to it have ended, instead of after five seconds.",
		Tests:    []string{"TestNamespaceWaitsForRequests", "TestNamespaceSettles", "TestStalledBodyHoldsNoNamespace"},
	}
	OpenAPI = &Deviation{
		Name: "openapi", Where: "server/apiserver/openapi",
		Replaces: "k8s.io/apiserver/pkg/server/routes.OpenAPI, k8s.io/kube-aggregator/pkg/controllers/{openapi,openapiv3}",
		Instead:  "OpenAPI documents are built when a client asks for them, and forgotten after five idle minutes.",
		Tests:    []string{"TestOpenAPIIsUpstreams"},
	}
	Queues = &Deviation{
		Name: "queues", Where: "server/queues",
		Replaces: "k8s.io/client-go/util/workqueue.(*Typed).updateUnfinishedWorkLoop",
		Instead:  "Two gauges of each work queue are set when they are read, instead of twice a second.",
		Tests:    []string{"TestNamesAreUpstreams", "TestMetricsAreUpstreams"},
	}
	Routes = &Deviation{
		Name:     "routes",
		Replaces: "github.com/emicklei/go-restful/v3.CurlyRouter",
		Instead:  "The router of kube-apiserver remembers the route of each resource, verb and content type.",
		Tests:    []string{"TestRoutesAreUpstreams", "TestRememberedRoutesAreUpstreams", "FuzzRoutes"},
	}
	SharedInformers = &Deviation{
		Name: "sharedinformers", Where: "server/sharedinformers/share.go",
		Replaces: "k8s.io/client-go/informers.SharedInformerFactory.InformerFor",
		Instead:  "API server, controllers and scheduler share the informers of 45 types.",
		Tests:    []string{"TestSharedInformer"},
	}
	SingleServer = &Deviation{
		Name:     "singleserver",
		Replaces: "k8s.io/kubernetes/pkg/controlplane/reconcilers.NewLeaseEndpointReconciler, k8s.io/apiserver/pkg/reconcilers.PeerEndpointLeaseReconciler",
		Instead:  "A server with a datastore of its own writes none of the leases by which API servers find each other, and renews its identity every ten minutes.",
		Tests:    []string{"TestIdleClusterWritesNothing"},
	}
	StorageClient = &Deviation{
		Name:     "storageclient",
		Replaces: "k8s.io/apiserver/pkg/storage/storagebackend/factory.newETCD3Client",
		Instead:  "The API server calls the built-in datastore instead of connecting to an etcd.",
		Tests:    []string{"TestStorageClientIsUpstreams", "TestFactoryReachesTheEngine"},
	}
	Streams = &Deviation{
		Name:     "streams",
		Replaces: "k8s.io/apiserver/pkg/server.preparedGenericAPIServer.RunWithContext",
		Instead:  "A stop ends followed logs, exec, attach and port-forward, and not only watches.",
		Tests:    []string{"TestStopEndsStreams"},
	}
	TokenBackdate = &Deviation{
		Name:     "tokenbackdate",
		Replaces: "k8s.io/kubernetes/pkg/serviceaccount.JWTTokenGenerator",
		Instead:  "While the clock is in doubt, tokens of service accounts are valid from a day before they are issued.",
		Tests:    []string{"TestTokensSurviveAClockSetBack"},
	}
	Tracing = &Deviation{
		Name:     "tracing",
		Replaces: "k8s.io/apiserver/pkg/endpoints/filters.WithTracing",
		Instead:  "Without --tracing-config-file, a request that belongs to no trace does not pass the filter for traces.",
		Tests:    []string{"TestTracesArePassedOn"},
	}
	Uncached = &Deviation{
		Name:     "uncached",
		Replaces: "k8s.io/apiserver/pkg/registry/generic/registry.StorageWithCacher, k8s.io/apiserver/pkg/registry/generic.UndecoratedStorage",
		Instead:  "26 types with few objects have no watch cache; their watches, and those of events, get bookmarks from storage.",
		Tests:    []string{"TestTypeWithoutCacheIsServedAsOneWithIt", "TestQuietWatchesOutliveCompaction"},
	}
	VAPStatus = &Deviation{
		Name: "vapstatus", Where: "server/controllers/policystatus.go",
		Replaces: "k8s.io/kubernetes/cmd/kube-controller-manager/app.newValidatingAdmissionPolicyStatusController",
		Instead:  "The controller that checks the types in ValidatingAdmissionPolicies makes the schemas of built-in types when there is a policy.",
		Tests:    []string{"TestPolicyTypesAreChecked"},
	}
)

// Table has every deviation, by name.
var Table = []*Deviation{
	AlignedClock, AwaitStorage, Bootstrap, ClientCertificates, Compression, Counting, EarlyInformers, Garbage, GenericConfig, GoAway,
	HandlerMux, ListBuffer, Loopback, Namespaces, OpenAPI, Queues, Routes, SharedInformers, SingleServer, StorageClient, Streams,
	TokenBackdate, Tracing, Uncached, VAPStatus,
}
