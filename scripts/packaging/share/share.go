// Package share makes the files of Karve that are the same for every processor: the completions of
// shells, the manual pages and the licence.
package share

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/karve-k8s/karve/scripts/packaging/image"
	"github.com/karve-k8s/karve/scripts/packaging/man"
)

// Zsh and License are places that not all packages agree about.
const (
	Zsh     = "zsh/site-functions/_karve"
	License = "licenses/karve/LICENSE"
)

// File is a file of a directory such as /usr/share.
type File struct {
	Path string // man/man1/karve.1
	Text []byte
}

// IsManual says whether a file is a manual page, which packages compress.
func (f File) IsManual() bool { return strings.HasPrefix(f.Path, "man/") }

// Files makes all of them. Host is a karve that runs on this machine, which prints the completions and what
// the manual pages are made of, and license is the file with the licence.
func Files(release image.Release, host, license string) ([]File, error) {
	var all []File
	for _, completion := range []struct{ shell, path string }{
		{shell: "bash", path: "bash-completion/completions/karve"},
		{shell: "fish", path: "fish/vendor_completions.d/karve.fish"},
		{shell: "zsh", path: Zsh},
	} {
		text, err := exec.Command(host, "completion", completion.shell).Output()
		if err != nil {
			return nil, fmt.Errorf("%s completion %s: %w", host, completion.shell, err)
		}
		all = append(all, File{completion.path, text})
	}
	pages, err := man.Pages(host, release.Version, release.Time)
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		all = append(all, File{"man/man1/" + page.Name + ".1", []byte(page.Text)})
	}
	text, err := os.ReadFile(license)
	return append(all, File{License, text}), err
}
