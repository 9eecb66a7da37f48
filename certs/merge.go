package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/destination"
)

// ErrConflict is MergeKubeconfig's refusal to replace an entry of another cluster.
var ErrConflict = errors.New("kubeconfig entry belongs to another cluster")

// MergeOptions changes what MergeKubeconfig does. The zero value is the careful way.
type MergeOptions struct {
	// Name is the name of the merged context, cluster and user. By default, it is the name
	// of the current context.
	Name string
	// Overwrite replaces entries of that name, whatever they are.
	Overwrite bool
	// Outside is a data directory, whose kubeconfig is not one to merge into.
	Outside string
	// SetCurrent makes the merged context the current one even if there is one.
	SetCurrent bool
}

// MergeResult says what MergeKubeconfig did.
type MergeResult struct {
	Path    string // the file merged into, symbolic links followed
	Context string // the name of the merged context
	Changed bool   // whether the file had to be written
	Closed  bool   // whether other users could read the file before
	Current bool   // whether the merged context is now the current one
}

// MergeKubeconfig puts the current context of the kubeconfig text into dst, with its cluster
// and user, which do not name files. If dst is empty, it is the file that kubectl would write to: of
// those in $KUBECONFIG the first that exists, or else the last; without any, ~/.kube/config. It is made
// if it does not exist. Without a home directory, dst has to be given.
//
// Everything else in dst keeps its meaning, though not its comments. A context that was
// merged before keeps its namespace, and stays the current one if it was. An entry of the
// same name is updated if it is of the same cluster: one with the same authority, or an
// earlier Karve at the same URL. Otherwise the error is ErrConflict. It is also an error if
// dst cannot be read. After an error, dst is unchanged. dst is replaced in one step, under
// kubectl's lock, for which MergeKubeconfig waits until ctx ends, at most lockPatience. dst
// keeps its owner, and remains a symbolic link if it is one. Only its owner can read it
// afterwards, because text has a user's key.
func MergeKubeconfig(ctx context.Context, dst string, text []byte, opts MergeOptions) (MergeResult, error) {
	if dst == "" {
		dst = clientcmd.NewDefaultPathOptions().GetDefaultFilename()
		// There is an empty name at the end of $KUBECONFIG, or no home directory.
		if dst == "" || dst == filepath.Join(clientcmd.RecommendedHomeDir, clientcmd.RecommendedFileName) {
			return MergeResult{}, fmt.Errorf("$%s and the home directory name no file to merge into: name one", clientcmd.RecommendedConfigPathEnvVar)
		}
	}
	file, err := destination.Find(dst, destination.Rules{Overwrite: true, Outside: []string{opts.Outside}})
	if err != nil {
		return MergeResult{}, fmt.Errorf("merge kubeconfig: %w", err)
	}
	from, err := clientcmd.Load(text)
	if err != nil {
		return MergeResult{}, fmt.Errorf("%w: the server's admin.kubeconfig is not a kubeconfig", ErrCorrupt) // the parser may quote it
	}
	name := cmp.Or(opts.Name, from.CurrentContext)
	kubeContext := from.Contexts[from.CurrentContext]
	if kubeContext == nil || from.Clusters[kubeContext.Cluster] == nil || from.AuthInfos[kubeContext.AuthInfo] == nil {
		return MergeResult{}, fmt.Errorf("%w: the server's admin.kubeconfig has no current context with a cluster and a user", ErrCorrupt)
	}
	if err := makeDir(atomicfile.Writer{}, filepath.Dir(file)); err != nil {
		return MergeResult{}, err
	}
	var result MergeResult
	err = locked(ctx, slices.Compact([]string{dst, file}), func() (err error) {
		result, err = mergeInto(file, name, from.Clusters[kubeContext.Cluster], from.AuthInfos[kubeContext.AuthInfo], kubeContext, opts)
		return err
	})
	return result, err
}

