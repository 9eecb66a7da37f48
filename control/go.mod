// The protocol of the control socket is a module of its own, without requirements, so that
// servertest/process, which tests of other projects import, does not bring Karve's own.
module github.com/karve-k8s/karve/control

go 1.26.0
