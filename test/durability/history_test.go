package durability

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// checkLimit bounds the check of one history. It is generous, because the check of a history
	// with many calls without an answer takes long, and the machine may be busy.
	checkLimit = time.Hour

	historyClients = 5
	historyKeys    = 20
)

// A collection has the objects of a history.
type collection struct {
	apiVersion, kind, path string
	upsert                 bool // see input
}

var collections = map[string]collection{
	"configmaps": {"v1", "ConfigMap", "/api/v1/namespaces/default/configmaps", false},
	"leases":     {"coordination.k8s.io/v1", "Lease", "/apis/coordination.k8s.io/v1/namespaces/default/leases", true},
}

// A history is what concurrent clients have seen of one cluster.
type history struct {
	t     *testing.T
	in    collection
	begin time.Time

	mu      sync.Mutex
	ops     []porcupine.Operation
	lists   []listed         // of this life, where a life can begin with an older state
	writes  map[int64]change // the same
	given   map[int64]string // by resourceVersion: what was written
	replays int
	checked int // lists and writes that were compared with replays
	unknown int // calls without an answer
	serial  int // of the next value
}

func newHistory(t *testing.T, in collection) history {
	return history{t: t, in: in, begin: time.Now(), writes: map[int64]change{}, given: map[int64]string{}}
}

// A serverHistory is a history of one server, across kills, stops, resets and restores.
type serverHistory struct {
	history
	server *testServer
}

func newServerHistory(t *testing.T, in collection, args ...string) *serverHistory {
	t.Helper()
	return &serverHistory{newHistory(t, in), newServer(t, args...)}
}

func (h *history) now() int64 { return time.Since(h.begin).Nanoseconds() }

// start starts the server, which begins a life.
func (h *serverHistory) start() *API {
	h.t.Helper()
	h.lists, h.writes = nil, map[int64]change{}
	return h.server.start()
}

// command runs a karve command that concerns all objects, as a call of the history. A copy is two
// calls, because it has the objects as they were at some time between them.
func (h *serverHistory) command(in input, args ...string) {
	h.t.Helper()
	op := porcupine.Operation{ClientId: historyClients, Input: in, Output: answer{}, Call: h.now()}
	if in.action == save {
		h.commanded(op)
	}
	out, err := exec.Command(h.server.Binary, args...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("karve %v: %v: %s", args, err, out)
	}
	if in.action == save {
		op.Input, op.Call = input{action: saved, slot: in.slot}, h.now()
	}
	if in.action == reset {
		half := op
		half.Input = input{action: resetting, slot: in.slot}
		h.commanded(half)
	}
	h.commanded(op)
}

// commanded adds a command, which ends now, to the history.
func (h *history) commanded(op porcupine.Operation) {
	op.Return = h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

// live runs clients and watches while during runs, and then kills or stops the server. A call
// without an answer was carried out before the server ended, or never.
func (h *serverHistory) live(api *API, kill bool, during func()) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	var work sync.WaitGroup
	open := make([]*porcupine.Operation, historyClients)
	for c := range historyClients {
		work.Go(func() { open[c] = h.client(ctx, api, c) })
	}
	var replays []*replay
	for range 3 {
		work.Go(func() {
			all := h.watch(ctx, api)
			h.mu.Lock()
			defer h.mu.Unlock()
			replays = append(replays, all...)
		})
	}
	during()
	if kill {
		h.server.kill()
	} else {
		h.server.stop()
	}
	ended := h.now()
	cancel()
	work.Wait()
	api.HTTP.CloseIdleConnections()
	for _, op := range open {
		if op != nil && op.Input.(input).action != read {
			op.Output, op.Return = answer{unknown: true}, ended
			h.ops = append(h.ops, *op)
			h.unknown++
		}
	}
	h.compare(replays)
}

// compare checks replays against the lists and the writes.
func (h *history) compare(replays []*replay) {
	h.t.Helper()
	for _, r := range replays {
		compared, err := r.check(h.lists, h.writes)
		if err != nil {
			h.t.Error(err)
		}
		h.replays++
		h.checked += compared
	}
}

