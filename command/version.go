package command

import (
	"fmt"
	"io"
	"runtime"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/internal/version"
)

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "print the versions of Karve and of Kubernetes in it",
		Flags: []cli.Flag{output.Flag()},
		Action: func(c *cli.Context) error {
			v := struct {
				Karve      string `json:"karve"`
				Kubernetes string `json:"kubernetes"`
				Go         string `json:"go"`
				Platform   string `json:"platform"`
			}{version.Full(), version.Kubernetes, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return output.Show(c, v, func(w io.Writer) {
				fmt.Fprintf(w, "karve\t%s\nkubernetes\t%s\ngo\t%s\nplatform\t%s\n", v.Karve, v.Kubernetes, v.Go, v.Platform)
			})
		},
	}
}

// printVersion is `karve --version`: one line.
func printVersion(w io.Writer) error {
	_, err := fmt.Fprintf(w, "karve %s, Kubernetes %s\n", version.Full(), version.Kubernetes)
	return err
}
