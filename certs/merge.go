package certs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

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
	// Outside is a data directory, whose files are not for merging into.
	Outside string
	// SetCurrent makes the merged context the current one even if there is one.
	SetCurrent bool

	copy   bool        // also replace what another server of this machine wrote, if dst has nothing else
	mode   os.FileMode // 0600 if 0
	noSync bool
}

// MergeResult says what MergeKubeconfig did.
type MergeResult struct {
	Path    string // the file merged into, symbolic links followed
	Context string // the name of the merged context
	Changed bool   // whether the entries were not there before
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
// dst is no kubeconfig. After an error, dst is unchanged. dst is replaced in one step, under
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
	from, err := clientcmd.Load(text)
	if err != nil {
		return MergeResult{}, fmt.Errorf("%w: the server's admin.kubeconfig is not a kubeconfig", ErrCorrupt) // the parser may quote it
	}
	name := cmp.Or(opts.Name, from.CurrentContext)
	kubeContext := from.Contexts[from.CurrentContext]
	if kubeContext == nil || from.Clusters[kubeContext.Cluster] == nil || from.AuthInfos[kubeContext.AuthInfo] == nil {
		return MergeResult{}, fmt.Errorf("%w: the server's admin.kubeconfig has no current context with a cluster and a user", ErrCorrupt)
	}
	one := clientcmdapi.NewConfig()
	one.CurrentContext = name
	one.Clusters[name], one.AuthInfos[name] = from.Clusters[kubeContext.Cluster], from.AuthInfos[kubeContext.AuthInfo]
	kubeContext.Cluster, kubeContext.AuthInfo = name, name
	one.Contexts[name] = kubeContext
	return merge(ctx, dst, one, opts)
}

// merge puts the only context, cluster and user of one, which have the same name, into dst. If they are there, it needs
// no lock, which a power cut may have left.
func merge(ctx context.Context, dst string, one *clientcmdapi.Config, opts MergeOptions) (MergeResult, error) {
	to, err := destination.Find(dst, destination.Rules{Overwrite: true, Outside: []string{opts.Outside}})
	if err != nil {
		return MergeResult{}, err
	}
	plan, err := planMerge(to, one, opts)
	if err != nil || !plan.needed {
		return plan.MergeResult, err
	}
	files := atomicfile.Writer{NoSync: opts.noSync}
	if err := makeDir(files, filepath.Dir(to)); err != nil {
		return MergeResult{}, err
	}
	err = locked(ctx, slices.Compact([]string{dst, to}), func() error {
		if plan, err = planMerge(to, one, opts); err == nil {
			_, err = replace(files, to, plan.data, plan.mode)
		}
		return err
	})
	return plan.MergeResult, err
}

// mergePlan is what a merge will have done.
type mergePlan struct {
	MergeResult
	needed bool // otherwise dst is that already
	data   []byte
	mode   os.FileMode
}

func planMerge(to string, one *clientcmdapi.Config, opts MergeOptions) (mergePlan, error) {
	name := one.CurrentContext
	file, err := readKubeconfig(to)
	if errors.Is(err, fs.ErrNotExist) {
		file, err = kubeconfigFile{config: clientcmdapi.NewConfig()}, nil
	} else if err != nil {
		return mergePlan{}, err
	}
	plan := mergePlan{MergeResult: MergeResult{Path: to, Context: name}, mode: cmp.Or(opts.mode, fileMode)}
	into := file.config
	alone := !hasOthers(into, name)
	if !alone { // nor do more users get to read them
		plan.mode &= file.mode
	}
	if !opts.Overwrite && !(opts.copy && alone && isCopy(into.Clusters[name], one.Clusters[name])) {
		if err := conflict(into, name, one.Clusters[name], one.AuthInfos[name]); err != nil {
			return mergePlan{}, fmt.Errorf("%w in %s", err, to)
		}
	}
	file.put(one)
	if into.CurrentContext == "" || opts.SetCurrent {
		into.CurrentContext = name
	}
	plan.Current = into.CurrentContext == name
	plan.needed, plan.Closed = file.mode != plan.mode, file.mode&^plan.mode&0o077 != 0
	plan.data, plan.Changed, err = file.encode()
	plan.needed = plan.needed || plan.Changed
	return plan, err
}

