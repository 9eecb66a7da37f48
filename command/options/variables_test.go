package options

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

func TestVariables(t *testing.T) {
	t.Parallel()
	options := variablesOf([]*cli.Command{{Flags: Server()}})
	for _, test := range []struct {
		variable, problem, warning string
	}{
		{"KARVE_SECURE_PORT=7443", "", ""},
		{"KARVE_AUTHORIZATION_MODE=Node", "", ""},
		{"KARVE_SECURE_PROT=7443", "there is no variable KARVE_SECURE_PROT; did you mean KARVE_SECURE_PORT?", ""},
		{"KARVE_DATADIR=/x", "did you mean KARVE_DATA_DIR?", ""},
		{"KARVE_TLSSAN=x", "did you mean KARVE_TLS_SAN?", ""},
		// The user's own are left alone.
		{"KARVE_COLOUR_OF_THE_SHED=red", "", "the variable KARVE_COLOUR_OF_THE_SHED is no option and sets nothing\n"},
		{"KARVE_AUDIT=x", "", "did you mean KARVE_AUDIT_"},
		{"KARVETTE=x", "", ""},
		{"PATH=/x", "", ""},
		// Those of install.sh and of tests.
		{"KARVE_BINARY=/x", "", ""},
		{"KARVE_INSTALL_TIMEOUT=5", "", ""},
		{"KARVE_TEST_ANYTHING=1", "", ""},
		// In a Pod beside a Service named karve, or karve-api.
		{"KARVE_SERVICE_HOST=10.96.0.7", "", ""},
		{"KARVE_SERVICE_PORT=6443", "", ""},
		{"KARVE_SERVICE_PORT_HTTPS=6443", "", ""},
		{"KARVE_PORT=tcp://10.96.0.7:6443", "", ""},
		{"KARVE_PORT_6443_TCP=tcp://10.96.0.7:6443", "", ""},
		{"KARVE_PORT_6443_TCP_ADDR=10.96.0.7", "", ""},
		{"KARVE_API_SERVICE_HOST=10.96.0.7", "", ""},
		{"KARVE_API_PORT=tcp://10.96.0.7:6443", "", ""},
		{"KARVE_SECUR_PORT=7443", "did you mean KARVE_SECURE_PORT?", ""},
	} {
		var warnings strings.Builder
		err := CheckVariables([]string{test.variable}, options, &warnings)
		if test.problem == "" && err != nil || test.problem != "" && (err == nil || !strings.Contains(err.Error(), test.problem)) {
			t.Errorf("%s: got %v, want %q", test.variable, err, test.problem)
		}
		if got := warnings.String(); (got == "") != (test.warning == "") || !strings.Contains(got, test.warning) {
			t.Errorf("%s: warned %q, want %q", test.variable, got, test.warning)
		}
	}
}

// Every KARVE_… variable that this repository speaks of is one that karve knows.
func TestVariablesOfTheRepository(t *testing.T) {
	t.Parallel()
	options := variablesOf([]*cli.Command{{Flags: append(Server(), Migration()...)}})
	// A placeholder, and one of the stand-in for karve in a test of install.sh.
	examples := []string{"KARVE_NAME", "KARVE_TOKEN"}
	mentioned := regexp.MustCompile(`\bKARVE_[A-Z0-9_]*[A-Z0-9]`)
	seen := 0
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules"):
			return filepath.SkipDir
		case !entry.Type().IsRegular() || filepath.Base(path) == "variables_test.go":
			return nil
		}
		if info, err := entry.Info(); err != nil || info.Size() > 1<<20 {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, name := range mentioned.FindAllString(string(text), -1) {
			seen++
			known := slices.Contains(options, name) || isOther(name) || slices.Contains(examples, name) || slices.Contains(otherVariables, name+"_")
			if !known && CheckVariables([]string{name + "=x"}, options, &strings.Builder{}) == nil {
				t.Errorf("%s speaks of %s, which is no option: add it to otherVariables, or call it KARVE_TEST_…", path, name)
			}
		}
		return nil
	})
	if err != nil || seen < 50 {
		t.Errorf("%d variables seen: %v", seen, err)
	}
}
