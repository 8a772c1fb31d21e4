package printers

// This file computes the cells that do not just display a field, such as the status
// CrashLoopBackOff of a pod, or the first three endpoints of a service. columns.go defines the
// column of each cell.
//
// Each function returns the cells in the same order as the columns. It uses only the object and
// the given time, and must accept any object, however incomplete. Default values are only assumed
// if the cell would otherwise be wrong. For example, the default for the replicas of a Deployment
// is one. Cells are strings, int64s and booleans.

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// Cells without a value.
const (
	cellNone    = "<none>"
	cellUnset   = "<unset>"
	cellUnknown = "<unknown>"
)

// age returns the time since then in the form of kubectl: 90s, 5m10s, 3d4h.
func age(then metav1.Time, now time.Time) string {
	if then.IsZero() {
		return cellUnknown
	}
	return duration.HumanDuration(now.Sub(then.Time))
}

func derefOr[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

// joinOr joins the list with commas. If the result is empty, it returns empty.
func joinOr(list []string, empty string) string { return cmp.Or(strings.Join(list, ","), empty) }

// joinThree joins the first three elements and appends the number of the others.
func joinThree(list []string, empty string) string {
	if len(list) > 3 {
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:3], ","), len(list)-3)
	}
	return joinOr(list, empty)
}

// joinSorted joins the distinct non-empty strings in order.
func joinSorted(list []string) string {
	slices.Sort(list)
	list = slices.DeleteFunc(slices.Compact(list), func(s string) bool { return s == "" })
	return strings.Join(list, ",")
}

func containerCells(containers []corev1.Container) (names, images string) {
	switch len(containers) {
	case 0:
		return "", ""
	case 1:
		return containers[0].Name, containers[0].Image
	}
	var allNames, allImages []string
	for i := range containers {
		allNames, allImages = append(allNames, containers[i].Name), append(allImages, containers[i].Image)
	}
	return strings.Join(allNames, ","), strings.Join(allImages, ",")
}

// Pods

func podCells(p *corev1.Pod, now time.Time) []any {
	sum := summarize(p)
	restarts := strconv.Itoa(sum.restarts.count)
	if sum.restarts.count != 0 && !sum.restarts.last.IsZero() {
		restarts += " (" + age(sum.restarts.last, now) + " ago)"
	}
	ip := p.Status.PodIP
	if ip == "" && len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	return []any{
		p.Name, fraction(sum.ready, sum.total), sum.reason, restarts, age(p.CreationTimestamp, now),
		cmp.Or(ip, cellNone), cmp.Or(p.Spec.NodeName, cellNone), cmp.Or(p.Status.NominatedNodeName, cellNone), readinessGates(p),
	}
}

func fraction[N int | int32](part, whole N) string {
	return strconv.Itoa(int(part)) + "/" + strconv.Itoa(int(whole))
}

func readinessGates(p *corev1.Pod) string {
	if len(p.Spec.ReadinessGates) == 0 {
		return cellNone
	}
	open := 0
	for _, gate := range p.Spec.ReadinessGates {
		if podConditionTrue(p, gate.ConditionType) {
			open++
		}
	}
	return fraction(open, len(p.Spec.ReadinessGates))
}

func podConditionTrue(p *corev1.Pod, kind corev1.PodConditionType) bool {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == kind {
			return p.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// A podSummary summarizes the state of the containers in a pod. reason is the state of the first
// init container that is not done, or of the first container that is not running, or otherwise the
// phase of the pod.
type podSummary struct {
	reason       string
	ready, total int
	restarts     restartCount
}

type restartCount struct {
	count int
	last  metav1.Time
}

func (r *restartCount) add(c *corev1.ContainerStatus) {
	r.count += int(c.RestartCount)
	if t := c.LastTerminationState.Terminated; t != nil && r.last.Before(&t.FinishedAt) {
		r.last = t.FinishedAt
	}
}

func summarize(p *corev1.Pod) podSummary {
	sum := podSummary{reason: cmp.Or(p.Status.Reason, string(p.Status.Phase)), total: len(p.Spec.Containers)}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			sum.reason = corev1.PodReasonSchedulingGated
		}
	}
	for i := range p.Spec.InitContainers {
		if restartsAlways(&p.Spec.InitContainers[i]) {
			sum.total++
		}
	}
	if sum.addInitContainers(p) {
		sum.addContainers(p)
	}
	if p.DeletionTimestamp != nil {
		sum.reason = deletedReason(p, sum.reason)
	}
	return sum
}

