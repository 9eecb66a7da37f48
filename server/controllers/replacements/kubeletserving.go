package replacements

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/controller/certificates"

	"github.com/karve-k8s/karve/internal/panics"
	"github.com/karve-k8s/karve/internal/quote"
)

// ServingApprover is the name of the approver.
const ServingApprover = "kubelet-serving-approver"

const (
	nodeUserPrefix = "system:node:"
	nodesGroup     = "system:nodes"
	mostNames      = 32 // and addresses of a request: a node writes as many as it likes into it, and into its Node
)

// How long the approver waits before it repeats a request that failed.
const (
	servingRetry            = 100 * time.Millisecond // doubled with each attempt
	servingRetryLimit       = 30 * time.Second
	servingRetriesInSilence = 6
)

// KubeletServing is what the approver of kubelets' serving certificates needs.
type KubeletServing struct {
	// Admin is an administrator's client. Upstream's roles let nobody else approve for this signer.
	Admin *rest.Config
	// Server returns the names and addresses of this API server. No node gets a certificate for one
	// of them. A name may begin with "*.".
	Server func() ([]string, error)
	// Warn logs a request that is not approved.
	Warn func(format string, args ...any)
}

// servingApproverController approves requests for the signer kubernetes.io/kubelet-serving if they
// are of a kubelet, and for names and addresses of its Node only. No controller of upstream's does
// that: which addresses a Node may have is up to the site.
//
// A request that does not match stays as it is, because the Node may change: a kubelet can ask for a
// certificate before it has reported a new address. So a change of a Node's addresses makes the
// controller look again.
type servingApproverController struct {
	client   kubernetes.Interface
	requests certificateslisters.CertificateSigningRequestLister
	nodes    corelisters.NodeLister
	ranges   networkinglisters.ServiceCIDRLister
	slices   discoverylisters.EndpointSliceLister
	synced   []cache.InformerSynced
	queue    workqueue.TypedRateLimitingInterface[string]
	events   record.EventRecorder
	services []netip.Prefix // the configured ranges of Services; ranges has more
	server   func() ([]string, error)
	warn     func(format string, args ...any)

	told map[string]string // why a request is not approved, by its name; for the one worker
}

// NewServingApprover returns the approver. services are the configured ranges of Services.
func NewServingApprover(shared informers.SharedInformerFactory, services []string, o KubeletServing, events record.EventRecorder) (Controller, error) {
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(o.Admin, ServingApprover))
	if err != nil {
		return nil, fmt.Errorf("create client for %s: %w", ServingApprover, err)
	}
	requests := shared.Certificates().V1().CertificateSigningRequests()
	nodes := shared.Core().V1().Nodes()
	ranges := shared.Networking().V1().ServiceCIDRs()
	endpoints := shared.Discovery().V1().EndpointSlices()
	c := &servingApproverController{
		client: client, requests: requests.Lister(), nodes: nodes.Lister(), ranges: ranges.Lister(), slices: endpoints.Lister(),
		events: events, server: o.Server, warn: o.Warn, told: map[string]string{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](servingRetry, servingRetryLimit),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: ServingApprover}),
	}
	for _, text := range services {
		if prefix, err := netip.ParsePrefix(text); err == nil { // controllers.Parse has checked it
			c.services = append(c.services, prefix)
		}
	}
	ofRequests, err := requests.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { c.requested(o.(*certificatesv1.CertificateSigningRequest)) },
		UpdateFunc: func(_, o any) { c.requested(o.(*certificatesv1.CertificateSigningRequest)) },
		DeleteFunc: func(o any) {
			if name, err := cache.DeletionHandlingObjectToName(o); err == nil {
				c.queue.Add(name.Name)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	ofNodes, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { c.nodesChanged() },
		DeleteFunc: func(any) { c.nodesChanged() },
		UpdateFunc: func(old, o any) { // a heartbeat changes nothing here
			if !slices.Equal(old.(*corev1.Node).Status.Addresses, o.(*corev1.Node).Status.Addresses) {
				c.nodesChanged()
			}
		},
	})
	if err != nil {
		return nil, err
	}
	c.synced = []cache.InformerSynced{ofRequests.HasSynced, ofNodes.HasSynced, ranges.Informer().HasSynced, endpoints.Informer().HasSynced}
	return c, nil
}

func (*servingApproverController) Name() string { return ServingApprover }

// pending reports whether a request waits for this controller.
func pending(csr *certificatesv1.CertificateSigningRequest) bool {
	approved, denied := certificates.GetCertApprovalCondition(&csr.Status)
	return csr.Spec.SignerName == certificatesv1.KubeletServingSignerName && !approved && !denied && len(csr.Status.Certificate) == 0
}

