package apiserver

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/server/membership"
)

// ReloadOption is the option of kube-apiserver that makes a server read a changed encryption configuration.
const ReloadOption = "encryption-provider-config-automatic-reload"

// The file is read this often. Upstream's minute is long for somebody who waits for a new key.
func init() { controller.EncryptionConfigFileChangePollDuration = 5 * time.Second }

// CheckEncryption parses and validates an encryption configuration as kube-apiserver does at its
// start. Unlike upstream's loader, it does not connect to the KMS plugins, which another machine than a
// server's has not. The errors never repeat a key.
func CheckEncryption(content []byte) error {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	object, kind, err := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder().Decode(content, nil, nil)
	switch {
	case runtime.IsMissingKind(err) || runtime.IsMissingVersion(err): // the error has the whole file in it
		return errors.New("is not an encryption configuration: it has no apiVersion or no kind")
	case err != nil:
		return fmt.Errorf("is not an encryption configuration: %w", err)
	}
	config, ok := object.(*apiserverapi.EncryptionConfiguration)
	if !ok {
		return fmt.Errorf("is not an encryption configuration but a %v", kind)
	}
	return validation.ValidateEncryptionConfiguration(config, false).ToAggregate()
}

// Encryption is an encryption configuration, of which the methods change how Secrets are stored.
type Encryption struct {
	config  apiserverv1.EncryptionConfiguration
	secrets *apiserverv1.ResourceConfiguration
}

// ParseEncryption reads a configuration; nil is that of a server without one.
func ParseEncryption(content []byte) (*Encryption, error) {
	e := &Encryption{config: apiserverv1.EncryptionConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: apiserverv1.SchemeGroupVersion.String(), Kind: "EncryptionConfiguration"},
	}}
	if content != nil {
		if err := CheckEncryption(content); err != nil {
			return nil, err
		}
		if err := yaml.Unmarshal(content, &e.config); err != nil {
			return nil, errors.New("is not an encryption configuration") // the error could quote a key
		}
	}
	for i := range e.config.Resources {
		r := &e.config.Resources[i]
		if slices.ContainsFunc(r.Resources, func(name string) bool { return name == "secrets" || name == "*." || name == "*.*" }) {
			e.secrets = r
			return e, nil
		}
	}
	e.config.Resources = append([]apiserverv1.ResourceConfiguration{{
		Resources: []string{"secrets"}, Providers: []apiserverv1.ProviderConfiguration{{Identity: &apiserverv1.IdentityConfiguration{}}},
	}}, e.config.Resources...)
	e.secrets = &e.config.Resources[0]
	return e, nil
}

// NewEncryption returns the configuration of a new cluster, with a key for Secrets.
func NewEncryption() ([]byte, error) {
	e, err := ParseEncryption(nil)
	if err != nil {
		return nil, err
	}
	e.AddKey(true, nil)
	return e.Encode()
}

// Ways returns how Secrets can be read with a configuration.
func Ways(content []byte) ([]membership.Stored, error) {
	e, err := ParseEncryption(content)
	if err != nil {
		return nil, err
	}
	return e.Ways(), nil
}

// Encode returns the configuration as a file.
func (e *Encryption) Encode() ([]byte, error) { return yaml.Marshal(e.config) }

// Ways returns how Secrets can be stored. The server writes in the first way, and reads in all.
func (e *Encryption) Ways() (ways []membership.Stored) {
	for _, p := range e.secrets.Providers {
		ways = append(ways, waysOf(p)...)
	}
	return ways
}

func waysOf(p apiserverv1.ProviderConfiguration) (ways []membership.Stored) {
	add := func(provider string, keys []apiserverv1.Key) {
		for _, key := range keys {
			ways = append(ways, membership.Stored{Provider: provider, Key: key.Name})
		}
	}
	switch {
	case p.AESGCM != nil:
		add("aesgcm", p.AESGCM.Keys)
	case p.AESCBC != nil:
		add("aescbc", p.AESCBC.Keys)
	case p.Secretbox != nil:
		add("secretbox", p.Secretbox.Keys)
	case p.KMS != nil:
		ways = append(ways, membership.Stored{Provider: "kms", Key: p.KMS.Name})
	default:
		ways = append(ways, membership.Stored{Provider: membership.Identity})
	}
	return ways
}

// keyNumber is the number of a key that AddKey has made; 0 for others.
func keyNumber(w membership.Stored) (n int) {
	if w.Provider == "secretbox" {
		_, _ = fmt.Sscanf(w.Key, "key-%d", &n) // otherwise it is the user's
	}
	return n
}

// Waiting returns the newest key of AddKey, if it is not the one that the server writes with.
func (e *Encryption) Waiting() (way membership.Stored, waiting bool) {
	ways := e.Ways()
	newest := slices.MaxFunc(ways, func(a, b membership.Stored) int { return keyNumber(a) - keyNumber(b) })
	return newest, keyNumber(newest) > keyNumber(ways[0])
}

// AddKey adds a random key, whose name is none of used: for reading or, if write is true, also for writing. The provider is
// secretbox, which Kubernetes' documentation recommends where there is no KMS. The end of the name is random, because a name says
// which Secrets can be read: a restored datastore of another cluster must not seem to have this key.
func (e *Encryption) AddKey(write bool, used []membership.Stored) membership.Stored {
	number := 1
	for _, way := range append(e.Ways(), used...) {
		number = max(number, keyNumber(way)+1)
	}
	secret, id := make([]byte, 32), make([]byte, 4)
	rand.Read(secret) // never fails
	rand.Read(id)
	key := apiserverv1.Key{Name: fmt.Sprintf("key-%d-%x", number, id), Secret: base64.StdEncoding.EncodeToString(secret)}
	at := 1
	if write {
		at = 0
	}
	e.secrets.Providers = slices.Insert(e.secrets.Providers, at, apiserverv1.ProviderConfiguration{Secretbox: &apiserverv1.SecretboxConfiguration{Keys: []apiserverv1.Key{key}}})
	return membership.Stored{Provider: "secretbox", Key: key.Name}
}

// Others returns the other resources that are stored with the keys of Secrets.
func (e *Encryption) Others() []string {
	return slices.DeleteFunc(slices.Clone(e.secrets.Resources), func(name string) bool { return name == "secrets" })
}

// WriteWith makes the server write with the key that Waiting returns.
func (e *Encryption) WriteWith(way membership.Stored) {
	at := slices.IndexFunc(e.secrets.Providers, func(p apiserverv1.ProviderConfiguration) bool { return slices.Contains(waysOf(p), way) })
	chosen := e.secrets.Providers[at]
	e.secrets.Providers = slices.Insert(slices.Delete(e.secrets.Providers, at, at+1), 0, chosen)
}

// DropOthers leaves only the way in which the server writes, and Secrets without encryption.
func (e *Encryption) DropOthers() {
	first := e.secrets.Providers[0]
	switch {
	case first.AESGCM != nil:
		first.AESGCM.Keys = first.AESGCM.Keys[:1]
	case first.AESCBC != nil:
		first.AESCBC.Keys = first.AESCBC.Keys[:1]
	case first.Secretbox != nil:
		first.Secretbox.Keys = first.Secretbox.Keys[:1]
	}
	e.secrets.Providers = []apiserverv1.ProviderConfiguration{first, {Identity: &apiserverv1.IdentityConfiguration{}}}
}