// client calls until the server is gone, and returns the call without an answer.
func (h *history) client(ctx context.Context, api *API, c int) *porcupine.Operation {
	known := map[string]version{}
	for ctx.Err() == nil {
		if rand.IntN(10) == 0 {
			if err := h.list(ctx, api, c, known); err != nil {
				return nil
			}
			continue
		}
		h.mu.Lock()
		h.serial++
		in := nextInput(known, strconv.Itoa(h.serial))
		in.upsert = h.in.upsert
		h.mu.Unlock()
		op := porcupine.Operation{ClientId: c, Input: in, Call: h.now()}
		out, err := h.call(ctx, api, in)
		op.Return = h.now()
		if err != nil {
			return &op
		}
		op.Output = out
		h.saw(op)
		remember(known, in, out)
	}
	return nil
}

// remember keeps what a client learns from an answer.
func remember(known map[string]version, in input, out answer) {
	switch {
	case out.ok:
		known[in.key] = out.found
	case out.absent:
		known[in.key] = version{}
	default: // the client reads the object before it tries again
		delete(known, in.key)
	}
}

// nextInput chooses a call. Half of the calls are on the first two objects, so that clients meet.
func nextInput(known map[string]version, fresh string) input {
	key := fmt.Sprintf("object-%d", rand.IntN(historyKeys))
	if rand.IntN(2) == 0 {
		key = fmt.Sprintf("object-%d", rand.IntN(2))
	}
	guard, seen := known[key]
	in := input{key: key, guard: guard, value: fresh}
	switch {
	case !seen:
		in.action = read
	case !guard.present():
		in.action = []action{create, create, read}[rand.IntN(3)]
	default:
		in.action = []action{update, update, update, patch, remove, create, read}[rand.IntN(7)]
	}
	return in
}

// call makes a call. An error means that the call may have been carried out.
func (h *history) call(ctx context.Context, api *API, in input) (out answer, err error) {
	path := h.in.path + "/" + in.key
	object := Object{APIVersion: h.in.apiVersion, Kind: h.in.kind, Metadata: Metadata{Name: in.key, Annotations: map[string]string{ValueAnnotation: in.value}}}
	guard := strconv.FormatInt(in.guard.rv, 10)
	var got Object
	switch in.action {
	case read:
		err = api.Do(ctx, http.MethodGet, path, nil, &got)
	case create:
		err = api.Do(ctx, http.MethodPost, h.in.path, object, &got)
	case update:
		object.Metadata.ResourceVersion = guard
		err = api.Do(ctx, http.MethodPut, path, object, &got)
	case patch:
		err = api.Do(ctx, http.MethodPatch, path, map[string]any{"metadata": object.Metadata}, &got)
	case remove:
		options := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": map[string]any{"resourceVersion": guard}}
		err = api.Do(ctx, http.MethodDelete, path, options, nil)
	}
	switch code := Refused(err); {
	case err == nil:
		return answer{ok: true, found: version{got.Value(), got.Revision()}}, nil
	case code == http.StatusNotFound && in.action == read:
		return answer{ok: true}, nil
	case code == http.StatusNotFound:
		return answer{absent: true}, nil
	case code == http.StatusConflict:
		return answer{}, nil
	case errors.Is(err, ErrRefused):
		h.t.Errorf("%s of %s: %v", actions[in.action], in.key, err)
	}
	return answer{}, err
}

// saw adds a call with its answer to the history.
func (h *history) saw(op porcupine.Operation) {
	in, out := op.Input.(input), op.Output.(answer)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
	if !out.ok || in.action == read || in.action == remove {
		return
	}
	if before, ok := h.given[out.found.rv]; ok {
		h.t.Errorf("%s=%s has resourceVersion %d, which was given to %s", in.key, in.value, out.found.rv, before)
	}
	h.given[out.found.rv] = in.key + "=" + in.value
	h.writes[out.found.rv] = change{key: in.key, version: version{in.value, out.found.rv}}
}

