// Package replacements has controllers of Karve's own, and what Karve puts between upstream's controllers
// and their clients and informers. It does without kube-controller-manager itself, so its tests are quick to
// link.
package replacements

import "context"

// Controller is what kube-controller-manager runs.
type Controller interface {
	Name() string
	Run(context.Context)
}
