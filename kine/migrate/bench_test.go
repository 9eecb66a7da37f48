package migrate

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// BenchmarkMigration migrates 10,000 keys of 2,000 bytes from the built-in datastore to each kind and back:
// scripts/external-databases with KARVE_TEST_PACKAGES=./migrate and KARVE_TEST_FLAGS='-bench . -benchtime 1x'. The
// revision of an etcd is first raised to 50,000, that of the source, by as many writes.
func BenchmarkMigration(b *testing.B) {
	const keys, size, revision = 10_000, 2_000, 50_000
	source := fileEnd(b.TempDir())
	file, err := sqlitefile.NewBuilder(filepath.Join(source.Dir, datastore.EngineFile))
	if err != nil {
		b.Fatal(err)
	}
	for i := range int64(keys) {
		at := revision - keys + i
		row := &sqlitefile.Row{ID: sqlitefile.RowID(at, 0), Key: fmt.Sprintf("/registry/configmaps/default/%d", i), Create: at, Version: 1}
		if err := file.Add(row, bytes.Repeat([]byte{byte(i)}, size)); err != nil {
			b.Fatal(err)
		}
	}
	if err := file.Finish(sqlitefile.Metas{"revision": revision}); err != nil {
		b.Fatal(err)
	}
	for kind, empty := range kinds {
		b.Run(kind, func(b *testing.B) {
			var to, back, raising float64
			for b.Loop() {
				there := empty(b)
				begin := time.Now()
				var raised time.Duration
				one, err := Run(b.Context(), source, there, func(p Progress) {
					if p.Doing == raisingRevision {
						raised = time.Since(begin)
					}
				})
				if err != nil {
					b.Fatal(err)
				}
				two := run(b, there, fileEnd(filepath.Join(b.TempDir(), "data")))
				if one.Keys != keys || two.Keys != keys {
					b.Errorf("%+v, %+v, want the same %d keys", one, two, keys)
				}
				to, back, raising = to+one.Took.Seconds(), back+two.Took.Seconds(), raising+raised.Seconds()
			}
			b.ReportMetric(to/float64(b.N), "s/to")
			b.ReportMetric(back/float64(b.N), "s/back")
			if raising > 0 {
				b.ReportMetric(revision*float64(b.N)/raising, "raised/s")
			}
		})
	}
}
