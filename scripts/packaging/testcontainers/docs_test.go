// Package testcontainers_test has the example of docs/containers.md, so that it is compiled. It is not
// run: that needs Docker.
package testcontainers_test

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/karve-k8s/karve/scripts/packaging/image"
)

var _ = startKarve

// block returns the code block of a language in docs/containers.md.
func block(t *testing.T, language string) string {
	t.Helper()
	document, err := os.ReadFile("../../../docs/containers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(document), "```"+language+"\n")
	text, _, closed := strings.Cut(text, "```")
	if !ok || !closed {
		t.Fatalf("docs/containers.md has no block of %s", language)
	}
	return text
}

func TestDocumentHasTheProgram(t *testing.T) {
	program, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if block(t, "go") != string(program) {
		t.Error("docs/containers.md has another program than example_test.go: copy it")
	}
	if !strings.HasPrefix(karveImage, image.Repository+":") {
		t.Errorf("the example runs %s, not %s", karveImage, image.Repository)
	}
}

// The Compose file names what the image has.
func TestComposeFileIsOfThisImage(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Image, User string
			Command     []string
			Volumes     []string
			Environment map[string]string
			NetworkMode string `yaml:"network_mode"`
		}
		Volumes map[string]any
	}
	if err := yaml.Unmarshal([]byte(block(t, "yaml")), &file); err != nil {
		t.Fatal(err)
	}
	karve, operator := file.Services["karve"], file.Services["operator"]
	if karve.Image != karveImage {
		t.Errorf("it runs %s, and the program %s", karve.Image, karveImage)
	}
	if want := "karve:" + image.DataDir + " kubeconfig:" + image.ShareDir; strings.Join(karve.Volumes, " ") != want {
		t.Errorf("the volumes are %q, want %q", karve.Volumes, want)
	}
	written, read := karve.Command[len(karve.Command)-1], operator.Environment["KUBECONFIG"]
	if written != read || !strings.HasPrefix(read, image.ShareDir+"/") {
		t.Errorf("the server writes %s, and the operator reads %s", written, read)
	}
	if len(file.Volumes) != 2 || operator.NetworkMode != "service:karve" {
		t.Errorf("got %+v", file)
	}
}
