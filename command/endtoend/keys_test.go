package endtoend

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/internal/eventually"
)

// lose removes files of a data directory's certs.
func lose(t *testing.T, dir string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(dir, "certs", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func keyFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "certs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func copied(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

func refusedStart(t *testing.T, dir string, args ...string) outcome {
	t.Helper()
	return finish(t, command(t, "karve", append([]string{"server", "--data-dir", dir, "--secure-port", "0", "--insecure-port", "0"}, args...)...))
}

var newAuthorities = regexp.MustCompile(`--new-authorities (\S+),`)

// tokenIn waits for a token of the Secret, other than before.
func tokenIn(t *testing.T, client kubernetes.Interface, before string) (token string) {
	t.Helper()
	eventually.Nil(t, "a token in the Secret", func() error {
		secret, err := client.CoreV1().Secrets("default").Get(t.Context(), "old", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if token = string(secret.Data[corev1.ServiceAccountTokenKey]); token == "" || token == before {
			return errors.New("no new one yet")
		}
		return nil
	})
	return token
}

// accepts reports whether a server authenticates a token.
func accepts(t *testing.T, client kubernetes.Interface, token string) bool {
	t.Helper()
	review, err := client.AuthenticationV1().TokenReviews().Create(t.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return review.Status.Authenticated
}

// The data of a cluster without its keys do not start with other keys, unless the user says so: then tokens in
// Secrets are made again.
func TestDataWithoutTheirKeys(t *testing.T) {
	long(t)
	parallel(t)
	p := start(t, t.TempDir())
	c := client(t, p.plain())
	_, err := c.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "old", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token := tokenIn(t, c, "")
	kubeconfig, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	backup := filepath.Join(t.TempDir(), "backup")
	karve(t, "backup", "create", "--data-dir", p.dir, backup)
	database := filepath.Join(t.TempDir(), "database") // as former releases have made them
	karve(t, "datastore", "backup", "--data-dir", p.dir, database)
	p.stop()

	for name, lost := range map[string][]string{"an authority": {"client-ca.*"}, "the key of tokens": {"service-account.key"}, "everything": {"*"}} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t, p.dir)
			lose(t, dir, lost...)
			left := keyFiles(t, dir)
			refused := refusedStart(t, dir)
			if got := keyFiles(t, dir); !slices.Equal(got, left) {
				t.Errorf("a refused start leaves %v, and found %v", got, left)
			}
			wantProblems(t, refused, "/registry/karve/cluster")
			wantOutput(t, refused.stderr, filepath.Join(dir, "certs"), "--new-authorities")
			for _, file := range []string{backup, database} {
				got := finish(t, command(t, "karve", "datastore", "restore", "--data-dir", dir, file))
				wantProblems(t, got, "nothing was changed")
				wantOutput(t, got.stderr, filepath.Join(dir, "certs"), "--new-authorities")
			}
			wantProblems(t, finish(t, command(t, "karve", "datastore", "restore", "--data-dir", dir, "--new-authorities", "yes", backup)), "--new-authorities yes: want the value")
		})
	}

	t.Run("a backup in a new directory", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "new")
		wantProblems(t, finish(t, command(t, "karve", "datastore", "import", "--data-dir", dir, backup)), "import "+backup+": this is a backup")
		wantProblems(t, finish(t, command(t, "karve", "datastore", "restore", "--data-dir", dir, backup)), "karve backup restore "+backup)
		got := finish(t, command(t, "karve", "datastore", "restore", "--data-dir", dir, database))
		if got.code != 1 || !strings.Contains(got.stdout, "restored ") || !strings.Contains(got.stderr, "the data are in place, but no server will start") {
			t.Errorf("restore: %+v", got)
		}
		wantProblems(t, refusedStart(t, dir), "has none of its keys")
		if err := os.CopyFS(filepath.Join(dir, "certs"), os.DirFS(filepath.Join(p.dir, "certs"))); err != nil {
			t.Fatal(err)
		}
		wantOutput(t, karve(t, "datastore", "restore", "--data-dir", dir, backup), "restored ")
		config := *kubeconfig
		config.Host = start(t, dir, bare...).url
		if _, err := client(t, fast(&config)).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Errorf("the old kubeconfig: %v", err)
		}
	})

	t.Run("new authorities", func(t *testing.T) {
		dir := copied(t, p.dir)
		lose(t, dir, "service-account.key", "client-ca.*")
		match := newAuthorities.FindStringSubmatch(refusedStart(t, dir).stderr)
		if match == nil {
			t.Fatal("the refused start does not name the option")
		}
		option := []string{"--new-authorities", match[1]}
		for range 2 { // the option can stay
			again := start(t, dir, option...)
			c := client(t, again.plain())
			if fresh := tokenIn(t, c, token); !accepts(t, c, fresh) || accepts(t, c, token) {
				t.Errorf("the Secret's token is accepted: %v; the old one: %v", accepts(t, c, fresh), accepts(t, c, token))
			}
			if _, err := client(t, again.config()).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
				t.Errorf("the new kubeconfig: %v", err)
			}
			again.stop()
		}
		lose(t, dir, "server-ca.*")
		wantProblems(t, refusedStart(t, dir, option...), "server-ca.crt is missing")
	})
}
