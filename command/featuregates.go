package command

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/server/apiserver"
)

// featureGatesCommand is `karve feature-gates`.
func featureGatesCommand() *cli.Command {
	return &cli.Command{
		Name:  "feature-gates",
		Usage: "list the feature gates of Kubernetes, with their defaults and stages",
		Description: `karve server --feature-gates NAME=true,NAME=false switches gates on or off. A locked
gate keeps its default. AllAlpha and AllBeta stand for all gates of that stage.`,
		Flags: []cli.Flag{output.Flag()},
		Action: func(c *cli.Context) error {
			gates, err := apiserver.FeatureGates()
			if err != nil {
				return err
			}
			return output.Show(c, gates, func(w io.Writer) {
				fmt.Fprintln(w, "NAME\tDEFAULT\tSTAGE")
				for _, g := range gates {
					value := "off"
					if g.Default {
						value = "on"
					}
					if g.Locked {
						value += " (locked)"
					}
					fmt.Fprintf(w, "%s\t%s\t%s\n", g.Name, value, g.Stage)
				}
			})
		},
	}
}
