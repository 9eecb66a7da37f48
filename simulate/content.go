package simulate

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"sigs.k8s.io/yaml"
)

// contentRef names a ConfigMap of the Pod's namespace that has what kubectl logs or exec shows. The zero value names none.
type contentRef struct{ name, key string }

// parseContentRef reads configmap/NAME[/KEY].
func parseContentRef(value string) (contentRef, error) {
	parts := strings.Split(value, "/")
	if len(parts) < 2 || len(parts) > 3 || parts[0] != "configmap" || slices.Contains(parts, "") {
		return contentRef{}, fmt.Errorf("want configmap/NAME or configmap/NAME/KEY")
	}
	ref := contentRef{name: parts[1]}
	if len(parts) == 3 {
		ref.key = parts[2]
	}
	return ref, nil
}

// content returns a ConfigMap's value. Without a key, the ConfigMap must have one value only.
func (s *simulation) content(ctx context.Context, namespace string, ref contentRef) (string, error) {
	object := &corev1.ConfigMap{}
	if err := s.core.Get().Namespace(namespace).Resource("configmaps").Name(ref.name).Do(ctx).Into(object); err != nil {
		return "", err
	}
	keys := slices.Sorted(maps.Keys(object.Data))
	switch {
	case ref.key == "" && len(keys) == 1:
		return object.Data[keys[0]], nil
	case !slices.Contains(keys, ref.key):
		return "", fmt.Errorf("configmap %s has the keys %s: name one of them with configmap/%s/KEY", ref.name, strings.Join(keys, ", "), ref.name)
	}
	return object.Data[ref.key], nil
}

// podNow returns a Pod from the API server, because the informer may not have seen yet what the client has.
func (s *simulation) podNow(ctx context.Context, key types.NamespacedName) (*corev1.Pod, error) {
	p := &corev1.Pod{}
	return p, s.core.Get().Namespace(key.Namespace).Resource("pods").Name(key.Name).Do(ctx).Into(p)
}

// scriptOf returns a Pod and what one of its containers does.
func (s *simulation) scriptOf(ctx context.Context, key types.NamespacedName, container string) (*corev1.Pod, script, error) {
	p, err := s.podNow(ctx, key)
	if err != nil {
		return nil, script{}, err
	}
	all, err := readScript(p, s.Defaults)
	return p, all.containers[container], err
}

// logsRefused returns why a container has no logs, in the kubelet's words (pkg/kubelet/kubelet_pods.go, validateContainerLogStatus).
func logsRefused(p *corev1.Pod, container string, previous bool) error {
	c, found := podutil.GetContainerStatus(statusesOf(&p.Status), container)
	last := c.LastTerminationState.Terminated
	ran := last != nil && last.ContainerID != ""
	switch waiting := c.State.Waiting; {
	case !found:
		return fmt.Errorf("container %q in pod %q is not available", container, p.Name)
	case previous && !ran:
		return fmt.Errorf("previous terminated container %q in pod %q not found", container, p.Name)
	case previous, c.State.Running != nil, ran, c.State.Terminated != nil && c.State.Terminated.ContainerID != "":
		return nil
	case c.State.Terminated != nil, last != nil:
		return fmt.Errorf("container %q in pod %q is terminated", container, p.Name)
	case waiting == nil:
		return fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", container, p.Name)
	case waiting.Reason == reasonPull:
		return fmt.Errorf("container %q in pod %q is waiting to start: image can't be pulled", container, p.Name)
	case waiting.Reason == reasonPullBackOff:
		return fmt.Errorf("container %q in pod %q is waiting to start: trying and failing to pull image", container, p.Name)
	default:
		return fmt.Errorf("container %q in pod %q is waiting to start: %v", container, p.Name, waiting.Reason)
	}
}

