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
	"net/http"
	"net/url"
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
	from, err := address()
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

// address is where the files of the release are. It may have credentials in all parts but host and path.
func address() (*url.URL, error) {
	text := cmp.Or(os.Getenv(DownloadVariable), "https://github.com/karve-k8s/karve/releases/download/"+Version)
	from, err := url.Parse(strings.ReplaceAll(text, "+", "%2B")) // some servers read a plus sign as a space
	if err != nil || from.Scheme != "https" && from.Scheme != "http" || from.Host == "" {
		// The error of the parser has the address, with its password.
		return nil, fmt.Errorf("%s is no address of a release: want one such as https://mirror.example/karve/%s", DownloadVariable, Version)
	}
	return from, nil
}

// shown is the address of a file without user, password and parameters, as messages have it.
func shown(from *url.URL, name string) string {
	return (&url.URL{Scheme: from.Scheme, Host: from.Host, Path: from.Path}).JoinPath(name).String()
}

// client gives up before go test does after its default of 10 minutes, so that the test says why it fails.
var client = &http.Client{Timeout: 9 * time.Minute}

// Limits of a file's size. A file that is longer is cut off, and so fails the check of its signature or checksum.
const (
	maxList    = 1 << 20
	maxProgram = 256 << 20
)

// get downloads a file of the release.
func get(ctx context.Context, from *url.URL, name string, limit int64) ([]byte, error) {
	request := &http.Request{Method: http.MethodGet, URL: from.JoinPath(name), Header: http.Header{
		// Without this, net/http unpacks a file that the server calls compressed.
		"Accept-Encoding": {"identity"},
		// Without this, net/http sends the parameters of the address to hosts that it is redirected to.
		"Referer": {shown(from, name)},
	}}
	response, err := client.Do(request.WithContext(ctx))
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // the outer one has the whole address, or that of a redirect with its signature
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown(from, name), err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", shown(from, name), response.Status)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, limit))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown(from, name), err)
	}
	return content, nil
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

// listFile has the checksums of a release.
const listFile = "SHA256SUMS"

// download makes path the program of the release at from. It unpacks only what has the right checksum.
func download(ctx context.Context, from *url.URL, path string) error {
	sums, err := signedSums(ctx, from)
	if err != nil {
		return err
	}
	name := filepath.Base(path) + ".gz"
	want, err := sumOf(sums, name)
	if err != nil {
		return fmt.Errorf("%s: %w", shown(from, listFile), err)
	}
	fmt.Fprintf(os.Stderr, "downloading karve %s, once, to %s\n", Version, path)
	packed, err := get(ctx, from, name, maxProgram)
	if err != nil {
		return err
	}
	if got := fmt.Sprintf("%x", sha256.Sum256(packed)); got != want {
		return fmt.Errorf("%s is damaged: its SHA-256 is %s, want %s", shown(from, name), got, want)
	}

	// The caller has the lock, so a file of that name is what a killed download has left.
	part := path + ".partial"
	if err := os.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	partial, err := os.OpenFile(part, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(part) // fails after the rename
	defer partial.Close()
	if err := unpack(partial, packed); err != nil {
		return fmt.Errorf("%s: %w", shown(from, name), err)
	}
	// A cache with half a program after a power cut would stay so.
	if err := partial.Sync(); err != nil {
		return err
	}
	if err := partial.Close(); err != nil {
		return err
	}
	if err := os.Chmod(part, 0o755); err != nil {
		return err
	}
	return os.Rename(part, path)
}

func unpack(to io.Writer, packed []byte) error {
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err == nil {
		_, err = io.Copy(to, unpacked)
	}
	return err
}

// signedSums returns the list of checksums of the release, whose signature is right.
func signedSums(ctx context.Context, from *url.URL) ([]byte, error) {
	const signed = listFile + ".minisig"
	sums, err := get(ctx, from, listFile, maxList)
	if err != nil {
		return nil, err
	}
	text, err := get(ctx, from, signed, maxList)
	if err != nil {
		return nil, err
	}
	var key minisign.PublicKey
	if err := key.UnmarshalText([]byte(releaseKey)); err != nil {
		return nil, err
	}
	var signature minisign.Signature
	if err := signature.UnmarshalText(text); err != nil {
		return nil, fmt.Errorf("%s: %w", shown(from, signed), err)
	}
	if !minisign.Verify(key, sums, text) {
		return nil, fmt.Errorf("%s is not the signature of Karve's release manager; nothing of the release was used", shown(from, signed))
	}
	if signature.TrustedComment != "karve "+Version {
		return nil, fmt.Errorf("%s has %s, want karve %s: set %s to the address of that release", shown(from, signed), signature.TrustedComment, Version, DownloadVariable)
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
