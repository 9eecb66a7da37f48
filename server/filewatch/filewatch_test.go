package filewatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/karve-k8s/karve/internal/eventually"
)

func init() { every = time.Hour } // so that a change is noticed at once, or not at all

// content is what a follower has read.
type content struct {
	mu   sync.Mutex
	text string
}

// follow reads file into the result until the test ends.
func follow(t *testing.T, file string) *content {
	t.Helper()
	c := &content{}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Follow(ctx, func(context.Context) error {
			text, err := os.ReadFile(file)
			c.mu.Lock()
			defer c.mu.Unlock()
			if err == nil && len(text) == 0 {
				err = errors.New("empty")
			}
			if err == nil {
				c.text = string(text)
			}
			return err
		}, file)
	}()
	t.Cleanup(func() { end(); <-done })
	return c
}

func (c *content) becomes(t *testing.T, want string) {
	t.Helper()
	eventually.Nil(t, "the file is read", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.text != want {
			return fmt.Errorf("got %q, want %q", c.text, want)
		}
		return nil
	})
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, to, at string) {
	t.Helper()
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
}

// logged collects klog's lines.
type logged struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(p)
}

func (l *logged) lines(containing string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.String(), containing)
}

func logs(t *testing.T) *logged {
	t.Helper()
	state, l := klog.CaptureState(), &logged{}
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	klog.SetOutputBySeverity("INFO", l) // which gets the others, too
	t.Cleanup(state.Restore)
	return l
}

// real is a directory without links in its path.
func real(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// The ways in which files are replaced.
func TestFilesThatAreReplaced(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, dir string) (file string, change func(text string)){
		"written in place": func(t *testing.T, dir string) (string, func(string)) {
			file := filepath.Join(dir, "tls.crt")
			write(t, file, "0")
			return file, func(text string) { write(t, file, text) }
		},
		"renamed into place": func(t *testing.T, dir string) (string, func(string)) {
			file := filepath.Join(dir, "tls.crt")
			write(t, file, "0")
			return file, func(text string) {
				write(t, file+".new", text)
				rename(t, file+".new", file)
			}
		},
		"deleted and written": func(t *testing.T, dir string) (string, func(string)) {
			file := filepath.Join(dir, "tls.crt")
			write(t, file, "0")
			return file, func(text string) {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
				write(t, file, text)
			}
		},
		"a mounted Secret": func(t *testing.T, dir string) (string, func(string)) {
			set := func(text string) {
				mkdir(t, filepath.Join(dir, "..at-"+text))
				write(t, filepath.Join(dir, "..at-"+text, "tls.crt"), text)
				link(t, "..at-"+text, filepath.Join(dir, "..data_tmp"))
				before, _ := os.Readlink(filepath.Join(dir, "..data"))
				rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
				if before != "" {
					os.RemoveAll(filepath.Join(dir, before))
				}
			}
			set("0")
			link(t, "..data/tls.crt", filepath.Join(dir, "tls.crt"))
			return filepath.Join(dir, "tls.crt"), set
		},
		"a link to an archive": func(t *testing.T, dir string) (string, func(string)) {
			mkdir(t, filepath.Join(dir, "archive"))
			mkdir(t, filepath.Join(dir, "live"))
			file := filepath.Join(dir, "live", "cert.pem")
			set := func(text string) {
				write(t, filepath.Join(dir, "archive", text), text)
				link(t, "../archive/"+text, file+".new")
				rename(t, file+".new", file)
			}
			set("0")
			return file, set
		},
		"behind a link, in place": func(t *testing.T, dir string) (string, func(string)) {
			mkdir(t, filepath.Join(dir, "elsewhere"))
			target := filepath.Join(dir, "elsewhere", "real.crt")
			write(t, target, "0")
			link(t, target, filepath.Join(dir, "tls.crt"))
			return filepath.Join(dir, "tls.crt"), func(text string) { write(t, target, text) }
		},
		"with its directory": func(t *testing.T, dir string) (string, func(string)) {
			certs := filepath.Join(dir, "certs")
			mkdir(t, certs)
			write(t, filepath.Join(certs, "tls.crt"), "0")
			return filepath.Join(certs, "tls.crt"), func(text string) {
				mkdir(t, certs+".new")
				write(t, filepath.Join(certs+".new", "tls.crt"), text)
				rename(t, certs, certs+".before-"+text)
				rename(t, certs+".new", certs)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			file, change := test(t, real(t))
			c := follow(t, file)
			c.becomes(t, "0")
			for i := range 3 { // what is watched has to follow
				text := fmt.Sprint(i + 1)
				change(text)
				c.becomes(t, text)
			}
		})
	}
}

// Files that cannot be used for a moment are no problem. Those that stay so are one, and it is named once.
func TestFilesThatCannotBeUsed(t *testing.T) {
	log := logs(t)
	dir := real(t)
	file := filepath.Join(dir, "a")
	write(t, file, "0")
	c := follow(t, file)
	c.becomes(t, "0")
	write(t, file, "")
	write(t, file, "1")
	c.becomes(t, "1")
	if n := log.lines("\n"); n != 0 {
		t.Errorf("a file that was empty for a moment: got %d lines, want none:\n%s", n, &log.Buffer)
	}
	write(t, file, "")
	eventually.True(t, "the error is logged", func() bool { return log.lines(file) == 1 })
	c.becomes(t, "1")
	write(t, file, "2")
	c.becomes(t, "2")
	if n := log.lines("\n"); n != 1 {
		t.Errorf("got %d lines, want 1:\n%s", n, &log.Buffer)
	}
}
