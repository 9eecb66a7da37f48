package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/tracing"
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
			if !(filter{Backend: to}).ProcessEvents(&c.event) || len(to.texts) != 1 {
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
}

// deaf collects events and traces, and does not answer.
type deaf struct {
	audit.Backend
	over chan struct{}
}

func (d deaf) Shutdown() { <-d.over }

type deafToTraces struct {
	tracing.TracerProvider
	err error
}

func (d deafToTraces) Shutdown(ctx context.Context) error {
	if d.err == nil {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// A stop does not wait long for who collects events and traces, and says what is lost.
func TestStopDoesNotWaitForCollectors(t *testing.T) {
	for _, answer := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			logger := logrus.New()
			logger.SetOutput(&log)
			events, traces := deaf{over: make(chan struct{})}, deafToTraces{err: errors.New("no answer")}
			if answer {
				close(events.over)
				traces.err = nil
			}
			c := genericapiserver.Config{AuditBackend: events, TracerProvider: traces}
			Bound(&c, logger, "events.kubeconfig", "traces.yaml")
			began := time.Now()
			c.AuditBackend.Shutdown()
			if err := c.TracerProvider.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 10*time.Second || answer && took > 0 {
				t.Errorf("with an answer: %v, the stop takes %v", answer, took)
			}
			for _, who := range []string{"events.kubeconfig", "traces.yaml"} {
				if strings.Contains(log.String(), who) == answer {
					t.Errorf("with an answer: %v, the log says %q", answer, log.String())
				}
			}
			if !answer {
				close(events.over)
			}
		})
	}
}
