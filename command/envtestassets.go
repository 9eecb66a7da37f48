package command

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/envtest"
)

// envtestAssetsCommand is `karve envtest-assets`.
func envtestAssetsCommand() *cli.Command {
	return &cli.Command{
		Name:  "envtest-assets",
		Usage: "make a directory with etcd, kube-apiserver and kubectl, for KUBEBUILDER_ASSETS of controller-runtime's envtest",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dir", Usage: "`DIR` to make them in"},
			&cli.BoolFlag{Name: "copy", Usage: "copy this program there instead of linking to it, for a directory that is taken elsewhere"},
			&cli.BoolFlag{Name: "force", Usage: "replace programs of those names that are not karve's"},
		},
		Action: func(c *cli.Context) error {
			if c.String("dir") == "" {
				return errors.New("--dir: needs a directory for etcd, kube-apiserver and kubectl")
			}
			dir, err := filepath.Abs(c.String("dir"))
			if err != nil {
				return fmt.Errorf("--dir: %w", err)
			}
			if err := envtest.MakeAssets(dir, c.Bool("copy"), c.Bool("force")); err != nil {
				return err
			}
			fmt.Fprintf(c.App.Writer, "export KUBEBUILDER_ASSETS=%s\n", shellQuoted(dir))
			return nil
		},
	}
}

// shellQuoted is a word as a shell takes it.
func shellQuoted(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%"
	if strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
