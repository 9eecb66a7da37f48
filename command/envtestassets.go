package command

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/envtest"
	"github.com/karve-k8s/karve/internal/shell"
)

// envtestAssetsCommand is `karve envtest-assets`.
func envtestAssetsCommand() *cli.Command {
	return &cli.Command{
		Name:  "envtest-assets",
		Usage: "make a directory with etcd, kube-apiserver and kubectl, for KUBEBUILDER_ASSETS of controller-runtime's envtest",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dir", Usage: "`DIR` to make them in"},
			&cli.BoolFlag{Name: "path", Usage: "print only the directory, for a Makefile"},
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
			if c.Bool("path") {
				fmt.Fprintln(c.App.Writer, dir)
				return nil
			}
			fmt.Fprintf(c.App.Writer, "export KUBEBUILDER_ASSETS=%s\n", shell.Quoted(dir))
			return nil
		},
	}
}
