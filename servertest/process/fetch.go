package process

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"aead.dev/minisign"
	"github.com/gofrs/flock"
)

// Version is the release of Karve that belongs to this version of the module. Its first part is
// the version of Kubernetes.
const Version = "v1.37.2+karve.1"

// DownloadVariable is the variable with the address of a mirror that has the files of the
// release [Version], as for install.sh. The default is the release on GitHub.
const DownloadVariable = "KARVE_DOWNLOAD_URL"

// releaseKey is the public key of the releases; scripts/release.pub has the same.
var releaseKey = "RWTbTOAIDc8fAxjosbhJPUeHbmQob1kk8hVrMeWL7Tdr4vJb9fS1YVTI"

// Program returns the path of the karve program that clusters without [Binary] run: the one
// that [BinaryVariable] names, or else karve in the PATH, or else the release [Version].
//
// That release is downloaded once, into the directory karve of the user's cache directory.
// Nothing of a download is used before the release manager's signature of the release and the
// checksum of the program are found right. The signature includes the version, so a mirror cannot
// offer another release. Several processes may call Program at once, and one of them
// downloads.
func Program(ctx context.Context) (string, error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		path, err := exec.LookPath(path)
		if err != nil {
			err = fmt.Errorf("%s: %w", BinaryVariable, err)
		}
		return path, err
	}
	if path, err := exec.LookPath("karve"); err == nil {
		return path, nil
	}
	path, err := fetched(ctx)
	if err != nil {
		err = fmt.Errorf("there is no karve: %s is not set, none is in the PATH, and %s could not be downloaded: %w", BinaryVariable, Version, err)
	}
	return path, err
}

// fetched returns the path of the release in the cache, and downloads it if it is not there.
func fetched(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "karve", Version)
	path := filepath.Join(dir, asset())
	if exists(path) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock := flock.New(filepath.Join(dir, "lock"))
	if err := lock.Lock(); err != nil {
		return "", err
	}
	defer lock.Close()
	if exists(path) {
		return path, nil
	}
	base := strings.TrimSuffix(cmp.Or(os.Getenv(DownloadVariable), "https://github.com/karve-k8s/karve/releases/download/"+Version), "/")
	return path, download(ctx, strings.ReplaceAll(base, "+", "%2B"), path)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
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

// download makes path the program of the release at base.
func download(ctx context.Context, base, path string) error {
	sums, err := signedSums(ctx, base)
	if err != nil {
		return err
	}
	name := filepath.Base(path) + ".gz"
	want, err := sumOf(sums, name)
	if err != nil {
		return fmt.Errorf("%s: %w", base, err)
	}
	from := base + "/" + name
	body, size, err := get(ctx, from)
	if err != nil {
		return err
	}
	defer body.Close()
	fmt.Fprintf(os.Stderr, "downloading karve %s (%d MB), once, to %s\n", Version, (size+5e5)/1e6, path)

	partial, err := os.CreateTemp(filepath.Dir(path), "partial-")
	if err != nil {
		return err
	}
	defer os.Remove(partial.Name()) // fails after the rename
	defer partial.Close()
	digest := sha256.New()
	if err := unpack(partial, io.TeeReader(body, digest)); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != want {
		return fmt.Errorf("%s is damaged: its SHA-256 is %s, want %s", from, got, want)
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

// unpack reads all of compressed, also what follows the gzip stream.
func unpack(to io.Writer, compressed io.Reader) error {
	unpacked, err := gzip.NewReader(compressed)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, unpacked); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, compressed)
	return err
}

// signedSums returns the list of checksums of the release at base, whose signature is right.
func signedSums(ctx context.Context, base string) ([]byte, error) {
	sums, err := content(ctx, base+"/SHA256SUMS")
	if err != nil {
		return nil, err
	}
	text, err := content(ctx, base+"/SHA256SUMS.minisig")
	if err != nil {
		return nil, err
	}
	var key minisign.PublicKey
	if err := key.UnmarshalText([]byte(releaseKey)); err != nil {
		return nil, err
	}
	var signature minisign.Signature
	if err := signature.UnmarshalText(text); err != nil {
		return nil, fmt.Errorf("%s/SHA256SUMS.minisig: %w", base, err)
	}
	if !minisign.Verify(key, sums, text) {
		return nil, fmt.Errorf("%s/SHA256SUMS.minisig is not the signature of Karve's release manager; nothing of the release was used", base)
	}
	if signature.TrustedComment != "karve "+Version {
		return nil, fmt.Errorf("%s has %s, want karve %s: set %s to the address of that release", base, signature.TrustedComment, Version, DownloadVariable)
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

// content returns a short file.
func content(ctx context.Context, url string) ([]byte, error) {
	body, _, err := get(ctx, url)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(io.LimitReader(body, 1<<20))
}

// get begins a download, and returns its size, or -1 if the server does not say it.
func get(ctx context.Context, url string) (io.ReadCloser, int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	// Otherwise the transport unpacks what some servers call compressed.
	request.Header.Set("Accept-Encoding", "identity")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, 0, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, 0, fmt.Errorf("%s: %s", url, response.Status)
	}
	return response.Body, response.ContentLength, nil
}
