package kubelet

// This file determines the URL to which a request is proxied.

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	netutils "k8s.io/utils/net"

	"apilet/internal/store"
)

// location is the destination of a proxied request.
type location struct {
	url    *url.URL
	plain  *http.Transport
	stream *http.Transport // for upgraded connections
	old    bool            // a kubelet that does not support the newest WebSocket protocols
}

// container returns the requested container of a Pod, or its only one. The error is a 400.
func container(named string, pod *corev1.Pod) (string, error) {
	var names []string
	for i := range pod.Spec.InitContainers {
		names = append(names, pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.Containers {
		names = append(names, pod.Spec.Containers[i].Name)
	}
	for i := range pod.Spec.EphemeralContainers {
		names = append(names, pod.Spec.EphemeralContainers[i].Name)
	}
	switch {
	case named != "" && !slices.Contains(names, named):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", named, pod.Name))
	case named != "":
		return named, nil
	case len(pod.Spec.Containers) == 1:
		return pod.Spec.Containers[0].Name, nil
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", pod.Name, names))
}

// ofKubelet returns a location on the kubelet of a node.
func (c *Connector) ofKubelet(node, path string, query url.Values) (*location, error) {
	k, err := c.kubelet(node)
	if err != nil {
		return nil, err
	}
	at := &url.URL{Scheme: "https", Host: net.JoinHostPort(k.host, k.port), Path: path, RawQuery: query.Encode()}
	return &location{at, c.Clients.verified, c.Clients.verified, k.old}, nil
}

// ofLog returns the location of a container's log, or nil if the Pod is not assigned to a node yet.
func (c *Connector) ofLog(namespace, name string, options *corev1.PodLogOptions) (*location, error) {
	var pod corev1.Pod
	if err := c.read(c.Types.Lookup("", "v1", "pods"), namespace, name, &pod); err != nil {
		return nil, err
	}
	of, err := container(options.Container, &pod)
	if err != nil || pod.Spec.NodeName == "" {
		return nil, err
	}
	to, err := c.ofKubelet(pod.Spec.NodeName, "/containerLogs/"+namespace+"/"+name+"/"+of, logQuery(options))
	if err == nil && options.InsecureSkipTLSVerifyBackend {
		to.plain = c.Clients.unverified
	}
	return to, err
}

func logQuery(options *corev1.PodLogOptions) url.Values {
	query := url.Values{}
	for name, set := range map[string]bool{"follow": options.Follow, "previous": options.Previous, "timestamps": options.Timestamps} {
		if set {
			query.Set(name, "true")
		}
	}
	for name, n := range map[string]*int64{"sinceSeconds": options.SinceSeconds, "tailLines": options.TailLines, "limitBytes": options.LimitBytes} {
		if n != nil {
			query.Set(name, strconv.FormatInt(*n, 10))
		}
	}
	if options.SinceTime != nil {
		query.Set("sinceTime", options.SinceTime.Format(time.RFC3339))
	}
	if options.Stream != nil {
		query.Set("stream", *options.Stream)
	}
	return query
}

// ofStream returns the location of exec, attach or portforward.
func (c *Connector) ofStream(namespace, name string, options runtime.Object) (*location, error) {
	var pod corev1.Pod
	if err := c.read(c.Types.Lookup("", "v1", "pods"), namespace, name, &pod); err != nil {
		return nil, err
	}
	path, query, err := streamPath(&pod, options)
	if err != nil {
		return nil, err
	}
	if pod.Spec.NodeName == "" {
		return nil, c.notScheduled(name)
	}
	return c.ofKubelet(pod.Spec.NodeName, path, query)
}

// streamPath returns the path and the query at the kubelet.
func streamPath(pod *corev1.Pod, options runtime.Object) (path string, query url.Values, err error) {
	at, in := "/"+pod.Namespace+"/"+pod.Name, ""
	switch o := options.(type) {
	case *corev1.PodExecOptions:
		in, err = container(o.Container, pod)
		path, query = "/exec"+at+"/"+in, channels{o.Stdin, o.Stdout, o.Stderr, o.TTY}.query()
		query["command"] = o.Command
	case *corev1.PodAttachOptions:
		in, err = container(o.Container, pod)
		path, query = "/attach"+at+"/"+in, channels{o.Stdin, o.Stdout, o.Stderr, o.TTY}.query()
	case *corev1.PodPortForwardOptions:
		path, query = "/portForward"+at, url.Values{}
		if len(o.Ports) > 0 {
			query.Set("port", strings.Trim(strings.ReplaceAll(fmt.Sprint(o.Ports), " ", ","), "[]"))
		}
	}
	return path, query, err
}

// notScheduled returns the error for a Pod without a node. If there are no nodes at all, the error
// mentions it.
func (c *Connector) notScheduled(pod string) error {
	text := fmt.Sprintf("pod %s does not have a host assigned", pod)
	for range c.Store.All(store.Span{Prefix: c.Types.Lookup("", "v1", "nodes").KeyPrefix("")}) {
		return apierrors.NewBadRequest(text)
	}
	return apierrors.NewBadRequest(text + ": no kubelet has registered a node with this server, so no pods run")
}

// ofProxy returns the location of a proxy subresource. The path is taken from the client's request.
func (c *Connector) ofProxy(ctx context.Context, plural, namespace, id, path string) (to *location, err error) {
	kind := strings.TrimSuffix(plural, "s")
	schemeOf, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid %s request %q", kind, id))
	}
	host := ""
	switch plural {
	case "pods":
		host, err = c.podHost(namespace, name, port)
	case "services":
		host, err = c.serviceHost(namespace, name, port)
	default:
		return c.ofNode(ctx, schemeOf, name, port, path)
	}
	if err != nil {
		return nil, err
	}
	at := &url.URL{Scheme: cmp.Or(schemeOf, "http"), Host: host, Path: utilnet.JoinPreservingTrailingSlash("", path)}
	return &location{url: at, plain: c.Clients.pods, stream: c.Clients.podStreams}, nil
}

// podHost returns the address of a Pod, with the given port or the first port that the Pod
// declares.
func (c *Connector) podHost(namespace, name, port string) (string, error) {
	var pod corev1.Pod
	if err := c.read(c.Types.Lookup("", "v1", "pods"), namespace, name, &pod); err != nil {
		return "", err
	}
	for i := range pod.Spec.Containers {
		if ports := pod.Spec.Containers[i].Ports; port == "" && len(ports) > 0 {
			port = strconv.Itoa(int(ports[0].ContainerPort))
		}
	}
	address := pod.Status.PodIP
	if len(pod.Status.PodIPs) > 0 {
		address = pod.Status.PodIPs[0].IP
	}
	if ip := netutils.ParseIPSloppy(address); ip == nil || !ip.IsGlobalUnicast() {
		return "", apierrors.NewBadRequest("address not allowed")
	}
	if port == "" {
		// an IPv6 address in brackets
		return strings.TrimSuffix(net.JoinHostPort(address, ""), ":"), nil
	}
	return net.JoinHostPort(address, port), nil
}

// ofNode returns the location for a port on a node, which may be the kubelet.
func (c *Connector) ofNode(ctx context.Context, schemeOf, name, port, path string) (*location, error) {
	k, err := c.kubelet(name)
	if err != nil {
		return nil, err
	}
	addresses, err := net.DefaultResolver.LookupIPAddr(ctx, k.host)
	if err != nil || len(addresses) == 0 {
		return nil, apierrors.NewBadRequest(cmp.Or(err, errNoHost).Error())
	}
	for _, a := range addresses {
		if !a.IP.IsGlobalUnicast() {
			return nil, apierrors.NewBadRequest("address not allowed")
		}
	}
	path = utilnet.JoinPreservingTrailingSlash("", path)
	if port == "" || port == k.port {
		return c.ofKubelet(name, path, nil)
	}
	at := &url.URL{Scheme: cmp.Or(schemeOf, "http"), Host: net.JoinHostPort(addresses[0].String(), port), Path: path}
	return &location{url: at, plain: c.Clients.pods, stream: c.Clients.podStreams}, nil
}

var errNoHost = errors.New("no addresses for hostname")

// serviceHost returns the address of a random ready Pod behind a Service. port is the number or the
// name of a port of the Service; "" means the port without a name.
func (c *Connector) serviceHost(namespace, name, port string) (string, error) {
	if number, err := strconv.ParseInt(port, 10, 64); err == nil {
		var svc corev1.Service
		if err := c.read(c.Types.Lookup("", "v1", "services"), namespace, name, &svc); err != nil {
			return "", err
		}
		at := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return int64(p.Port) == number })
		if at < 0 {
			return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
		}
		port = svc.Spec.Ports[at].Name
	}
	var hosts []host
	for rec, err := range c.Store.All(store.Span{Prefix: c.Types.Lookup("discovery.k8s.io", "v1", "endpointslices").KeyPrefix(namespace), SkipDamaged: true}) {
		if err != nil {
			return "", err
		}
		var s discoveryv1.EndpointSlice
		if err := json.Unmarshal(rec.JSON, &s); err == nil && s.Labels[discoveryv1.LabelServiceName] == name {
			hosts = append(hosts, readyHosts(&s, port)...)
		}
	}
	rand.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	for _, h := range hosts {
		if c.isPod(namespace, h) {
			return net.JoinHostPort(h.address, h.port), nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", name))
}

// host is a Service endpoint that refers to a Pod.
type host struct{ pod, address, port string }

func readyHosts(s *discoveryv1.EndpointSlice, named string) (hosts []host) {
	for _, p := range s.Ports {
		if p.Port == nil || p.Name != nil && *p.Name != named || p.Name == nil && named != "" {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			if ready && len(e.Addresses) > 0 && e.TargetRef != nil && e.TargetRef.Namespace == s.Namespace {
				hosts = append(hosts, host{e.TargetRef.Name, e.Addresses[0], strconv.Itoa(int(*p.Port))})
			}
		}
	}
	return hosts
}

// isPod reports whether an endpoint has an address of its Pod. Otherwise, users with permission to
// write EndpointSlices could connect to any address.
func (c *Connector) isPod(namespace string, h host) bool {
	var pod corev1.Pod
	if err := c.read(c.Types.Lookup("", "v1", "pods"), namespace, h.pod, &pod); err != nil {
		return false
	}
	return slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == h.address })
}