// deletedReason returns the status to display for a pod that is being deleted. A node controller
// sets NodeLost when the kubelet cannot stop the containers any more.
func deletedReason(p *corev1.Pod, reason string) string {
	switch {
	case p.Status.Reason == "NodeLost":
		return "Unknown"
	case p.Status.Phase == corev1.PodFailed, p.Status.Phase == corev1.PodSucceeded:
		return reason
	}
	return "Terminating"
}

// addInitContainers reports whether the init containers are done. An init container is done if it
// has succeeded or runs as a sidecar. A sidecar may fail after the pod was initialized. After
// that, only restarts of sidecars are counted.
func (sum *podSummary) addInitContainers(p *corev1.Pod) bool {
	if len(p.Status.InitContainerStatuses) == 0 {
		return true
	}
	var sidecars restartCount
	names := sidecarNames(p.Spec.InitContainers)
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		sidecar := names[c.Name]
		sum.restarts.add(c)
		if sidecar {
			sidecars.add(c)
		}
		switch {
		case c.State.Terminated != nil && c.State.Terminated.ExitCode == 0:
		case sidecar && derefOr(c.Started, false):
			if c.Ready {
				sum.ready++
			}
		default:
			sum.reason = "Init:" + initReason(c, i, len(p.Spec.InitContainers))
			if !podConditionTrue(p, corev1.PodInitialized) {
				return false
			}
			sum.restarts = sidecars
			return true
		}
	}
	sum.restarts = sidecars
	return true
}

func restartsAlways(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// sidecarNames returns the names of the restartable init containers.
func sidecarNames(containers []corev1.Container) map[string]bool {
	names := make(map[string]bool, len(containers))
	for i := range containers {
		names[containers[i].Name] = restartsAlways(&containers[i])
	}
	return names
}

func initReason(c *corev1.ContainerStatus, done, total int) string {
	waiting := c.State.Waiting
	switch {
	case c.State.Terminated != nil:
		return endReason(c.State.Terminated)
	case waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing":
		return waiting.Reason
	}
	return fraction(done, total)
}

func endReason(end *corev1.ContainerStateTerminated) string {
	switch {
	case end.Reason != "":
		return end.Reason
	case end.Signal != 0:
		return "Signal:" + strconv.Itoa(int(end.Signal))
	}
	return "ExitCode:" + strconv.Itoa(int(end.ExitCode))
}

// addContainers iterates backwards in order to keep the reason of the first container.
func (sum *podSummary) addContainers(p *corev1.Pod) {
	running, failure := false, ""
	for _, c := range slices.Backward(p.Status.ContainerStatuses) {
		sum.restarts.add(&c)
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			sum.reason = c.State.Waiting.Reason
		case c.State.Terminated != nil:
			sum.reason = endReason(c.State.Terminated)
			if c.State.Terminated.ExitCode != 0 {
				failure = sum.reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			sum.ready++
		}
	}
	if sum.reason != "Completed" {
		return
	}
	// If a container has completed, the pod may still be running.
	switch {
	case running && slices.ContainsFunc(p.Status.Conditions, isReady):
		sum.reason = "Running"
	case failure != "":
		sum.reason = failure
	case running:
		sum.reason = "NotReady"
	}
}

func isReady(c corev1.PodCondition) bool {
	return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
}

// Workloads

func deploymentCells(o *appsv1.Deployment, now time.Time) []any {
	names, images := containerCells(o.Spec.Template.Spec.Containers)
	// Other selectors display <none>, but this one is empty if it matches nothing or everything.
	selector := "<invalid>"
	if s, err := metav1.LabelSelectorAsSelector(o.Spec.Selector); err == nil {
		selector = s.String()
	}
	return []any{o.Name, fraction(o.Status.ReadyReplicas, derefOr(o.Spec.Replicas, 1)), int64(o.Status.UpdatedReplicas),
		int64(o.Status.AvailableReplicas), age(o.CreationTimestamp, now), names, images, selector}
}

func jobCells(o *batchv1.Job, now time.Time) []any {
	completions := fraction(o.Status.Succeeded, derefOr(o.Spec.Completions, 1))
	if parallel := derefOr(o.Spec.Parallelism, 1); o.Spec.Completions == nil && parallel > 1 {
		completions += " of " + strconv.Itoa(int(parallel))
	}
	took := ""
	if start, end := o.Status.StartTime, o.Status.CompletionTime; start != nil {
		if end == nil {
			end = &metav1.Time{Time: now}
		}
		took = duration.HumanDuration(end.Sub(start.Time))
	}
	names, images := containerCells(o.Spec.Template.Spec.Containers)
	return []any{o.Name, jobCellStatus(o), completions, took, age(o.CreationTimestamp, now), names, images,
		metav1.FormatLabelSelector(o.Spec.Selector)}
}

func jobCellStatus(o *batchv1.Job) string {
	has := func(kind batchv1.JobConditionType) bool {
		i := slices.IndexFunc(o.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == kind })
		return i >= 0 && o.Status.Conditions[i].Status == corev1.ConditionTrue
	}
	for _, end := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed} {
		if has(end) {
			return string(end)
		}
	}
	if o.DeletionTimestamp != nil {
		return "Terminating"
	}
	for _, state := range []batchv1.JobConditionType{batchv1.JobSuspended, batchv1.JobFailureTarget, batchv1.JobSuccessCriteriaMet} {
		if has(state) {
			return string(state)
		}
	}
	return "Running"
}

