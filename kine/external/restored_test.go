package external

import (
	"errors"
	"os"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// The statements that docs/datastore.md names for a restored database raise the revision and
// compact everything before. The database goes on from there.
func TestDatabaseGoesOnAboveWhatWasSeen(t *testing.T) {
	text, err := os.ReadFile("../../docs/datastore.md")
	if err != nil {
		t.Fatal(err)
	}
	databases(t, func(t *testing.T, db database) {
		name := map[string]string{"postgres": "PostgreSQL", "mysql": "MySQL and MariaDB"}[db.kind]
		_, after, found := strings.Cut(string(text), "\n"+name+":\n\n")
		statements, _, _ := strings.Cut(after, "COMMIT;")
		if !found || !strings.Contains(statements, "1000000000") {
			t.Fatalf("docs/datastore.md has no statements for %s", name)
		}
		ctx := t.Context()
		c, stop := db.serve(t, Options{})
		first, err := c.Kubernetes.OptimisticPut(ctx, "/one", []byte("a"), 0, kubernetes.PutOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stop()
		connection, err := db.open(t).reads.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		for statement := range strings.SplitSeq(statements+"COMMIT", ";") {
			if _, err := connection.ExecContext(ctx, statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}

		c, _ = db.serve(t, Options{})
		if _, err := c.Kubernetes.List(ctx, "/", kubernetes.ListOptions{Revision: first.Revision}); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("a list of a revision from before: %v, want %v", err, rpctypes.ErrCompacted)
		}
		next, err := c.Kubernetes.OptimisticPut(ctx, "/one", []byte("b"), first.Revision, kubernetes.PutOptions{})
		if err != nil || !next.Succeeded || next.Revision <= first.Revision+1_000_000_000 {
			t.Errorf("an update after revision %d: %+v, %v", first.Revision, next, err)
		}
		if got, err := c.Kubernetes.Get(ctx, "/one", kubernetes.GetOptions{}); err != nil || got.KV == nil || string(got.KV.Value) != "b" || got.Revision < next.Revision {
			t.Errorf("after it: %+v, %v", got, err)
		}
	})
}
