package join

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// endPods asks containerd to stop and remove every Pod that a kubelet made. It knows which those are: containers of docker, and of
// containerd's other namespaces, are none. CNI takes down the network of each. Containers outlive a containerd that was stopped, so
// it is started for this.
func (m *Machine) endPods(ctx context.Context) error {
	if _, err := m.containerd(ctx); err != nil {
		return fmt.Errorf("some Pods may still run, which only containerd can end: %w: repair it, and try again", err)
	}
	ctx, cancel := context.WithTimeout(ctx, longestGrace+3*time.Minute)
	defer cancel()
	_, err := m.stopPods(ctx, nil)
	return err
}

// stopPods stops and removes Pods, and returns how many: all, or those whose addresses are in none of the networks. A Pod in the
// host's network has no address.
func (m *Machine) stopPods(ctx context.Context, outside []netip.Prefix) (ended int, err error) {
	conn, err := m.dialCRI()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	cri := runtimeapi.NewRuntimeServiceClient(conn)
	if outside == nil {
		stopContainers(ctx, cri)
	}
	list, err := cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return 0, fmt.Errorf("containerd does not say which Pods run: %w: repair it, or end them yourself, and try again", err)
	}
	for _, pod := range list.Items {
		if outside != nil {
			status, err := cri.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.Id})
			if err != nil {
				continue // it has ended meanwhile
			}
			ip, err := netip.ParseAddr(status.GetStatus().GetNetwork().GetIp())
			if err != nil || slices.ContainsFunc(outside, func(p netip.Prefix) bool { return p.Contains(ip) }) {
				continue
			}
		}
		_, err := cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.Id})
		if err == nil {
			_, err = cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.Id})
		}
		if err != nil {
			return ended, fmt.Errorf("the Pod %s/%s could not be ended: %w", pod.Metadata.GetNamespace(), pod.Metadata.GetName(), err)
		}
		ended++
	}
	return ended, nil
}

// gracePeriod is the annotation by which the kubelet remembers a Pod's terminationGracePeriodSeconds.
const gracePeriod = "io.kubernetes.pod.terminationGracePeriod"

// longestGrace is how long a container may take to end at most.
const longestGrace = 2 * time.Minute

// stopContainers ends all containers of Pods at the same time, each with the grace period of its
// Pod, as a kubelet does. Stopping a Pod as a whole kills what is left, so no error matters here.
func stopContainers(ctx context.Context, cri runtimeapi.RuntimeServiceClient) {
	list, err := cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	}})
	if err != nil {
		return
	}
	var all sync.WaitGroup
	for _, container := range list.Containers {
		all.Go(func() {
			grace := int64(30) // Kubernetes' default
			if n, err := strconv.ParseInt(container.Annotations[gracePeriod], 10, 64); err == nil && n >= 0 {
				grace = min(n, int64(longestGrace/time.Second))
			}
			_, _ = cri.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: container.Id, Timeout: grace})
		})
	}
	all.Wait()
}
