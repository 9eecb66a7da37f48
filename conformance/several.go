package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/client-go/tools/clientcmd"
)

// The variables of scripts/databases.
const (
	databaseVariable   = "KARVE_TEST_POSTGRES"
	databaseCAVariable = "KARVE_TEST_DATABASE_CA"
)

// clientPolicy records who asks as an administrator, which the tests do.
const clientPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  userGroups: [system:masters]
`

// several is servers on one database, behind a relay.
type several struct {
	servers []*server
	audits  []string
	relay   *relay
}

// runOnSeveral runs these tests against several servers in turn. It fails if one of them has had little to do.
func (s *suite) runOnSeveral(ctx context.Context, dir string, tests []string, nodes int, o options, stderr io.Writer) ([]result, error) {
	v, kubeconfig, err := s.startSeveral(ctx, dir, nodes, o)
	if err != nil {
		return nil, err
	}
	defer v.stop()
	fmt.Fprintf(stderr, "run %d tests on %d nodes, against %d servers in turn\n", len(tests), nodes, o.servers)
	results, err := s.runTests(ctx, nil, dir, kubeconfig, tests, o, nobodyWaits(nodes)...)
	if err != nil {
		return nil, err
	}
	servers := v.servers
	v.stop()
	if slices.ContainsFunc(results, result.failed) {
		for n, one := range servers {
			one.keepLog(filepath.Join(filepath.Dir(s.e2e), fmt.Sprintf("conformance-karve-%d.log", n+1)), stderr)
		}
		return results, nil // which the caller reports
	}
	counts, err := v.shares()
	if err != nil {
		return nil, err
	}
	for n, count := range counts {
		fmt.Fprintf(stderr, "server %d has answered %d requests of the tests\n", n+1, count)
	}
	return results, balanced(counts)
}

// startSeveral starts o.servers servers, and writes a kubeconfig whose server is the relay.
func (s *suite) startSeveral(ctx context.Context, dir string, nodes int, o options) (v *several, kubeconfig string, err error) {
	v = &several{}
	defer func() {
		if err != nil {
			v.stop()
		}
	}()
	token, policy := filepath.Join(dir, "token"), filepath.Join(dir, "policy.yaml")
	if err := errors.Join(os.WriteFile(token, []byte(rand.Text()+rand.Text()+"\n"), 0o600), os.WriteFile(policy, []byte(clientPolicy), 0o600)); err != nil {
		return v, "", err
	}
	env := []string{"KARVE_DATASTORE_ENDPOINT=" + os.Getenv(databaseVariable)} // an argument would show the password
	var addresses []string
	for n := range o.servers {
		own := filepath.Join(dir, strconv.Itoa(n+1))
		if err := os.Mkdir(own, 0o700); err != nil {
			return v, "", err
		}
		audit := filepath.Join(own, "audit.log")
		one, err := s.start(ctx, own, nodes, env, "--datastore-cafile", os.Getenv(databaseCAVariable), "--cluster-token-file", token,
			"--advertise-address", fmt.Sprintf("192.0.2.%d", n+1), // an endpoint must not be a loopback address
			"--audit-policy-file", policy, "--audit-log-path", audit)
		if err != nil {
			return v, "", fmt.Errorf("server %d: %w", n+1, err)
		}
		v.servers, v.audits = append(v.servers, one), append(v.audits, audit)
		address, err := serverOf(one.kubeconfig)
		if err != nil {
			return v, "", err
		}
		addresses = append(addresses, address)
	}
	if v.relay, err = newRelay(addresses); err != nil {
		return v, "", err
	}
	kubeconfig = filepath.Join(dir, "relay.kubeconfig")
	return v, kubeconfig, redirect(v.servers[0].kubeconfig, kubeconfig, v.relay.Addr().String())
}

// stop ends the relay and the servers, which write the last requests to their audit logs.
func (v *several) stop() {
	if v.relay != nil {
		v.relay.Close()
	}
	var all sync.WaitGroup
	for _, one := range v.servers {
		all.Go(one.stop)
	}
	all.Wait()
	v.servers, v.relay = nil, nil
}

// shares returns how many requests of the tests each server has answered. The servers have stopped.
func (v *several) shares() ([]int, error) {
	var counts []int
	for _, audit := range v.audits {
		files, err := filepath.Glob(strings.TrimSuffix(audit, ".log") + "*.log") // with those that were rotated
		if err != nil {
			return nil, err
		}
		count := 0
		for _, name := range files {
			n, err := countRequests(name)
			if err != nil {
				return nil, err
			}
			count += n
		}
		counts = append(counts, count)
	}
	return counts, nil
}

// countRequests returns how many requests of the suite and of its kubectl an audit log has. The server's own
// controllers have other user agents.
func countRequests(name string) (int, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	count := 0
	for in := json.NewDecoder(f); ; {
		var event struct{ UserAgent string }
		if err := in.Decode(&event); errors.Is(err, io.EOF) {
			return count, nil
		} else if err != nil {
			return 0, fmt.Errorf("read the audit log %s: %w", filepath.Base(name), err)
		}
		if strings.HasPrefix(event.UserAgent, "e2e.test/") || strings.HasPrefix(event.UserAgent, "kubectl/") {
			count++
		}
	}
}

// balanced returns an error if a server has answered less than half of its share.
func balanced(counts []int) error {
	all := 0
	for _, n := range counts {
		all += n
	}
	for i, n := range counts {
		if n == 0 || n*2*len(counts) < all {
			return fmt.Errorf("server %d has answered %d of the tests' %d requests: want at least a part in %d", i+1, n, all, 2*len(counts))
		}
	}
	return nil
}

// serverOf returns host and port of the server of a kubeconfig's current context.
func serverOf(kubeconfig string) (string, error) {
	client, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return "", err
	}
	at, err := url.Parse(client.Host)
	if err != nil {
		return "", fmt.Errorf("%s: %w", kubeconfig, err)
	}
	return at.Host, nil
}

// redirect copies a kubeconfig, with another host and port in each cluster.
func redirect(from, to, address string) error {
	config, err := clientcmd.LoadFromFile(from)
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + address
	}
	return clientcmd.WriteToFile(*config, to)
}

// relay forwards each new connection to the next of its servers.
type relay struct{ net.Listener }

func newRelay(to []string) (*relay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() {
		for n := 0; ; n++ {
			near, err := l.Accept()
			if err != nil {
				return
			}
			go forward(near, to[n%len(to)])
		}
	}()
	return &relay{l}, nil
}

// forward passes data on until one side closes the connection.
func forward(near net.Conn, to string) {
	defer near.Close()
	far, err := net.Dial("tcp", to)
	if err != nil {
		return // the client sees a connection that ends
	}
	defer far.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			_, _ = io.Copy(way[0], way[1])
			ended <- struct{}{}
		}()
	}
	<-ended
}
