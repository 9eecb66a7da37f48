package keys

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/membership"
)

// metric has the hash of the configuration that the server uses in its label hash.
const metric = "apiserver_encryption_config_controller_last_config_info{"

// reloadPatience is how long a server may take to read its file again.
const reloadPatience = 30 * time.Second

// awaitLoaded waits until the server in dir uses the content. It returns false if the server does not read the file while it runs.
func awaitLoaded(ctx context.Context, dir string, content []byte) (ok bool, err error) {
	c, _, err := servers.Client(dir)
	if err != nil {
		return false, err
	}
	hash := fmt.Sprintf("%x", sha256.Sum256(content))
	err = wait.PollUntilContextTimeout(ctx, time.Second, reloadPatience, true, func(context.Context) (bool, error) {
		all, err := c.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
		if err != nil {
			return false, fmt.Errorf("read /metrics of the server: %w", err)
		}
		_, line, has := strings.Cut(string(all), "\n"+metric)
		line, _, _ = strings.Cut(line, "\n")
		ok = strings.Contains(line, hash)
		return ok || !has, nil
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		err = nil
	}
	return ok, err
}

func reencrypt(c *cli.Context) error {
	config, file, err := current(c)
	if err != nil {
		return err
	}
	present := config.Ways()[0]
	if present.Provider == membership.Identity {
		return fmt.Errorf("servers write Secrets without encryption: karve secrets status says what comes before this (%s)", file)
	}
	api, _, err := servers.Client(c.String("data-dir"))
	if err != nil {
		return err
	}
	return withCluster(c, func(ctx context.Context, cluster membership.Cluster) error {
		done, err := writeAgain(ctx, c, api, cluster, present)
		if err != nil {
			return fmt.Errorf("%w: %d Secrets have been stored again; karve secrets reencrypt continues", err, done)
		}
		stored, err := count(ctx, cluster)
		if err != nil {
			return err
		}
		total := 0
		for _, n := range stored {
			total += n
		}
		left := total - stored[present]
		if left > 0 {
			return fmt.Errorf("%d of %d Secrets are still not stored with %s: a server does not use %s yet: start each server again, and run this again", left, total, present.Key, file)
		}
		fmt.Fprintf(c.App.Writer, "stored %d Secrets again: all %d are stored with %s %s\n", done, total, present.Provider, present.Key)
		if !c.Bool(dropOld) {
			return nil
		}
		return drop(ctx, c, cluster, present)
	})
}

// writeAgain lets the API server store what is not stored in a way. An update without a change is enough: the API server
// writes it if the value was not encrypted with the key that it writes with.
func writeAgain(ctx context.Context, c *cli.Context, api kubernetes.Interface, cluster membership.Cluster, present membership.Stored) (done int, err error) {
	show := output.Report(c)
	err = cluster.EachSecret(ctx, func(namespace, name string, how membership.Stored) error {
		if how == present {
			return nil
		}
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			secret, err := api.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
			if err == nil {
				_, err = api.CoreV1().Secrets(namespace).Update(ctx, secret, metav1.UpdateOptions{})
			}
			return err
		})
		if apierrors.IsNotFound(err) { // deleted meanwhile
			return nil
		} else if err != nil {
			return fmt.Errorf("store the Secret %s/%s again: %w", namespace, name, err)
		}
		done++
		show(fmt.Sprintf("%d Secrets", done))
		return nil
	})
	return done, err
}

// drop removes the keys that no Secret is stored with. The configuration that had them is kept in a file.
func drop(ctx context.Context, c *cli.Context, cluster membership.Cluster, present membership.Stored) error {
	s, config, err := openConfiguration(ctx, c, cluster)
	if err != nil {
		return fmt.Errorf("--%s: %w", dropOld, err)
	}
	if config.Ways()[0] != present {
		return errors.New("--" + dropOld + ": the key has been replaced meanwhile: run karve secrets status")
	}
	if ways := config.Ways(); len(ways) == 1 || len(ways) == 2 && ways[1].Provider == membership.Identity {
		_, err = fmt.Fprintln(c.App.Writer, "there are no old keys")
		return err
	}
	if others := config.Others(); len(others) > 0 {
		return fmt.Errorf("--%s: %s may be stored with the old keys, too: store them again, and remove the keys from the configuration yourself (%s)", dropOld, strings.Join(others, ", "), s.file)
	}
	if err := s.taken(ctx); err != nil { // a server that still writes with an old key
		return fmt.Errorf("--%s: %w", dropOld, err)
	}
	kept := s.file + ".before-" + present.Key
	if has, err := readFile(s.dir, kept); err != nil {
		return err
	} else if has != nil && !bytes.Equal(has, s.content) {
		return fmt.Errorf("--%s: %s has other keys, which old backups may need: move it elsewhere", dropOld, kept)
	}
	if err := ownership.Act(s.dir, func() error { return atomicfile.Write(kept, s.content, 0o600) }); err != nil {
		return err
	}
	config.DropOthers()
	if err := s.save(ctx, config); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "removed the old keys. Backups that were made before need them: they are in %s\n", kept)
	return err
}
