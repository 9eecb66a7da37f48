package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	rowFirst      = "create, 32 clients, as soon as it is ready"
	rowCreate     = "create, 32 clients"
	rowUpdate     = "update, 32 clients"
	rowDelete     = "delete, 32 clients"
	rowGet        = "get, 32 clients"
	rowList       = "list 2,000, 4 clients"
	rowWatch      = "update → watch event"
	rowMemoryNow  = "memory after these writes"
	rowMemoryPeak = "memory, peak"
)

// apiClients is how many clients work at the same time. Each has a connection of its own, as separate
// programs have.
const apiClients = 32

// An apiPlan says how much a round does.
type apiPlan struct {
	objects int // that exist while the rows are measured
	updates int
	events  int // updates, each of which a watch waits for
	extra   int // objects that are created and deleted
	gets    int
	lists   int
	repeats int           // of the rows about controllers
	most    time.Duration // of a row that may be cut short
}

var (
	apiWhole = apiPlan{objects: 2000, updates: 7500, events: 500, extra: 6000, gets: 20000, lists: 200, repeats: 5, most: 10 * time.Second}
	apiQuick = apiPlan{objects: 2000, updates: 640, events: 50, extra: 640, gets: 1000, lists: 10, repeats: 1, most: 2 * time.Second}
)

// api is the command bench api.
func api(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	rows := []string{"create", "update", "delete", "get", "list", "watch", "serviceaccount", "deployment", "namespace"}
	cmp := newComparison("api", 3, rows, stdout, stderr)
	quick := cmp.flags.Bool("quick", false, "a few of each operation, to see that it works: the figures mean little")
	cmp.flags.StringVar(&cmp.profiles, "profile", "", "directory for CPU profiles of the API server, one for each row and peer")
	if err := cmp.parse(args); err != nil {
		return err
	}
	if cmp.profiles != "" {
		if err := os.MkdirAll(cmp.profiles, 0o755); err != nil {
			return fmt.Errorf("-profile: %w", err)
		}
	}
	plan := apiWhole
	if *quick {
		plan = apiQuick
	}
	cmp.setting = "ConfigMaps of 1 KB; client-go with protobuf, 32 connections, no rate limit, on the same cores"
	cmp.notes = "server-, client-CPU: of one operation. memory: RssAnon. Rows about controllers are Karve's alone.\n"
	return cmp.run(ctx, func(ctx context.Context, p *peer, dir string, s *sample) error {
		return cmp.load(ctx, p, dir, s, plan, (*apiBench).measure)
	})
}

// load starts a control plane, and measures it.
func (cmp *comparison) load(ctx context.Context, p *peer, dir string, s *sample, plan apiPlan, measure func(*apiBench, context.Context) error) error {
	silence()
	return p.whileRunning(ctx, dir, func(c *cluster, probe *prober) error {
		b := &apiBench{bench: bench{cmp, c, p, s, probe}, plan: plan}
		probe.close() // a profile opens another connection
		if err := b.connect(); err != nil {
			return err
		}
		return measure(b, ctx)
	})
}

// silence hides the errors that client-go logs when a server stops.
func silence() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
}

// An apiBench measures one control plane.
type apiBench struct {
	bench
	plan    apiPlan
	clients []kubernetes.Interface // one for each worker
	noise   string
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
	if b.peer.controllers {
		return b.controllers(ctx)
	}
	return nil
}
