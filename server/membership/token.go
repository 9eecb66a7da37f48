package membership

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/shell"
)

// The length of a token in characters. Karve's own have 43, for 32 random bytes. A token with
// fewer than leastDistinct different characters is a placeholder.
const (
	leastToken    = 32
	mostToken     = 1024
	leastDistinct = 10
)

// Token is the secret that the servers of a cluster share. It does not print.
type Token struct{ secret, file string }

// String keeps the secret out of logs and errors.
func (Token) String() string { return "(a cluster token)" }

// GoString is String.
func (t Token) GoString() string { return t.String() }

// NewToken returns a random token, as a line for a file.
func NewToken() string {
	secret := make([]byte, 32)
	rand.Read(secret) // never fails
	return base64.RawURLEncoding.EncodeToString(secret) + "\n"
}

// ReadToken reads a token from a file. No other user may be able to read the file. The errors name
// the file and never repeat what is in it.
func ReadToken(path string) (*Token, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO must not block
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: karve cluster-token create %s makes one for a new cluster; the other servers need a copy of it", err, path)
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o, so other users may read it: run chmod 0600 %s", path, mode, shell.Quoted(path))
	}
	if owner, ok := ownership.Of(info); ok && owner.UID != 0 && owner.UID != os.Geteuid() {
		return nil, fmt.Errorf("%s belongs to user %d, and this process runs as user %d: run chown %[3]d %s", path, owner.UID, os.Geteuid(), shell.Quoted(path))
	}
	const most = utf8.UTFMax*mostToken + 2 // and the end of the line
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	secret := strings.TrimSpace(string(content))
	length, distinct := utf8.RuneCountInString(secret), map[rune]bool{}
	for _, r := range secret {
		distinct[r] = true
	}
	switch {
	case len(content) > most || length > mostToken || !utf8.ValidString(secret) || strings.ContainsFunc(secret, unicode.IsControl):
		return nil, fmt.Errorf("%s is not a token: want one line with %d to %d characters", path, leastToken, mostToken)
	case length < leastToken:
		return nil, fmt.Errorf("the token in %s has %d characters, and could be guessed: want %d or more; karve cluster-token create makes one", path, length, leastToken)
	case len(distinct) < leastDistinct:
		return nil, fmt.Errorf("the token in %s has %d different characters, and could be guessed: want %d or more; karve cluster-token create makes one", path, len(distinct), leastDistinct)
	}
	return &Token{secret, path}, nil
}