// list reads all objects, and so counts as a read of each. Half of the lists are of the revision of
// an earlier list.
func (h *history) list(ctx context.Context, api *API, c int, known map[string]version) error {
	query := "labelSelector="
	h.mu.Lock()
	exact := len(h.lists) > 0 && rand.IntN(2) == 0
	if exact {
		old := h.lists[rand.IntN(len(h.lists))]
		query += fmt.Sprintf("&resourceVersion=%d&resourceVersionMatch=Exact", old.revision)
	}
	h.mu.Unlock()
	call := h.now()
	l, err := h.read(ctx, api, query)
	if Refused(err) == http.StatusGone {
		return nil // it was compacted, or a restore took it back
	} else if err != nil {
		return err
	}
	h.listed(c, l, known, call, exact)
	return nil
}

// listed adds a list, which ends now, to the history.
func (h *history) listed(c int, l listed, known map[string]version, call int64, exact bool) {
	back := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lists = append(h.lists, l)
	if exact {
		return // a list of the past is not a read in the model; the replays check it
	}
	for n := range historyKeys {
		key := fmt.Sprintf("object-%d", n)
		known[key] = l.objects[key]
		h.ops = append(h.ops, porcupine.Operation{ClientId: c, Input: input{key: key}, Output: answer{ok: true, found: l.objects[key]}, Call: call, Return: back})
	}
}

// read reads all objects.
func (h *history) read(ctx context.Context, api *API, query string) (listed, error) {
	objects, revision, err := api.List(ctx, h.in.path, query)
	l := listed{revision, map[string]version{}}
	for _, o := range objects {
		if o.Value() != "" { // not kube-root-ca.crt
			l.objects[o.Metadata.Name] = version{o.Value(), o.Revision()}
		}
	}
	return l, err
}

// watch watches the objects from any list of this life for a while, again and again, until the
// server is gone.
func (h *history) watch(ctx context.Context, api *API) (all []*replay) {
	for ctx.Err() == nil {
		h.mu.Lock()
		n := len(h.lists)
		var from listed
		if n > 0 {
			from = h.lists[rand.IntN(n)]
		}
		h.mu.Unlock()
		if n == 0 {
			if err := h.list(ctx, api, historyClients, map[string]version{}); err != nil {
				return all
			}
			continue
		}
		r := &replay{from: from, through: from.revision}
		enough := 20 + rand.IntN(300)
		err := h.follow(ctx, api, r, func() bool { return len(r.changes) >= enough })
		all = append(all, r)
		switch {
		case errors.Is(err, ErrExpired) || errors.Is(err, io.EOF): // another one
		case errors.Is(err, ErrRefused):
			h.t.Error(err)
			return all
		case err != nil:
			return all
		}
	}
	return all
}

// follow adds the events of a watch to a replay, from its last one on. It returns io.EOF when enough
// says so, which it is asked after each event.
func (h *history) follow(ctx context.Context, api *API, r *replay, enough func() bool) error {
	return api.Watch(ctx, h.in.path, r.through, func(e Event) error {
		if e.Object.Value() == "" && e.Type != "BOOKMARK" {
			return nil // kube-root-ca.crt
		}
		if err := r.add(e); err != nil {
			h.t.Error(err)
		}
		if enough() {
			return io.EOF
		}
		return nil
	})
}

// look starts the server once more, and reads every object.
func (h *serverHistory) look() {
	h.t.Helper()
	api := h.start()
	if err := h.list(h.t.Context(), api, 0, map[string]version{}); err != nil {
		h.t.Fatal(err)
	}
	api.HTTP.CloseIdleConnections()
	h.server.stop()
}

// check checks the whole history, within a third of the time that is left for all tests.
func (h *history) check() {
	h.t.Helper()
	limit := checkLimit
	if deadline, ok := h.t.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/3) // there are other tests
	}
	switch got := checkWithin(h.ops, limit); got {
	case porcupine.Ok:
	case porcupine.Unknown:
		h.t.Errorf("history of %d calls, %d of them without an answer: the check was not done after %v (go test -timeout gives it more)", len(h.ops), h.unknown, limit)
	default:
		h.t.Errorf("history of %d calls, %d of them without an answer: %v; the calls before it became so:\n%s", len(h.ops), h.unknown, got, explain(h.ops))
	}
	if h.checked == 0 {
		h.t.Error("no watch was compared with a list")
	}
	h.t.Logf("%d calls, %d of them without an answer; %d replays of watches, compared with %d lists and writes", len(h.ops), h.unknown, h.replays, h.checked)
}
