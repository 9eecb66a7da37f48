package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/certificates"
	"github.com/karve-k8s/karve/server/membership"
)

// Secrets is `karve secrets`.
func Secrets() *cli.Command {
	sub := func(name, usage, description string, action cli.ActionFunc, more ...cli.Flag) *cli.Command {
		return &cli.Command{
			Name: name, Usage: usage, Description: description,
			Flags: append(datastoreFlags(), more...), Before: options.FindDataDir, Action: action,
		}
	}
	return &cli.Command{
		Name:  "secrets",
		Usage: "encrypt Secrets in the datastore, and replace the key",
		Description: `The key is in the data directory, or with a cluster token in the datastore, encrypted with the
token. Each command says what comes next, and can be run again after it was stopped.`,
		Subcommands: []*cli.Command{
			sub("status", "show how many Secrets are stored with which key", "", secretsStatus, output.Flag()),
			sub("enable", "make a key for Secrets that are written from now on", "", enable),
			sub("rotate", "make a new key for Secrets that are written from now on",
				"With several servers, the first run gives all servers the key, and the second one lets them write with it.", rotateSecrets),
			sub("reencrypt", "store all Secrets again with the present key", "", reencrypt,
				&cli.BoolFlag{Name: dropOld, Usage: "then remove the other keys from the configuration. Backups that were made before need them."}),
		},
	}
}

// store is where the configuration is: a file of this server, or the cluster's record.
type store struct {
	cluster membership.Cluster
	dir     string            // the data directory
	file    string            // the server's file; with a record, a copy of what is in it
	token   *membership.Token // nil without a record
	content []byte            // nil: there is none
}

// users is the file of the user's that the server in --data-dir uses; empty if it uses none. If no server runs there, the configuration
// file says it.
func users(c *cli.Context) (string, error) {
	client := control.New(c.String("data-dir"))
	defer client.Close()
	file, err := client.Encryption(c.Context)
	switch {
	case errors.Is(err, control.ErrUnknown):
		return "", fmt.Errorf("%w: start the server again", err)
	case !errors.Is(err, control.ErrMissing):
		return file, err
	}
	if files := options.ConfiguredFiles(c); len(files) > 1 {
		return files[len(files)-1], nil
	}
	return "", nil
}

// current reads the configuration that the server in --data-dir uses.
func current(c *cli.Context) (*apiserver.Encryption, string, error) {
	dir := c.String("data-dir")
	file, err := users(c)
	if err != nil {
		return nil, "", err
	}
	file = cmp.Or(file, certs.EncryptionFile(certificates.Dir(dir)))
	content, err := readFile(dir, file)
	if err != nil {
		return nil, "", err
	}
	config, err := apiserver.ParseEncryption(content)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", file, err)
	}
	return config, file, nil
}

