package manifests

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
)

// manager is the field manager, and the name of the ConfigMap with the inventory.
const (
	manager   = "karve-manifests"
	namespace = metav1.NamespaceSystem
	filesKey  = "files"
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

// inventory has the objects of each unit.
type inventory map[string][]id

// with returns the inventory with the ids of a unit in addition.
func (inv inventory) with(unit string, ids []id) inventory {
	out := maps.Clone(inv)
	all := slices.Concat(inv[unit], ids)
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > 0 {
		out[unit] = all
	}
	return out
}

// surplus returns the objects of an inventory that no unit has any more, with the unit that had them.
func (inv inventory) surplus(known map[string]*state) map[id]string {
	wanted := map[id]bool{}
	for unit, ids := range inv {
		if s := known[unit]; s != nil && s.keeps {
			for _, i := range ids {
				wanted[i] = true
			}
		}
	}
	for _, s := range known {
		for _, i := range s.ids {
			wanted[i] = true
		}
	}
	out := map[id]string{}
	for unit, ids := range inv {
		for _, i := range ids {
			if !wanted[i] {
				out[i] = unit
			}
		}
	}
	return out
}

// load returns the inventory and the ConfigMap that has it; nil if there is none.
func load(ctx context.Context, client typedcore.ConfigMapInterface) (inventory, *corev1.ConfigMap, error) {
	inv := inventory{}
	stored, err := client.Get(ctx, manager, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return inv, nil, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(stored.Data[filesKey]), &inv)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read the inventory, ConfigMap %s/%s: %w", namespace, manager, err)
	}
	return inv, stored, nil
}

// store writes the inventory unless stored has it, and returns what is stored then. Another writer is an error.
func (inv inventory) store(ctx context.Context, client typedcore.ConfigMapInterface, stored *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	if stored == nil && len(inv) == 0 {
		return nil, nil
	}
	text, err := json.MarshalIndent(inv, "", " ")
	if err != nil {
		return stored, err
	}
	now := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: manager, Namespace: namespace}}
	if stored != nil {
		now = stored.DeepCopy()
	}
	now.Data = map[string]string{filesKey: string(text)}
	metav1.SetMetaDataLabel(&now.ObjectMeta, idLabel, setID)
	if reflect.DeepEqual(now, stored) {
		return stored, nil
	}
	if stored == nil {
		now, err = client.Create(ctx, now, metav1.CreateOptions{FieldManager: manager})
	} else {
		now, err = client.Update(ctx, now, metav1.UpdateOptions{FieldManager: manager})
	}
	if err != nil {
		return stored, fmt.Errorf("write the inventory: %w", err)
	}
	return now, nil
}
