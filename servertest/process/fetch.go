package process

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"aead.dev/minisign"
	"github.com/gofrs/flock"
)

// Version is the release of Karve that belongs to this version of the module. Its first part is
// the version of Kubernetes.
const Version = "v1.37.2+karve.1"

// DownloadVariable is the variable with the address of a mirror that has the files of the
// release [Version], as for install.sh. The default is the release on GitHub.
const DownloadVariable = "KARVE_DOWNLOAD_URL"

// releaseKey is the public key of the releases; release/release.pub has the same.
var releaseKey = "RWTbTOAIDc8fAxjosbhJPUeHbmQob1kk8hVrMeWL7Tdr4vJb9fS1YVTI"

// Program returns the path of the karve program that clusters without [Binary] run: the one
// that [BinaryVariable] names, or else karve in the PATH if its version of Kubernetes is that of
// [Version], or else the release [Version].
//
// That release is downloaded once, into the directory karve of the user's cache directory.
// Nothing of a download is used before the release manager's signature of the release and the
// checksum of the program are found right. The signature includes the version, so a mirror cannot
// offer another release. A program in the cache that other users can change is an error. Several processes may call
// Program at once, and one of them downloads.
func Program(ctx context.Context) (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		path, err := exec.LookPath(path)
		if err != nil {
			err = fmt.Errorf("%s: %w", BinaryVariable, err)
		}
		return path, err
	}
	wanted, _, _ := strings.Cut(Version, "+")
	inPath, remedy := "none is in the PATH", ""
	if path, err := exec.LookPath("karve"); err == nil {
		has, err := kubernetesOf(path)
		if err == nil && has == wanted {
			return path, nil
		}
		inPath = fmt.Sprintf("%s in the PATH has Kubernetes %s", path, has)
		if err != nil {
			inPath = fmt.Sprintf("%s in the PATH does not say its version of Kubernetes (%v)", path, err)
		}
		remedy = fmt.Sprintf("; set %s to run %s nevertheless", BinaryVariable, path)
	}
	path, err := fetched(ctx)
	if err != nil {
		err = fmt.Errorf("there is no karve with Kubernetes %s: %s is not set, %s, and %s could not be downloaded: %w%s",
			wanted, BinaryVariable, inPath, Version, err, remedy)
	}
	return path, err
}

// kubernetesOf returns the version of Kubernetes that a program is linked with, as Go records it in the program.
func kubernetesOf(path string) (string, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", err
	}
	for _, module := range info.Deps {
		if module.Path == "k8s.io/kubernetes" {
			return module.Version, nil
		}
	}
	return "", errors.New("it is linked without k8s.io/kubernetes")
}

// fetched returns the path of the release in the cache, and downloads it if it is not there.
func fetched(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "karve", Version)
	path := filepath.Join(dir, asset())
	if ok, err := cached(path); ok || err != nil {
		return path, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	from, err := newOrigin(cmp.Or(os.Getenv(DownloadVariable), "https://github.com/karve-k8s/karve/releases/download/"+Version))
	if err != nil {
		return "", err
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	if _, err := lock.TryLockContext(ctx, 50*time.Millisecond); err != nil {
		return "", fmt.Errorf("waiting for the process that has locked %s: %w", lock.Path(), err)
	}
	defer lock.Close()
	if ok, err := cached(path); ok || err != nil {
		return path, err
	}
	return path, download(ctx, from, path)
}

// cached reports whether the program is in the cache. It returns an error if others could have changed it.
func cached(path string) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	for _, place := range []string{filepath.Dir(path), path} {
		if err := onlyMine(place); err != nil {
			return false, fmt.Errorf("%w: remove %s, so that it is downloaded again, or set %s", err, filepath.Dir(path), BinaryVariable)
		}
	}
	return info.Mode().IsRegular(), nil
}

// asset is the name of this machine's program in a release.
func asset() string {
	arch := runtime.GOARCH
	if arch == "arm" {
		arch = "armv6" // runs on ARMv7 too
	}
	name := "karve-" + runtime.GOOS + "-" + arch
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return name
}

// download makes path the program of the release at from. It unpacks only what has the right checksum.
func download(ctx context.Context, from *origin, path string) error {
	sums, err := signedSums(ctx, from)
	if err != nil {
		return err
	}
	name := filepath.Base(path) + ".gz"
	want, err := sumOf(sums, name)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	packed, err := from.read(ctx, name, maxProgram, func(size int64) {
		fmt.Fprintf(os.Stderr, "downloading karve %s (%d MB), once, to %s\n", Version, (size+5e5)/1e6, path)
	})
	if err != nil {
		return err
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(packed)); got != want {
		return fmt.Errorf("%s is damaged: its SHA-256 is %s, want %s", from.show(name), got, want)
	}

	partial, err := os.CreateTemp(filepath.Dir(path), "partial-")
	if err != nil {
		return err
	}
	defer os.Remove(partial.Name()) // fails after the rename
	defer partial.Close()
	if err := unpack(partial, packed); err != nil {
		return fmt.Errorf("%s: %w", from.show(name), err)
	}
	// A cache with half a program after a power cut would stay so.
	if err := partial.Sync(); err != nil {
		return err
	}
	if err := partial.Close(); err != nil {
		return err
	}
	if err := os.Chmod(partial.Name(), 0o755); err != nil {
		return err
	}
	return os.Rename(partial.Name(), path)
}

func unpack(to io.Writer, packed []byte) error {
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err == nil {
		_, err = io.Copy(to, unpacked)
	}
	return err
}

// signedSums returns the list of checksums of the release, whose signature is right.
func signedSums(ctx context.Context, from *origin) ([]byte, error) {
	const list, signed = "SHA256SUMS", "SHA256SUMS.minisig"
	sums, err := from.read(ctx, list, maxList, nil)
	if err != nil {
		return nil, err
	}
	text, err := from.read(ctx, signed, maxList, nil)
	if err != nil {
		return nil, err
	}
	var key minisign.PublicKey
	if err := key.UnmarshalText([]byte(releaseKey)); err != nil {
		return nil, err
	}
	var signature minisign.Signature
	if err := signature.UnmarshalText(text); err != nil {
		return nil, fmt.Errorf("%s: %w", from.show(signed), err)
	}
	if !minisign.Verify(key, sums, text) {
		return nil, fmt.Errorf("%s is not the signature of Karve's release manager; nothing of the release was used", from.show(signed))
	}
	if signature.TrustedComment != "karve "+Version {
		return nil, fmt.Errorf("%s has %s, want karve %s: set %s to the address of that release", from, signature.TrustedComment, Version, DownloadVariable)
	}
	return sums, nil
}

// sumOf returns the checksum of a file in the output of sha256sum.
func sumOf(sums []byte, name string) (string, error) {
	for lines := bufio.NewScanner(bytes.NewReader(sums)); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) == 2 && fields[1] == name {
			return fields[0], nil
		}
	}
	return "", fmt.Errorf("the release has no %s: build karve for %s/%s, and set %s", name, runtime.GOOS, runtime.GOARCH, BinaryVariable)
}
