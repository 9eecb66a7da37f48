package server

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine/external"
)

// endpoint is what --datastore-endpoint says.
type endpoint struct {
	etcd     []string           // URLs of a real etcd
	external *external.Database // a database; neither: our own engine, with
	dir      string             // its directory, empty for the data directory, and
	options  datastore.Options  // how it works
}

// ownsStorage tells that no other process has the same storage: it is neither an
// etcd's nor a database's, and --etcd-listen offers it to nobody.
func (c Config) ownsStorage() bool {
	where, err := parseEndpoint(c.DatastoreEndpoint)
	return err == nil && where.etcd == nil && where.external == nil && c.EtcdListen == ""
}

// What --datastore-endpoint can be, for messages.
const endpointForms = "want sqlite://DIR?durability=full|relaxed|memory&cache=BYTES, memory://, postgres://…, mysql://…, nats://…, or http(s)://host:port,… of an etcd; nothing is the built-in datastore in the data directory"

// parseEndpoint reads --datastore-endpoint:
//
//	(nothing)                        the engine, in the data directory
//	sqlite://DIR?durability=D&cache=N  the engine, in DIR (absolute; empty: the
//	                                 data directory), D full, relaxed or memory,
//	                                 N bytes of values in memory (64Mi is fine)
//	memory://                        the engine, without a file
//	postgres://, mysql://, nats://   a database (external.Parse)
//	http(s)://host:port,…            a real etcd
//
// No error repeats a password.
func parseEndpoint(text string) (endpoint, error) {
	scheme, rest, found := strings.Cut(text, "://")
	switch {
	case text == "":
		return endpoint{}, nil
	case found && scheme == "sqlite":
		return parseSQLite(rest)
	case found && scheme == "memory":
		if rest != "" {
			return endpoint{}, fmt.Errorf("--datastore-endpoint memory://: takes nothing more, got %q", rest)
		}
		return endpoint{options: datastore.Options{Durability: datastore.Memory}}, nil
	case external.IsEndpoint(text):
		database, err := external.Parse(text)
		if err != nil {
			return endpoint{}, fmt.Errorf("--datastore-endpoint: %w", err)
		}
		return endpoint{external: database}, nil
	}
	e := endpoint{etcd: strings.Split(text, ",")}
	for _, one := range e.etcd {
		u, err := url.Parse(one)
		if err != nil {
			// Not err itself: it repeats the URL, and that may hold a password.
			return endpoint{}, errors.New("--datastore-endpoint: not a URL: " + endpointForms)
		}
		if (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return endpoint{}, fmt.Errorf("--datastore-endpoint %s: %s", u.Redacted(), endpointForms)
		}
	}
	return e, nil
}

func parseSQLite(rest string) (endpoint, error) {
	dir, query, _ := strings.Cut(rest, "?")
	e := endpoint{dir: dir}
	var errs problems
	if dir != "" && !filepath.IsAbs(dir) {
		errs.addf("--datastore-endpoint sqlite://%s: not an absolute path: want sqlite:///path/of/a/directory", dir)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		errs.addf("--datastore-endpoint sqlite://%s: %w", dir, err)
	}
	for name, all := range values {
		value := all[len(all)-1]
		switch name {
		case "durability":
			var known bool
			for _, d := range []datastore.Durability{datastore.Full, datastore.Relaxed, datastore.Memory} {
				if value == d.String() {
					e.options.Durability, known = d, true
				}
			}
			if !known {
				errs.addf("--datastore-endpoint: durability=%s: want full, relaxed or memory", value)
			}
		case "cache":
			size, err := resource.ParseQuantity(value)
			if err != nil || size.Value() <= 0 {
				errs.addf("--datastore-endpoint: cache=%s: want a number of bytes, such as 64Mi", value)
				continue
			}
			e.options.CacheBytes = size.Value()
		default:
			errs.addf("--datastore-endpoint: %s: no such parameter: want durability or cache", name)
		}
	}
	return e, errors.Join(errs...)
}

// datastore is what --datastore-endpoint and --durability say together.
func (c Config) datastore() (endpoint, error) {
	where, err := parseEndpoint(c.DatastoreEndpoint)
	if err != nil || c.Durability == "" {
		return where, err
	}
	mode, err := datastore.ParseDurability(c.Durability)
	switch {
	case err != nil || mode == datastore.Memory:
		return where, fmt.Errorf("--durability %q: want full or relaxed", c.Durability)
	case where.etcd != nil || where.external != nil || where.options.Durability == datastore.Memory:
		return where, fmt.Errorf("--durability %s is for the built-in datastore on a disk, which --datastore-endpoint does not name", c.Durability)
	case strings.Contains(c.DatastoreEndpoint, "durability=") && where.options.Durability != mode:
		return where, fmt.Errorf("--durability %s: --datastore-endpoint says durability=%s", c.Durability, where.options.Durability)
	}
	where.options.Durability = mode
	return where, nil
}

// DatastoreDir is the directory in which --datastore-endpoint keeps the built-in
// datastore. An endpoint that is something else is an error, which says what to look
// after it with.
func DatastoreDir(text, dataDir string) (string, error) {
	where, err := parseEndpoint(text)
	switch {
	case err != nil:
		return "", err
	case where.etcd != nil:
		return "", fmt.Errorf("--datastore-endpoint %s is an etcd: use etcdctl and etcdutl for it", redacted(where.etcd))
	case where.external != nil:
		return "", fmt.Errorf("--datastore-endpoint %s is a database of yours: use %s for it", where.external, where.external.Tools())
	case where.options.Durability == datastore.Memory:
		return "", fmt.Errorf("--datastore-endpoint %s keeps nothing on the disk", text)
	case where.dir != "":
		return where.dir, nil
	}
	return dataDir, nil
}

// builtIn reports whether the datastore is our own engine, on a disk or in memory.
func (c Config) builtIn() bool {
	where, err := c.datastore()
	return err == nil && where.etcd == nil && where.external == nil
}
