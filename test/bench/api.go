package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/machine"
)

const (
	rowCreate         = "create, 32 clients"
	rowUpdate         = "update, 32 clients"
	rowDelete         = "delete, 32 clients"
	rowGet            = "get, 32 clients"
	rowList           = "list 2,000, 4 clients"
	rowWatch          = "update → watch event"
	rowServiceAccount = "Namespace → default ServiceAccount"
	rowDeployment     = "Deployment → 20 Pods created"
	rowNamespace      = "Namespace with 20 Pods deleted → gone"
	rowMemoryNow      = "memory after 2,000 objects, 10,000 writes"
	rowMemoryPeak     = "memory, peak"

	perServer, perClient, perDatastore = "server µs each", "client µs each", "datastore µs each"
)

// apiClients is how many clients work at the same time. Each has a connection of its own, as separate
// programs have.
const apiClients = 32

// An apiPlan says how much a round does.
type apiPlan struct {
	objects int // that exist while the rows are measured
	updates int
	events  int  // updates, each of which a watch waits for
	memory  bool // is measured after them
	extra   int  // objects that are created and deleted
	gets    int
	lists   int
	repeats int           // of the rows about controllers
	most    time.Duration // of a row that may be cut short
}

var (
	apiWhole = apiPlan{objects: 2000, updates: 7500, events: 500, memory: true, extra: 6000, gets: 20000, lists: 200, repeats: 5, most: 10 * time.Second}
	apiQuick = apiPlan{objects: 2000, updates: 640, events: 50, extra: 640, gets: 1000, lists: 10, repeats: 1, most: 2 * time.Second}
)

func apiLines() []line {
	var lines []line
	speed := func(row string) {
		lines = append(lines, line{row: row, unit: "/s"}, line{row: row, unit: "p50 ms"}, line{row: row, unit: "p99 ms"},
			line{row: row, unit: perServer}, line{row: row, unit: perClient})
	}
	speed(rowCreate)
	speed(rowUpdate)
	speed(rowDelete)
	speed(rowGet)
	speed(rowList)
	return append(lines,
		line{row: rowWatch, unit: "p50 ms"}, line{row: rowWatch, unit: "p99 ms"}, line{row: rowWatch, unit: perServer},
		line{row: rowServiceAccount, unit: "p50 ms", controllers: true},
		line{row: rowDeployment, unit: "p50 ms", controllers: true},
		line{row: rowNamespace, unit: "p50 ms", controllers: true},
		line{row: rowMemoryNow, unit: "MB"},
		line{row: rowMemoryPeak, unit: "MB"},
	)
}

// api is the command bench api.
func api(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	rows := []string{"create", "update", "delete", "get", "list", "watch", "serviceaccount", "deployment", "namespace"}
	cmp, only := newComparison("api", 3, rows, stdout, stderr)
	quick := cmp.flags.Bool("quick", false, "a few of each operation, to see that it works: the figures mean little")
	profiles := cmp.flags.String("profile", "", "directory for CPU profiles of the API server, one for each row and peer")
	if err := cmp.parse(args, only, rows); err != nil {
		return err
	}
	if *profiles != "" {
		if err := os.MkdirAll(*profiles, 0o755); err != nil {
			return fmt.Errorf("-profile: %w", err)
		}
	}
	plan := apiWhole
	if *quick {
		plan = apiQuick
	}
	cmp.Setting = "ConfigMaps of 1 KB; client-go with protobuf, 32 connections, no rate limit, on the same cores"
	silence()
	cmp.lines = apiLines()
	cmp.notes = "server, client µs each: CPU time of one operation. memory: RssAnon. never: it has no controllers.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		return cmp.load(ctx, p, dir, s, &apiBench{plan: plan, profiles: *profiles})
	})
}

