package main

// This file: the objects that every cluster has before anybody has made one. They are created when they are missing, at start, and belong
// to their readers from then on: what a user changes in them stays.
//
//	Namespace       default, kube-system, kube-public, kube-node-lease    before anything else
//	PriorityClass   system-cluster-critical, system-node-critical
//	ServiceCIDR     kubernetes                                            the range that Services have their addresses of
//	Service         default/kubernetes                                    the range's first address, port 443, and the port that serves

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A founder creates objects that are missing.
type founder struct {
	wr  *writes
	reg *registry
}

// namespaces creates those without which nothing else can be.
func (f founder) namespaces(ctx context.Context) (err error) {
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		err = errors.Join(err, f.found(ctx, "", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	return err
}

// cluster creates the rest; services is the range of cluster IPs, port where this server listens. A failure (say, a Service of the user's
// has the address) leaves out what failed.
func (f founder) cluster(ctx context.Context, services netip.Prefix, port int) error {
	return errors.Join(
		f.found(ctx, schedulingv1.GroupName, "priorityclasses", systemClass(systemClusterCritical, 2000000000,
			"Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.")),
		f.found(ctx, schedulingv1.GroupName, "priorityclasses", systemClass(systemNodeCritical, 2000001000,
			"Used for system critical pods that must not be moved from their current node.")),
		f.serviceRange(ctx, services),
		f.found(ctx, "", "services", ownService(services.Masked().Addr().Next(), port)))
}

func (f founder) found(ctx context.Context, group, plural string, obj object) error {
	res := f.reg.lookup(group, "v1", plural)
	if _, err := f.wr.st.get(res.key(obj.GetNamespace(), obj.GetName())); err == nil {
		return nil
	}
	_, err := f.wr.insert(ctx, res, obj, writeOptions{manager: "apilet"})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating %s %s: %w", res.kind, obj.GetName(), err)
	}
	return nil
}

func systemClass(name string, value int32, description string) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, Description: description}
}

// serviceRange tells the range, and that it is ready: a status needs a write of its own.
func (f founder) serviceRange(ctx context.Context, services netip.Prefix) error {
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
	cidr.Spec.CIDRs = []string{services.Masked().String()}
	if err := f.found(ctx, networkingv1.GroupName, "servicecidrs", cidr); err != nil {
		return err
	}
	t := target{res: f.reg.lookup(networkingv1.GroupName, "v1", "servicecidrs"), name: cidr.Name, sub: "status"}
	_, _, err := f.wr.modify(ctx, t, writeOptions{manager: "apilet"}, func(old object, _ *record) (object, error) {
		ready := old.DeepCopyObject().(*networkingv1.ServiceCIDR)
		if len(ready.Status.Conditions) == 0 {
			ready.Status.Conditions = []metav1.Condition{{Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue,
				Message: "Kubernetes default Service CIDR is ready", LastTransitionTime: now()}}
		}
		return ready, nil
	})
	return err
}

// ownService is by what pods reach the API server.
func ownService(address netip.Addr, port int) *corev1.Service {
	singleStack := corev1.IPFamilyPolicySingleStack
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes",
			Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"}},
		Spec: corev1.ServiceSpec{
			Ports:     []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt(port)}},
			ClusterIP: address.String(), IPFamilyPolicy: &singleStack, SessionAffinity: corev1.ServiceAffinityNone, Type: corev1.ServiceTypeClusterIP,
		},
	}
}