func (c *servingApproverController) requested(csr *certificatesv1.CertificateSigningRequest) {
	if pending(csr) {
		c.queue.Add(csr.Name)
	}
}

// nodesChanged looks again at all requests that wait. One may wait because another Node had its
// address.
func (c *servingApproverController) nodesChanged() {
	all, err := c.requests.List(labels.Everything())
	if err != nil {
		return // a lister has no errors
	}
	for _, csr := range all {
		c.requested(csr)
	}
}

// Run approves until ctx ends.
func (c *servingApproverController) Run(ctx context.Context) {
	defer c.queue.ShutDown()
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return
	}
	go func() {
		<-ctx.Done()
		c.queue.ShutDown()
	}()
	for c.next(ctx) {
	}
}

// next approves one request, or waits for one. It returns false at the end.
func (c *servingApproverController) next(ctx context.Context) bool {
	name, end := c.queue.Get()
	if end {
		return false
	}
	defer c.queue.Done(name)
	err := panics.Catch(func() error { return c.sync(ctx, name) })
	if err != nil && ctx.Err() == nil {
		// Somebody else may change the request meanwhile.
		if errors.Is(err, panics.Err) || c.queue.NumRequeues(name) >= servingRetriesInSilence {
			klog.FromContext(ctx).Error(err, "Approval of a kubelet's serving certificate failed", "csr", name)
		}
		c.queue.AddRateLimited(name)
	} else {
		c.queue.Forget(name)
	}
	return true
}

func (c *servingApproverController) sync(ctx context.Context, name string) error {
	csr, err := c.requests.Get(name)
	if apierrors.IsNotFound(err) || err == nil && !pending(csr) {
		delete(c.told, name)
		return nil
	} else if err != nil {
		return err
	}
	known, err := c.known(ctx)
	if err != nil {
		return err
	}
	if why := refuse(csr, known); why != nil {
		if !errors.Is(why, errNotYet) && c.told[name] != why.Error() {
			c.told[name] = why.Error()
			c.warn("CertificateSigningRequest %s of %s is not approved: %v", name, quote.Text(csr.Spec.Username), why)
			c.events.Event(csr, corev1.EventTypeWarning, "NotApproved", why.Error())
		}
		return nil // until a Node changes
	}
	csr = csr.DeepCopy()
	csr.Status.Conditions = append(csr.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
		Reason: "AutoApproved", Message: "Karve approved a kubelet's serving certificate: every name and address in it is the Node's.",
	})
	_, err = c.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, name, csr, metav1.UpdateOptions{})
	return err
}

// errNotYet means that the Node is not there, or has no addresses. A kubelet asks for both at about the same time.
var errNotYet = errors.New("the Node has no addresses yet")

// known is what names and addresses in requests are compared with.
type known struct {
	nodes    []*corev1.Node
	services []netip.Prefix
	server   []string // names and addresses of API servers
	others   []string // those that servers have published
}

// known reads what is compared. Nothing may be approved if a part of it cannot be read.
func (c *servingApproverController) known(ctx context.Context) (k known, err error) {
	if k.nodes, err = c.nodes.List(labels.Everything()); err != nil {
		return k, err
	}
	ranges, err := c.ranges.List(labels.Everything())
	if err != nil {
		return k, err
	}
	k.services = slices.Clone(c.services)
	for _, r := range ranges {
		for _, text := range r.Spec.CIDRs {
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return k, fmt.Errorf("ServiceCIDR %s: %w", r.Name, err)
			}
			k.services = append(k.services, prefix)
		}
	}
	if k.server, err = c.server(); err != nil {
		return k, fmt.Errorf("read the names of the API server: %w", err)
	}
	// A shared datastore may have other servers. They are endpoints of the Service kubernetes, and publish
	// their names.
	if k.others, err = publishedNames(ctx, c.client); err != nil {
		return k, err
	}
	endpoints, err := c.slices.EndpointSlices(metav1.NamespaceDefault).List(labels.Set{discoveryv1.LabelServiceName: "kubernetes"}.AsSelector())
	if err != nil {
		return k, err
	}
	for _, slice := range endpoints {
		for _, e := range slice.Endpoints {
			k.server = append(k.server, e.Addresses...)
		}
	}
	return k, nil
}

