package durability

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// binaryVariable names the karve program to test.
const binaryVariable = "KARVE_BINARY"

func binary(t *testing.T) string {
	t.Helper()
	path := os.Getenv(binaryVariable)
	if path == "" {
		t.Skipf("%s is not set: there is no program to test (scripts/build makes one)", binaryVariable)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// rounds is the number of lives of a history: few by default, or KARVE_HISTORIES.
func rounds(t *testing.T, short int) int {
	t.Helper()
	text := os.Getenv("KARVE_HISTORIES")
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("KARVE_HISTORIES is %q, want a number of lives", text)
	}
	return n
}

// A testServer is a server in a test, which fails if the server does not start or stop.
type testServer struct {
	*Server
	t *testing.T
}

// newServer prepares a server with a directory of its own. A server that still runs at the end of
// the test is killed.
func newServer(t *testing.T, args ...string) *testServer {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "server.log"))
	if err != nil {
		t.Fatal(err)
	}
	s := &testServer{&Server{Binary: binary(t), DataDir: filepath.Join(t.TempDir(), "data"), Log: log, Args: args}, t}
	t.Cleanup(func() {
		if s.Process != nil {
			_ = s.Kill() // it may have ended
		}
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the end of the server's log:\n%s", text[max(0, len(text)-8000):])
		}
		log.Close()
	})
	return s
}

func (s *testServer) start() *API {
	s.t.Helper()
	api, err := s.Start(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return api
}

func (s *testServer) kill() {
	s.t.Helper()
	if err := s.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *testServer) stop() {
	s.t.Helper()
	if err := s.ends(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *testServer) ends() error { return s.Stop(2 * time.Minute) }
