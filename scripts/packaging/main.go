// Command packaging makes what people get Karve by, beside a download: a container image.
// scripts/release runs it:
//
//	packaging image OUT.tar PLATFORM=PROGRAM...
//
// PLATFORM is one of a release, such as linux/armv7. VERSION, REVISION and SOURCE_DATE_EPOCH in the
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
	if len(args) < 3 {
		return errors.New("usage: packaging image OUT.tar PLATFORM=PROGRAM...")
	}
	switch args[0] {
	case "image":
		programs, err := parsePrograms(args[2:])
		if err != nil {
			return err
		}
		return image.Write(args[1], release, programs)
	}
	return fmt.Errorf("%s: want image", args[0])
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