func cronJobCells(o *batchv1.CronJob, now time.Time) []any {
	last := cellNone
	if o.Status.LastScheduleTime != nil {
		last = age(*o.Status.LastScheduleTime, now)
	}
	suspend := "False" // kube-apiserver returns a string, although the column is boolean
	if derefOr(o.Spec.Suspend, false) {
		suspend = "True"
	}
	names, images := containerCells(o.Spec.JobTemplate.Spec.Template.Spec.Containers)
	return []any{o.Name, o.Spec.Schedule, derefOr(o.Spec.TimeZone, cellNone), suspend, int64(len(o.Status.Active)), last,
		age(o.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(o.Spec.JobTemplate.Spec.Selector)}
}

func controllerRevisionCells(o *appsv1.ControllerRevision, now time.Time) []any {
	controller := cellNone
	if ref := metav1.GetControllerOf(o); ref != nil {
		controller = ref.Name
		if gk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind(); !gk.Empty() {
			controller = strings.ToLower(gk.String()) + "/" + ref.Name
		}
	}
	return []any{o.Name, controller, o.Revision, age(o.CreationTimestamp, now)}
}

func autoscalerCells(o *autoscalingv2.HorizontalPodAutoscaler, now time.Time) []any {
	target := o.Spec.ScaleTargetRef
	return []any{o.Name, target.Kind + "/" + target.Name, metricsCell(o.Spec.Metrics, o.Status.CurrentMetrics),
		strconv.Itoa(int(derefOr(o.Spec.MinReplicas, 1))), int64(o.Spec.MaxReplicas), int64(o.Status.CurrentReplicas),
		age(o.CreationTimestamp, now)}
}

// metricsCell returns the first two metrics as current/target, and the number of remaining
// metrics.
func metricsCell(specs []autoscalingv2.MetricSpec, statuses []autoscalingv2.MetricStatus) string {
	var list []string
	for i := range specs[:min(2, len(specs))] {
		var status autoscalingv2.MetricStatus
		if i < len(statuses) {
			status = statuses[i]
		}
		list = append(list, metricCell(&specs[i], &status))
	}
	cell := cmp.Or(strings.Join(list, ", "), cellNone)
	if len(specs) > 2 {
		cell += fmt.Sprintf(" + %d more...", len(specs)-2)
	}
	return cell
}

// metricCell returns one metric. The target and the current value are in different fields,
// depending on the type of the metric.
func metricCell(spec *autoscalingv2.MetricSpec, status *autoscalingv2.MetricStatus) string {
	var current *autoscalingv2.MetricValueStatus
	switch {
	case spec.Type == autoscalingv2.ExternalMetricSourceType && spec.External != nil:
		if status.External != nil {
			current = &status.External.Current
		}
		return valueMetric(&spec.External.Target, current)
	case spec.Type == autoscalingv2.ObjectMetricSourceType && spec.Object != nil:
		if status.Object != nil {
			current = &status.Object.Current
		}
		return valueMetric(&spec.Object.Target, current)
	case spec.Type == autoscalingv2.PodsMetricSourceType && spec.Pods != nil:
		if status.Pods != nil {
			current = &status.Pods.Current
		}
		return averageMetric(&spec.Pods.Target, current)
	case spec.Type == autoscalingv2.ResourceMetricSourceType && spec.Resource != nil:
		if status.Resource != nil {
			current = &status.Resource.Current
		}
		return spec.Resource.Name.String() + ": " + resourceMetric(&spec.Resource.Target, current)
	case spec.Type == autoscalingv2.ContainerResourceMetricSourceType && spec.ContainerResource != nil:
		if status.ContainerResource != nil {
			current = &status.ContainerResource.Current
		}
		return spec.ContainerResource.Name.String() + ": " + resourceMetric(&spec.ContainerResource.Target, current)
	}
	return "<unknown type>"
}

func valueMetric(target *autoscalingv2.MetricTarget, current *autoscalingv2.MetricValueStatus) string {
	now := cellUnknown
	if target.AverageValue == nil {
		if current != nil {
			now = current.Value.String()
		}
		return now + "/" + target.Value.String()
	}
	if current != nil && current.AverageValue != nil {
		now = current.AverageValue.String()
	}
	return now + "/" + target.AverageValue.String() + " (avg)"
}

func averageMetric(target *autoscalingv2.MetricTarget, current *autoscalingv2.MetricValueStatus) string {
	now := cellUnknown
	if current != nil {
		now = current.AverageValue.String()
	}
	return now + "/" + target.AverageValue.String()
}

func resourceMetric(target *autoscalingv2.MetricTarget, current *autoscalingv2.MetricValueStatus) string {
	if target.AverageValue != nil {
		return averageMetric(target, current)
	}
	now, want := cellUnknown, "<auto>"
	if current != nil && current.AverageUtilization != nil {
		now = strconv.Itoa(int(*current.AverageUtilization)) + "%"
	}
	if target.AverageUtilization != nil {
		want = strconv.Itoa(int(*target.AverageUtilization)) + "%"
	}
	return now + "/" + want
}

// Networks

func serviceCells(o *corev1.Service, now time.Time) []any {
	ip := cmp.Or(o.Spec.ClusterIP, cellNone)
	if len(o.Spec.ClusterIPs) > 0 {
		ip = o.Spec.ClusterIPs[0]
	}
	return []any{o.Name, string(o.Spec.Type), ip, externalIPCell(o), joinOr(portCells(o.Spec.Ports), cellNone),
		age(o.CreationTimestamp, now), labels.FormatLabels(o.Spec.Selector)}
}

func externalIPCell(o *corev1.Service) string {
	all := o.Spec.ExternalIPs
	switch o.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		if len(all) == 0 {
			return cellNone
		}
	case corev1.ServiceTypeExternalName:
		return o.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		var balancers []string
		for _, in := range o.Status.LoadBalancer.Ingress {
			balancers = append(balancers, cmp.Or(in.IP, in.Hostname))
		}
		if first := joinSorted(balancers); first != "" {
			all = append([]string{first}, all...)
		}
		if len(all) == 0 {
			return "<pending>"
		}
	default:
		return cellUnknown
	}
	return strings.Join(all, ",")
}

