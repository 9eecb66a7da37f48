// Package audit keeps the values of Secrets and tokens out of audit events, and bounds how long a stop waits for the collectors of
// events and traces.
package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/tracing"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/internal/redact"
)

// filter is in front of all audit backends, whatever the policy. Behind it, each event can be encoded, and none has the
// value of a Secret or a token. Upstream drops an event that cannot be encoded, and with a webhook all events of its batch.
type filter struct {
	audit.Backend
	late func() // is called if the backend has not taken all events auditLimit after the last request
}

// auditLimit is how long a stop waits for audit backends, and tracesLimit how long it then waits for the collector of traces. Upstream
// waits a minute for those that do not answer.
const (
	auditLimit  = 6 * time.Second
	tracesLimit = 3 * time.Second
)

// Shutdown implements audit.Backend.
func (f filter) Shutdown() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Backend.Shutdown()
	}()
	select {
	case <-done:
	case <-time.After(auditLimit):
		f.late()
	}
}

// boundedTraces is a provider whose Shutdown is bounded.
type boundedTraces struct {
	tracing.TracerProvider
	late func(error)
}

// Shutdown implements tracing.TracerProvider.
func (b boundedTraces) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tracesLimit)
	defer cancel()
	if err := b.TracerProvider.Shutdown(ctx); err != nil {
		b.late(err)
	}
	return nil
}

// Bound puts the filter in front of audit backends, and bounds how long a stop waits for those who collect events and traces, which
// these files name.
func Bound(generic *genericapiserver.Config, log *logrus.Logger, webhook, collector string) {
	if generic.AuditBackend != nil {
		generic.AuditBackend = filter{generic.AuditBackend, func() {
			log.Warnf("the stop loses audit events that the webhook of --audit-webhook-config-file=%s has not taken within %v", webhook, auditLimit)
		}}
	}
	generic.TracerProvider = boundedTraces{generic.TracerProvider, func(err error) {
		log.Warnf("the stop loses traces that the collector of --tracing-config-file=%s has not taken within %v: %v", collector, tracesLimit, err)
	}}
}

// ProcessEvents passes on copies: the events are the caller's.
func (f filter) ProcessEvents(events ...*auditinternal.Event) bool {
	clean := make([]*auditinternal.Event, len(events))
	for i, e := range events {
		clean[i] = filterEvent(*e)
	}
	return f.Backend.ProcessEvents(clean...)
}

func filterEvent(e auditinternal.Event) *auditinternal.Event {
	status := e.ResponseStatus.DeepCopy()
	if isCredential(e.ObjectRef) {
		e.RequestObject, e.ResponseObject = nil, nil
		e.Annotations = maps.Clone(e.Annotations)
		maps.DeleteFunc(e.Annotations, func(key, _ string) bool {
			domain, _, _ := strings.Cut(key, "/")
			return !slices.Contains(withoutObjects, domain)
		})
		if status != nil {
			status.Message = ""
			if status.Details != nil {
				status.Details.Causes = nil
			}
		}
	} else {
		e.RequestObject, e.ResponseObject = filterObject(e.RequestObject), filterObject(e.ResponseObject)
		if status != nil { // a Secret may be sent to another resource
			status.Message = redact.WithoutValue(status.Message)
		}
	}
	e.ResponseStatus = status
	return &e
}

// isCredential reports whether requests for a resource, or their answers, are Secrets or tokens.
func isCredential(r *auditinternal.ObjectReference) bool {
	switch {
	case r == nil:
		return false
	case r.APIGroup == "":
		return r.Resource == "secrets" || r.Resource == "serviceaccounts" && r.Subresource == "token"
	}
	return r.APIGroup == "authentication.k8s.io" && r.Resource == "tokenreviews"
}

// withoutObjects are the domains of upstream's annotations that say nothing about the object. Webhooks' patches and what
// admission policies write do.
var withoutObjects = []string{
	"authorization.k8s.io", "authentication.k8s.io", "authentication.kubernetes.io", "apiserver.latency.k8s.io", "apiserver.k8s.io", "k8s.io",
	"mutation.webhook.admission.k8s.io", "failed-open.mutating.webhook.admission.k8s.io", "failed-open.validating.webhook.admission.k8s.io",
}

// filterObject makes the object of an event valid JSON. An apply may be YAML that begins like JSON, which upstream takes for JSON.
func filterObject(o *runtime.Unknown) *runtime.Unknown {
	if o == nil || o.Raw == nil {
		return o
	}
	raw := o.Raw
	if !json.Valid(raw) {
		var err error
		if raw, err = yaml.YAMLToJSON(raw); err != nil || !json.Valid(raw) {
			raw, _ = json.Marshal(string(o.Raw)) // a string: it cannot fail
		}
	}
	return &runtime.Unknown{Raw: withoutSecrets(raw), ContentType: runtime.ContentTypeJSON}
}

// withoutSecrets removes the values of Secrets and tokens that are part of another object, such as a list.
func withoutSecrets(raw []byte) []byte {
	if !slices.ContainsFunc([]string{`"Secret"`, `"SecretList"`, `"TokenRequest"`, `"TokenReview"`}, func(kind string) bool { return bytes.Contains(raw, []byte(kind)) }) {
		return raw
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var object any
	if decoder.Decode(&object) != nil || !removeValues(object) {
		return raw
	}
	if root, ok := object.(map[string]any); ok { // kubectl keeps a copy of the whole object in an annotation
		if metadata, ok := root["metadata"].(map[string]any); ok {
			delete(metadata, "annotations")
		}
	}
	if clean, err := json.Marshal(object); err == nil {
		return clean
	}
	return []byte("null")
}

// removeValues reports whether there was one. A reference to a Secret has none.
func removeValues(value any) (removed bool) {
	switch value := value.(type) {
	case []any:
		for _, v := range value {
			removed = removeValues(v) || removed
		}
	case map[string]any:
		switch value["kind"] {
		case "Secret", "SecretList", "TokenRequest", "TokenReview":
			for _, field := range []string{"data", "stringData", "items", "spec", "status"} {
				_, has := value[field]
				delete(value, field)
				removed = removed || has
			}
			if metadata, ok := value["metadata"].(map[string]any); ok {
				delete(metadata, "annotations")
			}
		}
		for _, v := range value {
			removed = removeValues(v) || removed
		}
	}
	return removed
}
