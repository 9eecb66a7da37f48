// Command recipes does what documents tell users to do. scripts/recipes-test calls it in namespaces of its own:
//
//	recipes follow DOCUMENT PROGRAM-DIRECTORY [RELEASE-DIRECTORY]
//	recipes action RELEASE-DIRECTORY
//
// follow runs the commands of a document, and compares what they print with what stands there. action runs the
// action of action.yml. A web server serves the release, in place of the one on the web.
package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "recipes:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	arg := func(n int) string { return strings.Join(args[min(n, len(args)):min(n+1, len(args))], "") }
	switch n := len(args); {
	case arg(0) == "follow" && (n == 3 || n == 4):
		url, err := serve(arg(3))
		if err != nil {
			return err
		}
		return follow(arg(1), arg(2), url, os.Stdout)
	case arg(0) == "action" && n == 2:
		url, err := serve(arg(1))
		if err != nil {
			return err
		}
		return runAction("action.yml", arg(1), url, os.Stdout)
	}
	return errors.New("usage: recipes follow DOCUMENT PROGRAM-DIRECTORY [RELEASE-DIRECTORY] | action RELEASE-DIRECTORY")
}

// serve serves a release until the program ends. It returns nothing without a directory.
func serve(release string) (url string, err error) {
	if release == "" {
		return "", nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go http.Serve(l, http.FileServer(http.Dir(release)))
	return "http://" + l.Addr().String(), nil
}

// end asks a process group to end, and waits until nothing of it is there.
func end(group int) error {
	const patience = time.Minute
	signal, asked := syscall.SIGTERM, time.Now()
	for group > 0 && syscall.Kill(-group, signal) == nil { // 0: nothing was started
		switch waited := time.Since(asked); {
		case waited > 2*patience:
			return fmt.Errorf("what was started is still there after %v", waited)
		case waited > patience:
			signal = syscall.SIGKILL
		default:
			signal = 0
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}
