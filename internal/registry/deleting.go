package registry

// This file: what a deletion asks of an object, as far as it can be told without the store. Its preconditions are compared with what is
// stored; then the object is marked: when it began to go, how long it has, and which finalizers the propagation policy adds or takes.

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tidwall/gjson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/registry/strategy"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// checkPreconditions compares what a DELETE expects with what is stored; that needs no decoding.
func checkPreconditions(res *scheme.Resource, rec *store.Record, options *metav1.DeleteOptions) error {
	p := options.Preconditions
	if p == nil {
		return nil
	}
	_, name := scheme.NamespacedName(rec.Key)
	conflict := func(what string, want, have any, hint string) error {
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

// markDeleting writes on an object what its deletion asks for: the finalizers of the propagation policy, the time, the grace period.
func markDeleting(res *scheme.Resource, obj scheme.Object, options *metav1.DeleteOptions, now time.Time) {
	obj.SetFinalizers(policyFinalizers(obj.GetFinalizers(), options, strategy.OrphansByDefault(res)))
	grace := strategy.GracePeriod(obj, options)
	if obj.GetDeletionTimestamp() != nil {
		shortenGrace(obj, grace, now)
		return
	}
	if obj.GetGeneration() > 0 {
		obj.SetGeneration(obj.GetGeneration() + 1)
	}
	at := metav1.NewTime(now.Add(time.Duration(grace) * time.Second)).Rfc3339Copy()
	obj.SetDeletionTimestamp(&at)
	if strategy.SetTerminating(obj) {
		return
	}
	obj.SetDeletionGracePeriodSeconds(&grace)
}

// shortenGrace moves the end of a running grace period forward, never back.
func shortenGrace(obj scheme.Object, grace int64, now time.Time) {
	running := obj.GetDeletionGracePeriodSeconds()
	if running == nil || grace >= *running {
		return
	}
	at := obj.GetDeletionTimestamp().Add(time.Duration(grace-*running) * time.Second)
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

// policyFinalizers adds or removes the two finalizers that the garbage collector works off.
func policyFinalizers(have []string, options *metav1.DeleteOptions, orphanByDefault bool) []string {
	orphan, foreground := slices.Contains(have, metav1.FinalizerOrphanDependents), slices.Contains(have, metav1.FinalizerDeleteDependents)
	switch {
	case options.OrphanDependents != nil:
		orphan, foreground = *options.OrphanDependents, foreground && !*options.OrphanDependents
	case options.PropagationPolicy != nil:
		orphan = *options.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *options.PropagationPolicy == metav1.DeletePropagationForeground
	case !orphan && !foreground:
		orphan = orphanByDefault
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
