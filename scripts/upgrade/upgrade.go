package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"
)

// upgrade is one move to another version of Kubernetes, which several runs of the program
// may make together.
type upgrade struct {
	ctx   context.Context
	out   io.Writer
	state *state
	steps []step
}

// step is a part of an upgrade. A later run does not repeat one that has succeeded.
type step struct {
	name string
	run  func(*upgrade) error
	// check is a step that no later one needs: when it fails, the others are made all the same.
	check bool
}

var kubernetesConstant = regexp.MustCompile(`(?m)^const Kubernetes = "(.*)"$`)

const versionFile = "internal/version/version.go"

// newUpgrade continues the upgrade to a version that an earlier run has begun, or begins one,
// which needs a work tree without changes.
func newUpgrade(ctx context.Context, out io.Writer, to string) (*upgrade, error) {
	if _, err := stagingVersion(to); err != nil {
		return nil, err
	}
	s, err := loadState(to)
	if err != nil {
		return nil, err
	}
	if s == nil {
		from, err := currentVersion()
		if err != nil {
			return nil, err
		}
		if from == to {
			return nil, fmt.Errorf("%s has Kubernetes %s already", versionFile, to)
		}
		if compareVersions(to, from) < 0 {
			return nil, fmt.Errorf("%s is older than Kubernetes %s in %s: name a newer version", to, from, versionFile)
		}
		changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output()
		if err != nil {
			return nil, fmt.Errorf("git status: %w", err)
		}
		if len(changes) > 0 {
			return nil, fmt.Errorf("the work tree has changes, and an upgrade begins without: commit them or remove them\n%s", strings.TrimRight(string(changes), "\n"))
		}
		s = &state{From: from, To: to, Seconds: map[string]float64{}}
	}
	u := &upgrade{ctx: ctx, out: out, state: s}
	u.steps, err = u.plan()
	return u, err
}

// currentVersion is that of Kubernetes in internal/version.
func currentVersion() (string, error) {
	text, err := os.ReadFile(versionFile)
	if err != nil {
		return "", err
	}
	m := kubernetesConstant.FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%s has no line like const Kubernetes = %q", versionFile, "v1.37.1")
	}
	return string(m[1]), nil
}

// plan returns the steps in their order. Each module is tidied after those of the repository
// that it requires.
func (u *upgrade) plan() ([]step, error) {
	modules, err := ownModules(u.ctx)
	if err != nil {
		return nil, err
	}
	steps := []step{
		{name: "download", run: (*upgrade).download},
		{name: "edit go.mod", run: (*upgrade).edit},
	}
	for _, dir := range modules {
		steps = append(steps, step{name: "tidy " + dir, run: func(u *upgrade) error { return u.command(dir, "go", "mod", "tidy") }})
	}
	steps = append(steps,
		step{name: "report", run: (*upgrade).report},
		step{name: "build", run: func(u *upgrade) error { return u.command(".", "scripts/build", filepath.Join(stateDir, "karve")) }},
	)
	for _, dir := range modules {
		steps = append(steps, step{name: "vet " + dir, run: func(u *upgrade) error { return u.command(dir, "go", "vet", "./...") }, check: true})
	}
	tests, err := comparisonTests(u.ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range tests {
		steps = append(steps, step{name: "test " + t.dir, run: func(u *upgrade) error {
			return u.command(t.module, "go", "test", "-count=1", "-timeout=30m", "-run", "^("+strings.Join(t.names, "|")+")$", t.pattern())
		}, check: true})
	}
	// A correction of the steps before may leave a go.mod behind that of a module which it requires.
	for _, dir := range modules {
		steps = append(steps, step{name: "tidied " + dir, run: func(u *upgrade) error { return u.command(dir, "go", "mod", "tidy", "-diff") }, check: true})
	}
	return append(steps,
		step{name: "older versions", run: (*upgrade).older, check: true},
		step{name: "mentions", run: (*upgrade).mentions, check: true}), nil
}

// show prints the steps, and which of them an earlier run has made.
func (u *upgrade) show() error {
	fmt.Fprintf(u.out, "Kubernetes %s → %s:\n", u.state.From, u.state.To)
	for _, s := range u.steps {
		done := ""
		if _, ok := u.state.Seconds[s.name]; ok {
			done = "  (done by an earlier run)"
		}
		fmt.Fprintf(u.out, "  %s%s\n", s.name, done)
	}
	return nil
}

// run makes the steps that are left, and then prints how long each took. It stops at a failure,
// unless that is of a check.
func (u *upgrade) run() error {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return err
	}
	began := time.Now()
	earlier := u.state.clone()
	var failed []error
	for _, s := range u.steps {
		if _, ok := u.state.Seconds[s.name]; ok {
			continue
		}
		fmt.Fprintf(u.out, "\n== %s (at %.0f s)\n", s.name, time.Since(began).Seconds())
		start := time.Now()
		stop := u.progress(s.name, start)
		err := s.run(u)
		stop()
		if err == nil {
			u.state.Seconds[s.name] = time.Since(start).Seconds()
			err = u.state.save()
		}
		if err != nil {
			err = fmt.Errorf("%s failed after %.0f s: %w", s.name, time.Since(start).Seconds(), err)
			fmt.Fprintln(u.out, err)
			failed = append(failed, err)
			if !s.check || u.ctx.Err() != nil {
				break
			}
		}
	}
	u.table(earlier)
	if len(failed) > 0 {
		return fmt.Errorf("%w\nafter a correction, the same command repeats only what failed; rm -r %s forgets what succeeded", errors.Join(failed...), stateDir)
	}
	fmt.Fprintf(u.out, "\nKarve has Kubernetes %s. docs/upgrading.md says what is left; the report is %s\n", u.state.To, u.state.reportFile())
	return u.state.finish()
}

