package replacements

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"reflect"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// While the clock is doubted, a token differs from upstream's only in when it becomes valid,
// so it stays valid when the clock is set back by hours. Upstream's does not. While the clock
// is not doubted, nothing differs.
func TestTokensSurviveAClockSetBack(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := serviceaccount.JWTTokenGenerator("https://issuer.example", key)
	if err != nil {
		t.Fatal(err)
	}
	public, private, err := serviceaccount.Claims(core.ServiceAccount{}, nil, nil, nil, nil, nil, 3600, 0, []string{"api"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	asked := *public
	claims := func(g serviceaccount.TokenGenerator) jwt.Claims {
		text, err := g.GenerateToken(t.Context(), public, private)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.ParseSigned(text)
		if err != nil {
			t.Fatal(err)
		}
		var c jwt.Claims
		if err := token.Claims(key.Public(), &c); err != nil {
			t.Fatal(err)
		}
		return c
	}
	doubted := func() bool { return true }
	theirs, ours := claims(upstream), claims(tokenGenerator{upstream, doubted})
	plausible := claims(tokenGenerator{upstream, func() bool { return false }})
	if !reflect.DeepEqual(plausible, theirs) {
		t.Errorf("with a plausible clock: got %+v, want upstream's %+v", plausible, theirs)
	}
	made := theirs.IssuedAt.Time()
	at := func(c jwt.Claims, now time.Time) error { return c.Validate(jwt.Expected{Time: now}) }
	for _, back := range []time.Duration{0, 3 * time.Hour, 23 * time.Hour} {
		if err := at(ours, made.Add(-back)); err != nil {
			t.Errorf("set back by %v: %v", back, err)
		}
	}
	if err := at(theirs, made.Add(-3*time.Hour)); !errors.Is(err, jwt.ErrNotValidYet) {
		t.Errorf("upstream's, set back by 3 h: %v, want %v: is this still needed?", err, jwt.ErrNotValidYet)
	}
	for _, c := range []jwt.Claims{theirs, ours} {
		if err := at(c, made.Add(59*time.Minute)); err != nil {
			t.Errorf("before its end: %v", err)
		}
		if err := at(c, made.Add(2*time.Hour)); !errors.Is(err, jwt.ErrExpired) {
			t.Errorf("after its end: %v, want %v", err, jwt.ErrExpired)
		}
	}
	if *ours.Expiry != *theirs.Expiry || ours.Subject != theirs.Subject || ours.ID != theirs.ID || ours.Issuer != theirs.Issuer || !ours.Audience.Contains("api") {
		t.Errorf("got %+v, want but for its beginning %+v", ours, theirs)
	}
	if *public.IssuedAt != *asked.IssuedAt || *public.NotBefore != *asked.NotBefore {
		t.Error("the caller's claims were changed")
	}
}
