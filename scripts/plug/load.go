package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// configMap is the part of one that the load writes and reads.
type configMap struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metadata          `json:"metadata"`
	Data       map[string]string `json:"data"`
}

type metadata struct {
	Name            string            `json:"name,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Continue        string            `json:"continue,omitempty"`
}

const objects = "/api/v1/namespaces/default/configmaps"

// api asks karve in the machine.
type api struct {
	url   string
	token string
	http  *http.Client
}

func newAPI(port int, token string) *api {
	// The certificate is of an authority inside the machine; the way there is this
	// machine's loopback interface.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 32}
	return &api{fmt.Sprintf("https://127.0.0.1:%d", port), token, &http.Client{Transport: transport}}
}

// errRefused is an answer that says the request was not carried out.
var errRefused = errors.New("the server refuses")

// do sends one request and reads the answer into out, if it is not nil.
func (a *api) do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 500 {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, text) // it may have been carried out
	} else if resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %w: %s: %.300s", method, path, errRefused, resp.Status, text)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

// list reads all objects of the load, in pages, and the revision they are of.
func (a *api) list(ctx context.Context) (map[string]configMap, int64, error) {
	all := map[string]configMap{}
	var revision, next = int64(0), ""
	for {
		var page struct {
			Metadata metadata    `json:"metadata"`
			Items    []configMap `json:"items"`
		}
		if err := a.do(ctx, "GET", objects+"?labelSelector=load&limit=500&continue="+next, nil, &page); err != nil {
			return nil, 0, err
		}
		for _, item := range page.Items {
			all[item.Metadata.Name] = item
		}
		if next = page.Metadata.Continue; next == "" {
			revision, _ = strconv.ParseInt(page.Metadata.ResourceVersion, 10, 64)
			return all, revision, nil
		}
	}
}

// state is what one object was last known to be: absent, or with this value.
type state struct {
	present  bool
	value    string
	revision int64
}

// journal is what was acknowledged, kept outside of the machine.
type journal struct {
	mu        sync.Mutex
	known     map[string]state
	trying    map[string]state // sent, and not answered
	revisions map[int64]bool
	newest    int64 // of all that were acknowledged
	floor     int64 // what newest was at the last cut
	acks      int
}

func newJournal() *journal {
	return &journal{known: map[string]state{}, trying: map[string]state{}, revisions: map[int64]bool{}}
}

func (j *journal) try(name string, s state) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.trying[name] = s
}

// refused notes that a request has had no effect.
func (j *journal) refused(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.trying, name)
}

// acknowledge notes an answer. Deletions are answered without a revision.
func (j *journal) acknowledge(name string, s state) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.trying, name)
	j.known[name] = s
	j.acks++
	if !s.present {
		return nil
	}
	if s.revision <= j.floor || j.revisions[s.revision] {
		return fmt.Errorf("%s was given revision %d, which was given before the cut or twice (the newest at the cut was %d)", name, s.revision, j.floor)
	}
	j.revisions[s.revision] = true
	j.newest = max(j.newest, s.revision)
	return nil
}

// compare says what is lost, invented or old in what a machine has after a cut,
// and takes what it has for known.
func (j *journal) compare(have map[string]configMap, revision int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var wrong []error
	if revision < j.newest {
		wrong = append(wrong, fmt.Errorf("the revision is %d, and %d was acknowledged", revision, j.newest))
	}
	names := maps.Clone(j.known)
	maps.Copy(names, j.trying)
	for name := range have {
		names[name] = state{}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		item, present := have[name]
		is := state{present: present, value: item.Data["value"]}
		is.revision, _ = strconv.ParseInt(item.Metadata.ResourceVersion, 10, 64)
		try, under := j.trying[name]
		switch known := j.known[name]; {
		case is == known || !is.present && !known.present:
		case under && is.present == try.present && is.value == try.value && (!is.present || is.revision > known.revision):
		default:
			wrong = append(wrong, fmt.Errorf("%s: acknowledged %v, under way %v, is %v", name, known, try, is))
		}
		j.known[name] = is
	}
	clear(j.trying)
	j.newest = max(j.newest, revision)
	j.floor = j.newest
	if len(wrong) > 10 {
		wrong = append(wrong[:10], fmt.Errorf("… and %d more", len(wrong)-10))
	}
	return errors.Join(wrong...)
}

func (s state) String() string {
	if !s.present {
		return "absent"
	}
	return fmt.Sprintf("%.16s… at %d", s.value, s.revision)
}

// load creates, updates and deletes objects with several clients, and lists them,
// until ctx ends; an error is one that no cut explains.
func load(ctx context.Context, a *api, j *journal, clients int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			if err := write(ctx, a, j, c); err != nil {
				cancel(err)
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			if _, _, err := a.list(ctx); errors.Is(err, errRefused) {
				cancel(err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Second):
			}
		}
	})
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// perClient is how many objects each client writes, in turns.
const perClient = 25

// write goes on after a failed answer with another object: what became of that one is open.
func write(ctx context.Context, a *api, j *journal, c int) error {
	random := rand.New(rand.NewPCG(rand.Uint64(), uint64(c)))
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("load-%d-%d", c, n%perClient)
		j.mu.Lock()
		known := j.known[name]
		_, open := j.trying[name]
		j.mu.Unlock()
		if open {
			if n%perClient == perClient-1 {
				time.Sleep(100 * time.Millisecond)
			}
			continue
		}
		next := state{present: true, value: strconv.FormatUint(random.Uint64(), 36) + strings.Repeat("x", random.IntN(2000))}
		object := configMap{"v1", "ConfigMap", metadata{Name: name, Labels: map[string]string{"load": ""}}, map[string]string{"value": next.value}}
		method, path := "POST", objects
		switch {
		case known.present && n%7 == 0:
			method, path, next = "DELETE", objects+"/"+name, state{}
		case known.present:
			method, path = "PUT", objects+"/"+name
			object.Metadata.ResourceVersion = strconv.FormatInt(known.revision, 10) // no other writes it
		}
		j.try(name, next)
		var answer configMap
		var err error
		if next.present {
			err = a.do(ctx, method, path, object, &answer)
			next.revision, _ = strconv.ParseInt(answer.Metadata.ResourceVersion, 10, 64)
		} else {
			err = a.do(ctx, method, path, nil, nil)
		}
		switch {
		case errors.Is(err, errRefused):
			j.refused(name)
			return err
		case err != nil: // its end is open
		default:
			if err := j.acknowledge(name, next); err != nil {
				return err
			}
		}
	}
	return nil
}
