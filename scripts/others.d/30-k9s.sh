# shellcheck shell=bash disable=SC2034,SC2154
software=k9s
tried="in a terminal: it lists Pods and Deployments, describes one, and shows the CPU and memory of nodes"
modules=(github.com/derailed/k9s@v0.50.9)
packages=(k9s=.)

try() {
	kubectl create deployment web --image=nginx --replicas=2
	kubectl rollout status --timeout 2m deployment web
	eventually kubectl top nodes
	HOME=$home K9S_CONFIG_DIR=$home/k9s TERM=xterm-256color python3 - "$bin/k9s" <<'END'
import fcntl, os, pty, re, select, signal, struct, sys, termios, time

pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], "--namespace", "default", "--command", "pods", "--logoless", "--splashless"])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 170, 0, 0))
seen = ""

def screen(*texts):
    """Waits until the program has written all texts since the last keys."""
    global seen
    end = time.monotonic() + 120
    while not all(re.search(text, seen) for text in texts):
        if time.monotonic() > end:
            sys.exit("k9s never showed %s: %r" % (texts, seen[-2000:]))
        if select.select([terminal], [], [], 1)[0]:
            try:
                part = os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                sys.exit("k9s ended: %r" % seen[-2000:])
            seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]", " ", part)

def keys(text):
    global seen
    seen = ""
    os.write(terminal, text.encode())

try:
    screen(r"web-[0-9a-z]+-[0-9a-z]{5}", "Running", r"simulated-[01]")
    keys(":deployments\r")
    screen(r"\bweb\b", "2/2")
    keys("d")
    screen("StrategyType", "RollingUpdate")
    keys("\x1b")
    screen("UP-TO-DATE")
    keys(":nodes\r")
    screen("simulated-0", "simulated-1", "Ready", "%CPU")
finally:
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
END
}
