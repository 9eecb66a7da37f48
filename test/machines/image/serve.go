package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// serve is a registry, without TLS and for anybody, that has the images of the files.
func serve(address string, files []string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- http.Serve(listener, registry.New(registry.Logger(log.New(io.Discard, "", 0)))) }()
	for _, file := range files {
		if err := push(listener.Addr().String(), file); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	fmt.Println("ready")
	return <-ended
}

// push puts all images of a file into a registry.
func push(address, file string) error {
	opener := func() (io.ReadCloser, error) { return os.Open(file) }
	manifest, err := tarball.LoadManifest(opener)
	if err != nil {
		return err
	}
	for _, described := range manifest {
		for _, full := range described.RepoTags {
			tag, err := name.NewTag(full)
			if err != nil {
				return err
			}
			image, err := tarball.Image(opener, &tag)
			if err != nil {
				return err
			}
			to, err := name.NewTag(address+"/"+tag.RepositoryStr()+":"+tag.TagStr(), name.Insecure)
			if err != nil {
				return err
			}
			if err := remote.Write(to, image); err != nil {
				return fmt.Errorf("%s: %w", full, err)
			}
		}
	}
	return nil
}
