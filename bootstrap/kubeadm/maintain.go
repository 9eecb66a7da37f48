package kubeadm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/v1beta4"
	"k8s.io/kubernetes/cmd/kubeadm/app/componentconfigs"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/internal/clusterinfo"
	"github.com/karve-k8s/karve/internal/ensure"
)

// dnsService is the Service that CoreDNS has in every cluster, for reasons of history.
const dnsService = "kube-dns"

// cached lets the API server answer from its cache. An update of an older object than the stored
// one is a conflict.
var cached = metav1.GetOptions{ResourceVersion: "0"}

// Maintainer keeps the objects of a running cluster.
type Maintainer struct {
	Config Config
	Client kubernetes.Interface
	// Consistent makes the API server read the objects from the datastore, and not from its cache,
	// which may be behind a reset.
	Consistent bool
}

func (m *Maintainer) get() metav1.GetOptions {
	if m.Consistent {
		return metav1.GetOptions{}
	}
	return cached
}

// Changes are what [Maintainer.Maintain] did.
type Changes struct {
	Made    []string // objects that were missing, as Kind namespace/name
	Changed []string // ConfigMaps that follow the server
	// Unreadable has an error for each ConfigMap that should follow the server, and that an
	// administrator changed so that it cannot be read. It stays as it is.
	Unreadable []error
}

// requestLimit ends what an API server does not answer. API servers give up themselves after this time; a
// webhook may take half of it.
const requestLimit = time.Minute

// Maintain makes missing ConfigMaps, and roles and bindings once in the life of a cluster. It lets
// the ConfigMaps follow the server. An object that cannot be made or updated does not keep it from
// the others: the error joins all problems. A second call continues after an error.
func (m *Maintainer) Maintain(ctx context.Context) (done Changes, err error) {
	system, err := m.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, m.get())
	if err != nil {
		return done, err
	}
	// Nodes need the ConfigMaps most.
	var problems []error
	for _, follow := range []func(context.Context, *Changes) error{m.followClusterInfo, m.followKubeadmConfig, m.followKubeletConfig} {
		problems = append(problems, follow(ctx, &done))
	}
	if made, _ := strconv.Atoi(system.Annotations[MadeAnnotation]); made < generation {
		problems = append(problems, m.makeAll(ctx, &done))
	}
	return done, errors.Join(problems...)
}

// makeAll makes the missing objects. If none failed, it records that.
func (m *Maintainer) makeAll(ctx context.Context, done *Changes) error {
	objects, err := m.Config.Objects()
	if err != nil {
		return err
	}
	var problems []error
	for _, o := range objects {
		if _, ok := o.(*corev1.ConfigMap); ok {
			continue // made above, or the reason is known
		}
		limited, cancel := context.WithTimeout(ctx, requestLimit)
		result, err := ensure.Exists(limited, m.Client, o)
		cancel()
		switch {
		case result == ensure.Created:
			done.Made = append(done.Made, nameOf(o))
		case err == nil, NotServed(err):
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			problems = append(problems, fmt.Errorf("%s: %w", nameOf(o), err))
		}
	}
	if len(problems) > 0 {
		return errors.Join(problems...)
	}
	mark := &corev1.Namespace{}
	MarkMade(mark)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": mark.Annotations}})
	if err != nil {
		return err
	}
	_, err = m.Client.CoreV1().Namespaces().Patch(ctx, metav1.NamespaceSystem, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Refused reports whether one of the errors that err joins is an answer that waiting does not change: an
// admission policy, a webhook or the API server's validation forbids an object.
func Refused(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return slices.ContainsFunc(joined.Unwrap(), Refused)
	}
	if inner := errors.Unwrap(err); inner != nil {
		return Refused(inner)
	}
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err)
}

