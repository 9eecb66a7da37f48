package join

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// kubelet is a program that has been checked, and not been installed yet.
type kubelet struct {
	file    string
	version string
}

// published are the processors for which Kubernetes publishes a kubelet for Linux.
var published = []string{"amd64", "arm64", "ppc64le", "s390x"}

// fetchKubelet copies or downloads the kubelet into a directory, and checks it.
func (m *Machine) fetchKubelet(ctx context.Context, o Options, cluster *utilversion.Version, dir string) (kubelet, error) {
	k := kubelet{file: filepath.Join(dir, "kubelet")}
	version := fmt.Sprintf("v%d.%d.%d", cluster.Major(), cluster.Minor(), cluster.Patch())
	if pre := cluster.PreRelease(); pre != "" {
		version += "-" + pre
	}
	path := version + "/bin/linux/" + m.arch() + "/kubelet"
	if o.Kubelet == "" && !slices.Contains(published, m.arch()) {
		//lint:ignore ST1005 Kubernetes is a name
		return k, fmt.Errorf("Kubernetes publishes no kubelet for %s, only for %s: build it (`go build k8s.io/kubernetes/cmd/kubelet`), and give the file with --kubelet FILE", m.arch(), strings.Join(published, ", "))
	}
	want, err := o.wantedSum(ctx, path)
	if err != nil {
		return k, err
	}
	origin := o.Kubelet
	if origin != "" {
		in, err := os.Open(origin)
		if err != nil {
			return k, fmt.Errorf("--kubelet: %w", err)
		}
		defer in.Close()
		if err := checkedCopy(k.file, in, want, "--kubelet "+origin); err != nil {
			return k, err
		}
	} else {
		origin = strings.TrimSuffix(o.KubeletURL, "/") + "/" + path
		o.Say("downloading %s", origin)
		if err := download(ctx, origin, k.file, want); err != nil {
			return k, err
		}
	}
	if err := os.Chmod(k.file, 0o755); err != nil {
		return k, err
	}
	out, err := m.run(ctx, k.file, "--version")
	if err != nil {
		return k, fmt.Errorf("%s does not run on this machine (%w): give the kubelet for linux/%s with --kubelet FILE", origin, err, m.arch())
	}
	k.version = strings.TrimPrefix(strings.TrimSpace(out), "Kubernetes ")
	return k, fits(origin, k.version, cluster)
}

// fits checks Kubernetes' policy: a kubelet may be three minor versions older than the API server,
// and not newer.
func fits(origin, version string, cluster *utilversion.Version) error {
	v, err := utilversion.ParseSemantic(version)
	if err != nil {
		return fmt.Errorf("%s --version prints %q: this is not a kubelet", origin, version)
	}
	if v.Major() != cluster.Major() || v.Minor() > cluster.Minor() || v.Minor()+3 < cluster.Minor() {
		return fmt.Errorf("%s is the kubelet %s, which does not work with a server v%s: it may be up to three minor versions older, and not newer. Take v%d.%d.%d",
			origin, version, cluster, cluster.Major(), cluster.Minor(), cluster.Patch())
	}
	return nil
}

const remedy = "check this machine's connection to the internet, name a mirror with --kubelet-url, or copy the file to this machine and give it with --kubelet FILE"

// get opens a URL. No redirect leads from https to http.
func get(ctx context.Context, url string) (io.ReadCloser, error) {
	client := &http.Client{
		CheckRedirect: onlyHTTPS,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, ResponseHeaderTimeout: time.Minute, TLSHandshakeTimeout: 20 * time.Second,
			DialContext: (&net.Dialer{Timeout: 20 * time.Second}).DialContext, DisableKeepAlives: true},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, fmt.Errorf("%s: %s", url, response.Status)
	}
	return response.Body, nil
}

// download gets a file, which is complete and right if it has the wanted SHA-256.
func download(ctx context.Context, url, file, want string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute)
	defer cancel()
	body, err := get(ctx, url)
	if err != nil {
		return fmt.Errorf("the kubelet could not be downloaded: %w: %s", err, remedy)
	}
	defer body.Close()
	return checkedCopy(file, body, want, url)
}

// onlyHTTPS refuses a redirect that leads from https to http.
func onlyHTTPS(r *http.Request, via []*http.Request) error {
	if len(via) > 10 {
		return errors.New("too many redirects")
	}
	if via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {
		return fmt.Errorf("it redirects to %s, which is not https", r.URL.Host)
	}
	return nil
}

// checkedCopy writes a file, and compares its SHA-256 with the wanted one, unless that is empty.
func checkedCopy(file string, in io.Reader, want, origin string) error {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o700)
	if err != nil {
		return err
	}
	defer out.Close()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(out, hash), in); err != nil {
		return fmt.Errorf("%s could not be copied to %s: %w", origin, filepath.Dir(file), err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); want != "" && !strings.EqualFold(got, want) {
		return fmt.Errorf("%s is damaged: its SHA-256 is %s instead of %s. Try again", origin, got, strings.ToLower(want))
	}
	if err := out.Sync(); err != nil {
		return err
	}
	return out.Close()
}
