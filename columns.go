package main

// This file is the table of tables: for every built-in kind the columns that kubectl get shows, and the function that fills one row.
//
// kubectl asks for a Table and prints what comes, so a list looks as people know it only if the server sends the columns they know:
//
//	NAME    READY   STATUS             RESTARTS        AGE
//	web-0   0/1     CrashLoopBackOff   12 (5m ago)     3d4h
//
// One printer is one row of the table. A column that shows one field is described by that field's own documentation. Wide columns
// (priority 1) are always sent; that kubectl hides them without -o wide is kubectl's affair. Cells are strings, int64s and booleans.
//
// Invariants: a printer fills at least as many cells as it has columns, reads nothing but the object and the clock it is given, and copes
// with every object that the type can hold, however sparse. Of what defaulting would have filled in, only that is assumed whose absence
// would print a falsehood: a Deployment without replicas wants one.

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"path"
	"reflect"
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
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
)

// What a cell says when there is nothing to show.
const (
	cellNone    = "<none>"
	cellUnset   = "<unset>"
	cellUnknown = "<unknown>"
)

// A printer is how one kind is shown.
type printer struct {
	goType  reflect.Type
	columns []metav1.TableColumnDefinition
	cells   func(obj object, now time.Time) []any
}

// columnsOf returns the table columns of a resource, as kubectl get prints them. All callers share the slice: it is for reading.
func columnsOf(res *resource) []metav1.TableColumnDefinition { return printerOf(res).columns }

// cellsOf returns one row's cells for columnsOf(res). now is for ages.
func cellsOf(res *resource, obj object, now time.Time) []any { return printerOf(res).cells(obj, now) }

// rowConditionsOf tells a table's reader which rows are done with: pods that ran to their end, well or badly.
func rowConditionsOf(obj object) []metav1.TableRowCondition {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	c := metav1.TableRowCondition{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(p.Status.Phase)}
	switch p.Status.Phase {
	case corev1.PodSucceeded:
		c.Message = "The pod has completed successfully."
	case corev1.PodFailed:
		c.Message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{c}
}

// printerOf finds the printer of the resource's Go type; else that of its twin, the same kind in another version of the same group; else
// the one that knows metadata alone.
func printerOf(res *resource) *printer {
	if res.goType == nil && res.group != "apiextensions.k8s.io" {
		return &customPrinter
	}
	if res.goType == nil {
		return &plainPrinter
	}
	if p := printers[res.goType]; p != nil {
		return p
	}
	if p := twins[groupKindOf(res.goType)]; p != nil {
		return &printer{res.goType, p.columns, p.cellsOfTwin}
	}
	return &plainPrinter
}

// cellsOfTwin prints an object by way of JSON, in which versions of one kind agree on all that is shown. It is slow, and for versions
// that few still ask for. A field that the two do not agree on is left out.
func (p *printer) cellsOfTwin(obj object, now time.Time) []any {
	twin := reflect.New(p.goType).Interface().(object)
	if data, err := json.Marshal(obj); err == nil {
		_ = json.Unmarshal(data, twin)
	}
	return p.cells(twin, now)
}

// groupKindOf names a Go type without its version: k8s.io/api/batch.CronJob.
func groupKindOf(t reflect.Type) string { return path.Dir(t.PkgPath()) + "." + t.Name() }

var (
	printers, twins = indexed(podPrinters, workloadPrinters, networkPrinters, storagePrinters, accessPrinters, clusterPrinters, policyPrinters)

	// Roles, LimitRanges, CSIStorageCapacities and definitions of custom resources never got columns of their own.
	plainPrinter = printer{
		columns: []metav1.TableColumnDefinition{nameColumn,
			{Name: "Created At", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]}},
		cells: func(obj object, _ time.Time) []any {
			return []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}
		},
	}

	// A custom resource whose definition asks for no columns.
	customPrinter = printer{
		columns: []metav1.TableColumnDefinition{nameColumn,
			{Name: "Age", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]}},
		cells: metadataCells,
	}
)

func indexed(chapters ...[]printer) (byType map[reflect.Type]*printer, byGroupKind map[string]*printer) {
	byType, byGroupKind = map[reflect.Type]*printer{}, map[string]*printer{}
	for _, chapter := range chapters {
		for i := range chapter {
			p := &chapter[i]
			byType[p.goType] = p
			byGroupKind[groupKindOf(p.goType)] = p
		}
	}
	return byType, byGroupKind
}

// prints makes a printer of a typed function.
func prints[T any](cells func(o *T, now time.Time) []any, columns ...metav1.TableColumnDefinition) printer {
	return printer{reflect.TypeFor[T](), columns, func(obj object, now time.Time) []any { return cells(any(obj).(*T), now) }}
}

// printsMetadata makes a printer for a kind of which only the name and the age are shown.
func printsMetadata[T any]() printer {
	return printer{reflect.TypeFor[T](), []metav1.TableColumnDefinition{nameColumn, ageColumn}, metadataCells}
}

func metadataCells(obj object, now time.Time) []any {
	return []any{obj.GetName(), age(obj.GetCreationTimestamp(), now)}
}

// The vocabulary of columns.

var (
	nameColumn = metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}
	ageColumn        = docColumn("Age", metav1.ObjectMeta{}, "creationTimestamp")
	containersColumn = column("Containers", "Names of each container in the template.")
	imagesColumn     = column("Images", "Images referenced by each container in the template.")
)

// column is one that sums up more than one field and is described here.
func column(title, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: title, Type: "string", Description: description}
}

// docColumn is one that shows a field and is described by the field's documentation.
func docColumn(title string, of interface{ SwaggerDoc() map[string]string }, field string) metav1.TableColumnDefinition {
	return column(title, of.SwaggerDoc()[field])
}

