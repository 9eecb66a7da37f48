package apiserver

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// AuditOption is the option that names one of the audit policies below.
const AuditOption = "audit-preset"

// auditHead begins each policy. Its first rule is for what has credentials in requests or answers, so that no other rule
// can log them.
const auditHead = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Metadata%s
  resources:
  - {group: "", resources: [secrets, secrets/*, serviceaccounts/token]}
  - {group: authentication.k8s.io, resources: [tokenreviews]}
`

// auditNoise are the rules for what control plane and nodes do all the time, and what tells nothing about anybody.
const auditNoise = `- {level: None, nonResourceURLs: [/healthz*, /livez*, /readyz*, /version, /openapi/*]}
- level: None
  users: ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"]
  verbs: [get, list, watch]
- level: None
  userGroups: ["system:nodes", "system:serviceaccounts:kube-system"]
  verbs: [get, list, watch]
- level: None
  users: ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler"]
  resources: [{group: coordination.k8s.io, resources: [leases]}, {group: "", resources: [events]}, {group: events.k8s.io, resources: [events]}]
- level: None
  userGroups: ["system:nodes", "system:serviceaccounts:kube-system"]
  resources: [{group: coordination.k8s.io, resources: [leases]}, {group: "", resources: [events]}, {group: events.k8s.io, resources: [events]}]
`

const auditWrites = "\n  verbs: [create, update, patch, delete, deletecollection]"

// auditPolicies are the policies by their names.
var auditPolicies = map[string]string{
	"metadata": fmt.Sprintf(auditHead, "") + auditNoise + "- {level: Metadata}\n",
	"writes":   fmt.Sprintf(auditHead, auditWrites) + auditNoise + "- level: Request" + auditWrites + "\n- {level: None}\n",
	"full":     fmt.Sprintf(auditHead, "") + auditNoise + "- {level: RequestResponse}\n",
}

// AuditPolicy returns the policy of a preset. args (name=value) are the user's options of kube-apiserver.
func AuditPolicy(preset string, args []string) (string, error) {
	policy, known := auditPolicies[preset]
	switch {
	case preset == "":
		return "", nil
	case !known:
		return "", fmt.Errorf("--%s %q: want one of %s", AuditOption, preset, strings.Join(slices.Sorted(maps.Keys(auditPolicies)), ", "))
	case LastArg(args, "audit-policy-file") != "":
		return "", fmt.Errorf("--%s %s and --audit-policy-file exclude each other: leave one out", AuditOption, preset)
	}
	return policy, nil
}

// AuditArgs are the options of kube-apiserver that a preset sets before the user's: where the log is, and how much of it stays. In a
// directory that the user names there are none, because upstream takes every file of the log's name and a time for its own.
func AuditArgs(dataDir string, users []string) []string {
	if LastArg(users, auditLogOption) != "" {
		return users
	}
	return append([]string{
		auditLogOption + "=" + filepath.Join(dataDir, "audit", "audit.log"),
		"audit-log-maxsize=50", "audit-log-maxbackup=5", "audit-log-maxage=90", "audit-log-compress=true",
	}, users...)
}
