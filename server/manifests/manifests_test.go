package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\n"

// Each document of a file is found, whatever is between them.
func TestDocuments(t *testing.T) {
	for _, c := range []struct {
		name, text string
		isJSON     bool
		want       string
	}{
		{"one", fmt.Sprintf(configMap, "a"), false, "a: document 1"},
		{"with comments and empty documents", "# a comment\n---\n# another\n\n" + fmt.Sprintf(configMap, "a") + "---\n---\r\n" + fmt.Sprintf(configMap, "b") + "...\n--- # last\n" + fmt.Sprintf(configMap, "c"), false,
			"a: document 1\nb: document 2\nc: document 3"},
		{"text that looks like a separator", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  x: |\n    ---\n    ...\n  y: '----'\n", false, "a: document 1"},
		{"lists", "apiVersion: v1\nkind: List\nitems: []\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n- {apiVersion: v1, kind: Secret, metadata: {name: b}}\n", false,
			"a: document 2\nb: document 2"},
		{"JSON with tabs", "{\"apiVersion\": \"v1\",\n\t\"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"a\"}}\n\n{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"b\"}}", true,
			"a: document 1\nb: document 2"},
		{"a list of one kind, as kubectl get --raw has it", `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a","namespace":"shop"}},{"metadata":{"name":"b"}}]}`, true,
			"a: document 1\nb: document 1"},
		{"JSON in YAML", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"a\"}}\n{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"b\"}}\n", false,
			"a: document 1\nb: document 2"},
		{"JSON in YAML with separators", "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"a\"}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: b}}\n", false,
			"a: document 1\nb: document 2"},
		{"null", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: null, generateName: }\n", false, "a: document 1"},
		{"nothing", "# only a comment\n", false, ""},
	} {
		for encoding, text := range map[string][]byte{"UTF-8": []byte(c.text), "a byte order mark": []byte("\ufeff" + c.text)} {
			objects, err := parse(text, c.isJSON)
			var got []string
			for _, o := range objects {
				got = append(got, o.GetName()+": "+o.where)
				if o.GetAPIVersion() != "v1" || !slices.Contains([]string{"ConfigMap", "Secret"}, o.GetKind()) || o.GetNamespace() == "" && o.Object["metadata"].(map[string]any)["namespace"] != nil {
					t.Errorf("%s: got %v", c.name, o.Object)
				}
			}
			if text := strings.Join(got, "\n"); text != c.want || err != nil {
				t.Errorf("%s in %s: got\n%s\n%v\nwant\n%s", c.name, encoding, text, err, c.want)
			}
		}
	}
}

// An error names the document.
func TestErrorsNameTheDocument(t *testing.T) {
	good := fmt.Sprintf(configMap, "a")
	for _, c := range []struct {
		name, text string
		isJSON     bool
		want       string
	}{
		{"a tab", good + "---\nkind: ConfigMap\nmetadata:\n\tname: b\n", false, "document 2: yaml: line 3:"},
		{"a key twice", good + "---\nkind: ConfigMap\nkind: Secret\n", false, "document 2: "},
		{"a template", "kind: {{ .Kind }}\n", false, "document 1: "},
		{"no name", good + "---\n\napiVersion: v1\nkind: ConfigMap\n", false, "document 2: ConfigMap: metadata.name is missing"},
		{"no kind", "metadata: {name: a}\napiVersion: v1\n", false, "kind is missing"},
		{"a number as name", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 7}\n", false, "metadata.name is no text"},
		{"a number as namespace", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: 7}\n", false, "metadata.namespace is no text"},
		{"an item without a kind", "apiVersion: v1\nkind: List\nitems: [{metadata: {name: a}}]\n", false, "document 1: kind is missing"},
		{"a text", "some text\n", false, "this is no object"},
		{"content after a separator", good + "--- " + good, false, "document 1: only a comment may follow ---"},
		{"a value after a separator", "--- {apiVersion: v1, kind: Secret, stringData: {a: secret}}\n", false, "document 1: only a comment may follow ---"},
		{"content after the end", good + "...\n" + good, false, "document 1: separate documents by ---"},
		{"objects behind each other", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n{apiVersion: v1, kind: ConfigMap, metadata: {name: b}}\n", false, "document 1: "},
		{"lines of an old Macintosh", strings.ReplaceAll(good+"---\n"+good, "\n", "\r"), false, "document 1: separate documents by ---"},
		{"a byte order mark within", good + "\ufeff---\n" + good, false, "document 1: "},
		{"UTF-16", "\xff\xfe" + good, false, "save it as UTF-8"},
		{"an anchor", "apiVersion: v1\nkind: Secret\nstringData: {a: *secret}\n", false, "document 1: yaml: unknown anchor …"},
		{"a tag", "apiVersion: v1\nkind: Secret\nstringData: {a: !!int secret}\n", false, "document 1: yaml: cannot decode !!str …"},
		{"a template in a Secret", "apiVersion: v1\nkind: Secret\nstringData: {a: {{ .secret }}}\n", false, "document 1: "},
		{"a secret twice", "apiVersion: v1\nkind: Secret\nstringData: {'se\"cret': a, 'se\"cret': b}\n", false, "document 1: yaml: unmarshal errors:"},
		{"a null as key", "apiVersion: v1\nkind: Secret\nstringData: {null: secret}\n", false, "document 1: "},
		{"a date as key", "apiVersion: v1\nkind: Secret\nstringData: {2001-01-01: secret}\n", false, "document 1: "},
		{"text in JSON", "{\"apiVersion\": secret}", true, "document 1: invalid character 's'"},
		{"JSON", "{}\n{\"a\":\n  b}", true, "document 2: "},
		{"half of JSON", "{\"a\":\n", true, "document 1: "},
	} {
		if _, err := parse([]byte(c.text), c.isJSON); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want %s", c.name, err, c.want)
		}
	}
	if found, err := parse([]byte(good+"...\n# the end\n"), false); err != nil || len(found) != 1 {
		t.Errorf("a comment after the end: %d objects, %v", len(found), err)
	}
	_, err := parse([]byte("a\n---\n"+good+"---\nb\n"), false)
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("got %v, want both documents", err)
	}
}

