package apiserver

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiserverapi "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
)

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
