package admin

import (
	"context"
	"path/filepath"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/kineimport"
)

// Opened tells what [Open] did before the engine started.
type Opened struct {
	Conversion *kineimport.Conversion // of a database of kine's; nil if there was none to do
	Upgrade    *Upgrade               // of a database of an older release; nil if it was of this one
}

// Open is [OpenEngine] in a directory as it is found: a database of kine's is converted first,
// and one of an older release brought to this one's schema.
func Open(ctx context.Context, lock *directory.Lock, opts datastore.Options) (*datastore.Engine, Opened, error) {
	var done Opened
	err := opts.Validate()
	if err == nil && opts.Durability != datastore.Memory && lock != nil {
		if done.Conversion, err = kineimport.Convert(ctx, lock, opts.Progress("converting "+kineimport.FileName)); err == nil {
			done.Upgrade, err = upgrade(filepath.Join(lock.Dir(), datastore.EngineFile), steps, opts, func(string) {})
		}
	}
	if err != nil {
		return nil, Opened{}, err
	}
	e, err := datastore.OpenEngine(lock, opts)
	return e, done, err
}

// openPlain opens what a command works on: no ballast, and little memory.
func openPlain(lock *directory.Lock) (*datastore.Engine, error) {
	opts := datastore.Options{BallastBytes: -1, CacheBytes: 1 << 20}
	if _, err := upgrade(filepath.Join(lock.Dir(), datastore.EngineFile), steps, opts, func(string) {}); err != nil {
		return nil, err
	}
	return datastore.OpenEngine(lock, opts)
}
