package main

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

const (
	namespace  = "witness"
	deployment = "crane"
	writers    = 6
	patience   = 5 * time.Second // for an answer
	everywhere = 3 * time.Minute // for any server's
)

// server is one of the cluster's, which may be away.
type server struct {
	file string

	mu     sync.Mutex
	client kubernetes.Interface
}

// clients returns the client of the server, or nil while its file is not there.
func (s *server) clients() kubernetes.Interface {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		config, err := clientcmd.BuildConfigFromFlags("", s.file)
		if err != nil {
			return nil
		}
		config.QPS = -1
		if s.client, err = kubernetes.NewForConfig(config); err != nil {
			s.client = nil
			return nil
		}
	}
	return s.client
}

// written is an acknowledged write. The revision of a deletion is unknown.
type written struct {
	name     string
	revision int64
}

// world is what the servers have been told.
type world struct {
	faults
	servers  []*server
	watchers []*watcher

	data    sync.Mutex // guards what follows
	writes  []written
	objects map[string]types.UID // those that are there
	doubts  int
	reads   int
	slowest time.Duration
}

// away reports whether err may be of a server that is away, and says nothing about the write.
func away(err error) bool {
	if err == nil {
		return false
	}
	s, ok := err.(apierrors.APIStatus)
	return !ok || s.Status().Code >= http.StatusInternalServerError || s.Status().Code == http.StatusTooManyRequests
}

// anywhere calls do with one server after the other, from the first one on, until one answers. It reports whether an
// attempt before that had no answer.
func (w *world) anywhere(ctx context.Context, first int, do func(context.Context, kubernetes.Interface) error) (doubt bool, err error) {
	for i, deadline := first, time.Now().Add(everywhere); ; i++ {
		if client := w.servers[i%len(w.servers)].clients(); client != nil {
			limited, cancel := context.WithTimeout(ctx, patience)
			err = do(limited, client)
			cancel()
			if !away(err) {
				return doubt, err
			}
			doubt = true
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return doubt, fmt.Errorf("no server answers: %w", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (w *world) begin(ctx context.Context) error {
	w.objects = map[string]types.UID{}
	_, err := w.anywhere(ctx, 0, func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	labels := map[string]string{"app": deployment}
	_, err = w.anywhere(ctx, 0, func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.AppsV1().Deployments(namespace).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: deployment}, Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "none", Image: "example.com/none"}}}},
		}}, metav1.CreateOptions{})
		return err
	})
	return err
}

// write creates, changes and deletes objects until ctx ends. An object that has been begun is completed.
func (w *world) write(ctx context.Context, i int) {
	for n := 0; ctx.Err() == nil; n++ {
		w.object(fmt.Sprintf("w%d-%d", i, n), i+n, n%3 == 0)
	}
}

func (w *world) object(name string, turn int, remove bool) {
	ctx := context.Background()
	var now *corev1.ConfigMap
	// do makes a write whose effect is that the object has this value. After an attempt without an answer, an answer may
	// be that of the attempt before.
	do := func(value string, write func(context.Context, kubernetes.Interface) (*corev1.ConfigMap, error)) bool {
		doubt, err := w.anywhere(ctx, turn, func(ctx context.Context, c kubernetes.Interface) (err error) {
			got, err := write(ctx, c)
			if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) {
				if got, err = c.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{}); err == nil && got.Data["value"] != value {
					return fmt.Errorf("a conflict, and no write of this value: %w", apierrors.NewBadRequest(got.Data["value"]))
				}
			}
			if err == nil {
				now = got
			}
			return err
		})
		if err != nil {
			w.addf("%s: %v", name, err)
			return false
		}
		w.acknowledged(name, revision(now), now.UID, doubt)
		turn++
		w.read(ctx, name, revision(now), turn)
		return true
	}
	ok := do("1", func(ctx context.Context, c kubernetes.Interface) (*corev1.ConfigMap, error) {
		return c.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": "1"}}, metav1.CreateOptions{})
	}) && do("2", func(ctx context.Context, c kubernetes.Interface) (*corev1.ConfigMap, error) {
		next := now.DeepCopy()
		next.Data["value"] = "2"
		return c.CoreV1().ConfigMaps(namespace).Update(ctx, next, metav1.UpdateOptions{})
	})
	if !ok || !remove {
		return
	}
	doubt, err := w.anywhere(ctx, turn, func(ctx context.Context, c kubernetes.Interface) error {
		return c.CoreV1().ConfigMaps(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	})
	if err != nil && !(doubt && apierrors.IsNotFound(err)) {
		w.addf("delete %s: %v", name, err)
		return
	}
	w.acknowledged(name, 0, "", doubt)
}

