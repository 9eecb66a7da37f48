package server_test

import (
	"bytes"
	"cmp"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	bootstraptokenv1 "k8s.io/kubernetes/cmd/kubeadm/app/apis/bootstraptoken/v1"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/v1beta4"
	"k8s.io/kubernetes/cmd/kubeadm/app/componentconfigs"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	discovery "k8s.io/kubernetes/cmd/kubeadm/app/discovery/token"
	clusterinfophase "k8s.io/kubernetes/cmd/kubeadm/app/phases/bootstraptoken/clusterinfo"
	tokenphase "k8s.io/kubernetes/cmd/kubeadm/app/phases/bootstraptoken/node"
	kubeletphase "k8s.io/kubernetes/cmd/kubeadm/app/phases/kubelet"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/uploadconfig"
	configutil "k8s.io/kubernetes/cmd/kubeadm/app/util/config"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"
	"sigs.k8s.io/yaml"

	"github.com/karve-k8s/karve/bootstrap/kubeadm"
	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
)

// A new cluster has the objects that kubeadm's own phases make for nodes, with the same content.
func TestObjectsEqualKubeadms(t *testing.T) {
	for name, configure := range map[string]func(*server.Config){
		"by default": func(c *server.Config) { c.AdvertiseAddress = "198.51.100.7" },
		"with other networks and an endpoint": func(c *server.Config) {
			c.ServiceClusterIPRange, c.ClusterCIDR, c.ClusterDomain = "10.97.0.0/16,fd00:10:97::/112", "10.245.0.0/16,fd00:10:245::/56", "example.internal"
			c.ControlPlaneEndpoint = "lb.example.org:7443"
		},
	} {
		t.Run(name, func(t *testing.T) {
			var config server.Config
			configure(&config)
			dns, err := constants.GetDNSIP(cmp.Or(config.ServiceClusterIPRange, server.DefaultServiceClusterIPRange))
			fatal(t, err)
			var bundle []byte
			mine := t.TempDir()
			got := contents(t, mine, configure, func(c *cluster) {
				bundle = clusterInfo(t, c).CertificateAuthorityData
				// While there is no Service for DNS, kubelets get no address for it. kubeadm
				// always writes an address.
				if got := kubeletDNS(t, c); got == nil || len(got) != 0 {
					t.Errorf("clusterDNS in kubelet-config: got %#v, want an empty list, which kubeadm does not fill in", got)
				}
				change(t, c.CoreV1().ConfigMaps("kube-system"), "kubelet-config", func(cm *corev1.ConfigMap) {
					cm.Data["kubelet"] = strings.Replace(cm.Data["kubelet"], "clusterDNS: []", "clusterDNS:\n- "+dns.String(), 1)
					componentconfigs.SignConfigMap(cm)
				})
			})
			var without map[string]map[string]any
			theirs := t.TempDir()
			copyKeys(t, filepath.Join(theirs, "certs"), filepath.Join(mine, "certs"))
			all := contents(t, theirs, func(c *server.Config) { configure(c); c.NoKubeadmObjects = true }, func(c *cluster) {
				without = c.still(t)
				runKubeadmsPhases(t, c, config, bundle)
			})

			want := map[string]map[string]any{}
			for name, o := range all {
				if without[name] == nil {
					want[name] = o
				}
			}
			if len(want) < 14 {
				t.Errorf("kubeadm made only %d objects: %v", len(want), slices.Sorted(maps.Keys(want)))
			}
			for name := range got {
				if without[name] != nil {
					delete(got, name)
				}
			}
			for _, d := range difference(got, want) {
				t.Error(d)
			}
		})
	}
}

// contents starts a control plane, lets do change it, and returns all objects without the
// managers of fields.
func contents(t *testing.T, dir string, configure func(*server.Config), do func(*cluster)) map[string]map[string]any {
	t.Helper()
	c := up(t, dir, configure)
	defer c.down(t)
	do(c)
	all := c.still(t)
	for _, o := range all {
		if metadata, ok := o["metadata"].(map[string]any); ok {
			delete(metadata, "managedFields")
		}
	}
	return all
}