func portCells(ports []corev1.ServicePort) []string {
	list := make([]string, len(ports))
	for i, p := range ports {
		list[i] = strconv.Itoa(int(p.Port))
		if p.NodePort > 0 {
			list[i] += ":" + strconv.Itoa(int(p.NodePort))
		}
		list[i] += "/" + string(p.Protocol)
	}
	return list
}

func endpointsCell(subsets []corev1.EndpointSubset) string {
	if len(subsets) == 0 {
		return cellNone
	}
	var list []string // at most three
	count := 0
	for _, subset := range subsets {
		// A headless service may have no ports.
		count += len(subset.Addresses) * max(1, len(subset.Ports))
		for _, addr := range subset.Addresses {
			if len(subset.Ports) == 0 && len(list) < 3 {
				list = append(list, addr.IP)
			}
		}
		for _, port := range subset.Ports {
			for i := 0; i < len(subset.Addresses) && len(list) < 3; i++ {
				list = append(list, net.JoinHostPort(subset.Addresses[i].IP, strconv.Itoa(int(port.Port))))
			}
		}
	}
	if count > 3 {
		return fmt.Sprintf("%s + %d more...", strings.Join(list, ","), count-3)
	}
	return joinOr(list, "")
}

func endpointSliceCells(o *discoveryv1.EndpointSlice, now time.Time) []any {
	var ports, addresses []string
	for _, p := range o.Ports {
		port := derefOr(p.Name, "*")
		if p.Port != nil {
			port = strconv.Itoa(int(*p.Port))
		}
		ports = append(ports, port)
	}
	for _, e := range o.Endpoints {
		addresses = append(addresses, e.Addresses...)
	}
	return []any{o.Name, string(o.AddressType), joinThree(ports, cellUnset), joinThree(addresses, cellUnset), age(o.CreationTimestamp, now)}
}

