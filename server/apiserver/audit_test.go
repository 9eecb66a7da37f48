package apiserver

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// kept is a backend that keeps the events as text. It refuses what cannot be encoded, as upstream's do.
type kept struct {
	audit.Backend
	texts []string
}

func (k *kept) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, e := range events {
		text, err := json.Marshal(e)
		if err != nil {
			return false
		}
		k.texts = append(k.texts, string(text))
	}
	return true
}

// No event has a value, whatever the level, and each one can be encoded. What else an auditor asks for stays.
func TestAuditFilter(t *testing.T) {
	secret, token := auditinternal.ObjectReference{Resource: "secrets", Name: "s"}, auditinternal.ObjectReference{Resource: "serviceaccounts", Subresource: "token", Name: "a"}
	review := auditinternal.ObjectReference{APIGroup: "authentication.k8s.io", Resource: "tokenreviews"}
	other := auditinternal.ObjectReference{Resource: "configmaps", Name: "c"}
	body := func(text string) *runtime.Unknown {
		return &runtime.Unknown{Raw: []byte(text), ContentType: runtime.ContentTypeJSON}
	}
	refused := &metav1.Status{Status: "Failure", Reason: "Invalid", Code: 422, Message: `data.p: Invalid value: "planted"`,
		Details: &metav1.StatusDetails{Name: "s", Causes: []metav1.StatusCause{{Field: "data[planted]", Message: "planted"}}}}
	for what, c := range map[string]struct {
		event auditinternal.Event
		want  []string
	}{
		"a refused patch of a Secret": {auditinternal.Event{ObjectRef: &secret, ResponseStatus: refused, RequestObject: body(`{"data":{"p":"planted"}}`), ResponseObject: body(`{"message":"planted"}`)},
			[]string{`"code":422`, `"reason":"Invalid"`, `"name":"s"`}},
		"annotations": {auditinternal.Event{ObjectRef: &secret, Annotations: map[string]string{"authorization.k8s.io/decision": "allow", "mutation.webhook.admission.k8s.io/round_0_index_0": "mutated",
			"patch.webhook.admission.k8s.io/round_0_index_0": "planted", "validation.policy.admission.k8s.io/validation_failure": "planted", "policy.example/key": "planted"}},
			[]string{"authorization.k8s.io/decision", "mutated"}},
		"a list of Secrets":                 {auditinternal.Event{ObjectRef: &secret, ResponseObject: body(`{"kind":"SecretList","items":[{"data":{"p":"planted"}}]}`)}, nil},
		"a token":                           {auditinternal.Event{ObjectRef: &token, ResponseObject: body(`{"status":{"token":"planted"}}`)}, nil},
		"a review of a token":               {auditinternal.Event{ObjectRef: &review, RequestObject: body(`{"spec":{"token":"planted"}}`)}, nil},
		"flow YAML":                         {auditinternal.Event{ObjectRef: &other, RequestObject: body(`{kind: ConfigMap, data: {a: ordinary}}`)}, []string{`{"data":{"a":"ordinary"},"kind":"ConfigMap"}`}},
		"another document":                  {auditinternal.Event{ObjectRef: &other, RequestObject: body("{\"a\":\"ordinary\"}\n---\n{}")}, []string{`{"a":"ordinary"}`}},
		"neither JSON nor YAML":             {auditinternal.Event{ObjectRef: &other, RequestObject: body("{ordinary: [\xff")}, []string{"ordinary"}},
		"nothing":                           {auditinternal.Event{ObjectRef: &other, RequestObject: body("")}, []string{"configmaps"}},
		"a request without an object":       {auditinternal.Event{RequestURI: "/version"}, []string{"/version"}},
		"a Secret sent to another resource": {auditinternal.Event{ObjectRef: &other, RequestObject: body(`{kind: Secret, stringData: {p: planted}}`), ResponseStatus: &metav1.Status{Message: ".stringData.p: expected string, got &{planted}"}}, []string{"expected string"}},
		"a Secret in an object": {auditinternal.Event{ObjectRef: &other, ResponseObject: body(`{"metadata":{"name":"w","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"planted"}},
			"spec":{"manifests":[{"kind":"Secret","metadata":{"name":"s","annotations":{"last":"planted"}},"data":{"p":"planted"}},{"kind":"ConfigMap","data":{"n":12345678901234567890}}]}}`)},
			[]string{`"n":12345678901234567890`, `"name":"w"`, `"name":"s"`}},
		"a reference to a Secret": {auditinternal.Event{ObjectRef: &other, ResponseObject: body(`{"metadata":{"annotations":{"a":"ordinary"}},"spec":{"kind":"Secret","name":"s"}}`)}, []string{`"kind":"Secret","name":"s"`, "ordinary"}},
	} {
		t.Run(what, func(t *testing.T) {
			before := c.event.DeepCopy()
			to := &kept{}
			if !filterAudit(to).ProcessEvents(&c.event) || len(to.texts) != 1 {
				t.Fatal("the event was dropped")
			}
			if strings.Contains(to.texts[0], "planted") {
				t.Errorf("got %s, with the value", to.texts[0])
			}
			for _, want := range c.want {
				if !strings.Contains(to.texts[0], want) {
					t.Errorf("got %s, want %s in it", to.texts[0], want)
				}
			}
			if !reflect.DeepEqual(c.event, *before) {
				t.Error("the caller's event was changed")
			}
		})
	}
	if filterAudit(nil) != nil {
		t.Error("without a backend, there is one")
	}
}
