package openapi

import (
	"cmp"
	"crypto/sha512"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/handler3"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// custom are the OpenAPI documents of custom resources, and of apiextensions-apiserver's own
// types. Upstream's controllers build the documents of v3 whenever a CustomResourceDefinition
// changes, its status too, and keep them with their parts; what a request for v2 has made stays
// for ever. Here, the same functions of upstream's build a document when a client asks for it.
type custom struct {
	list    func() ([]*apiextensionsv1.CustomResourceDefinition, error)
	options builder.Options
	static  *spec.Swagger // v2 of apiextensions-apiserver's own types
	own     http.Handler  // serves v3 of the same

	mu       sync.Mutex // one document is built at a time
	from     string     // what v2 is made of
	v2       *expiring[http.Handler]
	versions map[string]*customVersion // by group version: apis/karve.test/v1
}

// customVersion is the v3 document of a group version.
type customVersion struct {
	from     string // what it is made of
	document expiring[http.Handler]
	built    bool
	url      string // in the index, with the hash; empty: it is not there
}

// ServeCustom replaces the OpenAPI documents of apiextensions-apiserver, which must have been
// prepared to run and not be running yet. list lists the definitions; nobody changes them.
func (a *Aggregated) ServeCustom(s *genericapiserver.GenericAPIServer, list func() ([]*apiextensionsv1.CustomResourceDefinition, error)) {
	if s.StaticOpenAPISpec == nil || s.OpenAPIVersionedService == nil || s.OpenAPIV3VersionedService == nil {
		return // the server has no OpenAPI
	}
	c := &custom{list: list, static: s.StaticOpenAPISpec, own: handlerOf(s.OpenAPIV3VersionedService), versions: map[string]*customVersion{},
		options: builder.Options{IncludeSelectableFields: utilfeature.DefaultFeatureGate.Enabled(apiextensionsfeatures.CustomResourceFieldSelectors)}}
	// Without these, upstream starts no controllers for the documents.
	s.OpenAPIVersionedService, s.OpenAPIV3VersionedService = nil, nil
	a.v3.custom = c
	paths := s.Handler.NonGoRestfulMux
	for _, path := range []string{v2Path, v3Path, v3Prefix} {
		paths.Unregister(path)
	}
	paths.HandleFunc(v2Path, c.serveV2)
	paths.HandleFunc(v3Path, c.serveIndex)
	paths.HandlePrefix(v3Prefix, http.HandlerFunc(c.serveV3))
}

// handlerOf returns a handler of the index and the documents of a service.
func handlerOf(service *handler3.OpenAPIService) http.Handler {
	paths := mux.NewPathRecorderMux("openapi-v3")
	_ = service.RegisterOpenAPIV3VersionedService(v3Path, paths) // never fails
	return paths
}

// established returns the definitions whose documents are served, in the order of their names.
func (c *custom) established() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	all, err := c.list()
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(slices.Clone(all), func(d *apiextensionsv1.CustomResourceDefinition) bool {
		return !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.Established)
	})
	slices.SortFunc(all, func(a, b *apiextensionsv1.CustomResourceDefinition) int { return cmp.Compare(a.Name, b.Name) })
	return all, nil
}

// mark changes with a definition's spec, which is all that documents are made of.
func mark(d *apiextensionsv1.CustomResourceDefinition) string {
	return fmt.Sprintf("%s %d,", d.UID, d.Generation)
}

func (c *custom) serveV2(w http.ResponseWriter, r *http.Request) {
	document, err := c.currentV2()
	serveBuilt(document, err, w, r)
}