// logs answers a request for a container's logs: with a ConfigMap's text, or with one line that says that nothing runs. With follow
// it ends when the container does.
func (s *simulation) logs(w http.ResponseWriter, r *http.Request, key types.NamespacedName, container string) {
	p, of, err := s.scriptOf(r.Context(), key, container)
	if p == nil {
		respond(w, http.StatusNotFound, err.Error())
		return
	}
	query := r.URL.Query()
	if err := logsRefused(p, container, query.Get("previous") == "true"); err != nil {
		respond(w, http.StatusBadRequest, err.Error())
		return
	}
	text := fmt.Sprintf("simulated: container %s of Pod %s runs no program, which could log something\n", container, key)
	if of.logs != (contentRef{}) {
		if text, err = s.content(r.Context(), key.Namespace, of.logs); err != nil {
			respond(w, http.StatusBadRequest, fmt.Sprintf("annotation %s: %v", Logs, err))
			return
		}
	}
	w.Header().Set("Content-Type", "text/plain")
	io.WriteString(w, selectLogs(text, query, startOf(p, container)))
	if query.Get("follow") != "true" {
		return
	}
	http.NewResponseController(w).Flush()
	for s.runs(r.Context(), key, container) {
		select {
		case <-time.After(attachPoll):
		case <-r.Context().Done():
			return
		}
	}
}

func respond(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(status)
	io.WriteString(w, text)
}

// selectLogs applies the options of a request for logs. All lines have the time at which the container started.
func selectLogs(text string, query url.Values, started time.Time) string {
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	if n, err := strconv.Atoi(query.Get("tailLines")); err == nil && n >= 0 && n < len(lines) {
		lines = lines[len(lines)-n:]
	}
	if query.Get("timestamps") == "true" {
		for i := range lines {
			lines[i] = started.UTC().Format(time.RFC3339Nano) + " " + lines[i]
		}
	}
	if since, err := time.Parse(time.RFC3339, query.Get("sinceTime")); err == nil && started.Before(since) {
		lines = nil
	}
	if n, err := strconv.Atoi(query.Get("sinceSeconds")); err == nil && time.Since(started) > time.Duration(n)*time.Second {
		lines = nil
	}
	text = strings.Join(lines, "")
	if n, err := strconv.Atoi(query.Get("limitBytes")); err == nil && n >= 0 && n < len(text) {
		text = text[:n]
	}
	return text
}

func startOf(p *corev1.Pod, container string) time.Time {
	if c, _ := podutil.GetContainerStatus(statusesOf(&p.Status), container); c.State.Running != nil {
		return c.State.Running.StartedAt.Time
	} else if c.State.Terminated != nil {
		return c.State.Terminated.StartedAt.Time
	}
	return p.CreationTimestamp.Time
}

// answer is what a command prints, and how it ends.
type answer struct {
	Command  string `json:"command"` // a regular expression for the whole command, its words separated by spaces
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	ExitCode int    `json:"exitCode"`
}

// answerOf returns the first answer of a ConfigMap that fits a command; nil: none does.
func (s *simulation) answerOf(ctx context.Context, key types.NamespacedName, container string, command []string) (*answer, error) {
	_, of, err := s.scriptOf(ctx, key, container)
	if err != nil || of.exec == (contentRef{}) {
		return nil, err
	}
	text, err := s.content(ctx, key.Namespace, of.exec)
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", Exec, err)
	}
	var all []answer
	if err := yaml.UnmarshalStrict([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("configmap %s: want a list with command, stdout, stderr and exitCode: %w", of.exec.name, err)
	}
	for i := range all {
		if code := all[i].ExitCode; code < 0 || code > 255 {
			return nil, fmt.Errorf("configmap %s: command %q: exitCode %d is not from 0 to 255", of.exec.name, all[i].Command, code)
		}
		pattern, err := regexp.Compile("^(?s:" + all[i].Command + ")$")
		if err != nil {
			return nil, fmt.Errorf("configmap %s: command %q: %w", of.exec.name, all[i].Command, err)
		}
		if pattern.MatchString(strings.Join(command, " ")) {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("configmap %s has no line for %q", of.exec.name, strings.Join(command, " "))
}
