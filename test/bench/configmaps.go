package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/machine"
)

const (
	valueBytes = 1024 // of a ConfigMap's text

	// mostCreate bounds the rows that are never cut short, because the rows after them need
	// every object.
	mostCreate = time.Minute
)

// An apiRow is a row of -only.
type apiRow struct {
	only, row string
	run       func(context.Context) (load.Result, error)
}

// rows measures those rows that are wanted.
func (b *apiBench) rows(ctx context.Context, rows ...apiRow) error {
	for _, r := range rows {
		if b.wants(r.only) {
			if err := b.row(ctx, r.row, r.run); err != nil {
				return err
			}
		}
	}
	return nil
}

// configMaps measures the rows that need no controllers. The rows on objects that stay come first; create and delete
// are measured on objects of their own, when the server is warm.
func (b *apiBench) configMaps(ctx context.Context) error {
	if b.wants("update") || b.wants("watch") || b.wants("get") || b.wants("list") {
		if err := b.onObjects(ctx); err != nil {
			return err
		}
	}
	if !b.wants("create") && !b.wants("delete") {
		return nil
	}
	o, err := b.newObjects(ctx, "bench-more", b.plan.extra)
	if err != nil {
		return err
	}
	if err := b.row(ctx, rowCreate, o.create); err != nil {
		return err
	}
	return b.rows(ctx, apiRow{"delete", rowDelete, o.remove})
}

// onObjects measures the rows on objects that stay.
func (b *apiBench) onObjects(ctx context.Context) error {
	peak := b.cluster.sampleMemory(ctx, 20*time.Millisecond)
	defer peak()
	kept, err := b.fill(ctx)
	if err != nil {
		return err
	}
	err = b.rows(ctx, apiRow{"update", rowUpdate, kept.update}, apiRow{"watch", rowWatch, func(ctx context.Context) (load.Result, error) {
		return load.FanOut(ctx, kept.watch, 1, b.plan.events, b.plan.most, kept.put)
	}})
	if err == nil && b.wants("update") && b.wants("watch") {
		b.sample.add(rowMemoryPeak, bytesOf, peak())
		err = b.cluster.memory(b.sample, rowMemoryNow, machine.AnonymousMemory)
	}
	if err != nil {
		return err
	}
	return b.rows(ctx, apiRow{"get", rowGet, kept.get}, apiRow{"list", rowList, kept.list})
}

// fill creates the objects that exist while the rows are measured. The TLS handshakes, and all that a server
// postpones until it is ready, belong to its row.
func (b *apiBench) fill(ctx context.Context) (*objects, error) {
	o, err := b.newObjects(ctx, "bench", b.plan.objects)
	if err != nil {
		return nil, err
	}
	return o, b.row(ctx, rowFirst, o.create)
}

// objects are the ConfigMaps of a namespace.
type objects struct {
	bench     *apiBench
	namespace string
	all       []*corev1.ConfigMap // as the server returned them last
}

func (b *apiBench) newObjects(ctx context.Context, namespace string, n int) (*objects, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := b.clients[0].CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("create namespace: %w", err)
	}
	return &objects{bench: b, namespace: namespace, all: make([]*corev1.ConfigMap, n)}, nil
}

func (o *objects) client(worker int) typedcorev1.ConfigMapInterface {
	return o.bench.clients[worker].CoreV1().ConfigMaps(o.namespace)
}

// text is the n-th value of 1 KB.
func (o *objects) text(n int) string {
	from := n * 31 % (len(o.bench.noise) - valueBytes)
	return o.bench.noise[from : from+valueBytes]
}

func (o *objects) create(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, load.Limits{Clients: apiClients, Ops: len(o.all), Most: mostCreate}, func(ctx context.Context, worker, _, i int) (err error) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%05d", i)}, Data: map[string]string{"text": o.text(i)}}
		o.all[i], err = o.client(worker).Create(ctx, cm, metav1.CreateOptions{})
		return err
	})
}

