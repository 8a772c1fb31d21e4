package validation

// This file: the rules of what connects: Services, the endpoints behind them, Ingresses and NetworkPolicies. They are those of
// k8s.io/kubernetes, pkg/apis/core/validation (ValidateService, ValidateEndpoints), pkg/apis/discovery/validation and
// pkg/apis/networking/validation. old is nil when an object is created; addresses that it had may stay as they are, since older versions
// took more forms of them.
//
// How it is read: a method of a checker is one struct of the API, its lines are the struct's fields in Kubernetes' order.

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/strategy"
)

// ---- Services and what they lead to ----

var (
	serviceTypes      = []string{"ClusterIP", "ExternalName", "LoadBalancer", "NodePort"}
	affinities        = []string{"ClientIP", "None"}
	trafficPolicies   = []string{"Cluster", "Local"}
	distributions     = []string{"PreferClose", "PreferSameZone", "PreferSameNode"}
	ipFamilies        = []string{"IPv4", "IPv6"}
	ipFamilyPolicies  = []string{"PreferDualStack", "RequireDualStack", "SingleStack"}
	ipModes           = []string{"Proxy", "VIP"}
	addressTypes      = []string{"FQDN", "IPv4", "IPv6"}
	pathTypes         = []string{"Exact", "ImplementationSpecific", "Prefix"}
	parameterScopes   = []string{"Cluster", "Namespace"}
	policyProtocols   = []string{"TCP", "UDP", "SCTP"}
	policyTypes       = []string{"Ingress", "Egress"}
	topologyHints     = "service.kubernetes.io/topology-aware-hints"
	sourceRangesKey   = "service.beta.kubernetes.io/load-balancer-source-ranges"
	ingressClassKey   = "kubernetes.io/ingress.class"
	forbiddenInPaths  = []string{"//", "/./", "/../", "%2f", "%2F"}
	forbiddenPathEnds = []string{"/..", "/."}
)

// A networkChecker checks one object that connects others.
type networkChecker struct{ *Checker }

func isHeadless(svc *corev1.Service) bool {
	return len(svc.Spec.ClusterIPs) == 1 && svc.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

func (k networkChecker) service(svc, old *corev1.Service) {
	p, spec := field.NewPath("spec"), &svc.Spec
	if k.clusterIPs(p, svc, old); len(k.Errs) > 0 {
		return // FitFamilies has said so: Kubernetes looks at them before it allocates addresses, and at the rest after that
	}
	if old != nil {
		k.clusterIPsStay(p, svc, old)
		k.ipFamiliesStay(p, svc, old)
		class := spec.LoadBalancerClass
		if balancer := corev1.ServiceTypeLoadBalancer; spec.Type == balancer && old.Spec.Type == balancer && !equality.Semantic.DeepEqual(class, old.Spec.LoadBalancerClass) {
			k.Invalid(p, "loadBalancerClass", class, "may not change once set")
		}
		k.balancerClass(p, spec)
		k.Forbid(p, "healthCheckNodePort", strategy.NeedsHealthPort(svc) && strategy.NeedsHealthPort(old) && spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort, "field is immutable")
	}
	mode, moded := svc.Annotations[corev1.AnnotationTopologyMode]
	if hints, hinted := svc.Annotations[topologyHints]; moded && hinted && hints != mode {
		k.Invalid(field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode), "", mode, "must match annotations["+topologyHints+"] when both are specified")
	}
	k.Need(p, "ports", len(spec.Ports) > 0 || isHeadless(svc) || spec.Type == corev1.ServiceTypeExternalName, "")
	k.serviceType(p, svc)
	names := set{}
	for i := range spec.Ports {
		k.servicePort(p.Child("ports").Index(i), &spec.Ports[i], names, len(spec.Ports) > 1)
	}
	k.labels(p, "selector", spec.Selector)
	k.sessionAffinity(p, spec)
	k.externalIPs(p, svc, old)
	k.Known(p, "type", string(spec.Type), serviceTypes)
	k.portsAreUnique(p.Child("ports"), spec)
	k.sourceRanges(p, svc, old)
	k.Forbid(p, "allocateLoadBalancerNodePorts", spec.AllocateLoadBalancerNodePorts != nil && spec.Type != corev1.ServiceTypeLoadBalancer, "may only be used when `type` is 'LoadBalancer'")
	k.balancerClass(p, spec)
	k.traffic(p, svc)
}

