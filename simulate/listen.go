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
			return nil, fmt.Errorf("--%s %s: want ADDRESS:PORT, such as 127.0.0.1:9443", ListenOption, item)
		}
		all = append(all, at)
	}
	return all, nil
}

func parseTarget(text string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(text)
	if err == nil && (at.Port() == 0 || at.Addr().IsUnspecified() || at.Addr().IsMulticast()) {
		err = errors.New("not one address and port")
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), err
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
		port, target, _ := strings.Cut(strings.TrimSpace(item), "=")
		number, err := strconv.ParseUint(port, 10, 16)
		at, wrong := parseTarget(target)
		if err != nil || number == 0 || wrong != nil {
			r.fail(Listen, item, "a port of the Pod and an address of this machine, such as 10250=127.0.0.1:9443")
			return nil
		}
		if !slices.Contains(allowed, at) {
			if r.err == nil {
				r.err = fmt.Errorf("%s: the server allows no connection to %s: start it with --%s %s", r.where(Listen), at, ListenOption, at)
			}
			return nil
		}
		all[uint16(number)] = at
	}
	return all
}

// dialLimit is how long a connection to a process of this machine may take.
const dialLimit = 10 * time.Second

// dialPod connects to the process that answers at a port of a Pod.
func (s *simulation) dialPod(ctx context.Context, key types.NamespacedName, port uint16) (net.Conn, error) {
	at, err := s.target(key, port)
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{Timeout: dialLimit}).DialContext(ctx, "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("%w: nothing answers for port %d of Pod %s: %w", ErrSimulated, port, key, err)
	}
	return conn, nil
}

// target returns the address of the process that answers at a port of a Pod.
func (s *simulation) target(key types.NamespacedName, port uint16) (netip.AddrPort, error) {
	listens, err := s.listens(key)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%w: %w", ErrSimulated, err)
	}
	at, ok := listens[port]
	if !ok {
		return at, fmt.Errorf("%w: nothing listens on port %d of Pod %s: its node runs no program. The annotation %s lets a process of this machine answer", ErrSimulated, port, key, Listen)
	}
	return at, nil
}

// listens returns what answers at the ports of a Pod now.
func (s *simulation) listens(key types.NamespacedName) (listenMap, error) {
	object, there, err := s.PodInformer.GetStore().GetByKey(key.String())
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, fmt.Errorf("there is no pod %s", key)
	}
	pod := object.(*corev1.Pod)
	if over(pod.Status.Phase) || !hasStarted(&pod.Status) {
		return nil, fmt.Errorf("pod %s does not run", key)
	}
	script, err := readScript(pod, s.Defaults)
	return script.listen, err
}