// change updates an object from the version that the client has read.
func (o *objects) change(ctx context.Context, worker, i, n int) error {
	cm := o.all[i].DeepCopy()
	cm.Data["text"] = o.text(n)
	updated, err := o.client(worker).Update(ctx, cm, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	o.all[i] = updated
	return nil
}

func (o *objects) update(ctx context.Context) (load.Result, error) {
	own := len(o.all) / apiClients // no two clients write the same object
	return load.Drive(ctx, load.Limits{Clients: apiClients, Ops: o.bench.plan.updates, Most: mostCreate}, func(ctx context.Context, worker, k, i int) error {
		return o.change(ctx, worker, worker+apiClients*(k%own), i+len(o.all))
	})
}

// put makes the n-th update for load.FanOut, and returns its revision.
func (o *objects) put(ctx context.Context, n int) (int64, error) {
	i := n % len(o.all)
	if err := o.change(ctx, 0, i, n); err != nil {
		return 0, err
	}
	return strconv.ParseInt(o.all[i].ResourceVersion, 10, 64)
}

// watch is a load.Watch of every later change of the objects.
func (o *objects) watch(ctx context.Context) (func() ([]int64, error), error) {
	now, err := o.client(1).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	w, err := o.client(1).Watch(ctx, metav1.ListOptions{ResourceVersion: now.ResourceVersion})
	if err != nil {
		return nil, err
	}
	return func() ([]int64, error) {
		event, err := nextEvent(ctx, w)
		if err != nil {
			return nil, err
		}
		cm, ok := event.Object.(*corev1.ConfigMap)
		if !ok || event.Type != watch.Modified {
			return nil, fmt.Errorf("%w: event %s of a %T", load.ErrWrong, event.Type, event.Object)
		}
		revision, err := strconv.ParseInt(cm.ResourceVersion, 10, 64)
		return []int64{revision}, err
	}, nil
}

func (o *objects) get(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, load.Limits{Clients: apiClients, Ops: o.bench.plan.gets, Most: o.bench.plan.most}, func(ctx context.Context, worker, _, i int) error {
		want := o.all[i*7%len(o.all)]
		cm, err := o.client(worker).Get(ctx, want.Name, metav1.GetOptions{})
		if err == nil && cm.ResourceVersion != want.ResourceVersion {
			err = fmt.Errorf("%w: %s is at %s, want %s", load.ErrWrong, want.Name, cm.ResourceVersion, want.ResourceVersion)
		}
		return err
	})
}

func (o *objects) list(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, load.Limits{Clients: 4, Ops: o.bench.plan.lists, Most: o.bench.plan.most}, func(ctx context.Context, worker, _, _ int) error {
		list, err := o.client(worker).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		return load.Expect(len(list.Items), len(o.all)+o.others(), nil)
	})
}

func (o *objects) remove(ctx context.Context) (load.Result, error) {
	return load.Drive(ctx, load.Limits{Clients: apiClients, Ops: len(o.all), Most: mostCreate}, func(ctx context.Context, worker, _, i int) error {
		return o.client(worker).Delete(ctx, o.all[i].Name, metav1.DeleteOptions{})
	})
}

// others is the number of ConfigMaps that controllers create in each namespace: one,
// kube-root-ca.crt.
func (o *objects) others() int {
	if o.bench.peer.controllers {
		return 1
	}
	return 0
}

// nextEvent waits for an event.
func nextEvent(ctx context.Context, w watch.Interface) (watch.Event, error) {
	select {
	case event, ok := <-w.ResultChan():
		if !ok {
			return event, fmt.Errorf("%w: the watch has ended", load.ErrWrong)
		}
		return event, nil
	case <-time.After(load.DeliveryTimeout):
		return watch.Event{}, fmt.Errorf("%w: no event for %v", load.ErrWrong, load.DeliveryTimeout)
	case <-ctx.Done():
		return watch.Event{}, context.Cause(ctx)
	}
}