// runKubeadmsPhases does to a cluster what `kubeadm init` does once the control plane runs, for
// nodes to join.
func runKubeadmsPhases(t *testing.T, c *cluster, config server.Config, bundle []byte) {
	t.Helper()
	cluster := &v1beta4.ClusterConfiguration{
		KubernetesVersion: version.Kubernetes, ControlPlaneEndpoint: config.ControlPlaneEndpoint,
		Networking: v1beta4.Networking{
			ServiceSubnet: config.ServiceClusterIPRange, PodSubnet: cmp.Or(config.ClusterCIDR, server.DefaultClusterCIDR), DNSDomain: config.ClusterDomain,
		},
	}
	full, err := configutil.DefaultedInitConfiguration(&v1beta4.InitConfiguration{
		LocalAPIEndpoint: v1beta4.APIEndpoint{AdvertiseAddress: "192.0.2.1"},
		BootstrapTokens:  []bootstraptokenv1.BootstrapToken{configutil.PlaceholderToken},
		NodeRegistration: v1beta4.NodeRegistrationOptions{CRISocket: "unix:///run/containerd/containerd.sock", Name: "node"},
	}, cluster, configutil.LoadOrDefaultConfigurationOptions{SkipCRIDetect: true})
	fatal(t, err)
	kubeconfig, err := clientcmd.LoadFromFile(c.Kubeconfig)
	fatal(t, err)
	for _, cluster := range kubeconfig.Clusters {
		cluster.CertificateAuthorityData = bundle
		certs.SetServer(cluster, "https://"+cmp.Or(config.ControlPlaneEndpoint, net.JoinHostPort(config.AdvertiseAddress, c.port())))
	}
	fatal(t, uploadconfig.UploadConfiguration(full, c))
	fatal(t, kubeletphase.CreateConfigMap(&full.ClusterConfiguration, c))
	fatal(t, tokenphase.AllowBootstrapTokensToGetNodes(c))
	fatal(t, tokenphase.AllowBootstrapTokensToPostCSRs(c))
	fatal(t, tokenphase.AutoApproveNodeBootstrapTokens(c))
	fatal(t, tokenphase.AutoApproveNodeCertificateRotation(c))
	fatal(t, tokenphase.AllowAPIServerToAccessKubeletAPI(c))
	fatal(t, clusterinfophase.CreateBootstrapConfigMapIfNotExists(c, kubeconfig))
	fatal(t, clusterinfophase.CreateClusterInfoRBACRules(c))
}

// port returns the port of the secure listener.
func (c *cluster) port() string { return c.URL[strings.LastIndex(c.URL, ":")+1:] }

// clusterInfo returns the cluster that a node discovers.
func clusterInfo(t *testing.T, c *cluster) *clientcmdapi.Cluster {
	t.Helper()
	info, err := c.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
	fatal(t, err)
	config, err := clientcmd.Load([]byte(info.Data["kubeconfig"]))
	fatal(t, err)
	if config.Clusters[""] == nil {
		t.Fatalf("cluster-info has no cluster without a name:\n%s", info.Data["kubeconfig"])
	}
	return config.Clusters[""]
}

// kubeletDNS returns the addresses of clusterDNS in kubelet-config; nil if it has none.
func kubeletDNS(t *testing.T, c *cluster) []string {
	t.Helper()
	cm, err := c.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kubelet-config", metav1.GetOptions{})
	fatal(t, err)
	var config kubeletconfig.KubeletConfiguration
	fatal(t, yaml.UnmarshalStrict([]byte(cm.Data["kubelet"]), &config))
	if !componentconfigs.VerifyConfigMapSignature(cm) {
		t.Error("kubeadm takes kubelet-config for edited: its signature is another")
	}
	return config.ClusterDNS
}

