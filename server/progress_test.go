package server

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karve-k8s/karve/server/lifecycle"
)

// systemd extends the time limit of a start only when there was progress.
func TestTimeLimitIsExtendedOnlyAfterProgress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	now := time.Unix(1e9, 0)
	p := newProgress(lifecycle.TakeSystemd(), nil, func() time.Time { return now })
	for _, step := range []struct {
		after       time.Duration
		done, total int64
	}{
		{time.Second, 1, 10}, // a quick start reports nothing
		{progressEvery - time.Second, 5, 10},
		{time.Second, 6, 10}, // reported just before
		{10 * progressEvery, 7, 0},
	} {
		now = now.Add(step.after)
		p.report("loading", step.done, step.total)
	}
	_ = p.systemd.Status("end")
	var got []string
	for b := make([]byte, 1024); len(got) == 0 || got[len(got)-1] != "STATUS=end"; {
		n, err := systemd.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(b[:n]))
	}
	want := []string{"EXTEND_TIMEOUT_USEC=90000000", "STATUS=loading: 50%", "EXTEND_TIMEOUT_USEC=90000000", "STATUS=loading", "STATUS=end"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A slow start logs which part has been starting for the longest time, for how long, and what
// the datastore does.
func TestSlowStartLogsItsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var told []Progress
		p := newProgress(nil, func(at Progress) { told = append(told, at) }, time.Now)
		go p.run(ctx)
		part := func(name string, takes time.Duration) {
			done := make(chan struct{})
			go func() {
				_ = p.of(lifecycle.Part{Name: name, Run: func(_ context.Context, ready func()) error {
					time.Sleep(takes)
					ready()
					return nil
				}}).Run(ctx, func() { close(done) })
			}()
			<-done
		}
		part(certificatesPart, time.Second) // a quick start reports nothing
		go func() {
			time.Sleep(time.Second)
			p.report("reading the database", 2, 10)
		}()
		part(datastorePart, 10*time.Second)
		part(apiserverPart, 6*time.Second)
		time.Sleep(time.Minute) // once ready, it reports nothing more
		cancel()
		synctest.Wait()
		want := []Progress{
			{datastorePart, 4 * time.Second, "reading the database: 20%"},
			{datastorePart, 9 * time.Second, "reading the database: 20%"},
			{apiserverPart, 4 * time.Second, ""},
		}
		if !slices.Equal(told, want) {
			t.Errorf("got %v, want %v", told, want)
		}
	})
}
