package marker

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	datadir "github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/kineimport"
)

func TestOnlyKarvesDirectoriesAreMarked(t *testing.T) {
	t.Parallel()
	write := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
	database := func(t *testing.T, dir string) {
		lock, err := datadir.Acquire(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
		if err == nil {
			err = e.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	issued := func(t *testing.T, dir string) {
		if _, _, err := certs.Ensure(certs.Config{Dir: filepath.Join(dir, "certs"), NoSync: true}); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		with []func(*testing.T, string)
		want bool
	}{
		"nothing":                             {nil, true},
		"certificates put there before":       {[]func(*testing.T, string){write("certs/server-ca.crt", "of a company")}, true},
		"a mark that a power cut emptied":     {[]func(*testing.T, string){write(File, ""), write("lock", "1")}, true},
		"like /etc/ssl":                       {[]func(*testing.T, string){write("certs/ca.pem", "x"), write("openssl.cnf", "x")}, false},
		"another program's lock":              {[]func(*testing.T, string){write("lock", "1"), write("data", "x")}, false},
		"no database":                         {[]func(*testing.T, string){write(datastore.EngineFile, "of another program"), write("x", "x")}, false},
		"of another program, and made before": {[]func(*testing.T, string){database, write("x", "x")}, false},
		"nothing but others' in certs":        {[]func(*testing.T, string){write("certs/ca.pem", "x")}, false},
		"k3s' database":                       {[]func(*testing.T, string){write(kineimport.FileName, "SQLite format 3\x00 and more")}, false},
		"ours, of an earlier release": {[]func(*testing.T, string){database, write("lock", "1"), write("lost+found/x", "x"),
			write(kineimport.FileName+".converted", "x"), write(datastore.EngineFile+".before-restore-20260102T030405Z-wal", "x")}, true},
		"ours, with another datastore":    {[]func(*testing.T, string){issued, write("flexvolume/x", "x")}, true},
		"certificates, and a key for SSH": {[]func(*testing.T, string){issued, write("ssh/id_ed25519", "x")}, true},
		"certificates and more":           {[]func(*testing.T, string){issued, write("x", "x")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, with := range test.with {
				with(t, dir)
			}
			for range 2 { // the second time, the marker exists
				if err := Mark(dir); err != nil {
					t.Fatal(err)
				}
				content, err := os.ReadFile(filepath.Join(dir, File))
				if !test.want && errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil || !test.want || !strings.HasPrefix(string(content), begins) {
					t.Errorf("got %q, %v; want a mark: %v", content, err, test.want)
				}
			}
		})
	}
}

// An installation gives only these directories to the service's user.
func TestOursAndVacant(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files        map[string]string // -> is a symbolic link
		ours, vacant bool
	}{
		"nothing":                    {nil, false, true},
		"a mark":                     {map[string]string{File: markText, "mine": "x"}, true, false},
		"another program's files":    {map[string]string{"mail.pem": "x"}, false, false},
		"another program's lock":     {map[string]string{"lock": "", "mail": "x"}, false, false},
		"a user's certificates":      {map[string]string{"certs/server-ca.crt": "x", "certs/server-ca.key": "x"}, false, true},
		"others' certificates":       {map[string]string{"certs/mail.pem": "x"}, false, false},
		"a link to others' files":    {map[string]string{"certs": "->/etc/ssl"}, false, false},
		"a link to another's mark":   {map[string]string{File: "->/dev/null", "x": "x"}, false, false},
		"a database that is no file": {map[string]string{datastore.EngineFile: "->/dev/null"}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, content := range test.files {
				path := filepath.Join(dir, file)
				err := os.MkdirAll(filepath.Dir(path), 0o700)
				if target, link := strings.CutPrefix(content, "->"); link {
					err = errors.Join(err, os.Symlink(target, path))
				} else {
					err = errors.Join(err, os.WriteFile(path, []byte(content), 0o600))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if Ours(dir) != test.ours || Vacant(dir) != test.vacant {
				t.Errorf("got ours %v, vacant %v", Ours(dir), Vacant(dir))
			}
		})
	}
	if none := filepath.Join(t.TempDir(), "none"); Ours(none) || !Vacant(none) {
		t.Error("a directory that does not exist is vacant")
	}
}

// A start removes what killed commands have left in Karve's own directories, and nothing else.
func TestRemoveLeft(t *testing.T) {
	t.Parallel()
	old := time.Now().Add(-2 * leftAge)
	create := func(dir, name string, at time.Time) {
		t.Helper()
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err = errors.Join(err, os.WriteFile(path, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		top, _, _ := strings.Cut(name, "/")
		if err := os.Chtimes(filepath.Join(dir, top), at, at); err != nil {
			t.Fatal(err)
		}
	}
	for _, marked := range []bool{true, false} {
		dir := t.TempDir()
		var want []string
		for name, stays := range map[string]bool{
			".karve-12.tmp": !marked, ".snapshot-12/mvcc.db": !marked, ".writable-3": !marked, ".control/snapshot-4": !marked, ".mvcc.db.12.partial/copy": !marked,
			".snapshot-hourly/a": true, ".snapshot": true, "karve-12.tmp": true, ".karve-12.tmp.mine": true, "mvcc.db": true,
			".karve-1.partial/.karve-temporary": false, ".karve-a.partial/.karve-temporary": true, ".karve-2.partial/lock": true,
		} {
			create(dir, name, old)
			if stays {
				name, _, _ = strings.Cut(name, "/")
				want = append(want, name)
			}
		}
		create(dir, ".snapshot-13/mvcc.db", time.Now())
		create(dir, ".karve-13.tmp", time.Now())
		want = append(want, ".snapshot-13", ".karve-13.tmp")
		if marked {
			create(dir, File, old)
			want = append(want, File)
		}
		RemoveLeft(dir)
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range entries {
			got = append(got, e.Name())
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("marked: %v: left are %q, want %q", marked, got, want)
		}
	}
}
