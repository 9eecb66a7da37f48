package lifecycle

import (
	"context"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
)

// systemd extends the time limit of a start only when there was progress.
func TestTimeLimitIsExtendedOnlyAfterProgress(t *testing.T) {
	c, _ := systemd(t, path(t), "", "")
	t.Setenv("NOTIFY_SOCKET", c.LocalAddr().String())
	s := NewStart()
	for _, step := range []struct {
		after       time.Duration
		done, total int64
	}{
		{time.Second, 1, 10}, // a quick start reports nothing
		{progressEvery, 5, 10},
		{time.Second, 6, 10}, // reported just before
		{10 * progressEvery, 7, 0},
	} {
		s.reported = s.reported.Add(-step.after)
		s.Report("datastore", "loading", step.done, step.total)
	}
	s.Waits("datastore", "end")
	for _, want := range []string{"EXTEND_TIMEOUT_USEC=90000000", "STATUS=loading: 50%", "EXTEND_TIMEOUT_USEC=90000000", "STATUS=loading", "STATUS=end"} {
		if got := receive(t, c); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A slow start logs which part has been starting for the longest time, for how long, and what
// the datastore does. When it is ready, users are told once, with the kubeconfig before.
func TestSlowStartLogsItsProgress(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var told []Progress
		var published []time.Duration
		s := NewStart()
		s.Log, s.Limit = logrus.New(), time.Minute
		s.Log.SetOutput(io.Discard)
		s.Progress = func(at Progress) { told = append(told, at) }
		s.Publish = func() error { published = append(published, 0); return nil }
		s.Ready = func(took time.Duration) { published = append(published, took) }
		takes := func(d time.Duration) func(context.Context, func()) error {
			return func(ctx context.Context, ready func()) error {
				time.Sleep(d)
				ready()
				<-ctx.Done()
				return nil
			}
		}
		time.AfterFunc(2*time.Second, func() { s.Report("datastore", "reading the database", 2, 10) })
		time.AfterFunc(time.Minute, cancel)
		err := s.Run(ctx, []Part{
			s.Limited("certificates", takes(time.Second)), // a quick start reports nothing
			s.Limited("datastore", takes(10*time.Second), "certificates"),
			s.Limited("API server", takes(6*time.Second), "datastore"),
		}, func() {})
		want := []Progress{
			{"datastore", 4 * time.Second, "reading the database: 20%"},
			{"datastore", 9 * time.Second, "reading the database: 20%"},
			{"API server", 4 * time.Second, ""},
		}
		if err != nil || !slices.Equal(told, want) {
			t.Errorf("got %v, %v, want %v", told, err, want)
		}
		if want := []time.Duration{0, 17 * time.Second}; !slices.Equal(published, want) {
			t.Errorf("published and ready: got %v, want %v", published, want)
		}
	})
}
