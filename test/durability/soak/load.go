package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/karve-k8s/karve/test/durability"
)

const (
	namespaceName = "soak"
	group         = "durability.karve.example"
	writes        = 30 // a second, besides those of the controllers
	nodes         = 5  // simulated
)

// A kind is a kind of objects that the load writes.
type kind struct {
	resource, apiVersion, name string
	share                      int // percent of the writes
	objects                    int // number of names
	body                       func() (spec, data map[string]any)
}

// kinds have one writer each, which writes one object after the other.
var kinds = []kind{
	{"configmaps", "v1", "ConfigMap", 35, 200, func() (map[string]any, map[string]any) {
		return nil, map[string]any{"text": strings.Repeat("x", rand.IntN(2000))}
	}},
	{"secrets", "v1", "Secret", 15, 100, func() (map[string]any, map[string]any) {
		return nil, map[string]any{"text": strings.Repeat("eHh4", rand.IntN(200))}
	}},
	{"leases", "coordination.k8s.io/v1", "Lease", 25, 20, func() (map[string]any, map[string]any) {
		return map[string]any{"holderIdentity": "soak", "renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")}, nil
	}},
	{"soaks", group + "/v1", "Soak", 25, 100, func() (map[string]any, map[string]any) {
		return map[string]any{"text": strings.Repeat("y", rand.IntN(1000))}, nil
	}},
}

func (k kind) collection() string {
	root := "/api/"
	if strings.Contains(k.apiVersion, "/") {
		root = "/apis/"
	}
	return root + k.apiVersion + "/namespaces/" + namespaceName + "/" + k.resource
}

func (k kind) object(name string) string { return k.collection() + "/" + name }

// definition is a CustomResourceDefinition whose objects may have any content.
func definition(plural, name string) durability.Object {
	return durability.Object{
		APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition", Metadata: durability.Metadata{Name: plural + "." + group},
		Spec: map[string]any{
			"group": group, "scope": "Namespaced", "names": map[string]any{"plural": plural, "kind": name},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
			}}},
		},
	}
}

// jobs are what runs. The error of a job is a failure of the soak. After a request that
// fails without one, a job goes on.
func (s *soak) jobs(api *durability.API) []func(context.Context) error {
	jobs := []func(context.Context) error{
		func(ctx context.Context) error { return s.deployments(ctx, api) },
		func(ctx context.Context) error { return s.namespaces(ctx, api) },
		func(ctx context.Context) error { return s.lists(ctx, api) },
	}
	for _, k := range kinds {
		jobs = append(jobs, func(ctx context.Context) error { return s.write(ctx, api, k) })
	}
	for _, path := range watched() {
		jobs = append(jobs, func(ctx context.Context) error { s.watch(ctx, api, path); return nil })
	}
	return jobs
}

// request sends a request and counts it.
func (s *soak) request(ctx context.Context, api *durability.API, what, method, path string, in, out any) error {
	err := api.Do(ctx, method, path, in, out)
	if ctx.Err() == nil {
		if err == nil {
			s.count(what)
		} else if durability.Refused(err) == 0 {
			s.count("failed: " + what)
		}
	}
	return err
}

// write creates, updates and deletes objects of a kind, one after the other. Nobody else writes them, so each request has
// to succeed.
func (s *soak) write(ctx context.Context, api *durability.API, k kind) error {
	versions := map[string]string{} // of the objects that exist
	for n := 0; pause(ctx, time.Second*100/writes/time.Duration(k.share)); n++ {
		name := fmt.Sprintf("%s-%d", strings.ToLower(k.name), n%k.objects)
		object := durability.Object{APIVersion: k.apiVersion, Kind: k.name, Metadata: durability.Metadata{Name: name, ResourceVersion: versions[name]}}
		object.Spec, object.Data = k.body()
		var answer durability.Object
		var err error
		switch {
		case versions[name] == "":
			err = s.request(ctx, api, "create", http.MethodPost, k.collection(), object, &answer)
		case rand.IntN(8) == 0:
			err = s.request(ctx, api, "delete", http.MethodDelete, k.object(name), nil, nil)
		default:
			err = s.request(ctx, api, "update", http.MethodPut, k.object(name), object, &answer)
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", k.object(name), err)
		}
		versions[name] = answer.Metadata.ResourceVersion
	}
	return nil
}

