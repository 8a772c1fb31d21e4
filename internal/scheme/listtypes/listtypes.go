// Package listtypes says what the elements of a list, and the members of a map, are to each other: where the tags of the Go types tell it, by
// [OfTags]; where only their comments do (+listType, +listMapKey, +mapType, +structType), by the tables [Relations] and [Atomic].
// Server-side apply and OpenAPI read it.
//
//	listtypes.Relations["core.ServiceSpec.ports"]    "port,protocol": a map by these keys
//	"set" · "atomic" · "granular"                    each its own element · one owner for all · a struct by its fields
//
// A type is named without its version ([TypeName]), since all versions of a type are alike in this. The tables are not changed. Of ours it
// imports nothing.
package listtypes

import (
	"cmp"
	"reflect"
	"strings"
)

// Atomic are the types whose values are owned whole wherever they stand.
var Atomic = []string{"admissionregistration.MatchResources", "admissionregistration.NamedRuleWithOperations",
	"admissionregistration.ParamKind", "admissionregistration.ParamRef", "admissionregistration.Variable",
	"autoscaling.CrossVersionObjectReference", "core.ConfigMapKeySelector", "core.EndpointAddress", "core.EndpointPort",
	"core.FileKeySelector", "core.LocalObjectReference", "core.NodeSelector", "core.NodeSelectorTerm", "core.ObjectFieldSelector",
	"core.ObjectReference", "core.ResourceFieldSelector", "core.ScopeSelector", "core.SecretKeySelector", "core.SecretReference",
	"core.TopologySelectorTerm", "core.TypedLocalObjectReference", "discovery.EndpointPort", "meta.LabelSelector",
	"meta.OwnerReference", "networking.ServiceBackendPort", "rbac.RoleRef", "rbac.Subject"}

// OfTags translates the tags of strategic merge patch, in the words of Relations.
func OfTags(tag reflect.StructTag) string {
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

// TypeName names a Go type by group and type, as the tables do: core.Container for k8s.io/api/core/v1.Container.
func TypeName(t reflect.Type) string {
	dirs := strings.Split(t.PkgPath(), "/")
	return dirs[max(0, len(dirs)-2)] + "." + t.Name()
}
