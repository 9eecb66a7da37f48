package main

import (
	"context"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// segment is what a client has between two lists.
type segment struct {
	from, to int64 // the revisions of the list and of the last event
	listed   map[string]bool
	events   []event
}

// watcher lists and watches at one server. When that is away, it goes on from where it was.
type watcher struct {
	world  *world
	server *server

	mu       sync.Mutex
	segments []*segment
}

func (v *watcher) position() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.segments) == 0 {
		return 0
	}
	return v.segments[len(v.segments)-1].to
}

func (w *world) events() (n int) {
	for _, v := range w.watchers {
		for _, s := range v.segments {
			n += len(s.events)
		}
	}
	return n
}

func (v *watcher) run(ctx context.Context) {
	var now *segment
	for ctx.Err() == nil {
		client := v.server.clients()
		if client == nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if now == nil {
			var err error
			if now, err = v.list(ctx, client); err != nil {
				time.Sleep(100 * time.Millisecond)
				continue
			}
		}
		if !v.watch(ctx, client, now) {
			now = nil
		}
	}
}

func (v *watcher) list(ctx context.Context, client kubernetes.Interface) (*segment, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	s := &segment{listed: map[string]bool{}}
	if s.from, err = strconv.ParseInt(list.ResourceVersion, 10, 64); err != nil {
		return nil, err
	}
	s.to = s.from
	for _, o := range list.Items {
		if o.Name[0] == 'w' {
			s.listed[o.Name] = true
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.segments = append(v.segments, s)
	return s, nil
}

// watch adds events to a segment until the watch ends. It reports whether a watch can go on from there.
func (v *watcher) watch(ctx context.Context, client kubernetes.Interface, s *segment) bool {
	w, err := client.CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatInt(v.position(), 10)})
	if err != nil {
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return false
		}
		time.Sleep(50 * time.Millisecond)
		return true
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		object, err := meta.Accessor(e.Object)
		if err != nil { // a Status
			return !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) && !apierrors.IsGone(apierrors.FromObject(e.Object))
		}
		at := revision(object)
		v.mu.Lock()
		if at <= s.to {
			v.world.addf("%s: an event of %s at %d comes after %d", v.server.file, object.GetName(), at, s.to)
		}
		s.to = max(s.to, at)
		if object.GetName()[0] == 'w' {
			s.events = append(s.events, event{at, string(e.Type), object.GetName()})
		}
		v.mu.Unlock()
	}
	return true
}