// lists lists all kinds, in pages and from the watch cache, and gets single objects.
func (s *soak) lists(ctx context.Context, api *durability.API) error {
	for n := 0; pause(ctx, time.Second); n++ {
		k := kinds[n%len(kinds)]
		query := "?limit=500"
		if n/len(kinds)%2 == 1 {
			query = "?resourceVersion=0"
		}
		s.request(ctx, api, "list", http.MethodGet, k.collection()+query, nil, new([]byte))
		for range 5 {
			path := k.object(fmt.Sprintf("%s-%d", strings.ToLower(k.name), rand.IntN(k.objects)))
			s.request(ctx, api, "get", http.MethodGet, path, nil, new([]byte))
		}
	}
	return nil
}

// deployments creates, scales and deletes a Deployment again and again, and waits for its Pods.
func (s *soak) deployments(ctx context.Context, api *durability.API) error {
	for n := 0; pause(ctx, 5*time.Second); n++ {
		name := fmt.Sprintf("deployment-%d", n)
		path := "/apis/apps/v1/namespaces/" + namespaceName + "/deployments"
		if s.request(ctx, api, "create", http.MethodPost, path, durability.Deployment(name, 3), nil) != nil {
			continue
		}
		for _, replicas := range []int{3, 6, 1} {
			body := map[string]any{"spec": map[string]any{"replicas": replicas}}
			if s.request(ctx, api, "update", http.MethodPatch, path+"/"+name, body, nil) == nil {
				s.await(ctx, api, "Pods available", path+"/"+name, func(o durability.Object) bool {
					available, _ := o.Status["availableReplicas"].(float64)
					return int(available) == replicas
				})
			}
		}
		s.request(ctx, api, "delete", http.MethodDelete, path+"/"+name, nil, nil)
	}
	return nil
}

// namespaces creates and deletes a namespace with objects and a Deployment again and again.
func (s *soak) namespaces(ctx context.Context, api *durability.API) error {
	for n := 0; pause(ctx, 15*time.Second); n++ {
		name := fmt.Sprintf("soak-%d", n)
		namespace := durability.Object{APIVersion: "v1", Kind: "Namespace", Metadata: durability.Metadata{Name: name}}
		if s.request(ctx, api, "create", http.MethodPost, "/api/v1/namespaces", namespace, nil) != nil {
			continue
		}
		for i := range 10 {
			object := durability.Object{APIVersion: "v1", Kind: "ConfigMap", Metadata: durability.Metadata{Name: fmt.Sprintf("object-%d", i)}}
			s.request(ctx, api, "create", http.MethodPost, "/api/v1/namespaces/"+name+"/configmaps", object, nil)
		}
		s.request(ctx, api, "create", http.MethodPost, "/apis/apps/v1/namespaces/"+name+"/deployments", durability.Deployment("d", 3), nil)
		pause(ctx, 2*time.Second)
		s.request(ctx, api, "delete", http.MethodDelete, "/api/v1/namespaces/"+name, nil, nil)
		s.await(ctx, api, "namespace gone", "/api/v1/namespaces/"+name, nil)
	}
	return nil
}

// await waits until done reports true for an object, or until the object is gone if done is nil.
func (s *soak) await(ctx context.Context, api *durability.API, what, path string, done func(durability.Object) bool) {
	for began := time.Now(); pause(ctx, 100*time.Millisecond); {
		var o durability.Object
		err := api.Do(ctx, http.MethodGet, path, nil, &o)
		if done == nil && durability.Refused(err) == http.StatusNotFound || err == nil && done != nil && done(o) {
			s.count(what)
			return
		}
		if time.Since(began) > 2*time.Minute {
			s.count("not after two minutes: " + what)
			return
		}
	}
}

// pause waits. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
