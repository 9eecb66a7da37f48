package certs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// lockPatience is how long to wait for another program that changes a kubeconfig.
	lockPatience = 20 * time.Second
	lockPause    = 10 * time.Millisecond
)

// locked calls f while it holds kubectl's locks of the kubeconfigs, which are files whose names end in
// .lock.
func locked(ctx context.Context, files []string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		access := &lockAccess{files: files, f: f}
		err := clientcmd.ModifyConfig(access, clientcmdapi.Config{}, false)
		var held *fs.PathError
		if access.called || !errors.As(err, &held) || !errors.Is(err, fs.ErrExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is there: another program is changing the kubeconfig; if none is, remove this file", held.Path)
		case <-time.After(lockPause):
		}
	}
}

// lockAccess makes [clientcmd.ModifyConfig] call f under its locks and do nothing else. That function changes a
// file in several steps, and the functions for its locks are not exported.
type lockAccess struct {
	clientcmd.ConfigAccess
	files  []string
	f      func() error
	called bool
}

// GetLoadingPrecedence returns the files to lock.
func (a *lockAccess) GetLoadingPrecedence() []string { return a.files }

// GetStartingConfig is called under the locks. What it returns is equal to what is to be written.
func (a *lockAccess) GetStartingConfig() (*clientcmdapi.Config, error) {
	a.called = true
	return &clientcmdapi.Config{}, a.f()
}
