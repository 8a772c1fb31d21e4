package scheme

// This file: what the elements of a list, and the members of a map, are to each other, where the tags of the Go types do not say it but their
// comments do (+listType, +listMapKey, +mapType, +structType). Server-side apply and OpenAPI read it.

import (
	"cmp"
	"reflect"
	"strings"
)

// AtomicTypes are owned whole wherever they stand.
var AtomicTypes = []string{"admissionregistration.MatchResources", "admissionregistration.NamedRuleWithOperations",
	"admissionregistration.ParamKind", "admissionregistration.ParamRef", "admissionregistration.Variable",
	"autoscaling.CrossVersionObjectReference", "core.ConfigMapKeySelector", "core.EndpointAddress", "core.EndpointPort",
	"core.FileKeySelector", "core.LocalObjectReference", "core.NodeSelector", "core.NodeSelectorTerm", "core.ObjectFieldSelector",
	"core.ObjectReference", "core.ResourceFieldSelector", "core.ScopeSelector", "core.SecretKeySelector", "core.SecretReference",
	"core.TopologySelectorTerm", "core.TypedLocalObjectReference", "discovery.EndpointPort", "meta.LabelSelector",
	"meta.OwnerReference", "networking.ServiceBackendPort", "rbac.RoleRef", "rbac.Subject"}

// RelationOfTags translates the tags of strategic merge patch, in the words of the relations table.
func RelationOfTags(tag reflect.StructTag) string {
	if !strings.HasPrefix(tag.Get("patchStrategy"), "merge") {
		return ""
	}
	return cmp.Or(tag.Get("patchMergeKey"), "set")
}

// Relations of single fields, where the tags say nothing or something else.
var Relations = map[string]string{
	"admissionregistration.ValidatingAdmissionPolicyBindingSpec.validationActions": "set",
	"admissionregistration.ValidatingAdmissionPolicyStatus.conditions":             "type",
	"apiextensions.CustomResourceDefinitionStatus.conditions":                      "type",
	"batch.JobStatus.conditions":                                                   "atomic",
	"batch.PodFailurePolicyOnExitCodesRequirement.values":                          "set",
	"batch.UncountedTerminatedPods.failed":                                         "set",
	"batch.UncountedTerminatedPods.succeeded":                                      "set",
	"certificates.CertificateSigningRequestStatus.conditions":                      "type",
	"core.Container.ports":                                                         "containerPort,protocol",
	"core.ContainerRestartRuleOnExitCodes.values":                                  "set",
	"core.EphemeralContainerCommon.ports":                                          "containerPort,protocol",
	"core.NodeAllocatableResourceClaimStatus.containers":                           "set",
	"core.PersistentVolumeSpec.claimRef":                                           "granular",
	"core.PodSpec.nodeSelector":                                                    "atomic",
	"core.PodSpec.topologySpreadConstraints":                                       "topologyKey,whenUnsatisfiable",
	"core.PodStatus.hostIPs":                                                       "atomic",
	"core.ReplicationControllerSpec.selector":                                      "atomic",
	"core.ResourceRequirements.claims":                                             "name",
	"core.ResourceStatus.resources":                                                "resourceID",
	"core.ServiceSpec.ports":                                                       "port,protocol",
	"core.ServiceSpec.selector":                                                    "atomic",
	"discovery.Endpoint.addresses":                                                 "set",
	"flowcontrol.NonResourcePolicyRule.nonResourceURLs":                            "set",
	"flowcontrol.NonResourcePolicyRule.verbs":                                      "set",
	"flowcontrol.ResourcePolicyRule.apiGroups":                                     "set",
	"flowcontrol.ResourcePolicyRule.namespaces":                                    "set",
	"flowcontrol.ResourcePolicyRule.resources":                                     "set",
	"flowcontrol.ResourcePolicyRule.verbs":                                         "set",
	"node.Scheduling.nodeSelector":                                                 "atomic",
	"resource.AllocatedDeviceStatus.conditions":                                    "type",
	"resource.ResourceClaimStatus.devices":                                         "driver,device,pool,shareID",
	"storage.CSIDriverSpec.volumeLifecycleModes":                                   "set",
}

// Unversioned names a Go type by group and type, as the tables below do: core.Container for k8s.io/api/core/v1.Container.
func Unversioned(t reflect.Type) string {
	dirs := strings.Split(t.PkgPath(), "/")
	return dirs[max(0, len(dirs)-2)] + "." + t.Name()
}
