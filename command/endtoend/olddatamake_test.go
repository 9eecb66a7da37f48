package endtoend

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/eventually"
)

// oldDataBy makes TestMakeOldData write testdata/olddata/VERSION with a binary of that version.
var oldDataBy = flag.String("make-old-data", "", "make testdata/olddata/VERSION with the karve at this path")

// TestMakeOldData is no test. scripts/old-data runs it, once for each release of Kubernetes.
func TestMakeOldData(t *testing.T) {
	if *oldDataBy == "" {
		t.Skip("scripts/old-data runs it, with a binary of a release")
	}
	m := maker{t: t, binary: *oldDataBy}
	version := strings.Fields(strings.Split(m.karve("version"), "\n")[1])[1]
	m.out = filepath.Join(oldData, version)
	if err := os.MkdirAll(m.out, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, step := range []func(maker){maker.fresh, maker.full, maker.offByDefault, maker.killed, maker.expiring} {
		step(m)
	}
}

// maker makes data directories with the binary of a release.
type maker struct {
	t           *testing.T
	binary, out string
}

// file is a file among those that are made.
func (m maker) file(name string) string { return filepath.Join(m.out, name) }

// karve runs a command of the release.
func (m maker) karve(args ...string) string {
	m.t.Helper()
	cmd := command(m.t, "karve", args...)
	cmd.Path = m.binary
	return succeed(m.t, cmd)
}

// start starts a server of the release.
func (m maker) start(dir string, args ...string) *process {
	m.t.Helper()
	args = append([]string{"server", "--data-dir", dir, "--secure-port", "0", "--insecure-port", "-1"}, args...)
	p := &process{t: m.t, cmd: command(m.t, "karve", args...), dir: dir}
	p.cmd.Path = m.binary
	p.begin()
	m.t.Cleanup(func() {
		if p.running() {
			p.kill()
		}
		if m.t.Failed() {
			m.t.Logf("the log of %v:\n%s", args, p.stderr.tail())
		}
	})
	return p.waitReady()
}

// apply creates the objects of a file of testdata/olddata. It tries again for kinds that are defined
// a moment before.
func (m maker) apply(p *process, file string, replace ...string) {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(oldData, file))
	if err != nil {
		m.t.Fatal(err)
	}
	path := write(m.t, file, strings.NewReplacer(replace...).Replace(string(text)))
	p.poll("the objects of "+file, func() error {
		if got := finish(m.t, m.kubectl(p, "apply", "-f", path)); got.code != 0 {
			return errors.New(got.stderr)
		}
		return nil
	})
}

// kubectl is the kubectl of the release.
func (m maker) kubectl(p *process, args ...string) *exec.Cmd {
	m.t.Helper()
	cmd := command(m.t, "karve", append([]string{"kubectl"}, args...)...)
	cmd.Path = m.binary
	cmd.Env = append(cmd.Env, "KUBECONFIG="+p.kubeconfig)
	return cmd
}

// record writes NAME.objects.gz.
func (m maker) record(p *process, name string) {
	m.t.Helper()
	writeObjects(m.t, m.file(name+objectsOf), atRest(m.t, 50, func() map[string]recorded { return record(m.t, p) }))
}

// fresh is a cluster in which nobody has done anything.
func (m maker) fresh() {
	dir := m.t.TempDir()
	p := m.start(dir)
	m.record(p, "fresh")
	p.stop()
	pack(m.t, dir, m.file("fresh"+packed))
}

// full is a cluster with custom resources that were stored in two versions, Secrets that were
// encrypted with two keys, and an object of most kinds; and a snapshot and a backup of it.
func (m maker) full() {
	dir := m.t.TempDir()
	p := m.start(dir, encryptedBy("encryption-before.yaml"))
	m.apply(p, "kinds.yaml")
	m.apply(p, "custom-before.yaml")
	p.stop()
	p = m.start(dir, encryptedBy("encryption.yaml"))
	m.apply(p, "kinds.yaml", "\n    storage: true", "\n    storage: false", "storage: false, sub", "storage: true, sub") // of ships
	m.apply(p, "custom.yaml")
	m.apply(p, "objects.yaml")
	succeed(m.t, m.kubectl(p, "wait", "-n", "harbour", "hpa/crane", "--for=condition=AbleToScale=false", "--timeout=1m"))
	m.record(p, "full")
	for _, verb := range [][]string{{"snapshot"}, {"datastore", "backup"}} {
		file := filepath.Join(m.t.TempDir(), "file")
		m.karve(append(verb, "--data-dir", dir, file)...)
		compress(m.t, file, m.file(verb[len(verb)-1]+".gz"))
	}
	p.stop()
	pack(m.t, dir, m.file("full"+packed))
}

