package install

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karve-k8s/karve/internal/configfile"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/server/marker"
)

const configBegins = "# Options of karve server. karve install changes those that it is given.\n"

// usualSchedule is --backup-schedule of a new installation.
const usualSchedule = "@daily"

// config is the configuration file of a server, and what an installation has to know of it.
type config struct {
	text    []byte
	options configfile.Options

	dataDir  string
	location location.Location
	storeDir string // of the built-in datastore; empty if it is another one, or in memory
}

// newConfig is a configuration file with other options. Nothing else in it changes.
func newConfig(text []byte, given Options, usualDataDir string) (*config, error) {
	isNew := len(text) == 0
	if isNew {
		text = []byte(configBegins)
	}
	c := &config{text: text}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if err := c.set(name, given[name]...); err != nil {
			return nil, err
		}
	}
	var problems []error
	if c.options, problems = configfile.Parse(c.text); len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	if c.dataDir = c.option("data-dir"); len(c.dataDir) > 1 {
		c.dataDir = strings.TrimSuffix(c.dataDir, "/")
	}
	var err error
	if c.dataDir == "" {
		c.dataDir, err = usualDataDir, c.set("data-dir", usualDataDir)
	}
	if err == nil {
		c.location, err = location.Parse(c.option("datastore-endpoint"), "")
	}
	if err != nil {
		return nil, err
	}
	if dir, err := c.location.DirOnDisk(c.dataDir); err == nil {
		c.storeDir = strings.TrimSuffix(dir, "/")
	}
	if _, ok := given["backup-schedule"]; isNew && !ok && c.storeDir != "" {
		err = c.set("backup-schedule", usualSchedule)
	}
	return c, err
}

// set gives an option other values in the text.
func (c *config) set(name string, values ...string) (err error) {
	c.text, err = configfile.Set(c.text, name, values)
	return err
}

// readConfig is the configuration of an installation.
func readConfig(file, usualDataDir string) (*config, error) {
	return changedConfig(file, nil, usualDataDir)
}

// changedConfig is that configuration with other options.
func changedConfig(file string, given Options, usualDataDir string) (*config, error) {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	c, err := newConfig(text, given, usualDataDir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// option is the value of an option that takes one; empty if there is none.
func (c *config) option(name string) string { return c.options.Last(name) }

// directories are those of the data.
func (c *config) directories() []string {
	if c.storeDir == "" || c.storeDir == c.dataDir {
		return []string{c.dataDir}
	}
	return []string{c.dataDir, c.storeDir}
}

// everything is the directories of the data and of the backup that an upgrade makes.
func (c *config) everything() []string { return append(c.directories(), backupOf(c).dir) }

// external reports whether the datastore is another program's.
func (c *config) external() bool { return !c.location.BuiltIn() }

// hasData reports whether the built-in datastore has data on the disk.
func (c *config) hasData() bool { return c.storeDir != "" && c.location.HasData(c.dataDir) }

// plain are paths that need no quotes in units and scripts.
var plain = regexp.MustCompile(`^/[A-Za-z0-9._@+-]+(/[A-Za-z0-9._@+-]+)+$`)

// checkDirectories refuses paths that need quotes, and directories that are not Karve's: an installation changes
// their owner, and --purge removes them.
func (c *config) checkDirectories() error {
	var problems []error
	for i, dir := range c.directories() {
		option := []string{"--data-dir", "--datastore-endpoint"}[i]
		info, err := os.Stat(dir)
		switch {
		case !filepath.IsAbs(dir) || strings.Count(dir, "/") < 2:
			problems = append(problems, fmt.Errorf("%s %s: want an absolute path below a directory", option, dir))
		case !plain.MatchString(dir) || filepath.Clean(dir) != dir:
			problems = append(problems, fmt.Errorf("%s %s: want a path of letters, digits and ._@+-", option, dir))
		case err == nil && !info.IsDir():
			problems = append(problems, fmt.Errorf("%s %s: is not a directory", option, dir))
		case !marker.Ours(dir) && !marker.Vacant(dir):
			problems = append(problems, fmt.Errorf("%s %s: it has other files than Karve's, and not the file %s that the server writes: name an empty directory, or one that does not exist", option, dir, marker.File))
		}
	}
	return errors.Join(problems...)
}

// lowPort reports whether the options name a port below 1024.
func (c *config) lowPort() bool {
	for _, name := range []string{"secure-port", "insecure-port", "etcd-listen"} {
		value := c.option(name)
		if at := strings.LastIndex(value, ":"); at >= 0 {
			value = value[at+1:]
		}
		if port, err := strconv.Atoi(value); err == nil && port > 0 && port < 1024 {
			return true
		}
	}
	return false
}
