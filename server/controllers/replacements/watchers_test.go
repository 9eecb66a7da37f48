package replacements

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/kubernetes/pkg/controller/certificates/signer"
	"k8s.io/kubernetes/pkg/volume"

	"github.com/karve-k8s/karve/server/filewatch"
)

// prober counts calls.
type prober struct{ begun, probed int }

func (p *prober) Init() error { p.begun++; return errors.New("no inotify instance is left") }

func (p *prober) Probe() ([]volume.ProbeEvent, error) {
	p.probed++
	return []volume.ProbeEvent{{PluginName: "a"}}, nil
}

// Without a FlexVolume driver, nothing is watched. The first one is found, even where it cannot be watched.
func TestProberBeginsLate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "flexvolume")
	upstream := &prober{}
	p := &LateProber{DynamicPluginProber: upstream, Dir: dir}
	if err := p.Init(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // without the directory, and with an empty one
		if found, err := p.Probe(); err != nil || len(found) > 0 || *upstream != (prober{}) {
			t.Fatalf("got %v, %v and %+v; want nothing", found, err, *upstream)
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "vendor~driver"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if found, err := p.Probe(); err != nil || len(found) != 1 {
			t.Errorf("got %v, %v; want what upstream finds", found, err)
		}
	}
	if *upstream != (prober{begun: 1, probed: 2}) {
		t.Errorf("got %+v, want one beginning", *upstream)
	}
}

// The field is there in this version of Kubernetes.
func TestSignersFollowTheirFiles(t *testing.T) {
	s := &signer.CSRSigningController{}
	if err := FollowSigner(s, "a", "b"); err != nil {
		t.Fatal(err)
	}
	reloader, err := reloaderOf(s)
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := (*reloader).(filewatch.Reader); !ok || len(got.Files) != 2 {
		t.Errorf("got %+v, want a reader of two files", *reloader)
	}
}