// offByDefault is a cluster with objects of APIs that a user has switched on.
func (m maker) offByDefault() {
	dir := m.t.TempDir()
	p := m.start(dir, switchedOn, gatesOn+alphaGate)
	ca, err := os.ReadFile(filepath.Join(dir, "certs", "server-ca.crt"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.apply(p, "beta.yaml", "CERTIFICATE", "    "+strings.ReplaceAll(strings.TrimSpace(string(ca)), "\n", "\n    "))
	m.apply(p, "alpha.yaml")
	m.record(p, "offbydefault")
	p.stop()
	pack(m.t, dir, m.file("offbydefault"+packed))
}

// killed is a cluster whose server was killed while clients wrote to it.
func (m maker) killed() {
	dir := m.t.TempDir()
	m.start(dir).stop() // so that there is a database, and not only its WAL
	p := m.start(dir)
	c := client(m.t, p.plain()).CoreV1().ConfigMaps("default")

	// Each of the writers changes objects of its own until the server is gone, and notes the last
	// answer about each, and what it has asked for without an answer.
	const writers, objects, enough = 8, 5, 400
	var mu sync.Mutex
	var answers int
	known := make([]map[string]acknowledged, writers)
	var writing sync.WaitGroup
	for w := range writers {
		known[w] = map[string]acknowledged{}
		writing.Go(func() {
			for i := 0; ; i++ {
				name, value := fmt.Sprintf("written-%d-%d", w, i%objects), fmt.Sprint(i)
				last := known[w][name]
				next := acknowledged{Name: name, Deleted: true}
				var now *corev1.ConfigMap
				var err error
				switch {
				case last.Name == "" || last.Deleted:
					last = next
					last.Unanswered = "create"
					now, err = c.Create(m.t.Context(), configMap(name, value), metav1.CreateOptions{})
				case i%7 == 0:
					last.Unanswered = "delete"
					err = c.Delete(m.t.Context(), name, metav1.DeleteOptions{})
				default:
					last.Unanswered = "update"
					now, err = c.Update(m.t.Context(), configMap(name, value), metav1.UpdateOptions{})
				}
				if err != nil { // the server is gone
					last.UnansweredValue = value
					known[w][name] = last
					return
				}
				if now != nil {
					next = acknowledgedOf(now)
				}
				known[w][name] = next
				mu.Lock()
				answers++
				mu.Unlock()
			}
		})
	}
	eventually.Nil(m.t, "writes", func() error {
		mu.Lock()
		defer mu.Unlock()
		if answers < enough {
			return fmt.Errorf("there were %d", answers)
		}
		return nil
	})
	p.kill()
	writing.Wait()
	var all []acknowledged
	for _, of := range known {
		for _, name := range slices.Sorted(maps.Keys(of)) {
			all = append(all, of[name])
		}
	}
	writeRecords(m.t, m.file("killed"+answersOf), all)
	pack(m.t, dir, m.file("killed"+packed))
	again := m.start(unpack(m.t, m.file("killed"+packed)))
	m.record(again, "killed")
	again.stop()
}

// expiring is a cluster whose serving certificate ends in two days: it is given the one that the
// server would have issued a year before that.
func (m maker) expiring() {
	dir := m.t.TempDir()
	p := m.start(dir)
	m.record(p, "expiring")
	p.stop()
	expire(m.t, filepath.Join(dir, "certs"), "serving", "server-ca", time.Now().Add(48*time.Hour))
	pack(m.t, dir, m.file("expiring"+packed))
}

// expire issues a certificate of Karve's again: with the same key and names, for the year before end.
func expire(t *testing.T, dir, name, authority string, end time.Time) {
	t.Helper()
	path := filepath.Join(dir, name+".crt")
	cert, ca := readCertificate(t, path), readCertificate(t, filepath.Join(dir, authority+".crt"))
	block := readPEM(t, filepath.Join(dir, authority+".key"))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		if key, err = x509.ParseECPrivateKey(block.Bytes); err != nil {
			t.Fatal(err)
		}
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	again := *cert
	again.SerialNumber = serial
	again.NotAfter = end
	again.ExtraExtensions = nil
	for _, e := range cert.Extensions {
		if marked := "karve issued "; strings.Contains(string(e.Value), marked) {
			at := strings.Index(string(e.Value), marked) + len(marked)
			issued := again.NotAfter.AddDate(-1, 0, 0).UTC().Format(time.RFC3339)
			e.Value = slices.Concat(e.Value[:at], []byte(issued))
			again.ExtraExtensions = append(again.ExtraExtensions, e)
		}
	}
	if len(again.ExtraExtensions) != 1 {
		t.Fatalf("%s does not say when it was issued", path)
	}
	der, err := x509.CreateCertificate(rand.Reader, &again, ca, cert.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
