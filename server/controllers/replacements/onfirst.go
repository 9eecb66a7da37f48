package replacements

import (
	"context"
	"fmt"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
)

// buildAgain is how long a constructor that failed waits for its next attempt.
const buildAgain = time.Second

type onFirst struct {
	name    string
	objects cache.SharedInformer
	build   func(context.Context) (Controller, error)
}

// OnFirst is a controller that is built when the first of its objects exists, and runs from then on. It is for
// a controller that does nothing without objects, and whose constructor is expensive.
func OnFirst(name string, objects cache.SharedInformer, build func(context.Context) (Controller, error)) Controller {
	return onFirst{name, objects, build}
}

func (c onFirst) Name() string { return c.name }

func (c onFirst) Run(ctx context.Context) {
	first := make(chan struct{})
	exists := sync.OnceFunc(func() { close(first) })
	waiting, err := c.objects.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { exists() }})
	if err != nil {
		return // the informer has stopped, and so has the control plane
	}
	select {
	case <-first:
	case <-ctx.Done():
	}
	c.objects.RemoveEventHandler(waiting)
	for ctx.Err() == nil {
		controller, err := c.build(ctx)
		if err == nil {
			controller.Run(ctx)
			return
		}
		utilruntime.HandleErrorWithContext(ctx, fmt.Errorf("build %s: %w", c.name, err), "A controller could not begin, and is built again")
		select {
		case <-time.After(buildAgain):
		case <-ctx.Done():
		}
	}
}