// readFile reads a file as the owner of a data directory, which has it or names it: nothing there leads root to what the owner may not read.
// The content of one that does not exist is nil.
func readFile(dir, file string) (content []byte, err error) {
	err = ownership.Act(dir, func() (err error) {
		content, err = os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return content, err
}

// openConfiguration finds the configuration, to change it.
func openConfiguration(ctx context.Context, c *cli.Context, cluster membership.Cluster) (*store, *apiserver.Encryption, error) {
	s := &store{cluster: cluster, dir: c.String("data-dir")}
	s.file = certs.EncryptionFile(certificates.Dir(s.dir))
	if file, err := users(c); err != nil {
		return nil, nil, err
	} else if file != "" {
		return nil, nil, fmt.Errorf("--%s: the server in --data-dir %s uses a file of yours, %s: change that, and start the server again; karve secrets status and reencrypt work with it", apiserver.EncryptionOption, s.dir, file)
	}
	var err error
	if c.String(membership.Option) != "" {
		if s.token, err = readClusterToken(c, membership.Option); err != nil {
			return nil, nil, err
		}
	}
	content, sealed, err := cluster.Encryption(ctx, s.token)
	switch {
	case err != nil:
		return nil, nil, err
	case sealed:
		s.content = content
	case !cluster.PrivateStorage:
		return nil, nil, needsToken("key")
	default:
		s.token = nil
		if s.content, err = readFile(s.dir, s.file); err != nil {
			return nil, nil, err
		}
	}
	config, err := apiserver.ParseEncryption(s.content)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", s.file, err)
	}
	return s, config, nil
}

// save puts the configuration in place of the one that openConfiguration has found.
func (s *store) save(ctx context.Context, config *apiserver.Encryption) error {
	content, err := config.Encode()
	if err != nil {
		return err
	}
	if err := apiserver.CheckEncryption(content); err != nil {
		return err
	}
	if s.token != nil {
		return s.cluster.Rotate(ctx, s.token, s.token, &content)
	}
	s.content = content
	return ownership.Act(s.dir, func() error { return certs.WriteEncryption(certificates.Dir(s.dir), content) })
}

// taken returns an error if a server has not been started since the configuration was saved.
func (s *store) taken(ctx context.Context) error {
	if s.token == nil {
		return nil
	}
	step, err := s.cluster.Last(ctx, membership.Encryption)
	if err != nil || step == "" {
		return err
	}
	api, _, err := servers.Client(s.dir)
	if err != nil {
		return err
	}
	return servers.AwaitStep(ctx, api, membership.Encryption, step)
}

// tell says where the configuration is, what servers do with it, and what comes next.
func (s *store) tell(ctx context.Context, c *cli.Context, what string, next string) error {
	restart := "start each server again, one at a time"
	if s.token == nil {
		what += " in " + s.file
		restart = "start the server again"
		ok, err := awaitLoaded(ctx, s.dir, s.content)
		if err != nil {
			return err
		}
		if ok {
			restart = "the server uses it already"
		}
	} else {
		what += " in the datastore, encrypted with the cluster token"
	}
	_, err := fmt.Fprintf(c.App.Writer, "%s\nNext: %s; then run %s\n", what, restart, next)
	return err
}

func enable(c *cli.Context) error {
	return withCluster(c, func(ctx context.Context, cluster membership.Cluster) error {
		s, config, err := openConfiguration(ctx, c, cluster)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(config.Ways(), func(w membership.Stored) bool { return w.Provider != membership.Identity }) {
			return errors.New("there is a key for Secrets already: karve secrets status says what is left to do, and karve secrets rotate replaces the key")
		}
		return addKey(ctx, c, s, config)
	})
}

func rotateSecrets(c *cli.Context) error {
	return withCluster(c, func(ctx context.Context, cluster membership.Cluster) error {
		s, config, err := openConfiguration(ctx, c, cluster)
		if err != nil {
			return err
		}
		if way, waiting := config.Waiting(); waiting {
			if err := s.taken(ctx); err != nil {
				return err
			}
			config.WriteWith(way)
			if err := s.save(ctx, config); err != nil {
				return err
			}
			return s.tell(ctx, c, "servers write with "+way.Key+",", "karve secrets reencrypt")
		}
		if config.Ways()[0].Provider == membership.Identity {
			return errors.New("the cluster does not encrypt Secrets: karve secrets enable makes the first key")
		}
		return addKey(ctx, c, s, config)
	})
}

func addKey(ctx context.Context, c *cli.Context, s *store, config *apiserver.Encryption) error {
	stored, err := count(ctx, s.cluster)
	if err != nil {
		return err
	}
	var used []membership.Stored
	for way := range stored {
		used = append(used, way)
	}
	way := config.AddKey(s.token == nil, used)
	if err := s.save(ctx, config); err != nil {
		return err
	}
	if s.token == nil {
		return s.tell(ctx, c, "made "+way.Key, "karve secrets reencrypt")
	}
	return s.tell(ctx, c, "made "+way.Key+", with which servers only read at first,", "karve secrets rotate, which lets them write with it")
}

// count returns how many Secrets are stored in each way.
func count(ctx context.Context, cluster membership.Cluster) (map[membership.Stored]int, error) {
	stored := map[membership.Stored]int{}
	err := cluster.EachSecret(ctx, func(_, _ string, how membership.Stored) error {
		stored[how]++
		return nil
	})
	return stored, err
}

// report is what `karve secrets status -o json` prints.
type report struct {
	File   string `json:"file"`
	Stored []way  `json:"stored"`
	Next   string `json:"next"`
}

type way struct {
	membership.Stored
	Secrets int  `json:"secrets"`
	Writes  bool `json:"writes"` // Secrets are now written like this
	Reads   bool `json:"reads"`  // otherwise these Secrets cannot be read
}

func secretsStatus(c *cli.Context) error {
	config, file, err := current(c)
	if err != nil {
		return err
	}
	return withCluster(c, func(ctx context.Context, cluster membership.Cluster) error {
		stored, err := count(ctx, cluster)
		if err != nil {
			return err
		}
		r := report{File: file}
		ways := config.Ways()
		for i, w := range ways {
			r.Stored = append(r.Stored, way{w, stored[w], i == 0, true})
		}
		for w, n := range stored {
			if !slices.Contains(ways, w) {
				r.Stored = append(r.Stored, way{w, n, false, false})
			}
		}
		slices.SortFunc(r.Stored[len(ways):], func(a, b way) int { return strings.Compare(a.Provider+a.Key, b.Provider+b.Key) })
		r.Next = next(config, r.Stored)
		return output.Show(c, r, func(w io.Writer) {
			fmt.Fprintln(w, "PROVIDER\tKEY\tSECRETS\tUSE")
			for _, row := range r.Stored {
				use := "reads"
				if row.Writes {
					use = "reads and writes"
				} else if !row.Reads {
					use = "cannot be read: the key is not in " + filepath.Base(file)
				}
				fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", output.Printable(row.Provider), output.Printable(row.Key), row.Secrets, use)
			}
			if r.Next != "" {
				fmt.Fprintln(w, "Next: "+r.Next)
			}
		})
	})
}

// next says what the user should do.
func next(config *apiserver.Encryption, stored []way) string {
	_, waiting := config.Waiting()
	old := slices.ContainsFunc(stored, func(w way) bool { return !w.Writes && w.Secrets > 0 })
	switch {
	case slices.ContainsFunc(stored, func(w way) bool { return !w.Reads }):
		return "bring back the keys of Secrets that cannot be read, from a backup or a copy of the configuration"
	case waiting:
		return "when each server has been started again, run karve secrets rotate"
	case config.Ways()[0].Provider == membership.Identity:
		return "karve secrets enable"
	case old:
		return "karve secrets reencrypt"
	}
	return ""
}
