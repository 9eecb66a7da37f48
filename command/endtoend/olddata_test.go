package endtoend

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/datastore"
)

// Data directories that earlier releases have made, and what those served of them; see README.md there.
const (
	oldData   = "testdata/olddata"
	packed    = ".tar.gz"
	objectsOf = ".objects.gz"
	answersOf = ".acknowledged.gz"
)

func encryptedBy(file string) string {
	path, err := filepath.Abs(filepath.Join(oldData, file))
	if err != nil {
		panic(err)
	}
	return "--encryption-provider-config=" + path
}

// switchedOn and gatesOn are the options that serve the APIs of the directory "offbydefault".
// alphaGate is for objects that a newer Kubernetes may no longer be able to read.
const (
	switchedOn = "--runtime-config=api/all=true"
	gatesOn    = "--feature-gates=ClusterTrustBundle=true,DRADeviceTaints=true,DRADeviceTaintRules=true"
	alphaGate  = ",GenericWorkload=true"
)

// TestOldData starts a server on each data directory of earlier releases. Every object must be what it
// was, with its uid and its resourceVersion.
func TestOldData(t *testing.T) {
	long(t)
	tests := map[string]func(old, *testing.T){
		"fresh": old.fresh, "full": old.full, "snapshot": old.snapshot, "backup": old.backup,
		"offbydefault": old.offByDefault, "killed": old.killed, "expiring": old.expiring, "expired": old.expired,
	}
	versions, all := oldVersions(t), &uses{seen: map[change]bool{}}
	t.Cleanup(func() { // after the parallel tests
		if all.dirs < len(versions)*len(tests) {
			t.Logf("%d of %d directories were compared, so that exceptions may lack their use", all.dirs, len(versions)*len(tests))
			return
		}
		for _, key := range all.unused() {
			t.Errorf("changedBy has %s, and no directory needs that any more", key)
		}
	})
	for _, o := range versions {
		o.uses = all
		for name, test := range tests {
			t.Run(o.version+"/"+name, func(t *testing.T) {
				parallel(t)
				test(o, t)
			})
		}
	}
}

// oldVersions are the releases that there are data of.
func oldVersions(t *testing.T) (all []old) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(oldData, "v*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("%s has no version: %v", oldData, err)
	}
	for _, dir := range dirs {
		o := old{dir: dir, version: filepath.Base(dir)}
		if _, err := fmt.Sscanf(o.version, "v1.%d.", &o.minor); err != nil {
			t.Fatalf("%s is not named after a version: %v", dir, err)
		}
		all = append(all, o)
	}
	return all
}

// old is the data of one release.
type old struct {
	dir, version string
	minor        int
	uses         *uses // of changedBy
}

// mayChange are the objects that a server may change when it starts on these data.
func (o old) mayChange() []change {
	may := slices.Clone(mayChange)
	for minor, changes := range changedBy {
		if minor > o.minor {
			may = append(may, changes...)
		}
	}
	return may
}

// namedAt is what a start says about the versions of stored objects, by the release that stored them
// and the name of the directory.
var namedAt = map[string][]string{
	"v1.36.4/full": {writesAnother + "1 mutatingadmissionpolicies.admissionregistration.k8s.io as v1beta1, 1 mutatingadmissionpolicybindings.admissionregistration.k8s.io as v1beta1."},
	"v1.36.4/offbydefault": {
		cannotRead + "1 podgroups.scheduling.k8s.io as v1alpha2, 1 workloads.scheduling.k8s.io as v1alpha2.",
		writesAnother + "1 devicetaintrules.resource.k8s.io as v1alpha3.",
	},
}

func (o old) file(name string) string { return filepath.Join(o.dir, name) }

func (o old) unpack(t *testing.T, name string) string {
	t.Helper()
	return unpack(t, o.file(name+packed))
}

