package tunnels

import (
	"crypto/ed25519"
	"crypto/rand"
	"slices"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

func TestOffered(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	line := AuthorizedKey(signer, "karve@server")
	key := strings.TrimPrefix(line, "restrict,port-forwarding ")
	limited := `restrict,port-forwarding,from="192.0.2.7,2001:db8::/32" ` + key
	for text, want := range map[string][]string{
		"":          nil,
		line + "\n": {line},
		"# the first server\n\n" + line + "\r\n  " + limited: {line, limited},
		strings.TrimSuffix(line, " karve@server"):            {strings.TrimSuffix(line, " karve@server")},
	} {
		if got, err := Offered(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	for text, says := range map[string]string{
		"restrict,port-forwarding ssh-ed25519 AAAA broken": "no key found",
		"not a key":                           "no key found",
		key:                                   "restrict is missing",
		"port-forwarding " + key:              "restrict is missing",
		"restrict " + key:                     "port-forwarding is missing",
		"port-forwarding,restrict " + key:     "restrict comes after port-forwarding",
		"restrict,port-forwarding,pty " + key: `"pty"`,
		`restrict,port-forwarding,command="reboot" ` + key:                 `command=`,
		`restrict,port-forwarding,environment="LD_PRELOAD=x" ` + key:       "environment=",
		`restrict,port-forwarding,from="a\",command=\"b" ` + key:           "from=",
		"restrict,port-forwarding,cert-authority " + key:                   "cert-authority",
		"restrict,port-forwarding " + strings.Replace(key, "@", "\x1b", 1): "comment",
	} {
		_, err := Offered(line + "\n" + text + "\n")
		wants(t, err, ErrOffer, "line 2: ", says)
	}
}
