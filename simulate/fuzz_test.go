package simulate

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// FuzzObjects shows random objects to everything that reads what users write: Pods and their statuses, claims,
// volumes and Nodes. None may cause a panic, and no Pod may be written all the time. The objects are stranger than
// those that the API accepts: a field is missing wherever it can be.
func FuzzObjects(f *testing.F) {
	for seed := range uint64(1000) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := filler{rand.New(rand.NewPCG(seed, 0))}
		s, _ := newSimulation(t)
		s.Log, _ = logtest.NewNullLogger()
		s.Nodes, s.interval = 1, 20*time.Second
		s.Defaults.Pods = map[string]string{}
		if random.IntN(2) == 0 {
			random.fill(reflect.ValueOf(&s.Defaults.Pods).Elem(), "Annotations", 0)
		}
		o, was := &corev1.Node{}, &corev1.Node{}
		random.object(o, Name(0), "")
		random.object(was, Name(0), "")
		ns := &corev1.Namespace{}
		random.object(ns, "test", "")
		p := &corev1.Pod{}
		random.object(p, "web", "test")
		p.Spec.NodeName = Name(0)
		for i := range p.Spec.Containers { // the API demands that names differ
			p.Spec.Containers[i].Name = someNames[i]
		}
		for i := range p.Spec.InitContainers {
			p.Spec.InitContainers[i].Name = someNames[2+i]
		}
		for i := range p.Spec.EphemeralContainers {
			p.Spec.EphemeralContainers[i].Name = someNames[4+i]
		}
		claim, volume := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
		random.object(claim, "data", "test")
		random.object(volume, "data", "")
		add(t, s.NodeInformer, o)
		add(t, s.NamespaceInformer, ns)
		add(t, s.PodInformer, p)
		add(t, s.ClaimInformer, claim)
		add(t, s.VolumeInformer, volume)

		s.nodeEvents().OnUpdate(was, o)
		s.namespaceEvents().OnUpdate(&corev1.Namespace{}, ns)
		s.podEvents().OnUpdate(p, p)
		s.volumeEvents().OnAdd(claim, false)
		s.volumeEvents().OnAdd(volume, false)
		s.takeUpPods()
		s.takeUpNodes(t.Context())
		s.syncNode(t.Context(), Name(0))
		s.nodes[Name(0)].setDown(false)
		key := types.NamespacedName{Namespace: "test", Name: "web"}
		s.syncPod(t.Context(), key)
		s.listens(key)
		s.runs(key, "main")
		s.syncVolume(t.Context(), types.NamespacedName{Namespace: "test", Name: "data"})
		s.syncVolume(t.Context(), types.NamespacedName{Name: "data"})
		for _, c := range p.Status.ContainerStatuses {
			Usage(p, c.Name, s.Defaults)
		}

		times := map[string]time.Time{}
		look := func(now time.Time) *life {
			l := &life{pod: p, now: now, times: times, hosts: []corev1.HostIP{{IP: "198.18.0.1"}}, addrs: []corev1.PodIP{{IP: "100.64.0.2"}}}
			l.script, l.wrong = readScript(p, s.Defaults)
			return l
		}
		for range 5 { // another client writes the status while the Pod lives
			looks := 0
			for now := began; now.Sub(began) < time.Minute; {
				l := look(now)
				p.Status = l.advance()
				if looks++; looks > 1000 {
					t.Fatalf("the Pod is looked at %d times within %v: annotations %q, defaults %q", looks, now.Sub(began), p.Annotations, s.Defaults.Pods)
				}
				if l.again == 0 {
					break
				}
				now = now.Add(l.again)
			}
			p.Status = corev1.PodStatus{}
			random.fill(reflect.ValueOf(&p.Status).Elem(), "", 0)
			look(began).end()
		}
	})
}

// filler makes random objects.
type filler struct{ *rand.Rand }

func (f filler) object(o metav1.Object, name, namespace string) {
	f.fill(reflect.ValueOf(o).Elem(), "", 0)
	o.SetName(name)
	o.SetNamespace(namespace)
}