// progressEvery is how often a long step says that it goes on.
const progressEvery = 30 * time.Second

// progress prints from time to time that a step goes on, until the function that it returns
// is called.
func (u *upgrade) progress(name string, start time.Time) (stop func()) {
	ticker := time.NewTicker(progressEvery)
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-ticker.C:
				fmt.Fprintf(u.out, "   %s: %.0f s\n", name, time.Since(start).Seconds())
			case <-done:
				return
			}
		}
	}()
	return func() { ticker.Stop(); close(done); <-gone }
}

// table prints how long each step took, and which were made by an earlier run.
func (u *upgrade) table(earlier *state) {
	fmt.Fprintln(u.out)
	w := tabwriter.NewWriter(u.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "step\tseconds")
	total := 0.0
	for _, s := range u.steps {
		seconds, ok := u.state.Seconds[s.name]
		if !ok {
			fmt.Fprintf(w, "%s\tnot done\n", s.name)
			continue
		}
		total += seconds
		if _, before := earlier.Seconds[s.name]; before {
			fmt.Fprintf(w, "%s\t%.0f, earlier\n", s.name, seconds)
		} else {
			fmt.Fprintf(w, "%s\t%.0f\n", s.name, seconds)
		}
	}
	fmt.Fprintf(w, "all\t%.0f\n", total)
	w.Flush()
}

// command runs a program in a directory of the repository, with what it prints. It builds as
// .ci/run does, so that a package is compiled once.
func (u *upgrade) command(dir, name string, args ...string) error {
	cmd := exec.CommandContext(u.ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if !strings.Contains(os.Getenv("GOFLAGS"), "-trimpath") {
		cmd.Env = append(cmd.Env, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -trimpath"))
	}
	cmd.Stdout, cmd.Stderr = u.out, u.out
	if err := cmd.Run(); err != nil {
		return errors.Join(u.ctx.Err(), fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err))
	}
	return nil
}

// download puts the new release into the module cache, or says that the proxy does not have it.
func (u *upgrade) download() error {
	ours, err := ourRequires(u.ctx)
	if err != nil {
		return err
	}
	_, err = download(u.ctx, u.state.To, ours)
	return err
}

// report prints the report, and writes it to a file.
func (u *upgrade) report() error {
	file, err := os.Create(u.state.reportFile())
	if err != nil {
		return err
	}
	return errors.Join(reportVersions(u.ctx, io.MultiWriter(u.out, file), u.state.From, u.state.To), file.Close())
}
