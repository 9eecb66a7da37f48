package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// What a round of the comparison of datastores does: less than one of api, because there are five of them.
var (
	datastoresWhole = apiPlan{objects: 2000, updates: 4000, events: 400, extra: 3000, gets: 8000, most: 6 * time.Second}
	datastoresQuick = apiPlan{objects: 320, updates: 320, events: 20, extra: 320, gets: 640, most: time.Second}
)

// known are the datastores that are compared, and the variables with which scripts/databases names them.
var known = []struct{ title, name, variable string }{
	{"SQLite", "sqlite", ""},
	{"PostgreSQL", "postgresql", "KARVE_TEST_POSTGRES"},
	{"MariaDB", "mariadb", "KARVE_TEST_MYSQL"},
	{"one etcd", "one-etcd", "KARVE_TEST_ETCD"},
	{"three etcds", "three-etcds", "KARVE_TEST_ETCD3"},
}

// datastores is the command bench datastores.
func datastores(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	rows := []string{"start", "create", "update", "delete", "get", "watch"}
	cmp, only := newComparison("datastores", 3, rows, stdout, stderr)
	cmp.against = againstNone
	quick := cmp.flags.Bool("quick", false, "a few of each operation, to see that it works: the figures mean little")
	var names []string
	for _, one := range known {
		names = append(names, one.name)
	}
	on := cmp.flags.String("on", strings.Join(names, ","), "comma-separated datastores to compare")
	if err := cmp.parse(args, only, rows); err != nil {
		return err
	}
	if err := cmp.refuse("against", "upstream"); err != nil {
		return err
	}
	if err := cmp.findDatastores(strings.Split(*on, ","), os.Getenv); err != nil {
		return err
	}
	for _, d := range cmp.datastores { // each runs in its turn only
		if err := d.stop(ctx); err != nil {
			return err
		}
	}
	plan := datastoresWhole
	if *quick {
		plan = datastoresQuick
	}
	silence()
	cmp.Setting = "one karve; ConfigMaps of 1 KB; client-go with protobuf, 32 connections, no rate limit, on the same cores, as is the datastore with its defaults, which include fsync"
	cmp.lines = datastoreLines()
	cmp.notes = "server, client, datastore µs each: CPU time of one operation. A start is with everything a new cluster has; stop: after a warm start, without clients.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		if cmp.wants("start") {
			for _, row := range []string{rowCold, rowWarm} {
				if err := cmp.startOnce(ctx, p, dir, s, row); err != nil {
					return err
				}
			}
		}
		return cmp.load(ctx, p, dir, s, &apiBench{plan: plan})
	})
}

// datastoreLines are lines of api and start, without their targets.
func datastoreLines() (lines []line) {
	for _, row := range []string{rowCreate, rowUpdate, rowDelete, rowGet} {
		for _, unit := range []string{"/s", "p50 ms", "p99 ms", perServer, perDatastore, perClient} {
			lines = append(lines, line{row: row, unit: unit})
		}
	}
	return append(lines,
		line{row: rowWatch, unit: "p50 ms"}, line{row: rowWatch, unit: "p99 ms"},
		line{row: rowCold, unit: "s"}, line{row: rowCold, unit: "CPU s"}, line{row: rowWarm, unit: "s"}, line{row: rowWarm, unit: "CPU s"},
		line{row: rowStop, unit: "s"})
}

// findDatastores makes the datastores of these names, with what scripts/databases has put into the environment.
func (cmp *comparison) findDatastores(names []string, environment func(string) string) error {
	for _, name := range names {
		found := false
		for _, one := range known {
			if one.name != name {
				continue
			}
			found = true
			d := &userDatabase{}
			if one.variable != "" {
				endpoint, controls := environment(one.variable), strings.Fields(environment(one.variable+"_CONTROL"))
				if endpoint == "" || len(controls) == 0 {
					return fmt.Errorf("%s or %[1]s_CONTROL is not set: scripts/bench datastores starts the databases and sets them", one.variable)
				}
				var err error
				if d, err = parseDatabase(endpoint); err != nil {
					return fmt.Errorf("%s: %w", one.variable, err)
				}
				d.controls = controls
			}
			d.title, d.name = one.title, one.name
			cmp.datastores = append(cmp.datastores, d)
		}
		if !found {
			return fmt.Errorf("-on: there is no datastore %q", name)
		}
	}
	return nil
}