func wideColumn(c metav1.TableColumnDefinition) metav1.TableColumnDefinition {
	c.Priority = 1
	return c
}

func intColumn(c metav1.TableColumnDefinition) metav1.TableColumnDefinition {
	c.Type = "integer"
	return c
}

func boolColumn(c metav1.TableColumnDefinition) metav1.TableColumnDefinition {
	c.Type = "boolean"
	return c
}

// The vocabulary of cells.

// age is the time since then as people read it: 90s, 5m10s, 3d4h.
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

// joinOr joins with commas what is there to join.
func joinOr(list []string, empty string) string { return cmp.Or(strings.Join(list, ","), empty) }

// joinThree joins the first three and counts the others.
func joinThree(list []string, empty string) string {
	if len(list) > 3 {
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:3], ","), len(list)-3)
	}
	return joinOr(list, empty)
}

// joinSorted joins each non-empty string once.
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
	var n, i []string
	for _, c := range containers {
		n, i = append(n, c.Name), append(i, c.Image)
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}

// Pods

var podPrinters = []printer{
	prints(podCells, nameColumn,
		column("Ready", "The aggregate readiness state of this pod for accepting traffic."),
		column("Status", "The aggregate status of the containers in this pod."),
		column("Restarts", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted."),
		ageColumn,
		wideColumn(docColumn("IP", corev1.PodStatus{}, "podIP")),
		wideColumn(docColumn("Node", corev1.PodSpec{}, "nodeName")),
		wideColumn(docColumn("Nominated Node", corev1.PodStatus{}, "nominatedNodeName")),
		wideColumn(docColumn("Readiness Gates", corev1.PodSpec{}, "readinessGates"))),
	prints(func(o *corev1.PodTemplate, _ time.Time) []any {
		names, images := containerCells(o.Template.Spec.Containers)
		return []any{o.Name, names, images, labels.FormatLabels(o.Template.Labels)}
	}, nameColumn, containersColumn, imagesColumn, column("Pod Labels", "The labels for the pod template.")),
}

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

// A podSummary is what a pod's containers amount to. reason is the most telling word about the pod: the first init container that holds
// it up, else the first container (in the spec's order) that is not running, else the phase.
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
		if restartable(&p.Spec.InitContainers[i]) {
			sum.total++
		}
	}
	if sum.addInitContainers(p) || podConditionTrue(p, corev1.PodInitialized) {
		sum.addContainers(p)
	}
	if p.DeletionTimestamp != nil {
		sum.reason = deletedReason(p, sum.reason)
	}
	return sum
}

// deletedReason: NodeLost is what a node controller writes when nobody is left to stop the containers.
func deletedReason(p *corev1.Pod, reason string) string {
	switch {
	case p.Status.Reason == "NodeLost":
		return "Unknown"
	case p.Status.Phase == corev1.PodFailed, p.Status.Phase == corev1.PodSucceeded:
		return reason
	}
	return "Terminating"
}

// addInitContainers reports whether all init containers are done with, or run beside the pod as sidecars. Restarts of the others are
// forgotten once they are done.
func (sum *podSummary) addInitContainers(p *corev1.Pod) bool {
	var sidecars restartCount
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		sidecar := isSidecar(p, c.Name)
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
			if podConditionTrue(p, corev1.PodInitialized) {
				sum.restarts = sidecars
			}
			return false
		}
	}
	sum.restarts = sidecars
	return true
}

