package endtoend

import (
	"archive/tar"
	"compress/gzip"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pack writes the files of a data directory to an archive. It leaves out the ballast, which only
// reserves space and does not compress, and what a server makes anew.
func pack(t *testing.T, dir, archive string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.Contains(entry.Name(), ".ballast") || entry.Name() == "admin.kubeconfig" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Mode: 0o600, Size: int64(len(text))}); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	compress(t, file, archive)
}

// compress writes a compressed copy of a file.
func compress(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	w, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err == nil {
		_, err = io.Copy(w, in)
		err = errors.Join(err, w.Close(), out.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

func readPEM(t *testing.T, path string) *pem.Block {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s has no PEM block", path)
	}
	return block
}

func readCertificate(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	cert, err := x509.ParseCertificate(readPEM(t, path).Bytes)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return cert
}

// unpack unpacks a data directory into a new one.
func unpack(t *testing.T, archive string) string {
	t.Helper()
	file, dir := filepath.Join(t.TempDir(), "tar"), t.TempDir()
	decompress(t, archive, file)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := tar.NewReader(f)
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatalf("%s: %v", archive, err)
		}
		text, err := io.ReadAll(r)
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err == nil {
			err = os.WriteFile(path, text, os.FileMode(header.Mode))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func decompress(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	r, err := gzip.NewReader(in)
	if err != nil {
		t.Fatalf("%s: %v", from, err)
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, r)
	if err = errors.Join(err, out.Close()); err != nil {
		t.Fatal(fmt.Errorf("%s: %w", from, err))
	}
}
