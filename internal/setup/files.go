// Package setup has what the installation of a server and that of a node share: a lock, files that
// can be put back, the machine's init system, and the wait until a service is ready.
package setup

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// ServerMarker is the name of the file by which a server marks its data directory. See server/marker.
const ServerMarker = "karve-data"

// PreviousSuffix ends the names of the copies of replaced files.
const PreviousSuffix = ".previous"

// stagePrefix begins the name of a file that is to replace another one. An installation that was killed leaves it, and the
// next one writes it anew.
const stagePrefix = ".karve-install-"

// Files replaces files in such a way that they can be put back, by this process or after a power
// cut by the next one: path.previous is what path was before. A copy of an installation that was cut
// short stays: the files in place never ran well. At no time is a file incomplete, or missing where the file system has hard links.
//
// The lock has a line for each file that was replaced (=PATH) or made (+PATH), written before that. A copy that no line names is a user's.
type Files struct {
	lock    *os.File
	touched []string // the lines
}

// Begin takes the lock of a directory of programs, and reads what an installation that was cut short has replaced.
func Begin(dir string) (*Files, error) {
	lock, err := takeLock(dir)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(lock)
	whole := bytes.LastIndexByte(text, '\n') + 1 // a power cut may have left a part of a line, of which nothing was done
	if err = errors.Join(err, lock.Truncate(int64(whole))); err == nil {
		_, err = lock.Seek(int64(whole), io.SeekStart)
	}
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &Files{lock, strings.FieldsFunc(string(text[:whole]), func(r rune) bool { return r == '\n' })}, nil
}

// End gives up the lock. Its file stays while there is something to put back.
func (f *Files) End() {
	if len(f.touched) == 0 {
		os.Remove(f.lock.Name())
	}
	release(f.lock)
	f.lock.Close()
}

// Interrupted reports whether an installation that replaced path was cut short.
func (f *Files) Interrupted(path string) bool {
	return slices.Contains(f.touched, "="+path) && Exists(path+PreviousSuffix)
}

// Made reports whether an installation that was cut short made path.
func (f *Files) Made(path string) bool { return slices.Contains(f.touched, "+"+path) }

// Claim returns an error for a file that is not [Ours], unless users may have written it, and for a copy that an installation has not
// made. It removes what a killed one has staged.
func (f *Files) Claim(path string, users bool) error {
	os.Remove(staged(path))
	switch previous := path + PreviousSuffix; {
	case f.Made(path) || slices.Contains(f.touched, "="+path):
		return nil
	case Exists(previous):
		return fmt.Errorf("%s is in the way, because a replaced file is kept under this name: move it away", previous)
	case Exists(path) && !users && !Ours(path):
		return fmt.Errorf("%s is another file than Karve's, or a link, and is not replaced: move it away", path)
	}
	return nil
}

// ours are words at the beginning of every text that Karve has installed, in any release.
var ours = regexp.MustCompile(`Written by karve|Karve, the Kubernetes control plane in one process|karve-uninstall\.sh`)

// Ours reports whether a file is Karve's program, in whatever version, or a text that says that Karve has written it.
func Ours(path string) bool {
	if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
		return false
	}
	self, _ := debug.ReadBuildInfo()
	if program, err := buildinfo.ReadFile(path); err == nil {
		return self != nil && program.Main.Path == self.Main.Path
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 4096))
	return err == nil && ours.Match(head)
}

// Replace gives path a new content. gid is the group of the file; -1 is this process' own.
func (f *Files) Replace(path string, data []byte, mode fs.FileMode, gid int) error {
	staged, err := Stage(path, mode, gid, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	defer os.Remove(staged) // after the renaming it is gone
	return f.ReplaceBy(path, staged)
}

func staged(path string) string {
	return filepath.Join(filepath.Dir(path), stagePrefix+filepath.Base(path))
}

// Stage writes a file beside path, with which [Files.ReplaceBy] can replace that. The caller has the lock.
func Stage(path string, mode fs.FileMode, gid int, write func(io.Writer) error) (name string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	name = staged(path)
	os.Remove(name)
	t, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	err = write(t)
	if err == nil && gid >= 0 {
		err = t.Chown(-1, gid)
	}
	if err == nil {
		err = errors.Join(t.Chmod(mode), t.Sync())
	}
	if err = errors.Join(err, t.Close()); err != nil {
		os.Remove(name)
		return "", fmt.Errorf("write %s: %w", path, err)
	}
	return name, nil
}

// ReplaceBy gives a finished file in the same file system the name path.
func (f *Files) ReplaceBy(path, staged string) error {
	if !f.Made(path) && !f.Interrupted(path) {
		mark := "+"
		if Exists(path) {
			mark = "="
		}
		if err := f.note(mark + path); err != nil {
			return err
		}
		if mark == "=" {
			if err := Keep(path, path+PreviousSuffix); err != nil {
				return fmt.Errorf("keep %s: %w", path, err)
			}
		}
	}
	if err := atomicfile.Rename(staged, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// note writes a line, which is there before what it says.
func (f *Files) note(line string) error {
	if slices.Contains(f.touched, line) {
		return nil
	}
	_, err := fmt.Fprintln(f.lock, line)
	if err = errors.Join(err, f.lock.Sync(), atomicfile.SyncDir(filepath.Dir(f.lock.Name()))); err != nil {
		return fmt.Errorf("write %s: %w", f.lock.Name(), err)
	}
	f.touched = append(f.touched, line)
	return nil
}

// Keep gives a file a second name, or another one where the file system has no hard links.
func Keep(path, previous string) error {
	if os.Link(path, previous) == nil {
		return atomicfile.SyncDir(filepath.Dir(path))
	}
	return atomicfile.Rename(path, previous)
}

// PutBack puts back what was replaced, and removes what did not exist before.
func (f *Files) PutBack() error {
	var problems []error
	for _, line := range slices.Backward(f.touched) {
		path, made := strings.CutPrefix(line, "+")
		var err error
		if made {
			err = os.Remove(path)
		} else {
			path = path[1:]
			err = atomicfile.Rename(path+PreviousSuffix, path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("put back %s: %w", path, err))
		}
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	return f.empty()
}

// Forget removes the copies: what is in place runs well.
func (f *Files) Forget() {
	for _, line := range f.touched {
		if path, replaced := strings.CutPrefix(line, "="); replaced {
			os.Remove(path + PreviousSuffix)
		}
	}
	_ = f.empty() // lines without copies put nothing back
}

func (f *Files) empty() error {
	f.touched = nil
	_, err := f.lock.Seek(0, io.SeekStart)
	return errors.Join(err, f.lock.Truncate(0))
}

// Exists reports whether a name exists; that of a dangling link does.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
