package tunnels

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// Directory is the directory in the data directory with the files of this package.
const Directory = "ssh"

// KeyPath returns the path of the key that Karve generates.
func KeyPath(dataDir string) string { return filepath.Join(dataDir, Directory, "id_ed25519") }

// KnownHostsPath returns the default path of the pinned host keys.
func KnownHostsPath(dataDir string) string { return filepath.Join(dataDir, Directory, "known_hosts") }

// GenerateKey writes a new key to path, and creates its directory, unless the file exists.
func GenerateKey(path, comment string) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrKey, err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKey, err)
	}
	block, err := ssh.MarshalPrivateKey(key, comment)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrKey, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrKey, err)
	}
	if err := atomicfile.Write(path, pem.EncodeToMemory(block), 0o600); err != nil {
		return fmt.Errorf("%w: %w", ErrKey, err)
	}
	return nil
}

// ReadKey reads a private key. It refuses one that other users could have read or replaced.
func ReadKey(path string) (ssh.Signer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	if !info.Mode().IsRegular() || info.Size() > 64<<10 {
		return nil, fmt.Errorf("%w: %s is not a file with a private key", ErrKey, path)
	}
	if err := checkMode(path, info); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKey, err)
	}
	content := make([]byte, info.Size())
	if _, err := f.ReadAt(content, 0); err != nil {
		return nil, fmt.Errorf("%w: read %s: %w", ErrKey, path, err)
	}
	signer, err := ssh.ParsePrivateKey(content)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, fmt.Errorf("%w: %s has a passphrase, which a server cannot be asked for: use a key without one", ErrKey, path)
	case err != nil:
		return nil, fmt.Errorf("%w: %s is not a private key in OpenSSH's or PEM format: %w", ErrKey, path, err)
	}
	return signer, nil
}

// KeyFile returns a Config.Signer, which reads the file each time.
func KeyFile(path string) func() (ssh.Signer, error) {
	return func() (ssh.Signer, error) {
		signer, err := ReadKey(path)
		if err != nil {
			return nil, fmt.Errorf("--ssh-keyfile: %w", err)
		}
		return signer, nil
	}
}

// AuthorizedKey returns the line for the authorized_keys file of nodes. It lets the key forward
// connections and do nothing else.
func AuthorizedKey(signer ssh.Signer, comment string) string {
	line := string(ssh.MarshalAuthorizedKey(signer.PublicKey()))
	return "restrict,port-forwarding " + line[:len(line)-1] + " " + comment
}

// Authorizes reports whether the lines of an authorized_keys file have the key of line, with whatever
// comment, and how many other keys they have.
func Authorizes(lines, line string) (authorized bool, others int) {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return false, 0
	}
	for l := range strings.Lines(lines) {
		if has, _, _, _, err := ssh.ParseAuthorizedKey([]byte(l)); err != nil {
			continue
		} else if bytes.Equal(has.Marshal(), key.Marshal()) {
			authorized = true
		} else {
			others++
		}
	}
	return authorized, others
}
