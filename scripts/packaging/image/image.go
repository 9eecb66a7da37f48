// Package image packs karve as a container image: an OCI layout with an image for each platform,
// in one tar file.
//
// An image has one layer, with the program and what an image without a distribution lacks: a name
// for the user, authorities for TLS, a directory for temporary files and one for the data. The same
// programs give the same bytes.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Repository is where releases of the image are. [Tag] has the version.
const Repository = "ghcr.io/karve-k8s/karve"

// UID is the user and the group of the server, as in distroless' images: 0 is nobody's, and no
// distribution gives it to a user of its own.
const UID = 65532

// DataDir is the volume. ShareDir is where another container can be given the kubeconfig: a volume
// there belongs to the server's user too.
const (
	DataDir  = "/var/lib/karve"
	ShareDir = "/run/karve"
)

// Release is what all platforms have in common.
type Release struct {
	Version  string    // v1.37.2+karve.1
	Revision string    // the commit
	Time     time.Time // of the commit, for every file and image
}

// Program is a karve for a platform.
type Program struct {
	Platform string // as releases call it: linux/armv7
	Path     string
}

// Tag is the version as a registry takes it, which has no plus sign: v1.37.2-karve.1.
func Tag(version string) string { return strings.ReplaceAll(version, "+", "-") }

// platforms are those of the index by the names of releases. armv8 is every arm64, and clients that
// name the variant ask for it.
var platforms = map[string]v1.Platform{
	"linux/amd64":   {OS: "linux", Architecture: "amd64"},
	"linux/arm64":   {OS: "linux", Architecture: "arm64", Variant: "v8"},
	"linux/armv7":   {OS: "linux", Architecture: "arm", Variant: "v7"},
	"linux/armv6":   {OS: "linux", Architecture: "arm", Variant: "v6"},
	"linux/riscv64": {OS: "linux", Architecture: "riscv64"},
}

// Write writes the images of all programs to the file out, as a tar file of an OCI layout, with the
// names that containerd and Docker read.
func Write(out string, release Release, programs []Program) (err error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range programs {
		image, platform, err := build(release, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Path, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &platform}})
	}
	index = mutate.Annotations(index, annotations(release)).(v1.ImageIndex)

	dir, err := os.MkdirTemp(filepath.Dir(out), ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": Tag(release.Version),
		"io.containerd.image.name":          Repository + ":" + Tag(release.Version),
	})); err != nil {
		return err
	}
	return archive(out, dir, release.Time)
}

// build makes the image of a program.
func build(release Release, p Program) (v1.Image, v1.Platform, error) {
	platform, ok := platforms[p.Platform]
	if !ok {
		return nil, platform, fmt.Errorf("%s: no image is made for this platform", p.Platform)
	}
	if err := isFor(platform, p.Path); err != nil {
		return nil, platform, err
	}
	program, err := os.ReadFile(p.Path)
	if err != nil {
		return nil, platform, err
	}
	files, err := root(program, release.Time)
	if err != nil {
		return nil, platform, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, platform, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: release.Time}, CreatedBy: "karve " + release.Version}})
	if err != nil {
		return nil, platform, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, platform, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Variant = platform.OS, platform.Architecture, platform.Variant
	file.Created = v1.Time{Time: release.Time}
	file.Config = config(release)
	image, err = mutate.ConfigFile(image, file)
	return image, platform, err
}

// isFor compares the platform with what the linker recorded in the program.
func isFor(platform v1.Platform, path string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return err
	}
	want := map[string]string{"GOOS": platform.OS, "GOARCH": platform.Architecture, "CGO_ENABLED": "0"}
	if platform.Architecture == "arm" {
		want["GOARM"] = strings.TrimPrefix(platform.Variant, "v")
	}
	for _, s := range info.Settings {
		if value, ok := want[s.Key]; ok && s.Value != value {
			return fmt.Errorf("it was built with %s=%s: want %s", s.Key, s.Value, value)
		}
		delete(want, s.Key)
	}
	if missing := slices.Sorted(maps.Keys(want)); len(missing) > 0 {
		return fmt.Errorf("the linker recorded no %s in it: build it with scripts/build", strings.Join(missing, " and no "))
	}
	return nil
}

