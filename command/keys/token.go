package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	bootstraptoken "k8s.io/kubernetes/cmd/kubeadm/app/apis/bootstraptoken/v1"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/internal/shell"
	"github.com/karve-k8s/karve/internal/version"
)

// temporaryTimeout limits the removal of a token that was used.
const temporaryTimeout = 30 * time.Second

// The forms of a token, for users.
const (
	tokenForm = "6 characters, a dot and 16 characters, each a-z or 0-9, such as abcdef.0123456789abcdef"
	idForm    = "the ID of a token, which is its first 6 characters"
)

// errForm is the error for an argument that is no token. It does not repeat the argument, which may be
// a secret with a typing error.
var errForm = errors.New("TOKEN has the wrong form: want " + tokenForm)

// Token is `karve token`.
func Token() *cli.Command {
	return &cli.Command{
		Name:  "token",
		Usage: "create, list and delete bootstrap tokens, with which machines join the cluster",
		Subcommands: []*cli.Command{
			tokenCreate(),
			{
				Name:   "list",
				Usage:  "list bootstrap tokens, with their secrets",
				Flags:  append(serverFlags(), output.Flag()),
				Before: options.FindDataDir,
				Action: listTokens,
			},
			{
				Name:      "delete",
				Usage:     "delete bootstrap tokens",
				ArgsUsage: "TOKEN|ID...",
				Flags:     serverFlags(),
				Before:    options.FindDataDir,
				Action:    deleteTokens,
			},
		},
	}
}

func tokenCreate() *cli.Command {
	return &cli.Command{
		Name:      "create",
		Usage:     "create a bootstrap token and print it",
		ArgsUsage: "[TOKEN]",
		Description: `Without TOKEN, Karve makes a random one. Other users of this machine can see the
command line: leave TOKEN out unless something else has to know it before.`,
		Flags: append(serverFlags(),
			&cli.DurationFlag{Name: "ttl", Value: bootstraptoken.DefaultTokenDuration, Usage: "`DURATION` after which the token expires; 0 means never"},
			&cli.StringFlag{Name: "description", Usage: "`TEXT` for people who list the tokens"},
			&cli.BoolFlag{Name: "print-join-command", Usage: "print the command with which kubeadm joins a machine, instead of the token"},
			&cli.BoolFlag{Name: "print-install-command", Usage: "print the command with which install.sh makes a machine a node, instead of the token"},
		),
		Before: options.FindDataDir,
		Action: createToken,
	}
}

// serverFlags choose the server.
func serverFlags() []cli.Flag { return []cli.Flag{options.Config(), options.DataDir()} }

func createToken(c *cli.Context) error {
	wanted, err := newToken(c.Args().Slice(), c.Duration("ttl"), c.String("description"))
	if err != nil {
		return err
	}
	if c.Bool("print-join-command") && c.Bool("print-install-command") {
		return errors.New("--print-install-command: leave out --print-join-command, because only one line is printed")
	}
	client, config, err := servers.Client(c.String("data-dir"))
	if err != nil {
		return err
	}
	// If there is no line to print, no token is created either.
	line := wanted.Token.String()
	if c.Bool("print-join-command") || c.Bool("print-install-command") {
		to, err := findTarget(c.Context, client, config)
		if err != nil {
			return err
		}
		line = to.kubeadm(*wanted.Token)
		if c.Bool("print-install-command") {
			release := version.Full()
			if version.Build != "" {
				release = ""
			}
			line = to.install(*wanted.Token, os.Getenv("KARVE_DOWNLOAD_URL"), release)
			if user := options.ConfiguredSSHUser(c); user != "" {
				line += " --ssh-user " + shell.Quoted(user)
			}
		}
	}
	_, err = client.CoreV1().Secrets(metav1.NamespaceSystem).Create(c.Context, bootstraptoken.BootstrapTokenToSecret(wanted), metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("a token with the ID %s exists: delete it with karve token delete %[1]s, or choose another", wanted.Token.ID)
	case err != nil:
		return fmt.Errorf("create token with the ID %s: %w", wanted.Token.ID, err)
	}
	_, err = fmt.Fprintln(c.App.Writer, line)
	return err
}

// TemporaryToken creates a token that joins a machine, and returns what deletes it.
func TemporaryToken(ctx context.Context, client kubernetes.Interface, ttl time.Duration, description string) (text string, remove func() error, err error) {
	made, err := newToken(nil, ttl, description)
	if err != nil {
		return "", nil, err
	}
	secret := bootstraptoken.BootstrapTokenToSecret(made)
	if _, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return "", nil, fmt.Errorf("create a token: %w", err)
	}
	return made.Token.String(), func() error { // also after an interruption
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), temporaryTimeout)
		defer cancel()
		return client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, secret.Name, metav1.DeleteOptions{})
	}, nil
}