func ingressCells(o *networkingv1.Ingress, now time.Time) []any {
	var addresses []string
	for _, in := range o.Status.LoadBalancer.Ingress {
		addresses = append(addresses, cmp.Or(in.IP, in.Hostname))
	}
	ports := "80"
	if len(o.Spec.TLS) > 0 {
		ports = "80, 443"
	}
	return []any{o.Name, derefOr(o.Spec.IngressClassName, cellNone), hostsCell(o.Spec.Rules), joinSorted(addresses), ports,
		age(o.CreationTimestamp, now)}
}

// hostsCell returns three hosts and the number of the remaining rules.
func hostsCell(rules []networkingv1.IngressRule) string {
	var hosts []string
	for _, rule := range rules {
		if len(hosts) == 3 {
			return fmt.Sprintf("%s + %d more...", strings.Join(hosts, ","), len(rules)-3)
		}
		if rule.Host != "" {
			hosts = append(hosts, rule.Host)
		}
	}
	return joinOr(hosts, "*")
}

func ingressClassCells(o *networkingv1.IngressClass, now time.Time) []any {
	name, parameters := o.Name, cellNone
	if o.Annotations[networkingv1.AnnotationIsDefaultIngressClass] == "true" {
		name += " (default)"
	}
	if p := o.Spec.Parameters; p != nil {
		parameters = p.Kind
		if p.APIGroup != nil {
			parameters += "." + *p.APIGroup
		}
		parameters += "/" + p.Name
	}
	return []any{name, o.Spec.Controller, parameters, age(o.CreationTimestamp, now)}
}

// ipAddressCells returns an additional cell that does not have a column, like kube-apiserver. It
// is ignored by kubectl.
func ipAddressCells(o *networkingv1.IPAddress, now time.Time) []any {
	parent := cellNone
	if ref := o.Spec.ParentRef; ref != nil {
		parent = strings.ToLower(schema.GroupResource{Group: ref.Group, Resource: ref.Resource}.String())
		if ref.Namespace != "" {
			parent += "/" + ref.Namespace
		}
		parent += "/" + ref.Name
	}
	return []any{o.Name, parent, age(o.CreationTimestamp, now)}
}

// Storage and devices

func persistentVolumeCells(o *corev1.PersistentVolume, now time.Time) []any {
	phase, claim := o.Status.Phase, ""
	if o.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if ref := o.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	return []any{o.Name, o.Spec.Capacity.Storage().String(), accessModesCell(o.Spec.AccessModes),
		string(o.Spec.PersistentVolumeReclaimPolicy), string(phase), claim, volumeClass(o, o.Spec.StorageClassName),
		derefOr(o.Spec.VolumeAttributesClassName, cellUnset), o.Status.Reason, age(o.CreationTimestamp, now),
		string(derefOr(o.Spec.VolumeMode, cellUnset))}
}

// persistentVolumeClaimCells leaves the capacity empty if the claim has no volume.
func persistentVolumeClaimCells(o *corev1.PersistentVolumeClaim, now time.Time) []any {
	phase, capacity, modes := o.Status.Phase, "", ""
	if o.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if o.Spec.VolumeName != "" {
		capacity, modes = o.Status.Capacity.Storage().String(), accessModesCell(o.Status.AccessModes)
	}
	return []any{o.Name, string(phase), o.Spec.VolumeName, capacity, modes, volumeClass(o, derefOr(o.Spec.StorageClassName, "")),
		derefOr(o.Spec.VolumeAttributesClassName, cellUnset), age(o.CreationTimestamp, now),
		string(derefOr(o.Spec.VolumeMode, cellUnset))}
}

