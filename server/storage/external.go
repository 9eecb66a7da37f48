package storage

import (
	"context"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/kine/external"
	"github.com/karve-k8s/karve/kine/location"
)

// useExternal serves the user's database to the API server. While the database does not answer, requests fail.
func (s *Storage) useExternal(ctx context.Context, ready func()) error {
	where := s.config.Location.External
	var backend *external.Backend
	wait := waiting{location.Option, where.String(), s.config.Log, s.config.Status}
	err := wait.until(ctx, func(ctx context.Context) (err error) {
		backend, err = where.Open(ctx, external.Options{
			CAFile: s.config.CAFile, CertFile: s.config.CertFile, KeyFile: s.config.KeyFile,
			Metrics: legacyregistry.Registerer(), State: s.externalState,
			Warn:     func(err error) { s.config.Log.Warn(err) },
			WentBack: func(err error) { s.config.Log.Error(err) },
		})
		return err
	})
	if err != nil {
		return err
	}
	defer backend.Close()
	served, err := external.Serve(ctx, backend)
	if err != nil {
		return err
	}
	defer served.Close() // before the backend
	endpoint := served.URL()
	s.connection = Connection{Endpoints: []string{endpoint}, Store: databaseStore{backend, endpoint}, Ask: asking(endpoint)}
	ready()
	<-ctx.Done()
	return nil
}

func (s *Storage) externalState(err error) {
	if err != nil {
		s.config.Log.Error(err)
		return
	}
	s.config.Log.Info("the datastore answers again")
}
