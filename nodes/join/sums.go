package join

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// embeddedSums are the SHA-256 of the kubelets of the version that Karve contains, in lines of sha256sum. They are
// signed with the program. scripts/kubelet-sums writes the file.
//
//go:embed kubelet.sha256
var embeddedSums string

// ParseSigned reads the value of KARVE_REQUIRE_SIGNATURE for Options.Signed.
func ParseSigned(value string) (bool, error) {
	switch value {
	case "1", "yes", "true":
		return true, nil
	case "", "0", "no", "false":
		return false, nil
	}
	return false, fmt.Errorf("KARVE_REQUIRE_SIGNATURE %s: want yes or no", value)
}

// wantedSum returns the SHA-256 that a kubelet must have: the user's, that in this program, or the one that Kubernetes publishes. A
// mirror does not vouch for itself; a file needs no witness unless Signed is set, and then empty stands for any. The path is
// that of the cluster's kubelet.
func (o Options) wantedSum(ctx context.Context, path string) (string, error) {
	embedded := embeddedSum(o.embedded, path)
	switch {
	case o.KubeletSHA256 != "":
		return o.KubeletSHA256, nil
	case o.Kubelet != "" && !o.Signed:
		return "", nil
	case embedded != "":
		return embedded, nil
	case o.Signed:
		return "", fmt.Errorf("KARVE_REQUIRE_SIGNATURE is set, but this Karve has no checksum of the kubelet %s: take the release of Karve that the server runs, or give the checksum with --kubelet-sha256", path)
	}
	const remedy = "give the checksum with --kubelet-sha256"
	url := strings.TrimSuffix(o.official, "/") + "/" + path + ".sha256"
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	body, err := get(ctx, url)
	if err != nil {
		return "", fmt.Errorf("the checksum of the kubelet could not be downloaded: %w: check this machine's connection to the internet, or %s", err, remedy)
	}
	defer body.Close()
	text, err := io.ReadAll(io.LimitReader(body, 1024))
	if err != nil {
		return "", fmt.Errorf("%s: %w", url, err)
	}
	sum, err := checksum(text)
	if err != nil {
		return "", fmt.Errorf("%s is not a checksum: %s", url, remedy)
	}
	return sum, nil
}

// embeddedSum finds the sum of a path in lines of sha256sum.
func embeddedSum(lines, path string) string {
	for line := range strings.Lines(lines) {
		if sum, name, ok := strings.Cut(strings.TrimSpace(line), "  "); ok && name == path {
			return sum
		}
	}
	return ""
}

// checksum reads what sha256sum writes, or a checksum alone.
func checksum(text []byte) (string, error) {
	sum, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size {
		return "", errors.New("want 64 hexadecimal digits")
	}
	return sum, nil
}