// volumeClass returns the class of a volume. The deprecated annotation takes precedence over the
// field.
func volumeClass(o metav1.Object, field string) string {
	if class, ok := o.GetAnnotations()[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return field
}

func accessModesCell(modes []corev1.PersistentVolumeAccessMode) string {
	var list []string
	for _, known := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{
		{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(modes, known.mode) {
			list = append(list, known.short)
		}
	}
	return strings.Join(list, ",")
}

func storageClassCells(o *storagev1.StorageClass, now time.Time) []any {
	name := o.Name
	for _, prefix := range []string{"storageclass.kubernetes.io/", "storageclass.beta.kubernetes.io/"} {
		if o.Annotations[prefix+"is-default-class"] == "true" {
			name = o.Name + " (default)"
		}
	}
	return []any{name, o.Provisioner, string(derefOr(o.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)),
		string(derefOr(o.VolumeBindingMode, storagev1.VolumeBindingImmediate)), derefOr(o.AllowVolumeExpansion, false),
		age(o.CreationTimestamp, now)}
}

func csiDriverCells(o *storagev1.CSIDriver, now time.Time) []any {
	modes := make([]string, len(o.Spec.VolumeLifecycleModes))
	for i, m := range o.Spec.VolumeLifecycleModes {
		modes[i] = string(m)
	}
	tokens := cellUnset
	if o.Spec.TokenRequests != nil {
		audiences := make([]string, len(o.Spec.TokenRequests))
		for i, t := range o.Spec.TokenRequests {
			audiences[i] = t.Audience
		}
		tokens = strings.Join(audiences, ",")
	}
	return []any{o.Name, derefOr(o.Spec.AttachRequired, true), derefOr(o.Spec.PodInfoOnMount, false), derefOr(o.Spec.StorageCapacity, false),
		tokens, derefOr(o.Spec.RequiresRepublish, false), joinOr(modes, cellNone), age(o.CreationTimestamp, now)}
}

func claimStateCell(o *resourcev1.ResourceClaim) string {
	var states []string
	if o.DeletionTimestamp != nil {
		states = append(states, "deleted")
	}
	switch {
	case o.Status.Allocation == nil && o.DeletionTimestamp == nil:
		states = append(states, "pending")
	case o.Status.Allocation != nil:
		states = append(states, "allocated")
		if len(o.Status.ReservedFor) > 0 {
			states = append(states, "reserved")
		}
	}
	return strings.Join(states, ",")
}

// Access control

func bindingCells(o metav1.Object, role rbacv1.RoleRef, subjects []rbacv1.Subject, now time.Time) []any {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return []any{o.GetName(), role.Kind + "/" + role.Name, age(o.GetCreationTimestamp(), now),
		strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", ")}
}

func signingRequestCells(o *certificatesv1.CertificateSigningRequest, now time.Time) []any {
	has := func(kind certificatesv1.RequestConditionType) bool {
		return slices.ContainsFunc(o.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == kind })
	}
	condition := "Pending"
	if has(certificatesv1.CertificateDenied) {
		condition = "Denied"
	} else if has(certificatesv1.CertificateApproved) {
		condition = "Approved"
	}
	if has(certificatesv1.CertificateFailed) {
		condition += ",Failed"
	}
	if len(o.Status.Certificate) > 0 {
		condition += ",Issued"
	}
	lifetime := cellNone
	if o.Spec.ExpirationSeconds != nil {
		lifetime = duration.HumanDuration(time.Duration(*o.Spec.ExpirationSeconds) * time.Second)
	}
	return []any{o.Name, age(o.CreationTimestamp, now), cmp.Or(o.Spec.SignerName, cellNone), o.Spec.Username, lifetime, condition}
}

// podCertificateCells displays the last condition that decides the request.
func podCertificateCells(o *certificatesv1.PodCertificateRequest, _ time.Time) []any {
	state := "Pending"
	for _, condition := range o.Status.Conditions {
		switch condition.Type {
		case certificatesv1.PodCertificateRequestConditionTypeIssued, certificatesv1.PodCertificateRequestConditionTypeDenied,
			certificatesv1.PodCertificateRequestConditionTypeFailed:
			state = condition.Type
		}
	}
	return []any{o.Name, o.Spec.PodName, o.Spec.ServiceAccountName, string(o.Spec.NodeName), o.Spec.SignerName, state,
		labels.FormatLabels(o.Spec.UnverifiedUserAnnotations)}
}

