// Package downloads writes what other package managers download a release by: a formula of Homebrew's and an
// expression of Nix's, with the checksums of the programs in the release.
package downloads

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/karve-k8s/karve/scripts/packaging/image"
	"github.com/karve-k8s/karve/scripts/packaging/share"
)

//go:embed karve.rb.tmpl karve.nix.tmpl
var sources embed.FS

// address is where releases are; their tags follow.
const address = "https://github.com/karve-k8s/karve/releases/download/"

// shareName is the file of a release with the completions, the manual pages and the licence.
const shareName = "karve-share.tar.gz"

// platforms are those of a release in the words of Homebrew and Nix. Homebrew has no Linux on 32-bit
// processors or riscv64, and neither has a system without Windows.
var platforms = []struct{ name, homebrew, nix string }{
	{name: "darwin/amd64", homebrew: "intel", nix: "x86_64-darwin"},
	{name: "darwin/arm64", homebrew: "arm", nix: "aarch64-darwin"},
	{name: "linux/amd64", homebrew: "intel", nix: "x86_64-linux"},
	{name: "linux/arm64", homebrew: "arm", nix: "aarch64-linux"},
	{name: "linux/armv6", nix: "armv6l-linux"},
	{name: "linux/armv7", nix: "armv7l-linux"},
	{name: "linux/riscv64", nix: "riscv64-linux"},
	{name: "windows/amd64"},
	{name: "windows/arm64"},
}

// download is a file of a release.
type download struct {
	Name string
	sum  [sha256.Size]byte
	// System is the platform in the words of Homebrew or Nix.
	System string
}

// Hex is the checksum as SHA256SUMS and Homebrew have it.
func (d download) Hex() string { return hex.EncodeToString(d.sum[:]) }

// SRI is the checksum as Nix has it.
func (d download) SRI() string { return "sha256-" + base64.StdEncoding.EncodeToString(d.sum[:]) }

// Write adds the formula, the expression and what they install beside the program to a directory that has the
// programs of these platforms. Host and license are as for [share.Files].
func Write(dir string, release image.Release, host, license string, built []string) error {
	data := struct {
		Version, URL string
		Share        download
		MacOS, Linux []download // of Homebrew
		Nix          []download
	}{
		Version: strings.TrimPrefix(release.Version, "v"),
		URL:     address + strings.ReplaceAll(release.Version, "+", "%2B"),
	}
	for _, name := range built {
		if !slices.ContainsFunc(platforms, func(p struct{ name, homebrew, nix string }) bool { return p.name == name }) {
			return fmt.Errorf("%s: add this platform to platforms in package downloads", name)
		}
	}
	for _, p := range platforms {
		if !slices.Contains(built, p.name) || p.nix == "" {
			continue
		}
		file := "karve-" + strings.ReplaceAll(p.name, "/", "-")
		xz, err := sum(dir, file+".xz", p.nix)
		if err != nil {
			return err
		}
		data.Nix = append(data.Nix, xz)
		if p.homebrew == "" {
			continue
		}
		gz, err := sum(dir, file+".gz", p.homebrew)
		if err != nil {
			return err
		}
		if strings.HasPrefix(p.name, "darwin/") {
			data.MacOS = append(data.MacOS, gz)
		} else {
			data.Linux = append(data.Linux, gz)
		}
	}
	if len(data.Nix) == 0 {
		return nil
	}
	files, err := share.Files(release, host, license)
	if err != nil {
		return err
	}
	archive, err := share.Archive(files, release.Time)
	if err != nil {
		return err
	}
	data.Share = download{Name: shareName, sum: sha256.Sum256(archive)}
	if err := os.WriteFile(filepath.Join(dir, shareName), archive, 0o644); err != nil {
		return err
	}
	if len(data.MacOS)+len(data.Linux) > 0 {
		if err := write(dir, "karve.rb", data); err != nil {
			return err
		}
	}
	return write(dir, "karve.nix", data)
}

func sum(dir, name, system string) (download, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	return download{Name: name, System: system, sum: sha256.Sum256(text)}, err
}

func write(dir, name string, data any) error {
	t, err := template.ParseFS(sources, name+".tmpl")
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, data); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, name), out.Bytes(), 0o644)
}
