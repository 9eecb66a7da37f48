package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Limits of a download. A program has about 30 MB, and its list of checksums some kB.
const (
	maxList    = 1 << 20
	maxProgram = 256 << 20
	stallLimit = time.Minute
)

// origin is the address of a release's files. Its credentials are in no message.
type origin struct {
	base  *url.URL
	stall time.Duration // the longest wait for an answer, and for more of it
}

// client does not tell a host that it is redirected to where it comes from: Go would send the address as
// Referer, and leave out only user and password.
var client = &http.Client{CheckRedirect: func(next *http.Request, via []*http.Request) error {
	next.Header.Del("Referer")
	if len(via) >= 10 { // as http.DefaultClient
		return errors.New("it redirects too often")
	}
	return nil
}}

// newOrigin parses the address of a release, as [DownloadVariable] has it.
func newOrigin(address string) (*origin, error) {
	// Some servers read a plus sign as a space.
	base, err := url.Parse(strings.ReplaceAll(address, "+", "%2B"))
	if err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" {
		// The error of the parser has the address, with its password.
		return nil, fmt.Errorf("%s is no address of a release: want one such as https://mirror.example/karve/%s", DownloadVariable, Version)
	}
	return &origin{base, stallLimit}, nil
}

// String is the address without user, password and parameters.
func (o *origin) String() string {
	public := url.URL{Scheme: o.base.Scheme, Host: o.base.Host, Path: o.base.Path, RawPath: o.base.RawPath}
	return strings.TrimSuffix(public.String(), "/")
}

// show is the address of a file, as messages have it.
func (o *origin) show(name string) string { return o.String() + "/" + name }

// read downloads a file of at most limit bytes. It calls begin, if there is one, with the size that
// the server says, or -1.
func (o *origin) read(ctx context.Context, name string, limit int64, begin func(size int64)) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(o.stall, func() { cancel(fmt.Errorf("the server sent nothing for %v", o.stall)) })
	defer stalled.Stop()

	content, err := o.get(ctx, name, limit, begin, func() { stalled.Reset(o.stall) })
	if err == nil {
		return content, nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	} else if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // the outer one has the address, or that of a redirect with its signature
	}
	return nil, fmt.Errorf("%s: %w", o.show(name), err)
}

// get is read without the address in its errors, and calls progress when something has come.
func (o *origin) get(ctx context.Context, name string, limit int64, begin func(size int64), progress func()) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.base.JoinPath(name).String(), nil)
	if err != nil {
		return nil, err
	}
	// Otherwise the transport unpacks what some servers call compressed.
	request.Header.Set("Accept-Encoding", "identity")
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	progress()
	if begin != nil {
		begin(response.ContentLength)
	}
	content, err := io.ReadAll(io.LimitReader(watched{response.Body, progress}, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("it has more than %d MB", limit>>20)
	}
	return content, err
}

// watched reports what is read.
type watched struct {
	io.Reader
	progress func()
}

func (w watched) Read(p []byte) (int, error) {
	n, err := w.Reader.Read(p)
	if n > 0 {
		w.progress()
	}
	return n, err
}
