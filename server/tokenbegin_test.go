package server_test

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/server"
)

// A token is valid from its time of issue, so that its whole life is what the client
// requested. Only while the clock is doubted is it valid from a day earlier. The server
// accepts both.
func TestTokensAreBackdatedOnlyWhileTheClockIsDoubted(t *testing.T) {
	for name, tc := range map[string]struct {
		doubted bool
		before  time.Duration
	}{
		"plausible": {false, 0},
		"doubted":   {true, 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, server.WithClockDoubted(tc.doubted))
			earliest := time.Now().Add(-tc.before).Truncate(time.Second)
			token, err := c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default",
				&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			latest := time.Now().Add(-tc.before)
			var claims struct{ Iat, Nbf, Exp int64 }
			payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token.Status.Token, ".")[1])
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(payload, &claims); err != nil {
				t.Fatal(err)
			}
			for what, at := range map[string]int64{"iat": claims.Iat, "nbf": claims.Nbf} {
				if begin := time.Unix(at, 0); begin.Before(earliest) || begin.After(latest) {
					t.Errorf("%s: got %v, want %v to %v", what, begin, earliest, latest)
				}
			}
			if got, want := claims.Exp-claims.Iat, int64((tc.before + time.Hour).Seconds()); got != want {
				t.Errorf("it lasts for %d s, want %d", got, want)
			}
			review, err := c.AuthenticationV1().TokenReviews().Create(t.Context(),
				&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}, metav1.CreateOptions{})
			if err != nil || !review.Status.Authenticated {
				t.Errorf("the server's own review: %+v, %v, want it authenticated", review, err)
			}
		})
	}
}
