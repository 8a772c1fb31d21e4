// Package listtypes describes the types of lists and maps for merging. [RelationFromTags] reads the
// relations that the tags of the Go types declare. The tables [Relations], [Defaults] and
// [IsAtomic] have those that only comments in the Go sources declare (+listType, +listMapKey,
// +mapType, +structType, +default). Server-side apply and OpenAPI use them.
//
//	listtypes.Relations["core.ServiceSpec.ports"]      "port,protocol": a map with these keys
//	"set" · "atomic" · "granular"                      each its own element · one owner for all · a struct by its fields
//	listtypes.Defaults["core.ServicePort.protocol"]    "TCP": the key of an element that omits it
//
// The names of the types do not include the version ([TypeName]), because the relations are the
// same in all versions. IsAtomic handles the only exception. The tables must not be modified.
// This package does not import other packages of this program.
package listtypes

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
)

// IsAtomic reports whether all values of the struct type t are atomic.
func IsAtomic(t reflect.Type) bool {
	// only v1 has the marker
	return slices.Contains(atomic, TypeName(t)) && t.PkgPath() != "k8s.io/api/autoscaling/v2"
}

var atomic = []string{"admissionregistration.MatchResources", "admissionregistration.NamedRuleWithOperations",
	"admissionregistration.ParamKind", "admissionregistration.ParamRef", "admissionregistration.Variable",
	"autoscaling.CrossVersionObjectReference", "core.ConfigMapKeySelector", "core.EndpointAddress", "core.EndpointPort", "core.EvictionResponder",
	"core.FileKeySelector", "core.LocalObjectReference", "core.NodeSelector", "core.NodeSelectorTerm", "core.ObjectFieldSelector",
	"core.ObjectReference", "core.ResourceFieldSelector", "core.ScopeSelector", "core.SecretKeySelector", "core.SecretReference",
	"core.TopologySelectorTerm", "core.TypedLocalObjectReference", "discovery.EndpointPort", "meta.LabelSelector",
	"meta.OwnerReference", "networking.ServiceBackendPort", "rbac.RoleRef", "rbac.Subject"}

// RelationFromTags translates the tags for strategic merge patches to the terms of Relations.
func RelationFromTags(tag reflect.StructTag) string {
	if !strings.HasPrefix(tag.Get("patchStrategy"), "merge") {
		return ""
	}
	return cmp.Or(tag.Get("patchMergeKey"), "set")
}

// Relations maps a field to the relation if it is not declared in the tags.
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
	"core.NodePodPreemptionPolicy.disableResizePreemption":                         "set",
	"core.PersistentVolumeClaimStatus.allocatedResourceStatuses":                   "granular",
	"core.PersistentVolumeSpec.claimRef":                                           "granular",
	"core.PodSpec.nodeSelector":                                                    "atomic",
	"core.PodSpec.topologySpreadConstraints":                                       "topologyKey,whenUnsatisfiable",
	"core.PodStatus.volumeHealth":                                                  "name",
	"core.PodVolumeHealth.healthConditions":                                        "status,reason",
	"core.PodStatus.hostIPs":                                                       "atomic",
	"core.ReplicationControllerSpec.selector":                                      "atomic",
	"core.ResourceRequirements.claims":                                             "name",
	"core.ResourceStatus.resources":                                                "resourceID",
	"core.ServiceSpec.ports":                                                       "port,protocol",
	"core.ServiceSpec.selector":                                                    "atomic",
	"core.VolumeHealthStatus.healthConditions":                                     "status,reason",
	"core.VolumeMount.bindMountOptions":                                            "set",
	"discovery.Endpoint.addresses":                                                 "set",
	"flowcontrol.NonResourcePolicyRule.nonResourceURLs":                            "set",
	"flowcontrol.NonResourcePolicyRule.verbs":                                      "set",
	"flowcontrol.ResourcePolicyRule.apiGroups":                                     "set",
	"flowcontrol.ResourcePolicyRule.namespaces":                                    "set",
	"flowcontrol.ResourcePolicyRule.resources":                                     "set",
	"flowcontrol.ResourcePolicyRule.verbs":                                         "set",
	"node.Scheduling.nodeSelector":                                                 "atomic",
	"resource.AllocatedDeviceStatus.conditions":                                    "type",
	"resource.DeviceRequestAllocationResult.skipNodeOperations":                    "set",
	"resource.ResourceSliceSpec.skipNodeOperations":                                "set",
	"resource.ResourceClaimStatus.devices":                                         "driver,device,pool,shareID",
	"storage.CSIDriverSpec.volumeLifecycleModes":                                   "set",
}

// Defaults maps a field to the default value that the sources declare. If an element of a list
// omits a key, the default is used as the key. If a field without an entry is always encoded, its
// default is the zero value of its type.
var Defaults = map[string]any{
	"certificates.PodCertificateRequestSpec.maxExpirationSeconds": 86400,
	"autoscaling.ScaleSpec.replicas":                              0,
	"core.AzureDiskVolumeSource.cachingMode":                      "ReadWrite",
	"core.AzureDiskVolumeSource.fsType":                           "ext4",
	"core.AzureDiskVolumeSource.kind":                             "Shared",
	"core.AzureDiskVolumeSource.readOnly":                         false,
	"core.ContainerPort.protocol":                                 "TCP",
	"core.FileKeySelector.optional":                               false,
	"core.GRPCAction.service":                                     "",
	"core.ISCSIPersistentVolumeSource.iscsiInterface":             "default",
	"core.ISCSIVolumeSource.iscsiInterface":                       "default",
	"core.LocalObjectReference.name":                              "",
	"core.RBDPersistentVolumeSource.keyring":                      "/etc/ceph/keyring",
	"core.RBDPersistentVolumeSource.pool":                         "rbd",
	"core.RBDPersistentVolumeSource.user":                         "admin",
	"core.RBDVolumeSource.keyring":                                "/etc/ceph/keyring",
	"core.RBDVolumeSource.pool":                                   "rbd",
	"core.RBDVolumeSource.user":                                   "admin",
	"core.ReplicationControllerSpec.minReadySeconds":              0,
	"core.ReplicationControllerSpec.replicas":                     1,
	"core.ScaleIOPersistentVolumeSource.fsType":                   "xfs",
	"core.ScaleIOPersistentVolumeSource.storageMode":              "ThinProvisioned",
	"core.ScaleIOVolumeSource.fsType":                             "xfs",
	"core.ScaleIOVolumeSource.storageMode":                        "ThinProvisioned",
	"core.ServicePort.protocol":                                   "TCP",
	"resource.DeviceToleration.operator":                          "Equal",
}

// TypeName returns the name of a Go type in the tables, which has the group and the type:
// core.Container for k8s.io/api/core/v1.Container.
func TypeName(t reflect.Type) string {
	dirs := strings.Split(t.PkgPath(), "/")
	return dirs[max(0, len(dirs)-2)] + "." + t.Name()
}
