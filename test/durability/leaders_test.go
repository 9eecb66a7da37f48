//go:build linux

package durability

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// employ gives controllers and scheduler something to do: it creates Deployments, and deletes older ones.
func (s *several) employ() {
	const kept = 3
	path := "/apis/apps/v1/namespaces/default/deployments"
	for n := 0; !s.ended(); n++ {
		for _, p := range s.servers {
			ctx, cancel := s.limited()
			err := p.api.Load().Do(ctx, http.MethodPost, path, Deployment(fmt.Sprintf("busy-%d", n), 3), nil)
			if n >= kept && err == nil {
				err = p.api.Load().Do(ctx, http.MethodDelete, fmt.Sprintf("%s/busy-%d", path, n-kept), nil, nil)
			}
			cancel()
			if err == nil {
				break
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// fenced checks that no two servers led at the same time.
func (s *several) fenced() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), severalLimit)
	defer cancel()
	checked, err := s.fencer.Check(ctx, s.servers[0].api.Load(), append(s.servers[0].audits, s.servers[1].audits...))
	if err != nil {
		s.t.Errorf("the check that no two servers led at the same time: %v", err)
	}
	if checked == nil {
		return
	}
	s.t.Logf("writes of leaders: %+v", *checked)
	if len(checked.Acts) == 0 {
		s.t.Error("no leader has written anything")
	}
}
