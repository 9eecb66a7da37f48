package simulate

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// inNamespace returns defaults of a server and of the namespace of newPod.
func inNamespace(t *testing.T, server map[string]string, namespace ...string) Defaults {
	t.Helper()
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "test", Annotations: map[string]string{}}}
	for i := 0; i < len(namespace); i += 2 {
		ns.Annotations[namespace[i]] = namespace[i+1]
	}
	if err := store.Add(ns); err != nil {
		t.Fatal(err)
	}
	targets, err := ParseTargets([]string{"127.0.0.1:9443", "[::1]:9443"})
	if err != nil {
		t.Fatal(err)
	}
	return Defaults{Pods: server, Namespaces: store, Targets: targets}
}

func TestDefaults(t *testing.T) {
	server := map[string]string{RunFor: "7s", ReadyAfter: "3s", StartDelay: "2s", CPUUsage: "5m"}
	for _, c := range []struct {
		name                         string
		namespace, pod               []string
		runFor, readyAfter, initRuns time.Duration
	}{
		{name: "of the server", runFor: 7 * time.Second, readyAfter: 3 * time.Second},
		{name: "of the namespace", namespace: []string{RunFor, "9s", "other.example/x", "y"}, runFor: 9 * time.Second, readyAfter: 3 * time.Second},
		{name: "of the Pod", namespace: []string{RunFor, "9s"}, pod: []string{RunFor, "forever"}, runFor: forever, readyAfter: 3 * time.Second},
		{name: "of the container", namespace: []string{RunFor, "9s"}, pod: []string{RunFor + ".main", "1s", RunFor, "4s"}, runFor: time.Second, readyAfter: 3 * time.Second},
		{name: "empty", namespace: []string{RunFor, "9s"}, pod: []string{RunFor, "", ReadyAfter, ""}, runFor: forever},
	} {
		p := newPod(corev1.RestartPolicyAlways, c.pod...)
		p.Spec.InitContainers = []corev1.Container{{Name: "first"}}
		got, err := readScript(p, inNamespace(t, server, c.namespace...))
		if main := got.containers["main"]; err != nil || main.runFor != c.runFor || main.readyAfter != c.readyAfter || got.startDelay != 2*time.Second {
			t.Errorf("%s: got %+v and %v", c.name, got, err)
		}
		if first := got.containers["first"]; first.runFor != 0 || first.readyAfter != 0 {
			t.Errorf("%s: an init container: got %+v, want no default", c.name, first)
		}
		usage := NewUsage(inNamespace(t, server, c.namespace...), nil).Of(p, "main")
		if cpu := usage.Cpu().String(); cpu != "5m" {
			t.Errorf("%s: CPU usage: got %s, want 5m", c.name, cpu)
		}
	}
}