func (c *custom) currentV2() (http.Handler, error) {
	all, err := c.established()
	if err != nil {
		return nil, err
	}
	var from strings.Builder
	for _, d := range all {
		from.WriteString(mark(d))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.v2 == nil || c.from != from.String() {
		c.from = from.String()
		// It must not keep the definitions, so it lists them again. If there are newer ones by
		// then, the next request makes it anew.
		c.v2 = &expiring[http.Handler]{make: func() (http.Handler, error) {
			all, err := c.established()
			if err != nil {
				return nil, err
			}
			return c.buildV2(all)
		}}
	}
	return c.v2.get()
}

// buildV2 builds the document of all definitions, as upstream's controller does
// (k8s.io/apiextensions-apiserver pkg/controller/openapi). It leaves out a definition that cannot
// be described.
func (c *custom) buildV2(all []*apiextensionsv1.CustomResourceDefinition) (http.Handler, error) {
	options := c.options
	options.V2 = true
	var specs []*spec.Swagger
	for _, d := range all {
		if described, err := describeV2(d, options); err == nil {
			specs = append(specs, described)
		}
	}
	merged, err := builder.MergeSpecs(c.static, specs...)
	if err != nil {
		return nil, err
	}
	paths := mux.NewPathRecorderMux("openapi-v2")
	handler.NewOpenAPIService(merged).RegisterOpenAPIVersionedService(v2Path, paths)
	return paths, nil
}

// describeV2 describes all served versions of a definition.
func describeV2(d *apiextensionsv1.CustomResourceDefinition, options builder.Options) (*spec.Swagger, error) {
	merged := &spec.Swagger{}
	for _, v := range d.Spec.Versions {
		if !v.Served {
			continue
		}
		one, err := builder.BuildOpenAPIV2(d, v.Name, options)
		if err != nil {
			return nil, err
		}
		one.Definitions = handler.PruneDefaults(one.Definitions)
		if merged, err = builder.MergeSpecs(merged, one); err != nil {
			return nil, err
		}
	}
	return merged, nil
}

// update forgets the documents of group versions that have changed or are gone. The caller holds
// mu.
func (c *custom) update() error {
	all, err := c.established()
	if err != nil {
		return err
	}
	now := map[string]string{}
	for _, d := range all {
		for _, v := range d.Spec.Versions {
			if v.Served {
				now[versionPath(d, v.Name)] += mark(d)
			}
		}
	}
	maps.DeleteFunc(c.versions, func(path string, v *customVersion) bool { return now[path] != v.from })
	for path, from := range now {
		if c.versions[path] != nil {
			continue
		}
		c.versions[path] = &customVersion{from: from, document: expiring[http.Handler]{
			make: func() (http.Handler, error) { return c.buildV3(path) },
		}}
	}
	return nil
}

// versionPath is the group version of a document in the index.
func versionPath(d *apiextensionsv1.CustomResourceDefinition, version string) string {
	return "apis/" + d.Spec.Group + "/" + version
}

// buildV3 builds the document of a group version, as upstream's controller does
// (k8s.io/apiextensions-apiserver pkg/controller/openapiv3). It leaves out a definition that
// cannot be described.
func (c *custom) buildV3(path string) (http.Handler, error) {
	all, err := c.established()
	if err != nil {
		return nil, err
	}
	var specs []*spec3.OpenAPI
	for _, d := range all {
		for _, v := range d.Spec.Versions {
			if !v.Served || versionPath(d, v.Name) != path {
				continue
			}
			if one, err := builder.BuildOpenAPIV3(d, v.Name, c.options); err == nil {
				specs = append(specs, one)
			}
		}
	}
	merged, err := mergeV3(specs)
	if err != nil {
		return nil, err
	}
	service := handler3.NewOpenAPIService()
	service.UpdateGroupVersion(path, merged)
	return handlerOf(service), nil
}

// errNothing is the error of a group version none of whose definitions can be described.
var errNothing = errors.New("there is nothing to describe")

// mergeV3 merges descriptions. It leaves out one that contradicts those before it.
func mergeV3(specs []*spec3.OpenAPI) (*spec3.OpenAPI, error) {
	if len(specs) == 0 {
		return nil, errNothing
	}
	merged, err := builder.MergeSpecsV3(specs...)
	for n := 1; err != nil && n < len(specs); n++ {
		if _, err := builder.MergeSpecsV3(specs[:n+1]...); err != nil {
			specs = slices.Delete(specs, n, n+1)
			return mergeV3(specs)
		}
	}
	return merged, err
}

func (c *custom) serveV3(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	if err := c.update(); err != nil {
		c.mu.Unlock()
		serveBuilt(nil, err, w, r)
		return
	}
	version, ok := c.versions[strings.TrimPrefix(r.URL.Path, v3Prefix)]
	if !ok {
		c.mu.Unlock()
		c.own.ServeHTTP(w, r)
		return
	}
	document, err := version.document.get()
	c.mu.Unlock()
	serveBuilt(document, err, w, r)
}

// overlay brings the entries of custom resources in an index up to date without building a
// document. The hash of one that is not built yet is that of its definitions: it changes when they
// do, and a request with it is redirected to the document's own.
func (c *custom) overlay(index map[string]handler3.OpenAPIV3DiscoveryGroupVersion) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for path := range c.versions {
		delete(index, path)
	}
	if err := c.update(); err != nil {
		return err
	}
	for path, version := range c.versions {
		switch {
		case !version.built:
			index[path] = handler3.OpenAPIV3DiscoveryGroupVersion{
				ServerRelativeURL: fmt.Sprintf("%s%s?hash=%X", v3Prefix, path, sha512.Sum512([]byte(version.from))),
			}
		case version.url != "":
			index[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: version.url}
		}
	}
	return nil
}

func (c *custom) serveIndex(w http.ResponseWriter, r *http.Request) {
	all, err := c.paths()
	if err != nil {
		serveBuilt(nil, err, w, r)
		return
	}
	index, err := newIndex(all)
	if err != nil {
		serveBuilt(nil, err, w, r)
		return
	}
	index.ServeHTTP(w, r)
}

// paths returns the contents of the index. It builds the documents that have changed since the
// last time, for their hashes, and keeps none of them.
func (c *custom) paths() (handler3.OpenAPIV3Discovery, error) {
	all := readIndex(c.own)
	if all.Paths == nil {
		return all, errors.New("apiextensions-apiserver has no index of OpenAPI")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.update(); err != nil {
		return all, err
	}
	for path, version := range c.versions {
		if !version.built {
			document, there := version.document.peek()
			var err error
			if !there {
				document, err = version.document.make()
			}
			if err == nil {
				version.url = readIndex(document).Paths[path].ServerRelativeURL
			}
			version.built = true
		}
		if version.url != "" {
			all.Paths[path] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: version.url}
		}
	}
	return all, nil
}
