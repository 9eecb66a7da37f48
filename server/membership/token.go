package membership

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"unicode"
)

// The length of a token in bytes. Karve's own have 43, for 32 random bytes.
const (
	leastToken = 32
	mostToken  = 1024
)

// Token is the secret that the servers of a cluster share. It does not print.
type Token struct{ secret string }

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
	f, err := os.Open(path)
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
	if mode := info.Mode().Perm(); mode&0o077 != 0 && runtime.GOOS != "windows" {
		return nil, fmt.Errorf("%s has mode %04o, so other users may read it: run chmod 0600 %[1]s", path, mode)
	}
	content, err := io.ReadAll(io.LimitReader(f, mostToken+2)) // and the end of the line
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	secret := strings.TrimSpace(string(content))
	switch {
	case len(secret) > mostToken || strings.ContainsFunc(secret, unicode.IsControl):
		return nil, fmt.Errorf("%s is not a token: want one line with %d to %d characters", path, leastToken, mostToken)
	case len(secret) < leastToken:
		return nil, fmt.Errorf("the token in %s has %d characters, and could be guessed: want %d or more; karve cluster-token create makes one", path, len(secret), leastToken)
	}
	return &Token{secret}, nil
}
