package migrate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/kine/location"
)

const (
	pageKeys = 500 // of a list

	// A transaction has fewer operations and bytes than etcd allows by default: 128 and 1.5 MiB.
	txnOps   = 100
	txnBytes = 512 << 10

	// raisers is how many writes wait for etcd at a time while the revision is raised. etcd writes those
	// that wait together to the disk.
	raisers = 128

	// maxRaise is how far the revision of an etcd is raised: every step is a write.
	maxRaise = 2_000_000
	// waitAbandon is how long the end of a migration that has failed may take.
	waitAbandon = 5 * time.Second

	// compactEvery is how many of those writes etcd keeps.
	compactEvery = 100_000
)

// etcd is both ends in an etcd.
type etcd struct {
	client *clientv3.Client
	at     int64 // revision that is read
	count  int64
	others int64 // keys outside of the prefix
	ttls   map[clientv3.LeaseID]int64
}

func dialEtcd(ctx context.Context, e End) (_ *etcd, marker *etcdserverpb.RangeResponse, err error) {
	secured, err := location.EtcdTLS(e.CAFile, e.CertFile, e.KeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", e.FileOptions, err)
	}
	client, marker, err := location.DialEtcd(ctx, e.Etcd, secured, Prefix+location.Migrating)
	if err != nil {
		return nil, nil, plain(err)
	}
	c := &etcd{client: client, at: marker.Header.Revision, ttls: map[clientv3.LeaseID]int64{}}
	all, err := client.Get(ctx, Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithRev(c.at))
	if err != nil {
		client.Close()
		return nil, nil, plain(err)
	}
	c.count = all.Count
	return c, marker, nil
}

// plain is an error without the words that gRPC puts around its cause.
func plain(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	text := strings.TrimPrefix(s.Message(), "etcdserver: ")
	if quoted, ok := strings.CutPrefix(text, "connection error: desc = "); ok {
		if cause, err := strconv.Unquote(quoted); err == nil {
			text = strings.TrimPrefix(cause, "transport: ")
		}
	}
	return errors.New(text)
}

func readEtcd(ctx context.Context, e End) (source, error) {
	c, marker, err := dialEtcd(ctx, e)
	if err != nil {
		return nil, err
	}
	if len(marker.Kvs) > 0 {
		c.close()
		return nil, fmt.Errorf("a migration into it (%s) has not finished", marker.Kvs[0].Value)
	}
	// The addresses of servers expire 15 seconds after the servers have ended.
	running, err := c.client.Get(ctx, leases, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err == nil && len(running.Kvs) > 0 {
		err = fmt.Errorf("a server uses it (%s): stop all servers of the cluster. One that was killed counts for 15 seconds", running.Kvs[0].Key)
	}
	if err == nil {
		if err = c.countOthers(ctx); errors.Is(err, rpctypes.ErrPermissionDenied) {
			err = nil // a user for this prefix only
		}
	}
	if err != nil {
		c.close()
		return nil, plain(err)
	}
	return c, nil
}

// countOthers counts the keys that are not below the prefix, but for those that an API server leaves in any etcd.
func (c *etcd) countOthers(ctx context.Context) error {
	all, err := c.client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly(), clientv3.WithRev(c.at))
	if err != nil {
		return err
	}
	own, err := c.client.Get(ctx, compactKeys, clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithRev(c.at))
	if err == nil {
		c.others = all.Count - own.Count - c.count
	}
	return err
}

func (c *etcd) revision() int64 { return c.at }

func (c *etcd) outside() int64 { return c.others }

func (c *etcd) keys() int64 { return c.count }