var (
	someNames   = []string{"main", "other", "one", "proxy", "debug", "debug2", "", "unknown"}
	someStrings = []string{"", "x", "simulated", Provisioner, Name(0), "100.64.0.2", "::1", "10.0.0.0/24", "255.255.255.255/32", "fd00::/64"}
	someEnums   = []string{"", "Always", "Never", "OnFailure", "In", "NotIn", "Pending", "Running", "Succeeded", "Failed", "True", "False", "Ready", "Initialized", "Released", "Delete", "Retain", "Block"}
	someReasons = []string{"", reasonCreating, reasonInitializing, reasonPull, reasonPullBackOff, reasonCrash, reasonCrash, reasonError, reasonAnnotation, "other"}
	someNumbers = []int64{0, 0, 1, 2, 30, -1, math.MaxInt32, math.MinInt32, math.MaxInt64, math.MinInt64}
	someKeys    = append(slices.Concat(podNames, nodeNames), RunFor+".one", BackOff+".one", helmHook, annStorageProvisioner, annProvisionedBy, corev1.BetaStorageClassAnnotation, NodeLabel, "x")
	someValues  = []string{"", "0s", "0s", "1ms", "1s", "1h", "2540400h", "forever", "true", "false", "0", "1", "255", "1Gi", "1e3", "443=127.0.0.1:9443", Provisioner, "simulated", "x"}
)

func one[T any](f filler, of []T) T { return of[f.IntN(len(of))] }

// fill sets a value of an API type. field is the name of the field, which says what strings mean.
func (f filler) fill(v reflect.Value, field string, depth int) {
	switch v.Interface().(type) {
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.NewTime(one(f, []time.Time{{}, began, began.Add(-time.Hour), began.Add(time.Hour), began.Add(30 * time.Second).Truncate(time.Second)}))))
		return
	case resource.Quantity:
		v.Set(reflect.ValueOf(*resource.NewMilliQuantity(one(f, someNumbers), resource.DecimalSI)))
		return
	case map[string]string:
		all := map[string]string{}
		for range f.IntN(4) { // most are right: a Pod with a wrong one only waits
			switch key := one(f, ofContainers); {
			case f.IntN(8) == 0:
				all[one(f, someKeys)] = one(f, someValues)
			case key == ImagePullError || key == CrashLoop:
				all[key] = "true"
			case key == ExitCode:
				all[key] = "1"
			default: // of a usage, only the millicores are right
				all[key] = one(f, []string{"0", "1ms", "1s", "30s"})
			}
		}
		v.Set(reflect.ValueOf(all))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if depth < 12 && f.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			f.fill(v.Elem(), field, depth+1)
		}
	case reflect.Slice:
		if depth < 12 {
			v.Set(reflect.MakeSlice(v.Type(), f.IntN(3), 3))
			for i := range v.Len() {
				f.fill(v.Index(i), field, depth+1)
			}
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range f.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(key, field, depth+1)
			f.fill(value, field, depth+1)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i), v.Type().Field(i).Name, depth+1)
		}
	case reflect.String:
		pool := someStrings
		switch {
		case field == "Name":
			pool = someNames
		case field == "Reason":
			pool = someReasons
		case v.Type() != reflect.TypeFor[string]():
			pool = someEnums
		}
		v.SetString(one(f, pool))
	case reflect.Bool:
		v.SetBool(f.IntN(2) == 0)
	case reflect.Int32, reflect.Int64:
		v.SetInt(one(f, someNumbers))
	case reflect.Uint8:
		v.SetUint(f.Uint64N(256))
	}
}

// A defect that an object shows must not end the process, nor the work on other objects.
func TestAPanicIsOneObjects(t *testing.T) {
	log, lines := logtest.NewNullLogger()
	s, _ := newSimulation(t)
	s.Log = log
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	bad, good := types.NamespacedName{Namespace: "test", Name: "bad"}, types.NamespacedName{Namespace: "test", Name: "good"}
	s.pods.Add(bad)
	s.pods.Add(good)
	work(ctx, s.pods, func(_ context.Context, key types.NamespacedName) (time.Duration, error) {
		if key == bad {
			var none *corev1.Pod
			return 0, errors.New(none.Name)
		}
		s.pods.ShutDown()
		return 0, nil
	}, s.complain)
	if e := lines.LastEntry(); e == nil || e.Level != logrus.WarnLevel || !strings.Contains(e.Message, "test/bad: panic: ") || !strings.Contains(e.Message, "fuzz_test.go") {
		t.Errorf("logged %+v, want a warning with the object's name and the place", e)
	}
}

func TestARestartIsNeverImmediateForLong(t *testing.T) {
	for _, value := range []string{"0s", "1ns"} {
		s, err := readScript(newPod(corev1.RestartPolicyAlways, RunFor, "0s", BackOff, value), Defaults{})
		if got := s.containers["main"].backOff; err != nil || got != leastBackOff {
			t.Errorf("back-off %s: got %v, %v; want %v", value, got, err, leastBackOff)
		}
	}
}
