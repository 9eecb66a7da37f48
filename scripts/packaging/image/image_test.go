package image

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

var release = Release{Version: "v1.37.2+karve.1", Revision: "0a1b2c3", Time: time.Unix(1790000000, 0)}

// standIns are programs that do nothing, for every platform of the image.
func standIns(t *testing.T) []Program {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var all []Program
	for _, platform := range slices.Sorted(maps.Keys(platforms)) {
		p := platforms[platform]
		out := filepath.Join(dir, p.Architecture+p.Variant)
		build := exec.Command("go", "build", "-o", out, source)
		build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Architecture)
		if p.Architecture == "arm" {
			build.Env = append(build.Env, "GOARM="+p.Variant[1:])
		}
		if text, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", platform, err, text)
		}
		all = append(all, Program{platform, out})
	}
	return all
}

// The image has every platform, and every client finds its own: as one file, and from a registry.
func TestImageHasEveryPlatform(t *testing.T) {
	programs := standIns(t)
	dir := t.TempDir()
	write := func(name string) []byte {
		path := filepath.Join(dir, name)
		err := Write(path, release, programs)
		text, errRead := os.ReadFile(path)
		if err := errors.Join(err, errRead); err != nil {
			t.Fatal(err)
		}
		return text
	}
	file := write("a.tar")
	if !bytes.Equal(file, write("b.tar")) {
		t.Error("two images of the same programs differ")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	unpack(t, dir, file)
	path, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := whole.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("got %+v, %v, want one index", manifest, err)
	}
	full := manifest.Manifests[0].Annotations["io.containerd.image.name"]
	if want := "ghcr.io/karve-k8s/karve:v1.37.2-karve.1"; full != want {
		t.Errorf("the name is %q, want %q", full, want)
	}
	index, err := whole.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}

	server := httptest.NewServer(registry.New())
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	reference, err := name.ParseReference(strings.Replace(full, "ghcr.io", address, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(reference, index); err != nil {
		t.Fatal(err)
	}
	for _, program := range programs {
		image, err := remote.Image(reference, remote.WithPlatform(platforms[program.Platform]))
		if err != nil {
			t.Errorf("%s: %v", program.Platform, err)
			continue
		}
		checkImage(t, image, program)
	}
}

// checkImage compares an image with what a container without a distribution needs.
func checkImage(t *testing.T, image v1.Image, program Program) {
	t.Helper()
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	platform := platforms[program.Platform]
	if file.OS != platform.OS || file.Architecture != platform.Architecture || file.Variant != platform.Variant {
		t.Errorf("%s: its configuration says %s/%s%s", program.Platform, file.OS, file.Architecture, file.Variant)
	}
	if file.Config.User != "65532:65532" {
		t.Errorf("%s: the user is %q", program.Platform, file.Config.User)
	}
	if got := strings.Join(file.Config.Healthcheck.Test, " "); got != "CMD karve status" {
		t.Errorf("%s: the health check is %q", program.Platform, got)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%s: got %d layers, %v, want one", program.Platform, len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	headers, texts := map[string]*tar.Header{}, map[string][]byte{}
	for files := tar.NewReader(content); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		headers[header.Name] = header
		if texts[header.Name], err = io.ReadAll(files); err != nil {
			t.Fatal(err)
		}
	}
	own, err := os.ReadFile(program.Path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(texts["bin/karve"], own) || headers["bin/karve"].Mode != 0o755 {
		t.Errorf("%s: bin/karve is another program", program.Platform)
	}
	for _, dir := range []string{"var/lib/karve/", "run/karve/"} {
		if data := headers[dir]; data == nil || data.Mode != 0o700 || data.Uid != UID || data.Gid != UID {
			t.Errorf("%s: %s is %+v", program.Platform, dir, data)
		}
		delete(headers, dir)
	}
	for name, header := range headers {
		if header.Uid != 0 || header.Mode&0o022 != 0 && header.Typeflag != tar.TypeSymlink && header.Mode != 0o1777 {
			t.Errorf("%s: others can write to %s: %+v", program.Platform, name, header)
		}
	}
	count := 0
	for rest := texts["etc/ssl/certs/ca-certificates.crt"]; ; count++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if certificate, err := x509.ParseCertificate(block.Bytes); err != nil || !certificate.IsCA {
			t.Errorf("%s: authority %d: %v", program.Platform, count, err)
		}
	}
	if count < 50 {
		t.Errorf("%s: there are %d authorities", program.Platform, count)
	}
}

// A program for another platform would be an image that nobody can start.
func TestProgramOfAnotherPlatformIsRefused(t *testing.T) {
	programs := standIns(t)
	by := map[string]string{}
	for _, p := range programs {
		by[p.Platform] = p.Path
	}
	// without makes a program whose linker did not record a setting.
	without := func(path, setting string) string {
		program, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.ReplaceAll(program, []byte("build\t"+setting+"="), []byte("build\t"+strings.Repeat("X", len(setting))+"="))
		if bytes.Equal(changed, program) {
			t.Fatalf("%s has no setting %s", path, setting)
		}
		path += "-without-" + setting
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct{ platform, path, want string }{
		{"linux/amd64", without(by["linux/amd64"], "CGO_ENABLED"), "the linker recorded no CGO_ENABLED in it"},
		{"linux/armv7", without(by["linux/armv7"], "GOARM"), "the linker recorded no GOARM in it"},
		{"linux/arm64", by["linux/amd64"], "GOARCH=amd64: want arm64"},
		{"linux/armv6", by["linux/armv7"], "GOARM=7: want 6"},
		{"windows/amd64", by["linux/amd64"], "windows/amd64: no image is made for this platform"},
		{"linux/amd64", "image_test.go", "image_test.go"},
	} {
		err := Write(filepath.Join(t.TempDir(), "a.tar"), release, []Program{{test.platform, test.path}})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s of %s: got %v, want %q", test.platform, test.path, err, test.want)
		}
	}
}

func unpack(t *testing.T, dir string, file []byte) {
	t.Helper()
	for files := tar.NewReader(bytes.NewReader(file)); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		text, errRead := io.ReadAll(files)
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		if err := errors.Join(err, errRead, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}
