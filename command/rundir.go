package command

import (
	"fmt"
	"os"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
)

// runDir creates a temporary directory for a cluster, whose CA keys are in it. It first removes the
// directories that processes have left which were killed, or ended by a second signal.
func runDir() (*directory.TempDir, error) {
	if err := options.CheckListed(os.TempDir()); err != nil {
		return nil, fmt.Errorf("the temporary directory (TMPDIR): %w", err)
	}
	temp, err := directory.NewPrivate("karve-run-")
	if err != nil {
		return nil, ownership.ExplainTemp(err)
	}
	return temp, nil
}
