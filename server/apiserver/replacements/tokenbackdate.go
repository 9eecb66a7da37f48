package replacements

import (
	"context"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// tokenBackdate is how far the clock can be set back without a token that was made
// before being "not valid yet".
const tokenBackdate = 24 * time.Hour

// BackdateTokens returns upstream's generator of tokens, which begin a day earlier while the
// clock is doubted.
func BackdateTokens(upstreams serviceaccount.TokenGenerator, doubted func() bool) serviceaccount.TokenGenerator {
	return tokenGenerator{upstreams, doubted}
}

// tokenGenerator makes the tokens of service accounts as upstream does, but valid from a
// day before as long as the clock is doubted. A board without a clock battery may make
// some with a clock that is ahead, by the hours of a time zone for example, and NTP then
// sets it back: upstream's are refused until the clock has caught up, and Pods with
// them. When a token begins to be valid says nothing else: it is always when it was
// made. Its end is upstream's.
//
// With a clock that is right a token is upstream's in everything: verifiers outside the
// cluster may limit the time between the beginning and the end.
type tokenGenerator struct {
	serviceaccount.TokenGenerator
	doubted func() bool
}

// GenerateToken implements serviceaccount.TokenGenerator.
func (b tokenGenerator) GenerateToken(ctx context.Context, public *jwt.Claims, private any) (string, error) {
	claims := *public
	if b.doubted() {
		claims.IssuedAt, claims.NotBefore = earlier(claims.IssuedAt), earlier(claims.NotBefore)
	}
	return b.TokenGenerator.GenerateToken(ctx, &claims, private)
}

func earlier(t *jwt.NumericDate) *jwt.NumericDate {
	if t == nil {
		return nil
	}
	return jwt.NewNumericDate(t.Time().Add(-tokenBackdate))
}
