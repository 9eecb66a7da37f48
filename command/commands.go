package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/version"
)

func outputFlag() cli.Flag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT`: table or json"}
}

// show writes value as JSON or what table writes, as --output says.
func show(c *cli.Context, value any, table func(io.Writer)) error {
	if err := wantFormat(c); err != nil {
		return err
	}
	switch c.String("output") {
	case "table":
		w := tabwriter.NewWriter(c.App.Writer, 0, 0, 3, ' ', 0)
		table(w)
		return w.Flush()
	default:
		encoder := json.NewEncoder(c.App.Writer)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	}
}

// wantFormat refuses what show would, for commands that work before they show.
func wantFormat(c *cli.Context) error {
	if format := c.String("output"); format != "table" && format != "json" {
		return fmt.Errorf("--output %q: want table or json", format)
	}
	return nil
}

func kubeconfigCommand() *cli.Command {
	return &cli.Command{
		Name:  "kubeconfig",
		Usage: "print the admin's kubeconfig, or merge it into your own",
		Flags: []cli.Flag{
			configFlag(), dataDirFlag(),
			&cli.BoolFlag{Name: "merge", Usage: "merge it into the first file of KUBECONFIG, or ~/.kube/config"},
			&cli.StringFlag{Name: "into", Usage: "`FILE` to merge into instead"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the context, cluster and user there (default: " + certs.DefaultContext + ")"},
			&cli.BoolFlag{Name: "overwrite", Usage: "replace entries of that name even if they are of another cluster"},
			&cli.BoolFlag{Name: "set-current", Usage: "make it the current context even if there is one"},
		},
		Before: readDataDir,
		Action: func(c *cli.Context) error {
			path := filepath.Join(c.String("data-dir"), "admin.kubeconfig")
			text, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is not there: the server is not ready, or has another --data-dir", path)
			} else if err != nil {
				return err
			}
			if !c.Bool("merge") && c.String("into") == "" {
				_, err = c.App.Writer.Write(text)
				return err
			}
			result, err := certs.MergeKubeconfig(c.String("into"), path, certs.MergeOptions{
				Name: c.String("name"), Overwrite: c.Bool("overwrite"), SetCurrent: c.Bool("set-current"),
			})
			if errors.Is(err, certs.ErrConflict) {
				return fmt.Errorf("%w: choose another name by --name, or --overwrite it", err)
			} else if err != nil {
				return err
			}
			next := "kubectl config use-context " + result.Context
			if result.Current {
				next = "it is the current context"
			}
			fmt.Fprintf(c.App.Writer, "context %q is in %s; %s\n", result.Context, result.Path, next)
			return nil
		},
	}
}

func certsCommand() *cli.Command {
	return &cli.Command{
		Name:  "certs",
		Usage: "list the certificates, or renew them",
		Subcommands: []*cli.Command{
			{
				Name:   "list",
				Usage:  "print what there is, and how long it is valid",
				Flags:  []cli.Flag{configFlag(), dataDirFlag(), outputFlag()},
				Before: readDataDir,
				Action: listCerts,
			},
			{
				Name:      "renew",
				Usage:     "renew the named certificates, or all but the authorities, and the admin's kubeconfigs; a running server uses them immediately",
				ArgsUsage: "[NAME…]",
				Flags:     []cli.Flag{configFlag(), dataDirFlag()},
				Before:    readDataDir,
				Action:    asOwner(renewCerts),
			},
		},
	}
}

func certsDir(c *cli.Context) (string, error) {
	dir := filepath.Join(c.String("data-dir"), "certs")
	if _, err := os.Stat(dir); err != nil {
		return "", fmt.Errorf("%w: no server has been started with this --data-dir", err)
	}
	return dir, nil
}

func listCerts(c *cli.Context) error {
	dir, err := certsDir(c)
	if err != nil {
		return err
	}
	infos, err := certs.List(dir, time.Now())
	if err != nil {
		return err
	}
	return show(c, infos, func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tKIND\tSUBJECT\tKEY\tEXPIRES\tDAYS LEFT\tORIGIN")
		for _, i := range infos {
			origin, expires, days := "karve", "-", "-"
			if i.Kind != certs.KindKey && i.Problem == "" {
				expires, days = i.NotAfter.Format(time.DateOnly), fmt.Sprint(i.DaysLeft)
			}
			if i.UserSupplied {
				origin = "user"
			}
			if i.Problem != "" {
				origin = i.Problem
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", i.Name, i.Kind, i.Subject, i.KeyType, expires, days, origin)
		}
	})
}

func renewCerts(c *cli.Context) error {
	dir, err := certsDir(c)
	if err != nil {
		return err
	}
	var names []certs.Name
	for _, arg := range c.Args().Slice() {
		name, err := certs.ParseName(arg)
		if err != nil {
			return err
		}
		names = append(names, name)
	}
	infos, err := certs.List(dir, time.Now())
	if err != nil {
		return err
	}
	config := certs.Config{Dir: dir}
	for _, i := range infos {
		if i.Name == certs.Serving { // the server's options are not known here; its names are
			config.ExtraSANs = i.SANs
		}
	}
	store, notes, err := certs.Ensure(config)
	if err != nil {
		return err
	}
	renewed, more, err := store.ForceRenew(names...)
	if err != nil {
		return err
	}
	for _, note := range append(notes, more...) {
		fmt.Fprintln(c.App.ErrWriter, "karve:", note)
	}
	for _, name := range renewed {
		fmt.Fprintf(c.App.Writer, "renewed %s\n", name)
	}
	return certs.RenewKubeconfigs(store, filepath.Join(c.String("data-dir"), "admin.kubeconfig"))
}

// readDataDir takes data-dir, and datastore-endpoint for the commands that have it,
// from the server's configuration file, and leaves the other options in it alone.
func readDataDir(c *cli.Context) error {
	path := c.String("config")
	if path == "" {
		path = defaultConfigFile
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && c.String("config") == "" {
		return nil
	} else if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	values, err := parseConfig(text)
	if err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	known := flagNames(c.Command.Flags)
	for _, v := range values {
		if v.name != "data-dir" && v.name != "datastore-endpoint" || !slices.Contains(known, v.name) {
			continue
		}
		if len(v.values) == 1 && !c.IsSet(v.name) {
			if err := c.Set(v.name, v.values[0]); err != nil {
				return err
			}
		}
	}
	return nil
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the versions of Karve and of Kubernetes in it",
		Flags: []cli.Flag{outputFlag()},
		Action: func(c *cli.Context) error {
			v := struct {
				Karve      string `json:"karve"`
				Kubernetes string `json:"kubernetes"`
				Go         string `json:"go"`
				Platform   string `json:"platform"`
			}{version.Karve, version.Kubernetes, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return show(c, v, func(w io.Writer) {
				fmt.Fprintf(w, "karve\t%s\nkubernetes\t%s\ngo\t%s\nplatform\t%s\n", v.Karve, v.Kubernetes, v.Go, v.Platform)
			})
		},
	}
}

// completionScripts ask karve itself, by the last argument that urfave/cli
// answers with one proposal a line, and kubectl for what is kubectl's.
var completionScripts = map[string]string{
	"bash": `_karve() {
  local word=${COMP_WORDS[COMP_CWORD]} line
  local -a before=("${COMP_WORDS[@]:1:COMP_CWORD-1}")
  COMPREPLY=()
  if [ "${before[0]}" = kubectl ]; then
    while IFS= read -r line; do
      case $line in :*) ;; *) COMPREPLY+=("${line%%$'\t'*}") ;; esac
    done < <(karve kubectl __complete "${before[@]:1}" "$word" 2>/dev/null)
  else
    while IFS= read -r line; do COMPREPLY+=("${line%%:*}"); done < <(
      if [ "${word#-}" != "$word" ]; then before+=("$word"); fi
      karve "${before[@]}" --generate-bash-completion 2>/dev/null)
  fi
  COMPREPLY=($(compgen -W "${COMPREPLY[*]}" -- "$word"))
}
complete -o default -F _karve karve
`,
	"zsh": `#compdef karve