func (c *etcd) each(ctx context.Context, do func(entry) error) error {
	for key := Prefix; ; {
		page, err := c.client.Get(ctx, key, clientv3.WithRange(prefixEnd), clientv3.WithRev(c.at), clientv3.WithLimit(pageKeys))
		if err != nil {
			return plain(err)
		}
		for _, kv := range page.Kvs {
			ttl, err := c.ttl(ctx, kv)
			if err != nil {
				return err
			}
			if kv.Lease != 0 && ttl == 0 {
				continue // it has expired since
			}
			if err := do(entry{string(kv.Key), kv.Value, ttl}); err != nil {
				return err
			}
		}
		if !page.More || len(page.Kvs) == 0 {
			return nil
		}
		key = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// ttl is the whole time of a key's lease, or 0 if there is none.
func (c *etcd) ttl(ctx context.Context, kv *mvccpb.KeyValue) (int64, error) {
	if kv.Lease == 0 {
		return 0, nil
	}
	id := clientv3.LeaseID(kv.Lease)
	ttl, known := c.ttls[id]
	if !known {
		lease, err := c.client.TimeToLive(ctx, id)
		if err != nil {
			return 0, fmt.Errorf("lease of %s: %w", kv.Key, plain(err))
		}
		if lease.TTL >= 0 { // it is -1 for a lease that is gone
			ttl = max(lease.GrantedTTL, 1)
		}
		c.ttls[id] = ttl
	}
	return ttl, nil
}

func (c *etcd) changed(ctx context.Context) (string, error) {
	later, err := c.client.Get(ctx, Prefix, clientv3.WithPrefix(), clientv3.WithMinModRev(c.at+1), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return "", plain(err)
	}
	if len(later.Kvs) == 0 {
		return "", nil
	}
	return string(later.Kvs[0].Key), nil
}

func (c *etcd) close() error {
	c.client.Close() // whatever was written has been acknowledged
	return nil
}

// filledEtcd is an etcd that is filled. While it has the key location.Migrating, no server starts with it.
type filledEtcd struct {
	*etcd
	end     End
	ops     []clientv3.Op
	size    int
	sent    bool             // a transaction with keys; it may have been committed, whatever its answer was
	written int              // keys that etcd has acknowledged
	leases  map[int64]leased // by TTL
}

func fillEtcd(ctx context.Context, e, from End, src source, progress func(Progress)) (_ target, err error) {
	c, marker, err := dialEtcd(ctx, e)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	first := src.revision() + 1
	f := &filledEtcd{etcd: c, end: e, leases: map[int64]leased{}}
	if len(marker.Kvs) > 0 {
		return nil, fmt.Errorf("a migration (%s) has not finished, and has left %d keys. %s", marker.Kvs[0].Value, c.count, f.remedy())
	}
	if c.count > 0 && from.Etcd != nil {
		return nil, fmt.Errorf("it is not empty: there are %d keys below %s, and it may be the source itself (%s %s) by another name. Name another etcd", c.count, Prefix, from.Option, from.Where)
	}
	if c.count > 0 {
		return nil, fmt.Errorf("it is not empty: there are %d keys below %s. If nobody needs them: %s", c.count, Prefix, f.remedy())
	}
	// A read or a watch at a revision of the source has to fail, so all history is compacted, and others' would be, too.
	if err := c.countOthers(ctx); err != nil {
		return nil, fmt.Errorf("it cannot be seen whether others use it, whose history would be compacted: name a user who may read all keys: %w", plain(err))
	}
	if c.others > 0 {
		return nil, fmt.Errorf("others use it: there are %d keys outside of %s. A migration compacts the history of the whole etcd, which their watches may need: name an etcd that nobody else uses", c.others, Prefix)
	}
	if steps := first - c.at; steps > maxRaise {
		return nil, fmt.Errorf("its revision is %d, and would have to be raised above %d, that of the source: clients would otherwise take old objects for new ones. "+
			"etcd raises it by one with each write, so this takes too long: make the etcd from an empty snapshot, with etcdutl snapshot restore --bump-revision %d --mark-compacted", c.at, first-1, first)
	}
	text := fmt.Sprintf("from %s, begun at %s", from.Where, time.Now().UTC().Format(time.RFC3339))
	none := clientv3.Compare(clientv3.CreateRevision(Prefix).WithPrefix(), "=", 0)
	done, err := c.client.Txn(ctx).If(none).Then(clientv3.OpPut(Prefix+location.Migrating, text)).Commit()
	if err != nil {
		return nil, plain(err)
	}
	if !done.Succeeded {
		return nil, fmt.Errorf("somebody else has begun to write to it")
	}
	if err := f.raise(ctx, text, done.Header.Revision, first-1, progress); err != nil {
		return nil, fmt.Errorf("raise the revision: %w; %s", err, f.abandon())
	}
	return f, nil
}

// raise writes one key again and again until the revision is at least to. So the objects, which are written
// after that, have resourceVersions that no client has seen.
func (f *filledEtcd) raise(ctx context.Context, text string, now, to int64, progress func(Progress)) error {
	writes, failed := errgroup.WithContext(ctx)
	writes.SetLimit(raisers)
	for step := int64(1); step < to-now && failed.Err() == nil; step++ {
		progress(Progress{Doing: raisingRevision, Done: step, Total: to - now})
		writes.Go(func() error {
			done, err := f.client.Put(failed, Prefix+location.Migrating, text)
			if err == nil && step%compactEvery == 0 {
				if _, err = f.client.Compact(failed, done.Header.Revision); errors.Is(err, rpctypes.ErrCompacted) {
					err = nil // etcd may compact by itself
				}
			}
			return plain(err)
		})
	}
	if err := writes.Wait(); err != nil {
		return err
	}
	if f.at = now; to > now { // the last write is alone, so its revision is the newest
		done, err := f.client.Put(ctx, Prefix+location.Migrating, text)
		if err != nil {
			return plain(err)
		}
		f.at = done.Header.Revision
		progress(Progress{Doing: raisingRevision, Done: to - now, Total: to - now})
	}
	return ctx.Err()
}

func (f *filledEtcd) put(ctx context.Context, e entry) error {
	if len(f.ops) > 0 && (len(f.ops) == txnOps || f.size+len(e.value) > txnBytes) {
		if err := f.flush(ctx); err != nil {
			return err
		}
	}
	var options []clientv3.OpOption
	if e.ttl > 0 {
		l := f.leases[e.ttl]
		if l.keys%leaseKeys == 0 {
			granted, err := f.client.Grant(ctx, e.ttl)
			if err != nil {
				return plain(err)
			}
			l.id = int64(granted.ID)
		}
		l.keys++
		f.leases[e.ttl] = l
		options = append(options, clientv3.WithLease(clientv3.LeaseID(l.id)))
	}
	f.ops = append(f.ops, clientv3.OpPut(e.key, string(e.value), options...))
	f.size += len(e.value)
	return nil
}

func (f *filledEtcd) flush(ctx context.Context) error {
	if len(f.ops) == 0 {
		return nil
	}
	f.sent = true
	marked := clientv3.Compare(clientv3.CreateRevision(Prefix+location.Migrating), ">", 0)
	done, err := f.client.Txn(ctx).If(marked).Then(f.ops...).Commit()
	if err != nil {
		return plain(err)
	}
	if !done.Succeeded {
		return fmt.Errorf("somebody has deleted %s meanwhile", Prefix+location.Migrating)
	}
	f.written += len(f.ops)
	f.at, f.ops, f.size = done.Header.Revision, f.ops[:0], 0
	return nil
}

func (f *filledEtcd) each(ctx context.Context, do func(entry) error) error {
	if err := f.flush(ctx); err != nil {
		return err
	}
	return f.etcd.each(ctx, do)
}

// commit compacts everything before the last object, so that no client continues from an older revision.
func (f *filledEtcd) commit(ctx context.Context) (int64, error) {
	if _, err := f.client.Compact(ctx, f.at); err != nil {
		return 0, plain(err)
	}
	done, err := f.client.Delete(ctx, Prefix+location.Migrating)
	if err != nil {
		return 0, uncertain{plain(err), fmt.Sprintf("etcdctl --endpoints %s get %s prints nothing if all of it is there, and verified",
			strings.ReplaceAll(f.end.Where, " ", ""), Prefix+location.Migrating)}
	}
	return done.Header.Revision, nil
}

func (f *filledEtcd) abandon() string {
	if !f.sent {
		ctx, cancel := context.WithTimeout(context.Background(), waitAbandon)
		defer cancel()
		if _, err := f.client.Delete(ctx, Prefix+location.Migrating); err == nil {
			return nothingLeft
		}
	}
	return fmt.Sprintf("%s %s now has %d or more of the keys. No server starts with it while it has %s. %s", f.end.Option, f.end.Where, f.written, Prefix+location.Migrating, f.remedy())
}

// remedy says how to empty the etcd again.
func (f *filledEtcd) remedy() string {
	return fmt.Sprintf("To empty it: etcdctl --endpoints %s del --prefix %s", strings.ReplaceAll(f.end.Where, " ", ""), Prefix)
}
