package keys

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/membership"
)

const (
	dropOld        = "drop-old"
	force          = "force"
	serviceAccount = "service-account-key"
)

func rotateCACommand() *cli.Command {
	return &cli.Command{
		Name:  "rotate-ca",
		Usage: "replace the authorities, or the key of service account tokens, of running servers",
		Description: `What the old ones have signed stays valid until a second run with --drop-old. Each run can be
repeated after it was stopped. Servers with a cluster token first learn to trust what is new: without --drop-old, run it twice. Each
run says what comes next, and is refused while a server has not taken the step before.`,
		Flags: append(datastoreFlags(),
			&cli.BoolFlag{Name: serviceAccount, Usage: "replace the key of service account tokens, not the authorities"},
			&cli.BoolFlag{Name: force, Usage: "with --drop-old, also lock out nodes that have not followed"},
			&cli.BoolFlag{Name: dropOld, Usage: "end a replacement: what the old authorities, or the old key, have signed is refused at once"},
		),
		Before: options.FindDataDir,
		Action: func(c *cli.Context) error {
			dir, err := certsDir(c)
			if err != nil {
				return err
			}
			return withCluster(c, func(ctx context.Context, cluster membership.Cluster) error {
				sealed, err := cluster.Sealed(ctx)
				switch {
				case err != nil:
					return err
				case sealed:
					return rotateShared(ctx, c, cluster, dir)
				case !cluster.PrivateStorage:
					return needsToken("keys")
				case c.Bool(dropOld):
					return dropFormer(ctx, c, cluster, dir)
				}
				return replaceKeys(ctx, c, cluster, dir)
			})
		},
	}
}

// rotateShared takes the next step in a cluster whose servers share the keys.
func rotateShared(ctx context.Context, c *cli.Context, cluster membership.Cluster, dir string) error {
	if c.String(membership.Option) == "" {
		return fmt.Errorf("--%s: several servers may share these keys: name the file with their token", membership.Option)
	}
	token, err := readClusterToken(c, membership.Option)
	if err != nil {
		return err
	}
	api, _, err := servers.Client(c.String("data-dir"))
	if err != nil {
		return err
	}
	kind, what, again := membership.Authorities, "authorities", "karve certs rotate-ca"
	users, tokens := "Nodes follow within an hour. Give users new kubeconfigs", ""
	if c.Bool(serviceAccount) {
		kind, what, again = membership.ServiceAccountKey, "keys of tokens", again+" --"+serviceAccount
		users, tokens = "Wait an hour, until all Pods have new tokens", " (one of them with --"+membership.NewAuthoritiesOption+" unrecorded if programs use tokens in Secrets)"
	}
	step, err := cluster.RotateKeys(ctx, token, kind, c.Bool(dropOld), func(step string) error {
		err := servers.AwaitStep(ctx, api, kind, step)
		if err == nil && c.Bool(dropOld) {
			err = nodesFollow(ctx, c, api, dir)
		}
		return err
	})
	if err == nil && step == membership.Finished && kind == membership.Authorities {
		_, err = forget(ctx, api, dir)
	}
	if err != nil {
		return err
	}
	const restart = "\nNext: start each server again, one at a time"
	_, err = fmt.Fprintln(c.App.Writer, map[membership.Step]string{
		membership.Introduced: "made new " + what + ", which servers trust at first; the old ones still sign" + restart + "; then run " + again + " again, which lets the new ones sign",
		membership.Switched:   "the new " + what + " sign; the old ones are still trusted" + restart + ". " + users + "; then run " + again + " --" + dropOld,
		membership.Dropped:    "dropped the old " + what + restart + tokens + "; then run " + again + " --" + dropOld + " once more, to make sure that no server trusts them",
		membership.Finished:   "no server trusts the old " + what + " any more",
	}[step])
	return err
}

func replaceKeys(ctx context.Context, c *cli.Context, cluster membership.Cluster, dir string) error {
	var replaced []certs.Name
	err := withStore(c, dir, func(store *certs.Store) (_ []certs.Note, err error) {
		replaced, err = store.Replace(c.Bool(serviceAccount))
		return nil, err
	})
	if err != nil {
		return err
	}
	if err := ownership.Act(dir, func() error { return cluster.Rekey(ctx, dir) }); err != nil {
		return err
	}
	for _, name := range replaced {
		fmt.Fprintf(c.App.Writer, "replaced %s; the old one is still trusted\n", name)
	}
	if len(replaced) == 0 {
		fmt.Fprintln(c.App.Writer, "they have been replaced already; the old ones are still trusted")
	}
	next := "start the server again when it suits: from then on Pods and machines that join trust the new authorities. Nodes follow within an hour. Give users new kubeconfigs; then run karve certs rotate-ca --" + dropOld
	if c.Bool(serviceAccount) {
		next = "start the server again: from then on it signs tokens with the new key. When all Pods have new tokens, after an hour at most, run karve certs rotate-ca --" + serviceAccount + " --" + dropOld
	}
	_, err = fmt.Fprintln(c.App.Writer, "Next: "+next)
	return err
}

// startPatience is how long after its start a server may take to publish the authorities.
const startPatience = 5 * time.Second

