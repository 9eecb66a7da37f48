package endtoend

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/server"
)

// fieldOf is the name of the field that an option sets: without hyphens, that of the option itself.
func fieldOf(option string) string {
	if field, ok := map[string]string{
		"tls-san": "TLSSANs", "socket-group": "SocketGroups", "tls-private-key-file": "TLSKeyFile", "kube-apiserver-arg": "APIServerArgs",
		"kube-controller-manager-arg": "ControllerManagerArgs", "kube-scheduler-arg": "SchedulerArgs",
	}[option]; ok {
		return field
	}
	if len(option) > 0 && !slices.ContainsFunc(reflect.VisibleFields(reflect.TypeFor[server.Config]()), func(f reflect.StructField) bool {
		return strings.EqualFold(f.Name, strings.ReplaceAll(option, "-", ""))
	}) {
		return "APIServerArgs" // one of kube-apiserver's own
	}
	return strings.ReplaceAll(option, "-", "")
}

// Every option of karve server changes the server's configuration, and every field of the configuration
// that users may set has an option.
func TestOptionsSetTheConfiguration(t *testing.T) {
	dir := t.TempDir()
	read := func(args ...string) server.Config {
		t.Helper()
		var config server.Config
		app := &cli.App{Writer: io.Discard, ErrWriter: io.Discard, Flags: options.Server(), Action: func(c *cli.Context) (err error) {
			c.Command.Flags = c.App.Flags
			config, err = options.ReadFrom(c, "", io.Discard)
			return err
		}}
		if err := app.Run(append([]string{"karve"}, args...)); err != nil {
			t.Errorf("%q: %v", args, err)
		}
		config.Log = nil
		return config
	}
	before := read()
	set := map[string]bool{ // by programs only
		"Log": true, "Ready": true, "Progress": true, "RequireReady": true, "StopTimeout": true,
		"DisableInsecure": true, // --insecure-port 0
		"ConfigFile":      true, // --config
	}
	for _, f := range options.Server() {
		name := f.Names()[0]
		if slices.Contains([]string{"config", "log-level", "log-format", "stop-with-stdin"}, name) {
			continue // for the command itself
		}
		value := "7"
		switch name {
		case "data-dir":
			value = filepath.Join(dir, "data")
		case "write-kubeconfig-mode":
			value = "0640"
		case "socket-group":
			value = "0=viewers"
		case "memory-limit":
			value = "512Mi"
		case "backup-retention":
			value = "8"
		case "settle-after", "start-timeout":
			value = "7s"
		}
		if _, ok := f.(*cli.BoolFlag); ok {
			value = "true"
		}
		args := []string{"--" + name + "=" + value}
		got, changed := reflect.ValueOf(read(args...)), []string(nil)
		for i := range got.NumField() {
			if field := got.Type().Field(i); field.IsExported() && !reflect.DeepEqual(got.Field(i).Interface(), reflect.ValueOf(before).Field(i).Interface()) {
				changed, set[field.Name] = append(changed, field.Name), true
			}
		}
		if want := fieldOf(name); len(changed) != 1 || !strings.EqualFold(changed[0], want) {
			t.Errorf("--%s %s changes %q, want %s alone", name, value, changed, want)
		}
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[server.Config]()) {
		if field.IsExported() && !set[field.Name] {
			t.Errorf("no option sets Config.%s", field.Name)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		t.Error("reading the options made the data directory")
	}
}
