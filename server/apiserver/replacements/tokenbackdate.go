package replacements

import (
	"context"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// tokenBackdate is how far the clock can be set back before an existing token is "not valid
// yet".
const tokenBackdate = 24 * time.Hour

// BackdateTokens wraps upstream's token generator. While the clock is doubted, tokens are
// valid from a day earlier.
func BackdateTokens(upstreams serviceaccount.TokenGenerator, doubted func() bool) serviceaccount.TokenGenerator {
	return tokenGenerator{upstreams, doubted}
}

// tokenGenerator makes the tokens of service accounts as upstream does, except that while the
// clock is doubted, they are valid from a day earlier.
//
// A board without a clock battery may issue tokens while its clock is ahead, for example by
// the hours of a time zone. When NTP then sets the clock back, upstream's tokens, and the Pods
// that use them, are refused until the clock has caught up. The start of a token's validity
// has no other meaning: upstream always sets it to the time of issue. The end of its validity
// is upstream's.
//
// While the clock is right, a token is the same as upstream's, because verifiers outside the
// cluster may limit the time between start and end.
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
