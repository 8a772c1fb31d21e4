package strategy

// This file prepares the types in resource.k8s.io, like k8s.io/kubernetes/pkg/registry/resource. A
// field behind a disabled feature gate is dropped unless the old object uses the feature.

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/api/resourceclaimspec"
	"k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/utils/ptr"
)

func createResourceClaim(claim *resource.ResourceClaim) {
	claim.Status = resource.ResourceClaimStatus{}
	resourceclaimspec.DropDisabledFields(&claim.Spec, nil)
}

func updateResourceClaim(claim, old *resource.ResourceClaim) {
	claim.Status = old.Status
	resourceclaimspec.DropDisabledFields(&claim.Spec, &old.Spec)
}

func createResourceClaimTemplate(template *resource.ResourceClaimTemplate) {
	resourceclaimspec.DropDisabledFields(&template.Spec.Spec, nil)
}

func updateResourceClaimTemplate(template, old *resource.ResourceClaimTemplate) {
	resourceclaimspec.DropDisabledFields(&template.Spec.Spec, &old.Spec.Spec)
}

func updateResourceClaimStatus(claim, old *resource.ResourceClaim) {
	claim.Spec = old.Spec
	metav1.ResetObjectMetaForStatus(&claim.ObjectMeta, &old.ObjectMeta)
	if !enabled(features.DRAConsumableCapacity) && !usesConsumableCapacity(old) {
		dropConsumableCapacity(claim)
	}
	if !enabled(features.DRADeviceBindingConditions) && !usesBindingConditions(old) {
		for i := range allocated(claim) {
			result := &claim.Status.Allocation.Devices.Results[i]
			result.BindingConditions, result.BindingFailureConditions = nil, nil
		}
	}
	dropSkippedOperations(claim, old)
	if !enabled(features.DRAResourceClaimDeviceStatus) && len(old.Status.Devices) == 0 {
		claim.Status.Devices = nil
		return
	}
	dropDeallocated(claim, old)
}

// allocated returns the allocated devices.
func allocated(claim *resource.ResourceClaim) []resource.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	return claim.Status.Allocation.Devices.Results
}

// dropSkippedOperations drops the node operations that a driver does not need.
func dropSkippedOperations(claim, old *resource.ResourceClaim) {
	used := func(result resource.DeviceRequestAllocationResult) bool { return len(result.SkipNodeOperations) > 0 }
	if enabled(features.DRAOptionalNodeOperations) || slices.ContainsFunc(allocated(old), used) {
		return
	}
	results := allocated(claim)
	for i := range results {
		results[i].SkipNodeOperations = nil
	}
}

func dropConsumableCapacity(claim *resource.ResourceClaim) {
	for i := range allocated(claim) {
		result := &claim.Status.Allocation.Devices.Results[i]
		result.ShareID, result.ConsumedCapacity = nil, nil
	}
	for i := range claim.Status.Devices {
		claim.Status.Devices[i].ShareID = nil
	}
}

func usesConsumableCapacity(claim *resource.ResourceClaim) bool {
	return resourceclaimspec.DRAConsumableCapacityFeatureInUse(&claim.Spec) ||
		slices.ContainsFunc(allocated(claim), func(result resource.DeviceRequestAllocationResult) bool {
			return result.ShareID != nil || result.ConsumedCapacity != nil
		}) ||
		slices.ContainsFunc(claim.Status.Devices, func(device resource.AllocatedDeviceStatus) bool { return device.ShareID != nil })
}

func usesBindingConditions(claim *resource.ResourceClaim) bool {
	return slices.ContainsFunc(allocated(claim), func(result resource.DeviceRequestAllocationResult) bool {
		return result.BindingConditions != nil || result.BindingFailureConditions != nil
	})
}

// dropDeallocated drops the status of the devices that the update deallocates.
func dropDeallocated(claim, old *resource.ResourceClaim) {
	type deviceID struct{ driver, pool, device, share string }
	gone := map[deviceID]bool{}
	mark := func(results []resource.DeviceRequestAllocationResult, deallocated bool) {
		for _, r := range results {
			gone[deviceID{r.Driver, r.Pool, r.Device, string(ptr.Deref(r.ShareID, types.UID("")))}] = deallocated
		}
	}
	mark(allocated(old), true)
	mark(allocated(claim), false)
	claim.Status.Devices = slices.DeleteFunc(claim.Status.Devices, func(d resource.AllocatedDeviceStatus) bool {
		return gone[deviceID{d.Driver, d.Pool, d.Device, ptr.Deref(d.ShareID, "")}]
	})
	if len(claim.Status.Devices) == 0 {
		claim.Status.Devices = nil
	}
}

