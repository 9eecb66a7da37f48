// Package locale keeps kubectl's translations out of a server's start.
//
// Some of kubectl's packages translate their help texts while they are
// initialised, which unpacks the catalogue of messages: a good tenth of what the
// initialisation of all packages takes, and 4 MB. Karve is most often not kubectl.
package locale

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/kubectl/pkg/util/i18n"
)

// Packages are initialised in the order of their import paths, as far as their own
// imports let them (https://go.dev/ref/spec#Program_initialization): this one comes
// before all of kubectl's that translate. A test of the command makes sure.
func init() {
	load := i18n.LoadTranslationsFunc
	i18n.LoadTranslationsFunc = func() error {
		if !IsKubectl(os.Args) {
			return nil
		}
		return load()
	}
}

// IsKubectl tells whether a command line is kubectl's: that of the program under the
// name kubectl, or of its command kubectl.
func IsKubectl(args []string) bool {
	if len(args) == 0 {
		return false
	}
	return strings.TrimSuffix(filepath.Base(args[0]), ".exe") == "kubectl" || len(args) > 1 && args[1] == "kubectl"
}
