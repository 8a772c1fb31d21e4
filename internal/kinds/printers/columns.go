package printers

// This file defines the columns that kubectl get displays for each built-in kind, and the function
// that computes a row.
//
// kubectl requests a Table and prints it, so the server must send the columns that users expect:
//
//	NAME    READY   STATUS             RESTARTS        AGE
//	web-0   0/1     CrashLoopBackOff   12 (5m ago)     3d4h
//
// A printer describes the table for a given kind. If a column displays a field, its description is
// the documentation of the field. Wide columns (priority 1) are always sent. kubectl hides them
// without -o wide. Cells that do not just display a field are computed in cells.go.

import (
	"cmp"
	"path"
	"reflect"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"apilet/internal/scheme"
	"apilet/internal/scheme/internalversion"
)

// printer describes the table for a given kind.
type printer struct {
	goType  reflect.Type
	columns []metav1.TableColumnDefinition
	cells   func(obj scheme.Object, now time.Time) []any
}

// ColumnsOf returns the table columns of a resource. Callers must not modify the slice.
func ColumnsOf(res *scheme.Resource) []metav1.TableColumnDefinition {
	if c := res.Custom; c != nil && c.Columns != nil {
		return c.Columns()
	}
	return printerOf(res).columns
}

// NullIfEmpty reports whether kube-apiserver sends null for the rows of an empty table. This is
// the case for types without their own printer and for CustomResourceDefinitions.
func NullIfEmpty(res *scheme.Resource) bool {
	return printerOf(res) == &plainPrinter || res.Group == "apiextensions.k8s.io"
}

// CellsOf returns the cells of one row, in the order of ColumnsOf(res). now is used to compute
// ages.
func CellsOf(res *scheme.Resource, obj scheme.Object, now time.Time) []any {
	if c := res.Custom; c != nil && c.Cells != nil {
		return c.Cells(obj, now)
	}
	return printerOf(res).cells(obj, now)
}

// RowConditionsOf returns the condition of a completed Pod, which clients use to recognize
// finished rows.
func RowConditionsOf(obj scheme.Object) []metav1.TableRowCondition {
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

// printerOf returns the printer for the Go type of the resource. If there is none, it returns the
// printer for another version of the same kind, or else plainPrinter.
func printerOf(res *scheme.Resource) *printer {
	if res.GoType == nil {
		return &customPrinter
	}
	if p := printers[res.GoType]; p != nil {
		return p
	}
	if p := twins[groupKindOf(res.GoType)]; p != nil {
		return &printer{res.GoType, p.columns, p.cellsOfTwin}
	}
	return &plainPrinter
}

// cellsOfTwin returns the cells for an object that has a different version than the printer.
func (p *printer) cellsOfTwin(obj scheme.Object, now time.Time) []any {
	twin := reflect.New(p.goType).Interface().(scheme.Object)
	internalversion.Into(twin, internalversion.From(obj))
	return p.cells(twin, now)
}

// groupKindOf returns the name of a Go type without its version, such as
// "k8s.io/api/batch.CronJob".
func groupKindOf(t reflect.Type) string { return path.Dir(t.PkgPath()) + "." + t.Name() }

var (
	printers, twins = indexed(podPrinters, workloadPrinters, networkPrinters, storagePrinters, accessPrinters, clusterPrinters, policyPrinters)

	// plainPrinter is used for Roles, LimitRanges, CSIStorageCapacities and other types without a
	// printer.
	plainPrinter = printer{
		columns: definitions(nameColumn,
			&metav1.TableColumnDefinition{Name: "Created At", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]}),
		cells: func(obj scheme.Object, _ time.Time) []any {
			return []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}
		},
	}

	// customPrinter is used for custom resources if the definition does not specify any columns.
	customPrinter = printer{
		columns: definitions(nameColumn,
			&metav1.TableColumnDefinition{Name: "Age", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]}),
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

// prints returns a printer that uses a typed function.
func prints[T any](cells func(o *T, now time.Time) []any, columns ...columnRef) printer {
	return printer{reflect.TypeFor[T](), definitions(columns...), func(obj scheme.Object, now time.Time) []any { return cells(any(obj).(*T), now) }}
}

// printsMetadata returns a printer for a kind with only the columns name and age.
func printsMetadata[T any]() printer {
	return printer{reflect.TypeFor[T](), definitions(nameColumn, ageColumn), metadataCells}
}

func metadataCells(obj scheme.Object, now time.Time) []any {
	return []any{obj.GetName(), age(obj.GetCreationTimestamp(), now)}
}

// Columns.

// A columnRef is a column in the tables below. It is a pointer, because the tables are initialized
// by code that runs once. Copying structs of 72 bytes three hundred times made that code the
// longest function of the program. For the same reason, the functions that create columns are not
// inlined.
type columnRef = *metav1.TableColumnDefinition

