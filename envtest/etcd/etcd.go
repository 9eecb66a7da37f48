// Package etcd is Karve's datastore as a program with etcd's flags, for users who start an
// etcd for a kube-apiserver, controller-runtime's envtest above all.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/etcdapi"
)

// Command is one invocation of the program.
type Command struct {
	Args           []string // without the program's name
	Stdout, Stderr io.Writer
	Version        string // of Karve
	// Nearest returns the name that a word was most likely meant to be.
	Nearest func(word string, names []string) string
}

// Run does what the flags say. It serves until ctx ends.
func (c Command) Run(ctx context.Context) error {
	o, warnings, err := parse(c.Args, c.Nearest)
	switch {
	case errors.Is(err, errHelp):
		help(c.Stdout)
		return nil
	case err != nil:
		return err
	case o.version:
		fmt.Fprintf(c.Stdout, "etcd Version: %s\nKarve: %s\n", kine.EtcdVersion, c.Version)
		return nil
	}
	log := logrus.New()
	log.SetOutput(c.Stderr)
	log.SetFormatter(&logrus.TextFormatter{DisableColors: true, TimestampFormat: "2006-01-02T15:04:05.000Z07:00"})
	level, err := logrus.ParseLevel(o.logLevel)
	if err != nil || level < logrus.ErrorLevel {
		return fmt.Errorf("--log-level %s: want debug, info, warn or error", o.logLevel)
	}
	log.SetLevel(level)
	for _, w := range warnings {
		log.Warn(w)
	}
	return serve(ctx, o, log)
}

// serve takes the ports first. A client that connects meanwhile waits, instead of being
// refused and trying again later, and gets its answer when everything is ready.
func serve(ctx context.Context, o options, log *logrus.Logger) (err error) {
	places, err := o.listen()
	defer func() {
		for _, p := range places {
			p.Close()
		}
	}()
	if err != nil {
		return err
	}
	engine, unlock, err := o.open()
	if err != nil {
		return err
	}
	defer unlock()
	defer func() { err = errors.Join(err, engine.Close()) }()

	api := etcdapi.New(engine, kine.EtcdVersion)
	api.SetMaxTxnOps(int(o.maxTxnOps))
	web := &http.Server{Handler: newHandler(engine), ReadHeaderTimeout: helloLimit}
	var work sync.WaitGroup
	defer work.Wait()
	defer web.Close()
	failed := make(chan error, len(places))
	var forClients []kine.Listener
	for _, p := range places {
		grpc, plain := split(p.Listener)
		forClients = append(forClients, kine.Listener{Listener: grpc, URL: p.url})
		work.Go(func() {
			if err := web.Serve(plain); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				failed <- fmt.Errorf("serve HTTP at %s: %w", p.url, err)
			}
		})
	}
	shim, err := kine.ServeAPI(ctx, engine, api, o.progress, "", forClients...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shim.Close()) }() // before the engine
	log.Infof("serving the datastore in %s at revision %d, at %s", o.dataDir, engine.Revision(), o.clientURLs)
	select {
	case <-ctx.Done():
		return nil
	case <-engine.Failed():
		return fmt.Errorf("the disk has failed: %w", engine.Err())
	case err := <-shim.Failed():
		return err
	case err := <-failed:
		return err
	}
}

// open locks the directory and opens the engine in it.
func (o options) open() (*datastore.Engine, func(), error) {
	if _, err := os.Stat(filepath.Join(o.dataDir, "member")); err == nil {
		return nil, nil, fmt.Errorf("--data-dir %s: has the state of a real etcd in it (member), which is not understood here: name another directory", o.dataDir)
	}
	lock, err := directory.Acquire(o.dataDir)
	if err != nil {
		return nil, nil, fmt.Errorf("--data-dir: %w", err)
	}
	var how datastore.Options
	if o.noSync {
		how.Durability = datastore.Relaxed
		how.BallastBytes = -1 // useful only where something is kept
	}
	engine, err := datastore.OpenEngine(lock, how)
	if err != nil {
		lock.Close()
		return nil, nil, fmt.Errorf("--data-dir %s: %w", o.dataDir, err)
	}
	return engine, func() { lock.Close() }, nil
}

// place is an address at which the program serves.
type place struct {
	net.Listener
	url string // by which it is reached
}

// listen takes the addresses of all the URLs. With an error, it returns those it has taken.
func (o options) listen() ([]place, error) {
	var places []place
	var problems []error
	for one := range strings.SplitSeq(o.clientURLs, ",") {
		if one == "" {
			continue
		}
		p, err := listenAt(one)
		if err != nil {
			problems = append(problems, fmt.Errorf("--listen-client-urls %s: %w", one, err))
			continue
		}
		if first, _, _ := strings.Cut(o.advertised, ","); first != "" {
			p.url = first
		}
		places = append(places, p)
	}
	if len(places) == 0 && len(problems) == 0 {
		problems = append(problems, errors.New("--listen-client-urls: wants one at least"))
	}
	return places, errors.Join(problems...)
}

var errURL = errors.New("want http://ADDRESS:PORT")

func listenAt(text string) (place, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Port() == "" || u.Path != "" {
		return place{}, errURL
	}
	if host := u.Hostname(); host != "localhost" && host != "" && net.ParseIP(host) == nil {
		return place{}, errURL // as in etcd: no names
	}
	l, err := net.Listen("tcp", u.Host)
	if err != nil {
		return place{}, err
	}
	if u.Port() == "0" {
		text = "http://" + l.Addr().String()
	}
	return place{Listener: l, url: text}, nil
}
