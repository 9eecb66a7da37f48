package join

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A Node that was deleted and registers again has another range. The network of Pods gets it, and Pods with addresses
// of the earlier range end.
func TestNetworkFollowsTheNode(t *testing.T) {
	t.Parallel()
	j := newJoined(t, time.Now().Add(time.Hour))
	s, m, o := j.s, j.testMachine, j.o
	if !strings.Contains(m.read(kubeletUnit), followService) || !strings.Contains(m.read(followUnit), "node follow") {
		t.Error("nothing runs beside the kubelet")
	}
	const conflist = "/etc/cni/net.d/" + networkName
	m.cri.addresses = map[string]string{"old": "10.200.7.2", "new": "10.200.8.2"}
	m.cri.pods = []string{"old", "new", "host"}
	said := ""
	o.Say = func(format string, args ...any) { said += fmt.Sprintf(format, args...) }
	give := func(cidr string) {
		s.setNode("board", func(n *corev1.Node) { ready(n); n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr} })
	}
	check := func(cidr, problem string, wantLog ...string) {
		t.Helper()
		state, err := Status(t.Context(), m.Machine)
		if err != nil || problem == "" && state.Range != "" || !strings.Contains(state.Range, problem) {
			t.Errorf("got %+v, %v, want the problem %q", state, err, problem)
		}
		if got := m.read(conflist); !strings.Contains(got, `"`+cidr+`"`) {
			t.Errorf("got the network %s, want %s", got, cidr)
		}
		if !slices.Equal(m.cri.log, wantLog) {
			t.Errorf("got %v, want %v", m.cri.log, wantLog)
		}
	}
	follow := func() {
		t.Helper()
		if err := Follow(t.Context(), m.Machine, o); err != nil {
			t.Error(err)
		}
	}
	follow()
	check("10.200.7.0/24", "")
	give("10.200.8.0/24")
	check("10.200.7.0/24", "the Node has 10.200.8.0/24")
	follow()
	check("10.200.8.0/24", "", "stop old", "remove old")
	give("10.200.9.0/24")
	if err := Upgrade(t.Context(), m.Machine, Options{Say: o.Say}); err != nil || !strings.Contains(said, "10.200.9.0/24") {
		t.Errorf("got %v, %q", err, said)
	}
	check("10.200.9.0/24", "", "stop old", "remove old", "stop old", "remove old", "stop new", "remove new")

	// What somebody has changed stays.
	give("10.200.10.0/24")
	m.write(t, conflist, strings.Replace(m.read(conflist), "karve0", "own0", 1))
	m.cri.pods = nil
	follow()
	check("10.200.10.0/24", "", m.cri.log...)
	if !strings.Contains(m.read(conflist), "own0") {
		t.Error("the network was replaced")
	}
}

// A network with addresses that the user has named does not follow the Node.
func TestOwnPodRangeStays(t *testing.T) {
	t.Parallel()
	j := newJoined(t, time.Now().Add(time.Hour), func(o *Options) { o.PodCIDR = "10.201.0.0/24" })
	m, o := j.testMachine, j.o
	if err := Follow(t.Context(), m.Machine, o); err != nil {
		t.Error(err)
	}
	if state, err := Status(t.Context(), m.Machine); err != nil || state.Range != "" || !strings.Contains(m.read("/etc/cni/net.d/"+networkName), o.PodCIDR) {
		t.Errorf("got %+v, %v", state, err)
	}
}
