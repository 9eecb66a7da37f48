package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sirupsen/logrus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/internal/version"
)

// storedKV is a datastore with some objects.
type storedKV struct {
	clientv3.KV
	objects   []*mvccpb.KeyValue
	noStreams bool
	stops     int // chunks of ten that a stream returns before it waits for ever; 0: all

	opened, ended, pages int // streams, and requests of pages
}

func (s *storedKV) GetStream(ctx context.Context, _ string, _ ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	if s.noStreams {
		return nil, status.Error(codes.Unimplemented, "unknown method RangeStream")
	}
	s.opened++
	out := make(chan clientv3.RangeStreamResponse, 1)
	go func() {
		defer func() { s.ended++; close(out) }()
		for i := 0; i == 0 || i*10 < len(s.objects); i++ {
			if s.stops > 0 && i == s.stops {
				<-ctx.Done()
				return
			}
			chunk := &pb.RangeResponse{Kvs: s.objects[i*10 : min(i*10+10, len(s.objects))]}
			if i*10+10 >= len(s.objects) {
				chunk.Header = &pb.ResponseHeader{}
			}
			out <- clientv3.RangeStreamResponse{RangeResponse: chunk} // as etcd's client, also if nobody reads
		}
	}()
	return out, nil
}

func (s *storedKV) Get(_ context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	s.pages++
	limit, page := int(clientv3.OpGet(key, opts...).Limit()), &clientv3.GetResponse{}
	for _, kv := range s.objects {
		if string(kv.Key) >= key {
			page.Kvs = append(page.Kvs, kv)
		}
	}
	if page.More = len(page.Kvs) > limit; page.More {
		page.Kvs = page.Kvs[:limit]
	}
	return page, nil
}

// storedRecord is the record of the version of Kubernetes.
type storedRecord struct {
	kubernetes.Interface
	value   string
	silent  bool // it does not answer
	refuses bool // it cannot be written
}

func (r *storedRecord) Get(ctx context.Context, _ string, _ kubernetes.GetOptions) (resp kubernetes.GetResponse, err error) {
	if r.silent {
		<-ctx.Done()
		return resp, ctx.Err()
	}
	if r.value != "" {
		resp.KV = &mvccpb.KeyValue{Value: []byte(r.value)}
	}
	return resp, nil
}

func (r *storedRecord) OptimisticPut(_ context.Context, _ string, value []byte, _ int64, _ kubernetes.PutOptions) (resp kubernetes.PutResponse, err error) {
	if r.refuses {
		return resp, errors.New("full")
	}
	r.value = string(value)
	return resp, nil
}

// storedPods are n Pods, of which the third has a version that this program does not know.
func storedPods(t *testing.T, n int) (pods []*mvccpb.KeyValue) {
	known, unknown := protobuf(t, "v1", "Pod"), protobuf(t, "v9", "Pod")
	for i := range n {
		pods = append(pods, &mvccpb.KeyValue{Key: fmt.Appendf(nil, "/registry/pods/x/%05d", i), Value: known})
	}
	if n > 2 {
		pods[2].Value = unknown
	}
	return pods
}

// checked runs the check, and returns what it has logged.
func checked(t *testing.T, ctx context.Context, kv *storedKV, record *storedRecord) string {
	t.Helper()
	var text bytes.Buffer
	log := &logrus.Logger{Out: &text, Formatter: &logrus.TextFormatter{DisableColors: true, DisableTimestamp: true}, Level: logrus.InfoLevel}
	check := storedCheck{log, "/registry/"}
	check.run(ctx, &kubernetes.Client{Client: &clientv3.Client{KV: kv}, Kubernetes: record})
	return text.String()
}

// The check reads all objects in one pass, whatever their number, and leaves no stream open. An etcd
// without streams returns pages, as many as upstream's watch cache asks for.
func TestStoredObjectsAreReadInOnePass(t *testing.T) {
	for name, test := range map[string]struct {
		kv    storedKV
		pages int
	}{
		"streams": {storedKV{objects: storedPods(t, storedPage+1)}, 0},
		"nothing": {storedKV{}, 0},
		"pages":   {storedKV{objects: storedPods(t, storedPage+1), noStreams: true}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				kv, stored := test.kv, storedVersions{}
				last, err := readStored(t.Context(), &kubernetes.Client{Client: &clientv3.Client{KV: &kv}}, "/registry/", &stored)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if kv.pages != test.pages || kv.opened+min(test.pages, 1) != 1 || kv.ended != kv.opened {
					t.Errorf("%d pages, %d streams opened and %d ended, want %d pages or one stream", kv.pages, kv.opened, kv.ended, test.pages)
				}
				count := 0
				for _, n := range stored.objects {
					count += n
				}
				if n := len(kv.objects); count != n || n > 0 && last != string(kv.objects[n-1].Key) {
					t.Errorf("counted %d objects until %q, want %d", count, last, n)
				}
			})
		})
	}
}

