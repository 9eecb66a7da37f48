// Command packaging makes the container image and the packages for Debian and RPM. scripts/release runs it:
//
//	packaging image OUT.tar PLATFORM=PROGRAM...
//	packaging packages DIR HOST INSTALLER PLATFORM=PROGRAM...
//
// HOST is a karve for this machine, and INSTALLER is install.sh, beside LICENSE. PLATFORM is one of a release, such as linux/armv7. VERSION, REVISION and SOURCE_DATE_EPOCH in the
// environment are the version, the commit and its time; the output depends on nothing else.
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/karve-k8s/karve/scripts/packaging/image"
	"github.com/karve-k8s/karve/scripts/packaging/packages"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	release, err := fromEnvironment()
	if err != nil {
		return err
	}
	switch {
	case len(args) > 2 && args[0] == "image":
		programs, err := parsePrograms(args[2:])
		if err != nil {
			return err
		}
		return image.Write(args[1], release, programs)
	case len(args) > 4 && args[0] == "packages":
		programs, err := parsePrograms(args[4:])
		if err != nil {
			return err
		}
		return packages.Write(args[1], release, args[2], args[3], programs)
	}
	return errors.New("usage: packaging image OUT.tar PROGRAM... or packaging packages DIR HOST INSTALLER PROGRAM..., where PROGRAM is PLATFORM=PATH")
}

func parsePrograms(args []string) (all []image.Program, err error) {
	for _, arg := range args {
		platform, path, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, fmt.Errorf("%s: want PLATFORM=PROGRAM", arg)
		}
		all = append(all, image.Program{Platform: platform, Path: path})
	}
	return all, nil
}

func fromEnvironment() (image.Release, error) {
	r := image.Release{Version: os.Getenv("VERSION"), Revision: os.Getenv("REVISION")}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if r.Version == "" || r.Revision == "" || err != nil {
		return r, errors.New("the environment lacks VERSION, REVISION or SOURCE_DATE_EPOCH, which is a number of seconds")
	}
	r.Time = time.Unix(seconds, 0).UTC()
	return r, nil
}
