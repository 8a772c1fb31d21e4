package bootstrap

// This file maintains the ServiceCIDR kubernetes, which contains the ranges of
// --service-cluster-ip-range. The stored ranges take precedence over the flags, because existing
// Services have addresses from them:
//
//	stored    flag      action
//	-         A, B      A, B is created with the condition Ready
//	A         A, B      B is added; Services may now have both families
//	A, B      A         none; an Event and the log report the difference. New Services only get addresses from A
//	A         C         the same; addresses still come from A

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/kinds/strategy"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const rangesComponent = "kubernetes-service-cidr-controller" // kube-apiserver's name for it in Events

// serviceRanges creates the object or adds the second family. It sets the condition Ready with a
// second write, because that is part of the status.
func (f Initializer) serviceRanges(ctx context.Context, services []netip.Prefix) error {
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
	for _, block := range services {
		cidr.Spec.CIDRs = append(cidr.Spec.CIDRs, block.String())
	}
	if err := f.create(ctx, networkingv1.GroupName, "servicecidrs", cidr); err != nil {
		return err
	}
	agree := func(stored *networkingv1.ServiceCIDR) bool { return slices.Equal(stored.Spec.CIDRs, cidr.Spec.CIDRs) }
	stored, err := f.changeRange(ctx, "", func(stored *networkingv1.ServiceCIDR) {
		if len(stored.Spec.CIDRs) == 1 && len(services) == 2 && stored.Spec.CIDRs[0] == cidr.Spec.CIDRs[0] {
			stored.Spec.CIDRs = cidr.Spec.CIDRs
		}
	})
	if err != nil {
		return err
	}
	if !agree(stored) {
		return f.logDisagreement(ctx, stored, cidr.Spec.CIDRs)
	}
	_, err = f.changeRange(ctx, "status", func(stored *networkingv1.ServiceCIDR) {
		if len(stored.Status.Conditions) == 0 && agree(stored) && stored.DeletionTimestamp == nil {
			stored.Status.Conditions = []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
				Message: "Kubernetes default Service CIDR is ready", LastTransitionTime: strategy.Now()}}
		}
	})
	return err
}

// changeRange modifies the ServiceCIDR kubernetes and returns the result.
func (f Initializer) changeRange(ctx context.Context, subresource string, change func(*networkingv1.ServiceCIDR)) (stored *networkingv1.ServiceCIDR, err error) {
	t := registry.Target{Resource: f.Types.Lookup(networkingv1.GroupName, "v1", "servicecidrs"), Name: "kubernetes", Subresource: subresource}
	_, _, err = f.Writer.Modify(ctx, t, registry.Options{Manager: "apilet"}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		stored = old.DeepCopyObject().(*networkingv1.ServiceCIDR)
		change(stored)
		return stored, nil
	})
	return stored, err
}

// logDisagreement reports the difference between the flags and the stored ranges in the log and
// with an Event.
func (f Initializer) logDisagreement(ctx context.Context, stored *networkingv1.ServiceCIDR, flags []string) error {
	message := fmt.Sprintf("The default ServiceCIDR %v does not match the controller flag configurations %s", stored.Spec.CIDRs, flags)
	if f.Warn != nil {
		f.Warn(message + ": addresses come from the ServiceCIDR")
	}
	now := strategy.Now()
	return f.create(ctx, "", "events", &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("kubernetes.%x", now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{Kind: "ServiceCIDR", APIVersion: "networking.k8s.io/v1", Name: stored.Name, UID: stored.UID, ResourceVersion: stored.ResourceVersion},
		Reason:         "KubernetesDefaultServiceCIDRInconsistent", Message: message, Type: corev1.EventTypeWarning, Count: 1,
		FirstTimestamp: now, LastTimestamp: now, Source: corev1.EventSource{Component: rangesComponent}, ReportingController: rangesComponent})
}