// A document that kubectl would refuse alone is refused alone, and of a file that may be half written nothing is read.
func TestRefusedDocuments(t *testing.T) {
	good := fmt.Sprintf(configMap, "a")
	const generated = "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: b-}\n"
	for _, c := range []struct{ name, text, want, problem string }{
		{"a generated name", good + "---\n" + generated + "---\n" + fmt.Sprintf(configMap, "c"), "a c", "document 2: ConfigMap: metadata.generateName is for objects"},
		{"no name", "apiVersion: v1\nkind: Secret\n---\n" + good, "a", "document 1: Secret: metadata.name is missing"},
		{"no metadata", "apiVersion: v1\nkind: Secret\nmetadata:\n---\n" + good, "a", "document 1: Secret: metadata.name is missing"},
		{"a list with a null item", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: x}}\n- null\n---\n" + good, "a", "document 1: items[1] is no object"},
		{"a list with an item that has no name", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: x}}\n- {apiVersion: v1, kind: ConfigMap}\n---\n" + good, "x a", "document 1: ConfigMap: metadata.name is missing"},
		{"beside what cannot be read", good + "---\n" + generated + "---\nkind: {{ .Kind }}\n", "", "document 2: "},
		{"beside what has no kind", good + "---\n" + generated + "---\nmetadata: {name: c}\n", "", "document 3: apiVersion is missing"},
		{"beside what nothing may follow", good + "---\n" + generated + "--- x\n", "", "document 2: only a comment may follow ---"},
	} {
		objects, err := parse([]byte(c.text), false)
		var got []string
		for _, o := range objects {
			got = append(got, o.GetName())
		}
		if strings.Join(got, " ") != c.want || err == nil || !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s: got %q, %v, want %q, %s", c.name, got, err, c.want, c.problem)
		}
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, dir string) string {
	t.Helper()
	units, err := scan(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, u := range units {
		if u.err != nil {
			t.Errorf("%s: %v", u.name, u.err)
		}
		all = append(all, u.name)
	}
	return strings.Join(all, " ")
}

func TestScanFindsFiles(t *testing.T) {
	if _, err := scan(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: got %v, want fs.ErrNotExist", err)
	}
	dir := t.TempDir()
	for _, name := range []string{"a.yaml", "b.yml", "c.json", "sub/d.yaml", "README.md", ".hidden.yaml", ".a.yaml.swp", "a.yaml~", "#a.yaml#", ".#a.yaml", ".git/e.yaml"} {
		write(t, dir, name, "")
	}
	if got, want := names(t, dir), "a.yaml b.yml c.json sub/d.yaml"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// The files of a kustomization are not applied by themselves.
	write(t, dir, "sub/base/f.yaml", "")
	write(t, dir, "sub/kustomization.yaml", "")
	units, err := scan(dir)
	if err != nil || len(units) != 4 || units[3].name != "sub/" || units[3].err == nil || !strings.Contains(units[3].err.Error(), "kubectl kustomize "+filepath.Join(dir, "sub")) {
		t.Errorf("got %v, %v", units, err)
	}
}

// A change that keeps size and time is one, as in an image whose files all have one time.
func TestScanSeesChangesThatKeepSizeAndTime(t *testing.T) {
	dir, old := t.TempDir(), time.Unix(1, 0)
	place := func(name, text string) string {
		t.Helper()
		write(t, dir, name, text)
		if err := os.Chtimes(filepath.Join(dir, name), old, old); err != nil {
			t.Fatal(err)
		}
		units, err := scan(dir)
		if err != nil || len(units) != 1 {
			t.Fatalf("got %v, %v", units, err)
		}
		return units[0].stamp
	}
	first := place("a.yaml", "a: 1")
	if same := place(".b", "a: 2"); same != first {
		t.Errorf("without a change: got %s, want %s", same, first)
	}
	if err := os.Rename(filepath.Join(dir, ".b"), filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if units, _ := scan(dir); units[0].stamp == first {
		t.Error("another file with the name is no change")
	}
	second := place("a.yaml", "a: 3")
	for place("a.yaml", "a: 4") == second { // the clock of a file system moves in steps
	}
}

// A directory that cannot be read does not keep other files from being applied.
func TestScanNamesAnUnreadableDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.yaml", "closed/b.yaml", "made/closed/c.yaml"} {
		write(t, dir, name, "")
	}
	for _, name := range []string{"closed", "made/closed"} {
		if err := os.Chmod(filepath.Join(dir, name), 0o722); err != nil { // refused, also if this is root
			t.Fatal(err)
		}
	}
	units, err := scan(dir)
	if err != nil || len(units) != 3 {
		t.Fatalf("got %v, %v", units, err)
	}
	for n, name := range []string{"a.yaml", "closed/", "made/closed/"} {
		if u := units[n]; u.name != name || (u.err == nil) != (name == "a.yaml") || u.stamp == "" {
			t.Errorf("got %+v, want %s", u, name)
		}
	}
}