func restartable(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func isSidecar(p *corev1.Pod, name string) bool {
	i := slices.IndexFunc(p.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
	return i >= 0 && restartable(&p.Spec.InitContainers[i])
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

// addContainers goes backwards, so that of several reasons the first container's stays.
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
	// One container is done. That is not yet the pod's end.
	switch {
	case running && podConditionTrue(p, corev1.PodReady):
		sum.reason = "Running"
	case failure != "":
		sum.reason = failure
	case running:
		sum.reason = "NotReady"
	}
}

// Workloads

var workloadPrinters = []printer{
	prints(deploymentCells, nameColumn,
		column("Ready", "Number of the pod with ready state"),
		docColumn("Up-to-date", appsv1.DeploymentStatus{}, "updatedReplicas"),
		docColumn("Available", appsv1.DeploymentStatus{}, "availableReplicas"),
		ageColumn, wideColumn(containersColumn), wideColumn(imagesColumn),
		wideColumn(docColumn("Selector", appsv1.DeploymentSpec{}, "selector"))),
	prints(func(o *appsv1.ReplicaSet, now time.Time) []any {
		names, images := containerCells(o.Spec.Template.Spec.Containers)
		return []any{o.Name, int64(derefOr(o.Spec.Replicas, 1)), int64(o.Status.Replicas), int64(o.Status.ReadyReplicas),
			age(o.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(o.Spec.Selector)}
	}, nameColumn,
		intColumn(docColumn("Desired", appsv1.ReplicaSetSpec{}, "replicas")),
		intColumn(docColumn("Current", appsv1.ReplicaSetStatus{}, "replicas")),
		intColumn(docColumn("Ready", appsv1.ReplicaSetStatus{}, "readyReplicas")),
		ageColumn, wideColumn(containersColumn), wideColumn(imagesColumn),
		wideColumn(docColumn("Selector", appsv1.ReplicaSetSpec{}, "selector"))),
	prints(func(o *corev1.ReplicationController, now time.Time) []any {
		names, images := containerCells(derefOr(o.Spec.Template, corev1.PodTemplateSpec{}).Spec.Containers)
		return []any{o.Name, int64(derefOr(o.Spec.Replicas, 1)), int64(o.Status.Replicas), int64(o.Status.ReadyReplicas),
			age(o.CreationTimestamp, now), names, images, labels.FormatLabels(o.Spec.Selector)}
	}, nameColumn,
		intColumn(docColumn("Desired", corev1.ReplicationControllerSpec{}, "replicas")),
		intColumn(docColumn("Current", corev1.ReplicationControllerStatus{}, "replicas")),
		intColumn(docColumn("Ready", corev1.ReplicationControllerStatus{}, "readyReplicas")),
		ageColumn, wideColumn(containersColumn), wideColumn(imagesColumn),
		wideColumn(docColumn("Selector", corev1.ReplicationControllerSpec{}, "selector"))),
	prints(func(o *appsv1.StatefulSet, now time.Time) []any {
		names, images := containerCells(o.Spec.Template.Spec.Containers)
		return []any{o.Name, fraction(o.Status.ReadyReplicas, derefOr(o.Spec.Replicas, 1)), age(o.CreationTimestamp, now), names, images}
	}, nameColumn, column("Ready", "Number of the pod with ready state"), ageColumn, wideColumn(containersColumn), wideColumn(imagesColumn)),
	prints(func(o *appsv1.DaemonSet, now time.Time) []any {
		names, images := containerCells(o.Spec.Template.Spec.Containers)
		return []any{o.Name, int64(o.Status.DesiredNumberScheduled), int64(o.Status.CurrentNumberScheduled), int64(o.Status.NumberReady),
			int64(o.Status.UpdatedNumberScheduled), int64(o.Status.NumberAvailable), labels.FormatLabels(o.Spec.Template.Spec.NodeSelector),
			age(o.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(o.Spec.Selector)}
	}, nameColumn,
		intColumn(docColumn("Desired", appsv1.DaemonSetStatus{}, "desiredNumberScheduled")),
		intColumn(docColumn("Current", appsv1.DaemonSetStatus{}, "currentNumberScheduled")),
		intColumn(docColumn("Ready", appsv1.DaemonSetStatus{}, "numberReady")),
		intColumn(docColumn("Up-to-date", appsv1.DaemonSetStatus{}, "updatedNumberScheduled")),
		intColumn(docColumn("Available", appsv1.DaemonSetStatus{}, "numberAvailable")),
		docColumn("Node Selector", corev1.PodSpec{}, "nodeSelector"),
		ageColumn, wideColumn(containersColumn), wideColumn(imagesColumn),
		wideColumn(docColumn("Selector", appsv1.DaemonSetSpec{}, "selector"))),
	prints(jobCells, nameColumn,
		column("Status", "Status of the job."),
		docColumn("Completions", batchv1.JobStatus{}, "succeeded"),
		column("Duration", "Time required to complete the job."),
		ageColumn, wideColumn(containersColumn), wideColumn(imagesColumn),
		wideColumn(docColumn("Selector", batchv1.JobSpec{}, "selector"))),
	prints(cronJobCells, nameColumn,
		docColumn("Schedule", batchv1.CronJobSpec{}, "schedule"),
		docColumn("Timezone", batchv1.CronJobSpec{}, "timeZone"),
		boolColumn(docColumn("Suspend", batchv1.CronJobSpec{}, "suspend")),
		intColumn(docColumn("Active", batchv1.CronJobStatus{}, "active")),
		docColumn("Last Schedule", batchv1.CronJobStatus{}, "lastScheduleTime"),
		ageColumn, wideColumn(containersColumn), wideColumn(imagesColumn),
		wideColumn(docColumn("Selector", batchv1.JobSpec{}, "selector"))),
	prints(controllerRevisionCells, nameColumn,
		column("Controller", "Controller of the object"),
		docColumn("Revision", appsv1.ControllerRevision{}, "revision"),
		ageColumn),
	prints(func(o *policyv1.PodDisruptionBudget, now time.Time) []any {
		least, most := "N/A", "N/A"
		if o.Spec.MinAvailable != nil {
			least = o.Spec.MinAvailable.String()
		}
		if o.Spec.MaxUnavailable != nil {
			most = o.Spec.MaxUnavailable.String()
		}
		return []any{o.Name, least, most, int64(o.Status.DisruptionsAllowed), age(o.CreationTimestamp, now)}
	}, nameColumn,
		column("Min Available", "The minimum number of pods that must be available."),
		column("Max Unavailable", "The maximum number of pods that may be unavailable."),
		intColumn(column("Allowed Disruptions", "Calculated number of pods that may be disrupted at this time.")),
		ageColumn),
	prints(autoscalerCells, autoscalerColumns...),
	prints(func(o *autoscalingv1.HorizontalPodAutoscaler, now time.Time) []any {
		return autoscalerCells(autoscalerOfV1(o), now)
	}, autoscalerColumns...),
	prints(func(o *autoscalingv1.Scale, now time.Time) []any {
		return []any{o.Name, int64(o.Spec.Replicas), int64(o.Status.Replicas), age(o.CreationTimestamp, now)}
	}, docColumn("Name", metav1.ObjectMeta{}, "name"),
		intColumn(docColumn("Desired", autoscalingv1.ScaleSpec{}, "replicas")),
		intColumn(docColumn("Available", autoscalingv1.ScaleStatus{}, "replicas")),
		ageColumn),
}

func deploymentCells(o *appsv1.Deployment, now time.Time) []any {
	names, images := containerCells(o.Spec.Template.Spec.Containers)
	// Unlike the others' selectors this one is empty when it selects nothing or all.
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
	return []any{o.Name, jobStatus(o), completions, took, age(o.CreationTimestamp, now), names, images,
		metav1.FormatLabelSelector(o.Spec.Selector)}
}

func jobStatus(o *batchv1.Job) string {
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
	suspend := "False" // a string, for all that its column is boolean
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
		gk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
		controller = strings.ToLower(gk.String()) + "/" + ref.Name
	}
	return []any{o.Name, controller, o.Revision, age(o.CreationTimestamp, now)}
}

var autoscalerColumns = []metav1.TableColumnDefinition{
	nameColumn,
	docColumn("Reference", autoscalingv2.HorizontalPodAutoscalerSpec{}, "scaleTargetRef"),
	docColumn("Targets", autoscalingv2.HorizontalPodAutoscalerSpec{}, "metrics"),
	docColumn("MinPods", autoscalingv2.HorizontalPodAutoscalerSpec{}, "minReplicas"),
	docColumn("MaxPods", autoscalingv2.HorizontalPodAutoscalerSpec{}, "maxReplicas"),
	docColumn("Replicas", autoscalingv2.HorizontalPodAutoscalerStatus{}, "currentReplicas"),
	ageColumn,
}

func autoscalerCells(o *autoscalingv2.HorizontalPodAutoscaler, now time.Time) []any {
	target := o.Spec.ScaleTargetRef
	return []any{o.Name, target.Kind + "/" + target.Name, metricsCell(o.Spec.Metrics, o.Status.CurrentMetrics),
		strconv.Itoa(int(derefOr(o.Spec.MinReplicas, 1))), int64(o.Spec.MaxReplicas), int64(o.Status.CurrentReplicas),
		age(o.CreationTimestamp, now)}
}

// autoscalerOfV1 keeps what is shown. Version 1 has one metric, the CPU's, and means 80 % of it when silent.
func autoscalerOfV1(o *autoscalingv1.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	usage := derefOr(o.Spec.TargetCPUUtilizationPercentage, 80)
	v2 := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: o.ObjectMeta}
	v2.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference(o.Spec.ScaleTargetRef)
	v2.Spec.MinReplicas, v2.Spec.MaxReplicas = o.Spec.MinReplicas, o.Spec.MaxReplicas
	v2.Status.CurrentReplicas = o.Status.CurrentReplicas
	v2.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{AverageUtilization: &usage}}}}
	if current := o.Status.CurrentCPUUtilizationPercentage; current != nil {
		v2.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{
			Resource: &autoscalingv2.ResourceMetricStatus{Current: autoscalingv2.MetricValueStatus{AverageUtilization: current}}}}
	}
	return v2
}