func (k networkChecker) serviceType(p *field.Path, svc *corev1.Service) {
	spec := &svc.Spec
	switch spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		if isHeadless(svc) {
			k.Invalid(p.Child("clusterIPs").Index(0), "", "None", fmt.Sprintf("may not be set to 'None' for %s services", spec.Type))
		}
	case corev1.ServiceTypeExternalName:
		const why = "may not be set for ExternalName services"
		k.Forbid(p, "clusterIPs", len(spec.ClusterIPs) > 0, why)
		k.Forbid(p, "ipFamilies", len(spec.IPFamilies) > 0, why)
		k.Forbid(p, "ipFamilyPolicy", spec.IPFamilyPolicy != nil, why)
		k.Name(p, "externalName", strings.TrimSuffix(spec.ExternalName, "."), isSubdomain)
	}
}

func (k networkChecker) servicePort(p *field.Path, port *corev1.ServicePort, names set, needsName bool) {
	if port.Name == "" {
		k.Need(p, "name", !needsName, "")
	} else {
		k.Words(p, "name", port.Name, isLabel)
		k.unique(p, "name", names, port.Name)
	}
	k.port(p, "port", port.Port)
	k.Known(p, "protocol", string(port.Protocol), protocols)
	k.portRef(p, "targetPort", port.TargetPort)
	k.maybeRef(p, "appProtocol", port.AppProtocol, isQualifiedName)
}

func (k networkChecker) sessionAffinity(p *field.Path, spec *corev1.ServiceSpec) {
	k.Known(p, "sessionAffinity", string(spec.SessionAffinity), affinities)
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		if timeout := *spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; timeout < 1 || timeout > 86400 {
			k.Invalid(p, "sessionAffinityConfig.clientIP.timeoutSeconds", timeout, "must be greater than 0 and less than 86400")
		}
	}
}

