package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// How long a refused request waits before it is sent again.
const (
	firstRequest = 250 * time.Millisecond // doubled with each attempt
	lastRequest  = 5 * time.Second
)

// statusLimit is how much of a refusal is read.
const statusLimit = 64 << 10

// Requests are those with which a part begins. What somebody has written through the API may refuse them for a while: a
// webhook, a policy, a quota, a changed role. Upstream's constructors fail, or end the process, if one of
// their requests is refused, and what they had made by then stays in memory. So a refused request waits
// in its client, and is sent again until it succeeds.
type Requests struct {
	blocked func(error)
	begun   chan struct{}
	end     func()
}

// NewRequests returns the requests of a part. blocked is called when one of them is refused, with the reason, and
// with nil when it has succeeded after that.
func NewRequests(blocked func(error)) *Requests {
	r := &Requests{blocked: blocked, begun: make(chan struct{})}
	r.end = sync.OnceFunc(func() { close(r.begun) })
	return r
}

// End says that the part has begun. Its clients are then like any others.
func (r *Requests) End() { r.end() }

// Repeat returns a copy of a client's configuration whose requests are sent again, until they succeed,
// the part has begun, or ctx ends.
func (r *Requests) Repeat(ctx context.Context, client *rest.Config) *rest.Config {
	return r.wrap(ctx, client, true)
}

// Report returns a copy of a client's configuration whose refused requests are only reported.
func (r *Requests) Report(client *rest.Config) *rest.Config {
	return r.wrap(context.Background(), client, false)
}

func (r *Requests) wrap(ctx context.Context, client *rest.Config, repeat bool) *rest.Config {
	config := rest.CopyConfig(client)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &transport{r, ctx, repeat, next} })
	return config
}

type transport struct {
	*Requests
	ctx    context.Context
	repeat bool
	next   http.RoundTripper
}

// WrappedRoundTripper is for client-go, which looks through wrappers.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	refused := false
	for wait := firstRequest; ; wait = min(2*wait, lastRequest) {
		resp, err := t.next.RoundTrip(r)
		if t.over(r) {
			return resp, err
		}
		reason := refusal(r, resp, err)
		if reason == nil {
			if refused {
				t.blocked(nil)
			}
			return resp, err
		}
		refused = true
		t.blocked(reason)
		again := r.Clone(r.Context())
		if r.Body != nil && r.Body != http.NoBody {
			if r.GetBody == nil {
				return resp, err
			}
			if again.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
		if !t.repeat || !t.pause(r, wait) {
			return resp, err
		}
		if resp != nil {
			resp.Body.Close()
		}
		r = again
	}
}

// over reports whether refusals no longer matter.
func (t *transport) over(r *http.Request) bool {
	select {
	case <-t.begun:
		return true
	default:
		return t.ctx.Err() != nil || r.Context().Err() != nil
	}
}

// pause reports whether the request may be sent again.
func (t *transport) pause(r *http.Request, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.begun:
	case <-t.ctx.Done():
	case <-r.Context().Done():
	}
	return false
}

// refusal returns why a request was refused, or nil. Responses that clients expect are no refusals: that
// an object does not exist or exists already, that it has changed, that a list has expired, and that the
// server is busy, after which client-go waits itself.
func refusal(r *http.Request, resp *http.Response, err error) error {
	if err != nil {
		return fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, err)
	}
	switch reads := r.Method == http.MethodGet; {
	case resp.StatusCode < http.StatusBadRequest, resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusConflict:
		return nil
	case reads && resp.StatusCode < http.StatusInternalServerError && resp.StatusCode != http.StatusUnauthorized && resp.StatusCode != http.StatusForbidden:
		return nil
	}
	if resp.StatusCode == http.StatusUnauthorized { // the API server does not say who
		return fmt.Errorf("%s %s of %s: %w", r.Method, r.URL.Path, r.UserAgent(), message(resp))
	}
	return fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, message(resp))
}

// message reads what the API server says, and leaves the response as it was.
func message(resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, statusLimit))
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), resp.Body), resp.Body}
	if err == nil {
		if object, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), text); err == nil {
			if status, ok := object.(*metav1.Status); ok && status.Message != "" {
				return errors.New(status.Message)
			}
		}
	}
	return errors.New(resp.Status)
}