// mergeInto puts the entries into dst under the name.
func mergeInto(dst, name string, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo, kubeContext *clientcmdapi.Context, opts MergeOptions) (MergeResult, error) {
	result := MergeResult{Path: dst, Context: name}
	into, err := readKubeconfig(dst)
	mode := os.FileMode(fileMode)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		into = clientcmdapi.NewConfig()
	case err != nil:
		return MergeResult{}, err
	default:
		info, err := os.Stat(dst)
		if err != nil {
			return MergeResult{}, err
		}
		mode = info.Mode().Perm()
		if mode&0o077 != 0 && runtime.GOOS != "windows" {
			mode, result.Closed = mode&^0o077, true
		}
	}
	user.LocationOfOrigin = dst // as that of the users in into
	if !opts.Overwrite {
		if err := conflict(into, name, cluster, user); err != nil {
			return MergeResult{}, fmt.Errorf("%w in %s: merge under another name, or overwrite it", err, dst)
		}
	}
	before := into.DeepCopy()
	putCluster(into, name, cluster)
	into.AuthInfos[name] = user
	putContext(into, name, kubeContext)
	if into.CurrentContext == "" || opts.SetCurrent {
		into.CurrentContext = name
	}
	result.Current = into.CurrentContext == name
	if reflect.DeepEqual(before, into) { // the comments and the layout stay
		if result.Closed {
			err = os.Chmod(dst, mode)
		}
		return result, err
	}
	data, err := clientcmd.Write(*into)
	if err != nil {
		return MergeResult{}, fmt.Errorf("write kubeconfig %s: %w", dst, err)
	}
	if result.Changed, err = replace(atomicfile.Writer{}, dst, data, mode); err != nil {
		return MergeResult{}, err
	}
	return result, nil
}

// readKubeconfig reads path. It does not pass on what the parser says, which may quote the
// file.
func readKubeconfig(path string) (*clientcmdapi.Config, error) {
	config, err := clientcmd.LoadFromFile(path)
	var unread *fs.PathError
	switch {
	case errors.As(err, &unread):
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%w: %s is not a kubeconfig: repair or remove it; kubectl config view --kubeconfig %[2]s says where it is wrong", ErrCorrupt, path)
	}
	return config, nil
}

// conflict says which entry of the name belongs to another cluster.
func conflict(into *clientcmdapi.Config, name string, cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) error {
	if have := into.Contexts[name]; have != nil && (have.Cluster != name || have.AuthInfo != name) {
		return fmt.Errorf("%w: context %q uses cluster %q and user %q", ErrConflict, name, have.Cluster, have.AuthInfo)
	}
	have := into.Clusters[name]
	if have != nil && !sameCluster(have, cluster) {
		return fmt.Errorf("%w: cluster %q is %s, with another authority", ErrConflict, name, have.Server)
	}
	if u := into.AuthInfos[name]; have == nil && u != nil && !reflect.DeepEqual(u, user) {
		return fmt.Errorf("%w: user %q is there without a cluster of that name", ErrConflict, name)
	}
	for other, c := range into.Contexts {
		if other != name && c.AuthInfo == name && c.Cluster != name {
			return fmt.Errorf("%w: user %q is used by context %q", ErrConflict, name, other)
		}
	}
	return nil
}

// sameCluster reports whether two entries are of one cluster: they trust a common key, or
// Karve was at this URL before, with an authority that is gone.
func sameCluster(have, want *clientcmdapi.Cluster) bool {
	haveCA, wantCA := authorities(have), authorities(want)
	if len(wantCA) == 0 || len(haveCA) == 0 {
		return have.Server == want.Server && len(wantCA) == len(haveCA)
	}
	for _, h := range haveCA {
		for _, w := range wantCA {
			if bytes.Equal(h.RawSubjectPublicKeyInfo, w.RawSubjectPublicKeyInfo) {
				return true
			}
		}
		if _, ours := marked(h); ours && have.Server == want.Server {
			return true
		}
	}
	return false
}

func authorities(c *clientcmdapi.Cluster) []*x509.Certificate {
	data := c.CertificateAuthorityData
	if len(data) == 0 && filepath.IsAbs(c.CertificateAuthority) {
		data, _ = os.ReadFile(c.CertificateAuthority) // if it cannot be read, it is unknown
	}
	certs, _ := parseCerts("", data)
	return certs
}

// putCluster replaces a cluster entry, and keeps what the other does not decide, such as a proxy.
func putCluster(into *clientcmdapi.Config, name string, cluster *clientcmdapi.Cluster) {
	have := into.Clusters[name]
	if have == nil || !sameCluster(have, cluster) {
		into.Clusters[name] = cluster
		return
	}
	have.Server, have.DisableCompression = cluster.Server, cluster.DisableCompression
	have.CertificateAuthority, have.CertificateAuthorityData = "", cluster.CertificateAuthorityData
	have.InsecureSkipTLSVerify = cluster.InsecureSkipTLSVerify
}

// putContext replaces a context, and keeps its namespace.
func putContext(into *clientcmdapi.Config, name string, context *clientcmdapi.Context) {
	if have := into.Contexts[name]; have != nil {
		have.Cluster, have.AuthInfo = name, name
		return
	}
	context.Cluster, context.AuthInfo = name, name
	into.Contexts[name] = context
}
