package strategy

// This file prepares Services, as the strategy and the storage in
// k8s.io/kubernetes/pkg/registry/core/service do. Package allocator gives them addresses
// afterwards.

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	serviceutil "k8s.io/kubernetes/pkg/api/v1/service"
	"k8s.io/utils/ptr"
)

func createService(svc *corev1.Service) {
	svc.Status = corev1.ServiceStatus{}
	if spec := &svc.Spec; spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	dropInternalPolicy(svc)
}

func updateService(svc, old *corev1.Service) {
	svc.Status = old.Status
	keepAllocated(svc, old)
	pairAddresses(&svc.Spec, &old.Spec)
	dropUnused(svc, old)
	dropInternalPolicy(svc)
}

func updateServiceStatus(svc, old *corev1.Service) { svc.Spec = old.Spec }

// dropInternalPolicy drops the policy of a Service that has no cluster IP. It leaves an unknown
// policy for validation to refuse.
func dropInternalPolicy(svc *corev1.Service) {
	if needsClusterIP(svc) {
		return
	}
	switch ptr.Deref(svc.Spec.InternalTrafficPolicy, "") {
	case corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal:
		svc.Spec.InternalTrafficPolicy = nil
	}
}

// keepAllocated restores the addresses and ports that an update omits. Ports are matched by name,
// and a node port that the update uses elsewhere is not restored.
func keepAllocated(svc, old *corev1.Service) {
	spec, before := &svc.Spec, &old.Spec
	if needsClusterIP(svc) && needsClusterIP(old) {
		spec.ClusterIP = cmp.Or(spec.ClusterIP, before.ClusterIP)
		if len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = slices.Clone(before.ClusterIPs)
		}
	}
	if NeedsNodePort(svc) && NeedsNodePort(old) {
		keepNodePorts(spec.Ports, before.Ports)
	}
	if NeedsHealthPort(svc) && NeedsHealthPort(old) {
		spec.HealthCheckNodePort = cmp.Or(spec.HealthCheckNodePort, before.HealthCheckNodePort)
	}
}

func keepNodePorts(ports, old []corev1.ServicePort) {
	used, named := map[int32]bool{}, map[string]int32{}
	for i := range ports {
		used[ports[i].NodePort] = true
	}
	for i := range old {
		named[old[i].Name] = old[i].NodePort
	}
	for i := range ports {
		if port := &ports[i]; port.NodePort == 0 && !used[named[port.Name]] {
			port.NodePort = named[port.Name]
		}
	}
}

// pairAddresses updates clusterIP or clusterIPs if only the other one was changed.
func pairAddresses(spec, old *corev1.ServiceSpec) {
	unchanged := slices.Equal(spec.ClusterIPs, old.ClusterIPs)
	switch {
	case spec.ClusterIP == old.ClusterIP:
		if len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = slices.Clone(old.ClusterIPs)
		}
	case !unchanged:
	case spec.ClusterIP == "":
		spec.ClusterIPs = nil
	default:
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}

// dropUnused clears the fields that the new type does not use, if the update has not changed them.
func dropUnused(svc, old *corev1.Service) {
	spec, before := &svc.Spec, &old.Spec
	if needsClusterIP(old) && !needsClusterIP(svc) {
		if spec.ClusterIP == before.ClusterIP && slices.Equal(spec.ClusterIPs, before.ClusterIPs) {
			spec.ClusterIP, spec.ClusterIPs = "", nil
		}
		if slices.Equal(spec.IPFamilies, before.IPFamilies) {
			spec.IPFamilies = nil
		}
		spec.IPFamilyPolicy = dropIfSame(spec.IPFamilyPolicy, before.IPFamilyPolicy)
	}
	if hasNodePorts(before.Type) && !hasNodePorts(spec.Type) && !addsNodePort(spec.Ports, before.Ports) {
		for i := range spec.Ports {
			spec.Ports[i].NodePort = 0
		}
	}
	if NeedsHealthPort(old) && !NeedsHealthPort(svc) && spec.HealthCheckNodePort == before.HealthCheckNodePort {
		spec.HealthCheckNodePort = 0
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer {
		if before.Type == corev1.ServiceTypeLoadBalancer {
			spec.AllocateLoadBalancerNodePorts = dropIfSame(spec.AllocateLoadBalancerNodePorts, before.AllocateLoadBalancerNodePorts)
			spec.LoadBalancerClass = dropIfSame(spec.LoadBalancerClass, before.LoadBalancerClass)
		}
		svc.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
	if serviceutil.ExternallyAccessible(old) && !serviceutil.ExternallyAccessible(svc) && spec.ExternalTrafficPolicy == before.ExternalTrafficPolicy {
		spec.ExternalTrafficPolicy = ""
	}
}

// dropIfSame returns now, or nil if both point to equal values.
func dropIfSame[T comparable](now, before *T) *T {
	if now != nil && before != nil && *now == *before {
		return nil
	}
	return now
}

func addsNodePort(ports, old []corev1.ServicePort) bool {
	before := map[int32]bool{0: true} // 0 means that there is no node port
	for i := range old {
		before[old[i].NodePort] = true
	}
	return slices.ContainsFunc(ports, func(port corev1.ServicePort) bool { return !before[port.NodePort] })
}

func needsClusterIP(svc *corev1.Service) bool {
	return svc.Spec.Type != corev1.ServiceTypeExternalName
}

func hasNodePorts(t corev1.ServiceType) bool {
	return t == corev1.ServiceTypeNodePort || t == corev1.ServiceTypeLoadBalancer
}

// NeedsNodePort reports whether a node port is allocated for each port of a Service.
func NeedsNodePort(svc *corev1.Service) bool {
	allocate := svc.Spec.AllocateLoadBalancerNodePorts
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer && (allocate == nil || *allocate)
}

// NeedsHealthPort reports whether a Service has spec.healthCheckNodePort.
func NeedsHealthPort(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}
