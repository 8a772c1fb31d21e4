package discovery

// This file lists the Go types of the lists of built-in types. They are only used for the
// descriptions of lists.

import (
	"reflect"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	batchv1beta1 "k8s.io/api/batch/v1beta1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

var lists = []any{
	admissionregistrationv1.MutatingAdmissionPolicyBindingList{}, admissionregistrationv1.MutatingAdmissionPolicyList{},
	admissionregistrationv1.MutatingWebhookConfigurationList{}, admissionregistrationv1.ValidatingAdmissionPolicyBindingList{},
	admissionregistrationv1.ValidatingAdmissionPolicyList{}, admissionregistrationv1.ValidatingWebhookConfigurationList{},
	apiextensionsv1.CustomResourceDefinitionList{},
	apiregistrationv1.APIServiceList{},
	appsv1.ControllerRevisionList{}, appsv1.DaemonSetList{}, appsv1.DeploymentList{}, appsv1.ReplicaSetList{}, appsv1.StatefulSetList{},
	autoscalingv1.HorizontalPodAutoscalerList{},
	autoscalingv2.HorizontalPodAutoscalerList{},
	batchv1.CronJobList{}, batchv1.JobList{},
	batchv1beta1.CronJobList{},
	certificatesv1.CertificateSigningRequestList{}, certificatesv1.ClusterTrustBundleList{}, certificatesv1.PodCertificateRequestList{},
	coordinationv1.LeaseList{},
	corev1.ComponentStatusList{}, corev1.ConfigMapList{}, corev1.EndpointsList{}, corev1.EventList{}, corev1.LimitRangeList{},
	corev1.NamespaceList{}, corev1.NodeList{}, corev1.PersistentVolumeClaimList{}, corev1.PersistentVolumeList{}, corev1.PodList{},
	corev1.PodTemplateList{}, corev1.ReplicationControllerList{}, corev1.ResourceQuotaList{}, corev1.SecretList{},
	corev1.ServiceAccountList{}, corev1.ServiceList{},
	discoveryv1.EndpointSliceList{},
	eventsv1.EventList{},
	flowcontrolv1.FlowSchemaList{}, flowcontrolv1.PriorityLevelConfigurationList{},
	flowcontrolv1beta3.FlowSchemaList{}, flowcontrolv1beta3.PriorityLevelConfigurationList{},
	networkingv1.IPAddressList{}, networkingv1.IngressClassList{}, networkingv1.IngressList{}, networkingv1.NetworkPolicyList{},
	networkingv1.ServiceCIDRList{},
	nodev1.RuntimeClassList{},
	policyv1.PodDisruptionBudgetList{},
	policyv1beta1.PodDisruptionBudgetList{},
	rbacv1.ClusterRoleBindingList{}, rbacv1.ClusterRoleList{}, rbacv1.RoleBindingList{}, rbacv1.RoleList{},
	resourcev1.DeviceClassList{}, resourcev1.DeviceTaintRuleList{}, resourcev1.ResourceClaimList{}, resourcev1.ResourceClaimTemplateList{}, resourcev1.ResourceSliceList{},
	schedulingv1.PriorityClassList{},
	storagev1.CSIDriverList{}, storagev1.CSINodeList{}, storagev1.CSIStorageCapacityList{}, storagev1.StorageClassList{},
	storagev1.VolumeAttachmentList{}, storagev1.VolumeAttributesClassList{},
	storagemigrationv1.StorageVersionMigrationList{},
}

// listsByItem maps the type of the items to the type of the list.
var listsByItem = func() map[reflect.Type]reflect.Type {
	byItem := map[reflect.Type]reflect.Type{}
	for _, list := range lists {
		t := reflect.TypeOf(list)
		items, _ := t.FieldByName("Items")
		byItem[items.Type.Elem()] = t
	}
	return byItem
}()
