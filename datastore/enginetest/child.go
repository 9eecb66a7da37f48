package enginetest

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
)

// What a child is told by the environment: the directory to work on, the step to stop at, and
// an argument.
const (
	ChildDir  = "KARVE_TEST_CHILD_DIR"
	childStop = "KARVE_TEST_CHILD_STOP"
	childArg  = "KARVE_TEST_CHILD_ARG"
)

// Child is for the init function of a test program. In a process that [RunChild] has started it
// does the work, prints "done" and the error, and exits. work calls at after each step; the
// process kills itself at the one that it was told.
func Child(work func(dir, arg string, at func(step string)) error) {
	dir := os.Getenv(ChildDir)
	if dir == "" {
		return
	}
	n, _ := strconv.Atoi(os.Getenv(childStop))
	err := work(dir, os.Getenv(childArg), func(step string) {
		if n--; n == 0 {
			fmt.Print(step)
			self, _ := os.FindProcess(os.Getpid())
			self.Kill()
			select {}
		}
	})
	fmt.Print("done ", err)
	os.Exit(0)
}

// RunChild starts this test program again, to stop at the n-th step (0: at none), and returns the
// step at which it stopped, or "done" and the error.
func RunChild(dir string, n int, arg string) string {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), ChildDir+"="+dir, fmt.Sprintf("%s=%d", childStop, n), childArg+"="+arg)
	out, _ := cmd.Output()
	return string(out)
}
