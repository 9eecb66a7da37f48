# shellcheck shell=bash disable=SC2034,SC2154
software="an operator of kubebuilder"
tried="an operator with an API and webhooks as kubebuilder scaffolds it: its own tests on envtest-assets, and an object that it reconciles"
modules=(sigs.k8s.io/kubebuilder/v4@v4.10.1)
packages=(kubebuilder=.)

try() {
	mkdir operator
	cd operator || return
	export GOFLAGS='-trimpath -buildvcs=false -mod=mod'
	local kubebuilder="nice -n 10 $bin/kubebuilder"
	$kubebuilder init --domain example.org --repo example.org/guestbook --skip-go-version-check
	$kubebuilder create api --group webapp --version v1 --kind Guestbook --resource --controller
	$kubebuilder create webhook --group webapp --version v1 --kind Guestbook --defaulting --programmatic-validation
	make manifests
	nice -n 10 go test -v ./internal/... >"$home/test.log" 2>&1 || fail "$(grep -m1 -A8 FAIL "$home/test.log")"
	shows '--- PASS: TestControllers' grep -h PASS "$home/test.log"
	shows '--- PASS: TestAPIs' grep -h PASS "$home/test.log"

	kubectl apply --server-side -k config/crd
	nice -n 10 go build -o "$home/manager" ./cmd
	ENABLE_WEBHOOKS=false begin manager "$home/manager" --health-probe-bind-address="127.0.0.1:$p3" --metrics-bind-address=0 --zap-log-level=5
	sed 's/^  # TODO.*/  foo: bar/' config/samples/webapp_v1_guestbook.yaml | kubectl apply -f - # the scaffolded one has no field yet
	eventually shows guestbook-sample grep 'Reconcile successful' "$home/manager.log"
}
