package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

	documentedMetric = regexp.MustCompile("`((?:karve|apiserver_ssh_tunnel)_\\w+)`")
	ownMetric        = regexp.MustCompile(`(?m)^# TYPE ((?:karve|apiserver_ssh_tunnel)_\w+) `)
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

// metricsOf returns the first group of each match in text, sorted.
func metricsOf(pattern *regexp.Regexp, text []byte) (names []string) {
	for _, match := range pattern.FindAllSubmatch(text, -1) {
		names = append(names, string(match[1]))
	}
	slices.Sort(names)
	return names
}

// Every metric of the alerts and of the dashboard exists, so that no alert is silent for ever; and
// docs/monitoring.md has each of Karve's metrics once.
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
	page, err := os.ReadFile(monitoring + ".md")
	fatal(t, err)
	documented := metricsOf(documentedMetric, page)
	fatal(t, errors.Join(yaml.Unmarshal(alerts, &rules), json.Unmarshal(panels, &dashboard)))
	wanted := map[string]string{}
	for _, rule := range rules.Groups[0].Rules {
		if alertSamples[rule.Alert] == nil {
			t.Errorf("TestAlertsFireAndEnd does not try %s", rule.Alert)
		}
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

	c := start(t, func(config *server.Config) {
		config.SimulateNodes, config.BackupSchedule, config.SSHUser, config.SSHPort = []string{"1"}, "@yearly", "karve", 1
	})
	create(t, c.CoreV1().Nodes(), &corev1.Node{ // no SSH server is there
		ObjectMeta: metav1.ObjectMeta{Name: "tunnel"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}},
	})
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
		if got := metricsOf(ownMetric, text); !slices.Equal(got, documented) {
			err = errors.Join(err, fmt.Errorf("docs/monitoring.md has the metrics\n%v, want\n%v", documented, got))
		}
		return err
	})
}

// Every alert, and no other, fires while there is what it warns of, and ends afterwards.
func TestAlertsFireAndEnd(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian's package prometheus)")
	}
	alerts, err := filepath.Abs(filepath.Join(monitoring, "alerts.yaml"))
	fatal(t, err)
	rules := map[string]any{"rule_files": []string{alerts}, "evaluation_interval": "30m"}
	var tests []any
	for alert, samples := range alertSamples {
		if alert != "KarveDown" {
			samples = append(samples, sample{"up", "1x7200"})
		}
		var series []any
		for _, s := range samples {
			name, labels, _ := strings.Cut(strings.TrimSuffix(s.series, "}"), "{")
			series = append(series, map[string]any{"series": fmt.Sprintf(`%s{job="apiserver",instance="board",%s}`, name, labels), "values": s.values})
		}
		fires := []any{map[string]any{"labels": fmt.Sprintf("{alertname=%q}", alert), "value": 1}}
		const firing = `count by (alertname) (ALERTS{alertstate="firing"})`
		tests = append(tests, map[string]any{"name": alert, "interval": "1m", "input_series": series, "promql_expr_test": []any{
			map[string]any{"expr": firing, "eval_time": "3d23h30m", "exp_samples": fires},
			map[string]any{"expr": firing, "eval_time": "5d"},
		}})
	}
	rules["tests"] = tests
	text, err := yaml.Marshal(rules)
	fatal(t, err)
	file := filepath.Join(t.TempDir(), "test.yaml")
	fatal(t, os.WriteFile(file, text, 0o600))
	if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

type sample struct{ series, values string }

// alertSamples are the series for each alert, with a value a minute: four days with a fault, and one without.
var alertSamples = map[string][]sample{
	"KarveDown":     {{"up", "0x5760 1x1440"}},
	"KarveDiskFull": {{"karve_datastore_no_space", "1x5760 0x1440"}},
	"KarveRestarts": {{"process_start_time_seconds", "0+900x5760 5184000x1440"}},
	"KarveErrors":   {{`apiserver_request_total{code="500"}`, "0+1x5760 5760x1440"}, {`apiserver_request_total{code="200"}`, "0+15x7200"}},
	"KarveSlowCommits": {
		{"karve_datastore_commit_duration_seconds_sum", "0+9x5760 51840x1440"}, {"karve_datastore_commit_duration_seconds_count", "0+60x7200"},
	},
	"KarveMemory": {
		{"go_memstats_sys_bytes", "110x5760 100x1440"}, {"go_memstats_heap_released_bytes", "10x7200"}, {"go_gc_gomemlimit_bytes", "100x7200"},
	},
	"KarveBackupFailed":          {{"karve_backup_failed", "1x5760 0x1440"}},
	"KarveBackupOld":             {{"karve_backup_last_success_timestamp_seconds", "60x5760 345600x1440"}},
	"KarveBackupMissing":         {{"karve_datastore_revision", "7x7200"}, {"karve_backup_last_success_timestamp_seconds", "_x5760 345600x1440"}},
	"KarveCertificateExpires":    {{`karve_certificate_expiration_timestamp_seconds{name="server"}`, "1900800x5760 31536000x1440"}},
	"KarveManifestsFailed":       {{"karve_manifests_failed", "1x5760 0x1440"}},
	"KarveTunnelDown":            {{`apiserver_ssh_tunnel_healthy{node="board"}`, "0x5760 1x1440"}},
	"KarveNodeNotReady":          {{`node_collector_unhealthy_nodes_in_zone{zone=""}`, "1x5760 0x1440"}},
	"KarvePodsWithoutNode":       {{`scheduler_pending_pods{queue="unschedulable"}`, "2x5760 0x1440"}},
	"KarveAPIServiceUnavailable": {{`aggregator_unavailable_apiservice{name="v1.example.com"}`, "1x5760 0x1440"}},
}
