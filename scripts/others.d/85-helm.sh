# shellcheck shell=bash disable=SC2034,SC2154
software="Helm 3"
tried="a chart of \`helm create\` with a Job as its hook: install --wait, a test that succeeds and one that fails, an upgrade that is rolled back, upgrade, rollback, uninstall; and \`kubectl run --rm -i --restart=Never\`"
modules=(helm.sh/helm/v3@v3.22.0)
packages=(helm=./cmd/helm)

try() {
	release "$bin/helm" --atomic
	shows 'pod "once" deleted' kubectl run once --image=busybox --rm -i --restart=Never -- echo hello
}

# release HELM ROLLBACK tries it; ROLLBACK is its flag for upgrades.
release() {
	local helm=$1 test=web/templates/tests/test-connection.yaml
	export HELM_CACHE_HOME=$home/helm/cache HELM_CONFIG_HOME=$home/helm/config HELM_DATA_HOME=$home/helm/data
	"$helm" create web
	cat >web/templates/migrate.yaml <<'END'
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ include "web.fullname" . }}-migrate
  annotations: {helm.sh/hook: "pre-install,pre-upgrade", helm.sh/hook-delete-policy: before-hook-creation}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: migrate, image: busybox}]
END
	shows 'STATUS: deployed' "$helm" install web ./web --wait --wait-for-jobs --timeout 2m
	shows '1 1' kubectl get deployment/web job/web-migrate -o jsonpath='{.items[*].status.availableReplicas} {.items[*].status.succeeded}'
	shows 'Phase:          Succeeded' "$helm" test web --timeout 2m
	shows 'simulated: container' "$helm" test web --timeout 2m --logs

	refused 'has been rolled back' "$helm" upgrade web ./web "$2" --timeout 20s --set podAnnotations.simulate\\.karve/ready-after=10m
	sed -i 's|"helm.sh/hook": test|&\n    simulate.karve/exit-code: "1"|' "$test"
	"$helm" upgrade web ./web --wait --timeout 2m --set replicaCount=3
	shows 3 kubectl get deployment web -o jsonpath='{.status.availableReplicas}'
	refused 'Phase:          Failed' "$helm" test web --timeout 2m
	"$helm" rollback web 1 --wait --timeout 2m
	shows 1 kubectl get deployment web -o jsonpath='{.status.replicas}'
	shows 'Phase:          Succeeded' "$helm" test web --timeout 2m
	"$helm" uninstall web --wait --timeout 2m
	shows 'No resources found' kubectl get deployment,service,replicaset,serviceaccount -l app.kubernetes.io/instance=web
}
