package options

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server"
)

// Collects tells whether a command reads its options with [ReadFrom], which reports all mistakes in values together.
func Collects(command *cli.Command) bool {
	return slices.Contains([]string{"server", "check", "run"}, command.Name)
}

// Read is ReadFrom for a command that takes no arguments.
func Read(c *cli.Context) (server.Config, error) {
	var surplus error
	if c.Args().Present() {
		surplus = fmt.Errorf("karve %s takes options only, got %q", c.Command.Name, c.Args().First())
	}
	config, err := ReadFrom(c, DefaultFile, c.App.ErrWriter)
	return config, errors.Join(surplus, err)
}

// ReadFrom makes the server's configuration from options, variables and the configuration file, which
// is usual unless --config names another. The server logs to log. The error joins all problems.
func ReadFrom(c *cli.Context, usual string, log io.Writer) (server.Config, error) {
	file, wrong := applyConfig(c, usual)
	config, err := serverConfig(c)
	problems := []error{wrong, err}
	if file != "" {
		config.ConfigFile, _ = filepath.Abs(file) // fails in a working directory that is gone; then backups leave it out
	}
	if err := CheckListed(config.DataDir); err != nil && config.DataDir != "" {
		problems = append(problems, fmt.Errorf("--data-dir: %w", err))
	}
	if config.Log, err = logbridge.New(log, c.String("log-format"), c.String("log-level")); err != nil {
		problems = append(problems, err)
		config.Log, _ = logbridge.New(log, "text", "error") // these are valid
	}
	logbridge.Install(config.Log)
	return config, errors.Join(problems...)
}