// A start with the version that used the datastore last reads no objects. Another one does, and records
// its version unless some cannot be read.
func TestStoredVersionsAreLookedAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		record  storedRecord
		objects int
		streams int
		want    string // in the log
		after   string
	}{
		"the same":         {storedRecord{value: version.Kubernetes}, 3, 0, "", version.Kubernetes},
		"another":          {storedRecord{value: "v1.0.0"}, 2, 1, "", version.Kubernetes},
		"unknown":          {storedRecord{}, 2, 1, "", version.Kubernetes},
		"unreadable":       {storedRecord{value: "v1.0.0"}, 3, 1, "cannot read the version of these stored objects: 1 pods as v9. Unless", "v1.0.0"},
		"unreadable, none": {storedRecord{}, 3, 1, "Return to the release that was used before", ""},
		"not writable":     {storedRecord{refuses: true}, 2, 1, "/registry/karve/kubernetes-version could not be written, so the next start looks at the stored objects again: full", ""},
	} {
		t.Run(name, func(t *testing.T) {
			kv, record := &storedKV{objects: storedPods(t, test.objects)}, test.record
			log := checked(t, t.Context(), kv, &record)
			if !strings.Contains(log, test.want) || test.want == "" && log != "" {
				t.Errorf("the log is %q, want %q", log, test.want)
			}
			if kv.opened != test.streams || record.value != test.after {
				t.Errorf("%d streams, and the record is %q, want %d and %q", kv.opened, record.value, test.streams, test.after)
			}
		})
	}
}

// A datastore that is too slow, or does not answer, ends the check with a warning. It says what is not
// known, and what is. A stop is no problem, and warns of nothing.
func TestStoredCheckEnds(t *testing.T) {
	for name, test := range map[string]struct {
		kv      storedKV
		record  storedRecord
		stopped bool
		want    []string
	}{
		"no answer":      {storedKV{}, storedRecord{silent: true}, false, []string{"level=warning msg=\"the versions of the stored objects are not known: the datastore did not return them in 20s. The next start"}},
		"a stop":         {storedKV{}, storedRecord{silent: true}, true, []string{"level=info msg=\"the versions of the stored objects are not known: the server stopped first"}},
		"a slow stream":  {storedKV{objects: storedPods(t, 95), stops: 3}, storedRecord{}, false, []string{"cannot read the version of these stored objects: 1 pods as v9.", "the stored objects after /registry/pods/x/00029 are not known: the datastore did not return them in 20s"}},
		"a stop halfway": {storedKV{objects: storedPods(t, 95), stops: 3}, storedRecord{}, true, []string{"1 pods as v9.", "level=info msg=\"the versions of the stored objects after /registry/pods/x/00029 are not known: the server stopped first"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				kv, record := test.kv, test.record
				if test.stopped {
					go func() {
						synctest.Wait()
						cancel()
					}()
				}
				log := checked(t, ctx, &kv, &record)
				for _, want := range test.want {
					if !strings.Contains(log, want) {
						t.Errorf("the log is %q, want %q", log, want)
					}
				}
				synctest.Wait()
				if kv.ended != kv.opened || record.value != "" {
					t.Errorf("%d of %d streams ended, and the record is %q, want none", kv.ended, kv.opened, record.value)
				}
			})
		})
	}
}

// The server is ready only when the check has ended, and names it until then.
func TestReadyAwaitsTheStoredVersions(t *testing.T) {
	s, run, stop := built(t, chainConfig(t, nil))
	s.stored.stop()
	done := make(chan struct{})
	s.stored = &runningCheck{func() {}, done}
	go func() {
		defer close(done)
		if err := eventually.Poll(func() error {
			if got, want := s.NotReady().Error(), "the versions of the stored objects"; got != want {
				return fmt.Errorf("the server waits for %q, want %q", got, want)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}()
	run()
	select {
	case <-done:
	default:
		t.Error("the server was ready before the check had ended")
	}
	stop()
}
