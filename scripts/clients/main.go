// Command clients is what scripts/load-balancer-test sends through a load balancer: requests on connections
// that stay open, requests on a connection each, and a watch.
//
//	clients KUBECONFIG
//
// For each line of standard input it prints what has happened since the last one. After the line "end", it checks
// the watch and ends:
//
//	reads 1200 failed 0, writes 400 failed 0, new connections 800 failed 0
//
// The first failures of each kind go to standard error. An acknowledged write that a later read does not see ends
// the program with an error.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	workers = 4                     // of each kind
	pause   = 20 * time.Millisecond // between the requests of one
	limit   = 10 * time.Second      // of a request
	patient = 2 * time.Minute       // for the watch, at the end
	shown   = 3                     // failures of a kind since the last line of the input
)

// count is the requests of a kind since the last line of the input.
type count struct {
	name      string
	ok, wrong atomic.Int64
}

func (c *count) add(err error) {
	if err == nil {
		c.ok.Add(1)
	} else if c.wrong.Add(1) <= shown {
		fmt.Fprintf(os.Stderr, "clients: %s %s: %v\n", time.Now().Format("15:04:05.000"), c.name, err)
	}
}

func (c *count) take() string {
	wrong := c.wrong.Swap(0)
	return fmt.Sprintf("%s %d failed %d", c.name, c.ok.Swap(0)+wrong, wrong)
}

var reads, writes, fresh = count{name: "reads"}, count{name: "writes"}, count{name: "new connections"}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: clients KUBECONFIG")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "clients:", err)
		os.Exit(1)
	}
}

func run(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)

	// A client of its own watches.
	watching, err := kubernetes.NewForConfig(own(config))
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(watching, 0, informers.WithNamespace("default"))
	lister := factory.Core().V1().ConfigMaps().Lister().ConfigMaps("default")
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	var running sync.WaitGroup
	acknowledged := make([]int64, workers)
	requests, stopRequests := context.WithCancel(ctx)
	defer stopRequests()
	for i := range workers {
		client, err := kubernetes.NewForConfig(own(config))
		if err != nil {
			return err
		}
		running.Go(func() {
			if err := change(requests, client, mapName(i), &acknowledged[i]); err != nil {
				stop(err)
			}
		})
		tls, err := rest.TLSConfigFor(config)
		if err != nil {
			return err
		}
		one := &http.Client{Transport: &http.Transport{TLSClientConfig: tls, DisableKeepAlives: true}, Timeout: limit}
		running.Go(func() { connect(requests, one, config.Host+"/api/v1/namespaces/default") })
	}
	lines := make(chan struct{})
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() != "end"; {
			lines <- struct{}{}
		}
	}()
	for more := true; more; {
		select {
		case _, more = <-lines:
			if more {
				fmt.Printf("%s, %s, %s\n", reads.take(), writes.take(), fresh.take())
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	stopRequests()
	running.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for end := time.Now().Add(patient); ; time.Sleep(pause) {
		behind := ""
		for i := range workers {
			m, err := lister.Get(mapName(i))
			if err != nil || number(m) < acknowledged[i] {
				behind = mapName(i)
			}
		}
		if behind == "" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the watch has not seen the last write of %s within %v", behind, patient)
		}
	}
}

// own returns a configuration whose clients share no connection with others.
func own(config *rest.Config) *rest.Config {
	c := rest.CopyConfig(config)
	c.UserAgent = fmt.Sprintf("clients/%p", c)
	c.Proxy = http.ProxyFromEnvironment // a function of its own keeps client-go from sharing a transport
	return c
}

func mapName(i int) string { return "through-balancer-" + strconv.Itoa(i) }

func number(m *corev1.ConfigMap) int64 {
	n, _ := strconv.ParseInt(m.Data["n"], 10, 64)
	return n
}

// change writes a ConfigMap and reads it, again and again.
func change(ctx context.Context, client kubernetes.Interface, name string, acknowledged *int64) error {
	maps := client.CoreV1().ConfigMaps("default")
	for n, made := int64(1), false; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		var err error
		if !made {
			_, err = maps.Apply(within, corev1apply.ConfigMap(name, "default").WithData(map[string]string{"n": strconv.FormatInt(n, 10)}), metav1.ApplyOptions{FieldManager: "clients", Force: true})
		} else {
			_, err = maps.Patch(within, name, types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%d"}}`, n), metav1.PatchOptions{})
		}
		writes.add(err)
		if err == nil {
			made, *acknowledged = true, n
		}
		m, err := maps.Get(within, name, metav1.GetOptions{})
		cancel()
		if made {
			reads.add(err)
		}
		if err == nil && number(m) < *acknowledged {
			return fmt.Errorf("%s: a read got %d after the write of %d was acknowledged", name, number(m), *acknowledged)
		}
	}
}

// connect reads a URL again and again, on a connection each.
func connect(ctx context.Context, client *http.Client, url string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		answer, err := client.Get(url)
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %s", answer.Status)
			}
		}
		fresh.add(err)
	}
}