// wantObjects checks that the server has what the release recorded under that name.
func (o old) wantObjects(t *testing.T, p *process, name string) {
	t.Helper()
	want := readObjects(t, o.file(name+objectsOf))
	may := o.mayChange()
	if otherAuthority(t, p, want) {
		may = append(may, ofAuthorities...)
	}
	got := atRest(t, 3, func() map[string]recorded { return recordAs(t, p, want) })
	problems, seen := compare(want, got, may)
	for _, problem := range problems {
		t.Error(problem)
	}
	o.uses.add(seen)
	wantNamed(t, p, namedAt[o.version+"/"+name]...)
}

// otherAuthority reports whether the server has another certificate of its authority than in the
// recorded objects. It has if a backup was restored into a directory without one, or when the
// recorded one was due: those of v1.36.4 are from July 2033 on.
func otherAuthority(t *testing.T, p *process, want map[string]recorded) bool {
	t.Helper()
	now, err := os.ReadFile(filepath.Join(p.dir, "certs", "server-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	data, _ := want["configmaps/kube-system/kube-root-ca.crt"].Object["data"].(map[string]any)
	then, _ := data["ca.crt"].(string)
	if then == "" {
		t.Fatal("no certificate of an authority is recorded")
	}
	return then != string(now)
}

func (o old) fresh(t *testing.T) {
	p := start(t, o.unpack(t, "fresh"))
	o.wantObjects(t, p, "fresh")
}

// full has Secrets that two keys encrypted, and custom resources that were stored in two versions.
func (o old) full(t *testing.T) {
	p := start(t, o.unpack(t, "full"), encryptedBy("encryption.yaml"))
	o.wantObjects(t, p, "full")
	wantSecrets(t, p)
	p.stop()
	wantEncrypted(t, p.dir)
}

// wantSecrets checks that the Secrets can be read, and written.
func wantSecrets(t *testing.T, p *process) {
	t.Helper()
	for name, want := range map[string]string{"cargo": "of-now", "cargo-before": "of-before", "fixed": "for-ever"} {
		got := p.kubectl("get", "secret", "-n", "harbour", name, "-o", `go-template={{.data.what | base64decode}}`)
		if want := "salt-and-timber-" + want; got != want {
			t.Errorf("the Secret %s: got %q, want %q", name, got, want)
		}
	}
	p.kubectl("label", "secret", "-n", "harbour", "cargo-before", "read=again")
}

// wantEncrypted looks for the encrypted objects in the files of the datastore.
func wantEncrypted(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, datastore.EngineFile+"*"))
	if err != nil {
		t.Fatal(err)
	}
	var stored []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, text...)
	}
	for _, want := range []string{"the-harbour-is-open", "k8s:enc:secretbox:v1:now:", "k8s:enc:aescbc:v1:before:"} {
		if !bytes.Contains(stored, []byte(want)) {
			t.Errorf("there is no %q in %v", want, files)
		}
	}
	for _, secret := range []string{"salt-and-timber", "herring-of-now"} {
		if bytes.Contains(stored, []byte(secret)) {
			t.Errorf("%q is readable in %v", secret, files)
		}
	}
}

// snapshot starts a fork of the full cluster.
func (o old) snapshot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "snapshot")
	decompress(t, o.file("snapshot.gz"), file)
	p := start(t, t.TempDir(), encryptedBy("encryption.yaml"), "--fork-from", file)
	o.wantObjects(t, p, "full")
	wantSecrets(t, p)
	p.stop()
	wantEncrypted(t, p.dir)
}

// backup restores a backup of the full cluster. The keys are not in it, and it has no record of them.
func (o old) backup(t *testing.T) {
	file, dir := filepath.Join(t.TempDir(), "backup"), t.TempDir()
	decompress(t, o.file("backup.gz"), file)
	lost := []string{"--new-authorities", "unrecorded"}
	karve(t, append(append([]string{"datastore", "restore", "--data-dir", dir}, lost...), file)...)
	p := start(t, dir, append(lost, encryptedBy("encryption.yaml"))...)
	o.wantObjects(t, p, "full")
	wantSecrets(t, p)
	p.stop()
	wantEncrypted(t, p.dir)
}

