package certs

import (
	"fmt"
	"os"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// EtcdPeer is the certificate with which a member of an etcd speaks to the other members. Only [EtcdMember]
// makes it.
const EtcdPeer Name = "etcd-peer"

// memberTable lists what EtcdMember makes. etcd's gateway is a client of etcd's own server, and shows the
// server's certificate there.
var memberTable = []entry{
	{name: EtcdCA, kind: KindCA, life: caLife},
	{name: EtcdServer, kind: KindLeaf, signer: EtcdCA, cn: "etcd-server", usage: forBoth, withSAN: true, life: leafLife},
	{name: EtcdPeer, kind: KindLeaf, signer: EtcdCA, cn: "etcd-peer", usage: forBoth, withSAN: true, life: leafLife},
	{name: EtcdClient, kind: KindLeaf, signer: EtcdCA, cn: "etcd-client", usage: forClients, life: leafLife},
}

// EtcdMember makes what is missing in cfg.Dir for a member of an etcd, renews what is due, and returns the
// names of what it wrote. cfg.ExtraSANs are the names and addresses of the member's machine; without any, the
// server's certificate keeps those that it has. Certificates are readable for all, because etcd and the API
// server run as different users.
//
// All members trust one authority. EtcdMember makes one only with newAuthority: a machine that had made its own
// by mistake would not be let in by the others.
func EtcdMember(cfg Config, newAuthority bool) (written []Name, notes []Note, err error) {
	s := &Store{cfg: cfg.withDefaults(), files: atomicfile.Writer{NoSync: cfg.NoSync, Fault: cfg.fault}}
	p := s.plan(nil)
	p.starting = newAuthority
	if err := p.memberDir(); err != nil {
		return nil, nil, err
	}
	if err := p.memberSANs(); err != nil {
		return nil, nil, err
	}
	if err := p.rows(memberTable); err != nil {
		return nil, p.notes, err
	}
	for i := range p.certs {
		p.certs[i].Mode = 0o644
	}
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil { // etcd's user reads there, too
		return nil, p.notes, err
	}
	return p.renewed, p.notes, s.apply(p)
}

// memberDir says why cfg.Dir is not the right directory.
func (p *plan) memberDir() error {
	other, _ := lookup(ServerCA)
	if c, err := loadPair(p.cfg.Dir, other); err != nil {
		return err
	} else if c.public() != nil {
		return fmt.Errorf("%s has the certificates of a server, which makes its own for --etcd-listen: name another directory", p.cfg.Dir)
	}
	ca, err := loadPair(p.cfg.Dir, memberTable[0])
	switch {
	case err != nil:
		return err
	case ca.main != nil && p.starting:
		return fmt.Errorf("%s is the authority already: leave out --new-authority; for another authority, name another directory", ca.certFile)
	case (ca.main == nil || ca.key == nil) && !p.starting:
		return fmt.Errorf("%s and %s are needed: copy both from a machine that has them; on the first machine, add --new-authority", ca.certFile, ca.keyFile)
	}
	return nil
}

// memberSANs sets the names and addresses of the member.
func (p *plan) memberSANs() error {
	names := p.cfg.ExtraSANs
	if len(names) == 0 {
		c, err := loadPair(p.cfg.Dir, memberTable[1])
		if err != nil {
			return err
		}
		if c.main == nil {
			return fmt.Errorf("%s is missing: give the names and addresses of this machine, at which the other members reach it", c.certFile)
		}
		names = certSANs(c.main).Strings()
	}
	dnsNames, addrs, err := parseSANs(append([]string{"localhost", "127.0.0.1", "::1"}, names...))
	p.sans = newSANs(dnsNames, addrs)
	return err
}
