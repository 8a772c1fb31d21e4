package registry

// This file computes the effect of a deletion on an object without accessing the store. It compares
// the preconditions with the stored object. Then it marks the object with the deletion timestamp,
// the grace period and the finalizers of the propagation policy.

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tidwall/gjson"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/kinds/strategy"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// checkPreconditions compares the preconditions of a DELETE with the stored record. The record need
// not be decoded.
func checkPreconditions(res *scheme.Resource, rec *store.Record, options *metav1.DeleteOptions) error {
	p := options.Preconditions
	if p == nil {
		return nil
	}
	_, name := scheme.NamespacedName(rec.Key)
	conflict := func(what string, want, have any, hint string) error {
		if isNamespaces(res) || res.Group == apiextensionsv1.GroupName { // kube-apiserver checks these before its store does
			failed := "Precondition failed"
			if res.Group == apiextensionsv1.GroupName {
				failed = "precondition failed"
			}
			return apierrors.NewConflict(res.GroupResource(), name,
				fmt.Errorf("%s: %s in precondition: %v, %s in object meta: %v", failed, what, want, what, have))
		}
		return apierrors.NewConflict(schema.GroupResource{Group: res.Group, Resource: res.Kind}, name, fmt.Errorf(
			"the %s in the precondition (%v) does not match the %s in record (%v). The object might have been %s", what, want, what, have, hint))
	}
	if uid := types.UID(gjson.GetBytes(rec.JSON, "metadata.uid").String()); p.UID != nil && *p.UID != uid {
		return conflict("UID", *p.UID, uid, "deleted and then recreated")
	}
	if rv := strconv.FormatInt(rec.Rev, 10); p.ResourceVersion != nil && *p.ResourceVersion != rv {
		return conflict("ResourceVersion", *p.ResourceVersion, rv, "modified")
	}
	return nil
}

// markDeleting sets the deletion timestamp, the grace period and the finalizers for the propagation
// policy. A later deletion may shorten a running grace period. Otherwise it does not change the
// object, and its propagation policy is ignored.
func markDeleting(res *scheme.Resource, obj scheme.Object, options *metav1.DeleteOptions, now time.Time) {
	deleting := obj.GetDeletionTimestamp() != nil
	if deleting && strategy.HasContent(obj) {
		return
	}
	if running := runningGrace(obj); running > 0 {
		wanted := options.GracePeriodSeconds
		if wanted == nil || graceOf(*wanted) >= running {
			return
		}
		shortenGrace(obj, running, graceOf(*wanted), now)
	}
	obj.SetFinalizers(policyFinalizers(res, obj.GetFinalizers(), options))
	if deleting {
		return
	}
	if obj.GetGeneration() > 0 {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	grace := strategy.GracePeriod(obj, options)
	at := metav1.NewTime(now.Add(time.Duration(grace) * time.Second)).Rfc3339Copy()
	obj.SetDeletionTimestamp(&at)
	if strategy.SetTerminating(obj) {
		return
	}
	obj.SetDeletionGracePeriodSeconds(&grace)
}

// runningGrace returns the grace period of an object that is being deleted and waits for its
// termination, or 0 if no grace period is running.
func runningGrace(obj scheme.Object) int64 {
	grace := obj.GetDeletionGracePeriodSeconds()
	if obj.GetDeletionTimestamp() == nil || grace == nil || !strategy.IsGraceful(obj) {
		return 0
	}
	return *grace
}

// graceOf returns the grace period, or 1 second if it is negative.
func graceOf(grace int64) int64 {
	if grace < 0 {
		return 1
	}
	return grace
}

// shortenGrace moves the end of a running grace period to an earlier time, but not before now.
func shortenGrace(obj scheme.Object, running, grace int64, now time.Time) {
	at := obj.GetDeletionTimestamp().Add(time.Duration(grace-running) * time.Second)
	if at.Before(now) {
		at = now
		if grace != 0 {
			grace = 1
		}
	}
	stamp := metav1.NewTime(at).Rfc3339Copy()
	obj.SetDeletionTimestamp(&stamp)
	obj.SetDeletionGracePeriodSeconds(&grace)
}

// policyFinalizers adds or removes the two finalizers that the garbage collector processes.
func policyFinalizers(res *scheme.Resource, have []string, options *metav1.DeleteOptions) []string {
	orphan, foreground := slices.Contains(have, metav1.FinalizerOrphanDependents), slices.Contains(have, metav1.FinalizerDeleteDependents)
	switch {
	case options.OrphanDependents != nil:
		orphan, foreground = *options.OrphanDependents, isNamespaces(res) && !*options.OrphanDependents
	case options.PropagationPolicy != nil:
		orphan = *options.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *options.PropagationPolicy == metav1.DeletePropagationForeground
	case !orphan && !foreground:
		orphan = strategy.OrphansByDefault(res)
	}
	var out []string
	for _, name := range have {
		if name != metav1.FinalizerOrphanDependents && name != metav1.FinalizerDeleteDependents {
			out = append(out, name)
		}
	}
	if orphan {
		out = append(out, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		out = append(out, metav1.FinalizerDeleteDependents)
	}
	return out
}