// config is what a container does that its user does not say.
//
// HEALTHCHECK is no part of OCI's format, but Docker reads it there as in its own. A registry keeps
// it, and other programs pass over it.
func config(release Release) v1.Config {
	return v1.Config{
		User:       fmt.Sprintf("%d:%d", UID, UID),
		Entrypoint: []string{"karve"},
		Cmd:        []string{"server"},
		WorkingDir: "/",
		Env: []string{
			"PATH=/bin",
			"KARVE_DATA_DIR=" + DataDir,
			// Nobody but a program of this container could use it, and with the machine's network it
			// would take port 8080 there.
			"KARVE_INSECURE_PORT=0",
		},
		ExposedPorts: map[string]struct{}{"6443/tcp": {}},
		Volumes:      map[string]struct{}{DataDir: {}},
		StopSignal:   "SIGTERM",
		Healthcheck: &v1.HealthConfig{
			Test:        []string{"CMD", "karve", "status"},
			Interval:    10 * time.Second,
			Timeout:     10 * time.Second,
			StartPeriod: 5 * time.Minute, // that of --start-timeout
			Retries:     3,
		},
		Labels: annotations(release),
	}
}

func annotations(release Release) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "karve",
		"org.opencontainers.image.description": "The Kubernetes control plane in one process",
		"org.opencontainers.image.url":         "https://github.com/karve-k8s/karve",
		"org.opencontainers.image.source":      "https://github.com/karve-k8s/karve",
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     release.Version,
		"org.opencontainers.image.revision":    release.Revision,
		"org.opencontainers.image.created":     release.Time.UTC().Format(time.RFC3339),
	}
}

// root is the layer: the files of the image, as a tar file.
func root(program []byte, modified time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		name string
		mode int64
		uid  int
		link string
		text []byte
	}{
		{name: "bin/", mode: 0o755},
		{name: "bin/karve", mode: 0o755, text: program},
		{name: "bin/kubectl", mode: 0o777, link: "karve"},
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, text: []byte(fmt.Sprintf("root:x:0:\nkarve:x:%d:\n", UID))},
		// A home directory would be one more place to keep: kubectl does without its cache.
		{name: "etc/passwd", mode: 0o644, text: []byte(fmt.Sprintf("root:x:0:0:root:/:/bin/false\nkarve:x:%d:%[1]d:Karve:/nonexistent:/bin/false\n", UID))},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, text: authorities()},
		{name: "run/", mode: 0o755},
		{name: ShareDir[1:] + "/", mode: 0o700, uid: UID}, // for a volume with a second kubeconfig
		{name: "tmp/", mode: 0o1777},
		{name: "var/", mode: 0o755},
		{name: "var/lib/", mode: 0o755},
		{name: DataDir[1:] + "/", mode: 0o700, uid: UID}, // a new volume of Docker's gets owner and mode
	} {
		header := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.uid, Size: int64(len(f.text)), ModTime: modified, Format: tar.FormatPAX}
		switch {
		case strings.HasSuffix(f.name, "/"):
			header.Typeflag = tar.TypeDir
		case f.link != "":
			header.Typeflag, header.Linkname = tar.TypeSymlink, f.link
		default:
			header.Typeflag = tar.TypeReg
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// authorities are Mozilla's, as Go has them: for webhooks, identity providers and databases with
// certificates of public authorities. Those that Mozilla trusts with conditions are left out, because
// a file of certificates has no place for conditions.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// A buffer takes everything.
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}

// archive writes a directory as a tar file that depends on nothing but names and contents.
func archive(out, dir string, modified time.Time) (err error) {
	var names []string
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			names = append(names, path)
		}
		return err
	}); err != nil {
		return err
	}
	slices.Sort(names)
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = closed
		}
	}()
	w := tar.NewWriter(file)
	for _, path := range names {
		if err := add(w, dir, path, modified); err != nil {
			return err
		}
	}
	return w.Close()
}

func add(w *tar.Writer, dir, path string, modified time.Time) error {
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return err
	}
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: filepath.ToSlash(name), Mode: 0o644, Size: info.Size(), ModTime: modified}); err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return err
}
