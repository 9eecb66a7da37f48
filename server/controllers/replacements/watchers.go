package replacements

import (
	"fmt"
	"os"
	"reflect"
	"unsafe"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates/signer"
	"k8s.io/kubernetes/pkg/volume"

	"github.com/karve-k8s/karve/server/filewatch"
)

// FollowSigner makes a signer's files share the watcher of the process.
func FollowSigner(s *signer.CSRSigningController, cert, key string) error {
	reloader, err := reloaderOf(s)
	if err != nil {
		return err
	}
	*reloader = filewatch.Reader{Upstream: *reloader, Files: []string{cert, key}}
	return nil
}

// reloaderOf returns the field of a signer that reads its files. If upstream renames it or changes its type, it
// returns an error, and no controller begins.
func reloaderOf(s *signer.CSRSigningController) (*dynamiccertificates.ControllerRunner, error) {
	const name = "dynamicCertReloader"
	field := reflect.ValueOf(s).Elem().FieldByName(name)
	if want := reflect.TypeFor[dynamiccertificates.ControllerRunner](); !field.IsValid() || field.Type() != want {
		return nil, fmt.Errorf("upstream's signer has no field %s of type %v", name, want)
	}
	return (*dynamiccertificates.ControllerRunner)(unsafe.Pointer(field.UnsafeAddr())), nil
}

// LateProber is upstream's prober of FlexVolume drivers, which watches their directory. It begins with the first driver.
type LateProber struct {
	volume.DynamicPluginProber
	Dir   string // the drivers'
	begun bool
}

// Init is called once.
func (*LateProber) Init() error { return nil }

// Probe returns what has changed since the last call. Upstream calls it before each look-up of a plugin, under a lock.
func (p *LateProber) Probe() ([]volume.ProbeEvent, error) {
	if !p.begun {
		if drivers, _ := os.ReadDir(p.Dir); len(drivers) == 0 {
			return nil, nil
		}
		p.begun = true
		if err := p.DynamicPluginProber.Init(); err != nil { // it can still look once
			klog.Warningf("FlexVolume drivers that are added to %s from now on are not noticed before the next start: %v", p.Dir, err)
		}
	}
	return p.DynamicPluginProber.Probe()
}
