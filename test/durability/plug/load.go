package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/karve-k8s/karve/test/durability"
)

const objects = "/api/v1/namespaces/default/configmaps"

// newAPI returns a client of karve in the machine.
func newAPI(token string) *durability.API {
	// The certificate is of an authority inside the machine; the way there is this
	// machine's loopback interface.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 32}
	return &durability.API{URL: fmt.Sprintf("https://127.0.0.1:%d", port), Token: token, HTTP: &http.Client{Transport: transport}}
}

// list reads all objects of the load, and the revision they are of.
func list(ctx context.Context, a *durability.API) (map[string]durability.State, int64, error) {
	all, revision, err := a.List(ctx, objects, "labelSelector=load")
	have := map[string]durability.State{}
	for _, o := range all {
		have[o.Metadata.Name] = durability.Observe(o)
	}
	return have, revision, err
}

// load creates, updates and deletes objects with several clients, and lists them,
// until ctx ends; an error is one that no cut explains.
func load(ctx context.Context, a *durability.API, j *durability.Journal, clients int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			if err := write(ctx, a, j, c); err != nil {
				cancel(err)
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			if _, _, err := list(ctx, a); errors.Is(err, durability.ErrRefused) {
				cancel(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Second):
			}
		}
	})
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// perClient is how many objects each client writes, in turns.
const perClient = 25

// write goes on after a failed answer with another object: what became of that one is open.
func write(ctx context.Context, a *durability.API, j *durability.Journal, c int) error {
	random := rand.New(rand.NewPCG(rand.Uint64(), uint64(c)))
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("load-%d-%d", c, n%perClient)
		known, open := j.Known(name)
		if open {
			if n%perClient == perClient-1 {
				time.Sleep(100 * time.Millisecond)
			}
			continue
		}
		value := strconv.FormatUint(random.Uint64(), 36) + strings.Repeat("x", random.IntN(2000))
		w := durability.Write{Collection: objects, Object: durability.Object{
			APIVersion: "v1", Kind: "ConfigMap", Metadata: durability.Metadata{Name: name, Labels: map[string]string{"load": ""}},
		}}
		if w.Value = value; known.Present && n%7 == 0 {
			w.Value = ""
		}
		if err := w.Do(ctx, a, j, name); err != nil {
			return err
		}
	}
	return nil
}