// load starts a control plane, and measures it as b says.
func (cmp *comparison) load(ctx context.Context, p *peer, dir string, s *sample, b *apiBench) error {
	return p.whileRunning(ctx, dir, func(c *cluster, probe *prober) error {
		b.comparison, b.cluster, b.peer, b.sample, b.probe = cmp, c, p, s, probe
		probe.close() // a profile opens another connection
		if err := b.connect(); err != nil {
			return err
		}
		return b.measure(ctx)
	})
}

// silence hides the errors that client-go logs when a server stops.
func silence() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
}

// An apiBench measures one control plane.
type apiBench struct {
	*comparison
	cluster *cluster
	peer    *peer
	sample  *sample
	plan    apiPlan
	clients []kubernetes.Interface // one for each worker
	noise   string

	probe    *prober
	profiles string // directory; empty: none
}

// connect makes the clients.
func (b *apiBench) connect() error {
	for range apiClients {
		config := b.cluster.config()
		config.DisableCompression = true          // of both peers, as Karve's kubeconfig has it
		config.Dial = (&net.Dialer{}).DialContext // client-go shares a connection between clients of the same dialer
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		b.clients = append(b.clients, client)
	}
	noise := make([]byte, 1<<17) // it cannot be compressed, and is the same in every run
	rand.NewChaCha8([32]byte{}).Read(noise)
	b.noise = hex.EncodeToString(noise)
	return nil
}

// measure measures every row. The rows about ConfigMaps come first, because memory is measured
// after them.
func (b *apiBench) measure(ctx context.Context) error {
	if err := b.configMaps(ctx); err != nil {
		return err
	}
	if b.peer.controllers && b.datastores == nil {
		return b.controllers(ctx)
	}
	return nil
}

// row measures one row, with its CPU time.
func (b *apiBench) row(ctx context.Context, name string, run func(context.Context) (load.Result, error)) error {
	from := len(b.sample.Figures)
	server, client, err := b.cpu()
	if err != nil {
		return err
	}
	datastore := b.peer.database.cpu()
	profiled := b.profile(ctx, name)
	res, err := run(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	serverAfter, clientAfter, err := b.cpu()
	if err != nil {
		return err
	}
	if err := profiled(); err != nil {
		return fmt.Errorf("%s: profile: %w", name, err)
	}
	if res.Ops == 0 {
		return fmt.Errorf("%s: no operation was done", name)
	}
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(res.Ops) }
	b.sample.add(name, "/s", res.PerSecond)
	b.sample.add(name, "p50 ms", res.P50)
	b.sample.add(name, "p99 ms", res.P99)
	b.sample.add(name, perServer, each(serverAfter-server))
	if b.peer.database.external() {
		b.sample.add(name, perDatastore, each(b.peer.database.cpu()-datastore))
	}
	b.sample.add(name, perClient, each(clientAfter-client))
	b.progress(b.peer, b.sample, from)
	return nil
}

// profileTime is how much of a row is profiled.
const profileTime = 3 * time.Second

// profile has the API server profile itself; the function it answers waits until
// that is done.
func (b *apiBench) profile(ctx context.Context, row string) (done func() error) {
	if b.profiles == "" {
		return func() error { return nil }
	}
	written := make(chan error, 1)
	go func() {
		profile, err := b.probe.do(ctx, http.MethodGet, fmt.Sprintf("/debug/pprof/profile?seconds=%.0f", profileTime.Seconds()), nil)
		if err == nil {
			name := strings.NewReplacer(" + ", "-", " ", "-", ",", "", "/", "-").Replace(b.peer.title + "-" + row)
			err = os.WriteFile(filepath.Join(b.profiles, name+".pprof"), profile, 0o644)
		}
		written <- err
	}()
	return func() error { return <-written }
}

// cpu is the CPU time that the control plane and its client have used.
func (b *apiBench) cpu() (server, client time.Duration, err error) {
	if server, err = b.cluster.cpu(); err != nil {
		return 0, 0, err
	}
	client, err = machine.CPUTime(machine.OwnPID)
	return server, client, err
}
