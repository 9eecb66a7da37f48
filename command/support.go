package command

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
	"github.com/karve-k8s/karve/internal/redact"
	"github.com/karve-k8s/karve/server/page"
)

// What a file of karve support has at most, and how long each question may take.
const (
	supportLimit  = 8 << 20 // bytes of one text
	supportLines  = "3000"  // of the journal
	supportTime   = 30 * time.Second
	openRCLogFile = "/var/log/karve.log"
)

// supportCommand is `karve support`.
func supportCommand() *cli.Command {
	return &cli.Command{
		Name: "support", ArgsUsage: "[FILE]",
		Usage: "collect a diagnostics archive for a bug report: versions, options, state and log, without secrets",
		Description: "FILE is karve-support-TIME.tar.gz by default. It has no Secrets, and of options only the values that are\n" +
			"booleans, numbers or durations. In the log and other texts, what looks like a password, a token or a key\n" +
			"is replaced. Names of your cluster remain: look through it before you pass it on.\n" +
			"The server need not run. summary.txt in the file says what failed or is missing, and why.",
		Flags: []cli.Flag{options.Config(), options.DataDir(), options.DatastoreEndpoint(),
			&cli.StringFlag{Name: "log-file", Usage: "`FILE` with the server's log (default: the journal of the unit karve, or " + openRCLogFile + ")"}},
		Before: options.FindDataDir,
		Action: writeSupport,
	}
}

func writeSupport(c *cli.Context) error {
	now := time.Now()
	file := "karve-support-" + now.UTC().Format(directory.Stamp) + ".tar.gz"
	if c.Args().Present() {
		file = c.Args().First()
	}
	s := &support{ctx: c.Context, dir: options.Absolute(c.String("data-dir")), now: now}
	to, err := destination.Find(file, destination.Rules{Outside: []string{s.dir}})
	if err != nil {
		return err
	}
	s.collect(c)
	if err := destination.Act(to, func() error { return atomicfile.Create(to, false, s.write) }); err != nil {
		return err
	}
	for _, line := range s.notes {
		fmt.Fprintf(c.App.ErrWriter, "note: %s\n", line)
	}
	fmt.Fprintf(c.App.Writer, "wrote %d files to %s; look through it before you pass it on\n", len(s.files), file)
	return nil
}

// support is what the file will have.
type support struct {
	ctx     context.Context
	dir     string
	now     time.Time
	running bool // a server in dir
	files   []supportFile
	notes   []string
}

type supportFile struct {
	name string
	text []byte
}

// add takes the result of a question. A text is worth having in spite of an error.
func (s *support) add(name string, text []byte, err error) {
	if len(text) > 0 {
		s.files = append(s.files, supportFile{name, text[max(0, len(text)-supportLimit):]})
	}
	if err != nil {
		s.notes = append(s.notes, string(redact.Text([]byte(fmt.Sprintf("%s: %v", name, err)))))
	}
}

func (s *support) collect(c *cli.Context) {
	config, err := options.Summary(c)
	s.add("options.txt", config, err)
	_, held, err := directory.Holder(s.dir)
	s.running = err == nil && held
	s.log(c.String("log-file"))
	s.commands(c)
	if s.running {
		s.api()
	} else {
		s.add("the server", nil, servers.None(s.dir))
	}
}

func (s *support) log(file string) {
	if file == "" {
		if _, err := exec.LookPath("journalctl"); err == nil {
			limited, cancel := context.WithTimeout(s.ctx, supportTime)
			defer cancel()
			text, err := exec.CommandContext(limited, "journalctl", "--no-pager", "--output", "short-iso", "--lines", supportLines, "--unit", "karve", "--user-unit", "karve").Output()
			s.add("log.txt", text, err)
			return
		}
		file = openRCLogFile
	}
	text, err := tail(file)
	if err != nil {
		err = fmt.Errorf("%w (--log-file names the server's log)", err)
	}
	s.add("log.txt", text, err)
}

// tail reads the end of a file.
func tail(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", path))
	} else if _, err := f.Seek(max(0, info.Size()-supportLimit), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, supportLimit))
}

// commands are what a user would be asked to run.
func (s *support) commands(c *cli.Context) {
	var where []string
	for _, name := range []string{"config", "data-dir", "datastore-endpoint"} {
		if value := c.String(name); value != "" {
			where = append(where, "--"+name, value)
		}
	}
	type question struct {
		file, command string
		where         bool
	}
	all := []question{
		{"version.txt", "version", false}, {"status.txt", "status", true}, {"status.json", "status -o json", true}, {"check.txt", "check", true},
		{"certificates.txt", "certs list", true}, {"datastore.json", "datastore stats -o json", true},
	}
	if s.running {
		all = append(all, question{"secrets.txt", "secrets status", true})
	}
	for _, ask := range all {
		args := append([]string{"karve"}, strings.Fields(ask.command)...)
		if ask.where {
			known := where
			if ask.file == "certificates.txt" { // they are not in the datastore
				known = slices.DeleteFunc(slices.Clone(where), func(s string) bool { return s == "--datastore-endpoint" || s == c.String("datastore-endpoint") })
			}
			args = append(args, known...)
		}
		var out, problems bytes.Buffer
		limited, cancel := context.WithTimeout(s.ctx, supportTime)
		err := run(limited, args, &out, &problems)
		cancel()
		out.Write(problems.Bytes())
		if coded := cli.ExitCoder(nil); errors.As(err, &coded) && err.Error() == "" {
			err = nil // the text says it
		}
		s.add(ask.file, out.Bytes(), err)
	}
}

// api is what only a running server can tell.
func (s *support) api() {
	config, err := servers.Kubeconfig(s.dir)
	var get servers.Getter
	if err == nil {
		var done func()
		if get, done, err = servers.NewGetter(s.dir, config); err == nil {
			defer done()
		}
	}
	if err != nil {
		s.add("what the API tells", nil, err)
		return
	}
	for _, ask := range []struct{ file, path string }{
		{"ready.txt", "/readyz?verbose"}, {"metrics.txt", "/metrics"}, {"goroutines.txt", "/debug/pprof/goroutine?debug=2"}, {"page.html", page.Path},
	} {
		limited, cancel := context.WithTimeout(s.ctx, supportTime)
		text, err := get(limited, ask.path)
		cancel()
		if text == nil && err != nil { // no answer: the other requests would fail as well
			s.add("what the API tells", nil, err)
			return
		}
		s.add(ask.file, text, err)
	}
}

func (s *support) write(to io.Writer) error {
	summary := fmt.Sprintf("karve support, %s\n\n", s.now.UTC().Format(time.RFC3339))
	for _, f := range s.files {
		summary += f.name + "\n"
	}
	if len(s.notes) > 0 {
		summary += "\nnotes:\n" + strings.Join(s.notes, "\n") + "\n"
	}
	packed := gzip.NewWriter(to)
	archive := tar.NewWriter(packed)
	for _, f := range append([]supportFile{{"summary.txt", []byte(summary)}}, s.files...) {
		text := redact.Text(f.text)
		if err := archive.WriteHeader(&tar.Header{Name: "karve-support/" + f.name, Mode: 0o600, Size: int64(len(text)), ModTime: s.now}); err != nil {
			return err
		}
		if _, err := archive.Write(text); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), packed.Close())
}