// NotServed reports whether err is the answer for an object whose API group the user has switched off.
func NotServed(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// nameOf returns the kind of an object, with its namespace and name.
func nameOf(o runtime.Object) string {
	kind := reflect.TypeOf(o).Elem().Name()
	accessor, err := meta.Accessor(o)
	if err != nil {
		return kind // none of these objects is without metadata
	}
	return kind + " " + strings.TrimPrefix(accessor.GetNamespace()+"/"+accessor.GetName(), "/")
}

// follow makes a ConfigMap if it is missing, or lets one of its values follow the server. It leaves
// a ConfigMap alone that an administrator excluded from updates, or that change cannot read.
func (m *Maintainer) follow(ctx context.Context, done *Changes, want *corev1.ConfigMap, key string, change func(cm *corev1.ConfigMap) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	var unreadable error
	result, err := ensure.Follows(ctx, m.Client, want, m.get(), func(cm *corev1.ConfigMap) error {
		if unreadable = nil; cm.Annotations[AutoUpdateAnnotation] != "false" {
			unreadable = change(cm)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case unreadable != nil:
		done.Unreadable = append(done.Unreadable, fmt.Errorf("%s cannot be read, so it does not follow this server: %s: %w; correct it, delete it so that it is made again, or annotate it with %s=false",
			nameOf(want), key, unreadable, AutoUpdateAnnotation))
	case result == ensure.Created:
		done.Made = append(done.Made, nameOf(want))
	case result == ensure.Changed:
		done.Changed = append(done.Changed, nameOf(want))
	}
	return nil
}

// followClusterInfo sets the server's address and the authorities.
func (m *Maintainer) followClusterInfo(ctx context.Context, done *Changes) error {
	const key = bootstrapapi.KubeConfigKey
	want, err := m.Config.clusterInfo()
	if err != nil {
		return err
	}
	return m.follow(ctx, done, want, key, func(cm *corev1.ConfigMap) error {
		config, cluster, err := clusterinfo.Parse(cm.Data[key])
		if err != nil {
			return err
		}
		if cluster.Server == m.Config.Server && string(cluster.CertificateAuthorityData) == string(m.Config.Bundle) {
			return nil
		}
		cluster.Server, cluster.CertificateAuthorityData = m.Config.Server, m.Config.Bundle
		text, err := clientcmd.Write(*config)
		if err != nil {
			return err
		}
		cm.Data[key] = string(text)
		return nil
	})
}

// followKubeadmConfig sets the facts about this server that it knows.
func (m *Maintainer) followKubeadmConfig(ctx context.Context, done *Changes) error {
	const key = constants.ClusterConfigurationConfigMapKey
	want, err := m.Config.kubeadmConfig()
	if err != nil {
		return err
	}
	return m.follow(ctx, done, want, key, func(cm *corev1.ConfigMap) error {
		var config map[string]any
		if err := yaml.Unmarshal([]byte(cm.Data[key]), &config); err != nil {
			return err
		}
		if group, _, _ := strings.Cut(fmt.Sprint(config["apiVersion"]), "/"); group != v1beta4.GroupName {
			return fmt.Errorf("apiVersion %v: want %s", config["apiVersion"], v1beta4.SchemeGroupVersion)
		}
		networking, ok := config["networking"].(map[string]any)
		if !ok {
			networking = map[string]any{}
		}
		changed := false
		set := func(in map[string]any, field, value string) {
			if value != "" && in[field] != value {
				in[field], changed = value, true
			}
		}
		set(config, "kubernetesVersion", m.Config.KubernetesVersion)
		set(config, "controlPlaneEndpoint", m.Config.ControlPlaneEndpoint)
		set(networking, "dnsDomain", m.Config.ClusterDomain)
		set(networking, "serviceSubnet", m.Config.ServiceRange)
		if !m.Config.PodRangeChosen || networking["podSubnet"] == nil {
			set(networking, "podSubnet", m.Config.PodRange)
		}
		if !changed {
			return nil
		}
		config["networking"] = networking
		text, err := yaml.Marshal(config)
		if err != nil {
			return err
		}
		cm.Data[key] = string(text)
		return nil
	})
}

// followKubeletConfig makes the configuration again, unless somebody has edited it. Its
// addresses of the DNS Service are those of the Service that exists.
func (m *Maintainer) followKubeletConfig(ctx context.Context, done *Changes) error {
	const key = constants.KubeletBaseConfigurationConfigMapKey
	var dns []string
	service, err := m.Client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, dnsService, m.get())
	if err == nil {
		dns = slices.DeleteFunc(service.Spec.ClusterIPs, func(ip string) bool { return ip == corev1.ClusterIPNone })
	} else if !apierrors.IsNotFound(err) {
		return err
	}
	want, err := m.Config.kubeletConfig(dns)
	if err != nil {
		return err
	}
	return m.follow(ctx, done, want, key, func(cm *corev1.ConfigMap) error {
		if componentconfigs.VerifyConfigMapSignature(cm) && cm.Data[key] != want.Data[key] {
			cm.Data[key] = want.Data[key]
			componentconfigs.SignConfigMap(cm)
		}
		return nil
	})
}

// ErrUnreadable is the error for a kubeadm-config that cannot be read. Maintain reports it, too.
var ErrUnreadable = errors.New("it is no ClusterConfiguration")

// Networking returns what kubeadm-config says about the cluster's network. The server keeps it up to date.
func Networking(ctx context.Context, client kubernetes.Interface) (v1beta4.Networking, error) {
	var config v1beta4.ClusterConfiguration
	cm, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, constants.KubeadmConfigConfigMap, cached)
	if err != nil {
		return config.Networking, err
	}
	const key = constants.ClusterConfigurationConfigMapKey
	if err := yaml.Unmarshal([]byte(cm.Data[key]), &config); err != nil {
		return config.Networking, fmt.Errorf("%s: %s: %w: %w", nameOf(cm), key, ErrUnreadable, err)
	}
	return config.Networking, nil
}
