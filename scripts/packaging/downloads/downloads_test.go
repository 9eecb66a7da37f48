package downloads

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/scripts/packaging/image"
)

var release = image.Release{Version: "v1.37.2+karve.3", Time: time.Unix(1790000000, 0).UTC()}

// host is a shell script that stands for karve, and a licence.
func host(t *testing.T) (program, license string) {
	t.Helper()
	program, license = filepath.Join(t.TempDir(), "karve"), filepath.Join(t.TempDir(), "LICENSE")
	text := "#!/bin/sh\ncase $1 in\n--help) printf 'Usage: karve COMMAND\\n\\nKarve is a control plane.\\n\\nTOOLS\\n  help  show the help\\n' ;;\n*) echo \"$@\" ;;\nesac\n"
	if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(license, []byte("free"), 0o600); err != nil {
		t.Fatal(err)
	}
	return program, license
}

// built makes a directory with the compressed programs of platforms, which contain their names.
func built(t *testing.T, platforms ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range platforms {
		for _, kind := range []string{".gz", ".xz"} {
			name := "karve-" + strings.ReplaceAll(p, "/", "-") + kind
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func hexOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// The files name what is in the release, and the same release gives the same bytes.
func TestWrite(t *testing.T) {
	all := []string{"linux/amd64", "linux/armv6", "darwin/arm64", "windows/amd64"}
	program, license := host(t)
	var first map[string]string
	for range 2 {
		dir := built(t, all...)
		if err := Write(dir, release, program, license, all); err != nil {
			t.Fatal(err)
		}
		texts := map[string]string{}
		for _, name := range []string{"karve.rb", "karve.nix", shareName} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			texts[name] = string(text)
			if first != nil && first[name] != texts[name] {
				t.Errorf("%s differs the second time", name)
			}
		}
		first = texts
	}
	const address = "https://github.com/karve-k8s/karve/releases/download/v1.37.2%2Bkarve.3/"
	for _, want := range []string{
		`version "1.37.2+karve.3"`,
		"on_macos do\n    on_arm do\n      url \"" + address + "karve-darwin-arm64.gz\"\n      sha256 \"" + hexOf("karve-darwin-arm64.gz"),
		"on_linux do\n    on_intel do\n      url \"" + address + "karve-linux-amd64.gz\"\n      sha256 \"" + hexOf("karve-linux-amd64.gz"),
		"url \"" + address + "karve-share.tar.gz\"\n    sha256 \"" + hexOf(first[shareName]),
	} {
		if !strings.Contains(first["karve.rb"], want) {
			t.Errorf("karve.rb has no %s:\n%s", want, first["karve.rb"])
		}
	}
	for _, not := range []string{"armv6", "windows"} {
		if strings.Contains(first["karve.rb"], not) {
			t.Errorf("karve.rb has %s, which Homebrew does not run on", not)
		}
	}
	for _, want := range []string{
		`version = "1.37.2+karve.3"`,
		`armv6l-linux = download "karve-linux-armv6.xz" "sha256-`,
		`aarch64-darwin = download "karve-darwin-arm64.xz" "sha256-`,
	} {
		if !strings.Contains(first["karve.nix"], want) {
			t.Errorf("karve.nix has no %s:\n%s", want, first["karve.nix"])
		}
	}
}

// A release of some platforms has only what they need.
func TestWriteWithoutHomebrew(t *testing.T) {
	program, license := host(t)
	for platform, want := range map[string][]string{
		"windows/amd64": nil,
		"linux/armv7":   {"karve.nix", shareName},
	} {
		dir := built(t, platform)
		if err := Write(dir, release, program, license, []string{platform}); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"karve.rb", "karve.nix", shareName} {
			_, err := os.Stat(filepath.Join(dir, name))
			if got := err == nil; got != slices.Contains(want, name) {
				t.Errorf("%s: %s exists: %v", platform, name, got)
			}
		}
	}
}

// A program of another name, or a platform that nobody has thought of, is no release without it.
func TestWriteRefuses(t *testing.T) {
	program, license := host(t)
	for platform, want := range map[string]string{
		"linux/arm64":  "karve-linux-arm64.xz",
		"freebsd/mips": "freebsd/mips: add this platform",
	} {
		err := Write(built(t, "linux/amd64"), release, program, license, []string{"linux/amd64", platform})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", platform, err, want)
		}
	}
}
