// Command upgrade moves Karve to another version of Kubernetes, and reports what changed upstream:
//
//	go run ./scripts/upgrade VERSION
//	go run ./scripts/upgrade patch
//	go run ./scripts/upgrade OLD NEW
//	go run ./scripts/upgrade check VERSION
//
// VERSION is one like v1.37.2; "patch" is the newest patch release of the present minor version. The
// program prints what will not compile, names the version in every go.mod and in the files that repeat it, tidies the modules,
// writes the checksums of the kubelets, prints the report, and builds and vets every module. It commits nothing. .ci/run has the tests.
// It begins in a work tree without changes. If something does not compile, correct that and run the same
// command again. With two versions, it prints the report only, and with "check" only what will not compile.
//
// It needs Go, git, the Go module proxy, and curl with https://dl.k8s.io. Report and check take seconds; a move takes a quarter of an hour or
// more, most of it compiling Kubernetes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

const kubernetes = "k8s.io/kubernetes"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "upgrade:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 2 && args[0] == "check" {
		return check(ctx, os.Stdout, args[1])
	}
	for _, version := range args {
		if version != "patch" && (!semver.IsValid(version) || semver.Canonical(version) != version || semver.Major(version) != "v1") {
			return fmt.Errorf("%q is not a version of Kubernetes, such as v1.37.2", version)
		}
	}
	switch {
	case len(args) == 2 && !slices.Contains(args, "patch"):
		return report(ctx, os.Stdout, args[0], args[1])
	case len(args) == 1:
		return upgrade(ctx, args[0])
	}
	return errors.New("usage: go run ./scripts/upgrade VERSION | patch | OLD NEW | check VERSION")
}

func upgrade(ctx context.Context, to string) error {
	from, err := committedVersion(ctx)
	if err != nil {
		return err
	}
	if to == "patch" {
		if to, err = newestPatch(ctx, from); err != nil {
			return err
		}
	}
	switch c := semver.Compare(to, from); {
	case c == 0:
		fmt.Printf("Karve has Kubernetes %s already\n", to)
		return nil
	case c < 0:
		return fmt.Errorf("%s is older than %s, which Karve has: name a newer version", to, from)
	}
	fmt.Printf("== Kubernetes %s → %s\n", from, to)
	if err := check(ctx, os.Stdout, to); err != nil {
		return err
	}
	modules, err := edit(ctx, from, to)
	if err != nil {
		return err
	}
	for _, dir := range modules {
		if err := command(ctx, dir, "go", "mod", "tidy"); err != nil {
			return err
		}
	}
	if err := command(ctx, ".", "scripts/kubelet-sums"); err != nil {
		return err
	}
	if err := report(ctx, os.Stdout, from, to); err != nil {
		return err
	}
	if err := command(ctx, ".", "scripts/build"); err != nil {
		return err
	}
	for _, dir := range modules {
		if err := command(ctx, dir, "go", "vet", "./..."); err != nil {
			return err
		}
	}
	fmt.Printf("\n== What else mentions %s. docs/upgrading.md says what is left to do.\n", from)
	err = command(ctx, ".", "git", "grep", "-nF", from, "--", ".", ":!docs/figures*", ":!*testdata*")
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 { // nothing does
		return nil
	}
	return err
}

// committedVersion returns the version of Kubernetes in the go.mod of the last commit.
func committedVersion(ctx context.Context) (string, error) {
	text, err := output(ctx, "git", "show", "HEAD:go.mod")
	if err != nil {
		return "", err
	}
	mod, err := modfile.ParseLax("go.mod", text, nil)
	if err != nil {
		return "", err
	}
	version := required(mod)[kubernetes]
	if version == "" {
		return "", fmt.Errorf("go.mod does not require %s", kubernetes)
	}
	return version, nil
}

// newestPatch returns the newest patch release of a minor version. It asks for a staging module, of which
// every proxy has the full list.
func newestPatch(ctx context.Context, present string) (string, error) {
	out, err := output(ctx, "go", "list", "-m", "-versions", "-f", `{{join .Versions "\n"}}`, "k8s.io/apiserver")
	if err != nil {
		return "", err
	}
	newest := present
	for version := range strings.FieldsSeq(string(out)) {
		release := "v1" + strings.TrimPrefix(version, "v0")
		if semver.MajorMinor(release) == semver.MajorMinor(present) && semver.Prerelease(release) == "" && semver.Compare(release, newest) > 0 {
			newest = release
		}
	}
	return newest, nil
}

// command runs a program in a directory of the repository, with the flags that scripts/build uses, so that
// each package is compiled once.
func command(ctx context.Context, dir, name string, args ...string) error {
	fmt.Printf("\n== %s: %s %s\n", dir, name, strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -trimpath"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s in %s: %w", filepath.Base(name), dir, err)
	}
	return nil
}

func output(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return out, nil
}

// staging returns the version of the staging modules, such as v0.37.2 for v1.37.2.
func staging(version string) string { return "v0" + strings.TrimPrefix(version, "v1") }

func required(mod *modfile.File) map[string]string {
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Mod.Path] = r.Mod.Version
	}
	return versions
}
