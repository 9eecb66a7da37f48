package tunnels

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// HostKeys pins the keys of SSH servers in a file of OpenSSH's known_hosts format. The first key
// of an address is accepted and written there; from then on, no other is. The file is read for
// each SSH connection, so a change needs no restart.
type HostKeys struct {
	Path string
	mu   sync.Mutex
}

// hostKeys are the keys that are known of one address.
type hostKeys struct {
	*HostKeys
	address string
	// algorithms are those of the known keys. Without them, a server that has several keys
	// might show one that is not pinned.
	algorithms []string
}

// of reads the file.
func (h *HostKeys) of(address string) (hostKeys, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := hostKeys{HostKeys: h, address: address}
	if err := known.valid(); err != nil {
		return known, err
	}
	content, check, err := h.read()
	if err != nil {
		return known, fmt.Errorf("%w: %w", ErrHostKey, err)
	} else if check == nil {
		return known, nil
	}
	// No server has this key, so the answer lists all that are pinned.
	none, err := ssh.NewPublicKey(make(ed25519.PublicKey, ed25519.PublicKeySize))
	if err != nil {
		return known, err
	}
	var wrong *knownhosts.KeyError
	if errors.As(check(address, named(address), none), &wrong) && !bytes.Contains(content, []byte("@cert-authority")) {
		for _, w := range wrong.Want {
			known.algorithms = append(known.algorithms, algorithmsOf(w.Key)...)
		}
	}
	return known, nil
}

// valid refuses an address that is not for a line of known_hosts.
func (k hostKeys) valid() error {
	host, _, err := net.SplitHostPort(k.address)
	if err == nil {
		err = CheckAddress(host)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrHostKey, err)
	}
	return nil
}

// algorithmsOf are the signature algorithms of a host key. SHA-1 is not among them.
func algorithmsOf(key ssh.PublicKey) []string {
	if key.Type() == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{key.Type()}
}

// Check reports why the file cannot be used, with the line and the remedy. That there is no file yet is
// no error.
func (h *HostKeys) Check() error {
	_, _, err := h.read()
	return err
}

// byteOrderMark begins a file that some editors wrote. It would become a part of the first address, whose
// pinned key would then not be found.
var byteOrderMark = []byte("\xef\xbb\xbf")

// read returns the file and its check; both are nil if there is no file yet.
func (h *HostKeys) read() ([]byte, ssh.HostKeyCallback, error) {
	info, err := os.Stat(h.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	} else if err != nil {
		return nil, nil, fmt.Errorf("--ssh-known-hosts: %w", err)
	}
	if !info.Mode().IsRegular() { // such as /dev/null: no chmod helps there
		return nil, nil, fmt.Errorf("--ssh-known-hosts %s: is not a file: name a file, or leave the option out; host keys are always pinned", h.Path)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return nil, nil, fmt.Errorf("--ssh-known-hosts %s: other users may write to it (mode %04o): run chmod 0600 %[1]s", h.Path, info.Mode().Perm())
	}
	content, err := os.ReadFile(h.Path)
	if errors.Is(err, fs.ErrPermission) {
		return nil, nil, fmt.Errorf("--ssh-known-hosts: %w: give the file to the server's user: chown --reference=%s %s", err, filepath.Dir(h.Path), h.Path)
	} else if err != nil {
		return nil, nil, fmt.Errorf("--ssh-known-hosts: %w", err)
	}
	if bytes.HasPrefix(content, byteOrderMark) {
		return nil, nil, fmt.Errorf("--ssh-known-hosts: %s:1: it begins with a byte order mark: save the file as UTF-8 without one", h.Path)
	}
	check, err := knownhosts.New(h.Path)
	if err != nil { // with the file and the line
		return nil, nil, fmt.Errorf("--ssh-known-hosts: %s: correct or remove that line", strings.ReplaceAll(err.Error(), "knownhosts: ", ""))
	}
	return content, check, nil
}

// check accepts a key that is pinned, and pins the first key of an address.
func (k hostKeys) check(remote net.Addr, key ssh.PublicKey) error {
	if err := k.valid(); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	content, check, err := k.read()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrHostKey, err)
	}
	if check == nil {
		return k.pin(content, key)
	}
	err = check(k.address, named(k.address), key)
	var wrong *knownhosts.KeyError
	var revoked *knownhosts.RevokedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &revoked):
		return fmt.Errorf("%w: %s has the key %s, which line %d of %s revokes", ErrHostKey, k.address, ssh.FingerprintSHA256(key), revoked.Revoked.Line, revoked.Revoked.Filename)
	case !errors.As(err, &wrong):
		return fmt.Errorf("%w: %s: %w", ErrHostKey, k.address, err)
	case len(wrong.Want) == 0:
		return k.pin(content, key)
	}
	pinned := wrong.Want[0]
	if i := slices.IndexFunc(wrong.Want, func(w knownhosts.KnownKey) bool { return w.Key.Type() == key.Type() }); i >= 0 {
		pinned = wrong.Want[i]
	}
	return fmt.Errorf("%w: the host key of %s has changed: it is %s now, and line %d of %s has %s; if the machine was installed again, run karve ssh forget --ssh-known-hosts '%s' '%s', and otherwise find out who answers at this address",
		ErrHostKey, k.address, ssh.FingerprintSHA256(key), pinned.Line, pinned.Filename, ssh.FingerprintSHA256(pinned.Key), pinned.Filename, knownhosts.Normalize(k.address))
}

// pin adds a line to the file. It writes the file anew, so that a power cut leaves no half line,
// which would make the whole file unreadable.
func (k hostKeys) pin(content []byte, key ssh.PublicKey) error {
	if len(content) > 0 && !bytes.HasSuffix(content, []byte("\n")) {
		content = append(content, '\n')
	}
	content = append(content, knownhosts.Line([]string{k.address}, key)+"\n"...)
	path := k.Path
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if err := atomicfile.Write(path, content, 0o600); err != nil {
		return fmt.Errorf("%w: pin the host key of %s: --ssh-known-hosts: %w", ErrHostKey, k.address, err)
	}
	return nil
}

// Forget removes the pinned keys of a host, as [knownhosts.Normalize] writes it. The file keeps its owner and mode.
func (h *HostKeys) Forget(host string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	path, err := filepath.EvalSymlinks(h.Path)
	if err != nil {
		return fmt.Errorf("--ssh-known-hosts: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("--ssh-known-hosts: %w", err)
	}
	content, _, err := h.read()
	if err != nil {
		return err
	}
	var kept []byte
	found := false
	for line := range bytes.Lines(content) {
		marker, hosts, _, _, _, err := ssh.ParseKnownHosts(line)
		if err == nil && marker == "" && slices.Contains(hosts, knownhosts.Normalize(host)) {
			if len(hosts) > 1 {
				return fmt.Errorf("--ssh-known-hosts %s: a line names %s together with other hosts: edit that line", h.Path, host)
			}
			found = true
			continue
		}
		kept = append(kept, line...)
	}
	if !found {
		return fmt.Errorf("--ssh-known-hosts %s: no line names %s in plain text", h.Path, host)
	}
	return atomicfile.Writer{}.Write(atomicfile.File{Path: path, Data: kept, Mode: info.Mode().Perm(), Owner: info})
}
