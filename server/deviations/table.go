// Package deviations names the places where Karve runs its own code in place of upstream's:
// see [Table]. The code of most is in server/apiserver/replacements, a file for each.
//
// Each deviation can be switched off (karve server --upstream=NAME), so that a problem can be
// bisected between Karve and upstream. docs/deviations.md is Table for people.
package deviations

// Deviation is one place where Karve runs its own code in place of upstream's.
type Deviation struct {
	// Name is what --upstream calls it.
	Name string
	// Where is the package or file with the code; empty is the file of that name in
	// server/apiserver/replacements.
	Where string
	// Instead is what Karve does, in a sentence.
	Instead string
	// Gain is what a user gets by it, with the figures that Command printed. Without a
	// Command, the gain is one of behaviour, and Test shows it.
	Gain    string
	Command string
	// Tests are the tests that compare it with upstream.
	Tests []string
}

// Code is where the deviation's code is.
func (d *Deviation) Code() string {
	if d.Where != "" {
		return d.Where
	}
	return "server/apiserver/replacements/" + d.Name + ".go"
}

// The deviations. Each is in Table.
var (
	AlignedClock = &Deviation{
		Name:    "alignedclock",
		Instead: "The timers of all watch caches fire together, every 1.25 s. Lists fill the caches of built-in types instead of a watch. A watch from a future resourceVersion is 410 instead of silent.",
		Gain:    "Idle CPU: 0.26 % of a core, not 0.55. A start on 300,000 objects: 9.5 s, not 15.9; CPU 13.8 s, not 24.1 (`scripts/bench start -only large -upstream alignedclock`).",
		Command: "scripts/bench footprint -upstream alignedclock -only idle -settle 15s -window 15s -rounds 3",
		Tests:   []string{"TestCacherConfigIsUpstreams", "TestOnBeat", "TestCachesOfBuiltInTypesAreFilledWithLists", "TestWatchesFromTheFutureAreRefused"},
	}
	AwaitStorage = &Deviation{
		Name:    "awaitstorage",
		Instead: "The first request for a custom resource waits up to 250 ms for its new cache instead of being refused.",
		Gain:    "The request succeeds. Upstream refuses it, and clients retry after a second. A definition that nobody has used is deleted in less than a second. Upstream took more than half a minute for 2 of 60, and may take five: its finalizer is such a client.",
		Tests:   []string{"TestFirstRequestForCustomResourcesSucceeds"},
	}
	Bootstrap = &Deviation{
		Name: "bootstrap", Where: "bootstrap",
		Instead: "One transaction writes the objects that a new cluster is born with, before the API server starts.",
		Gain:    "Start of a new cluster: 1.14 s, not 2.55; CPU 0.46 s, not 0.99.",
		Command: "scripts/bench start -upstream bootstrap -only cold -rounds 9",
		Tests:   []string{"TestSeededClusterEqualsUpstreams"},
	}
	ClientCertificates = &Deviation{
		Name:    "clientcertificates",
		Instead: "The identity of a verified client certificate is valid for one second without another verification.",
		Gain:    "A get: 156 µs of CPU, not 226; 32 clients: 4,965 gets a second, not 3,433.",
		Command: "scripts/bench api -upstream clientcertificates -only get,update -rounds 3",
		Tests:   []string{"TestClientCertificateIsRemembered", "FuzzClientCertificates"},
	}
	ExternalNames = &Deviation{
		Name: "externalnames", Where: "server/apiserver/externalnames.go",
		Instead: "With --enable-aggregator-routing (Karve's default), webhooks and APIServices may name Services of type ExternalName, as without it. " +
			"docs/configuration.md says who then decides where the API server connects.",
		Gain:  "Such a webhook works. Upstream's endpoint routing refuses it (unsupported service type).",
		Tests: []string{"TestServicesResolveAsUpstream", "TestServicesOnTheHost"},
	}
	Garbage = &Deviation{
		Name: "garbage", Where: "server/controllers/replacements/garbage.go",
		Instead: "The garbage collector looks for new kinds when a CustomResourceDefinition changes, not only every 30 seconds.",
		Gain:    "Dependents of a custom resource of a new kind are deleted after 0.5 to 2 s, not 30 (still 30 for a kind that returns). Upstream keeps two goroutines for each kind that is gone.",
		Tests:   []string{"TestGarbageOfNewKinds", "TestHandlersOfGoneKinds"},
	}
	GenericConfig = &Deviation{
		Name: "genericconfig", Where: "server/apiserver/genericconfig.go",
		Instead: "The API server's own clients have a certificate with one ECDSA key for ten years instead of two RSA keys for three. OpenAPI definitions are collected concurrently.",
		Gain:    "CPU of a start: 0.48 s, not 0.57.",
		Command: "scripts/bench start -upstream genericconfig -only cold -rounds 9",
		Tests:   []string{"TestGenericConfigIsUpstreams"},
	}
	ListBuffer = &Deviation{
		Name:    "listbuffer",
		Instead: "The answer to a GET over HTTP/2 is written in pieces of 64 KB instead of object by object.",
		Gain:    "CPU of a list of 2,000 objects: server 17.0 ms, not 27.5; client 20.4, not 25.4. 4 clients: 51 lists a second, not 36.",
		Command: "scripts/bench api -upstream listbuffer -only list -rounds 5",
		Tests:   []string{"TestBufferedListsAreTheSame", "TestBufferedListsFlush", "TestListsAreWrittenInLargePieces"},
	}
	Loopback = &Deviation{
		Name: "loopback", Where: "server/loopback",
		Instead: "Controllers, scheduler and the API server's own clients call the handler chain instead of connecting to it. So the API server's informers start " +
			"before the post-start hooks that wait for them, and policies are ready as soon as their informers are.",
		Gain:    "Start of a new cluster: 0.62 s, not 0.82; CPU 0.90 s, not 1.14. Idle: 88.4 MB, not 93.0; 0.32 % of a core, not 0.36.",
		Command: "scripts/bench start -upstream loopback -only cold -rounds 9",
		Tests:   []string{"TestSameAsHTTP2", "TestInformersAreSyncedBeforeTheHooks", "TestInformersOutlivePreShutdownHooks", "TestPoliciesArePrompt"},
	}
	Namespaces = &Deviation{
		Name: "namespaces", Where: "server/controllers/replacements/namespaces.go",
		Instead: "A deleted namespace is emptied when its admitted requests have ended, instead of after five seconds.",
		Gain:    "A namespace with 20 Pods is gone after 0.42 s, not 5.63.",
		Command: "scripts/bench api -upstream namespaces -only namespace -rounds 1",
		Tests:   []string{"TestNamespaceWaitsForRequests", "TestNamespaceSettles", "TestNamespaceIsDeletedAgain", "TestStalledBodyHoldsNoNamespace"},
	}
	OpenAPI = &Deviation{
		Name: "openapi", Where: "server/apiserver/openapi",
		Instead: "OpenAPI documents are built when a client asks, and forgotten after five idle minutes. The hashes in the index of v3 cover the program, the feature gates and the routes instead of the documents.",
		Gain:    "CPU of a start: 0.51 s, not 0.95. Idle memory: 90.7 MB, not 149.",
		Command: "scripts/bench start -upstream openapi -only cold -rounds 9",
		Tests:   []string{"TestOpenAPIIsUpstreams", "TestHash"},
	}
	Queues = &Deviation{
		Name: "queues", Where: "server/queues",
		Instead: "Two gauges of each work queue are set when they are read, instead of twice a second.",
		Gain:    "Idle CPU: 0.29 % of a core, not 0.53.",
		Command: "scripts/bench footprint -upstream queues -only idle -settle 15s -window 15s -rounds 3",
		Tests:   []string{"TestNamesAreUpstreams", "TestMetricsAreUpstreams"},
	}
	Routes = &Deviation{
		Name:    "routes",
		Instead: "The router of kube-apiserver remembers the route of each resource, verb and content type.",
		Gain:    "CPU of a get: 162 µs, not 185; of an update: 558, not 614.",
		Command: "scripts/bench api -upstream routes -only get,update -rounds 3",
		Tests:   []string{"TestRoutesAreUpstreams", "FuzzRoutes"},
	}
	SharedInformers = &Deviation{
		Name: "sharedinformers", Where: "server/sharedinformers/share.go",
		Instead: "API server, controllers and scheduler share the informers of 45 types. Controllers keep only those data of ConfigMaps that they read.",
		Gain:    "Idle: 89.1 MB, not 93.7.",
		Command: "scripts/bench footprint -upstream sharedinformers -only idle -settle 15s -window 15s -rounds 3",
		Tests:   []string{"TestSharedInformer", "TestControllersThatReadConfigMaps"},
	}
	SingleServer = &Deviation{
		Name: "singleserver", Where: "server/apiserver/singleserver.go",
		Instead: "A server that shares its datastore with no other writes no leases for other API servers, renews its identity every ten minutes, and creates custom resources as soon as their definition is established.",
		Gain:    "An idle server writes nothing; upstream writes 5.2 kB a second, and delays the first custom resources by two seconds.",
		Command: "scripts/bench footprint -upstream singleserver -only idle -settle 15s -window 15s -rounds 3",
		Tests:   []string{"TestIdleClusterWritesNothing", "TestCustomResourcesAreCreatedAtOnce"},
	}
	StorageClient = &Deviation{
		Name:    "storageclient",
		Instead: "The API server calls the built-in datastore instead of connecting to an etcd.",
		Gain:    "CPU of a start: 0.41 s, not 0.50. Idle memory: 89.6 MB, not 102.",
		Command: "scripts/bench start -upstream storageclient -only cold -rounds 9",
		Tests:   []string{"TestStorageClientIsUpstreams", "TestFactoryReachesTheEngine"},
	}
	Streams = &Deviation{
		Name:    "streams",
		Instead: "A stop ends followed logs, exec, attach and port-forward, not only watches. It cuts off a client after waiting 3 s for it to read or write, and logs whom it waits for. Connections from this machine end after the last answer, not a second after GOAWAY.",
		Gain:    "A stop with a followed log or an exec: 0.1 to 1 s; with a stalled client: 3 s. Upstream's takes a minute.",
		Tests:   []string{"TestStopEndsStreams", "TestAwait", "TestFinish"},
	}
	Uncached = &Deviation{
		Name:    "uncached",
		Instead: "30 types with few objects have no watch cache. Storage sends bookmarks to their watches and to watches of events; watches from the future are 410.",
		Gain:    "A start: 0.98 s, not 1.14. Informers of events do not list again after a compaction.",
		Command: "scripts/bench start -upstream uncached -only cold -rounds 9",
		Tests:   []string{"TestTypeWithoutCacheIsServedAsOneWithIt", "TestQuietWatchesOutliveCompaction"},
	}
)

// Table has every deviation, by name.
var Table = []*Deviation{
	AlignedClock, AwaitStorage, Bootstrap, ClientCertificates, ExternalNames, Garbage, GenericConfig,
	ListBuffer, Loopback, Namespaces, OpenAPI, Queues, Routes, SharedInformers, SingleServer, StorageClient,
	Streams, Uncached,
}