// dropFormer ends a replacement, if the server has been started again since.
func dropFormer(ctx context.Context, c *cli.Context, cluster membership.Cluster, dir string) error {
	api, _, err := servers.Client(c.String("data-dir"))
	if err != nil {
		return err
	}
	started := func(context.Context) (known bool, err error) {
		err = ownership.Act(dir, func() (err error) {
			if c.Bool(serviceAccount) {
				known, err = knowsKey(ctx, api, dir)
			} else {
				known, err = has(ctx, api, "kube-root-ca.crt", "ca.crt", dir, certs.ServerCA)
			}
			return err
		})
		return known, err
	}
	err = wait.PollUntilContextTimeout(ctx, time.Second, startPatience, true, started)
	if wait.Interrupted(err) && ctx.Err() == nil {
		err = errors.New("--" + dropOld + ": the server does not use everything that is new yet: start it again first")
	}
	if err != nil {
		return err
	}
	if err := nodesFollow(ctx, c, api, dir); err != nil {
		return err
	}
	if err := ownership.Act(dir, func() error { return cluster.Rekey(ctx, dir) }); err != nil {
		return err
	}
	var dropped []certs.Name
	err = withStore(c, dir, func(store *certs.Store) (_ []certs.Note, err error) {
		dropped, err = store.DropFormer(c.Bool(serviceAccount))
		return nil, err
	})
	if err != nil {
		return err
	}
	forgot := false
	if !c.Bool(serviceAccount) { // also after a run that was killed before this
		if forgot, err = forget(ctx, api, dir); err != nil {
			return err
		}
	}
	if len(dropped) == 0 && !forgot {
		return errors.New("--" + dropOld + ": nothing is being replaced: run karve certs rotate-ca without it first")
	}
	for _, name := range dropped {
		fmt.Fprintf(c.App.Writer, "dropped the old %s\n", name)
	}
	next := "start the server again: Pods, and machines that join, then trust the new authorities only"
	if c.Bool(serviceAccount) {
		next = "start the server again, with --" + membership.NewAuthoritiesOption + " unrecorded if programs use tokens in Secrets: it then refuses what the old key has signed, and replaces tokens in Secrets that it refuses"
	}
	_, err = fmt.Fprintln(c.App.Writer, "Next: "+next)
	return err
}

// nodesFollow refuses to drop an authority that nodes still need.
func nodesFollow(ctx context.Context, c *cli.Context, api kubernetes.Interface, dir string) error {
	if c.Bool(serviceAccount) || c.Bool(force) {
		return nil
	}
	issuer, former, err := certs.Signer(dir, certs.ClientCA)
	if err != nil || !former { // dropped already, by a run that was killed
		return err
	}
	return servers.NodesFollow(ctx, api, issuer)
}

// has reports whether a ConfigMap has the authority in dir, and no other. One that does not exist has nothing to correct: without
// controllers, there is none for Pods.
func has(ctx context.Context, api kubernetes.Interface, configMap, key, dir string, name certs.Name) (bool, error) {
	m, err := api.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, configMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	want, err := os.ReadFile(filepath.Join(dir, string(name)+".crt"))
	return strings.TrimSpace(m.Data[key]) == strings.TrimSpace(string(want)), err
}

// knowsKey reports whether the server verifies tokens with the service account key in dir. Each key's ID is a hash of the key.
func knowsKey(ctx context.Context, api kubernetes.Interface, dir string) (bool, error) {
	served, err := api.Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(ctx)
	if err != nil {
		return false, err
	}
	local, err := certs.ReadShared(dir)
	if err != nil {
		return false, err
	}
	keys, err := local.Fingerprints()
	if err != nil {
		return false, err
	}
	sum, err := hex.DecodeString(keys[certs.ServiceAccount])
	return strings.Contains(string(served), base64.RawURLEncoding.EncodeToString(sum)), err
}

// forget removes the old authorities from the ConfigMap by which extension API servers know whom to trust, and reports whether it had
// any. API servers only add to it, so it is deleted, and the server makes it again.
func forget(ctx context.Context, api kubernetes.Interface, dir string) (deleted bool, err error) {
	const name = "extension-apiserver-authentication"
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, false, func(context.Context) (bool, error) {
		m, err := api.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return !deleted, nil
		} else if err != nil {
			return false, err
		}
		clients, err := outdated(m.Data["client-ca-file"], dir, certs.ClientCA)
		if err != nil {
			return false, err
		}
		proxies, err := outdated(m.Data["requestheader-client-ca-file"], dir, certs.FrontProxyCA)
		if err != nil || !clients && !proxies {
			return err == nil, err
		}
		deleted = true
		err = api.CoreV1().ConfigMaps(metav1.NamespaceSystem).Delete(ctx, name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return false, err
	})
	if err != nil {
		err = fmt.Errorf("the old authorities are dropped, but extension API servers may still trust them: run this again, or delete the ConfigMap %s in kube-system: %w", name, err)
	}
	return deleted, err
}

// outdated reports whether certificates in PEM have the authority in dir, and others that its file has not. Those of another file, which
// an option names, are not.
func outdated(text, dir string, name certs.Name) (bool, error) {
	var own []*x509.Certificate
	err := ownership.Act(dir, func() (err error) {
		own, err = certutil.CertsFromFile(certs.File(dir, name))
		return err
	})
	if err != nil {
		return false, err
	}
	all, _ := certutil.ParseCertsPEM([]byte(text)) // without any, nothing is trusted
	has := func(list []*x509.Certificate, c *x509.Certificate) bool { return slices.ContainsFunc(list, c.Equal) }
	return has(all, own[0]) && slices.ContainsFunc(all, func(c *x509.Certificate) bool { return !has(own, c) }), nil
}
