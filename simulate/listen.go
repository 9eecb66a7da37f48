package simulate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/karve-k8s/karve/internal/ownports"
)

// ListenOption is the option of the server with the addresses that Pods may name in [Listen].
const ListenOption = "simulate-listen"

// Targets are addresses and ports of this machine at which processes may answer for Pods. Whoever may
// create a Pod, or annotate a Namespace, decides which of them the API server connects to. Nobody else
// allows a connection: loopback services often trust everybody who reaches them.
type Targets []netip.AddrPort

// ParseTargets reads addresses, each as ADDRESS:PORT.
func ParseTargets(list []string) (all Targets, err error) {
	for _, item := range list {
		at, err := parseTarget(item)
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w: want ADDRESS:PORT, such as 127.0.0.1:9443", ListenOption, item, err)
		}
		all = append(all, at)
	}
	return all, nil
}

// parseTarget reads ADDRESS:PORT. The error says which of the two is wrong.
func parseTarget(text string) (none netip.AddrPort, _ error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return none, errors.New("it is not an address and a port")
	}
	number, err := parsePort(port)
	if err != nil {
		return none, err
	}
	// As a mapped address, 0.0.0.0 would not count as one of every interface.
	address, err := netip.ParseAddr(host)
	if address = address.Unmap(); err != nil || address.IsUnspecified() || address.IsMulticast() {
		return none, fmt.Errorf("%q is not one IP address", host)
	}
	return netip.AddrPortFrom(address, number), nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is not a port from 1 to 65535", text)
	}
	return uint16(n), nil
}

// listenMap has the address of a process for each port of a Pod.
type listenMap map[uint16]netip.AddrPort

// listen reads PORT=ADDRESS:PORT, several separated by commas.
func (r *reader) listen(allowed Targets) listenMap {
	v := r.text(Listen)
	if v == "" {
		return nil
	}
	all := listenMap{}
	for item := range strings.SplitSeq(v, ",") {
		port, target, found := strings.Cut(strings.TrimSpace(item), "=")
		if !found {
			r.fail(Listen, item, "PORT=ADDRESS:PORT, such as 10250=127.0.0.1:9443")
			return nil
		}
		number, err := parsePort(port)
		if err != nil {
			r.reject(Listen, item, fmt.Errorf("the Pod's port: %w", err))
			return nil
		}
		at, err := parseTarget(target)
		if err != nil {
			r.reject(Listen, item, fmt.Errorf("the address on this machine: %w", err))
			return nil
		}
		if !slices.Contains(allowed, at) {
			if r.err == nil {
				r.err = fmt.Errorf("%s: the server allows no connection to %s: start it with --%s %s", r.where(Listen), at, ListenOption, at)
			}
			return nil
		}
		if _, twice := all[number]; twice {
			r.reject(Listen, item, fmt.Errorf("there are two addresses for the Pod's port %d, want one", number))
			return nil
		}
		all[number] = at
	}
	return all
}

// dialLimit is how long a connection to a process of this machine may take.
const dialLimit = 10 * time.Second

// dialPod connects to the process that answers at a port of a Pod.
func (s *simulation) dialPod(ctx context.Context, key types.NamespacedName, port uint16) (net.Conn, error) {
	to, err := s.target(key, port)
	if err != nil {
		return nil, err
	}
	// An address that was free when the server started may be one of its own ports now.
	conn, err := ownports.Avoid((&net.Dialer{Timeout: dialLimit}).DialContext)(ctx, "tcp", to.at.String())
	if err != nil {
		return nil, fmt.Errorf("%w: nothing answers for port %d of Pod %s: %w", ErrSimulated, port, key, err)
	}
	return s.connections.Hold(key, conn, func() error {
		now, err := s.target(key, port)
		if err == nil && now != to {
			err = fmt.Errorf("%w: another process answers for port %d of Pod %s now", ErrSimulated, port, key)
		}
		return err
	})
}

// target is the process that answers at a port of a Pod.
type target struct {
	pod types.UID
	at  netip.AddrPort
}

// target returns the process that answers at a port of a Pod.
func (s *simulation) target(key types.NamespacedName, port uint16) (none target, _ error) {
	uid, listens, err := s.listens(key)
	if err != nil {
		return none, fmt.Errorf("%w: %w", ErrSimulated, err)
	}
	at, ok := listens[port]
	if !ok {
		return none, fmt.Errorf("%w: nothing listens on port %d of Pod %s: its node runs no program. The annotation %s lets a process of this machine answer", ErrSimulated, port, key, Listen)
	}
	return target{uid, at}, nil
}

// listens returns what answers at the ports of a Pod now, and which Pod that is.
func (s *simulation) listens(key types.NamespacedName) (uid types.UID, _ listenMap, _ error) {
	object, there, err := s.PodInformer.GetStore().GetByKey(key.String())
	if err != nil {
		return uid, nil, err
	}
	if !there {
		return uid, nil, fmt.Errorf("there is no pod %s", key)
	}
	pod := object.(*corev1.Pod)
	if n := s.nodes.get(pod.Spec.NodeName); n != nil && n.isDown() {
		return uid, nil, fmt.Errorf("node %s of pod %s is down", n.name, key)
	}
	if podutil.IsPodPhaseTerminal(pod.Status.Phase) || !hasStarted(&pod.Status) {
		return uid, nil, fmt.Errorf("pod %s does not run", key)
	}
	script, err := readScript(pod, s.Defaults)
	return pod.UID, script.listen, err
}