// What `kubeadm join` does before it starts the kubelet, by kubeadm's own code.
func TestJoinsByKubeadmsCode(t *testing.T) {
	c := start(t, nil)
	const token = "abcdef.0123456789abcdef"
	create(t, c.CoreV1().Secrets("kube-system"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
		},
	})
	authorities, err := certutil.ParseCertsPEM(c.readFile(t, "certs/server-ca.crt"))
	fatal(t, err)

	// Discovery, with the pin of the server's authority, and with a wrong one.
	discover := func(pin string) (*clientcmdapi.Config, error) {
		return discovery.RetrieveValidatedConfigInfo(nil, &kubeadmapi.Discovery{BootstrapToken: &kubeadmapi.BootstrapTokenDiscovery{
			Token: token, APIServerEndpoint: net.JoinHostPort("127.0.0.1", c.port()), CACertHashes: []string{pin},
		}}, time.Minute)
	}
	found, err := discover(pubkeypin.Hash(authorities[0]))
	fatal(t, err)
	if _, err := discover("sha256:" + strings.Repeat("0", 64)); err == nil {
		t.Error("discovery with a wrong pin: no error")
	}
	info := found.Clusters[""]
	// kubeadm writes these authorities to the kubelet's clientCAFile, too.
	if want := append(c.readFile(t, "certs/server-ca.crt"), c.readFile(t, "certs/client-ca.crt")...); !bytes.Equal(info.CertificateAuthorityData, want) {
		t.Errorf("authorities in cluster-info: got\n%s\nwant server-ca and client-ca:\n%s", info.CertificateAuthorityData, want)
	}
	if host, _, _ := net.SplitHostPort(strings.TrimPrefix(info.Server, "https://")); net.ParseIP(host) == nil {
		t.Errorf("server in cluster-info: %s", info.Server)
	}

	// The configuration, as the token's user.
	as := func(config *rest.Config) *kubernetes.Clientset {
		config.Host, config.TLSClientConfig.CAData, config.TLSClientConfig.CAFile = c.URL, info.CertificateAuthorityData, ""
		return clientFor(t, config)
	}
	bootstrapping := as(&rest.Config{BearerToken: token})
	config, err := configutil.FetchInitConfigurationFromCluster(bootstrapping, nil, "test", false, false, true, false)
	fatal(t, err)
	if config.KubernetesVersion != version.Kubernetes {
		t.Errorf("kubernetesVersion: got %s, want %s", config.KubernetesVersion, version.Kubernetes)
	}
	kubelet := config.ComponentConfigs[componentconfigs.KubeletGroup]
	if kubelet.IsUserSupplied() {
		t.Error("kubeadm takes kubelet-config for a user's")
	}
	if dns := kubelet.Get().(*kubeletconfig.KubeletConfiguration).ClusterDNS; len(dns) != 0 {
		t.Errorf("clusterDNS of the joined kubelet: got %v, want none, since there is no such Service", dns)
	}
	if _, err := bootstrapping.CoreV1().Nodes().Get(t.Context(), "new", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get a node that does not exist: got %v, want not found", err)
	}
	if _, err := bootstrapping.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list nodes with a bootstrap token: got %v, want forbidden", err)
	}

	// The kubelet's certificate is approved and issued, and is a node's.
	subject := pkix.Name{CommonName: "system:node:new", Organization: []string{"system:nodes"}}
	key := requestCertificate(t, bootstrapping, "new", "kubernetes.io/kube-apiserver-client-kubelet", subject)
	node := rest.Config{}
	node.CertData, node.KeyData = c.issued(t, "new"), key
	joined := as(&node)
	if name, groups := whoami(t, joined); name != "system:node:new" || !slices.Contains(groups, "system:nodes") {
		t.Errorf("the node is %s of %v", name, groups)
	}
	if _, err := joined.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kubelet-config", metav1.GetOptions{}); err != nil {
		t.Errorf("kubelet-config, for an upgrade of the node: %v", err)
	}
	// It may ask for the next one.
	requestCertificate(t, joined, "next", "kubernetes.io/kube-apiserver-client-kubelet", subject)
	c.issued(t, "next")
}

