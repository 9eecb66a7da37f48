package apiserver

import (
	"context"
	"time"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// tokenBackdate is how far the clock can be set back without a token that was made
// before being "not valid yet".
const tokenBackdate = 24 * time.Hour

// backdated makes the tokens of service accounts as upstream does, but valid from a
// day before. A board without a clock battery may make some with a clock that is
// ahead, by the hours of a time zone say, and NTP then sets it back: upstream's are
// refused until the clock has caught up, and Pods with them. When a token begins to
// be valid says nothing else: it is always when it was made. Its end is upstream's.
type backdated struct{ serviceaccount.TokenGenerator }

// GenerateToken implements serviceaccount.TokenGenerator.
func (b backdated) GenerateToken(ctx context.Context, public *jwt.Claims, private any) (string, error) {
	claims := *public
	claims.IssuedAt, claims.NotBefore = earlier(claims.IssuedAt), earlier(claims.NotBefore)
	return b.TokenGenerator.GenerateToken(ctx, &claims, private)
}

func earlier(t *jwt.NumericDate) *jwt.NumericDate {
	if t == nil {
		return nil
	}
	return jwt.NewNumericDate(t.Time().Add(-tokenBackdate))
}
