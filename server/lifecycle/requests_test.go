package lifecycle

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// refusing answers with the statuses in turn, and then with 200. It keeps the bodies of the requests.
type refusing struct {
	statuses []int
	bodies   []string
}

func (f *refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	text := ""
	if r.Body != nil {
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		text = string(b)
	}
	f.bodies = append(f.bodies, text)
	code, body := http.StatusOK, `{"kind":"Pod"}`
	if n := len(f.bodies); n <= len(f.statuses) {
		code = f.statuses[n-1]
		status, _ := json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Message: "the answer is no", Code: int32(code)})
		body = string(status)
	}
	return &http.Response{StatusCode: code, Status: http.StatusText(code), Body: io.NopCloser(strings.NewReader(body))}, nil
}

func request(t *testing.T, client *rest.Config, method string) (code int, body string) {
	t.Helper()
	transport, err := rest.TransportFor(client)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequest(method, "http://karve/api/v1/pods", strings.NewReader("a body"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// A refused request is sent again, with its body, until it succeeds. The reason is reported each time, and then that
// there is none any more.
func TestRefusedRequestsAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, began := &refusing{statuses: []int{500, 403, 503}}, time.Now()
		var reports []string
		requests := NewRequests(func(err error) {
			if err == nil {
				reports = append(reports, "")
			} else {
				reports = append(reports, err.Error())
			}
		})
		code, body := request(t, requests.Repeat(t.Context(), &rest.Config{Transport: api}), http.MethodPost)
		if want := (1 + 2 + 4) * firstRequest; code != http.StatusOK || body != `{"kind":"Pod"}` || time.Since(began) != want {
			t.Errorf("got %d %s after %v, want 200 after %v", code, body, time.Since(began), want)
		}
		if got := strings.Join(api.bodies, ","); got != "a body,a body,a body,a body" {
			t.Errorf("the bodies were %s", got)
		}
		const reason = "POST /api/v1/pods: the answer is no"
		if got, want := strings.Join(reports, ","), strings.Join([]string{reason, reason, reason, ""}, ","); got != want {
			t.Errorf("reported %q, want %q", got, want)
		}
	})
}

// What clients expect is passed on: each code, with the rest of the response.
func TestExpectedAnswersArePassedOn(t *testing.T) {
	for _, test := range []struct {
		method string
		code   int
		again  bool
	}{
		{http.MethodGet, 404, false}, {http.MethodGet, 410, false}, {http.MethodGet, 422, false}, {http.MethodGet, 429, false},
		{http.MethodPost, 409, false}, {http.MethodPost, 429, false},
		{http.MethodGet, 401, true}, {http.MethodGet, 403, true}, {http.MethodGet, 504, true},
		{http.MethodPost, 400, true}, {http.MethodPost, 404, true}, {http.MethodPut, 422, true}, {http.MethodPost, 500, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			requests := NewRequests(func(error) {})
			api := &refusing{statuses: []int{test.code}}
			code, body := request(t, requests.Repeat(t.Context(), &rest.Config{Transport: api}), test.method)
			if again := code == http.StatusOK; again != test.again || !again && (code != test.code || !strings.Contains(body, "the answer is no")) {
				t.Errorf("%s, %d: got %d %s", test.method, test.code, code, body)
			}
		})
	}
}

// Nothing is sent again when the part has begun or ends, or where requests are only reported.
func TestRepeatingEnds(t *testing.T) {
	always := []int{500, 500, 500, 500, 500, 500, 500, 500, 500, 500}
	for name, end := range map[string]func(r *Requests, client *rest.Config) *rest.Config{
		"begun": func(r *Requests, client *rest.Config) *rest.Config {
			time.AfterFunc(2*firstRequest, r.End)
			return r.Repeat(context.Background(), client)
		},
		"ended": func(r *Requests, client *rest.Config) *rest.Config {
			ctx, cancel := context.WithCancel(context.Background())
			time.AfterFunc(2*firstRequest, cancel)
			return r.Repeat(ctx, client)
		},
		"reported": func(r *Requests, client *rest.Config) *rest.Config { return r.Report(client) },
	} {
		synctest.Test(t, func(t *testing.T) {
			reports := 0
			requests, api := NewRequests(func(error) { reports++ }), &refusing{statuses: always}
			code, body := request(t, end(requests, &rest.Config{Transport: api}), http.MethodGet)
			if code != 500 || !strings.Contains(body, "the answer is no") || len(api.bodies) > 3 || reports == 0 {
				t.Errorf("%s: got %d %s after %d requests and %d reports, want the refusal", name, code, body, len(api.bodies), reports)
			}
		})
	}
}
