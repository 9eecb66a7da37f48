package apiserver

import (
	"net"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	netutils "k8s.io/utils/net"
)

// advertised returns the address that upstream's options have for good. Without one, it is a loopback address of the Services' family.
func (c Config) advertised() net.IP {
	if c.Advertised != nil {
		if ip := c.Advertised(); ip != nil {
			return ip
		}
	}
	if first, _, _ := strings.Cut(c.ServiceClusterIPRange, ","); netutils.IsIPv6CIDRString(first) {
		return net.IPv6loopback
	}
	return net.IPv4(127, 0, 0, 1)
}

// followAddress lets the endpoints of the kubernetes Service follow this server's address. c has been completed: then it has upstream's
// reconciler.
func (s *Server) followAddress(c *controlplane.Config) {
	if s.config.Advertised != nil {
		reconciler := &c.EndpointReconcilerConfig.Reconciler
		*reconciler = followingEndpoints{*reconciler, s.config.Advertised}
	}
}

// followingEndpoints is upstream's reconciler with the address of now. While there is none, the endpoints stay as they are.
type followingEndpoints struct {
	reconcilers.EndpointReconciler
	address func() net.IP
}

// ValidateIP implements reconcilers.EndpointReconciler.
func (f followingEndpoints) ValidateIP(net.IP) error {
	if ip := f.address(); ip != nil {
		return f.EndpointReconciler.ValidateIP(ip)
	}
	return nil
}

// ReconcileEndpoints implements reconcilers.EndpointReconciler.
func (f followingEndpoints) ReconcileEndpoints(service string, _ net.IP, ports []corev1.EndpointPort, reconcilePorts bool) error {
	if ip := f.address(); ip != nil {
		return f.EndpointReconciler.ReconcileEndpoints(service, ip, ports, reconcilePorts)
	}
	return nil
}

// RemoveEndpoints implements reconcilers.EndpointReconciler.
func (f followingEndpoints) RemoveEndpoints(service string, started net.IP, ports []corev1.EndpointPort) error {
	if ip := f.address(); ip != nil {
		started = ip
	}
	return f.EndpointReconciler.RemoveEndpoints(service, started, ports)
}
