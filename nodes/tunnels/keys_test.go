package tunnels

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"context"

	"golang.org/x/crypto/ssh"
)

type ctx = context.Context

func writeKey(t *testing.T, path, kind string, passphrase []byte) string {
	t.Helper()
	var private crypto.PrivateKey
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	private = ed
	if kind == "ecdsa" {
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	var block *pem.Block
	if passphrase == nil {
		block, err = ssh.MarshalPrivateKey(private, "")
	} else {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(private, "", passphrase)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadKey(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	writeKey(t, at("good"), "ed25519", nil)
	if _, err := ReadKey(at("good")); err != nil {
		t.Error(err)
	}
	writeKey(t, at("open"), "ed25519", nil)
	if err := os.Chmod(at("open"), 0o640); err != nil {
		t.Fatal(err)
	}
	_, err := ReadKey(at("open"))
	wants(t, err, ErrKey, "mode 0640", "chmod 0600 "+at("open"))
	writeKey(t, at("locked"), "ed25519", []byte("secret"))
	_, err = ReadKey(at("locked"))
	wants(t, err, ErrKey, at("locked"), "passphrase", "without one")
	if err := os.WriteFile(at("text"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = ReadKey(at("text"))
	wants(t, err, ErrKey, at("text"))
	_, err = ReadKey(at("none"))
	wants(t, err, os.ErrNotExist, at("none"))
	_, err = ReadKey(dir)
	wants(t, err, ErrKey, dir)
	if os.Geteuid() == 0 {
		writeKey(t, at("foreign"), "ed25519", nil)
		if err := os.Chown(at("foreign"), 12345, 12345); err != nil {
			t.Fatal(err)
		}
		_, err = ReadKey(at("foreign"))
		wants(t, err, ErrKey, "user 12345", "chown 0 "+at("foreign"))
	}
}

func TestGenerateKey(t *testing.T) {
	path := KeyPath(t.TempDir())
	if err := GenerateKey(path, "karve@here"); err != nil {
		t.Fatal(err)
	}
	first, err := ReadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := GenerateKey(path, "karve@here"); err != nil {
		t.Fatal(err)
	}
	second, err := ReadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if ssh.FingerprintSHA256(first.PublicKey()) != ssh.FingerprintSHA256(second.PublicKey()) {
		t.Error("a second start replaced the key")
	}
	line := AuthorizedKey(first, "karve@here")
	key, comment, options, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil || string(key.Marshal()) != string(first.PublicKey().Marshal()) || comment != "karve@here" || strings.Join(options, ",") != "restrict,port-forwarding" {
		t.Errorf("the line %q is %v, %q, %v", line, options, comment, err)
	}
}

func TestParseJump(t *testing.T) {
	for text, want := range map[string]string{
		"karve@bastion":            "karve@bastion:22",
		"karve@bastion:2222":       "karve@bastion:2222",
		"karve@10.0.0.1":           "karve@10.0.0.1:22",
		"karve@[2001:db8::1]:2222": "karve@[2001:db8::1]:2222",
		"karve@[2001:db8::1]":      "karve@[2001:db8::1]:22",
	} {
		if j, err := ParseJump(text); err != nil || j.String() != want {
			t.Errorf("%s: %v, %v", text, j, err)
		}
	}
	for _, text := range []string{"", "bastion", "@bastion", "karve@", "karve@bastion:0", "karve@bastion:x", "karve@bastion:70000", "a@b@c", "karve@a/b", "-oProxyCommand=x@bastion"} {
		if j, err := ParseJump(text); err == nil {
			t.Errorf("%q is accepted as %v", text, j)
		}
	}
}

// A file that an older or another program wrote, or a person, may have anything in it.
func TestKnownHostsThatCannotBeRead(t *testing.T) {
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGf2C5Y2pZ9m8bqRj1Vw7bU9m4yFZk0v9S4dQF0yJ2aB"
	for _, good := range []string{"", "# a comment\n\n", "10.0.0.2 " + key, "[10.0.0.2]:2222,node " + key + " a comment\r\n", "@revoked * " + key + "\n", "*.example.org,!a.example.org " + key} {
		h := &HostKeys{Path: filepath.Join(t.TempDir(), "known_hosts")}
		if err := os.WriteFile(h.Path, []byte(good), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := h.Check(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	if err := (&HostKeys{Path: filepath.Join(t.TempDir(), "none")}).Check(); err != nil {
		t.Error(err)
	}
	for _, bad := range []struct{ lines, says string }{
		{"10.0.0.2 ssh-ed25519 broken\n", "illegal base64"},
		{"10.0.0.2\n", "missing host pattern"},
		{"10.0.0.2 ssh-ed25519\n", "missing key type"},
		{"10.0.0.2 ecdsa-sha2-nistp256 " + key[len("ssh-ed25519 "):], "key type mismatch"},
		{"10.0.0.2 ssh-rsa1 AAAA\n", "short read"},
		{"10.0.0.2 1024 35 1234567890\n", "illegal base64"}, // of SSH 1
		{"@trusted 10.0.0.2 " + key, "unexpected marker"},
		{"|1|x|y " + key, "illegal base64"},
		{"[10.0.0.2:22 " + key, "missing ']'"},
		{"-----BEGIN OPENSSH PRIVATE KEY-----\n", "illegal base64"},
	} {
		h := &HostKeys{Path: filepath.Join(t.TempDir(), "known_hosts")}
		if err := os.WriteFile(h.Path, []byte("10.0.0.1 "+key+"\n"+bad.lines), 0o600); err != nil {
			t.Fatal(err)
		}
		err := h.Check()
		if err == nil {
			t.Errorf("%q is accepted", bad.lines)
			continue
		}
		wants(t, err, err, "--ssh-known-hosts: "+h.Path+":2: ", bad.says, "correct or remove")
		_, err = h.of("10.0.0.1:22")
		wants(t, err, ErrHostKey, h.Path+":2: ")
	}
	h := &HostKeys{Path: filepath.Join(t.TempDir(), "known_hosts")}
	if err := os.WriteFile(h.Path, []byte("\xef\xbb\xbf10.0.0.1 "+key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.Check(); err == nil || !strings.Contains(err.Error(), h.Path+":1: it begins with a byte order mark") {
		t.Errorf("a byte order mark: %v", err)
	}
}

// Nobody turns the check of host keys off with a file that keeps nothing.
func TestKnownHostsThatAreNoFile(t *testing.T) {
	for _, path := range []string{os.DevNull, t.TempDir()} {
		err := (&HostKeys{Path: path}).Check()
		wants(t, err, err, "--ssh-known-hosts "+path+": is not a file", "host keys are always pinned")
		if strings.Contains(err.Error(), "chmod") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestKnownHostsOfOtherUsers(t *testing.T) {
	h := &HostKeys{Path: filepath.Join(t.TempDir(), "known_hosts")}
	if err := os.WriteFile(h.Path, []byte("10.0.0.1 ssh-ed25519 broken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := h.of("10.0.0.1:22")
	wants(t, err, ErrHostKey, h.Path+":1")
	if err := os.Chmod(h.Path, 0o622); err != nil {
		t.Fatal(err)
	}
	_, err = h.of("10.0.0.1:22")
	wants(t, err, ErrHostKey, "chmod 0600 "+h.Path)
}