// metricsCell shows two metrics, each as current/target, and counts the others.
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

// metricCell: each type of metric keeps the same two structs in members of its own.
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

var networkPrinters = []printer{
	prints(serviceCells, nameColumn,
		docColumn("Type", corev1.ServiceSpec{}, "type"),
		docColumn("Cluster-IP", corev1.ServiceSpec{}, "clusterIP"),
		docColumn("External-IP", corev1.ServiceSpec{}, "externalIPs"),
		docColumn("Port(s)", corev1.ServiceSpec{}, "ports"),
		ageColumn,
		wideColumn(docColumn("Selector", corev1.ServiceSpec{}, "selector"))),
	prints(func(o *corev1.Endpoints, now time.Time) []any {
		return []any{o.Name, endpointsCell(o.Subsets), age(o.CreationTimestamp, now)}
	}, nameColumn, docColumn("Endpoints", corev1.Endpoints{}, "subsets"), ageColumn),
	prints(endpointSliceCells, nameColumn,
		docColumn("AddressType", discoveryv1.EndpointSlice{}, "addressType"),
		docColumn("Ports", discoveryv1.EndpointSlice{}, "ports"),
		docColumn("Endpoints", discoveryv1.EndpointSlice{}, "endpoints"),
		ageColumn),
	prints(ingressCells, nameColumn,
		column("Class", "The name of the IngressClass resource that should be used for additional configuration"),
		column("Hosts", "Hosts that incoming requests are matched against before the ingress rule"),
		column("Address", "Address is a list containing ingress points for the load-balancer"),
		column("Ports", "Ports of TLS configurations that open"),
		ageColumn),
	prints(ingressClassCells, nameColumn,
		column("Controller", "Controller that is responsible for handling this class"),
		column("Parameters", "A reference to a resource with additional parameters"),
		ageColumn),
	prints(func(o *networkingv1.NetworkPolicy, now time.Time) []any {
		return []any{o.Name, metav1.FormatLabelSelector(&o.Spec.PodSelector), age(o.CreationTimestamp, now)}
	}, nameColumn, docColumn("Pod-Selector", networkingv1.NetworkPolicySpec{}, "podSelector"), ageColumn),
	prints(func(o *networkingv1.ServiceCIDR, now time.Time) []any {
		return []any{o.Name, strings.Join(o.Spec.CIDRs, ","), age(o.CreationTimestamp, now)}
	}, nameColumn, docColumn("CIDRs", networkingv1.ServiceCIDRSpec{}, "cidrs"), ageColumn),
	prints(ipAddressCells, nameColumn, docColumn("ParentRef", networkingv1.IPAddressSpec{}, "parentRef")),
}

func serviceCells(o *corev1.Service, now time.Time) []any {
	ip := cmp.Or(o.Spec.ClusterIP, cellNone)
	if len(o.Spec.ClusterIPs) > 0 {
		ip = o.Spec.ClusterIPs[0]
	}
	return []any{o.Name, string(o.Spec.Type), ip, externalIPCell(o), joinOr(servicePorts(o.Spec.Ports), cellNone),
		age(o.CreationTimestamp, now), labels.FormatLabels(o.Spec.Selector)}
}

func externalIPCell(o *corev1.Service) string {
	switch o.Spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort:
		return joinOr(o.Spec.ExternalIPs, cellNone)
	case corev1.ServiceTypeExternalName:
		return o.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		var balancers []string
		for _, in := range o.Status.LoadBalancer.Ingress {
			balancers = append(balancers, cmp.Or(in.IP, in.Hostname))
		}
		all := o.Spec.ExternalIPs
		if first := joinSorted(balancers); first != "" {
			all = append([]string{first}, all...)
		}
		return joinOr(all, "<pending>")
	}
	return cellUnknown
}

