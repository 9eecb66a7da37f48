// Command plug pulls the plug of a virtual machine with karve in it, again and
// again, while clients write, and looks each time at what is left: see
// scripts/plug-test, which makes the parts and runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/karve-k8s/karve/test/durability"
)

// chance decides when the plug is pulled and what the disk then has lost. Its
// seed is printed with a failure.
var chance *rand.Rand

func main() {
	var o options
	var pulls, clients int
	var token string
	var ready, longest time.Duration
	var seed uint64
	flag.StringVar(&o.kernel, "kernel", "", "`FILE` with Linux")
	flag.StringVar(&o.initrd, "initrd", "", "`FILE` with the first file system")
	flag.StringVar(&o.program, "program", "", "`FILE` with the image that has karve")
	flag.StringVar(&o.dir, "dir", "", "`DIR` with data.img, an empty ext4")
	flag.IntVar(&o.memory, "memory", 512, "`MiB` of the machine")
	flag.StringVar(&o.accel, "accel", "tcg", "qemu's accelerator")
	flag.StringVar(&o.server, "options", "", "more options of karve server")
	flag.StringVar(&o.mount, "mount", "barrier=1", "options of ext4")
	flag.StringVar(&token, "token", "", "the administrator's")
	flag.IntVar(&pulls, "pulls", 10, "how often the plug is pulled during writes")
	flag.IntVar(&clients, "clients", 8, "how many clients write")
	flag.DurationVar(&longest, "load", 30*time.Second, "how long they write at most before the plug is pulled")
	flag.DurationVar(&ready, "ready", 20*time.Minute, "how long a start may take")
	flag.Uint64Var(&seed, "seed", uint64(time.Now().UnixNano()), "decides when, and what is lost")
	flag.Parse()
	chance = rand.New(rand.NewPCG(seed, 0))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t := &test{options: o, api: newAPI(token), journal: durability.NewJournal(), clients: clients, longest: longest, limit: ready}
	if err := t.run(ctx, pulls); err != nil {
		fmt.Fprintf(os.Stderr, "plug: %v\nplug: -seed %d\n", err, seed)
		os.Exit(1)
	}
}

func upTo(d time.Duration) time.Duration { return time.Duration(chance.Int64N(int64(d))) }

type test struct {
	options
	api            *durability.API
	journal        *durability.Journal
	clients        int
	longest, limit time.Duration
}

// run pulls the plug so many times during writes, and starts once more to look at the result.
func (t *test) run(ctx context.Context, pulls int) error {
	for n := 1; n <= pulls+1; n++ {
		if err := t.round(ctx, n, n > pulls); err != nil {
			return fmt.Errorf("pull %d: %w", n, err)
		}
	}
	fmt.Printf("%d pulls, %d acknowledged writes, none lost\n", pulls, t.journal.Acks())
	return nil
}

// round starts the machine, compares what it has with the journal, writes, and
// pulls the plug.
func (t *test) round(ctx context.Context, n int, last bool) (err error) {
	m, err := boot(t.options)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\nthe console's end:\n%s", err, m.console.tail())
		}
		if m.qemu.Process.Kill() == nil {
			<-m.ended
		}
	}()
	if err := t.waitReady(ctx, m); err != nil {
		return err
	}
	took := time.Since(m.began)
	have, revision, err := list(ctx, t.api)
	if err != nil {
		return err
	}
	if err := t.journal.Compare(have, revision); err != nil {
		return fmt.Errorf("after %v: %w", took.Round(time.Second), err)
	}
	verified := ""
	if strings.Contains(m.console.String(), "verify ok") {
		verified = ", karve datastore verify finds no damage"
	} else if n > 1 {
		return errors.New("karve datastore verify did not run in the machine")
	}
	fmt.Printf("start %d: ready after %v, all of %d objects as acknowledged%s\n", n, took.Round(time.Second/10), len(have), verified)
	if last {
		return nil
	}

	writing, stop := context.WithCancel(ctx)
	defer stop()
	loaded := make(chan error, 1)
	before := t.journal.Acks()
	began := time.Now()
	go func() { loaded <- load(writing, t.api, t.journal, t.clients) }()
	select {
	case <-time.After(t.longest/4 + upTo(t.longest*3/4)):
	case err := <-loaded:
		return errors.Join(errors.New("the load ended before the plug was pulled"), err)
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := m.up(); err != nil {
		return err
	}
	wrote := time.Since(began)
	lost, err := m.pull()
	if err != nil {
		return err
	}
	stop()
	if err := <-loaded; err != nil {
		return err
	}
	t.api.HTTP.CloseIdleConnections()
	acks := t.journal.Acks() - before
	fmt.Printf("pull %d: after %v and %d acknowledged writes (%.0f/s); %s\n",
		n, wrote.Round(time.Second/10), acks, float64(acks)/wrote.Seconds(), lost)
	if acks == 0 {
		return errors.New("no write was acknowledged")
	}
	return nil
}

// waitReady waits until karve says that it is.
func (t *test) waitReady(ctx context.Context, m *machine) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		err := t.ready(ctx)
		if err == nil {
			return m.up()
		}
		if err := errors.Join(ctx.Err(), m.up()); err != nil {
			return err
		}
		if time.Since(m.began) > t.limit {
			return fmt.Errorf("not ready after %v: %w", t.limit, err)
		}
		<-tick.C
	}
}

func (t *test) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return t.api.Do(ctx, "GET", "/readyz", nil, nil)
}