// newToken makes the token that was asked for, for a machine that joins. Its error joins all problems.
func newToken(args []string, ttl time.Duration, description string) (*bootstraptoken.BootstrapToken, error) {
	made := &bootstraptoken.BootstrapToken{Description: description, TTL: &metav1.Duration{Duration: ttl}}
	bootstraptoken.SetDefaults_BootstrapToken(made)
	var problems []error
	if len(args) == 0 {
		random, err := bootstraputil.GenerateBootstrapToken()
		if err != nil {
			return nil, err
		}
		args = []string{random}
	}
	var err error
	if made.Token, err = bootstraptoken.NewBootstrapTokenString(args[0]); err != nil {
		problems = append(problems, errForm)
	}
	if ttl < 0 || ttl > 0 && ttl < time.Second {
		problems = append(problems, fmt.Errorf("--ttl %v: want at least 1s, or 0 for a token that never expires", ttl))
	}
	return made, errors.Join(problems...)
}

func listTokens(c *cli.Context) error {
	client, _, err := servers.Client(c.String("data-dir"))
	if err != nil {
		return err
	}
	tokens, err := readTokens(c.Context, client, c.App.ErrWriter)
	if err != nil {
		return err
	}
	return output.Show(c, tokens, func(w io.Writer) { tokenTable(w, tokens, time.Now()) })
}

// readTokens returns the bootstrap tokens of the cluster. For each Secret that is no token, it writes a line
// to problems.
func readTokens(ctx context.Context, client kubernetes.Interface, problems io.Writer) ([]*bootstraptoken.BootstrapToken, error) {
	secrets, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(bootstrapapi.SecretTypeBootstrapToken)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	tokens := []*bootstraptoken.BootstrapToken{} // [] in JSON, if there is none
	for _, secret := range secrets.Items {
		token, err := bootstraptoken.BootstrapTokenFromSecret(&secret)
		if err != nil {
			// Upstream's error may quote the token.
			fmt.Fprintf(problems, "karve: Secret %s/%s is not a usable token\n", secret.Namespace, output.Printable(secret.Name))
			continue
		}
		tokens = append(tokens, token)
	}
	return tokens, nil
}

// tokenTable is kubeadm's.
func tokenTable(w io.Writer, tokens []*bootstraptoken.BootstrapToken, now time.Time) {
	fmt.Fprintln(w, "TOKEN\tTTL\tEXPIRES\tUSAGES\tDESCRIPTION\tEXTRA GROUPS")
	for _, t := range tokens {
		ttl, expires := "<forever>", "<never>"
		if t.Expires != nil {
			expires = t.Expires.Format(time.RFC3339)
			if ttl = "<expired>"; t.Expires.After(now) {
				ttl = duration.ShortHumanDuration(t.Expires.Sub(now))
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", t.Token, ttl, expires, cmp.Or(strings.Join(t.Usages, ","), "<none>"),
			cmp.Or(output.Printable(t.Description), "<none>"), cmp.Or(output.Printable(strings.Join(t.Groups, ",")), "<none>"))
	}
}

func deleteTokens(c *cli.Context) error {
	ids, err := parseIDs(c.Args().Slice())
	if err != nil {
		return err
	}
	client, _, err := servers.Client(c.String("data-dir"))
	if err != nil {
		return err
	}
	var problems []error
	for _, id := range ids {
		err := client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(c.Context, bootstraputil.BootstrapTokenSecretName(id), metav1.DeleteOptions{})
		switch {
		case apierrors.IsNotFound(err):
			problems = append(problems, fmt.Errorf("there is no token with the ID %s: karve token list shows all", id))
		case err != nil:
			problems = append(problems, fmt.Errorf("delete token with the ID %s: %w", id, err))
		default:
			fmt.Fprintf(c.App.Writer, "bootstrap token %q deleted\n", id)
		}
	}
	return errors.Join(problems...)
}

// parseIDs returns the IDs of tokens that are given whole or by their IDs.
func parseIDs(args []string) (ids []string, err error) {
	for _, arg := range args {
		id := arg
		if !bootstraputil.IsValidBootstrapTokenID(arg) {
			token, err := bootstraptoken.NewBootstrapTokenString(arg)
			if err != nil {
				return nil, fmt.Errorf("%w; or %s", errForm, idForm)
			}
			id = token.ID
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// Shown is an argument as an error may repeat it: of a token, only the ID.
func Shown(arg string) string {
	if token, err := bootstraptoken.NewBootstrapTokenString(arg); err == nil {
		return token.ID + ".…"
	}
	return arg
}
