package storage

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

// An etcd that was restored without a bump of its revision ends the server. One read of another member's past does not.
func TestAnEtcdThatWentBack(t *testing.T) {
	for name, c := range map[string]struct {
		revisions []int64 // 0: no answer
		back      bool
	}{
		"it goes on":               {[]int64{5, 5, 0, 7}, false},
		"one read is of the past":  {[]int64{5, 9, 8, 9, 8, 0, 12}, false},
		"it was restored":          {[]int64{500, 0, 0, 280, 281}, true},
		"it was away between both": {[]int64{500, 280, 0, 281}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			reads := 0
			err := wentBack(ctx, func(context.Context) (int64, error) {
				if reads == len(c.revisions) {
					cancel()
					return 0, ctx.Err()
				}
				reads++
				if now := c.revisions[reads-1]; now > 0 {
					return now, nil
				}
				return 0, errors.New("away")
			})
			if (err != nil) != c.back || err != nil && !strings.Contains(err.Error(), "--bump-revision") {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}
