package membership

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	certutil "k8s.io/client-go/util/cert"

	"github.com/karve-k8s/karve/certs"
)

// authorities are the objects by which a cluster tells its authorities. API servers add theirs to the
// first one when they start. The controller manager writes the second one.
var authorities = []struct {
	object   string // below the prefix
	optional bool   // without controllers, there is none
	keys     map[string]certs.Name
}{
	{object: "configmaps/kube-system/extension-apiserver-authentication", keys: map[string]certs.Name{
		"client-ca-file": certs.ClientCA, "requestheader-client-ca-file": certs.FrontProxyCA,
	}},
	{object: "configmaps/kube-system/kube-root-ca.crt", optional: true, keys: map[string]certs.Name{"ca.crt": certs.ServerCA}},
}

// errUnknown means that the datastore does not say which authorities are the cluster's.
var errUnknown = errors.New("it cannot be told whether the keys of this server are the cluster's")

// checkStored makes sure that the authorities of a server are among those of the cluster whose
// objects the datastore has.
func (c Cluster) checkStored(ctx context.Context, s Server, local certs.Shared) error {
	own, err := local.Fingerprints()
	if err != nil {
		return err
	}
	for _, a := range authorities {
		key := c.Prefix + a.object
		got, err := c.KV.Get(ctx, key)
		if err != nil {
			return fmt.Errorf("read %s: %w", key, err)
		}
		if len(got.Kvs) == 0 {
			if a.optional {
				continue
			}
			return fmt.Errorf("the datastore has a cluster, and %w: it has no %s. Start the server that ran the cluster without --%s until it is ready, and then with it", errUnknown, key, Option)
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(got.Kvs[0].Value, nil, nil)
		config, ok := object.(*corev1.ConfigMap)
		if err != nil || !ok { // the error could quote the object
			return fmt.Errorf("the datastore has a cluster, and %w: %s is encrypted or no ConfigMap. If ConfigMaps are encrypted, store them without encryption until the cluster has its token", errUnknown, key)
		}
		for _, field := range slices.Sorted(maps.Keys(a.keys)) {
			name := a.keys[field]
			if name == certs.FrontProxyCA && s.OtherFrontProxy {
				continue
			}
			if known, err := hasKey(config.Data[field], own[name]); err != nil {
				return fmt.Errorf("the datastore has a cluster, and %w: %s of %s: %w", errUnknown, field, key, err)
			} else if !known {
				return c.other(nil, s, fmt.Sprintf("%s is not in %s of %s", certs.File(s.Certs.Dir, name), field, key))
			}
		}
	}
	return nil
}

// hasKey reports whether one of the certificates in text has the public key with a fingerprint.
func hasKey(text, fingerprint string) (bool, error) {
	all, err := certutil.ParseCertsPEM([]byte(text))
	if err != nil {
		return false, err
	}
	for _, cert := range all {
		if got, err := certs.Fingerprint(cert.PublicKey); err == nil && got == fingerprint {
			return true, nil
		}
	}
	return false, nil
}
