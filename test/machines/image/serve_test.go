package main

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
)

// A packed image can be pulled by its name: the manifest by tag, and the blobs that it names.
func TestPush(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "hello"), []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := run([]string{"-o", file, "-root", root, "registry.example.com/test/hello:1.0"}); err != nil {
		t.Fatal(err)
	}
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if err := push(handler, file); err != nil {
		t.Fatal(err)
	}
	get := func(path string) (int, string) {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		return answer.Code, answer.Body.String()
	}
	code, manifest := get("/v2/test/hello/manifests/1.0")
	if code != http.StatusOK {
		t.Fatalf("the manifest: status %d: %s", code, manifest)
	}
	digests := 0
	for _, word := range strings.Split(manifest, `"`) {
		if strings.HasPrefix(word, "sha256:") {
			digests++
			if code, body := get("/v2/test/hello/blobs/" + word); code != http.StatusOK {
				t.Errorf("%s: status %d: %s", word, code, body)
			}
		}
	}
	if digests != 2 {
		t.Errorf("the manifest names %d blobs, want a configuration and a layer: %s", digests, manifest)
	}
	if code, _ := get("/v2/test/other/manifests/1.0"); code != http.StatusNotFound {
		t.Errorf("another image: status %d, want %d", code, http.StatusNotFound)
	}
}