func taintRuleCells(o *resourcev1.DeviceTaintRule, now time.Time) []any {
	taint, added := &o.Spec.Taint, ""
	if taint.TimeAdded != nil {
		added = age(*taint.TimeAdded, now)
	}
	return []any{o.Name, taint.Key, taint.Value, string(taint.Effect), added, age(o.CreationTimestamp, now)}
}

// migrationCells displays the last condition that is true.
func migrationCells(o *storagemigrationv1.StorageVersionMigration, _ time.Time) []any {
	resource := metav1.GroupResource{Group: o.Spec.Resource.Group, Resource: o.Spec.Resource.Resource}
	status := "Unknown"
	for _, condition := range o.Status.Conditions {
		switch migration := storagemigrationv1.MigrationConditionType(condition.Type); migration {
		case storagemigrationv1.MigrationRunning, storagemigrationv1.MigrationFailed, storagemigrationv1.MigrationSucceeded:
			if condition.Status == metav1.ConditionTrue {
				status = condition.Type
			}
		}
	}
	return []any{o.Name, resource.String(), status}
}

// definitionCells returns the cells of a CustomResourceDefinition.
func definitionCells(o *apiextensionsv1.CustomResourceDefinition, _ time.Time) []any {
	var versions []string
	for i := range o.Spec.Versions {
		v := &o.Spec.Versions[i]
		switch {
		case v.Served && v.Storage:
			versions = append(versions, v.Name+"(storage)")
		case v.Served:
			versions = append(versions, v.Name)
		}
	}
	slices.Sort(versions)
	established := slices.ContainsFunc(o.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
	return []any{o.Name, string(o.Spec.Scope), strings.Join(versions, ","), o.CreationTimestamp.UTC().Format(time.RFC3339), o.Spec.Group,
		o.Spec.Names.Kind, strings.Join(o.Spec.Names.ShortNames, ","), established}
}

// The cluster

func nodeCells(o *corev1.Node, now time.Time) []any {
	info := &o.Status.NodeInfo
	kernel := cmp.Or(info.KernelVersion, cellUnknown)
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{o.Name, nodeStatus(o), cmp.Or(joinSorted(nodeRoles(o.Labels)), cellNone), age(o.CreationTimestamp, now), info.KubeletVersion,
		nodeAddress(o, corev1.NodeInternalIP), nodeAddress(o, corev1.NodeExternalIP), cmp.Or(info.OSImage, cellUnknown), kernel,
		cmp.Or(info.ContainerRuntimeVersion, cellUnknown)}
}

func nodeStatus(o *corev1.Node) string {
	status := "Unknown"
	for _, c := range o.Status.Conditions {
		switch {
		case c.Type != corev1.NodeReady:
		case c.Status == corev1.ConditionTrue:
			status = "Ready"
		default:
			status = "NotReady"
		}
	}
	if o.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

// nodeRoles returns the roles from both kinds of labels: the role is the suffix of the key or the
// value.
func nodeRoles(nodeLabels map[string]string) []string {
	var roles []string
	for key, value := range nodeLabels {
		if role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/"); ok {
			roles = append(roles, role)
		} else if key == "kubernetes.io/role" {
			roles = append(roles, value)
		}
	}
	return roles
}

func nodeAddress(o *corev1.Node, kind corev1.NodeAddressType) string {
	for _, a := range o.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return cellNone
}

func componentStatusCells(o *corev1.ComponentStatus, _ time.Time) []any {
	for _, c := range o.Conditions {
		if c.Type != corev1.ComponentHealthy {
			continue
		}
		status := "Unhealthy"
		if c.Status == corev1.ConditionTrue {
			status = "Healthy"
		}
		return []any{o.Name, status, c.Message, c.Error}
	}
	return []any{o.Name, "Unknown", "", ""}
}

// eventCells supports timestamps with a count as well as an event time with a series.
func eventCells(o *corev1.Event, now time.Time) []any {
	first := o.FirstTimestamp
	if first.IsZero() {
		first = metav1.Time(o.EventTime)
	}
	last, count := o.LastTimestamp, cmp.Or(o.Count, 1)
	if last.IsZero() {
		last = first
	}
	if o.Series != nil {
		last, count = metav1.Time(o.Series.LastObservedTime), o.Series.Count
	}
	target := strings.ToLower(o.InvolvedObject.Kind)
	if o.InvolvedObject.Name != "" {
		target += "/" + o.InvolvedObject.Name
	}
	source := cmp.Or(o.Source.Component, o.ReportingController)
	if host := cmp.Or(o.Source.Host, o.ReportingInstance); host != "" {
		source += ", " + host
	}
	return []any{age(last, now), o.Type, o.Reason, target, o.InvolvedObject.FieldPath, source, strings.TrimSpace(o.Message),
		age(first, now), int64(count), o.Name}
}

// Configuration of the API server

func resourceQuotaCells(o *corev1.ResourceQuota, now time.Time) []any {
	var requests, limits []string
	for _, name := range slices.Sorted(maps.Keys(o.Status.Hard)) {
		used, hard := o.Status.Used[name], o.Status.Hard[name]
		entry := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
		if strings.HasPrefix(string(name), "limits.") {
			limits = append(limits, entry)
		} else {
			requests = append(requests, entry)
		}
	}
	return []any{o.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), age(o.CreationTimestamp, now)}
}

