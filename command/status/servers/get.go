package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"

	"k8s.io/client-go/rest"
)

// answerLimit is how many bytes of an answer are read.
const answerLimit = 16 << 20

// Getter returns what a running server answers for a path; of an answer that is not 200 OK, the text and an error.
type Getter func(ctx context.Context, path string) ([]byte, error)

// NewGetter asks the server of a data directory, which may be another user's: it follows no redirect, and limits answers. done frees what
// get uses.
func NewGetter(dir string, config *rest.Config) (get Getter, done func(), err error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", filepath.Join(dir, KubeconfigName), err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return func(ctx context.Context, path string) ([]byte, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
		if err != nil {
			return nil, err
		}
		response, err := client.Do(request)
		if inner := (*url.Error)(nil); errors.As(err, &inner) {
			err = inner.Err // without the URL
		}
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(io.LimitReader(response.Body, answerLimit))
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", path, response.Status)
		}
		return text, err
	}, client.CloseIdleConnections, nil
}
