package datadir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// beside reads something from the database's file with own. While a server has the file open, only
// that server can read it: then beside asks for path at its control socket in dataDir.
func beside[T any](ctx context.Context, dataDir, file, path string, own func() (*T, error)) (*T, error) {
	out, err := own()
	if !errors.Is(err, sqlitefile.ErrBusy) {
		return out, err
	}
	body, err := askServer(ctx, dataDir, file, path, err)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	out = new(T)
	if err := json.NewDecoder(body).Decode(out); err != nil {
		return nil, fmt.Errorf("read the server's answer: %w", err)
	}
	return out, nil
}

// askServer asks the server that uses the database file; busy is the error that reports that it is
// in use. If the server of dataDir uses another database, that is an error. Closing the answer
// closes the connection.
func askServer(ctx context.Context, dataDir, file, path string, busy error) (io.ReadCloser, error) {
	client := control.New(dataDir)
	body, err := client.Get(ctx, path, file)
	if err == nil {
		return answerBody{body, client}, nil
	}
	client.Close()
	if errors.Is(err, control.ErrMissing) {
		return nil, fmt.Errorf("%w; if a karve server uses it, it is not ready yet, or has another --data-dir: %w", busy, err)
	}
	if errors.Is(err, control.ErrOther) {
		return nil, fmt.Errorf("%w, and %w", busy, err)
	}
	return nil, err
}

type answerBody struct {
	io.ReadCloser
	client *control.Client
}

func (b answerBody) Close() error {
	defer b.client.Close()
	return b.ReadCloser.Close()
}

// LookAt is [sqlitefile.ReadInfo], which also works while a server has the database open.
func LookAt(ctx context.Context, dataDir, path string) (*sqlitefile.Info, error) {
	look, err := beside(ctx, dataDir, path, control.LookPath, func() (*sqlitefile.Info, error) { return sqlitefile.ReadInfo(path) })
	if err != nil {
		return nil, err
	}
	return look, look.Err()
}