// A policy of the cluster that refuses some of the objects keeps neither the others away, nor the
// start waiting. When it no longer refuses, the rest is made. If cluster-info was deleted, a reset to a
// snapshot of a time when the server had another address brings it back, and it follows this server.
func TestJoiningObjectsThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	const policy = "no-bindings-of-tokens"
	once(t, dir, func(c *server.Config) { c.NoKubeadmObjects = true }, func(c *cluster) {
		refuse(t, c, policy, "clusterrolebindings", "!object.metadata.name.startsWith('kubeadm:get-nodes')", "not here")
	})

	c := up(t, dir, nil)
	defer c.down(t)
	var get metav1.GetOptions
	if want := "ClusterRoleBinding kubeadm:get-nodes"; !strings.Contains(c.log.String(), want) || !strings.Contains(c.log.String(), "not here") {
		t.Errorf("want a warning with %q and the policy's reason in the log:\n%s", want, c.log)
	}
	for _, name := range []string{"kubeadm-config", "kubelet-config"} {
		if _, err := c.CoreV1().ConfigMaps("kube-system").Get(t.Context(), name, get); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"kubeadm:kubelet-bootstrap", "kubeadm:apiserver-kubelet-client"} {
		if _, err := c.RbacV1().ClusterRoleBindings().Get(t.Context(), name, get); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Get(t.Context(), "kubeadm:get-nodes", get); !apierrors.IsNotFound(err) {
		t.Errorf("the refused binding: got %v, want not found", err)
	}
	fatal(t, c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(t.Context(), policy, metav1.DeleteOptions{}))
	eventually.Nil(t, "the binding, once it is allowed", func() error {
		_, err := c.RbacV1().ClusterRoleBindings().Get(t.Context(), "kubeadm:get-nodes", get)
		return err
	})

	mine := clusterInfo(t, c).Server
	const another = "https://192.0.2.77:6443"
	change(t, c.CoreV1().ConfigMaps("kube-public"), "cluster-info", func(cm *corev1.ConfigMap) {
		cm.Data["kubeconfig"] = strings.ReplaceAll(cm.Data["kubeconfig"], mine, another)
	})
	asked := control.New(c.dir)
	defer asked.Close()
	var snapshot bytes.Buffer
	fatal(t, asked.Snapshot(t.Context(), &snapshot))
	fatal(t, c.CoreV1().ConfigMaps("kube-public").Delete(t.Context(), "cluster-info", metav1.DeleteOptions{}))
	if result, err := asked.Reset(t.Context(), &snapshot, control.Settle); err != nil || result.Missing != 1 {
		t.Fatalf("reset: %+v, %v; want one object again", result, err)
	}
	eventually.Nil(t, "cluster-info has this server's address after the reset", func() error {
		if got := clusterInfo(t, c).Server; got != mine {
			return fmt.Errorf("got %s", got)
		}
		return nil
	})
}

// What tells others this server's address follows it, with and without leases of other servers.
func TestObjectsFollowTheAddress(t *testing.T) {
	var at atomic.Pointer[net.IP] // nil: no network yet
	machine := server.WithMachine(func() ([]net.IP, net.IP) {
		if ip := at.Load(); ip != nil {
			return []net.IP{*ip}, *ip
		}
		return nil, nil
	})
	alone := start(t, machine)
	leasing := start(t, func(config *server.Config) {
		machine(config)
		config.NoControllers, config.DisableScheduler = true, true // one server in a process runs them
		config.Upstream = []string{deviations.SingleServer.Name}
	})
	t.Cleanup(func() { alone.cancel(); leasing.cancel() }) // cancels both before the cleanup of either waits for its end
	for _, now := range []string{"192.0.2.1", "192.0.2.77"} {
		ip := net.ParseIP(now)
		at.Store(&ip)
		for _, c := range []*cluster{alone, leasing} {
			eventually.Nil(t, "the objects follow", func() error {
				slice, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if url := clusterInfo(t, c).Server; url != "https://"+now+":"+c.port() || len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != now {
					return fmt.Errorf("alone: %v, want %s: cluster-info has %s, the endpoints are %v", c == alone, now, url, slice.Endpoints)
				}
				return nil
			})
		}
	}
}

