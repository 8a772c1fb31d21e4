package strategy_test

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/kinds/strategy"
	"apilet/internal/scheme"
)

// An update of a pod cannot write its status: the status that the kubelet has written stays.
func ExamplePrepareForUpdate() {
	old := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	next := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}
	strategy.PrepareForUpdate(context.Background(), "", next, old)
	fmt.Println(next.Spec.NodeName, next.Status.Phase)
	// Output:
	// n1 Running
}

// Every cluster keeps its first namespaces.
func ExampleValidateDelete() {
	namespaces := scheme.NewRegistry().Lookup("", "v1", "namespaces")
	fmt.Println(strategy.ValidateDelete(namespaces, "kube-system"))
	fmt.Println(strategy.ValidateDelete(namespaces, "shop"))
	// Output:
	// namespaces "kube-system" is forbidden: this namespace may not be deleted
	// <nil>
}

// The dependents of a CronJob are deleted with it, unless an old client deletes it.
func ExampleOrphansByDefault() {
	reg := scheme.NewRegistry(scheme.Builtins...)
	for _, version := range []string{"v1", "v1beta1"} {
		fmt.Println(version, strategy.OrphansByDefault(reg.Lookup("batch", version, "cronjobs")))
	}
	// Output:
	// v1 false
	// v1beta1 true
}

// A PUT to a name that does not exist creates a Lease, but not a Pod.
func ExampleAllowCreateOnUpdate() {
	reg := scheme.NewRegistry()
	fmt.Println(strategy.AllowCreateOnUpdate(reg.Lookup("coordination.k8s.io", "v1", "leases")), strategy.AllowCreateOnUpdate(reg.Lookup("", "v1", "pods")))
	// Output:
	// true false
}
