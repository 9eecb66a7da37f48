package server

import (
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/karve-k8s/karve/server/notify"
)

// systemd gives a start more time when something was done, and only then.
func TestStartProgress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	now := time.Unix(1e9, 0)
	p := newStartProgress(notify.Take(), func() time.Time { return now })
	for _, step := range []struct {
		after       time.Duration
		done, total int64
	}{
		{time.Second, 1, 10}, // a start that is quick says nothing
		{progressEvery - time.Second, 5, 10},
		{time.Second, 6, 10}, // told a moment ago
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
