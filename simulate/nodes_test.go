package simulate

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	nodeutil "k8s.io/component-helpers/node/util"
)

// A wrong annotation of a Node has no effect, and its user learns that from the log and from the Node.
func TestWrongAnnotationsOfANodeAreNamedOnce(t *testing.T) {
	const names = "unknown name, want one of simulate.karve/down, simulate.karve/not-ready, simulate.karve/pressure"
	for _, c := range []struct{ name, value, want string }{ // an empty want is none
		{NodeDown, "maybe", `annotation simulate.karve/down: "maybe" is not true or false`},
		{NodeNotReady, "yes", `annotation simulate.karve/not-ready: "yes" is not true or false`},
		{Prefix + "dwon", "true", "annotation simulate.karve/dwon: " + names},
		{ReadyAfter, "5s", "annotation simulate.karve/ready-after: " + names},
		{NodeDown, "", ""},
		{NodeDown, "false", ""},
		{NodeNotReady, "true", ""},
		{"example.com/dwon", "true", ""},
	} {
		s, written := newSimulation(t)
		log, lines := logtest.NewNullLogger()
		s.Log, s.interval = log, time.Hour
		n := s.nodes.get(Name(0))
		n.renewed, n.reported = time.Now(), time.Now()
		was := s.object(n, time.Now())
		was.Status.Conditions = conditionsOf(n, was, time.Now())
		is := was.DeepCopy()
		is.Annotations = map[string]string{c.name: c.value}
		is.Status.Conditions = conditionsOf(n, is, time.Now())
		add(t, s.NodeInformer, is)
		s.nodeEvents().OnUpdate(was, is)
		if own := strings.HasPrefix(c.name, Prefix); own != (s.due.Len() == 1) {
			t.Errorf("%s=%s: %d nodes are queued", c.name, c.value, s.due.Len())
		}
		s.syncNode(t.Context(), n.name) // a report fails here
		reported := slices.Clone(*written)
		n.reported = time.Now()
		s.syncNode(t.Context(), n.name)
		_, ready := nodeutil.GetNodeCondition(&is.Status, corev1.NodeReady)
		message := ready.Message
		if c.want == "" {
			if len(lines.AllEntries()) > 0 || len(reported) > 0 || strings.Contains(message, ";") {
				t.Errorf("%s=%s: logged %v, wrote %q, the condition says %q; want nothing", c.name, c.value, lines.AllEntries(), reported, message)
			}
			continue
		}
		if !strings.HasSuffix(message, "; "+c.want) || len(reported) != 1 || reported[0] != "PATCH /api/v1/nodes/"+n.name+"/status" {
			t.Errorf("%s=%s: the condition says %q and wrote %q, want it to say %s", c.name, c.value, message, reported, c.want)
		}
		if len(lines.Entries) != 1 || lines.LastEntry().Level != logrus.WarnLevel || lines.LastEntry().Message != "simulated nodes: node "+n.name+": "+c.want {
			t.Errorf("%s=%s: logged %v, want once %s", c.name, c.value, lines.AllEntries(), c.want)
		}
		delete(is.Annotations, c.name)
		s.syncNode(t.Context(), n.name)
		if len(*written) != 2 || len(lines.Entries) != 1 {
			t.Errorf("%s=%s: after its removal: wrote %q and logged %d lines, want another report and no line", c.name, c.value, *written, len(lines.Entries))
		}
	}
}