func (o old) offByDefault(t *testing.T) {
	gates := gatesOn
	cannot := func(line string) bool { return strings.HasPrefix(line, cannotRead) }
	if !slices.ContainsFunc(namedAt[o.version+"/offbydefault"], cannot) { // otherwise the server would never be ready
		gates += alphaGate
	}
	p := start(t, o.unpack(t, "offbydefault"), switchedOn, gates)
	o.wantObjects(t, p, "offbydefault")
}

// acknowledged is what a writer knew about an object when the server was killed.
type acknowledged struct {
	Name, UID, ResourceVersion, Value string // of the last answer
	Deleted                           bool   // by the last answer; or never created

	Unanswered      string `json:",omitempty"` // create, update or delete: the server may have done it, or not
	UnansweredValue string `json:",omitempty"`
}

func acknowledgedOf(m *corev1.ConfigMap) acknowledged {
	return acknowledged{Name: m.Name, UID: string(m.UID), ResourceVersion: m.ResourceVersion, Value: m.Data["value"]}
}

// killed has every write that was acknowledged before the server was killed.
func (o old) killed(t *testing.T) {
	p := start(t, o.unpack(t, "killed"))
	o.wantObjects(t, p, "killed")
	maps, err := client(t, p.plain()).CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range lost(readRecords[acknowledged](t, o.file("killed"+answersOf)), maps.Items) {
		t.Error(problem)
	}
}

// lost returns which of the acknowledged writes are not there.
func lost(all []acknowledged, maps []corev1.ConfigMap) (problems []string) {
	there := map[string]acknowledged{}
	for _, m := range maps {
		there[m.Name] = acknowledgedOf(&m)
	}
	for _, last := range all {
		now, found := there[last.Name]
		if !found {
			now = acknowledged{Name: last.Name, Deleted: true}
		}
		var done bool // what was not answered
		switch last.Unanswered {
		case "create":
			done = found && now.Value == last.UnansweredValue
		case "update":
			done = now.UID == last.UID && now.Value == last.UnansweredValue
		case "delete":
			done = !found
		}
		before := last
		before.Unanswered, before.UnansweredValue = "", ""
		if now != before && !done {
			problems = append(problems, fmt.Sprintf("%s is %+v, and the server had acknowledged %+v", last.Name, now, last))
		}
	}
	return problems
}

// expiring has a serving certificate that is about to expire, or has by now. The start renews it.
func (o old) expiring(t *testing.T) {
	dir := o.unpack(t, "expiring")
	path := filepath.Join(dir, "certs", "serving.crt")
	before := readCertificate(t, path)
	p := start(t, dir)
	o.wantObjects(t, p, "expiring")
	after := readCertificate(t, path)
	if !after.NotAfter.After(time.Now()) || !after.NotAfter.After(before.NotAfter) {
		t.Errorf("the serving certificate is valid until %v, and was until %v: want another year", after.NotAfter, before.NotAfter)
	}
	if !bytes.Equal(before.RawSubjectPublicKeyInfo, after.RawSubjectPublicKeyInfo) {
		t.Error("the renewed certificate has another key")
	}
	date := before.NotAfter.UTC().Format(time.DateOnly)
	if log := p.stderr.String(); !strings.Contains(log, "renewed: it expires on "+date) && !strings.Contains(log, "renewed: it expired on "+date) {
		t.Errorf("the log does not say that the certificate of %s was renewed:\n%s", date, log)
	}
}

// expired is the full cluster in many years, when no certificate is valid any more.
func (o old) expired(t *testing.T) {
	dir := o.unpack(t, "full")
	certs := filepath.Join(dir, "certs")
	end := time.Now().AddDate(-1, 0, 0)
	for name, authority := range map[string]string{
		"serving": "server-ca", "admin": "client-ca", "controller-manager": "client-ca", "scheduler": "client-ca",
		"kubelet-client": "client-ca", "front-proxy-client": "front-proxy-ca",
	} {
		expire(t, certs, name, authority, end)
	}
	for _, name := range []string{"server-ca", "client-ca", "front-proxy-ca"} {
		expire(t, certs, name, name, end)
	}
	p := start(t, dir, encryptedBy("encryption.yaml"))
	o.wantObjects(t, p, "full")
	p.kubectl("get", "namespaces")
}