var (
	nameColumn       = &metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]}
	ageColumn        = docColumn("Age", metav1.ObjectMeta{}, "creationTimestamp")
	containersColumn = column("Containers", "Names of each container in the template.")
	imagesColumn     = column("Images", "Images referenced by each container in the template.")
)

// definitions returns the columns as values.
func definitions(columns ...columnRef) []metav1.TableColumnDefinition {
	out := make([]metav1.TableColumnDefinition, len(columns))
	for i, c := range columns {
		out[i] = *c
	}
	return out
}

// column returns a column with a custom description, which is usually needed if it combines
// several fields.
//
//go:noinline
func column(title, description string) columnRef {
	return &metav1.TableColumnDefinition{Name: title, Type: "string", Description: description}
}

// docColumn returns a column that displays a field. Its description is the field's documentation.
//
//go:noinline
func docColumn(title string, of interface{ SwaggerDoc() map[string]string }, field string) columnRef {
	return column(title, of.SwaggerDoc()[field])
}

//go:noinline
func wideColumn(c columnRef) columnRef {
	wide := *c
	wide.Priority = 1
	return &wide
}

//go:noinline
func intColumn(c columnRef) columnRef {
	number := *c
	number.Type = "integer"
	return &number
}

func boolColumn(c columnRef) columnRef {
	truth := *c
	truth.Type = "boolean"
	return &truth
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
}

