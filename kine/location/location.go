// Package location reads --datastore-endpoint, which says where the datastore is, and connects to an etcd.
package location

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/admin"
	"github.com/karve-k8s/karve/internal/redact"
	"github.com/karve-k8s/karve/kine/external"
)

// Option is the option that names the datastore, without dashes.
const Option = "datastore-endpoint"

// Location is the parsed form of --datastore-endpoint and --durability: where the datastore is, and
// how it works. The zero value is the built-in datastore in the data directory.
type Location struct {
	Etcd     []string           // the URLs of the user's etcd
	External *external.Database // the user's database

	// If both are nil, it is the built-in datastore:
	Dir        string // absolute; empty: the data directory
	Durability datastore.Durability
	CacheBytes int64 // of values in memory; 0: Karve chooses
}

// endpointForms lists the forms of --datastore-endpoint, for error messages.
const endpointForms = "want sqlite://DIR?durability=full|relaxed|memory&cache=BYTES, memory://, postgres://…, mysql://…, or http(s)://host:port,… of an etcd; nothing is the built-in datastore in the data directory"

// Parse reads --datastore-endpoint and --durability. Both may be empty. Its errors contain no
// passwords.
func Parse(endpoint, durability string) (Location, error) {
	l, err := parseEndpoint(endpoint)
	if err != nil || durability == "" {
		return l, err
	}
	mode, err := datastore.ParseDurability(durability)
	switch {
	case err != nil || mode == datastore.Memory:
		return l, fmt.Errorf("--durability %q: want full or relaxed", durability)
	case !l.BuiltIn() || l.InMemory():
		return l, fmt.Errorf("--durability %s is for the built-in datastore on a disk, which --datastore-endpoint does not name", durability)
	case strings.Contains(endpoint, "durability=") && l.Durability != mode:
		return l, fmt.Errorf("--durability %s: --datastore-endpoint says durability=%s", durability, l.Durability)
	}
	l.Durability = mode
	return l, nil
}

// ParseAs is [Parse] for another option, which takes what --datastore-endpoint does.
func ParseAs(option, endpoint string) (Location, error) {
	l, err := parseEndpoint(endpoint)
	if err != nil {
		return l, errors.New(strings.ReplaceAll(err.Error(), "--"+Option, option))
	}
	return l, nil
}

// parseEndpoint reads --datastore-endpoint:
//
//	(nothing)                          the engine, in the data directory
//	sqlite://DIR?durability=D&cache=N  the engine, in DIR (absolute; empty: the
//	                                   data directory), D full, relaxed or memory,
//	                                   N bytes of values in memory (64Mi is fine)
//	memory://                          the engine, without a file
//	postgres://, mysql://              a database (external.Parse)
//	http(s)://host:port,…              a real etcd
func parseEndpoint(text string) (Location, error) {
	scheme, rest, found := strings.Cut(text, "://")
	switch {
	case text == "":
		return Location{}, nil
	case found && scheme == "sqlite":
		return parseSQLite(rest)
	case found && scheme == "memory":
		if rest != "" {
			return Location{}, errors.New("--datastore-endpoint memory://: takes nothing more")
		}
		return Location{Durability: datastore.Memory}, nil
	case external.IsEndpoint(text):
		database, err := external.Parse(text)
		if err != nil {
			return Location{}, fmt.Errorf("--datastore-endpoint: %w", err)
		}
		return Location{External: database}, nil
	}
	if found && scheme == "nats" { // the rest may have a password
		return Location{}, errors.New("--datastore-endpoint nats://…: Karve does not speak to NATS itself: run kine (https://github.com/k3s-io/kine) with this endpoint, and name kine: --datastore-endpoint http://HOST:2379")
	}
	l := Location{Etcd: strings.Split(text, ",")}
	for _, one := range l.Etcd {
		scheme, rest, _ := strings.Cut(one, "://")
		if redact.AtAfterHost(rest) {
			return Location{}, errors.New("--datastore-endpoint: not a URL; special characters of a password are percent-encoded in one: " + endpointForms)
		}
		// No error repeats a part of what is no URL: it may be a password.
		if u, err := url.Parse(one); err != nil || u.Host == "" || (scheme != "http" && scheme != "https") {
			return Location{}, errors.New("--datastore-endpoint: not a URL of a datastore: " + endpointForms)
		}
	}
	return l, nil
}

func parseSQLite(rest string) (Location, error) {
	dir, query, _ := strings.Cut(rest, "?")
	l := Location{Dir: dir}
	var errs []error
	problem := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if dir != "" && !filepath.IsAbs(dir) {
		problem("--datastore-endpoint sqlite://…: not an absolute path: want sqlite:///path/of/a/directory")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		problem("--datastore-endpoint sqlite://…: not a URL")
	}
	for name, all := range values {
		value := all[len(all)-1]
		switch name {
		case "durability":
			if l.Durability, err = datastore.ParseDurability(value); err != nil {
				problem("--datastore-endpoint: %w", err)
			}
		case "cache":
			size, err := resource.ParseQuantity(value)
			if err != nil || size.Value() <= 0 {
				problem("--datastore-endpoint: cache=%s: want a number of bytes, such as 64Mi", value)
				continue
			}
			l.CacheBytes = size.Value()
		default:
			problem("--datastore-endpoint: %s: no such parameter: want durability or cache", name)
		}
	}
	return l, errors.Join(errs...)
}

// BuiltIn reports whether the datastore is the built-in one, on a disk or in memory.
func (l Location) BuiltIn() bool { return l.Etcd == nil && l.External == nil }

// InMemory reports whether the datastore is the built-in one and has no file.
func (l Location) InMemory() bool { return l.BuiltIn() && l.Durability == datastore.Memory }

// DirOnDisk returns the directory of the built-in datastore. If there is none, the error names the
// tools for the datastore instead.
func (l Location) DirOnDisk(dataDir string) (string, error) {
	switch {
	case l.Etcd != nil:
		return "", fmt.Errorf("--datastore-endpoint %s is an etcd: use etcdctl and etcdutl for it", redact.URLs(l.Etcd))
	case l.External != nil:
		return "", fmt.Errorf("--datastore-endpoint %s is a database of yours: use %s for it", l.External, l.External.Tools())
	case l.InMemory():
		return "", errors.New("--datastore-endpoint: a datastore in memory keeps nothing on the disk")
	case l.Dir != "":
		return l.Dir, nil
	}
	return dataDir, nil
}

// HasData reports whether the built-in datastore has files already.
func (l Location) HasData(dataDir string) bool {
	dir, err := l.DirOnDisk(dataDir)
	return err == nil && admin.HasData(dir)
}

// Dir returns the directory in which --datastore-endpoint puts the built-in datastore. For any
// other datastore it returns an error that names the tools for it.
func Dir(endpoint, dataDir string) (string, error) {
	l, err := parseEndpoint(endpoint)
	if err != nil {
		return "", err
	}
	return l.DirOnDisk(dataDir)
}

// String is the location for messages, without passwords.
func (l Location) String() string {
	switch {
	case l.Etcd != nil:
		return redact.URLs(l.Etcd)
	case l.External != nil:
		return l.External.String()
	case l.InMemory():
		return "memory://"
	}
	return "sqlite://" + l.Dir
}
