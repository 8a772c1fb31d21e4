package registry

// This file checks requests for admin access to devices that are in use. A claim may request admin
// access only in a namespace with a certain label. kube-apiserver checks this in the strategies of
// ResourceClaims and their templates.

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/scheme"
)

// adminAccessErrors returns an error if the write asks for admin access to devices in a namespace
// that does not allow it. old is nil for a create. The spec of a claim cannot change later.
func (wr *Writer) adminAccessErrors(ctx context.Context, obj, old scheme.Object, sub string) field.ErrorList {
	var at *field.Path
	switch o := obj.(type) {
	case *resourcev1.ResourceClaim:
		if old == nil {
			at = requestedAdminAccess(o.Spec.Devices.Requests)
		} else if before := old.(*resourcev1.ResourceClaim); sub == "status" && grantedAdminAccess(before.Status.Allocation) == nil {
			at = grantedAdminAccess(o.Status.Allocation)
		}
	case *resourcev1.ResourceClaimTemplate:
		if old == nil {
			at = requestedAdminAccess(o.Spec.Spec.Devices.Requests)
		}
	}
	if at == nil {
		return nil
	}
	rec, err := wr.Store.GetNewest(ctx, NamespaceKey(obj.GetNamespace()))
	if err != nil {
		return field.ErrorList{field.InternalError(at, fmt.Errorf("could not retrieve namespace to verify admin access: %w", err))}
	}
	namespace, err := wr.Read(wr.Types.Lookup("", "v1", "namespaces"), &rec)
	if err == nil && namespace.GetLabels()[resourcev1.DRAAdminNamespaceLabelKey] == "true" {
		return nil
	}
	return field.ErrorList{field.Forbidden(at, fmt.Sprintf("admin access to devices requires the `%s: true` label on the containing namespace",
		resourcev1.DRAAdminNamespaceLabelKey))}
}

// requestedAdminAccess returns the path of the first request for admin access, or nil.
func requestedAdminAccess(requests []resourcev1.DeviceRequest) *field.Path {
	for i, r := range requests {
		if r.Exactly != nil && r.Exactly.AdminAccess != nil && *r.Exactly.AdminAccess {
			return field.NewPath("spec", "devices", "requests").Index(i).Child("adminAccess")
		}
	}
	return nil
}

// grantedAdminAccess returns the path of the first device allocated with admin access, or nil.
func grantedAdminAccess(allocation *resourcev1.AllocationResult) *field.Path {
	if allocation == nil {
		return nil
	}
	for i, r := range allocation.Devices.Results {
		if r.AdminAccess != nil && *r.AdminAccess {
			return field.NewPath("status", "allocation", "devices", "results").Index(i).Child("adminAccess")
		}
	}
	return nil
}
