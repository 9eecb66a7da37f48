package replacements

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	upstreamx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
)

// errToken is the error for a bad token.
var errToken = errors.New("bad token")

// FuzzClientCertificates sends requests through upstream's chain of authenticators, in the
// order in which kube-apiserver combines them (k8s.io/kubernetes
// pkg/kubeapiserver/authenticator): front proxy, client certificate, token. Each byte is a
// request or an event.
//
// With and without the memory, each request is authenticated as the same user, whatever came
// before. The only exception is a certificate whose authority was removed less than
// certificateTrust ago: it may still be accepted, and then as its own user.
func FuzzClientCertificates(f *testing.F) {
	for _, seed := range []string{"\x00\x00\x01\x00", "\x08\x00\x10\x01\x18\x02", "\x00\xf0\x00\xf1\x00", "\x02\x0a\x02\x12\x03\xf1\xf1\x03", "\x04\x05\x06\x07\x0c\x14\x1c", "\x00\xf2\x00\x00\xf1\xf1\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, events []byte) {
		if len(events) > 200 {
			return
		}
		synctest.Test(t, func(t *testing.T) { sameUsers(t, events) })
	})
}

func sameUsers(t *testing.T, events []byte) {
	c := newCertificateTest(t)
	proxyRoots := x509.NewCertPool()
	other := &certificateTest{T: t}
	other.authority, other.key = other.make("proxy authority", time.Hour, nil)
	proxyRoots.AddCert(other.authority)
	leaves := []*x509.Certificate{c.leaf("ann", time.Hour), c.leaf("bob", time.Hour), c.leaf("short", 700*time.Millisecond), c.leaf("front-proxy-client", time.Hour),
		other.leaf("front-proxy-client", time.Hour), other.leaf("ann", time.Hour), nil, c.leaf("ann", time.Hour)}
	proxied := headerrequest.StaticStringSlice{"X-Remote-User"}
	options := func(roots func() *x509.CertPool) upstreamx509.VerifyOptionFunc {
		return func() (x509.VerifyOptions, bool) {
			o := upstreamx509.DefaultVerifyOptions()
			o.Roots = roots()
			return o, true
		}
	}
	upstream := union.New(
		headerrequest.NewDynamicVerifyOptionsSecure(options(func() *x509.CertPool { return proxyRoots }), headerrequest.StaticStringSlice{"front-proxy-client"},
			proxied, headerrequest.StaticStringSlice{}, headerrequest.StaticStringSlice{"X-Remote-Group"}, headerrequest.StaticStringSlice{}),
		upstreamx509.NewDynamic(options(func() *x509.CertPool { return c.roots }), upstreamx509.CommonNameUserConversion),
		bearertoken.New(authenticator.TokenFunc(tokens)),
	)
	memory := rememberCertificates(upstream, proxied)
	var removed time.Time // when the authority was removed
	trusted := c.roots
	for _, event := range events {
		switch {
		case event == 0xf0: // the authority is removed from its file
			if c.roots == trusted {
				c.roots, removed = x509.NewCertPool(), time.Now()
			}
			continue
		case event == 0xf2: // the authority is put back
			c.roots, removed = trusted, time.Time{}
			continue
		case event >= 0xf0:
			time.Sleep(400 * time.Millisecond)
			continue
		}
		leaf := leaves[event&7]
		r := (&http.Request{Header: http.Header{}}).WithContext(context.Background())
		if leaf != nil {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
		}
		switch event >> 3 & 3 {
		case 1:
			r.Header.Set("Authorization", "Bearer good")
		case 2:
			r.Header.Set("Authorization", "Bearer bad")
		}
		if event>>5&1 == 1 {
			r.Header.Set("X-Remote-User", "carol")
		}
		// Upstream's token authenticator removes the header that it has accepted.
		want := answerOf(upstream, r.Clone(r.Context()))
		got := answerOf(memory, r)
		if got == want {
			continue
		}
		late := !removed.IsZero() && time.Since(removed) < certificateTrust
		if own := ownAnswer(leaf); !late || got != own {
			t.Fatalf("event %#x of %x: got %s, want %s (%v after the authority was removed)", event, events, got, want, time.Since(removed))
		}
	}
}

func tokens(_ context.Context, token string) (*authenticator.Response, bool, error) {
	if token != "good" {
		return nil, false, errToken
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: "token"}}, true, nil
}

// answerOf describes the user of a request: name, groups and credential.
func answerOf(a authenticator.Request, r *http.Request) string {
	response, ok, err := a.AuthenticateRequest(r)
	if err != nil || !ok {
		return fmt.Sprintf("nobody (refused: %v)", err != nil)
	}
	groups := slices.Sorted(slices.Values(response.User.GetGroups()))
	return fmt.Sprintf("%s %v %v", response.User.GetName(), groups, response.User.GetExtra()[user.CredentialIDKey])
}

// ownAnswer describes the user that a certificate names.
func ownAnswer(leaf *x509.Certificate) string {
	if leaf == nil {
		return ""
	}
	return answerOf(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return upstreamx509.CommonNameUserConversion([]*x509.Certificate{leaf})
	}), nil)
}
