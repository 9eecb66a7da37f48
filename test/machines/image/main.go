// Command image packs a directory as a container image in a tar file, which
// `ctr images import` reads, so that no registry is needed:
//
//	image -o FILE -root DIR [-entrypoint CMD] [-arg ARG]... [-user USER] NAME...
//	image -names NAME...
//	image -serve ADDRESS FILE...
//
// The image has one layer. A NAME such as e2e:agnhost is the name, with registry and version,
// that upstream's end-to-end tests have for that image; -names prints it. -serve is a registry
// that has the images of the files.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	e2e "k8s.io/kubernetes/test/utils/image"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var config v1.Config
	flags := flag.NewFlagSet("image", flag.ExitOnError)
	out := flags.String("o", "", "the tar `file` to write")
	root := flags.String("root", "", "the `directory` that becomes the root of the image")
	names := flags.Bool("names", false, "print the names in full, and pack nothing")
	address := flags.String("serve", "", "serve the images of files as a registry at this `address`, and pack nothing")
	flags.StringVar(&config.User, "user", "", "the `user` of the container's process")
	flags.Func("entrypoint", "the `command` of the image", func(command string) error {
		config.Entrypoint = []string{command}
		return nil
	})
	flags.Func("arg", "an `argument` of the command; may be repeated", func(arg string) error {
		config.Cmd = append(config.Cmd, arg)
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *address != "" {
		return serve(*address, flags.Args())
	}
	if !*names && (*out == "" || *root == "") || flags.NArg() == 0 {
		return errors.New("want -o FILE, -root DIR and a name")
	}
	if *names {
		for _, arg := range flags.Args() {
			full, err := fullName(arg)
			if err != nil {
				return err
			}
			fmt.Println(full)
		}
		return nil
	}
	config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	image, err := pack(*root, config)
	if err != nil {
		return err
	}
	images := map[name.Tag]v1.Image{}
	for _, arg := range flags.Args() {
		full, err := fullName(arg)
		if err != nil {
			return err
		}
		tag, err := name.NewTag(full)
		if err != nil {
			return err
		}
		images[tag] = image
	}
	return tarball.MultiWriteToFile(*out, images)
}

// testImages are the images of upstream's end-to-end tests that can be named.
var testImages = map[string]e2e.ImageID{
	"agnhost":           e2e.Agnhost,
	"agnhost-prev":      e2e.AgnhostPrev,
	"busybox":           e2e.BusyBox,
	"etcd":              e2e.Etcd,
	"glibc-dns-testing": e2e.GlibcDnsTesting,
	"kitten":            e2e.Kitten,
	"nautilus":          e2e.Nautilus,
	"nginx":             e2e.Nginx,
	"nginx-new":         e2e.NginxNew,
	"nonewprivs":        e2e.Nonewprivs,
	"nonroot":           e2e.NonRoot,
	"pause":             e2e.Pause,
	"sample-apiserver":  e2e.APIServer,
}

// fullName returns the name of an image, with registry and version.
func fullName(arg string) (string, error) {
	wanted, ok := strings.CutPrefix(arg, "e2e:")
	if !ok {
		return arg, nil
	}
	id, ok := testImages[wanted]
	if !ok {
		return "", fmt.Errorf("%s: unknown test image; want e2e: and one of %s", arg, strings.Join(slices.Sorted(maps.Keys(testImages)), ", "))
	}
	return e2e.GetE2EImage(id), nil
}

// pack makes an image of the directory.
func pack(root string, config v1.Config) (v1.Image, error) {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	if err := w.AddFS(os.DirFS(root)); err != nil {
		return nil, fmt.Errorf("pack %s: %w", root, err)
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	}, tarball.WithCompressionLevel(1))
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	return mutate.ConfigFile(image, file)
}
