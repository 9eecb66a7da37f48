package server_test

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
)

const monitoring = "../docs/monitoring"

var (
	inQuery = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|on|without|ignoring)\s*\([^)]*\)`)
	word    = regexp.MustCompile(`[a-zA-Z_:][\w:]*\s*\(?`)
)

// metricsIn are the names of metrics in a query of Prometheus: its words but for labels, functions and operators.
func metricsIn(query string) (names []string) {
	for _, name := range word.FindAllString(inQuery.ReplaceAllString(query, " "), -1) {
		name = strings.TrimSpace(name)
		if !strings.HasSuffix(name, "(") && name != "and" && name != "or" && name != "unless" && name != "up" {
			names = append(names, name)
		}
	}
	return names
}

// Every metric of the alerts and of the dashboard exists, so that none of them is silent for ever.
func TestMonitoringNamesMetrics(t *testing.T) {
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	alerts, err := os.ReadFile(filepath.Join(monitoring, "alerts.yaml"))
	fatal(t, err)
	panels, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	fatal(t, err)
	fatal(t, errors.Join(yaml.Unmarshal(alerts, &rules), json.Unmarshal(panels, &dashboard)))
	wanted := map[string]string{}
	for _, rule := range rules.Groups[0].Rules {
		for _, name := range metricsIn(rule.Expr) {
			wanted[name] = rule.Alert
		}
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			for _, name := range metricsIn(target.Expr) {
				wanted[name] = panel.Title
			}
		}
	}
	if len(wanted) < 20 {
		t.Fatalf("got %d metrics, want more: %v", len(wanted), wanted)
	}

	c := start(t, func(config *server.Config) { config.SimulateNodes, config.BackupSchedule = 1, "@yearly" })
	create(t, c.CoreV1().Pods("default"), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	})
	eventually.Nil(t, "the metrics", func() error {
		text, err := c.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
		for name, of := range wanted {
			if !regexp.MustCompile(`(?m)^` + name + `[{ ]`).Match(text) {
				err = errors.Join(err, errors.New(of+": there is no "+name))
			}
		}
		return err
	})
}

func TestAlertsAreRules(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian's package prometheus)")
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", filepath.Join(monitoring, "alerts.yaml")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
