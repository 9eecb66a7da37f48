package server

import (
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/storage"
)

// Port is one that a configuration makes the server listen on.
type Port struct {
	Option  string // that names it, without dashes
	Address string // empty is every address
	Number  int    // 0 is any free one
}

// The options that name one.
const (
	securePort   = "secure-port"
	insecurePort = "insecure-port"
	etcdPort     = "etcd-listen"
)

// Ports are those the configuration asks for. What [Config.Validate] refuses is
// left out: its complaint is the better one.
func (c Config) Ports() []Port {
	c = c.withDefaults()
	var all []Port
	if checkPort("", c.SecurePort) == nil && checkAddress("", c.BindAddress) == nil {
		all = append(all, Port{securePort, c.BindAddress, c.SecurePort})
	}
	if !c.DisableInsecure && checkPort("", c.InsecurePort) == nil && checkPortsDiffer(c) == nil && checkOwners(c) == nil &&
		insecure.Check(c.InsecureBindAddress, c.InsecureAllowRemote) == nil {
		all = append(all, Port{insecurePort, c.InsecureBindAddress, c.InsecurePort})
	}
	if where, err := storage.ParseEtcdListen(c.EtcdListen); err == nil && where != nil && checkEtcdListen(c) == nil {
		all = append(all, Port{etcdPort, where.Host, where.Port})
	}
	return all
}

// Try tells whether the server could listen there now; its errors name the option.
func (p Port) Try() error {
	l, err := listen(p.Option, p.Address, p.Number)
	if err != nil {
		return err
	}
	return l.Close()
}
