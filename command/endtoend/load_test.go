package endtoend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
)

const loaded = "load" // the namespace

// ledger is what a server has promised: the writes that it acknowledged, and
// what it told a watch.
type ledger struct {
	t *testing.T

	mu       sync.Mutex
	there    map[string]string // name → content of what was created last
	gone     map[string]bool   // names of what was deleted
	versions map[string]string // resourceVersion → what it was given to
	newest   uint64
	acks     int
}

func newLedger(t *testing.T) *ledger {
	return &ledger{t: t, there: map[string]string{}, gone: map[string]bool{}, versions: map[string]string{}}
}

// printed is an object's identity, version and content.
func printed(c *corev1.ConfigMap) string {
	return fmt.Sprintf("%s uid=%s rv=%s data=%v", c.Name, c.UID, c.ResourceVersion, c.Data)
}

// promised notes that a version was given to an object; what says to what.
func (l *ledger) promised(c *corev1.ConfigMap, what string) {
	version, err := strconv.ParseUint(c.ResourceVersion, 10, 64)
	if err != nil {
		l.t.Errorf("resourceVersion %q: %v", c.ResourceVersion, err)
	}
	if was, ok := l.versions[c.ResourceVersion]; ok && was != what {
		l.t.Errorf("resourceVersion %s was given to two:\n%s\n%s", c.ResourceVersion, was, what)
	}
	l.versions[c.ResourceVersion] = what
	l.newest = max(l.newest, version)
}

func (l *ledger) written(c *corev1.ConfigMap) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.promised(c, printed(c))
	l.there[c.Name] = printed(c)
	l.acks++
}

func (l *ledger) deleted(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.there, name)
	l.gone[name] = true
	l.acks++
}

// writing means that an object is about to be replaced or deleted: if no answer
// comes, both what was and what will be are right.
func (l *ledger) writing(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.there, name)
}

func (l *ledger) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acks
}

// write creates, replaces and deletes until the server does not answer.
func (l *ledger) write(c typedcore.ConfigMapInterface, writer string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for i := 0; ; i++ {
		made, err := c.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", writer, i)}, Data: map[string]string{"n": strconv.Itoa(i)},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		l.written(made)
		switch i % 4 {
		case 1, 2:
			l.writing(made.Name)
			made.Data["n"] += " again"
			if made, err = c.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
				return err
			}
			l.written(made)
		case 3:
			l.writing(made.Name)
			if err := c.Delete(ctx, made.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
			l.deleted(made.Name)
		}
	}
}

// watch notes what a watch says until it ends.
func (l *ledger) watch(c typedcore.ConfigMapInterface) (ended <-chan struct{}) {
	w, err := c.Watch(within(l.t, patience), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if object, ok := event.Object.(*corev1.ConfigMap); ok {
				what := printed(object)
				if event.Type == "DELETED" {
					what = "the end of " + object.Name
				}
				l.mu.Lock()
				l.promised(object, what)
				l.mu.Unlock()
			}
		}
	}()
	return done
}

// load writes through both listeners, ends the server in the midst of it, and
// returns when the writers have noticed.
func (l *ledger) load(p *process, round int, end func()) {
	l.t.Helper()
	watched := l.watch(client(l.t, p.config()).CoreV1().ConfigMaps(loaded))
	var writers sync.WaitGroup
	before := l.acknowledged()
	for i, c := range []kubernetes.Interface{client(l.t, p.config()), client(l.t, p.plain()), client(l.t, p.config()), client(l.t, p.plain())} {
		writers.Go(func() {
			err := l.write(c.CoreV1().ConfigMaps(loaded), fmt.Sprintf("round-%d-writer-%d", round, i))
			if err == nil || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || errors.Is(err, context.DeadlineExceeded) {
				l.t.Errorf("writer %d ended with %v, want it to lose its server", i, err)
			}
		})
	}
	p.poll("writes", func() error {
		if n := l.acknowledged() - before; n < 150 {
			return fmt.Errorf("%d were acknowledged", n)
		}
		return nil
	})
	end()
	writers.Wait()
	<-watched
}

// verify compares a server that was started again with the ledger.
func (l *ledger) verify(p *process) {
	l.t.Helper()
	c := client(l.t, p.config()).CoreV1().ConfigMaps(loaded)
	list, err := c.List(l.t.Context(), metav1.ListOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	found := map[string]string{}
	for _, item := range list.Items {
		found[item.Name] = printed(&item)
		l.promised(&item, printed(&item)) // not given to anything else before
		if l.gone[item.Name] {
			l.t.Errorf("%s is back from the dead", printed(&item))
		}
	}
	for name, want := range l.there {
		if found[name] != want {
			l.t.Errorf("acknowledged: %s\nfound:        %s", want, found[name])
		}
	}
	l.t.Logf("%d writes acknowledged, %d versions seen, %d objects found", l.acks, len(l.versions), len(list.Items))

	// What is written now is newer than all that anybody has seen; so is the
	// list, or a client that goes on from it would miss something.
	newest := l.newest
	if version, _ := strconv.ParseUint(list.ResourceVersion, 10, 64); version < newest {
		l.t.Errorf("the list has the version %s, older than %d", list.ResourceVersion, newest)
	}
	for i := range 20 {
		made, err := c.Create(l.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "new-"}, Data: map[string]string{"i": strconv.Itoa(i)}}, metav1.CreateOptions{})
		if err != nil {
			l.t.Fatal(err)
		}
		if version, _ := strconv.ParseUint(made.ResourceVersion, 10, 64); version <= newest {
			l.t.Errorf("a new object has the version %d, want more than %d", version, newest)
		}
		l.promised(made, printed(made))
		l.there[made.Name] = printed(made)
	}
	// And a watch goes on where the list ended.
	w, err := c.Watch(within(l.t, patience), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		l.t.Fatal(err)
	}
	defer w.Stop()
	for seen := 0; seen < 20; {
		event, ok := <-w.ResultChan()
		object, isMap := event.Object.(*corev1.ConfigMap)
		switch {
		case !ok || !isMap:
			l.t.Fatalf("a watch from version %s: got %v, open %v; want the %d writes that are left", list.ResourceVersion, event, ok, 20-seen)
		case object.GenerateName == "new-":
			seen++
		}
	}
}

func makeNamespace(t *testing.T, p *process, name string) {
	t.Helper()
	if _, err := client(t, p.plain()).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestEndUnderLoad ends a server by SIGTERM and by SIGKILL while it is written to, and nobody tidies up in between.
func TestEndUnderLoad(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	l := newLedger(t)
	p := start(t, dir)
	makeNamespace(t, p, loaded)
	for round, end := range []func(){
		func() { p.signal(syscall.SIGTERM); p.wantCleanEnd(stopLimit) },
		func() { p.kill() },
	} {
		l.load(p, round, end)
		p = start(t, dir, bare...)
		l.verify(p)
	}
}
