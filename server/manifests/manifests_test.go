package manifests

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

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
		for encoding, text := range map[string][]byte{"UTF-8": []byte(c.text), "a byte order mark": []byte("\ufeff" + c.text), "UTF-16": inUTF16(binary.LittleEndian, c.text), "big-endian UTF-16": inUTF16(binary.BigEndian, c.text)} {
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

// inUTF16 is a text with a byte order mark, as PowerShell writes it.
func inUTF16(order binary.AppendByteOrder, text string) []byte {
	out := order.AppendUint16(nil, 0xfeff)
	for _, unit := range utf16.Encode([]rune(text)) {
		out = order.AppendUint16(out, unit)
	}
	return out
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
		{"half a character", string(inUTF16(binary.LittleEndian, good)[1:]), false, "document 1: "},
		{"an end within a character", string(inUTF16(binary.LittleEndian, good)) + "x", false, "it ends within a character"},
		{"half of a surrogate pair", string(binary.LittleEndian.AppendUint16(inUTF16(binary.LittleEndian, good), 0xd800)), false, "it is no valid UTF-16"},
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

func TestScanFindsFilesAndKustomizations(t *testing.T) {
	if _, err := scan(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: got %v, want fs.ErrNotExist", err)
	}
	dir := t.TempDir()
	for _, name := range []string{"a.yaml", "b.yml", "c.json", "sub/d.yaml", "README.md", ".hidden.yaml", ".a.yaml.swp", "a.yaml~", "#a.yaml#", ".#a.yaml", ".git/e.yaml", "shop/kustomization.yaml", "shop/base/f.yaml"} {
		write(t, dir, name, "")
	}
	if got, want := names(t, dir), "a.yaml b.yml c.json shop/ sub/d.yaml"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	before, _ := scan(dir)
	write(t, dir, "shop/base/f.yaml", "changed")
	after, _ := scan(dir)
	for i := range before {
		if changed := before[i].stamp != after[i].stamp; changed != (before[i].name == "shop/") {
			t.Errorf("%s: changed: %v", before[i].name, changed)
		}
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
	for _, name := range []string{"a.yaml", "closed/b.yaml", "made/kustomization.yaml", "made/closed/c.yaml"} {
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
	for n, name := range []string{"a.yaml", "closed/", "made/"} {
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

func TestKustomizationIsBuiltFromLocalFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "kustomization.yaml", "resources: [overlay]\nnamePrefix: pre-\n")
	write(t, dir, "overlay/kustomization.yml", "resources: [../base]\nconfigMapGenerator:\n- {name: made, files: [key=file.txt]}\n")
	write(t, dir, "overlay/file.txt", "https://example.com")
	write(t, dir, "base/kustomization.yaml", "resources: [a.yaml]\n")
	write(t, dir, "base/a.yaml", fmt.Sprintf(configMap, "a"))
	objects, err := build(dir)
	if err != nil || len(objects) != 2 || objects[0].GetName() != "pre-a" || !strings.HasPrefix(objects[1].GetName(), "pre-made-") {
		t.Errorf("got %v, %v", objects, err)
	}
}

// Nothing in a kustomization makes the server open a connection or run a program.
func TestKustomizationIsRefused(t *testing.T) {
	parent := t.TempDir()
	write(t, parent, "outside/kustomization.yaml", "resources: [a.yaml]\n")
	write(t, parent, "outside/a.yaml", fmt.Sprintf(configMap, "a"))
	for _, text := range []string{
		"resources: ['https://example.com/a.yaml']",
		"Resources: ['HTTPS://example.com/a.yaml']",
		"resources: [github.com/owner/repository]",
		"resources: ['GitHub.com/owner/repository//base?ref=v1']",
		"resources: ['git@example.com:owner/repository']",
		"resources: ['file:///tmp/repository']",
		"resources: ['git::https://example.com/repository']",
		"bases: ['ssh://example.com/repository']",
		"components: ['https://example.com/repository.git']",
		"crds: ['https://example.com/a.json']",
		"configurations: ['https://example.com/a.yaml']",
		"openapi: {path: 'https://example.com/a.json'}",
		"patches: [{path: 'https://example.com/a.yaml'}]",
		"patchesJson6902: [{path: 'https://example.com/a.yaml'}]",
		"patchesStrategicMerge: ['https://example.com/a.yaml']",
		"replacements: [{path: 'https://example.com/a.yaml'}]",
		"configMapGenerator: [{name: a, files: ['a=https://example.com/a']}]",
		"configMapGenerator: [{name: a, envs: ['https://example.com/a']}]",
		"secretGenerator: [{name: a, env: 'https://example.com/a'}]",
		"transformers: [a.yaml]", "generators: [a.yaml]", "validators: [a.yaml]",
		"helmCharts: [{name: a, repo: 'https://example.com'}]",
	} {
		dir := filepath.Join(parent, "inside")
		write(t, dir, "kustomization.yaml", text+"\n")
		if _, err := build(dir); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: got %v, want a refusal", text, err)
		}
	}
	dir := filepath.Join(parent, "inside")
	write(t, dir, "kustomization.yaml", "resources: [../outside]\n")
	if _, err := build(dir); err == nil || !strings.Contains(err.Error(), "outside of the kustomization's directory") {
		t.Errorf("a base elsewhere: got %v", err)
	}
	write(t, dir, "other.yaml", "resources: ['https://example.com/a.yaml']\n")
	os.Remove(filepath.Join(dir, "kustomization.yaml"))
	if err := os.Symlink("other.yaml", filepath.Join(dir, "kustomization.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := build(dir); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("a link: got %v, want a refusal", err)
	}
}

// An error says what is wrong, and not what a secret is.
func TestErrorsQuoteNoSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"secretGenerator: [{name: a, literals: [planted]}]":                           "loading KV pairs",
		"secretGenerator: [{name: a, literals: [a=planted, a=planted]}]":              "repeats the key",
		"secretGenerator: [{name: a, literals: {a: planted}}]":                        "literals",
		"secretGenerator: [{name: a, envs: [a.env]}]":                                 "a.env",
		"resources: [a.yaml]\npatches: [{patch: 'a: planted'}]":                       "PatchTransformer",
		"resources: [a.yaml]\npatches: [{patch: '{planted', target: {kind: Secret}}]": "PatchTransformer",
		"resources: [broken.yaml]":                                                    "broken.yaml",
		"resources: ['https://me:planted@example.com/a']":                             `"example.com/a" is refused`,
		"resources: [anchor.yaml]":                                                    "anchor.yaml",
		"resources: [tag.yaml]":                                                       "yaml: ",
		"resources: [key.yaml]":                                                       "yaml: ",
		"resources: [a.yaml]\npatches: [{patch: 'a: *planted'}]":                      "",
		"secretGenerator: [{name: a, literals: [*planted]}]":                          "kustomization.yaml",
	} {
		dir := t.TempDir()
		write(t, dir, "kustomization.yaml", text+"\n")
		write(t, dir, "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {a: planted}\n")
		write(t, dir, "broken.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {a: planted\n")
		for name, value := range map[string]string{"anchor": "*planted", "tag": "!!int planted", "key": "{{ planted }}"} {
			write(t, dir, name+".yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {a: "+value+"}\n")
		}
		write(t, dir, "a.env", "a=planted\xff\n")
		_, err := build(dir)
		if err == nil {
			t.Errorf("%s: no error", text)
		} else if got := withoutQuotes(err); strings.Contains(got, "planted") || strings.Contains(got, fmt.Sprint([]byte("planted"))[1:20]) || !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want an error with %s and no secret", text, got, want)
		}
	}
}

// Of a file that kustomize would read only the first document of, it gets all or nothing. Data stay as they are.
func TestKustomizationReadsWholeFiles(t *testing.T) {
	dir := t.TempDir()
	text := inUTF16(binary.LittleEndian, fmt.Sprintf(configMap, "a")+"---\n"+fmt.Sprintf(configMap, "b"))
	write(t, dir, "kustomization.yaml", "resources: [a.yaml]\nconfigMapGenerator:\n- {name: data, files: [text.txt]}\n")
	write(t, dir, "a.yaml", string(text))
	write(t, dir, "text.txt", string(text))
	objects, err := build(dir)
	if err != nil || len(objects) != 3 || objects[2].Object["binaryData"] == nil {
		t.Errorf("UTF-16: got %v, %v", objects, err)
	}
	write(t, dir, "a.yaml", strings.Repeat(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}`, 2))
	if objects, err := build(dir); err == nil || !strings.Contains(err.Error(), "a.yaml: separate documents by ---") {
		t.Errorf("objects behind each other: got %v, %v", objects, err)
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
