package apiserver

import (
	"strings"
	"testing"
)

func TestCheckEncryption(t *testing.T) {
	const good = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
`
	const kms = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - kms: {apiVersion: v2, name: vault, endpoint: "unix:///nowhere/kms.sock", timeout: 3s}
`
	for _, text := range []string{good, kms} {
		if err := CheckEncryption([]byte(text)); err != nil {
			t.Error(err)
		}
	}
	for name, text := range map[string]string{
		"no YAML":   "s3cret: [",
		"no kind":   "s3cret: s3cret",
		"empty":     "",
		"field":     good + "more: s3cret\n",
		"other":     "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n",
		"short key": strings.ReplaceAll(good, "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", "czNjcmV0"),
	} {
		if err := CheckEncryption([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		} else if text := err.Error(); strings.Contains(text, "s3cret") || strings.Contains(text, "czNj") || strings.Contains(text, "\n") {
			t.Errorf("%s: the error has a secret in it, or several lines: %v", name, err)
		}
	}
}

func TestStoragePrefix(t *testing.T) {
	for value, want := range map[string]string{"": "/registry/", "/": "/", "/shared": "/shared/", "shared/": "/shared/"} {
		if got := StoragePrefix([]string{"etcd-prefix=" + value}); got != want {
			t.Errorf("%q: got %q, want %q", value, got, want)
		}
	}
}
