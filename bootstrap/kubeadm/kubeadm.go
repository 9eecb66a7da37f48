// Package kubeadm has the objects that `kubeadm init` makes and `kubeadm join` needs.
//
// [Config.Objects] lists them. A new cluster contains them at birth; [Maintainer] makes them in
// any other cluster, and lets what depends on the server follow it. The DESIGN.md of package
// bootstrap says who owns what.
package kubeadm

import (
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/v1beta4"
	"k8s.io/kubernetes/cmd/kubeadm/app/componentconfigs"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// Component is the name of upstream's program. The managers of the objects' fields have it.
const Component = "kubeadm"

// Annotations of Karve's own.
const (
	// MadeAnnotation, on the Namespace kube-system, records that the objects were made. Karve
	// does not make a role or binding again that an administrator has deleted since. Without
	// the annotation, the next start makes everything that is missing.
	MadeAnnotation = "bootstrap.karve/kubeadm-objects"
	// AutoUpdateAnnotation, with the value "false" on one of the ConfigMaps, makes Karve leave
	// that ConfigMap as it is.
	AutoUpdateAnnotation = "bootstrap.karve/autoupdate"
)

// generation is the value of MadeAnnotation: the generation of the list of objects. A release
// that adds objects to the list raises it.
const generation = 1

// Names that kubeadm does not export, or only in packages that link much more.
const (
	clusterInfoRole   = "kubeadm:bootstrap-signer-clusterinfo"
	kubeadmConfigRole = "kubeadm:nodes-kubeadm-config"
	anonymous         = "system:anonymous"
)

// Config is what the objects depend on.
type Config struct {
	// Server is the URL at which nodes reach the API server.
	Server string
	// Bundle, in PEM, has the authorities that a node trusts: for the API server's certificate,
	// and for its client certificate at the kubelet.
	Bundle []byte
	// ControlPlaneEndpoint is the host and port of --control-plane-endpoint; empty without it.
	ControlPlaneEndpoint string
	// KubernetesVersion is the version of the control plane, such as v1.37.2.
	KubernetesVersion string
	// ClusterDomain is the DNS domain of the cluster.
	ClusterDomain string
	// ServiceRange and PodRange are CIDRs, or two separated by a comma. PodRange may be empty.
	ServiceRange, PodRange string
	// PodRangeChosen says that PodRange is a default. It does not replace what is there.
	PodRangeChosen bool
}

// Objects returns the objects, in version v1, in an order in which they can be created.
//
// kubeadm's binding of kubeadm:cluster-admins to cluster-admin is not one of them: no node needs
// it, and an upgrade would make administrators that nobody has asked for. [KubeletClientBinding] is in every cluster.
func (c Config) Objects() ([]runtime.Object, error) {
	info, err := c.clusterInfo()
	if err != nil {
		return nil, err
	}
	kubeadm, err := c.kubeadmConfig()
	if err != nil {
		return nil, err
	}
	kubelet, err := c.kubeletConfig(nil)
	if err != nil {
		return nil, err
	}
	tokens, nodes := Group(constants.NodeBootstrapTokenAuthGroup), Group(constants.NodesGroup)
	getNodes := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: constants.GetNodesClusterRoleName},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"}}},
	}
	return []runtime.Object{
		// What a node discovers, and reads when it joins. Everybody may read cluster-info.
		info,
		kubeadm,
		kubelet,
		Reader(metav1.NamespacePublic, clusterInfoRole, info.Name),
		Readers(metav1.NamespacePublic, clusterInfoRole, rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: anonymous}),
		Reader(metav1.NamespaceSystem, kubeadmConfigRole, kubeadm.Name),
		Readers(metav1.NamespaceSystem, kubeadmConfigRole, tokens, nodes),
		Reader(metav1.NamespaceSystem, constants.KubeletBaseConfigMapRole, kubelet.Name),
		Readers(metav1.NamespaceSystem, constants.KubeletBaseConfigMapRole, nodes, tokens),
		// A bootstrap token may look whether the name of its node is taken, and ask for a
		// certificate, which is approved. A node may renew its own.
		getNodes,
		bind(constants.GetNodesClusterRoleName, getNodes.Name, tokens),
		bind(constants.NodeKubeletBootstrap, constants.NodeBootstrapperClusterRoleName, tokens),
		bind(constants.NodeAutoApproveBootstrapClusterRoleBinding, constants.CSRAutoApprovalClusterRoleName, tokens),
		bind(constants.NodeAutoApproveCertificateRotationClusterRoleBinding, constants.NodeSelfCSRAutoApprovalClusterRoleName, nodes),
	}, nil
}

// KubeletClientBinding lets the API server use the API of kubelets, which ask it what a client may do. kubeadm makes
// this binding, and so does each of Karve's clusters (bootstrap.Config.ReplaceHooks), since the certificate has no group.
func KubeletClientBinding() *rbacv1.ClusterRoleBinding {
	return bind(constants.KubeletAPIAdminClusterRoleBindingName, constants.KubeletAPIAdminClusterRoleName,
		rbacv1.Subject{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: constants.APIServerKubeletClientCertCommonName})
}

