package certs

import (
	"bytes"
	"crypto/x509"
	"slices"
)

// NodeBundle returns, in PEM, the certificates that a node trusts which `kubeadm join` sets up.
// Such a node has one file for both directions: for the API server's certificate, and for
// clients of its kubelet. So the bundle has the authorities of ServerCA's file, and then those
// of ClientCA's file that signed KubeletClient, with which the API server calls kubelets: directly, or
// through intermediates that are in KubeletClient's own file.
//
// A user's ClientCA may list others, who sign users only. They stay out of the bundle, because a
// node would also take them for authorities of the API server. If none signed KubeletClient, none is in it.
func (s *Store) NodeBundle() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	servers, err := s.certificates(ServerCA)
	if err != nil {
		return nil, err
	}
	clients, err := s.certificates(ClientCA)
	if err != nil {
		return nil, err
	}
	own, err := s.certificates(KubeletClient)
	if err != nil {
		return nil, err
	}
	// The API server presents its intermediates, so a node does not need them.
	var signers []*x509.Certificate
	for chain, between := own[:1], own[1:]; len(signers) == 0 && len(chain) > 0; {
		signed := func(by *x509.Certificate) bool {
			return slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return c.CheckSignatureFrom(by) == nil })
		}
		for _, c := range clients {
			if signed(c) {
				signers = append(signers, c)
			}
		}
		var next, left []*x509.Certificate
		for _, c := range between {
			if signed(c) {
				next = append(next, c)
			} else {
				left = append(left, c)
			}
		}
		chain, between = next, left
	}
	var all []*x509.Certificate
	for _, c := range slices.Concat(servers, signers, inReplacement(clients)) {
		if !slices.ContainsFunc(all, c.Equal) {
			all = append(all, c)
		}
	}
	return encodeCerts(all), nil
}

// certificates reads the certificates of n, at least one.
func (s *Store) certificates(n Name) ([]*x509.Certificate, error) {
	path := s.CertFile(n)
	data, _, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return parseCerts(path, data)
}

// inReplacement returns the bridges in all, and the authorities on their two sides.
func inReplacement(all []*x509.Certificate) (found []*x509.Certificate) {
	for _, bridge := range all {
		if _, ours := marked(bridge); !ours || bytes.Equal(bridge.RawIssuer, bridge.RawSubject) {
			continue
		}
		for _, c := range all {
			if bytes.Equal(c.RawSubject, bridge.RawSubject) || bytes.Equal(c.RawSubject, bridge.RawIssuer) {
				found = append(found, c)
			}
		}
	}
	return found
}