func createResourceSlice(slice *resource.ResourceSlice) {
	slice.Generation = 1
	dropSliceFields(slice, nil)
}

func updateResourceSlice(slice, old *resource.ResourceSlice) {
	if !equality.Semantic.DeepEqual(slice.Spec, old.Spec) {
		slice.Generation = old.Generation + 1
	}
	dropSliceFields(slice, old)
}

// A deviceFeature describes a feature that adds fields to the devices in a ResourceSlice.
type deviceFeature struct {
	gates []featuregate.Feature
	used  func(*resource.Device) bool
	drop  func(*resource.Device)
}

var deviceFeatures = []deviceFeature{
	{[]featuregate.Feature{features.DRADeviceTaints},
		func(d *resource.Device) bool { return len(d.Taints) > 0 },
		func(d *resource.Device) { d.Taints = nil }},
	{[]featuregate.Feature{features.DRADeviceBindingConditions, features.DRAResourceClaimDeviceStatus},
		func(d *resource.Device) bool {
			return len(d.BindingConditions) > 0 || len(d.BindingFailureConditions) > 0 || d.BindsToNode != nil
		},
		func(d *resource.Device) {
			d.BindingConditions, d.BindingFailureConditions, d.BindsToNode = nil, nil, nil
		}},
	{[]featuregate.Feature{features.DRAConsumableCapacity},
		func(d *resource.Device) bool {
			used := d.AllowMultipleAllocations != nil
			for _, capacity := range d.Capacity {
				used = used || capacity.RequestPolicy != nil
			}
			return used
		},
		func(d *resource.Device) {
			d.AllowMultipleAllocations = nil
			for name, capacity := range d.Capacity {
				capacity.RequestPolicy = nil
				d.Capacity[name] = capacity
			}
		}},
	{[]featuregate.Feature{features.DRANodeAllocatableResources},
		func(d *resource.Device) bool { return len(d.NodeAllocatableResources) > 0 },
		func(d *resource.Device) { d.NodeAllocatableResources = nil }},
	{[]featuregate.Feature{features.DRADeviceCompatibilityGroups},
		func(d *resource.Device) bool {
			return slices.ContainsFunc(d.ConsumesCounters, func(c resource.DeviceCounterConsumption) bool { return len(c.CompatibilityGroups) > 0 })
		},
		func(d *resource.Device) {
			for i := range d.ConsumesCounters {
				d.ConsumesCounters[i].CompatibilityGroups = nil
			}
		}},
	{[]featuregate.Feature{features.DRAListTypeAttributes},
		func(d *resource.Device) bool {
			used := false
			for _, a := range d.Attributes {
				used = used || a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil
			}
			return used
		},
		func(d *resource.Device) {
			for name, a := range d.Attributes {
				a.BoolValues, a.IntValues, a.StringValues, a.VersionValues = nil, nil, nil, nil
				d.Attributes[name] = a
			}
		}},
}

// dropSliceFields drops the fields of disabled features. old is nil for a create.
func dropSliceFields(slice, old *resource.ResourceSlice) {
	if !enabled(features.DRAPartitionableDevices) && (old == nil || !usesPartitions(&old.Spec)) {
		slice.Spec.SharedCounters, slice.Spec.PerDeviceNodeSelection = nil, nil
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			device.ConsumesCounters, device.NodeName, device.NodeSelector, device.AllNodes = nil, nil, nil, nil
		}
	}
	if !enabled(features.DRAPartitionableDevicesType) && (old == nil || old.Spec.PartitionTypeAttribute == nil) {
		slice.Spec.PartitionTypeAttribute = nil
	}
	if !enabled(features.DRAOptionalNodeOperations) && (old == nil || len(old.Spec.SkipNodeOperations) == 0) {
		slice.Spec.SkipNodeOperations = nil
	}
	for _, feature := range deviceFeatures {
		used := func(device resource.Device) bool { return feature.used(&device) }
		if !slices.ContainsFunc(feature.gates, disabled) || old != nil && slices.ContainsFunc(old.Spec.Devices, used) {
			continue
		}
		for i := range slice.Spec.Devices {
			feature.drop(&slice.Spec.Devices[i])
		}
	}
}

func usesPartitions(spec *resource.ResourceSliceSpec) bool {
	return len(spec.SharedCounters) > 0 || spec.PerDeviceNodeSelection != nil ||
		slices.ContainsFunc(spec.Devices, func(d resource.Device) bool {
			return len(d.ConsumesCounters) > 0 || d.NodeName != nil || d.NodeSelector != nil || d.AllNodes != nil
		})
}