func paramKindCell(kind *admissionv1.ParamKind) string {
	if kind == nil {
		return cellUnset
	}
	return kind.APIVersion + "/" + kind.Kind
}

// paramRefCell displays */name for a reference without a namespace, because it does not know
// whether the parameter is namespaced.
func paramRefCell(ref *admissionv1.ParamRef) string {
	switch {
	case ref == nil:
		return cellUnset
	case ref.Name != "":
		return cmp.Or(ref.Namespace, "*") + "/" + ref.Name
	case ref.Selector != nil:
		return ref.Selector.String()
	}
	return cellUnset
}

func flowSchemaCells(o *flowcontrolv1.FlowSchema, now time.Time) []any {
	method, dangling := cellNone, "?"
	if o.Spec.DistinguisherMethod != nil {
		method = string(o.Spec.DistinguisherMethod.Type)
	}
	i := slices.IndexFunc(o.Status.Conditions, func(c flowcontrolv1.FlowSchemaCondition) bool {
		return c.Type == flowcontrolv1.FlowSchemaConditionDangling
	})
	if i >= 0 {
		dangling = string(o.Status.Conditions[i].Status)
	}
	return []any{o.Name, o.Spec.PriorityLevelConfiguration.Name, int64(o.Spec.MatchingPrecedence), method, age(o.CreationTimestamp, now), dangling}
}

func priorityLevelCells(o *flowcontrolv1.PriorityLevelConfiguration, now time.Time) []any {
	var shares, queues, handSize, queueLength any = cellNone, cellNone, cellNone, cellNone
	if limited := o.Spec.Limited; limited != nil {
		shares = int64(derefOr(limited.NominalConcurrencyShares, 30))
		if q := limited.LimitResponse.Queuing; q != nil {
			queues, handSize, queueLength = int64(q.Queues), int64(q.HandSize), int64(q.QueueLengthLimit)
		}
	}
	return []any{o.Name, string(o.Spec.Type), shares, queues, handSize, queueLength, age(o.CreationTimestamp, now)}
}

func apiServiceCells(o *apiregistrationv1.APIService, now time.Time) []any {
	from, available := "Local", "Unknown"
	if service := o.Spec.Service; service != nil {
		from = service.Namespace + "/" + service.Name
	}
	for _, c := range o.Status.Conditions {
		if c.Type == apiregistrationv1.Available {
			available = string(c.Status)
			if c.Status != apiregistrationv1.ConditionTrue {
				available += " (" + c.Reason + ")"
			}
		}
	}
	return []any{o.Name, from, available, age(o.CreationTimestamp, now)}
}

// ScaleCells returns the cells of a Scale: name, desired, available, age.
func ScaleCells(o *autoscalingv1.Scale, now time.Time) []any {
	return []any{o.Name, int64(o.Spec.Replicas), int64(o.Status.Replicas), age(o.CreationTimestamp, now)}
}