// A mounted ConfigMap has links to a hidden directory, and a change replaces the link to that.
func TestScanFollowsLinksOfAConfigMap(t *testing.T) {
	dir := t.TempDir()
	link := func(to, name string) {
		t.Helper()
		os.Remove(filepath.Join(dir, name))
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "..1/a.yaml", "one")
	write(t, dir, "..2/a.yaml", "two")
	link("..1", "..data")
	link("..data/a.yaml", "a.yaml")
	link(".", "loop")
	if got := names(t, dir); got != "a.yaml" {
		t.Errorf("got %s, want a.yaml", got)
	}
	before, _ := scan(dir)
	link("..2", "..data")
	after, _ := scan(dir)
	if before[0].stamp == after[0].stamp {
		t.Error("another version of the ConfigMap is no change")
	}

	outside := filepath.Join(t.TempDir(), "b.yaml")
	write(t, filepath.Dir(outside), "b.yaml", "")
	link(outside, "b.yaml")
	link("nowhere", "c.yaml")
	units, err := scan(dir)
	if err != nil || len(units) != 3 || units[1].err == nil || units[2].err == nil {
		t.Errorf("links outside and to nothing: got %+v, %v, want an error of each", units, err)
	}
}

// What another user could change is refused: a file alone, and a directory with everything.
func TestScanRefusesWhatOthersCanWrite(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", "")
	write(t, dir, "..data/b.yaml", "")
	if err := os.Symlink("..data/b.yaml", filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path  string
		whole bool
		bad   int
	}{{"a.yaml", false, 0}, {"..data/b.yaml", false, 1}, {"..data", false, 1}, {".", true, 0}} {
		path := filepath.Join(dir, c.path)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, info.Mode().Perm()|0o020); err != nil {
			t.Fatal(err)
		}
		units, err := scan(dir)
		if c.whole {
			if err == nil || !strings.Contains(err.Error(), "run chmod go-w") {
				t.Errorf("%s: got %v, want an error", c.path, err)
			}
		} else if err != nil || units[c.bad].err == nil || units[1-c.bad].err != nil {
			t.Errorf("%s: got %v, %v, %v, want an error of it", c.path, err, units[0].err, units[1].err)
		}
		if err := os.Chmod(path, info.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIDs(t *testing.T) {
	for want, of := range map[id][3]string{
		"Deployment.apps default/web": {"Deployment.apps", "default", "web"},
		"Namespace shop":              {"Namespace", "", "shop"},
		"ClusterRole.rbac.authorization.k8s.io system:auth-of:some": {"ClusterRole.rbac.authorization.k8s.io", "", "system:auth-of:some"},
	} {
		if got := makeID(schema.ParseGroupKind(of[0]), of[1], of[2]); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if kind, in, name := want.split(); kind.String() != of[0] || in != of[1] || name != of[2] {
			t.Errorf("%s: got %v, %s, %s", want, kind, in, name)
		}
	}
}

// A unit that has changed is applied when two looks have seen the same, and any change makes what has failed try again.
func TestChoose(t *testing.T) {
	w := &watcher{known: map[string]*state{}}
	look := func(want string, scope scope, units ...string) {
		t.Helper()
		var all []*unit
		for _, text := range units {
			name, stamp, _ := strings.Cut(text, " ")
			all = append(all, &unit{name: name, stamp: stamp})
		}
		todo, pending := w.choose(all, scope)
		got := fmt.Sprint(pending)
		for _, u := range todo {
			got += " " + u.name
			w.known[u.name] = &state{stamp: u.stamp, again: u.stamp == "bad"}
		}
		if got != want {
			t.Errorf("%v: got %s, want %s", units, got, want)
		}
		if !pending {
			w.next = time.Time{}
		}
	}
	look("false a b", settled, "a 1", "b bad") // a start waits for nothing
	look("false", settled, "a 1", "b bad")
	look("true b", settled, "a 2", "b bad")
	look("true b", settled, "a 3", "b bad")
	look("false a b", settled, "a 3", "b bad")
	look("true b", settled, "b bad", "c 1") // a is renamed
	if w.known["a"] != nil {
		t.Error("a file that is gone is known")
	}
	look("false c b", changed, "c 1", "b bad")
	look("false b", changed, "c 1", "b bad")
	look("false c b", everything, "c 1", "b bad")
	w.next = time.Now()
	look("false b", settled, "c 1", "b bad")
	look("false b", settled, "b bad")
}

// An inventory of an earlier release has the objects of each file.
func TestInventory(t *testing.T) {
	for text, data := range map[string]map[string]string{
		"now":     {"objects": `["Namespace shop", "ConfigMap shop/a"]`},
		"earlier": {"files": `{"a.yaml": ["Namespace shop"], "b.yaml": ["Namespace shop", "ConfigMap shop/a"]}`},
	} {
		if all, err := listed(data); err != nil || fmt.Sprint(all.with()) != "[ConfigMap shop/a Namespace shop]" {
			t.Errorf("%s: got %v, %v", text, all, err)
		}
	}
	for _, data := range []map[string]string{{}, {"files": "{"}, {"objects": "{}"}} {
		if all, err := listed(data); err == nil {
			t.Errorf("%v: got %v, want an error", data, all)
		}
	}
}