func (k networkChecker) clusterIPs(p *field.Path, svc, old *corev1.Service) {
	spec := &svc.Spec
	if spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	switch ips := spec.ClusterIPs; {
	case spec.ClusterIP == "" && len(ips) > 0:
		k.Invalid(p, "clusterIPs", ips, "must be empty when `clusterIP` is not specified")
	case spec.ClusterIP != "" && len(ips) == 0:
		k.Required(p, "clusterIPs", "")
	case spec.ClusterIP != "" && ips[0] != spec.ClusterIP:
		k.Invalid(p, "clusterIPs", ips, "first value must match `clusterIP`")
	}
	seen := set{}
	for i, family := range spec.IPFamilies {
		k.OneOf(p.Child("ipFamilies").Index(i), "", string(family), ipFamilies)
		k.unique(p.Child("ipFamilies").Index(i), "", seen, string(family))
	}
	oneOfRef(k.Checker, p, "ipFamilyPolicy", spec.IPFamilyPolicy, ipFamilyPolicies)
	if !k.clusterIPsAreAddresses(p, spec, old) {
		return
	}
	six := 0
	for _, ip := range spec.ClusterIPs {
		if familyOf(ip) == corev1.IPv6Protocol {
			six++
		}
	}
	if n := len(spec.ClusterIPs); n > 1 && (six == 0 || six == n) {
		k.Invalid(p, "clusterIPs", spec.ClusterIPs, "may specify no more than one IP for each IP family")
	}
	for i := 0; i < min(len(spec.ClusterIPs), len(spec.IPFamilies)) && !isHeadless(svc); i++ {
		ip, family := spec.ClusterIPs[i], spec.IPFamilies[i]
		if v6 := strings.Contains(ip, ":"); (family == corev1.IPv4Protocol && v6) || (family == corev1.IPv6Protocol && !v6) {
			k.Invalid(p.Child("clusterIPs").Index(i), "", ip, fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%d]`", family, i))
		}
	}
}

func (k networkChecker) clusterIPsAreAddresses(p *field.Path, spec *corev1.ServiceSpec, old *corev1.Service) bool {
	before, existing := len(k.Errs), set(nil)
	if old != nil {
		existing = setOf(old.Spec.ClusterIPs)
	}
	for i, ip := range spec.ClusterIPs {
		if i > 0 || ip != corev1.ClusterIPNone {
			k.ip(p.Child("clusterIPs").Index(i), "", ip, existing)
		} else if len(spec.ClusterIPs) > 1 {
			k.Invalid(p, "clusterIPs", spec.ClusterIPs, "'None' must be the first and only value")
		}
	}
	fine := len(k.Errs) == before
	if len(spec.ClusterIPs) > 2 {
		k.Invalid(p, "clusterIPs", spec.ClusterIPs, "may only hold up to 2 values")
	}
	return fine
}

// clusterIPsStay: the first address is for life, a second one comes and goes with the policy.
func (k networkChecker) clusterIPsStay(p *field.Path, svc, old *corev1.Service) {
	if !defaults.NeedsClusterIP(svc) || !defaults.NeedsClusterIP(old) || isHeadless(svc) && isHeadless(old) {
		return
	}
	now, before, p0 := svc.Spec.ClusterIPs, old.Spec.ClusterIPs, p.Child("clusterIPs").Index(0)
	if len(now) == len(before) {
		for i := range before {
			if now[i] != before[i] {
				k.Invalid(p.Child("clusterIPs").Index(i), "", now, "may not change once set")
			}
		}
		return
	}
	if len(now) == 0 {
		k.Invalid(p0, "", now, "primary clusterIP can not be unset")
	} else if len(before) > 0 && now[0] != before[0] {
		k.Invalid(p0, "", now, "may not change once set")
	}
	if policy := svc.Spec.IPFamilyPolicy; len(before) > len(now) && len(now) == 1 && (policy == nil || *policy != corev1.IPFamilyPolicySingleStack) {
		k.Invalid(p, "ipFamilyPolicy", policy, "must be set to 'SingleStack' when releasing the secondary clusterIP")
	}
}

func (k networkChecker) ipFamiliesStay(p *field.Path, svc, old *corev1.Service) {
	if svc.Spec.Type == corev1.ServiceTypeExternalName || old.Spec.Type == corev1.ServiceTypeExternalName || isHeadless(svc) || isHeadless(old) {
		return
	}
	now, before, p0 := svc.Spec.IPFamilies, old.Spec.IPFamilies, p.Child("ipFamilies").Index(0)
	if len(now) == len(before) {
		for i := range before {
			if now[i] != before[i] {
				k.Invalid(p0, "", now, "may not change once set")
			}
		}
		return
	}
	if len(now) > 0 && len(before) > 0 && now[0] != before[0] {
		k.Invalid(p0, "", svc.Spec.ClusterIPs, "may not change once set")
	}
	if policy := svc.Spec.IPFamilyPolicy; len(before) > len(now) && len(now) == 1 && (policy == nil || *policy != corev1.IPFamilyPolicySingleStack) {
		k.Invalid(p, "ipFamilyPolicy", policy, "must be set to 'SingleStack' when releasing the secondary ipFamily")
	}
}

func (k networkChecker) externalIPs(p *field.Path, svc, old *corev1.Service) {
	existing := set(nil)
	if old != nil {
		existing = setOf(old.Spec.ExternalIPs)
	}
	for i, ip := range svc.Spec.ExternalIPs {
		before := len(k.Errs)
		if k.ip(p.Child("externalIPs").Index(i), "", ip, existing); len(k.Errs) == before {
			k.endpointIP(p.Child("externalIPs").Index(i), "", ip)
		}
	}
}

func (k networkChecker) portsAreUnique(p *field.Path, spec *corev1.ServiceSpec) {
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	nodePorts, ports := map[key]bool{}, map[key]bool{}
	for i, port := range spec.Ports {
		k.Forbid(p.Index(i), "nodePort", port.NodePort != 0 && spec.Type == corev1.ServiceTypeClusterIP, "may not be used when `type` is 'ClusterIP'")
	}
	for i, port := range spec.Ports {
		at := key{port.Protocol, port.NodePort}
		if port.NodePort != 0 && nodePorts[at] {
			k.Add(field.Duplicate(p.Index(i).Child("nodePort"), port.NodePort))
		}
		nodePorts[at] = true
	}
	for i, port := range spec.Ports {
		at := key{port.Protocol, port.Port}
		if ports[at] {
			k.Add(field.Duplicate(p.Index(i), goForm(corev1.ServicePort{Protocol: port.Protocol, Port: port.Port})))
		}
		ports[at] = true
	}
}

func (k networkChecker) sourceRanges(p *field.Path, svc, old *corev1.Service) {
	const why = "may only be used when `type` is 'LoadBalancer'"
	balanced := svc.Spec.Type == corev1.ServiceTypeLoadBalancer
	existing := set(nil)
	if old != nil {
		existing = setOf(old.Spec.LoadBalancerSourceRanges)
	}
	annotation, annotated := svc.Annotations[sourceRangesKey]
	if ranges := svc.Spec.LoadBalancerSourceRanges; len(ranges) > 0 {
		k.Forbid(p, "LoadBalancerSourceRanges", !balanced, why)
		for i, cidr := range ranges {
			k.cidr(p.Child("LoadBalancerSourceRanges").Index(i), "", strings.TrimSpace(cidr), existing)
		}
	} else if annotated {
		ap := field.NewPath("metadata", "annotations").Key(sourceRangesKey)
		k.Forbid(ap, "", !balanced, why)
		for _, cidr := range strings.Split(strings.TrimSpace(annotation), ",") {
			if annotation != "" {
				k.cidr(ap, "", strings.TrimSpace(cidr), nil)
			}
		}
	}
}

func (k networkChecker) balancerClass(p *field.Path, spec *corev1.ServiceSpec) {
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		k.maybeRef(p, "loadBalancerClass", spec.LoadBalancerClass, isQualifiedName)
		return
	}
	k.Forbid(p, "loadBalancerClass", spec.LoadBalancerClass != nil, "may only be used when `type` is 'LoadBalancer'")
}

// traffic: a health check's port is allocated by the caller after validation, so that only a given one is looked at.
func (k networkChecker) traffic(p *field.Path, svc *corev1.Service) {
	spec := &svc.Spec
	if defaults.IsExternallyReachable(svc) {
		k.Known(p, "externalTrafficPolicy", string(spec.ExternalTrafficPolicy), trafficPolicies)
	} else if spec.ExternalTrafficPolicy != "" {
		k.Invalid(p, "externalTrafficPolicy", spec.ExternalTrafficPolicy, "may only be set for externally-accessible services")
	}
	if port := spec.HealthCheckNodePort; port != 0 && !strategy.NeedsHealthPort(svc) {
		k.Invalid(p, "healthCheckNodePort", port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'")
	} else if port != 0 {
		k.port(p, "healthCheckNodePort", port)
	}
	oneOfRef(k.Checker, p, "internalTrafficPolicy", spec.InternalTrafficPolicy, trafficPolicies)
	oneOfRef(k.Checker, p, "trafficDistribution", spec.TrafficDistribution, distributions)
}

func (k networkChecker) loadBalancer(status *corev1.LoadBalancerStatus, kind corev1.ServiceType) {
	p := field.NewPath("status", "loadBalancer", "ingress")
	if kind != corev1.ServiceTypeLoadBalancer {
		k.Forbid(p, "", len(status.Ingress) > 0, "may only be used when `spec.type` is 'LoadBalancer'")
		return
	}
	for i, ingress := range status.Ingress {
		if ingress.IP != "" {
			k.ip(p.Index(i), "ip", ingress.IP, nil)
			k.Need(p.Index(i), "ipMode", ingress.IPMode != nil, "must be specified when `ip` is set")
			oneOfRef(k.Checker, p.Index(i), "ipMode", ingress.IPMode, ipModes)
		} else {
			k.Forbid(p.Index(i), "ipMode", ingress.IPMode != nil, "may not be specified when `ip` is not set")
		}
		k.hostname(p.Index(i), ingress.Hostname)
	}
}

func (k networkChecker) ingressStatus(status *networkingv1.IngressLoadBalancerStatus) {
	p := field.NewPath("status", "loadBalancer", "ingress")
	for i, ingress := range status.Ingress {
		if ingress.IP != "" {
			k.ip(p.Index(i), "ip", ingress.IP, nil)
		}
		k.hostname(p.Index(i), ingress.Hostname)
	}
}

func (k networkChecker) hostname(p *field.Path, name string) {
	k.Maybe(p, "hostname", name, isSubdomain)
	if isAddress(name) {
		k.Invalid(p, "hostname", name, "must be a DNS name, not an IP address")
	}
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

func (k networkChecker) endpoints(endpoints *corev1.Endpoints) {
	for i := range endpoints.Subsets {
		subset, p := &endpoints.Subsets[i], field.NewPath("subsets").Index(i)
		k.Need(p, "", len(subset.Addresses)+len(subset.NotReadyAddresses) > 0, "must specify `addresses` or `notReadyAddresses`")
		for j := range subset.Addresses {
			k.endpointAddress(p.Child("addresses").Index(j), &subset.Addresses[j])
		}
		for j := range subset.NotReadyAddresses {
			k.endpointAddress(p.Child("notReadyAddresses").Index(j), &subset.NotReadyAddresses[j])
		}
		for j, port := range subset.Ports {
			pp := p.Child("ports").Index(j)
			k.Need(pp, "name", len(subset.Ports) == 1 || port.Name != "", "")
			k.Maybe(pp, "name", port.Name, isLabel)
			k.port(pp, "port", port.Port)
			k.Known(pp, "protocol", string(port.Protocol), protocols)
			k.maybeRef(pp, "appProtocol", port.AppProtocol, isQualifiedName)
		}
	}
}

func (k networkChecker) endpointAddress(p *field.Path, address *corev1.EndpointAddress) {
	k.ip(p, "ip", address.IP, nil)
	k.Maybe(p, "hostname", address.Hostname, isLabel)
	k.maybeRef(p, "nodeName", address.NodeName, isSubdomain)
	k.endpointIP(p, "ip", address.IP)
}

func (k networkChecker) endpointSlice(slice, old *discoveryv1.EndpointSlice) {
	k.Known(field.NewPath("addressType"), "", string(slice.AddressType), addressTypes)
	k.slicePorts(field.NewPath("ports"), slice.Ports)
	if old == nil || !equality.Semantic.DeepEqual(slice.Endpoints, old.Endpoints) {
		k.sliceEndpoints(field.NewPath("endpoints"), slice)
	}
	if old != nil {
		k.Same(field.NewPath("addressType"), "", slice.AddressType, old.AddressType)
	}
}

func (k networkChecker) slicePorts(p *field.Path, ports []discoveryv1.EndpointPort) {
	if len(ports) > 20000 {
		k.Add(field.TooMany(p, len(ports), 20000))
		return
	}
	names := set{}
	for i, port := range ports {
		k.Maybe(p.Index(i), "name", *port.Name, isLabel)
		k.unique(p.Index(i), "name", names, *port.Name)
		k.OneOf(p.Index(i), "protocol", string(*port.Protocol), protocols)
		k.maybeRef(p.Index(i), "appProtocol", port.AppProtocol, isQualifiedName)
	}
}

func (k networkChecker) sliceEndpoints(p *field.Path, slice *discoveryv1.EndpointSlice) {
	if len(slice.Endpoints) > 1000 {
		k.Add(field.TooMany(p, len(slice.Endpoints), 1000))
		return
	}
	for i, endpoint := range slice.Endpoints {
		ep := p.Index(i)
		k.Need(ep, "addresses", len(endpoint.Addresses) > 0, "must contain at least 1 address")
		if len(endpoint.Addresses) > 100 {
			k.Add(field.TooMany(ep.Child("addresses"), len(endpoint.Addresses), 100))
		}
		for j, address := range endpoint.Addresses {
			k.sliceAddress(ep.Child("addresses"), j, address, slice.AddressType)
		}
		k.maybeRef(ep, "nodeName", endpoint.NodeName, isSubdomain)
		if len(endpoint.DeprecatedTopology) > 16 {
			k.Add(field.TooMany(ep.Child("deprecatedTopology"), len(endpoint.DeprecatedTopology), 16))
		}
		k.labels(ep, "deprecatedTopology", endpoint.DeprecatedTopology)
		k.maybeRef(ep, "hostname", endpoint.Hostname, isLabel)
		if endpoint.Hints != nil {
			k.hints(ep.Child("hints"), endpoint.Hints)
		}
	}
}

func (k networkChecker) sliceAddress(p *field.Path, i int, address string, kind discoveryv1.AddressType) {
	before := len(k.Errs)
	switch kind {
	case discoveryv1.AddressTypeFQDN:
		k.Add(validation.IsFullyQualifiedDomainName(p.Index(i), address)...)
		return
	case discoveryv1.AddressTypeIPv4:
		k.ip(p.Index(i), "", address, nil)
	case discoveryv1.AddressTypeIPv6:
		k.Add(validation.IsValidIP(p.Index(i), address)...)
	default:
		return
	}
	if len(k.Errs) > before {
		return
	}
	if v6 := strings.Contains(address, ":"); v6 != (kind == discoveryv1.AddressTypeIPv6) {
		k.Invalid(p, "", address, "must be an "+string(kind)+" address")
	}
	k.endpointIP(p.Index(i), "", address)
}

func (k networkChecker) hints(p *field.Path, hints *discoveryv1.EndpointHints) {
	zones, nodes := set{}, set{}
	if len(hints.ForZones) > 8 {
		k.Add(field.TooMany(p.Child("forZones"), len(hints.ForZones), 8))
		return
	}
	for i, zone := range hints.ForZones {
		k.unique(p.Child("forZones").Index(i), "name", zones, zone.Name)
		k.Words(p.Child("forZones").Index(i), "name", zone.Name, validation.IsValidLabelValue)
	}
	if len(hints.ForNodes) > 8 {
		k.Add(field.TooMany(p.Child("forNodes"), len(hints.ForNodes), 8))
		return
	}
	for i, node := range hints.ForNodes {
		k.unique(p.Child("forNodes").Index(i), "name", nodes, node.Name)
		k.Words(p.Child("forNodes").Index(i), "name", node.Name, isSubdomain)
	}
}

// ---- Ingress and NetworkPolicy ----

func (k networkChecker) ingress(ingress *networkingv1.Ingress, created bool) {
	p, spec := field.NewPath("spec"), &ingress.Spec
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		k.Invalid(p, "", spec.Rules, "either `defaultBackend` or `rules` must be specified")
	}
	if spec.DefaultBackend != nil {
		k.backend(p.Child("defaultBackend"), spec.DefaultBackend)
	}
	for i := range spec.Rules {
		k.ingressRule(p.Child("rules").Index(i), &spec.Rules[i])
	}
	for i, tls := range spec.TLS {
		for j, host := range tls.Hosts {
			k.Words(p.Child("tls").Index(i).Child("hosts").Index(j), "", host, isHost)
		}
		k.Maybe(p.Child("tls").Index(i), "secretName", tls.SecretName, isSubdomain)
	}
	k.maybeRef(p, "ingressClassName", spec.IngressClassName, isSubdomain)
	if class, ok := ingress.Annotations[ingressClassKey]; created && ok && spec.IngressClassName != nil && *spec.IngressClassName != class {
		k.Invalid(field.NewPath("annotations").Child(ingressClassKey), "", class, "must match `ingressClassName` when both are specified")
	}
}

func isHost(s string) []string {
	if strings.Contains(s, "*") {
		return validation.IsWildcardDNS1123Subdomain(s)
	}
	return isSubdomain(s)
}

func (k networkChecker) ingressRule(p *field.Path, rule *networkingv1.IngressRule) {
	if isAddress(rule.Host) {
		k.Invalid(p, "host", rule.Host, "must be a DNS name, not an IP address")
	}
	k.Maybe(p, "host", rule.Host, isHost)
	if rule.HTTP == nil {
		return
	}
	k.Need(p, "http.paths", len(rule.HTTP.Paths) > 0, "")
	for i := range rule.HTTP.Paths {
		k.ingressPath(p.Child("http", "paths").Index(i), &rule.HTTP.Paths[i])
	}
}

func (k networkChecker) ingressPath(p *field.Path, path *networkingv1.HTTPIngressPath) {
	if path.PathType == nil {
		k.Required(p, "pathType", "pathType must be specified")
		return
	}
	relative := !strings.HasPrefix(path.Path, "/")
	switch *path.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if relative {
			k.Invalid(p, "path", path.Path, "must be an absolute path")
		}
		for _, part := range forbiddenInPaths {
			if strings.Contains(path.Path, part) {
				k.Invalid(p, "path", path.Path, fmt.Sprintf("must not contain '%s'", part))
			}
		}
		for _, end := range forbiddenPathEnds {
			if strings.HasSuffix(path.Path, end) {
				k.Invalid(p, "path", path.Path, fmt.Sprintf("cannot end with '%s'", end))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if relative && path.Path != "" {
			k.Invalid(p, "path", path.Path, "must be an absolute path")
		}
	default:
		k.Unsupported(p, "pathType", *path.PathType, pathTypes)
	}
	k.backend(p.Child("backend"), &path.Backend)
}

func (k networkChecker) backend(p *field.Path, backend *networkingv1.IngressBackend) {
	switch {
	case backend.Resource != nil && backend.Service != nil:
		k.Invalid(p, "", "", "cannot set both resource and service backends")
	case backend.Resource != nil:
		k.maybeRef(p, "resource.apiGroup", backend.Resource.APIGroup, isSubdomain)
		k.Name(p, "resource.kind", backend.Resource.Kind, isPathSegment)
		k.Name(p, "resource.name", backend.Resource.Name, isPathSegment)
	case backend.Service == nil:
		k.Invalid(p, "", "", "resource or service backend is required")
	default:
		k.Name(p, "service.name", backend.Service.Name, isLabel)
		switch port := backend.Service.Port; {
		case port.Name != "" && port.Number != 0:
			k.Invalid(p, "", "", "cannot set both port name & port number")
		case port.Name != "":
			k.Words(p, "service.port.name", port.Name, isPortName)
		case port.Number != 0:
			k.port(p, "service.port.number", port.Number)
		default:
			k.Required(p, "", "port name or number is required")
		}
	}
}

func (k networkChecker) ingressClass(class, old *networkingv1.IngressClass) {
	p, spec := field.NewPath("spec"), &class.Spec
	if old != nil {
		k.Same(p, "controller", spec.Controller, old.Spec.Controller)
	}
	if len(spec.Controller) > 250 {
		k.Add(field.TooLong(p.Child("controller"), "", 250))
	}
	k.Add(validation.IsDomainPrefixedPath(p.Child("controller"), spec.Controller)...)
	parameters := spec.Parameters
	if parameters == nil {
		return
	}
	p = p.Child("parameters")
	k.maybeRef(p, "apiGroup", parameters.APIGroup, isSubdomain)
	k.Name(p, "kind", parameters.Kind, isPathSegment)
	k.Name(p, "name", parameters.Name, isPathSegment)
	k.OneOf(p, "scope", *parameters.Scope, parameterScopes)
	switch *parameters.Scope {
	case networkingv1.IngressClassParametersReferenceScopeNamespace:
		k.Need(p, "namespace", parameters.Namespace != nil, "`parameters.scope` is set to 'Namespace'")
		k.maybeRef(p, "namespace", parameters.Namespace, isLabel)
	case networkingv1.IngressClassParametersReferenceScopeCluster:
		k.Forbid(p, "namespace", parameters.Namespace != nil, "`parameters.scope` is set to 'Cluster'")
	}
}

func (k networkChecker) networkPolicy(policy, old *networkingv1.NetworkPolicy) {
	p, spec := field.NewPath("spec"), &policy.Spec
	existing := []string(nil)
	if old != nil {
		for _, rule := range old.Spec.Ingress {
			existing = append(existing, cidrsOf(rule.From)...)
		}
		for _, rule := range old.Spec.Egress {
			existing = append(existing, cidrsOf(rule.To)...)
		}
	}
	kept := setOf(existing)
	k.selector(p, "podSelector", &spec.PodSelector)
	for i, rule := range spec.Ingress {
		rp := p.Child("ingress").Index(i)
		k.policyPorts(rp.Child("ports"), rule.Ports)
		k.policyPeers(rp.Child("from"), rule.From, kept)
	}
	for i, rule := range spec.Egress {
		rp := p.Child("egress").Index(i)
		k.policyPorts(rp.Child("ports"), rule.Ports)
		k.policyPeers(rp.Child("to"), rule.To, kept)
	}
	if len(spec.PolicyTypes) > 2 {
		k.Invalid(p, "policyTypes", &spec.PolicyTypes, "may not specify more than two policyTypes")
		return
	}
	for i, kind := range spec.PolicyTypes {
		k.OneOf(p.Child("policyTypes").Index(i), "", string(kind), policyTypes)
	}
}

func cidrsOf(peers []networkingv1.NetworkPolicyPeer) (cidrs []string) {
	for _, peer := range peers {
		if peer.IPBlock != nil {
			cidrs = append(append(cidrs, peer.IPBlock.CIDR), peer.IPBlock.Except...)
		}
	}
	return cidrs
}

func (k networkChecker) policyPorts(p *field.Path, ports []networkingv1.NetworkPolicyPort) {
	for i, port := range ports {
		pp, end := p.Index(i), port.EndPort
		oneOfRef(k.Checker, pp, "protocol", port.Protocol, policyProtocols)
		switch {
		case port.Port == nil && end != nil:
			k.Invalid(pp, "endPort", *end, "may not be specified when `port` is not specified")
		case port.Port == nil:
		case port.Port.Type == intstr.Int:
			k.port(pp, "port", port.Port.IntVal)
			if end != nil && *end < port.Port.IntVal {
				k.Invalid(pp, "endPort", port.Port.IntVal, "must be greater than or equal to `port`")
			}
			if end != nil {
				k.port(pp, "endPort", *end)
			}
		default:
			if end != nil {
				k.Invalid(pp, "endPort", *end, "may not be specified when `port` is non-numeric")
			}
			k.Words(pp, "port", port.Port.StrVal, isPortName)
		}
	}
}

func (k networkChecker) policyPeers(p *field.Path, peers []networkingv1.NetworkPolicyPeer, existing set) {
	for i, peer := range peers {
		pp := p.Index(i)
		k.selector(pp, "podSelector", peer.PodSelector)
		k.selector(pp, "namespaceSelector", peer.NamespaceSelector)
		selected := peer.PodSelector != nil || peer.NamespaceSelector != nil
		if peer.IPBlock != nil {
			k.ipBlock(pp.Child("ipBlock"), peer.IPBlock, existing)
		}
		k.Need(pp, "", selected || peer.IPBlock != nil, "must specify a peer")
		k.Forbid(pp, "", selected && peer.IPBlock != nil, "may not specify both ipBlock and another peer")
	}
}

func (k networkChecker) ipBlock(p *field.Path, block *networkingv1.IPBlock, existing set) {
	if block.CIDR == "" {
		k.Required(p, "cidr", "")
		return
	}
	k.cidr(p, "cidr", block.CIDR, existing)
	whole, err := netip.ParsePrefix(block.CIDR)
	if err != nil {
		return
	}
	for i, except := range block.Except {
		k.cidr(p.Child("except").Index(i), "", except, existing)
		part, err := netip.ParsePrefix(except)
		if err == nil && (!whole.Contains(part.Addr()) || whole.Bits() >= part.Bits()) {
			k.Invalid(p.Child("except").Index(i), "", except, "must be a strict subset of `cidr`")
		}
	}
}

// ---- Addresses ----

// address is an IPAddress: a record of who has it.
func (c networkChecker) address(address, old *networkingv1.IPAddress) {
	p, ref := field.NewPath("spec", "parentRef"), address.Spec.ParentRef
	switch {
	case old != nil:
		c.Same(p, "", ref, old.Spec.ParentRef)
	case ref == nil:
		c.Required(p, "", "")
	default:
		c.Maybe(p, "group", ref.Group, isSubdomain)
		c.Name(p, "resource", ref.Resource, isPathSegment)
		c.Name(p, "name", ref.Name, isPathSegment)
		c.Maybe(p, "namespace", ref.Namespace, isPathSegment)
	}
}

// serviceRange is a ServiceCIDR: one range of addresses, or one of each family. An update may add the second.
func (c networkChecker) serviceRange(cidr, old *networkingv1.ServiceCIDR) {
	p, now := field.NewPath("spec", "cidrs"), cidr.Spec.CIDRs
	if old == nil {
		c.ranges(p, &cidr.Spec)
		return
	}
	was := old.Spec.CIDRs
	grows := len(was) == 1 && len(now) == 2
	if len(now) != len(was) && !grows {
		c.Invalid(p, "", now, metavalidation.FieldImmutableErrorMsg)
		return
	}
	for i := range was {
		if now[i] != was[i] {
			c.Invalid(p.Index(i), "", now[i], metavalidation.FieldImmutableErrorMsg)
		}
	}
	if grows {
		c.ranges(p, &cidr.Spec)
	}
}

func (c networkChecker) ranges(p *field.Path, spec *networkingv1.ServiceCIDRSpec) {
	cidrs := spec.CIDRs
	switch {
	case len(cidrs) == 0:
		c.Required(p, "", "at least one CIDR required")
		return
	case len(cidrs) > 2:
		c.Invalid(p, "", spec, "may only hold up to 2 values")
		return
	}
	for i, cidr := range cidrs {
		c.cidr(p.Index(i), "", cidr, nil)
	}
	family := func(cidr string) int {
		block, _ := netip.ParsePrefix(cidr)
		return block.Addr().BitLen()
	}
	if len(cidrs) == 2 && family(cidrs[0]) == family(cidrs[1]) && family(cidrs[0]) != 0 {
		c.Invalid(p, "", cidrs, "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64")
	}
}