// MarkMade records on the Namespace kube-system that the objects were made.
func MarkMade(system *corev1.Namespace) {
	metav1.SetMetaDataAnnotation(&system.ObjectMeta, MadeAnnotation, fmt.Sprint(generation))
}

// Group is a group of users as the subject of a binding.
func Group(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: name}
}

// Reader returns a Role that may get one ConfigMap.
func Reader(namespace, name, configMap string) *rbacv1.Role {
	return &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{configMap}}},
	}
}

// Readers binds subjects to the Role of the same name.
func Readers(namespace, name string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   subjects,
	}
}

func bind(name, clusterRole string, subject rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{subject},
	}
}

func configMap(namespace, name, key string, value []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{key: string(value)}}
}

// clusterInfo is the kubeconfig without a user that a node discovers.
func (c Config) clusterInfo() (*corev1.ConfigMap, error) {
	text, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{
		"": {Server: c.Server, CertificateAuthorityData: c.Bundle},
	}})
	if err != nil {
		return nil, fmt.Errorf("make ConfigMap %s: %w", bootstrapapi.ConfigMapClusterInfo, err)
	}
	return configMap(metav1.NamespacePublic, bootstrapapi.ConfigMapClusterInfo, bootstrapapi.KubeConfigKey, text), nil
}

// kubeadmConfig is kubeadm's ClusterConfiguration, with kubeadm's defaults.
func (c Config) kubeadmConfig() (*corev1.ConfigMap, error) {
	config := &v1beta4.ClusterConfiguration{
		TypeMeta:             metav1.TypeMeta{APIVersion: v1beta4.SchemeGroupVersion.String(), Kind: constants.ClusterConfigurationKind},
		KubernetesVersion:    c.KubernetesVersion,
		ControlPlaneEndpoint: c.ControlPlaneEndpoint,
		Networking:           v1beta4.Networking{ServiceSubnet: c.ServiceRange, PodSubnet: c.PodRange, DNSDomain: c.ClusterDomain},
	}
	v1beta4.SetObjectDefaults_ClusterConfiguration(config)
	text, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("make ConfigMap %s: %w", constants.KubeadmConfigConfigMap, err)
	}
	return configMap(metav1.NamespaceSystem, constants.KubeadmConfigConfigMap, constants.ClusterConfigurationConfigMapKey, text), nil
}

// kubeletConfig is the configuration of kubelets, with kubeadm's defaults and its signature. A
// kubelet of the previous minor version reads it too: it has no field of this version only.
//
// dns are the addresses of the DNS Service. Without any, the list is there and empty: kubeadm
// would fill in an address for a list that is not there, and Pods would ask a Service that does
// not exist. A kubelet without an address gives Pods the name servers of its machine.
func (c Config) kubeletConfig(dns []string) (*corev1.ConfigMap, error) {
	config := kubeletconfig.KubeletConfiguration{
		TypeMeta:      metav1.TypeMeta{APIVersion: kubeletconfig.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		StaticPodPath: v1beta4.DefaultManifestsDir,
		ClusterDomain: c.ClusterDomain,
		Authentication: kubeletconfig.KubeletAuthentication{
			X509:      kubeletconfig.KubeletX509Authentication{ClientCAFile: path.Join(v1beta4.DefaultCertificatesDir, constants.CACertName)},
			Webhook:   kubeletconfig.KubeletWebhookAuthentication{Enabled: ptr.To(true)},
			Anonymous: kubeletconfig.KubeletAnonymousAuthentication{Enabled: ptr.To(false)},
		},
		Authorization:      kubeletconfig.KubeletAuthorization{Mode: kubeletconfig.KubeletAuthorizationModeWebhook},
		HealthzBindAddress: "127.0.0.1",
		HealthzPort:        ptr.To[int32](constants.KubeletHealthzPort),
		RotateCertificates: true,
		CgroupDriver:       constants.CgroupDriverSystemd,
	}
	text, err := yaml.Marshal(config)
	if err == nil {
		text, err = withClusterDNS(text, dns)
	}
	if err != nil {
		return nil, fmt.Errorf("make ConfigMap %s: %w", constants.KubeletBaseConfigurationConfigMap, err)
	}
	cm := configMap(metav1.NamespaceSystem, constants.KubeletBaseConfigurationConfigMap, constants.KubeletBaseConfigurationConfigMapKey, text)
	componentconfigs.SignConfigMap(cm)
	return cm, nil
}

// withClusterDNS returns a kubelet's configuration with the addresses, or with an empty list.
func withClusterDNS(config []byte, dns []string) ([]byte, error) {
	var fields map[string]any
	if err := yaml.Unmarshal(config, &fields); err != nil {
		return nil, err
	}
	fields["clusterDNS"] = append([]string{}, dns...)
	return yaml.Marshal(fields)
}