// refuse returns why a request must not be approved.
func refuse(csr *certificatesv1.CertificateSigningRequest, known known) error {
	name, ok := strings.CutPrefix(csr.Spec.Username, nodeUserPrefix)
	if !ok || name == "" || !slices.Contains(csr.Spec.Groups, nodesGroup) {
		return fmt.Errorf("its creator is not a kubelet, which is %sNAME in the group %s", nodeUserPrefix, nodesGroup)
	}
	request, err := certificatesapi.ParseCSR(csr.Spec.Request)
	if err != nil {
		return err
	}
	usages := sets.NewString()
	for _, u := range csr.Spec.Usages {
		usages.Insert(string(u))
	}
	if err := certificatesapi.ValidateKubeletServingCSR(request, usages); err != nil {
		return err
	}
	if request.Subject.CommonName != csr.Spec.Username {
		return fmt.Errorf("the common name in it is %s and not its creator's, %s", quote.Text(request.Subject.CommonName), quote.Text(csr.Spec.Username))
	}
	if n := len(request.DNSNames) + len(request.IPAddresses); n > mostNames {
		return fmt.Errorf("it has %d names and addresses, and a kubelet's have %d at most: karve kubectl certificate approve approves it", n, mostNames)
	}
	return known.checkNames(request, name)
}

// reservedNames are those of every API server.
var reservedNames = []string{"localhost", "kubernetes", "kubernetes.default"}

// checkNames returns an error that names everything in a request that is not the Node's, or must not
// be any Node's. Kubelets report their addresses themselves, so what a Node says is not enough:
// certificates of this signer are trusted by the clients of the API server, too.
//
// A kubelet on the server's own machine has the server's addresses, and nothing in the API tells it
// from another one that reports them. So its request is left to an administrator.
func (k known) checkNames(request *x509.CertificateRequest, name string) error {
	own, others := sets.New[string](), map[string]string{}
	found := false
	for _, n := range k.nodes {
		if n.Name != name {
			others[canonical(n.Name)] = "the name of Node " + n.Name
		}
	}
	for _, n := range k.nodes {
		for _, a := range n.Status.Addresses {
			if key := canonical(a.Address); n.Name == name {
				own.Insert(key)
			} else if _, ok := others[key]; !ok {
				others[key] = "an address of Node " + n.Name
			}
		}
		found = found || n.Name == name
	}
	if !found || own.Len() == 0 {
		return fmt.Errorf("%w: %s", errNotYet, name)
	}
	own.Insert(canonical(name))
	var wrong []string
	check := func(text, reserved string) {
		key, text := canonical(text), quote.Text(text)
		switch other, taken := others[key]; {
		case reserved != "":
			wrong = append(wrong, fmt.Sprintf("%s is %s", text, reserved))
		case !own.Has(key):
			wrong = append(wrong, fmt.Sprintf("%s is not among the addresses of Node %s", text, name))
		case taken:
			wrong = append(wrong, fmt.Sprintf("%s is also %s", text, other))
		case covers(k.server, key):
			wrong = append(wrong, fmt.Sprintf("%s is of the API server: if the kubelet runs on the server's machine, karve kubectl certificate approve approves the request", text))
		case covers(k.others, key):
			wrong = append(wrong, fmt.Sprintf("%s is of another API server: if that server is gone, remove the name from the ConfigMap %s in kube-system", text, serverNames))
		}
	}
	for _, dns := range request.DNSNames {
		reserved := ""
		switch key := canonical(dns); {
		case slices.Contains(reservedNames, key):
			reserved = "a name of the API server"
		case slices.Contains(strings.Split(key, ".")[1:], "svc"):
			reserved = "the name of a Service"
		case strings.Contains(key, "*"):
			reserved = "a name of more than one machine"
		}
		if _, err := netip.ParseAddr(dns); err == nil {
			reserved = "an address in the place of a name"
		}
		check(dns, reserved)
	}
	for _, ip := range request.IPAddresses {
		address, _ := netip.AddrFromSlice(ip)
		address = address.Unmap()
		reserved := ""
		switch {
		case !address.IsValid() || address.IsLoopback() || address.IsUnspecified() || address.IsMulticast() || address.IsLinkLocalUnicast():
			reserved = "no address of a machine"
		case slices.ContainsFunc(k.services, func(p netip.Prefix) bool { return p.Contains(address) }):
			reserved = "an address of a Service"
		}
		check(ip.String(), reserved)
	}
	if len(wrong) > 0 {
		return errors.New(quote.First(wrong, "; "))
	}
	return nil
}

// covers reports whether clients may expect an API server with these names at a name or address.
func covers(server []string, key string) bool {
	_, parent, _ := strings.Cut(key, ".")
	return slices.ContainsFunc(server, func(text string) bool {
		text = canonical(text)
		wildcard, ok := strings.CutPrefix(text, "*.")
		return text == key || ok && parent == wildcard
	})
}

// canonical is one spelling of a name or address.
func canonical(text string) string {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.Unmap().String()
	}
	return strings.ToLower(strings.TrimSuffix(text, "."))
}
