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
	// Needs are deviations without which this one is off, too.
	Needs []*Deviation
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
		Instead: "The timers of all watch caches fire together, every 1.25 s. The caches of built-in types are filled with lists instead of a watch. A watch from a resourceVersion above the datastore's newest one is 410 instead of silent.",
		Gain:    "Idle CPU is 0.26 % of a core instead of 0.55. A start on 300,000 objects takes 9.5 s instead of 15.9, and 13.8 s of CPU instead of 24.1 (`scripts/bench large -upstream alignedclock`).",
		Command: "scripts/bench footprint -upstream alignedclock -only idle -settle 15s -window 15s -rounds 3",
		Tests:   []string{"TestCacherConfigIsUpstreams", "TestOnBeat", "TestCachesOfBuiltInTypesAreFilledWithLists", "TestWatchesFromTheFutureAreRefused"},
	}
	AwaitStorage = &Deviation{
		Name:    "awaitstorage",
		Instead: "The first request for a custom resource waits up to 250 ms for its new cache instead of being refused.",
		Gain:    "The first request for a custom resource succeeds. Upstream refuses it, and a client repeats it after a second; the finalizer of a definition may stop for five minutes.",
		Tests:   []string{"TestFirstRequestForCustomResourcesSucceeds"},
	}
	Bootstrap = &Deviation{
		Name: "bootstrap", Where: "bootstrap",
		Instead: "One transaction writes the objects that a new cluster is born with, before the API server starts.",
		Gain:    "A new cluster starts with 0.46 s of CPU instead of 0.99 and in 1.14 s instead of 2.55.",
		Command: "scripts/bench start -upstream bootstrap -only cold -rounds 9",
		Tests:   []string{"TestSeededClusterEqualsUpstreams"},
	}
	ClientCertificates = &Deviation{
		Name:    "clientcertificates",
		Instead: "The identity of a verified client certificate is valid for one second without another verification.",
		Gain:    "A get costs the server 156 µs of CPU instead of 226, and 32 clients get 4,965 a second instead of 3,433.",
		Command: "scripts/bench api -upstream clientcertificates -only get,update -rounds 3",
		Tests:   []string{"TestClientCertificateIsRemembered", "FuzzClientCertificates"},
	}
	EarlyInformers = &Deviation{
		Name:    "earlyinformers",
		Instead: "The API server's informers start before the post-start hooks that wait for them. Admission plugins for policies are ready as soon as their informers are.",
		Gain:    "A new cluster starts in 0.90 s instead of 1.19, with the same CPU time.",
		Command: "scripts/bench start -upstream earlyinformers -only cold -rounds 9",
		Tests:   []string{"TestInformersAreSyncedBeforeTheHooks", "TestInformersOutlivePreShutdownHooks", "TestPoliciesArePrompt"},
		Needs:   []*Deviation{Loopback},
	}
	ExternalNames = &Deviation{
		Name: "externalnames", Where: "server/apiserver/externalnames.go",
		Instead: "With --enable-aggregator-routing, which is Karve's default, webhooks and APIServices may name Services of type ExternalName, as without it. " +
			"docs/configuration.md says who then decides where the API server connects.",
		Gain:  "Such a webhook works. Upstream's endpoint routing refuses it (unsupported service type).",
		Tests: []string{"TestServicesResolveAsUpstream", "TestServicesOnTheHost"},
	}
	Garbage = &Deviation{
		Name: "garbage", Where: "server/controllers/replacements/garbage.go",
		Instead: "The garbage collector looks for new kinds when a CustomResourceDefinition changes, and not only every 30 seconds.",
		Gain:    "What a custom resource of a new kind owns is deleted after 0.5 to 2 s instead of up to 30. After a kind that was away and comes back it can still take 30 s. What is left of a kind that has gone is removed; upstream keeps a handler with two goroutines.",
		Tests:   []string{"TestGarbageOfNewKinds", "TestHandlersOfGoneKinds"},
	}
	GenericConfig = &Deviation{
		Name: "genericconfig", Where: "server/apiserver/genericconfig.go",
		Instead: "The certificate for the API server's own clients has an ECDSA key instead of two RSA keys and is valid for ten years instead of three, and the OpenAPI definitions are collected concurrently.",
		Gain:    "A start takes 0.48 s of CPU instead of 0.57.",
		Command: "scripts/bench start -upstream genericconfig -only cold -rounds 9",
		Tests:   []string{"TestGenericConfigIsUpstreams"},
	}
	ListBuffer = &Deviation{
		Name:    "listbuffer",
		Instead: "The answer to a GET over HTTP/2 is written in pieces of 64 KB instead of object by object.",
		Gain:    "A list of 2,000 objects costs the server 17.0 ms of CPU instead of 27.5 and the client 20.4 instead of 25.4, and 4 clients get 51 a second instead of 36.",
		Command: "scripts/bench api -upstream listbuffer -only list -rounds 5",
		Tests:   []string{"TestBufferedListsAreTheSame", "TestBufferedListsFlush", "TestListsAreWrittenInLargePieces"},
	}
	Loopback = &Deviation{
		Name: "loopback", Where: "server/loopback",
		Instead: "Controllers, scheduler and the API server's own clients call the handler chain instead of connecting to it.",
		Gain:    "A start takes 0.45 s of CPU instead of 0.52, idle memory is 88.4 MB instead of 93.0, idle CPU 0.32 % of a core instead of 0.36.",
		Command: "scripts/bench start -upstream loopback -only cold -rounds 9",
		Tests:   []string{"TestSameAsHTTP2"},
	}
	Namespaces = &Deviation{
		Name: "namespaces", Where: "server/controllers/replacements/namespaces.go",
		Instead: "A deleted namespace is emptied when the requests that were admitted to it have ended, instead of after five seconds.",
		Gain:    "A namespace with 20 Pods is gone after 0.42 s instead of 5.63.",
		Command: "scripts/bench api -upstream namespaces -only namespace -rounds 1",
		Tests:   []string{"TestNamespaceWaitsForRequests", "TestNamespaceSettles", "TestNamespaceIsDeletedAgain", "TestStalledBodyHoldsNoNamespace"},
	}
	OpenAPI = &Deviation{
		Name: "openapi", Where: "server/apiserver/openapi",
		Instead: "OpenAPI documents are built when a client asks for them, and forgotten after five idle minutes. Their hashes in the index of v3 are of the program, the feature gates and what is served, instead of the documents.",
		Gain:    "A start takes 0.51 s of CPU instead of 0.95, and idle memory is 90.7 MB instead of 149.",
		Command: "scripts/bench start -upstream openapi -only cold -rounds 9",
		Tests:   []string{"TestOpenAPIIsUpstreams", "TestHash"},
	}
	Queues = &Deviation{
		Name: "queues", Where: "server/queues",
		Instead: "Two gauges of each work queue are set when they are read, instead of twice a second.",
		Gain:    "Idle CPU is 0.29 % of a core instead of 0.53.",
		Command: "scripts/bench footprint -upstream queues -only idle -settle 15s -window 15s -rounds 3",
		Tests:   []string{"TestNamesAreUpstreams", "TestMetricsAreUpstreams"},
	}
	Routes = &Deviation{
		Name:    "routes",
		Instead: "The router of kube-apiserver remembers the route of each resource, verb and content type.",
		Gain:    "A get costs the server 162 µs of CPU instead of 185, and an update 558 instead of 614.",
		Command: "scripts/bench api -upstream routes -only get,update -rounds 3",
		Tests:   []string{"TestRoutesAreUpstreams", "FuzzRoutes"},
	}
	SharedInformers = &Deviation{
		Name: "sharedinformers", Where: "server/sharedinformers/share.go",
		Instead: "API server, controllers and scheduler share the informers of 45 types. The controllers' informer of ConfigMaps keeps only the data that they read.",
		Gain:    "Idle memory is 89.1 MB instead of 93.7, with 1,958 goroutines instead of 2,488.",
		Command: "scripts/bench footprint -upstream sharedinformers -only idle -settle 15s -window 15s -rounds 3",
		Tests:   []string{"TestSharedInformer", "TestControllersThatReadConfigMaps"},
	}
	SingleServer = &Deviation{
		Name: "singleserver", Where: "server/apiserver/singleserver.go",
		Instead: "A server with a datastore of its own writes no leases for other API servers, and renews its identity every ten minutes. It creates custom resources as soon as their definition is established.",
		Gain:    "An idle server writes nothing instead of 5.2 kB a second, in 42 durable commits a minute. Upstream delays what is created in the first two seconds of a definition by two seconds.",
		Command: "scripts/bench footprint -upstream singleserver -only idle -settle 15s -window 15s -rounds 3",
		Tests:   []string{"TestIdleClusterWritesNothing", "TestCustomResourcesAreCreatedAtOnce"},
	}
	StorageClient = &Deviation{
		Name:    "storageclient",
		Instead: "The API server calls the built-in datastore instead of connecting to an etcd.",
		Gain:    "A start takes 0.41 s of CPU instead of 0.50, and idle memory is 89.6 MB instead of 102.",
		Command: "scripts/bench start -upstream storageclient -only cold -rounds 9",
		Tests:   []string{"TestStorageClientIsUpstreams", "TestFactoryReachesTheEngine"},
	}
	Streams = &Deviation{
		Name:    "streams",
		Instead: "A stop ends followed logs, exec, attach and port-forward, and not only watches. It cuts off clients for which a write or read waits for 3 s, because they stand still or are very slow, and names in the log for whom it waits. Clients on this machine see their connections end after the last answer instead of a second after GOAWAY.",
		Gain:    "A stop with a followed log or an open exec takes 0.1 to 1 s, and one with a client that stands still takes 3 s, instead of a minute.",
		Tests:   []string{"TestStopEndsStreams", "TestAwait", "TestFinish"},
	}
	Uncached = &Deviation{
		Name:    "uncached",
		Instead: "30 types with few objects have no watch cache; their watches, and those of events, get bookmarks from storage, and are 410 as with alignedclock.",
		Gain:    "A start takes 0.98 s instead of 1.14, with 254 goroutines fewer. Informers of events do not list again after a compaction.",
		Command: "scripts/bench start -upstream uncached -only cold -rounds 9",
		Tests:   []string{"TestTypeWithoutCacheIsServedAsOneWithIt", "TestQuietWatchesOutliveCompaction"},
	}
)

// Table has every deviation, by name.
var Table = []*Deviation{
	AlignedClock, AwaitStorage, Bootstrap, ClientCertificates, EarlyInformers, ExternalNames, Garbage, GenericConfig,
	ListBuffer, Loopback, Namespaces, OpenAPI, Queues, Routes, SharedInformers, SingleServer, StorageClient,
	Streams, Uncached,
}
