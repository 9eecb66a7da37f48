package apiserver

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/internal/logbridge"
)

// auditFilter is in front of all audit backends, whatever the policy. Behind it, each event can be encoded, and none has the
// value of a Secret or a token. Upstream drops an event that cannot be encoded, and with a webhook all events of its batch.
type auditFilter struct{ audit.Backend }

// filterAudit returns a backend behind the filter. Without a backend, it returns none.
func filterAudit(backend audit.Backend) audit.Backend {
	if backend == nil {
		return nil
	}
	return auditFilter{backend}
}

// ProcessEvents passes on copies: the events are the caller's.
func (f auditFilter) ProcessEvents(events ...*auditinternal.Event) bool {
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
			status.Message = logbridge.WithoutValue(status.Message)
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