var autoscalerColumns = []columnRef{
	nameColumn,
	docColumn("Reference", autoscalingv2.HorizontalPodAutoscalerSpec{}, "scaleTargetRef"),
	docColumn("Targets", autoscalingv2.HorizontalPodAutoscalerSpec{}, "metrics"),
	docColumn("MinPods", autoscalingv2.HorizontalPodAutoscalerSpec{}, "minReplicas"),
	docColumn("MaxPods", autoscalingv2.HorizontalPodAutoscalerSpec{}, "maxReplicas"),
	docColumn("Replicas", autoscalingv2.HorizontalPodAutoscalerStatus{}, "currentReplicas"),
	ageColumn,
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
		&metav1.TableColumnDefinition{Name: "Attacher", Type: "string", Format: "name",
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
	printsMetadata[resourcev1.DeviceClass](),
	printsMetadata[resourcev1.ResourceClaimTemplate](),
	prints(func(o *resourcev1.ResourceClaim, now time.Time) []any {
		return []any{o.Name, claimStateCell(o), age(o.CreationTimestamp, now)}
	}, nameColumn, column("State", "A summary of the current state (allocated, pending, reserved, etc.)."), ageColumn),
	prints(taintRuleCells, nameColumn,
		docColumn("Key", resourcev1.DeviceTaint{}, "key"),
		docColumn("Value", resourcev1.DeviceTaint{}, "value"),
		docColumn("Effect", resourcev1.DeviceTaint{}, "effect"),
		docColumn("TimeAdded", resourcev1.DeviceTaint{}, "timeAdded"),
		ageColumn),
	prints(migrationCells,
		docColumn("Name", metav1.ObjectMeta{}, "name"),
		column("Resource", "GroupResource to migrate"),
		column("Status", "Status of the migration")),
	prints(func(o *resourcev1.ResourceSlice, now time.Time) []any {
		return []any{o.Name, derefOr(o.Spec.NodeName, ""), o.Spec.Driver, o.Spec.Pool.Name, age(o.CreationTimestamp, now)}
	}, nameColumn,
		docColumn("Node", resourcev1.ResourceSliceSpec{}, "nodeName"),
		docColumn("Driver", resourcev1.ResourceSliceSpec{}, "driver"),
		docColumn("Pool", resourcev1.ResourcePool{}, "name"),
		ageColumn),
}

// Access control. Kubernetes uses the descriptions from v1beta1. Those types are not linked for
// any other purpose, so the descriptions that differ from v1 are repeated here.

const signerDoc = "Requested signer for the request. It is a qualified name in the form: `scope-hostname.io/name`. If empty, it will be defaulted:\n" +
	" 1. If it's a kubelet client certificate, it is assigned\n    \"kubernetes.io/kube-apiserver-client-kubelet\".\n" +
	" 2. If it's a kubelet serving certificate, it is assigned\n    \"kubernetes.io/kubelet-serving\".\n" +
	" 3. Otherwise, it is assigned \"kubernetes.io/legacy-unknown\".\n" +
	"Distribution of trust for signers happens out of band. You can select on this field using `spec.signerName`."

var accessPrinters = []printer{
	printsMetadata[corev1.ServiceAccount](),
	prints(func(o *rbacv1.RoleBinding, now time.Time) []any {
		return bindingCells(o, o.RoleRef, o.Subjects, now)
	}, bindingColumns("roleBinding", rbacv1.RoleBinding{})...),
	prints(func(o *rbacv1.ClusterRoleBinding, now time.Time) []any {
		return bindingCells(o, o.RoleRef, o.Subjects, now)
	}, bindingColumns("clusterRoleBinding", rbacv1.ClusterRoleBinding{})...),
	prints(signingRequestCells, nameColumn, ageColumn,
		column("SignerName", signerDoc),
		column("Requestor", "Base64-encoded PKCS#10 CSR data"),
		docColumn("RequestedDuration", certificatesv1.CertificateSigningRequestSpec{}, "expirationSeconds"),
		column("Condition", "Conditions applied to the request, such as approval or denial.")),
	prints(func(o *certificatesv1.ClusterTrustBundle, _ time.Time) []any {
		return []any{o.Name, cmp.Or(o.Spec.SignerName, cellNone)}
	}, nameColumn, docColumn("SignerName", certificatesv1.ClusterTrustBundleSpec{}, "signerName")),
	prints(podCertificateCells, nameColumn,
		docColumn("PodName", certificatesv1.PodCertificateRequestSpec{}, "podName"),
		docColumn("ServiceAccountName", certificatesv1.PodCertificateRequestSpec{}, "serviceAccountName"),
		docColumn("NodeName", certificatesv1.PodCertificateRequestSpec{}, "nodeName"),
		docColumn("SignerName", certificatesv1.PodCertificateRequestSpec{}, "signerName"),
		column("State", "Is the request Pending, Issued, Denied, or Failed?"),
		docColumn("UnverifiedUserAnnotations", certificatesv1.PodCertificateRequestSpec{}, "unverifiedUserAnnotations")),
}

func bindingColumns(kind string, of interface{ SwaggerDoc() map[string]string }) []columnRef {
	role := column("Role", strings.TrimSuffix(of.SwaggerDoc()["roleRef"], " This field is immutable."))
	return []columnRef{nameColumn, role, ageColumn,
		wideColumn(column("Users", "Users in the "+kind)),
		wideColumn(column("Groups", "Groups in the "+kind)),
		wideColumn(column("ServiceAccounts", "ServiceAccounts in the "+kind))}
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
	prints(func(o *eventsv1.Event, now time.Time) []any {
		event := &corev1.Event{}
		internalversion.Into(event, internalversion.From(o))
		return eventCells(event, now)
	}, eventColumns...),
	prints(func(o *coordinationv1.Lease, now time.Time) []any {
		return []any{o.Name, derefOr(o.Spec.HolderIdentity, ""), age(o.CreationTimestamp, now)}
	}, nameColumn, docColumn("Holder", coordinationv1.LeaseSpec{}, "holderIdentity"), ageColumn),
	prints(func(o *nodev1.RuntimeClass, now time.Time) []any {
		return []any{o.Name, o.Handler, age(o.CreationTimestamp, now)}
	}, nameColumn, column("Handler", ""), ageColumn),
	prints(ScaleCells,
		docColumn("Name", metav1.ObjectMeta{}, "name"),
		intColumn(docColumn("Desired", autoscalingv1.ScaleSpec{}, "replicas")),
		intColumn(docColumn("Available", autoscalingv1.ScaleStatus{}, "replicas")),
		ageColumn),
	prints(definitionCells, nameColumn,
		column("Scope", "Cluster/Namespaced"),
		column("Versions", "Served versions"),
		&metav1.TableColumnDefinition{Name: "Created At", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]},
		wideColumn(column("Group", "API group")),
		wideColumn(column("Kind", "CustomResource kind")),
		wideColumn(column("ShortNames", "Short names")),
		wideColumn(boolColumn(column("Established", "Established status")))),
	prints(apiServiceCells, nameColumn,
		column("Service", "The reference to the service that hosts this API endpoint."),
		column("Available", "Whether this service is available."),
		ageColumn),
	prints(func(o *schedulingv1.PriorityClass, now time.Time) []any {
		return []any{o.Name, int64(o.Value), o.GlobalDefault, age(o.CreationTimestamp, now), string(derefOr(o.PreemptionPolicy, ""))}
	}, nameColumn,
		intColumn(docColumn("Value", schedulingv1.PriorityClass{}, "value")),
		boolColumn(docColumn("Global-Default", schedulingv1.PriorityClass{}, "globalDefault")),
		ageColumn,
		docColumn("PreemptionPolicy", schedulingv1.PriorityClass{}, "preemptionPolicy")),
}

// CustomScaleColumns contains the columns for the Scale of a custom resource.
var CustomScaleColumns = definitions(nameColumn,
	intColumn(column("Desired", "Number of desired replicas")),
	intColumn(column("Available", "Number of actual replicas")),
	&metav1.TableColumnDefinition{Name: "Age", Type: "date", Description: ageColumn.Description},
)

var eventColumns = []columnRef{
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

// Configuration of the API server

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