_karve() {
  local -a lines before
  before=("${(@)words[2,CURRENT-1]}")
  if [[ ${before[1]} == kubectl ]]; then
    lines=("${(@f)$(karve kubectl __complete "${(@)before[2,-1]}" "${words[CURRENT]}" 2>/dev/null)}")
    lines=("${(@)${(@)lines:#:*}%%$'\t'*}")
  else
    [[ ${words[CURRENT]} == -* ]] && before+=("${words[CURRENT]}")
    lines=("${(@f)$(karve "${(@)before}" --generate-bash-completion 2>/dev/null)}")
    lines=("${(@)lines%%:*}")
  fi
  compadd -- "${(@)lines}"
}
compdef _karve karve
`,
}

func completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a completion script: source <(karve completion bash)",
		ArgsUsage: "bash|zsh|fish",
		Action: func(c *cli.Context) error {
			shell := c.Args().First()
			if shell == "fish" {
				script, err := c.App.ToFishCompletion()
				fmt.Fprint(c.App.Writer, script)
				return err
			}
			script, ok := completionScripts[shell]
			if !ok {
				return fmt.Errorf("completion %q: want bash, zsh or fish", strings.TrimSpace(shell))
			}
			_, err := io.WriteString(c.App.Writer, script)
			return err
		},
	}
}