func TestWrongDefaults(t *testing.T) {
	for _, c := range []struct {
		namespace []string
		want      string
	}{
		{[]string{RunFor, "soon"}, `annotation simulate.karve/run-for of namespace test: "soon" is not a duration`},
		{[]string{RunFor + ".main", "1s"}, "annotation simulate.karve/run-for.main of namespace test: unknown name, want one of simulate.karve/start-delay"},
		{[]string{NodeDown, "true"}, "unknown name"},
		{[]string{Listen, "80=127.0.0.1:80"}, "annotation simulate.karve/listen of namespace test: the server allows no connection to 127.0.0.1:80: start it with --simulate-listen 127.0.0.1:80"},
	} {
		if _, err := readScript(newPod(corev1.RestartPolicyAlways), inNamespace(t, nil, c.namespace...)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %q", c.namespace, err, c.want)
		}
	}
	for item, want := range map[string]string{
		"run-for":                    "--simulate-pods run-for: want NAME=VALUE",
		"runfor=1s":                  "--simulate-pods runfor=1s: unknown name, want one of start-delay, stop-after",
		"down=true":                  "unknown name",
		"run-for=soon":               `--simulate-pods run-for: "soon" is not a duration`,
		"listen=1=127.0.0.1:1":       "--simulate-pods listen: the server allows no connection to 127.0.0.1:1",
		"simulate.karve/run-for=1ms": "unknown name",
	} {
		if _, err := ParseDefaults([]string{item}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", item, err, want)
		}
	}
	if _, err := ParseDefaults([]string{"run-for=1s", "run-for=2s"}, nil); err == nil || !strings.Contains(err.Error(), "two values") {
		t.Errorf("twice: got %v", err)
	}
	targets, err := ParseTargets([]string{"127.0.0.1:9443"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseDefaults([]string{"ready-after=2s", "listen=443=127.0.0.1:9443"}, targets)
	if want := map[string]string{ReadyAfter: "2s", Listen: "443=127.0.0.1:9443"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v and %v, want %v", got, err, want)
	}
}

func TestListen(t *testing.T) {
	for value, want := range map[string]string{
		"443=127.0.0.1:9443":                "",
		"443=127.0.0.1:9443, 80=[::1]:9443": "",
		"443=[::ffff:127.0.0.1]:9443":       "", // the same address
		"443=127.0.0.1:9444":                "the server allows no connection to 127.0.0.1:9444",
		"443=127.0.0.2:9443":                "the server allows no connection to 127.0.0.2:9443",
		"443=localhost:9443":                `the address on this machine: "localhost" is not one IP address`,
		"443=[::ffff:0.0.0.0]:9443":         `the address on this machine: "::ffff:0.0.0.0" is not one IP address`,
		"443=127.0.0.1:0":                   `the address on this machine: "0" is not a port from 1 to 65535`,
		"443=127.0.0.1:https":               `the address on this machine: "https" is not a port from 1 to 65535`,
		"0=127.0.0.1:9443":                  `the Pod's port: "0" is not a port from 1 to 65535`,
		"65979=127.0.0.1:9443":              `the Pod's port: "65979" is not a port from 1 to 65535`,
		"127.0.0.1:9443":                    "is not PORT=ADDRESS:PORT",
		"443=127.0.0.1":                     "the address on this machine: it is not an address and a port",
		"443=127.0.0.1:9443,":               "is not PORT=ADDRESS:PORT",
		"1=[::1]:9443,1=127.0.0.1:9443":     `annotation simulate.karve/listen: "1=127.0.0.1:9443": there are two addresses for the Pod's port 1, want one`,
	} {
		s, err := readScript(newPod(corev1.RestartPolicyAlways, Listen, value), inNamespace(t, nil))
		switch {
		case want == "" && (err != nil || s.listen[443].Port() != 9443):
			t.Errorf("%s: got %v and %v", value, s.listen, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || len(s.listen) > 0):
			t.Errorf("%s: got %v and %v, want %q", value, s.listen, err, want)
		}
	}
	for target, want := range map[string]string{
		"127.0.0.1": "it is not an address and a port", "127.0.0.1:0": `"0" is not a port`, "0.0.0.0:80": `"0.0.0.0" is not one IP address`,
		":80": `"" is not one IP address`, "localhost:80": `"localhost" is not one IP address`, "[::]:80": `"::" is not one IP address`,
		"[::ffff:0.0.0.0]:80": `"::ffff:0.0.0.0" is not one IP address`, "[::ffff:224.0.0.1]:80": "is not one IP address", "80": "it is not an address and a port",
	} {
		if got, err := ParseTargets([]string{target}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--simulate-listen %s: got %v and %v, want %q", target, got, err, want)
		}
	}
	if got, err := ParseTargets([]string{"[::ffff:127.0.0.1]:80"}); err != nil || got[0].String() != "127.0.0.1:80" {
		t.Errorf("a mapped address: got %v and %v, want 127.0.0.1:80", got, err)
	}
}

// A Pod for whose end somebody waits ends after a second, unless run-for says something else.
func TestRunForOfAPodThatIsNeverRestarted(t *testing.T) {
	for _, c := range []struct {
		namespace, pod []string
		want           time.Duration
	}{
		{want: jobLength},
		{pod: []string{RunFor, "5s"}, want: 5 * time.Second},
		{pod: []string{RunFor, "forever"}, want: forever},
		{namespace: []string{RunFor, "forever"}, want: forever},
		{namespace: []string{RunFor, "forever"}, pod: []string{RunFor, ""}, want: jobLength},
	} {
		got, err := readScript(newPod(corev1.RestartPolicyNever, c.pod...), inNamespace(t, nil, c.namespace...))
		if main := got.containers["main"]; err != nil || main.runFor != c.want {
			t.Errorf("%v in a namespace with %v: runs for %v (%v), want %v", c.pod, c.namespace, main.runFor, err, c.want)
		}
	}
}