// A cluster without the objects, as of an earlier release, gets them at the next start. From then
// on, what depends on the server follows it, and everything else is the administrator's.
func TestJoiningObjectsOfAnExistingCluster(t *testing.T) {
	dir := t.TempDir()
	exists := func(want bool, what string, err error) {
		t.Helper()
		if (err == nil) != want || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("%s: exists is to be %v; get: %v", what, want, err)
		}
	}
	system := func(c *cluster, name string) *corev1.ConfigMap {
		t.Helper()
		cm, err := c.CoreV1().ConfigMaps("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		fatal(t, err)
		return cm
	}
	const approval, anonymous = "kubeadm:node-autoapprove-bootstrap", "kubeadm:bootstrap-signer-clusterinfo"
	var bundle []byte
	var get metav1.GetOptions
	var remove metav1.DeleteOptions

	once(t, dir, func(c *server.Config) { c.NoKubeadmObjects = true }, func(c *cluster) {
		_, err := c.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", get)
		exists(false, "cluster-info with --no-kubeadm-objects", err)
		_, err = c.RbacV1().ClusterRoleBindings().Get(t.Context(), kubeletClientBinding, get)
		exists(true, "the API server's rights on kubelets with --no-kubeadm-objects", err)
	})
	log := once(t, dir, func(c *server.Config) { c.AdvertiseAddress = "198.51.100.7" }, func(c *cluster) {
		if got, want := clusterInfo(t, c).Server, "https://198.51.100.7:"+c.port(); got != want {
			t.Errorf("server in cluster-info: got %s, want %s", got, want)
		}
		// An earlier release, or somebody, published one of the authorities only.
		bundle = clusterInfo(t, c).CertificateAuthorityData
		stale := base64.StdEncoding.EncodeToString(c.readFile(t, "certs/server-ca.crt"))
		change(t, c.CoreV1().ConfigMaps("kube-public"), "cluster-info", func(cm *corev1.ConfigMap) {
			cm.Data["kubeconfig"] = strings.ReplaceAll(cm.Data["kubeconfig"], base64.StdEncoding.EncodeToString(bundle), stale)
		})
		if bytes.Equal(clusterInfo(t, c).CertificateAuthorityData, bundle) {
			t.Error("the test changed nothing in cluster-info")
		}
		// The administrator hardens the cluster, and changes what belongs to him.
		fatal(t, c.RbacV1().ClusterRoleBindings().Delete(t.Context(), approval, remove))
		fatal(t, c.RbacV1().RoleBindings("kube-public").Delete(t.Context(), anonymous, remove))
		change(t, c.CoreV1().ConfigMaps("kube-system"), "kubelet-config", func(cm *corev1.ConfigMap) { cm.Data["kubelet"] += "maxPods: 7\n" })
		change(t, c.CoreV1().ConfigMaps("kube-system"), "kubeadm-config", func(cm *corev1.ConfigMap) {
			for _, r := range [][2]string{{version.Kubernetes, "v1.30.0"}, {"registry.k8s.io", "registry.example"}, {"cluster.local", "old.example"}} {
				if !strings.Contains(cm.Data["ClusterConfiguration"], r[0]) {
					t.Errorf("kubeadm-config has no %s:\n%s", r[0], cm.Data["ClusterConfiguration"])
				}
				cm.Data["ClusterConfiguration"] = strings.ReplaceAll(cm.Data["ClusterConfiguration"], r[0], r[1])
			}
		})
		change(t, c.RbacV1().Roles("kube-system"), "kubeadm:kubelet-config", func(r *rbacv1.Role) { r.Rules[0].Verbs = append(r.Rules[0].Verbs, "watch") })
	})
	if !strings.Contains(log, "ConfigMap kube-public/cluster-info") {
		t.Errorf("nothing says that the objects were made; log:\n%s", log)
	}

	once(t, dir, func(c *server.Config) { c.ControlPlaneEndpoint = "lb.example.org:7443" }, func(c *cluster) {
		if got, want := clusterInfo(t, c).Server, "https://lb.example.org:7443"; got != want {
			t.Errorf("server in cluster-info: got %s, want %s", got, want)
		}
		if !bytes.Equal(clusterInfo(t, c).CertificateAuthorityData, bundle) {
			t.Error("the authorities in cluster-info do not follow the server")
		}
		serving, err := certutil.ParseCertsPEM(c.readFile(t, "certs/serving.crt"))
		fatal(t, err)
		if err := serving[0].VerifyHostname("lb.example.org"); err != nil {
			t.Errorf("the serving certificate, with --control-plane-endpoint: %v", err)
		}
		_, err = c.RbacV1().ClusterRoleBindings().Get(t.Context(), approval, get)
		exists(false, "the binding that an administrator deleted", err)
		_, err = c.RbacV1().RoleBindings("kube-public").Get(t.Context(), anonymous, get)
		exists(false, "anonymous access that an administrator removed", err)
		if kubelet := system(c, "kubelet-config").Data["kubelet"]; !strings.Contains(kubelet, "maxPods: 7") {
			t.Errorf("kubelet-config lost the administrator's line:\n%s", kubelet)
		}
		config := system(c, "kubeadm-config").Data["ClusterConfiguration"]
		for _, want := range []string{"kubernetesVersion: " + version.Kubernetes, "imageRepository: registry.example", "dnsDomain: cluster.local", "controlPlaneEndpoint: lb.example.org:7443"} {
			if !strings.Contains(config, want) {
				t.Errorf("kubeadm-config has no %q:\n%s", want, config)
			}
		}
		role, err := c.RbacV1().Roles("kube-system").Get(t.Context(), "kubeadm:kubelet-config", get)
		fatal(t, err)
		if len(role.Rules[0].Verbs) != 2 {
			t.Errorf("the administrator's Role: %v", role.Rules)
		}
		// What the administrator excludes, or makes unreadable, stays.
		change(t, c.CoreV1().ConfigMaps("kube-public"), "cluster-info", func(cm *corev1.ConfigMap) {
			metav1.SetMetaDataAnnotation(&cm.ObjectMeta, kubeadm.AutoUpdateAnnotation, "false")
		})
		change(t, c.CoreV1().ConfigMaps("kube-system"), "kubeadm-config", func(cm *corev1.ConfigMap) { cm.Data["ClusterConfiguration"] = "none" })
		fatal(t, c.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), "kubelet-config", remove))
	})

	log = once(t, dir, nil, func(c *cluster) {
		if got, want := clusterInfo(t, c).Server, "https://lb.example.org:7443"; got != want {
			t.Errorf("server in cluster-info that is excluded from updates: got %s, want %s", got, want)
		}
		if got := system(c, "kubeadm-config").Data["ClusterConfiguration"]; got != "none" {
			t.Errorf("kubeadm-config that cannot be read: got %q", got)
		}
		if kubelet := system(c, "kubelet-config").Data["kubelet"]; strings.Contains(kubelet, "maxPods") {
			t.Errorf("kubelet-config, deleted so that it is made again:\n%s", kubelet)
		}
		_, err := c.RbacV1().ClusterRoleBindings().Get(t.Context(), approval, get)
		exists(false, "the binding that an administrator deleted", err)
		// The administrator wants everything back.
		change(t, c.CoreV1().Namespaces(), "kube-system", func(ns *corev1.Namespace) { delete(ns.Annotations, kubeadm.MadeAnnotation) })
		fatal(t, c.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), "kubeadm-config", remove))
		// CoreDNS, applied by whatever means, is what kubelets are pointed to.
		create(t, c.CoreV1().Services("kube-system"), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "kube-dns"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.53", Ports: []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}}},
		})
	})
	if !strings.Contains(log, "kube-system/kubeadm-config cannot be read") {
		t.Errorf("nothing names the ConfigMap that cannot be read; log:\n%s", log)
	}

	once(t, dir, nil, func(c *cluster) {
		_, err := c.RbacV1().ClusterRoleBindings().Get(t.Context(), approval, get)
		exists(true, "the binding, which the administrator wants back", err)
		if config := system(c, "kubeadm-config").Data["ClusterConfiguration"]; !strings.Contains(config, "imageRepository: registry.k8s.io") {
			t.Errorf("kubeadm-config made again:\n%s", config)
		}
		if got := kubeletDNS(t, c); !slices.Equal(got, []string{"10.96.0.53"}) {
			t.Errorf("clusterDNS: got %v, want the address of the Service", got)
		}
	})
}