func revision(o metav1.Object) int64 {
	n, _ := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	return n
}

// acknowledged notes a write. Without a uid, the object is gone.
func (w *world) acknowledged(name string, revision int64, uid types.UID, doubt bool) {
	w.data.Lock()
	defer w.data.Unlock()
	w.writes = append(w.writes, written{name, revision})
	if doubt {
		w.doubts++
	}
	if before := w.objects[name]; uid != "" && before != "" && before != uid {
		w.addf("%s has the uid %s, and had %s", name, uid, before)
	}
	if w.objects[name] = uid; uid == "" {
		delete(w.objects, name)
	}
}

// read reads what was acknowledged at another server: by a get, and now and then by a list.
func (w *world) read(ctx context.Context, name string, least int64, turn int) {
	client := w.servers[turn%len(w.servers)].clients()
	if client == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	got, err := client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err == nil && turn%5 == 0 {
		list, failed := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		if err = failed; err == nil && len(list.Items) != 1 {
			w.addf("a list at %s lacks %s, which was acknowledged at revision %d", w.servers[turn%len(w.servers)].file, name, least)
			return
		} else if err == nil {
			got = &list.Items[0]
		}
	}
	if away(err) {
		return
	}
	w.data.Lock()
	w.reads++
	w.data.Unlock()
	if err != nil || revision(got) < least {
		w.addf("%s has %s at %d (%v), which was acknowledged at revision %d", w.servers[turn%len(w.servers)].file, name, revision(got), err, least)
	}
}

// scale keeps controllers and scheduler at work, and notes how long they take.
func (w *world) scale(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		want := int32(1 + n%3)
		began := time.Now()
		_, err := w.anywhere(ctx, n, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.AppsV1().Deployments(namespace).Patch(ctx, deployment, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, want), metav1.PatchOptions{})
			return err
		})
		for err == nil && ctx.Err() == nil {
			var now *appsv1.Deployment
			if _, err = w.anywhere(ctx, n, func(ctx context.Context, c kubernetes.Interface) (err error) {
				now, err = c.AppsV1().Deployments(namespace).Get(ctx, deployment, metav1.GetOptions{})
				return err
			}); err == nil && now.Status.Replicas == want && now.Status.ObservedGeneration == now.Generation {
				w.data.Lock()
				w.slowest = max(w.slowest, time.Since(began))
				w.data.Unlock()
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil && ctx.Err() == nil {
			w.addf("scale: %v", err)
			return
		}
	}
}

// finish makes the last write, which every watch has to reach, and returns its revision.
func (w *world) finish(ctx context.Context) (int64, error) {
	var last *corev1.ConfigMap
	_, err := w.anywhere(ctx, 0, func(ctx context.Context, c kubernetes.Interface) (err error) {
		last, err = c.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "w-last"}}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return 0, err
	}
	w.acknowledged("w-last", revision(last), last.UID, false)
	return revision(last), nil
}

// checkObjects compares what each server has with what was acknowledged.
func (w *world) checkObjects() {
	for _, s := range w.servers {
		ctx, cancel := context.WithTimeout(context.Background(), everywhere)
		defer cancel()
		list, err := s.clients().CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			w.addf("%s: %v", s.file, err)
			continue
		}
		there := map[string]types.UID{}
		for _, o := range list.Items {
			if o.Name[0] != 'w' {
				continue // kube-root-ca.crt
			}
			there[o.Name] = o.UID
			if o.Name != "w-last" && o.Data["value"] != "2" {
				w.addf("%s: %s has the value %q, and 2 was acknowledged", s.file, o.Name, o.Data["value"])
			}
		}
		for name, uid := range w.objects {
			if there[name] != uid {
				w.addf("%s: %s has the uid %q, and had %q", s.file, name, there[name], uid)
			}
		}
		for name := range there {
			if w.objects[name] == "" {
				w.addf("%s: %s is there, and was deleted", s.file, name)
			}
		}
	}
}
