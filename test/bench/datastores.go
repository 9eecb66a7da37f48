package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// What a round of the comparison of datastores does: less than one of api, because there are five of them.
var (
	datastoresWhole = apiPlan{objects: 2000, updates: 4000, events: 400, extra: 3000, gets: 8000, most: 6 * time.Second}
	datastoresQuick = apiPlan{objects: 320, updates: 320, events: 20, extra: 320, gets: 640, most: time.Second}
)

// A userDatabase is a server of PostgreSQL or MariaDB, or an etcd, that scripts/databases has started, and on which
// Karve keeps its objects. Every data directory has a database, or a prefix, of its own there. Its methods take nil,
// and the built-in datastore.
type userDatabase struct {
	title, name, variable string   // with which scripts/databases names it; empty: the built-in datastore
	endpoint              string   // without the name of a database
	controls              []string // programs of scripts/databases
}

var known = []*userDatabase{
	{title: "SQLite", name: "sqlite"},
	{title: "PostgreSQL", name: "postgresql", variable: "KARVE_TEST_POSTGRES"},
	{title: "MariaDB", name: "mariadb", variable: "KARVE_TEST_MYSQL"},
	{title: "one etcd", name: "one-etcd", variable: "KARVE_TEST_ETCD"},
	{title: "three etcds", name: "three-etcds", variable: "KARVE_TEST_ETCD3"},
}

// datastores is the command bench datastores.
func datastores(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	cmp := newComparison("datastores", 3, []string{"start", "create", "update", "delete", "get", "watch"}, stdout, stderr)
	cmp.against = againstNone
	quick := cmp.flags.Bool("quick", false, "a few of each operation, to see that it works: the figures mean little")
	on := cmp.flags.String("on", "sqlite,postgresql,mariadb,one-etcd,three-etcds", "comma-separated datastores to compare")
	if err := cmp.parse(args); err != nil {
		return err
	}
	if err := cmp.refuse("against", "upstream"); err != nil {
		return err
	}
	for _, d := range known {
		d.endpoint, d.controls = os.Getenv(d.variable), strings.Fields(os.Getenv(d.variable+"_CONTROL"))
		if d.variable != "" && len(d.controls) == 0 {
			return fmt.Errorf("%s_CONTROL is not set: scripts/bench datastores starts the databases and sets it", d.variable)
		}
		if strings.Contains(","+*on+",", ","+d.name+",") {
			cmp.datastores = append(cmp.datastores, d)
		}
		if err := d.stop(ctx); err != nil { // each runs in its turn only
			return err
		}
	}
	if len(cmp.datastores) != strings.Count(*on, ",")+1 {
		return fmt.Errorf("-on: want some of sqlite, postgresql, mariadb, one-etcd and three-etcds, not %s", *on)
	}
	plan := datastoresWhole
	if *quick {
		plan = datastoresQuick
	}
	cmp.setting = "one karve; ConfigMaps of 1 KB; client-go with protobuf, 32 connections, no rate limit, on the same cores, as is the datastore with its defaults, which include fsync"
	cmp.notes = "server-, client-CPU: of one operation. A start is with everything a new cluster has; stop: after a warm start, without clients.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		if cmp.wants("start") {
			for _, row := range []string{rowCold, rowWarm} {
				if err := p.startOnce(ctx, dir, s, row); err != nil {
					return err
				}
			}
		}
		return cmp.load(ctx, p, dir, s, plan, (*apiBench).configMaps)
	})
}

// external tells whether it has processes of its own, which run only while it is measured.
func (d *userDatabase) external() bool { return d != nil && len(d.controls) > 0 }

// options are those of karve for a data directory. The endpoint is in a file there, because every user can see a
// command line.
func (d *userDatabase) options(dir string) ([]string, error) {
	if !d.external() {
		return nil, nil
	}
	name, file, endpoint := "bench"+filepath.Base(dir), filepath.Join(dir, "bench.yaml"), d.endpoint
	// A database can be shared, so the server wants an address at which others reach it.
	options := []string{"--config=" + file, "--advertise-address", "192.0.2.1"}
	if strings.HasPrefix(endpoint, "http") {
		options = append(options, "--kube-apiserver-arg", "etcd-prefix=/"+name)
	} else {
		endpoint += name
	}
	return options, os.WriteFile(file, fmt.Appendf(nil, "datastore-endpoint: %q\n", endpoint), 0o600)
}

// start starts the processes, and waits until they answer; an etcd also until it has a leader.
func (d *userDatabase) start(ctx context.Context) error {
	if err := d.control(ctx, "start"); err != nil || !d.external() || !strings.HasPrefix(d.endpoint, "http") {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		for member := range strings.SplitSeq(d.endpoint, ",") {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, member+"/health", nil)
			if err != nil {
				return false, err
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return false, nil
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return false, nil
			}
		}
		return true, nil
	})
}

// stop ends the processes.
func (d *userDatabase) stop(ctx context.Context) error { return d.control(ctx, "kill") }

// control calls the control programs.
func (d *userDatabase) control(ctx context.Context, verb string) error {
	if !d.external() {
		return nil
	}
	for _, program := range d.controls {
		if out, err := exec.CommandContext(ctx, program, verb).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %s: %w\n%s", d.title, verb, err, out)
		}
	}
	return nil
}
