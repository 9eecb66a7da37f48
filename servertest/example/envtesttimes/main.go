// Command envtesttimes measures what envtest.Environment takes to start and to stop
// with the programs of each of the directories it is given, in turns:
//
//	go run ./envtesttimes [-rounds N] NAME=DIR NAME=DIR…
//
// It prints the medians. scripts/envtest calls it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/go-logr/logr"
)

// what is measured, in seconds.
var columns = []string{"start", "first object written", "stop", "start and stop"}

func main() {
	rounds := flag.Int("rounds", 5, "how often each is measured")
	flag.Parse()
	log.SetLogger(logr.Discard())
	if err := measure(*rounds, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "envtesttimes:", err)
		os.Exit(1)
	}
}

func measure(rounds int, peers []string) error {
	if len(peers) == 0 || rounds < 1 {
		return fmt.Errorf("want NAME=DIR, for each directory to measure")
	}
	times := map[string][][]float64{} // by name and column
	for _, peer := range peers {
		if _, _, ok := strings.Cut(peer, "="); !ok {
			return fmt.Errorf("%s: want NAME=DIR", peer)
		}
		times[peer] = make([][]float64, len(columns))
	}
	for round := range rounds {
		for i := range peers { // who is first changes
			peer := peers[(i+round)%len(peers)]
			name, dir, _ := strings.Cut(peer, "=")
			took, err := once(dir)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			for column, t := range took {
				times[peer][column] = append(times[peer][column], t.Seconds())
			}
			fmt.Fprintf(os.Stderr, "round %d, %s: start %.2f s, stop %.2f s\n", round+1, name, took[0].Seconds(), took[2].Seconds())
		}
	}
	fmt.Printf("| seconds, median of %d | %s |\n|---|%s\n", rounds, strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, peer := range peers {
		name, _, _ := strings.Cut(peer, "=")
		fmt.Printf("| %s |", name)
		for column := range columns {
			fmt.Printf(" %.2f |", median(times[peer][column]))
		}
		fmt.Println()
	}
	return nil
}

func once(assets string) (took []time.Duration, err error) {
	dir, err := filepath.Abs(assets)
	if err != nil {
		return nil, err
	}
	environment := &envtest.Environment{BinaryAssetsDirectory: dir}
	began := time.Now()
	config, err := environment.Start()
	if err != nil {
		return nil, err
	}
	started := time.Since(began)
	written, err := func() (time.Duration, error) {
		api, err := client.New(config, client.Options{})
		if err != nil {
			return 0, err
		}
		object := &corev1.ConfigMap{}
		object.Namespace, object.Name = "default", "first"
		// Where namespaces are made after the server has said that it is ready, this fails for a while.
		for {
			if err = api.Create(context.Background(), object); err == nil || time.Since(began) > time.Minute {
				return time.Since(began), err
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	stopping := time.Now()
	if failed := environment.Stop(); err == nil {
		err = failed
	}
	stopped := time.Since(stopping)
	return []time.Duration{started, written, stopped, started + stopped}, err
}

func median(values []float64) float64 {
	slices.Sort(values)
	n := len(values)
	return (values[n/2] + values[(n-1)/2]) / 2
}
