package apiserver

import (
	"testing"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func TestAuditPresets(t *testing.T) {
	if got := AuditArgs("/d", []string{"audit-log-maxage=9"}); LastArg(got, auditLogOption) != "/d/audit/audit.log" || LastArg(got, "audit-log-maxage") != "9" || LastArg(got, "audit-log-maxbackup") != "5" {
		t.Errorf("the log: got %s", got)
	}
	if got := AuditArgs("/d", []string{auditLogOption + "=/others/audit.log"}); len(got) > 1 {
		t.Errorf("a log in another directory, whose old files may be another's: got %s", got)
	}
	who := func(name string, groups ...string) user.Info { return &user.DefaultInfo{Name: name, Groups: groups} }
	of := func(u user.Info, verb, group, resource, sub string) authorizer.Attributes {
		return authorizer.AttributesRecord{User: u, Verb: verb, APIGroup: group, Resource: resource, Subresource: sub, Name: "a", Namespace: "b", ResourceRequest: true}
	}
	jane, node := who("jane", "developers"), who("system:node:n", "system:nodes")
	none, metadata, request, all := auditinternal.LevelNone, auditinternal.LevelMetadata, auditinternal.LevelRequest, auditinternal.LevelRequestResponse
	for _, tc := range []struct {
		what                   string
		attributes             authorizer.Attributes
		metadata, writes, full auditinternal.Level
	}{
		{"a read", of(jane, "list", "", "pods", ""), metadata, none, all},
		{"a write", of(jane, "create", "apps", "deployments", ""), metadata, request, all},
		{"a command in a Pod", of(jane, "create", "", "pods", "exec"), metadata, request, all},
		{"a read of a Secret", of(jane, "get", "", "secrets", ""), metadata, none, metadata},
		{"a write of a Secret", of(jane, "update", "", "secrets", ""), metadata, metadata, metadata},
		{"Secrets that a controller reads", of(who("system:serviceaccount:kube-system:x", "system:serviceaccounts:kube-system"), "list", "", "secrets", ""), metadata, none, metadata},
		{"a token", of(jane, "create", "", "serviceaccounts", "token"), metadata, metadata, metadata},
		{"a review of a token", of(jane, "create", "authentication.k8s.io", "tokenreviews", ""), metadata, metadata, metadata},
		{"a node's lease", of(node, "update", "coordination.k8s.io", "leases", ""), none, none, none},
		{"somebody's lease", of(jane, "update", "coordination.k8s.io", "leases", ""), metadata, request, all},
		{"a node's Pod", of(node, "patch", "", "pods", "status"), metadata, request, all},
		{"a watch of the scheduler", of(who("system:kube-scheduler"), "watch", "", "pods", ""), none, none, none},
		{"a health check", authorizer.AttributesRecord{User: who("system:anonymous"), Verb: "get", Path: "/readyz"}, none, none, none},
		{"metrics", authorizer.AttributesRecord{User: jane, Verb: "get", Path: "/metrics"}, metadata, none, all},
	} {
		for preset, want := range map[string]auditinternal.Level{"metadata": tc.metadata, "writes": tc.writes, "full": tc.full} {
			text, err := AuditPolicy(preset, nil)
			if err != nil {
				t.Fatal(err)
			}
			p, err := policy.LoadPolicyFromBytes([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if got := policy.NewPolicyRuleEvaluator(p).EvaluatePolicyRule(tc.attributes).Level; got != want {
				t.Errorf("%s, %s: got %s, want %s", preset, tc.what, got, want)
			}
		}
	}
}