// hasOthers reports whether a kubeconfig has entries of another name.
func hasOthers(config *clientcmdapi.Config, name string) bool {
	names := slices.Concat(slices.Collect(maps.Keys(config.Contexts)), slices.Collect(maps.Keys(config.Clusters)), slices.Collect(maps.Keys(config.AuthInfos)))
	return slices.ContainsFunc(names, func(other string) bool { return other != name })
}

// isCopy reports whether have is of a Karve that only this machine reaches, as is want.
func isCopy(have, want *clientcmdapi.Cluster) bool {
	return have != nil && isLocal(have.Server) && isLocal(want.Server) && slices.ContainsFunc(authorities(have), isOurs)
}

// kubeconfigFile is a kubeconfig as it was read.
type kubeconfigFile struct {
	text, normal []byte // normal is the text without comments and layout
	mode         os.FileMode
	config       *clientcmdapi.Config
}

// readKubeconfig reads path, which may be empty. It does not pass on what the parser says, which may quote the
// file.
func readKubeconfig(path string) (f kubeconfigFile, err error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return f, fmt.Errorf("%s is not a regular file", path)
	} else if err == nil {
		f.mode = info.Mode().Perm()
		f.text, err = os.ReadFile(path)
	}
	if err != nil {
		return f, fmt.Errorf("read kubeconfig: %w", err)
	}
	var fields map[string]any
	f.config = clientcmdapi.NewConfig()
	if err = yaml.Unmarshal(f.text, &fields); err == nil && len(fields) > 0 {
		if f.config, err = clientcmd.Load(f.text); fields["kind"] != "Config" || fields["apiVersion"] != "v1" {
			err = ErrCorrupt
		}
	}
	if err == nil {
		f.normal, err = clientcmd.Write(*f.config)
	}
	if err != nil {
		return f, fmt.Errorf("%w: %s is not a kubeconfig (apiVersion: v1, kind: Config): name another file, or repair it", ErrCorrupt, path)
	}
	return f, nil
}

// put puts the entries of from into the kubeconfig. A context keeps its namespace.
func (f kubeconfigFile) put(from *clientcmdapi.Config) {
	for name, cluster := range from.Clusters {
		putCluster(f.config, name, cluster)
	}
	maps.Copy(f.config.AuthInfos, from.AuthInfos)
	for name, c := range from.Contexts {
		if have := f.config.Contexts[name]; have != nil {
			have.Cluster, have.AuthInfo = c.Cluster, c.AuthInfo
		} else {
			f.config.Contexts[name] = c
		}
	}
}

// encode returns the text of the changed kubeconfig. If nothing has changed, it is as it was read.
func (f kubeconfigFile) encode() (text []byte, changed bool, err error) {
	if text, err = clientcmd.Write(*f.config); err == nil && bytes.Equal(text, f.normal) {
		return f.text, false, nil
	}
	return text, true, err
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
	return sharesKey(haveCA, wantCA) || have.Server == want.Server && slices.ContainsFunc(haveCA, isOurs)
}

func sharesKey(a, b []*x509.Certificate) bool {
	return slices.ContainsFunc(a, func(c *x509.Certificate) bool {
		return slices.ContainsFunc(b, func(other *x509.Certificate) bool {
			return bytes.Equal(c.RawSubjectPublicKeyInfo, other.RawSubjectPublicKeyInfo)
		})
	})
}

// isOurs reports whether this package made c.
func isOurs(c *x509.Certificate) bool {
	_, ours := marked(c)
	return ours
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