func servicePorts(ports []corev1.ServicePort) []string {
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
	var list []string
	for _, subset := range subsets {
		for _, addr := range subset.Addresses {
			if len(subset.Ports) == 0 { // a headless service may have none
				list = append(list, addr.IP)
			}
		}
		for _, port := range subset.Ports {
			for _, addr := range subset.Addresses {
				list = append(list, net.JoinHostPort(addr.IP, strconv.Itoa(int(port.Port))))
			}
		}
	}
	return joinThree(list, "")
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

// hostsCell counts rules, not hosts, beyond the third host.
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

// ipAddressCells has a cell more than there are columns, as kube-apiserver does; kubectl ignores it.
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

var storagePrinters = []printer{
	prints(func(o *corev1.ConfigMap, now time.Time) []any {
		return []any{o.Name, int64(len(o.Data) + len(o.BinaryData)), age(o.CreationTimestamp, now)}
	}, nameColumn, docColumn("Data", corev1.ConfigMap{}, "data"), ageColumn),
	prints(func(o *corev1.Secret, now time.Time) []any {
		return []any{o.Name, string(o.Type), int64(len(o.Data)), age(o.CreationTimestamp, now)}
	}, nameColumn, docColumn("Type", corev1.Secret{}, "type"), docColumn("Data", corev1.Secret{}, "data"), ageColumn),
	prints(persistentVolumeCells, nameColumn,
		docColumn("Capacity", corev1.PersistentVolumeSpec{}, "capacity"),
		docColumn("Access Modes", corev1.PersistentVolumeSpec{}, "accessModes"),
		docColumn("Reclaim Policy", corev1.PersistentVolumeSpec{}, "persistentVolumeReclaimPolicy"),
		docColumn("Status", corev1.PersistentVolumeStatus{}, "phase"),
		docColumn("Claim", corev1.PersistentVolumeSpec{}, "claimRef"),
		column("StorageClass", "StorageClass of the pv"),
		column("VolumeAttributesClass", "VolumeAttributesClass of the pv"),
		docColumn("Reason", corev1.PersistentVolumeStatus{}, "reason"),
		ageColumn,
		wideColumn(docColumn("VolumeMode", corev1.PersistentVolumeSpec{}, "volumeMode"))),
	prints(persistentVolumeClaimCells, nameColumn,
		docColumn("Status", corev1.PersistentVolumeClaimStatus{}, "phase"),
		docColumn("Volume", corev1.PersistentVolumeClaimSpec{}, "volumeName"),
		docColumn("Capacity", corev1.PersistentVolumeClaimStatus{}, "capacity"),
		docColumn("Access Modes", corev1.PersistentVolumeClaimStatus{}, "accessModes"),
		column("StorageClass", "StorageClass of the pvc"),
		column("VolumeAttributesClass", "VolumeAttributesClass of the pvc"),
		ageColumn,
		wideColumn(docColumn("VolumeMode", corev1.PersistentVolumeClaimSpec{}, "volumeMode"))),
	prints(storageClassCells, nameColumn,
		docColumn("Provisioner", storagev1.StorageClass{}, "provisioner"),
		docColumn("ReclaimPolicy", storagev1.StorageClass{}, "reclaimPolicy"),
		docColumn("VolumeBindingMode", storagev1.StorageClass{}, "volumeBindingMode"),
		docColumn("AllowVolumeExpansion", storagev1.StorageClass{}, "allowVolumeExpansion"),
		ageColumn),
	prints(func(o *storagev1.VolumeAttributesClass, now time.Time) []any {
		return []any{o.Name, o.DriverName, age(o.CreationTimestamp, now)}
	}, nameColumn, docColumn("DriverName", storagev1.VolumeAttributesClass{}, "driverName"), ageColumn),
	prints(func(o *storagev1.VolumeAttachment, now time.Time) []any {
		return []any{o.Name, o.Spec.Attacher, derefOr(o.Spec.Source.PersistentVolumeName, ""), o.Spec.NodeName, o.Status.Attached,
			age(o.CreationTimestamp, now)}
	}, nameColumn,
		metav1.TableColumnDefinition{Name: "Attacher", Type: "string", Format: "name",
			Description: storagev1.VolumeAttachmentSpec{}.SwaggerDoc()["attacher"]},
		docColumn("PV", storagev1.VolumeAttachmentSource{}, "persistentVolumeName"),
		docColumn("Node", storagev1.VolumeAttachmentSpec{}, "nodeName"),
		boolColumn(docColumn("Attached", storagev1.VolumeAttachmentStatus{}, "attached")),
		ageColumn),
	prints(csiDriverCells, nameColumn,
		boolColumn(docColumn("AttachRequired", storagev1.CSIDriverSpec{}, "attachRequired")),
		boolColumn(docColumn("PodInfoOnMount", storagev1.CSIDriverSpec{}, "podInfoOnMount")),
		boolColumn(docColumn("StorageCapacity", storagev1.CSIDriverSpec{}, "storageCapacity")),
		docColumn("TokenRequests", storagev1.CSIDriverSpec{}, "tokenRequests"),
		boolColumn(docColumn("RequiresRepublish", storagev1.CSIDriverSpec{}, "requiresRepublish")),
		docColumn("Modes", storagev1.CSIDriverSpec{}, "volumeLifecycleModes"),
		ageColumn),
	prints(func(o *storagev1.CSINode, now time.Time) []any {
		return []any{o.Name, int64(len(o.Spec.Drivers)), age(o.CreationTimestamp, now)}
	}, nameColumn, intColumn(column("Drivers", "Drivers indicates the number of CSI drivers registered on the node")), ageColumn),
	prints(storageVersionMigrationCells, docColumn("Name", metav1.ObjectMeta{}, "name"),
		column("Resource", "GroupResource to migrate"),
		column("Status", "Status of the migration")),
	printsMetadata[resourcev1.DeviceClass](),
	printsMetadata[resourcev1.ResourceClaimTemplate](),
	prints(func(o *resourcev1.ResourceClaim, now time.Time) []any {
		return []any{o.Name, claimState(o), age(o.CreationTimestamp, now)}
	}, nameColumn, column("State", "A summary of the current state (allocated, pending, reserved, etc.)."), ageColumn),
	prints(func(o *resourcev1.ResourceSlice, now time.Time) []any {
		return []any{o.Name, derefOr(o.Spec.NodeName, ""), o.Spec.Driver, o.Spec.Pool.Name, age(o.CreationTimestamp, now)}
	}, nameColumn,
		docColumn("Node", resourcev1.ResourceSliceSpec{}, "nodeName"),
		docColumn("Driver", resourcev1.ResourceSliceSpec{}, "driver"),
		docColumn("Pool", resourcev1.ResourcePool{}, "name"),
		ageColumn),
	prints(func(o *resourcev1beta2.DeviceTaintRule, now time.Time) []any {
		taint, added := o.Spec.Taint, ""
		if taint.TimeAdded != nil {
			added = age(*taint.TimeAdded, now)
		}
		return []any{o.Name, taint.Key, taint.Value, string(taint.Effect), added, age(o.CreationTimestamp, now)}
	}, nameColumn,
		docColumn("Key", resourcev1.DeviceTaint{}, "key"),
		docColumn("Value", resourcev1.DeviceTaint{}, "value"),
		docColumn("Effect", resourcev1.DeviceTaint{}, "effect"),
		docColumn("TimeAdded", resourcev1.DeviceTaint{}, "timeAdded"),
		ageColumn),
}

func persistentVolumeCells(o *corev1.PersistentVolume, now time.Time) []any {
	phase, claim := o.Status.Phase, ""
	if o.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if ref := o.Spec.ClaimRef; ref != nil {
		claim = ref.Namespace + "/" + ref.Name
	}
	return []any{o.Name, o.Spec.Capacity.Storage().String(), accessModes(o.Spec.AccessModes),
		string(o.Spec.PersistentVolumeReclaimPolicy), string(phase), claim, volumeClass(o, o.Spec.StorageClassName),
		derefOr(o.Spec.VolumeAttributesClassName, cellUnset), o.Status.Reason, age(o.CreationTimestamp, now),
		string(derefOr(o.Spec.VolumeMode, cellUnset))}
}

// persistentVolumeClaimCells shows nothing of a capacity before there is a volume that has it.
func persistentVolumeClaimCells(o *corev1.PersistentVolumeClaim, now time.Time) []any {
	phase, capacity, modes := o.Status.Phase, "", ""
	if o.DeletionTimestamp != nil {
		phase = "Terminating"
	}
	if o.Spec.VolumeName != "" {
		capacity, modes = o.Status.Capacity.Storage().String(), accessModes(o.Status.AccessModes)
	}
	return []any{o.Name, string(phase), o.Spec.VolumeName, capacity, modes, volumeClass(o, derefOr(o.Spec.StorageClassName, "")),
		derefOr(o.Spec.VolumeAttributesClassName, cellUnset), age(o.CreationTimestamp, now),
		string(derefOr(o.Spec.VolumeMode, cellUnset))}
}

// volumeClass: the annotation is older than the field, and stronger.
func volumeClass(o metav1.Object, field string) string {
	if class, ok := o.GetAnnotations()[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return field
}

func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
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

func storageVersionMigrationCells(o *storagemigrationv1beta1.StorageVersionMigration, _ time.Time) []any {
	status := "Unknown"
	for _, c := range o.Status.Conditions {
		switch storagemigrationv1beta1.MigrationConditionType(c.Type) {
		case storagemigrationv1beta1.MigrationRunning, storagemigrationv1beta1.MigrationFailed, storagemigrationv1beta1.MigrationSucceeded:
			if c.Status == metav1.ConditionTrue {
				status = c.Type
			}
		}
	}
	return []any{o.Name, o.Spec.Resource.String(), status}
}

func claimState(o *resourcev1.ResourceClaim) string {
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

// Who may do what

var accessPrinters = []printer{
	printsMetadata[corev1.ServiceAccount](),
	prints(func(o *rbacv1.RoleBinding, now time.Time) []any {
		return bindingCells(o, o.RoleRef, o.Subjects, now)
	}, bindingColumns("roleBinding", rbacv1.RoleBinding{})...),
	prints(func(o *rbacv1.ClusterRoleBinding, now time.Time) []any {
		return bindingCells(o, o.RoleRef, o.Subjects, now)
	}, bindingColumns("clusterRoleBinding", rbacv1.ClusterRoleBinding{})...),
	prints(signingRequestCells, nameColumn, ageColumn,
		docColumn("SignerName", certificatesv1.CertificateSigningRequestSpec{}, "signerName"),
		docColumn("Requestor", certificatesv1.CertificateSigningRequestSpec{}, "request"),
		docColumn("RequestedDuration", certificatesv1.CertificateSigningRequestSpec{}, "expirationSeconds"),
		docColumn("Condition", certificatesv1.CertificateSigningRequestStatus{}, "conditions")),
	prints(func(o *certificatesv1beta1.ClusterTrustBundle, _ time.Time) []any {
		return []any{o.Name, cmp.Or(o.Spec.SignerName, cellNone)}
	}, nameColumn, docColumn("SignerName", certificatesv1beta1.ClusterTrustBundleSpec{}, "signerName")),
	prints(podCertificateRequestCells, nameColumn,
		docColumn("PodName", certificatesv1beta1.PodCertificateRequestSpec{}, "podName"),
		docColumn("ServiceAccountName", certificatesv1beta1.PodCertificateRequestSpec{}, "serviceAccountName"),
		docColumn("NodeName", certificatesv1beta1.PodCertificateRequestSpec{}, "nodeName"),
		docColumn("SignerName", certificatesv1beta1.PodCertificateRequestSpec{}, "signerName"),
		column("State", "Is the request Pending, Issued, Denied, or Failed?"),
		docColumn("UnverifiedUserAnnotations", certificatesv1beta1.PodCertificateRequestSpec{}, "unverifiedUserAnnotations")),
}

func bindingColumns(kind string, of interface{ SwaggerDoc() map[string]string }) []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{nameColumn, docColumn("Role", of, "roleRef"), ageColumn,
		wideColumn(column("Users", "Users in the "+kind)),
		wideColumn(column("Groups", "Groups in the "+kind)),
		wideColumn(column("ServiceAccounts", "ServiceAccounts in the "+kind))}
}

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

func podCertificateRequestCells(o *certificatesv1beta1.PodCertificateRequest, _ time.Time) []any {
	state := "Pending"
	for _, c := range o.Status.Conditions {
		switch c.Type {
		case "Issued", "Denied", "Failed":
			state = c.Type
		}
	}
	return []any{o.Name, o.Spec.PodName, o.Spec.ServiceAccountName, string(o.Spec.NodeName), o.Spec.SignerName, state,
		labels.FormatLabels(o.Spec.UnverifiedUserAnnotations)}
}

// The cluster

var clusterPrinters = []printer{
	prints(func(o *corev1.Namespace, now time.Time) []any {
		return []any{o.Name, string(o.Status.Phase), age(o.CreationTimestamp, now)}
	}, nameColumn, column("Status", "The status of the namespace"), ageColumn),
	prints(nodeCells, nameColumn,
		column("Status", "The status of the node"),
		column("Roles", "The roles of the node"),
		ageColumn,
		docColumn("Version", corev1.NodeSystemInfo{}, "kubeletVersion"),
		wideColumn(docColumn("Internal-IP", corev1.NodeStatus{}, "addresses")),
		wideColumn(docColumn("External-IP", corev1.NodeStatus{}, "addresses")),
		wideColumn(docColumn("OS-Image", corev1.NodeSystemInfo{}, "osImage")),
		wideColumn(docColumn("Kernel-Version", corev1.NodeSystemInfo{}, "kernelVersion")),
		wideColumn(docColumn("Container-Runtime", corev1.NodeSystemInfo{}, "containerRuntimeVersion"))),
	prints(componentStatusCells, nameColumn,
		column("Status", "Status of the component conditions"),
		column("Message", "Message of the component conditions"),
		column("Error", "Error of the component conditions")),
	prints(eventCells, eventColumns...),
	prints(func(o *eventsv1.Event, now time.Time) []any { return eventCells(eventOfV1(o), now) }, eventColumns...),
	prints(func(o *coordinationv1.Lease, now time.Time) []any {
		return []any{o.Name, derefOr(o.Spec.HolderIdentity, ""), age(o.CreationTimestamp, now)}
	}, nameColumn, docColumn("Holder", coordinationv1.LeaseSpec{}, "holderIdentity"), ageColumn),
	prints(func(o *coordinationv1beta1.LeaseCandidate, now time.Time) []any {
		return []any{o.Name, o.Spec.LeaseName, o.Spec.BinaryVersion, o.Spec.EmulationVersion, age(o.CreationTimestamp, now)}
	}, nameColumn, docColumn("LeaseName", coordinationv1beta1.LeaseCandidateSpec{}, "leaseName"),
		column("BinaryVersion", ""), column("EmulationVersion", ""), ageColumn),
	prints(func(o *nodev1.RuntimeClass, now time.Time) []any {
		return []any{o.Name, o.Handler, age(o.CreationTimestamp, now)}
	}, nameColumn, column("Handler", ""), ageColumn),
	prints(func(o *schedulingv1.PriorityClass, now time.Time) []any {
		return []any{o.Name, int64(o.Value), o.GlobalDefault, age(o.CreationTimestamp, now), string(derefOr(o.PreemptionPolicy, ""))}
	}, nameColumn,
		intColumn(docColumn("Value", schedulingv1.PriorityClass{}, "value")),
		boolColumn(docColumn("Global-Default", schedulingv1.PriorityClass{}, "globalDefault")),
		ageColumn,
		docColumn("PreemptionPolicy", schedulingv1.PriorityClass{}, "preemptionPolicy")),
}

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

// nodeRoles knows the two spellings: a label that ends in the role, and one whose value is the role.
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

var eventColumns = []metav1.TableColumnDefinition{
	docColumn("Last Seen", corev1.Event{}, "lastTimestamp"),
	docColumn("Type", corev1.Event{}, "type"),
	docColumn("Reason", corev1.Event{}, "reason"),
	docColumn("Object", corev1.Event{}, "involvedObject"),
	wideColumn(docColumn("Subobject", corev1.ObjectReference{}, "fieldPath")),
	wideColumn(docColumn("Source", corev1.Event{}, "source")),
	docColumn("Message", corev1.Event{}, "message"),
	wideColumn(docColumn("First Seen", corev1.Event{}, "firstTimestamp")),
	wideColumn(docColumn("Count", corev1.Event{}, "count")),
	wideColumn(nameColumn),
}

// eventCells reads both ways of telling when and how often: core's two times and count, and the newer event time and series.
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

// eventOfV1 keeps what is shown of an event that was asked for in the events.k8s.io group.
func eventOfV1(o *eventsv1.Event) *corev1.Event {
	core := &corev1.Event{ObjectMeta: o.ObjectMeta, InvolvedObject: o.Regarding, Reason: o.Reason, Message: o.Note, Type: o.Type,
		Source: o.DeprecatedSource, FirstTimestamp: o.DeprecatedFirstTimestamp, LastTimestamp: o.DeprecatedLastTimestamp,
		Count: o.DeprecatedCount, EventTime: o.EventTime, ReportingController: o.ReportingController, ReportingInstance: o.ReportingInstance}
	if o.Series != nil {
		core.Series = &corev1.EventSeries{Count: o.Series.Count, LastObservedTime: o.Series.LastObservedTime}
	}
	return core
}

// Rules that the API server itself keeps

var policyPrinters = []printer{
	prints(resourceQuotaCells, nameColumn,
		column("Request", "Request represents a minimum amount of cpu/memory that a container may consume."),
		column("Limit", "Limits control the maximum amount of cpu/memory that a container may use independent of contention on the node."),
		ageColumn),
	prints(func(o *admissionv1.MutatingWebhookConfiguration, now time.Time) []any {
		return []any{o.Name, int64(len(o.Webhooks)), age(o.CreationTimestamp, now)}
	}, nameColumn, webhooksColumn, ageColumn),
	prints(func(o *admissionv1.ValidatingWebhookConfiguration, now time.Time) []any {
		return []any{o.Name, int64(len(o.Webhooks)), age(o.CreationTimestamp, now)}
	}, nameColumn, webhooksColumn, ageColumn),
	prints(func(o *admissionv1.ValidatingAdmissionPolicy, now time.Time) []any {
		return []any{o.Name, int64(len(o.Spec.Validations)), paramKindCell(o.Spec.ParamKind), age(o.CreationTimestamp, now)}
	}, nameColumn,
		intColumn(column("Validations", "Validations indicates the number of validation rules defined in this configuration")),
		paramKindColumn, ageColumn),
	prints(func(o *admissionv1.MutatingAdmissionPolicy, now time.Time) []any {
		return []any{o.Name, int64(len(o.Spec.Mutations)), paramKindCell(o.Spec.ParamKind), age(o.CreationTimestamp, now)}
	}, nameColumn,
		intColumn(column("Mutations", "Mutation indicates the number of mutations rules defined in this configuration")),
		paramKindColumn, ageColumn),
	prints(func(o *admissionv1.ValidatingAdmissionPolicyBinding, now time.Time) []any {
		return []any{o.Name, o.Spec.PolicyName, paramRefCell(o.Spec.ParamRef), age(o.CreationTimestamp, now)}
	}, nameColumn, policyNameColumn, paramRefColumn, ageColumn),
	prints(func(o *admissionv1.MutatingAdmissionPolicyBinding, now time.Time) []any {
		return []any{o.Name, o.Spec.PolicyName, paramRefCell(o.Spec.ParamRef), age(o.CreationTimestamp, now)}
	}, nameColumn, policyNameColumn, paramRefColumn, ageColumn),
	prints(flowSchemaCells, nameColumn,
		docColumn("PriorityLevel", flowcontrolv1.PriorityLevelConfigurationReference{}, "name"),
		docColumn("MatchingPrecedence", flowcontrolv1.FlowSchemaSpec{}, "matchingPrecedence"),
		docColumn("DistinguisherMethod", flowcontrolv1.FlowSchemaSpec{}, "distinguisherMethod"),
		ageColumn,
		column("MissingPL", "references a broken or non-existent PriorityLevelConfiguration")),
	prints(priorityLevelCells, nameColumn,
		docColumn("Type", flowcontrolv1.PriorityLevelConfigurationSpec{}, "type"),
		docColumn("NominalConcurrencyShares", flowcontrolv1.LimitedPriorityLevelConfiguration{}, "nominalConcurrencyShares"),
		docColumn("Queues", flowcontrolv1.QueuingConfiguration{}, "queues"),
		docColumn("HandSize", flowcontrolv1.QueuingConfiguration{}, "handSize"),
		docColumn("QueueLengthLimit", flowcontrolv1.QueuingConfiguration{}, "queueLengthLimit"),
		ageColumn),
}

var (
	webhooksColumn   = intColumn(column("Webhooks", "Webhooks indicates the number of webhooks registered in this configuration"))
	paramKindColumn  = column("ParamKind", "ParamKind specifies the kind of resources used to parameterize this policy")
	policyNameColumn = column("PolicyName", "PolicyName indicates the policy definition which the policy binding binded to")
	paramRefColumn   = column("ParamRef", "ParamRef indicates the param resource which sets the configuration param")
)

func resourceQuotaCells(o *corev1.ResourceQuota, now time.Time) []any {
	var requests, limits []string
	for name, hard := range o.Status.Hard {
		used := o.Status.Used[name]
		entry := fmt.Sprintf("%s: %s/%s", name, used.String(), hard.String())
		if strings.HasPrefix(string(name), "limits.") {
			limits = append(limits, entry)
		} else {
			requests = append(requests, entry)
		}
	}
	slices.Sort(requests)
	slices.Sort(limits)
	return []any{o.Name, strings.Join(requests, ", "), strings.Join(limits, ", "), age(o.CreationTimestamp, now)}
}

func paramKindCell(kind *admissionv1.ParamKind) string {
	if kind == nil {
		return cellUnset
	}
	return kind.APIVersion + "/" + kind.Kind
}

// paramRefCell cannot see whether the parameter lives in a namespace, so a bare name could be in any: */name.
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
