package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	schedulerconfig "k8s.io/kubernetes/cmd/kube-scheduler/app/config"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/profile"

	"github.com/karve-k8s/karve/server/flags"
)

var ownedByScheduler = map[string]string{
	"master":                    "the API server is this process",
	"kubeconfig":                "the API server is this process",
	"authentication-kubeconfig": "the scheduler has no port of its own",
	"authorization-kubeconfig":  "the scheduler has no port of its own",
	"secure-port":               "the scheduler has no port of its own",
	"bind-address":              "the scheduler has no port of its own",
	"leader-elect":              "there is one server",
	"write-config-to":           "it would end the process",
	"feature-gates":             "use --feature-gates",
	"v":                         "use --log-level",
	"vmodule":                   "use --log-level",
	"logging-format":            "use --log-format",
}

// parseSchedulerOptions is kube-scheduler's typed options with our defaults and
// the user's wishes, which the error joins where they are refused.
func parseSchedulerOptions(c Config) (*options.Options, error) {
	o := options.NewOptions()
	o.SecureServing.BindPort = 0
	// The flag set says whether leader election was asked for; only that
	// moves the default out of the way.
	if err := o.Flags.FlagSet("leader election").Set("leader-elect", "false"); err != nil {
		return nil, fmt.Errorf("switch off leader election: %w", err)
	}
	if err := flags.Apply("kube-scheduler", "kube-scheduler-arg", *o.Flags, ownedByScheduler, c.SchedulerArgs); err != nil {
		return nil, err
	}
	defaults, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("default scheduler configuration: %w", err)
	}
	o.ComponentConfig = defaults
	return o, nil
}

func validateSchedulerOptions(o *options.Options) error {
	if errs := o.Validate(); len(errs) > 0 {
		return fmt.Errorf("--kube-scheduler-arg: %w", errors.Join(errs...))
	}
	return nil
}

// theScheduler is kube-scheduler as a part, with no port and no lease.
type theScheduler struct {
	health
	informers informers.SharedInformerFactory // set when they are started
}

// run mirrors app.Setup and app.Run (cmd/kube-scheduler/app/server.go), which
// take their client from a kubeconfig file and call a clean stop an error.
//
// fromControllers is nil when there are none; otherwise it waits until their
// informers are there.
func (s *theScheduler) run(ctx context.Context, config Config, client *rest.Config, fromAPI informers.SharedInformerFactory, fromControllers func(context.Context) (informers.SharedInformerFactory, error), step func(string) func(), ready func()) error {
	defer s.set(nil, errors.New("stopped"))
	done := step("configuration")
	o, err := parseSchedulerOptions(config)
	if err != nil {
		return err
	}
	o.Master = client.Host // or upstream looks for a Pod's service account
	// Options.Config would go on to make clients of a kubeconfig, and to ask the
	// server something with them.
	c := &schedulerconfig.Config{ComponentGlobalsRegistry: o.ComponentGlobalsRegistry}
	if err := o.ApplyTo(klog.FromContext(ctx), c); err != nil {
		return fmt.Errorf("configure scheduler: %w", err)
	}
	c.ComponentConfig.LeaderElection.LeaderElect = false
	client.ContentType = c.ComponentConfig.ClientConnection.ContentType
	c.KubeConfig = client
	clients, err := kubernetes.NewForConfig(rest.AddUserAgent(client, "scheduler"))
	if err != nil {
		return fmt.Errorf("create client for scheduler: %w", err)
	}
	dynamics, err := dynamic.NewForConfig(client)
	if err != nil {
		return fmt.Errorf("create client for scheduler: %w", err)
	}
	c.Client = clients
	c.DynInformerFactory = dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamics, 0, "", nil)
	c.EventBroadcaster = events.NewEventBroadcasterAdapterWithContext(ctx, clients)
	c.InformerFactory = scheduler.NewInformerFactory(clients, 0)
	if err := shareInformers(c.InformerFactory, fromAPI, withScheduler...); err != nil {
		return err
	}
	done()
	if fromControllers != nil {
		done = step("wait for the controllers")
		theirs, err := fromControllers(ctx)
		if err != nil {
			return err
		}
		if err := shareInformers(c.InformerFactory, theirs, withControllers...); err != nil {
			return err
		}
		done()
	}

	done = step("scheduler")
	completed := c.Complete()
	component := &completed.ComponentConfig
	recorders := profile.RecorderFactory(func(name string) events.EventRecorderLogger {
		return completed.EventBroadcaster.NewRecorder(name)
	})
	sched, err := scheduler.New(ctx, completed.Client, completed.InformerFactory, completed.DynInformerFactory, recorders,
		scheduler.WithComponentConfigVersion(component.TypeMeta.APIVersion),
		scheduler.WithKubeConfig(completed.KubeConfig),
		scheduler.WithProfiles(component.Profiles...),
		scheduler.WithPercentageOfNodesToScore(component.PercentageOfNodesToScore),
		scheduler.WithPodMaxBackoffSeconds(component.PodMaxBackoffSeconds),
		scheduler.WithPodInitialBackoffSeconds(component.PodInitialBackoffSeconds),
		scheduler.WithPodMaxInUnschedulablePodsDuration(completed.PodMaxInUnschedulablePodsDuration),
		scheduler.WithExtenders(component.Extenders...),
		scheduler.WithParallelism(component.Parallelism),
	)
	if err != nil {
		return fmt.Errorf("create scheduler: %w", err)
	}

	done()
	done = step("informers")
	completed.EventBroadcaster.StartRecordingToSink(ctx.Done())
	defer completed.EventBroadcaster.Shutdown()
	completed.InformerFactory.StartWithContext(ctx)
	defer completed.InformerFactory.Shutdown()
	completed.DynInformerFactory.Start(ctx.Done())
	defer completed.DynInformerFactory.Shutdown()
	completed.InformerFactory.WaitForCacheSync(ctx.Done())
	completed.DynInformerFactory.WaitForCacheSync(ctx.Done())
	if err := waitForHandlers(ctx, sched); err != nil {
		return fmt.Errorf("fill the scheduler's caches: %w", err)
	}
	done()
	s.informers = completed.InformerFactory
	s.set(nil, nil)
	ready()
	sched.Run(ctx)
	return nil
}

// handlersPoll is how often the scheduler is asked whether it has seen everything.
const handlersPoll = 5 * time.Millisecond

// waitForHandlers is the scheduler's WaitForHandlersSync, which looks at once and
// then every 100 ms: too seldom for caches that are filled in memory.
func waitForHandlers(ctx context.Context, sched *scheduler.Scheduler) error {
	for {
		look, cancel := context.WithTimeout(ctx, handlersPoll)
		err := sched.WaitForHandlersSync(look)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}
