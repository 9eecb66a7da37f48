package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Beside reads something from the database's file with own. While a server has the file open, only
// that server can read it: then Beside asks for path at its control socket in dataDir.
func Beside[T any](ctx context.Context, dataDir, file, path string, own func() (*T, error)) (*T, error) {
	out, err := own()
	if !errors.Is(err, sqlitefile.ErrBusy) {
		return out, err
	}
	client := control.New(dataDir)
	defer client.Close()
	body, asking := client.Get(ctx, path, file)
	switch {
	case errors.Is(asking, control.ErrMissing):
		return nil, fmt.Errorf("%w; if a karve server uses it, it is not ready yet, or has another --data-dir: %w", err, asking)
	case errors.Is(asking, control.ErrOther):
		return nil, fmt.Errorf("%w, and %w", err, asking)
	case asking != nil:
		return nil, asking
	}
	defer body.Close()
	out = new(T)
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return nil, fmt.Errorf("read the server's answer: %w", err)
	}
	return out, nil
}

// LookAt is [sqlitefile.ReadInfo], which also works while a server has the database open.
func LookAt(ctx context.Context, dataDir, path string) (*sqlitefile.Info, error) {
	look, err := Beside(ctx, dataDir, path, control.LookPath, func() (*sqlitefile.Info, error) { return sqlitefile.ReadInfo(path) })
	if err != nil {
		return nil, err
	}
	return look, look.Err()
}
