# shellcheck shell=bash disable=SC2034,SC2154
# shellcheck source=scripts/others.d/85-helm.sh
. "$root/scripts/others.d/85-helm.sh"
software="Helm 4"
tried="the same; it applies on the server, and waits by watches"
modules=(helm.sh/helm/v4@v4.3.1)
packages=(helm-4=./cmd/helm)

try() {
	release "$bin/helm-4" --rollback-on-failure
}
