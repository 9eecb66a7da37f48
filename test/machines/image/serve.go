package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// serve is a registry, without TLS and for anybody, that has the images of the files.
func serve(address string, files []string) error {
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	for _, file := range files {
		if err := push(handler, file); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	return http.Serve(listener, handler)
}

// push puts all images of a file into a registry, by the requests that any client sends.
func push(handler http.Handler, file string) error {
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
			if err := pushImage(handler, tag, image); err != nil {
				return fmt.Errorf("%s: %w", full, err)
			}
		}
	}
	return nil
}

func pushImage(handler http.Handler, tag name.Tag, image v1.Image) error {
	base := "/v2/" + tag.RepositoryStr()
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, layer := range layers {
		digest, err := layer.Digest()
		if err != nil {
			return err
		}
		content, err := layer.Compressed()
		if err != nil {
			return err
		}
		if err := request(handler, http.MethodPost, base+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", content); err != nil {
			return err
		}
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return err
	}
	digest, err := image.ConfigName()
	if err != nil {
		return err
	}
	if err := request(handler, http.MethodPost, base+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", bytes.NewReader(config)); err != nil {
		return err
	}
	manifest, err := image.RawManifest()
	if err != nil {
		return err
	}
	kind, err := image.MediaType()
	if err != nil {
		return err
	}
	return request(handler, http.MethodPut, base+"/manifests/"+tag.TagStr(), string(kind), bytes.NewReader(manifest))
}

func request(handler http.Handler, method, path, kind string, content io.Reader) error {
	r := httptest.NewRequest(method, path, content)
	r.Header.Set("Content-Type", kind)
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, r)
	if answer.Code != http.StatusCreated {
		return fmt.Errorf("%s %s: status %d: %s", method, path, answer.Code, answer.Body)
	}
	return nil
}
