package manifests

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// manager is the field manager, and the name of the ConfigMap with the inventory.
const (
	manager   = "karve-manifests"
	namespace = metav1.NamespaceSystem
	listKey   = "objects"
	filesKey  = "files" // of earlier releases: the objects of each file
)

// The labels of an ApplySet (KEP-3659), by which other tools know whose objects these are.
const (
	partOfLabel = "applyset.kubernetes.io/part-of"
	idLabel     = "applyset.kubernetes.io/id"
)

// setID is the ApplySet's: the hash of the name, namespace, kind and group of the inventory.
var setID = func() string {
	sum := sha256.Sum256([]byte(manager + "." + namespace + ".ConfigMap."))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(sum[:]) + "-v1"
}()

// id identifies an object, whatever the version of its kind: "Deployment.apps default/web", "Namespace shop".
type id string

func makeID(kind schema.GroupKind, namespace, name string) id {
	if namespace != "" {
		name = namespace + "/" + name
	}
	return id(kind.String() + " " + name)
}

func (i id) split() (kind schema.GroupKind, namespace, name string) {
	of, name, _ := strings.Cut(string(i), " ")
	if before, after, found := strings.Cut(name, "/"); found {
		namespace, name = before, after
	}
	return schema.ParseGroupKind(of), namespace, name
}

// inventory has the objects of all files, and those that no file describes any more, sorted.
type inventory []id

// with returns the inventory with more objects.
func (inv inventory) with(ids ...id) inventory {
	all := slices.Concat(inv, ids)
	slices.Sort(all)
	return slices.Compact(all)
}

// load reads the inventory.
func (c *cluster) load(ctx context.Context) (all inventory, err error) {
	c.stored, err = c.inventory.Get(ctx, manager, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		c.stored = nil
		return nil, nil
	}
	if err == nil {
		all, err = listed(c.stored.Data)
	}
	if err != nil {
		return nil, fmt.Errorf("read the inventory, ConfigMap %s/%s: %w", namespace, manager, err)
	}
	return all, nil
}

// listed reads the data of the ConfigMap.
func listed(data map[string]string) (all inventory, err error) {
	if text, found := data[filesKey]; found {
		files := map[string][]id{}
		err = json.Unmarshal([]byte(text), &files)
		for _, ids := range files {
			all = all.with(ids...)
		}
		return all, err
	}
	return all, json.Unmarshal([]byte(data[listKey]), &all)
}

// store writes the inventory, unless it is what was read. If somebody else has written it meanwhile, that is an error.
func (c *cluster) store(ctx context.Context, inv inventory) error {
	if c.stored == nil && len(inv) == 0 {
		return nil
	}
	text, err := json.MarshalIndent(inv, "", " ")
	if err != nil {
		return err
	}
	now := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: manager, Namespace: namespace}}
	if c.stored != nil {
		now = c.stored.DeepCopy()
	}
	now.Data = map[string]string{listKey: string(text)}
	metav1.SetMetaDataLabel(&now.ObjectMeta, idLabel, setID)
	switch {
	case c.stored == nil:
		now, err = c.inventory.Create(ctx, now, metav1.CreateOptions{FieldManager: manager})
	case !reflect.DeepEqual(now, c.stored):
		now, err = c.inventory.Update(ctx, now, metav1.UpdateOptions{FieldManager: manager})
	}
	if err != nil {
		return fmt.Errorf("write the inventory: %w", err)
	}
	c.stored = now
	return nil
}
